//! How a node takes part in a cluster.
//!
//! Here: the settings, checked and resolved. Not here: the flags (`flags`), what they add up to
//! (`resolve`), addresses (`address`), what becomes of them (`control`, `transport`).

mod address;
mod flags;
mod print;
mod resolve;

use std::path::PathBuf;
use std::time::Duration;

use cluster::map::NodeDescription;
use cluster::placement::Placement;
use control::StartMode;

pub use self::address::{HostPort, Seed};
pub(super) use self::flags::ClusterFlags;

use super::{ListenAddr, print::Page};
use crate::limits::OnUnavailable;
use crate::transport::{PeerSecurity, SecurityError};

/// How a node takes part in a cluster, decided once at start.
///
/// `begin`, `placement`, `replicas` and `lost_after` are asked of a node without a cluster only: one
/// whose data directory knows a cluster goes back there, whatever they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Where the cluster's log and map lie (`--data-dir`). None: in memory, and after a restart this
    /// is a new node.
    pub data_dir: Option<PathBuf>,
    /// How it gets a cluster: `--join` and `--seeds` join, `--seeds` with `--expect` expect, neither
    /// founds.
    pub begin: StartMode,
    /// Where other nodes may be (`--join`, `--seeds`); its own address may be among them.
    pub seeds: Vec<Seed>,
    /// Where nodes connect (`--peer-listen`); at least one, without labels.
    pub peer_listen: Vec<ListenAddr>,
    /// Where clients reach it (`--advertise`). Port 0: the one that was bound.
    pub advertise: HostPort,
    /// Where nodes reach it (`--advertise-peer`). Port 0: the one that was bound.
    pub advertise_peer: HostPort,
    /// Its name in clients' server lists (`--ring-name`).
    pub ring_name: String,
    /// Its share relative to others (`--weight`); 0: a witness (`--role witness`), which votes,
    /// forwards and holds nothing.
    pub weight: u32,
    /// Copies avoid sharing one (`--zone`); may be empty.
    pub zone: String,
    /// How keys find nodes, for ever (`--placement`, `--partition-bits`).
    pub placement: Placement,
    /// Wanted copies of each partition, 1 to 3 (`--replicas`).
    pub replicas: u8,
    /// After so long without any copy in reach a partition may begin anew; none: never
    /// (`--lost-after`).
    pub lost_after: Option<Duration>,
    /// When a change is answered (`--ack`).
    pub ack: Ack,
    /// What answers for limits that say nothing of it while their owner cannot
    /// (`--on-unavailable`).
    pub on_unavailable: OnUnavailable,
    /// How long a node that ends may take to give its copies away (`--drain-timeout`).
    pub drain_timeout: Duration,
    /// How peers show that they belong to the cluster.
    pub peer_files: PeerFiles,
    /// Nothing shows it, and the operator said so (`--insecure`).
    pub insecure: bool,
}

/// When a change is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// When every in-sync copy holds it: a crash loses nothing that was answered.
    #[default]
    Replica,
    /// When the owner has it: a crash may forget the last milliseconds.
    Owner,
}

impl Ack {
    /// The words of the flag.
    const ALL: [(&str, Self); 2] = [("replica", Self::Replica), ("owner", Self::Owner)];
}

/// The files by which peers show that they belong to the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerFiles {
    /// None.
    None,
    /// A key that all nodes have (`--peer-key-file`).
    Key(PathBuf),
    /// Certificates on both sides, in PEM.
    Tls {
        /// Our certificate and those between it and an authority (`--peer-cert`).
        certificates: PathBuf,
        /// The private key of our certificate (`--peer-key`).
        key: PathBuf,
        /// Whose certificates are believed (`--peer-ca`).
        authorities: PathBuf,
    },
}

impl ClusterConfig {
    /// Nodes listen so far above the port of their clients, unless told otherwise.
    pub const PEER_PORT_ABOVE: u16 = 10_000;
    /// The port of a peer that is written without one.
    pub const PEER_PORT: u16 = 11211 + Self::PEER_PORT_ABOVE;

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_witness(&self) -> bool {
        self.weight == 0
    }

    /// Reads the files by which peers are known.
    ///
    /// # Errors
    ///
    /// When one cannot be read or is not what it should be.
    pub fn security(&self) -> Result<PeerSecurity, SecurityError> {
        match &self.peer_files {
            PeerFiles::None => Ok(PeerSecurity::Insecure),
            PeerFiles::Key(path) => PeerSecurity::key_of(path),
            PeerFiles::Tls { certificates, key, authorities } => {
                PeerSecurity::tls_of(certificates, key, authorities, None)
            }
        }
    }

    /// What the node says of itself, with the ports that were bound where the settings leave them to
    /// the system.
    #[must_use]
    pub fn description(&self, client_port: u16, peer_port: u16) -> NodeDescription {
        NodeDescription {
            client_address: self.advertise.with_port_if_none(client_port).to_string(),
            peer_address: self.advertise_peer.with_port_if_none(peer_port).to_string(),
            ring_name: self.ring_name.clone(),
            weight: self.weight,
            zone: self.zone.clone(),
        }
    }

    /// The files and directories it names.
    pub(super) fn paths(&mut self) -> Vec<&mut PathBuf> {
        let mut paths: Vec<_> = self.data_dir.as_mut().into_iter().collect();
        match &mut self.peer_files {
            PeerFiles::None => {}
            PeerFiles::Key(path) => paths.push(path),
            PeerFiles::Tls { certificates, key, authorities } => {
                paths.extend([certificates, key, authorities]);
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests;
