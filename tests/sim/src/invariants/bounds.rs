//! No queue grows beyond its bound.

use std::net::IpAddr;

use tollgate::simulation::SimulatedNode;

/// The default of `cluster::replica::ReplicaOptions::held_max`.
const HELD_MAX: usize = 1024;

pub(super) fn look(address: IpAddr, sight: &SimulatedNode, found: &mut Vec<String>) {
    for (partition, copy) in sight.replicas.iter().enumerate() {
        if copy.held > HELD_MAX {
            found.push(format!("{address}: p{partition} holds {} operations", copy.held));
        }
    }
}
