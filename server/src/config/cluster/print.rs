//! `ClusterConfig` → TOML, for `--check-config`.
//!
//! Here: one line per cluster setting. Not here: the other settings (`config::print`). The settings
//! of a founder are left out if the node only joins, because the cluster decides them.

use std::time::Duration;

use control::StartMode;
use tollgate_limits::OnUnavailable;

use super::flags::SCHEMES;
use super::{Ack, ClusterConfig, Page, PeerFiles};
use crate::config::print::count;

impl ClusterConfig {
    pub(in crate::config) fn print(&self, page: &mut Page) {
        page.path("data_dir", self.data_dir.as_deref());
        let list = |all: &mut dyn Iterator<Item = String>| all.collect::<Vec<_>>();
        let seeds = list(&mut self.seeds.iter().map(ToString::to_string));
        match self.begin {
            StartMode::Found if self.data_dir.is_some() => {}
            StartMode::Found => page.set("expect", 1),
            StartMode::Join => page.set("join", seeds),
            StartMode::Expect(nodes) => {
                page.set("seeds", seeds);
                page.set("expect", count(nodes as u64));
            }
        }
        page.set("peer_listen", list(&mut self.peer_listen.iter().map(ToString::to_string)));
        page.set("advertise", self.advertise.to_string());
        page.set("advertise_peer", self.advertise_peer.to_string());
        page.set("ring_name", self.ring_name.as_str());
        if self.is_witness() {
            page.set("role", "witness");
        } else {
            page.set("weight", i64::from(self.weight));
        }
        if !self.zone.is_empty() {
            page.set("zone", self.zone.as_str());
        }
        if self.begin != StartMode::Join {
            page.set("placement", word(&SCHEMES, &self.placement.scheme()));
            page.set("partition_bits", i64::from(self.placement.partitions().ilog2()));
            page.set("replicas", i64::from(self.replicas));
            match self.lost_after {
                Some(after) => page.set("lost_after", seconds(after)),
                None => page.set("lost_after", "never"),
            }
        }
        page.set("ack", word(&Ack::ALL, &self.ack));
        page.set("on_unavailable", word(&OnUnavailable::ALL, &self.on_unavailable));
        page.set("drain_timeout", seconds(self.drain_timeout));
        match &self.peer_files {
            PeerFiles::None => {}
            PeerFiles::Key(path) => page.path("peer_key_file", Some(path)),
            PeerFiles::Tls { certificates, key, authorities } => {
                page.path("peer_cert", Some(certificates));
                page.path("peer_key", Some(key));
                page.path("peer_ca", Some(authorities));
            }
        }
        page.set("insecure", self.insecure);
    }
}

fn word<T: PartialEq>(all: &[(&'static str, T)], value: &T) -> &'static str {
    all.iter().find(|(_, other)| other == value).map_or("", |(name, _)| *name)
}

fn seconds(time: Duration) -> i64 {
    count(time.as_secs())
}
