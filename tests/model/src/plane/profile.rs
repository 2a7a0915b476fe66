//! What a seed means.

use cluster::plane::op_stream::OpOptions;
use cluster::plane::replica::Options;
use cluster::plane::{Bug, Rules};

use crate::base::Base;
use crate::rng::Rng;

const MS: u64 = 1_000_000;

/// What a run is like.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Nodes, faults, the map.
    pub base: Base,
    /// How copies behave.
    pub options: Options,
    /// How operations behave.
    pub ops: OpOptions,
    /// Most workers of a node; each node draws its own number.
    pub workers_max: u64,
    /// Shards of each node.
    pub shards: usize,
    /// Bytes that a stream may have without acknowledgement.
    pub stream_bytes: usize,
    /// A step of a worker's round takes very long once in so many.
    pub stall_in: u64,
    /// Which rule is left out.
    pub bug: Option<Bug>,
}

impl Profile {
    /// What the seed means.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let base = Base::draw(seed);
        let mut rng = Rng::new(seed ^ 0x706c_616e_6521);
        let options = Options {
            held_max: 64,
            chunk_bytes: rng.pick(&[30, 90, 4096]).unwrap_or(90),
            silent_ns: base.silent_ns,
            read_lease_ns: base.read_lease_ns,
            lost_after_ns: base.lost_after_ns,
            ..Options::default()
        };
        Self {
            options,
            ops: OpOptions::default(),
            workers_max: rng.between(1, 4),
            shards: rng.pick(&[1, 2, 4, 8]).unwrap_or(4),
            stream_bytes: rng.pick(&[4096, 64 << 10, 1 << 20]).unwrap_or(1 << 20),
            stall_in: if base.is_gentle {
                1 << 40
            } else {
                rng.pick(&[200, 1000, 5000]).unwrap_or(1000)
            },
            bug: None,
            base,
        }
    }

    /// The same with a rule left out.
    #[must_use]
    pub fn with(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self.options.rules = Rules::without(bug);
        self.ops.rules = Rules::without(bug);
        if !self.base.is_gentle {
            self.stall_in = self.stall_in.min(200);
            self.base.stall_ns = self.base.stall_ns.min(1000 * MS);
        }
        self
    }

    /// The rules that are in force.
    #[must_use]
    pub fn rules(&self) -> Rules {
        self.options.rules
    }

    /// Whether a rule is left out.
    #[must_use]
    pub fn lacks(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }
}

/// Every rule that can be left out, by name.
pub const FAULTS: &[(&str, Bug)] = &[
    ("word-before-refusal", Bug::WordBeforeRefusal),
    ("refusal-lost-with-link", Bug::RefusalLostWithLink),
    ("removal-frees-whole-piece", Bug::RemovalFreesWholePiece),
    ("older-link-read-on", Bug::OlderLinkReadOn),
    ("resume-one-behind", Bug::ResumeOneBehind),
    ("piece-needs-one-link", Bug::PieceNeedsOneLink),
    ("read-not-parked", Bug::ReadNotParked),
    ("set-after-mandatory", Bug::SetAfterMandatory),
    ("number-not-kept-on-resend", Bug::NumberNotKeptOnResend),
    ("log-dropped-early", Bug::LogDroppedEarly),
    ("log-survives-wipe", Bug::LogSurvivesWipe),
    ("deposal-releases", Bug::DeposalReleases),
    ("answer-of-any-sending", Bug::AnswerOfAnySending),
    ("unchanged-survives-deposal", Bug::UnchangedSurvivesDeposal),
    ("adopt-in-any-stream-clears", Bug::AdoptInAnyStreamClears),
    ("found-answered-at-once", Bug::FoundAnsweredAtOnce),
    ("found-at-position-before-batch", Bug::FoundAtPositionBeforeBatch),
    ("unseen-lane-is-new", Bug::UnseenLaneIsNew),
    ("append-before-resume", Bug::AppendBeforeResume),
    ("serves-before-adopted", Bug::ServesBeforeAdopted),
    ("log-dies-with-stream", Bug::LogDiesWithStream),
    ("looked-up-on-arrival", Bug::LookedUpOnArrival),
    ("done-not-refused", Bug::DoneNotRefused),
    ("acked-before-inbox", Bug::AckedBeforeInbox),
    ("chunk-without-log", Bug::ChunkWithoutLog),
    ("deposal-opens-nothing", Bug::DeposalOpensNothing),
    ("no-dedupe", Bug::NoDedupe),
    ("late-mandatory", Bug::LateMandatory),
    ("learner-behind", Bug::LearnerBehind),
    ("adopt-by-length", Bug::AdoptByLength),
    ("transfer-undrained", Bug::TransferUndrained),
    ("serve-in-transfer", Bug::ServeInTransfer),
    ("clock-of-node", Bug::ClockOfNode),
    ("reads-unconfirmed", Bug::ReadsUnconfirmed),
    ("serve-when-lost", Bug::ServeWhenLost),
    ("accept-old-attempts", Bug::AcceptOldAttempts),
    ("owner-unbounded", Bug::OwnerUnbounded),
    ("answer-early", Bug::AnswerEarly),
    ("drop-silent-backup", Bug::DropSilentBackup),
];
