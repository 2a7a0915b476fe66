//! The settings of lanes.
//!
//! Not here: who may be a peer (`security`), how much may wait (`outbox`).

use std::ops::RangeInclusive;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::message::{FrameBounds, handshake};

use super::outbox::SendWindows;
use super::security::PeerSecurity;

/// Who we are to our peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Which cluster; 0: in none yet.
    pub cluster: u128,
    /// Which node; 0: in no cluster yet.
    pub node: NodeId,
    /// In which life.
    pub incarnation: Incarnation,
    /// Which of our cores these lanes belong to.
    pub core: u16,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From the connection, or the first attempt at it, to the end of the greeting.
    pub hello: Duration,
    /// For the connection alone: a host that is out of reach is tried anew after this time, because
    /// the system repeats an attempt ever more seldom.
    pub connect: Duration,
    /// A link that we opened asks for a sign of life this long after the last one, if it was used.
    pub ping: Duration,
    /// The peer is silent when a sign of life takes longer.
    pub silent: Duration,
    /// A link whose peer is silent for this long ends.
    pub lost: Duration,
    /// A link over which nothing is said for so long is closed. Whole seconds.
    pub idle: Duration,
    /// A peer that takes nothing of what is written for so long has no link any more. Whole seconds.
    pub stall: Duration,
    /// Pause after the first attempt that failed; it doubles with each.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(5),
            connect: Duration::from_millis(500),
            ping: Duration::from_millis(100),
            silent: Duration::from_millis(300),
            lost: Duration::from_secs(3),
            idle: Duration::from_mins(1),
            stall: Duration::from_secs(10),
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_millis(500),
        }
    }
}

/// Settings of lanes.
#[derive(Debug)]
pub struct TransportOptions {
    /// Who we are; see [`Transport::identify`](super::Transport::identify).
    pub identity: PeerIdentity,
    /// Who may be a peer.
    pub security: PeerSecurity,
    /// The operator wrote `insecure = true`: [`PeerSecurity::Insecure`] will do off loopback too.
    pub insecure_confirmed: bool,
    /// Longest frame, the same on all nodes.
    pub bounds: FrameBounds,
    /// How much may wait for one peer.
    pub windows: SendWindows,
    /// How long things may take.
    pub timing: Timing,
    /// Worker threads that read and write data links; 0: none, and there are no data links.
    pub workers: u16,
    /// The versions that we speak.
    pub versions: RangeInclusive<u16>,
}

impl TransportOptions {
    /// The defaults for everything else.
    #[must_use]
    pub fn new(identity: PeerIdentity, security: PeerSecurity) -> Self {
        Self {
            identity,
            security,
            insecure_confirmed: false,
            bounds: FrameBounds::default(),
            windows: SendWindows::default(),
            timing: Timing::default(),
            workers: 0,
            versions: handshake::versions(),
        }
    }
}
