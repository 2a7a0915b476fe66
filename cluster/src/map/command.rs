//! What may be asked of the map, and why it may be refused.
//!
//! Here: the commands that go into Raft's log, and their answers. Not here: what they do (`apply`),
//! who asks when (`controller`, `replica`, operators).

use serde::{Deserialize, Serialize};

use super::NodeDescription;
use crate::id::{CopyId, Incarnation, NodeId, Partition};
use crate::placement::Placement;

/// The setting that says that the cluster was given the others by its founder.
pub const FOUNDED: &str = "founded";
/// The setting that says that the cluster was told its limits, by a file or an operator.
pub const LIMITS_SET: &str = "limits_told";
/// The only value of [`FOUNDED`] and [`LIMITS_SET`].
pub const YES: &str = "yes";
/// Longest wait for lost copies: 136 years. The shortest is one millisecond.
pub const LOST_AFTER_MS_MAX: u64 = u32::MAX as u64 * 1000;

/// Most partitions of one command.
pub const CHANGES_MAX: usize = 256;

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapCommand {
    /// Begins the cluster. The first command, once.
    Create {
        /// Which cluster; drawn at random.
        cluster: u128,
        /// How keys find nodes, for ever.
        placement: Placement,
    },
    /// A node says it is there: for the first time, in a new life, with new addresses, or because
    /// it hears that it is held dead. Saying it twice is saying it once.
    Register {
        /// Drawn once for its data directory.
        node_uuid: u128,
        /// Its present life.
        incarnation: Incarnation,
        /// What it says of itself.
        description: NodeDescription,
    },
    /// The node has what it should have: joining → active.
    Activate(NodeId, Incarnation),
    /// The node is to give everything away: joining or active → draining.
    Drain(NodeId, Incarnation),
    /// The voters do not hear the node: any → dead.
    Bury(NodeId, Incarnation),
    /// The node is no more. One that drains must hold nothing; one that is dead is given up with
    /// whatever it holds: say so only if it will not come back in this life.
    Forget(NodeId, Incarnation),
    /// Each is done or refused on its own. At most [`CHANGES_MAX`].
    Partitions(Vec<MapChange>),
    /// A limit: none removes it. `version` is the one it has; 0: there is none.
    PutLimit {
        /// Its name.
        name: String,
        /// The version to replace.
        version: u64,
        /// What it becomes.
        body: Option<Vec<u8>>,
    },
    /// A setting of the whole cluster.
    Set(Setting),
}

/// A change of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// Wanted copies.
    Replicas(u8),
    /// When lost partitions may begin anew; none: never.
    LostAfterMs(Option<u64>),
    /// What all nodes can do. Never less than it was.
    Version(u32),
    /// A mark: [`FOUNDED`] or [`LIMITS_SET`], whose value is [`YES`]. No value removes a setting of
    /// any name.
    Other {
        /// Its name.
        name: String,
        /// Its value.
        value: Option<String>,
    },
}

/// A change of one partition, if its entry still has version `ver`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapChange {
    /// Which.
    pub partition: Partition,
    /// The version it was decided on.
    pub ver: u32,
    /// What.
    pub transition: Transition,
}

/// What becomes of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transition {
    /// Make a copy there. It replaces a learner that is not there any more.
    SetLearner(NodeId, Incarnation),
    /// Give up the copy that is being made.
    DropLearner(CopyId),
    /// The learner holds everything, and nothing is acknowledged without it. Asked by the primary.
    AddInSync(CopyId),
    /// A backup need not acknowledge any more.
    RemoveInSync(CopyId),
    /// The primary is to hand over to this one, or to keep.
    SetTransfer(Option<CopyId>),
    /// It does: every in-sync copy holds everything. Asked by the primary.
    Transfer(CopyId),
    /// The primary is dead: this one goes on.
    Promote(CopyId),
    /// Begin anew and empty, with one copy there.
    Reset {
        /// Where.
        node: NodeId,
        /// In which life.
        incarnation: Incarnation,
        /// The copies are not known to be gone, but were out of reach for as long as the settings
        /// want. False: they are known to be gone, or there never were any.
        waited: bool,
    },
}

/// What became of a command that was not refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MapAnswer {
    /// Done, or it already was so.
    Done,
    /// The id of the node that registered.
    Registered(NodeId),
    /// What became of each change, in order.
    Changes(Vec<Result<(), MapRefusal>>),
}

/// Why nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum MapRefusal {
    /// A second creation.
    #[error("the cluster exists")]
    Exists,
    /// Anything before the creation.
    #[error("there is no cluster yet")]
    NotCreated,
    /// Too long, too many, or out of range.
    #[error("out of bounds")]
    OutOfBounds,
    /// No such node.
    #[error("no such node")]
    UnknownNode,
    /// The node lives another life than the one meant.
    #[error("another incarnation")]
    OtherIncarnation,
    /// The node is not in a state for this.
    #[error("not in this state of the node")]
    WrongState,
    /// Two nodes cannot have the same ring name.
    #[error("the ring name is taken")]
    NameTaken,
    /// The node still holds copies.
    #[error("the node holds copies")]
    StillHolds,
    /// The entry, or the limit, has changed since.
    #[error("decided on version {0}, it has another")]
    OtherVersion(u64),
    /// No such partition.
    #[error("no such partition")]
    UnknownPartition,
    /// Only the first copy, by a reset, comes before a primary.
    #[error("there is no primary yet")]
    NoPrimary,
    /// The node holds a copy already.
    #[error("the node has a copy")]
    HasCopy,
    /// No more copies are allowed.
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
    /// The copy is on a node that is dead or lives another life.
    #[error("the copy does not live")]
    NotLiving,
    /// No living in-sync copy would be left.
    #[error("it may be the last copy")]
    LastCopy,
    /// The transfer is not wanted, or to another one.
    #[error("no transfer to that copy is wanted")]
    NotWanted,
    /// A copy may still be there.
    #[error("a copy may still be there")]
    MayReturn,
    /// A number would not fit.
    #[error("a counter has reached its end")]
    UsedUp,
    /// No setting has this name, or it does not take this value.
    #[error("no such setting, or not such a value")]
    NoSetting,
    /// The node runs at another address: its data directory was copied.
    #[error("the node of this data directory runs somewhere else")]
    RunsElsewhere,
}
