//! The commands that change the map, and the reasons for refusing them.
//!
//! Here: the commands in Raft's log, and their answers. Not here: their rules and effects
//! (`apply`), their senders (`controller`, `replica`, operators).

use serde::{Deserialize, Serialize};

use super::NodeDescription;
use crate::id::{CopyId, Incarnation, NodeId, Partition};
use crate::placement::Placement;

/// The setting that marks that the founder has stored the cluster's other settings.
pub const FOUNDED: &str = "founded";
/// The setting that marks that a file or an operator has set the cluster's limits.
pub const LIMITS_SET: &str = "limits_told";
/// The only value of [`FOUNDED`] and [`LIMITS_SET`].
pub const YES: &str = "yes";
/// The longest wait for lost copies: 136 years. The shortest is one millisecond.
pub const LOST_AFTER_MS_MAX: u64 = u32::MAX as u64 * 1000;

/// The most partitions of one command.
pub const CHANGES_MAX: usize = 256;

/// The most records of one [`Put`] list, all of which are put or none.
pub const PUTS_MAX: usize = 256;
/// The most bytes of names and bodies in such a list.
pub const PUTS_BYTES_MAX: usize = 1 << 20;

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapCommand {
    /// Creates the cluster. This is the first command, and applies once.
    Create {
        /// The id of the cluster; drawn at random.
        cluster: u128,
        /// The mapping from keys to nodes, fixed for ever.
        placement: Placement,
    },
    /// Registers a node: for the first time, in a new incarnation, with new addresses, or because
    /// the map calls it dead. A repetition changes nothing.
    Register {
        /// Drawn once for the node's data directory.
        node_uuid: u128,
        /// The node's present incarnation.
        incarnation: Incarnation,
        /// The node's description of itself.
        description: NodeDescription,
    },
    /// The node has its target copies: joining → active.
    Activate(NodeId, Incarnation),
    /// The node has to give its copies away: joining or active → draining.
    Drain(NodeId, Incarnation),
    /// The voters receive no heartbeats from the node: any → dead.
    Bury(NodeId, Incarnation),
    /// Removes the node. A draining node must hold nothing. A dead node is given up with its
    /// copies: use this only if it will not come back in this incarnation.
    Forget(NodeId, Incarnation),
    /// Changes of partitions, at most [`CHANGES_MAX`]. Each is done or refused on its own.
    Partitions(Vec<MapChange>),
    /// Replaces a limit; a `body` of none removes it.
    PutLimit {
        /// The limit's name.
        name: String,
        /// The version to replace; 0 if there is no limit of this name.
        version: u64,
        /// The new body.
        body: Option<Vec<u8>>,
    },
    /// Changes a setting of the whole cluster.
    Set(Setting),
    /// Puts records: all of them, or none. From feature version
    /// [`RECORDS_VERSION`](super::RECORDS_VERSION) on; an older node cannot read it.
    Change(Vec<Put>),
}

/// A new state of a record: a limit, or another text that the server keeps beside the limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The record's name.
    pub name: String,
    /// The version to replace; 0 if there is no record of this name.
    pub version: u64,
    /// The new body; none removes the record.
    pub body: Option<Vec<u8>>,
}

/// A change of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// The wanted number of copies.
    Replicas(u8),
    /// The time after which lost partitions start empty; none: never.
    LostAfterMs(Option<u64>),
    /// The feature version that all nodes support. It never decreases.
    Version(u32),
    /// A mark: [`FOUNDED`] or [`LIMITS_SET`], with the value [`YES`]. A value of none removes a
    /// setting of any name.
    Other {
        /// The setting's name.
        name: String,
        /// The setting's value.
        value: Option<String>,
    },
}

/// A change of one partition. Refused if its entry no longer has version `ver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapChange {
    /// The partition to change.
    pub partition: Partition,
    /// The version of the entry that the change was decided on.
    pub ver: u32,
    /// The transition to apply.
    pub transition: Transition,
}

/// The changes of a partition's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transition {
    /// Starts a copy on a node. It replaces a learner that is not alive.
    SetLearner(NodeId, Incarnation),
    /// Gives up the learner.
    DropLearner(CopyId),
    /// Makes the learner in-sync: it holds every change, and nothing is acknowledged without it.
    /// Proposed by the primary.
    AddInSync(CopyId),
    /// Removes a backup: acknowledgements no longer need it.
    RemoveInSync(CopyId),
    /// Asks the primary to hand over to this copy, or withdraws the request.
    SetTransfer(Option<CopyId>),
    /// Hands over: every in-sync copy holds every change. Proposed by the primary.
    Transfer(CopyId),
    /// Makes this copy primary because the primary is dead.
    Promote(CopyId),
    /// Begins anew and empty, with one copy on `node`.
    Reset {
        /// The node of the new copy.
        node: NodeId,
        /// The node's incarnation.
        incarnation: Incarnation,
        /// True: the old copies may still exist, but were unreachable for `lost_after_ms`. False:
        /// they are known to be gone, or there never were any.
        waited: bool,
    },
}

/// The result of a command that was not refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapAnswer {
    /// The command was applied, or the map already was in that state.
    Done,
    /// The id of the registered node.
    Registered(NodeId),
    /// The result of each change, in order.
    Changes(Vec<Result<(), MapRefusal>>),
}

/// The reason for changing nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum MapRefusal {
    /// The cluster exists already.
    #[error("the cluster exists")]
    Exists,
    /// The cluster does not exist yet.
    #[error("there is no cluster yet")]
    NotCreated,
    /// A field is too long or out of range, or there are too many items.
    #[error("out of bounds")]
    OutOfBounds,
    /// The map has no such node.
    #[error("no such node")]
    UnknownNode,
    /// The node has another incarnation than the command.
    #[error("another incarnation")]
    OtherIncarnation,
    /// The node's state does not allow the command.
    #[error("not in this state of the node")]
    WrongState,
    /// Another node has the same ring name.
    #[error("the ring name is taken")]
    NameTaken,
    /// The node still holds copies.
    #[error("the node holds copies")]
    StillHolds,
    /// The entry, or the limit, has changed since.
    #[error("decided on version {0}, it has another")]
    OtherVersion(u64),
    /// There is no such partition.
    #[error("no such partition")]
    UnknownPartition,
    /// The partition has no primary yet; only `Reset` makes the first copy.
    #[error("there is no primary yet")]
    NoPrimary,
    /// The node holds a copy already.
    #[error("the node has a copy")]
    HasCopy,
    /// The partition has the maximum number of copies.
    #[error("enough copies")]
    EnoughCopies,
    /// The copy is not the present learner.
    #[error("not the learner")]
    NotLearner,
    /// The copy is not in sync.
    #[error("not in sync")]
    NotInSync,
    /// The copy is the primary.
    #[error("it is the primary")]
    IsPrimary,
    /// The copy's node is dead or has another incarnation.
    #[error("the copy does not live")]
    NotLiving,
    /// No living in-sync copy would remain.
    #[error("it may be the last copy")]
    LastCopy,
    /// No transfer is requested, or one to another copy.
    #[error("no transfer to that copy is wanted")]
    NotWanted,
    /// A copy may still exist.
    #[error("a copy may still be there")]
    MayReturn,
    /// A counter would overflow.
    #[error("a counter has reached its end")]
    UsedUp,
    /// No setting has this name, or the setting does not accept this value.
    #[error("no such setting, or not such a value")]
    NoSetting,
    /// The node runs at another address: its data directory was copied.
    #[error("the node of this data directory runs somewhere else")]
    RunsElsewhere,
    /// Some nodes may not know the command yet.
    #[error("the cluster is being updated")]
    BeingUpdated,
}
