//! A partition has one primary in a term, and neither terms nor versions of the map go back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tollgate::simulation::{Role, SimulatedNode};

use crate::history::History;

/// Observations of terms.
#[derive(Default)]
pub(super) struct Terms {
    /// The observed primary of each partition and term.
    primaries: BTreeMap<(usize, u32), IpAddr>,
    lives: BTreeMap<IpAddr, Life>,
}

/// Observations of one incarnation of a node.
#[derive(Default)]
struct Life {
    who: Option<(u128, u64)>,
    map_ver: u64,
    terms: BTreeMap<usize, u32>,
}

impl Terms {
    pub(super) fn look(
        &mut self,
        address: IpAddr,
        sight: &SimulatedNode,
        history: &mut History,
        now: Duration,
        found: &mut Vec<String>,
    ) {
        let identity = sight.status.identity;
        let who = Some((identity.node_uuid, identity.incarnation.0));
        let life = self.lives.entry(address).or_default();
        if life.who != who {
            *life = Life { who, ..Life::default() };
        }
        let ver = sight.map.ver();
        if ver < life.map_ver {
            found.push(format!("{address}: its map went from {} to {ver}", life.map_ver));
        }
        if ver > life.map_ver {
            life.map_ver = ver;
            history.note(now, &format!("{address} has map {ver}"));
        }
        for (partition, copy) in sight.replicas.iter().enumerate() {
            let term = life.terms.entry(partition).or_default();
            if copy.term < *term {
                found.push(format!(
                    "{address}: p{partition} went from term {term} to {}",
                    copy.term
                ));
            }
            *term = copy.term;
            if copy.role != Role::Primary {
                continue;
            }
            let seen = self.primaries.entry((partition, copy.term)).or_insert_with(|| {
                history.note(now, &format!("{address} serves p{partition} in term {}", copy.term));
                address
            });
            if *seen != address {
                found.push(format!(
                    "p{partition} has two primaries in term {}: {seen} and {address}",
                    copy.term
                ));
            }
        }
    }
}
