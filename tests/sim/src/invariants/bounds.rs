//! No queue grows beyond its bound.

use std::net::IpAddr;

use tollgate::simulation::Sight;

/// As `cluster::replica::Options` has them.
const UNACKED_MAX: usize = 4096;
const HELD_MAX: usize = 1024;
/// For each worker of each node of this world.
const RESULTS_MAX: usize = 1024 * 16;

pub(super) fn look(address: IpAddr, sight: &Sight, found: &mut Vec<String>) {
    for (partition, copy) in sight.copies.iter().enumerate() {
        let Some(load) = copy.as_ref().map(|copy| copy.load) else { continue };
        let is_odd = load.unacked > UNACKED_MAX + 1
            || load.held > HELD_MAX
            || load.reads > UNACKED_MAX
            || load.results > RESULTS_MAX;
        if is_odd {
            found.push(format!("{address}: p{partition} has {load:?}"));
        }
    }
}
