//! The settings of the transport.
//!
//! Here: identity, timing, and all settings together. Not here: security (`security`), windows
//! (`outbox`).

use std::ops::RangeInclusive;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::message::{FrameBounds, handshake};
use control::WakeGrid;

use super::outbox::SendWindows;
use super::security::PeerSecurity;

/// The identity of this node towards its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster; 0 for none.
    pub cluster: u128,
    /// The node's id; 0 without a cluster.
    pub node: NodeId,
    /// The run of the process.
    pub incarnation: Incarnation,
    /// The core that the links belong to.
    pub core: u16,
}

/// Timeouts and pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// From the connection, or the first attempt to connect, to the end of the handshake.
    pub hello: Duration,
    /// Timeout of one attempt to connect. An unreachable host is tried again after this time,
    /// because the system's own retries become ever less frequent.
    pub connect: Duration,
    /// A used link that this side opened sends a ping this long after the last one.
    pub ping: Duration,
    /// A peer is silent after this time without an answer to a ping.
    pub silent: Duration,
    /// A link ends after this time without an answer to a ping.
    pub lost: Duration,
    /// A link without traffic for this long is closed. Whole seconds.
    pub idle: Duration,
    /// A link ends when its peer accepts no bytes for this long. Whole seconds.
    pub stall: Duration,
    /// Pause after the first failed attempt to open a link; it doubles with each further failure.
    pub pause_min: Duration,
    /// Maximum pause.
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

/// Settings of the transport.
#[derive(Debug)]
pub struct TransportOptions {
    /// The initial identity; [`Transport::identify`](super::Transport::identify) changes it.
    pub identity: PeerIdentity,
    /// The authentication of peers.
    pub security: PeerSecurity,
    /// The operator confirmed `insecure = true`: [`PeerSecurity::Insecure`] is accepted off
    /// loopback too.
    pub insecure_confirmed: bool,
    /// Bounds of a frame, equal on all nodes.
    pub bounds: FrameBounds,
    /// Bounds on the pending frames of one peer.
    pub windows: SendWindows,
    /// Timeouts and pauses.
    pub timing: Timing,
    /// The instants at which links wake once a second.
    pub grid: WakeGrid,
    /// Number of worker threads for data links. 0: there are no data links.
    pub workers: u16,
    /// The protocol versions that this node supports.
    pub versions: RangeInclusive<u16>,
}

impl TransportOptions {
    /// Settings with defaults for all other fields.
    #[must_use]
    pub fn new(identity: PeerIdentity, security: PeerSecurity) -> Self {
        Self {
            identity,
            security,
            insecure_confirmed: false,
            bounds: FrameBounds::default(),
            windows: SendWindows::default(),
            timing: Timing::default(),
            grid: WakeGrid::from_now(),
            workers: 0,
            versions: handshake::versions(),
        }
    }
}
