//! The settings of a node that belongs to a cluster.
//!
//! Here: the settings, checked and resolved. Not here: the flags (`flags`), resolving them
//! (`resolve`), addresses (`address`), applying the settings (`control`, `transport`).

mod address;
mod flags;
mod print;
mod resolve;

use std::path::PathBuf;
use std::time::Duration;

use cluster::map::NodeDescription;
use cluster::placement::Placement;
use control::StartMode;
use tollgate_limits::OnUnavailable;

pub use self::address::{HostPort, Seed};
pub(super) use self::flags::ClusterFlags;

use super::{ListenAddr, print::Page};
use crate::transport::{PeerSecurity, SecurityError};

/// A node's cluster settings; fixed at startup.
///
/// `begin`, `placement`, `replicas` and `lost_after` apply only to a node without a cluster. A node
/// with a membership in its data directory rejoins that cluster and ignores them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Directory of the cluster's log and map (`--data-dir`). `None`: both are in memory only, and
    /// the node is a new one after a restart.
    pub data_dir: Option<PathBuf>,
    /// The way to a cluster. `--join` alone or `--seeds` alone: join one. `--seeds` with
    /// `--expect`: found one with that many nodes, or join. Neither: found one.
    pub begin: StartMode,
    /// Possible addresses of other nodes (`--join`, `--seeds`); the node's own may be among them.
    pub seeds: Vec<Seed>,
    /// Addresses to listen on for other nodes (`--peer-listen`); at least one, without labels.
    pub peer_listen: Vec<ListenAddr>,
    /// Address that other nodes and clients use for client connections (`--advertise`). Port 0: the
    /// bound port.
    pub advertise: HostPort,
    /// Address that other nodes use for peer connections (`--advertise-peer`). Port 0: the bound
    /// port.
    pub advertise_peer: HostPort,
    /// The node's name in clients' server lists (`--ring-name`).
    pub ring_name: String,
    /// The node's share of keys, relative to other nodes (`--weight`). 0: a witness
    /// (`--role witness`), which votes and forwards but holds no keys.
    pub weight: u32,
    /// Failure zone; copies of a key avoid sharing one (`--zone`). May be empty.
    pub zone: String,
    /// The mapping from keys to partitions, permanent for a cluster (`--placement`,
    /// `--partition-bits`).
    pub placement: Placement,
    /// Target number of copies of each partition, 1 to 3 (`--replicas`).
    pub replicas: u8,
    /// Time without a reachable copy after which a partition starts empty (`--lost-after`).
    /// `None`: never.
    pub lost_after: Option<Duration>,
    /// The copies that must hold a change before its reply (`--ack`).
    pub ack: Ack,
    /// The decision while a key's owner is unreachable, unless the limit has its own setting
    /// (`--on-unavailable`).
    pub on_unavailable: OnUnavailable,
    /// Maximum time that a stopping node spends on giving its copies away (`--drain-timeout`).
    pub drain_timeout: Duration,
    /// Files for mutual authentication of peers.
    pub peer_files: PeerFiles,
    /// Whether peers may connect without authentication (`--insecure`).
    pub insecure: bool,
}

/// The copies that must hold a change before its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ack {
    /// Every in-sync copy: a crash loses no change that was answered.
    #[default]
    Replica,
    /// The owner alone: a crash may lose the last milliseconds of changes.
    Owner,
}

impl Ack {
    /// The values of `--ack`.
    const ALL: [(&str, Self); 2] = [("replica", Self::Replica), ("owner", Self::Owner)];
}

/// The files for mutual authentication of peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerFiles {
    /// No authentication.
    None,
    /// A key that all nodes share (`--peer-key-file`).
    Key(PathBuf),
    /// TLS certificates on both sides, in PEM.
    Tls {
        /// This node's certificate and its chain up to an authority (`--peer-cert`).
        certificates: PathBuf,
        /// The private key of this node's certificate (`--peer-key`).
        key: PathBuf,
        /// The authorities that must have signed peers' certificates (`--peer-ca`).
        authorities: PathBuf,
    },
}

impl ClusterConfig {
    /// Default distance from the client port to the peer port.
    pub const PEER_PORT_ABOVE: u16 = 10_000;
    /// Default number of copies.
    pub const REPLICAS: u8 = 2;
    /// Default port of a peer address.
    pub const PEER_PORT: u16 = 11211 + Self::PEER_PORT_ABOVE;

    /// Whether the node holds no keys.
    #[must_use]
    pub fn is_witness(&self) -> bool {
        self.weight == 0
    }

    /// Reads the files of `peer_files`.
    ///
    /// # Errors
    ///
    /// A file cannot be read or its content is not valid.
    pub fn security(&self) -> Result<PeerSecurity, SecurityError> {
        match &self.peer_files {
            PeerFiles::None => Ok(PeerSecurity::Insecure),
            PeerFiles::Key(path) => PeerSecurity::key_of(path),
            PeerFiles::Tls { certificates, key, authorities } => {
                PeerSecurity::tls_of(certificates, key, authorities, None)
            }
        }
    }

    /// The node's description for the map. `client_port` and `peer_port` are the bound ports and
    /// replace port 0 in the settings.
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

    /// The files and directories of these settings.
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
