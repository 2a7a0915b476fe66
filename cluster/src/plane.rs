//! The data plane: how a change reaches the other copies of its partition, and how an operation
//! reaches the node that owns its key.
//!
//! Pure, as the whole crate: bytes and time in, bytes and events out. `ALGORITHM.md` says why each rule
//! is needed, `PORTING.md` which call follows which.
//!
//! * [`frames`]: the frames of a link between two nodes.
//! * [`partition_header`]: the fields of a partition that every batch reads and changes.
//! * [`replica_set`]: which links the records of a partition go over.
//! * [`send_stream`], [`receive_stream`]: the numbered bytes of a link, at either end.
//! * [`link`]: a connection that carries both, and its resumption after a loss.
//! * [`dedup_log`]: results that are kept so that nothing is done twice.
//! * [`op_stream`]: operations that other nodes were asked to do.
//! * [`parked_reply`]: replies that wait until other copies hold what they tell.
//! * [`replica`]: the rare events of one copy: takeover, handover, copying, refusal.
//! * [`contact`]: how long a node may serve and read without its controller.

pub mod contact;
pub mod dedup_log;
pub mod frames;
pub mod link;
pub mod op_stream;
pub mod parked_reply;
pub mod partition_header;
pub mod receive_stream;
pub mod replica;
pub mod replica_set;
mod rules;
pub mod send_stream;

use crate::id::{Incarnation, NodeId};

#[cfg(feature = "bugs")]
pub use self::rules::Bug;
pub use self::rules::Rules;

/// The operations of one worker of one life of a node for one owner. With a number it names an operation;
/// the operation keeps this name wherever it is sent again, even after another node has become the owner.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    /// The node that sends. 0 in a section whose records belong to no operation.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Which of its workers.
    pub worker: u16,
    /// The node that was asked first. Of operations that a node does itself: the node of the first link of
    /// the partition's set.
    pub owner: NodeId,
}

/// A row in the node's table of links: one (peer, life of the peer, k). It is used again only when no set names it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u16);
