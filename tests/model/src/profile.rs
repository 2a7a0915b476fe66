//! The profile of a seed, and the rules that can be left out.

use cluster::op_stream::OpOptions;
use cluster::replica::ReplicaOptions;
use cluster::{Bug, Rules};

use crate::base::Base;
use crate::rng::Rng;

const MS: u64 = 1_000_000;

/// The emphasis of a run, beside the draws of the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// No emphasis.
    Usual,
    /// Primaries lose the controller and continue; acks with refusals are lost.
    Fenced,
    /// Copies are removed one partition at a time, and the primary crashes meanwhile.
    Removals,
    /// Three copies, which have different last records when their primary crashes.
    Diverged,
    /// Primaries crash as soon as a copy is in-sync, with many requests in flight.
    Joins,
    /// At each node clients only read for a while, and primaries are cut off.
    Readers,
    /// All copies of a partition lose the controller until it is given up.
    Abandoned,
    /// Nothing fails but two of five nodes with three copies, one soon after the other.
    Deaths,
}

impl Aim {
    /// All aims.
    pub const ALL: [Self; 8] = [
        Self::Usual,
        Self::Fenced,
        Self::Removals,
        Self::Diverged,
        Self::Joins,
        Self::Readers,
        Self::Abandoned,
        Self::Deaths,
    ];

    /// Two of three consecutive seeds have the usual aim; the third has each other aim in turn.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        match seed % 3 {
            2 => Self::ALL[1 + (seed / 3 % 7) as usize],
            _ => Self::Usual,
        }
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Fenced => "fenced",
            Self::Removals => "removals",
            Self::Diverged => "diverged",
            Self::Joins => "joins",
            Self::Readers => "readers",
            Self::Abandoned => "abandoned",
            Self::Deaths => "deaths",
        }
    }
}

/// Faults that an event causes, each with its probability in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aimed {
    /// A copy refuses: the connection is cut before the refusal is sent.
    pub cut_on_refusal: u64,
    /// A copy is removed: the primary crashes.
    pub crash_on_removal: u64,
    /// A primary learns of a refusal: it loses the controller, and crashes.
    pub crash_on_refusal: u64,
    /// A copy becomes in-sync: its primary crashes.
    pub crash_on_join: u64,
    /// Such a crash may take the last copy of a partition: then its contents are not checked.
    pub may_lose: bool,
    /// Mean time between primaries that lose the controller; 0: none does.
    pub fence_ns: u64,
    /// Mean time between partitions whose copies all lose the controller for long; 0: none.
    pub abandon_ns: u64,
    /// Mean time between two deaths, of which the second must lose nothing; 0: there are none.
    pub deaths_ns: u64,
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Nodes, faults, the map.
    pub base: Base,
    /// The options of copies.
    pub options: ReplicaOptions,
    /// The options of operations.
    pub ops: OpOptions,
    /// The most workers of a node; each node draws its own number.
    pub workers_max: u64,
    /// The shards of each node.
    pub shards: usize,
    /// The bytes that a stream may have without an ack.
    pub stream_bytes: usize,
    /// One in `stall_in` steps of a worker's round takes very long.
    pub stall_in: u64,
    /// Written bytes that arrive late, in ten thousand.
    pub spike: u64,
    /// Written bytes that arrive in two parts, in a hundred.
    pub splits: u64,
    /// The mean number of frames after which a worker stops reading in its round.
    pub pause_in: u64,
    /// A worker stops reading with this number of queued batches. If it is large, old sendings are
    /// executed long after newer ones.
    pub todo_max: usize,
    /// Whether the clients of a node only read from time to time.
    pub has_readers: bool,
    /// Whether operations wait longer in every other second, as if the map would soon name another
    /// owner.
    pub has_patience: bool,
    /// The nodes are of an earlier version, which does not know answers behind their records.
    pub has_old_peers: bool,
    /// The aim of the run.
    pub aim: Aim,
    /// Faults that an event causes.
    pub aimed: Aimed,
    /// The rule that is left out, if any.
    pub bug: Option<Bug>,
}

impl Profile {
    /// Draws the profile of a seed in a mixed run.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        Self::aimed(Aim::of(seed), seed)
    }

    /// Draws the profile of a seed with this aim.
    #[must_use]
    pub fn aimed(aim: Aim, seed: u64) -> Self {
        let mut base = Base::draw(seed);
        if aim != Aim::Usual {
            // A gentle profile has no faults and so no aim.
            let mut other = seed;
            while base.is_gentle {
                other += 1_000_003;
                base = Base::draw(other);
            }
            adjust_base(&mut base, aim);
        }
        let mut rng = Rng::new(seed ^ 0x706c_616e_6521);
        let options = ReplicaOptions {
            held_max: 64,
            chunk_bytes: rng.pick(&[30, 90, 4096]).unwrap_or(90),
            silent_ns: base.silent_ns,
            read_lease_ns: base.read_lease_ns,
            lost_after_ns: base.lost_after_ns,
            ..ReplicaOptions::default()
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
            spike: base.spike,
            splits: rng.pick(&[0, 5, 20]).unwrap_or(0),
            pause_in: rng.pick(&[4, 16, 1000]).unwrap_or(16),
            todo_max: rng.pick(&[64, 1 << 20, 1 << 20]).unwrap_or(64),
            has_readers: aim == Aim::Readers,
            has_patience: seed % 4 == 3,
            has_old_peers: rng.chance(1, 2),
            aim,
            aimed: Aimed::default(),
            bug: None,
            base,
        }
        .adjust()
    }

    /// Makes the events of the aim likely.
    fn adjust(mut self) -> Self {
        let aimed = &mut self.aimed;
        match self.aim {
            Aim::Usual if self.base.is_gentle => {}
            Aim::Usual => (aimed.cut_on_refusal, aimed.fence_ns) = (20, 8000 * MS),
            Aim::Fenced => {
                (aimed.cut_on_refusal, aimed.fence_ns) = (75, 1500 * MS);
                self.pause_in = self.pause_in.min(16);
            }
            Aim::Removals => {
                (aimed.crash_on_removal, aimed.may_lose) = (10, true);
                (self.shards, self.workers_max) = (1, 2);
                self.spike = 1000;
            }
            Aim::Diverged => {
                (aimed.crash_on_refusal, aimed.fence_ns) = (50, 1500 * MS);
                self.spike = 3000;
            }
            Aim::Joins => {
                aimed.crash_on_join = 25;
                self.spike = 3000;
            }
            Aim::Readers => aimed.fence_ns = 1500 * MS,
            Aim::Abandoned => aimed.abandon_ns = 3000 * MS,
            Aim::Deaths => {
                aimed.deaths_ns = 2500 * MS;
                self.spike = 3000;
                // A copy that takes longer than a removal waits may be lost.
                self.options.chunk_bytes = 4096;
                (self.stream_bytes, self.stall_in, self.pause_in) = (1 << 20, 1 << 40, 1000);
            }
        }
        self
    }

    /// The same profile without one rule.
    #[must_use]
    pub fn with(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self.options.rules = Rules::without(bug);
        self.ops.rules = Rules::without(bug);
        if !self.base.is_gentle && self.aim != Aim::Deaths {
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

/// Does the same as [`Profile::adjust`] for nodes, faults and the map.
fn adjust_base(base: &mut Base, aim: Aim) {
    match aim {
        Aim::Usual => {}
        Aim::Fenced => {
            base.may_lose = false;
            if base.replicas == 3 {
                base.partition_bits = 4;
            } else {
                base.replicas = 2;
            }
        }
        Aim::Readers => base.may_lose = false,
        Aim::Removals => {
            (base.nodes, base.partition_bits) = (3, 4);
            (base.replicas, base.resizes) = (2, false);
            (base.may_lose, base.drop, base.silent_ns) = (false, 2000, 400 * MS);
            base.stall_ns = 500 * MS;
        }
        Aim::Diverged => {
            (base.nodes, base.replicas, base.resizes, base.may_lose) = (5, 3, false, false);
            (base.crash_ns, base.partition_bits) = (1500 * MS, base.partition_bits.max(2));
        }
        Aim::Joins => {
            (base.replicas, base.resizes, base.may_lose) = (2, false, false);
            base.move_ns = base.move_ns.min(500 * MS);
        }
        Aim::Abandoned => {
            base.may_lose = true;
            base.lost_after_ns = Some(2500 * MS);
        }
        Aim::Deaths => {
            (base.nodes, base.replicas, base.resizes, base.may_lose) = (5, 3, false, false);
            (base.crash_ns, base.cut_ns, base.member_ns) = (0, 0, 0);
            (base.stall_ns, base.drop, base.spike) = (0, 0, 0);
            // With another target a partition has two copies until the third one is made.
            base.move_ns = 0;
            base.partition_bits = base.partition_bits.max(2);
        }
    }
    if !base.may_lose {
        base.lost_after_ns = None;
    }
}

/// A rule that can be left out, and the runs that reveal it.
#[derive(Debug, Clone, Copy)]
pub struct Planted {
    /// The name on the command line.
    pub name: &'static str,
    /// The rule.
    pub bug: Bug,
    /// The aim of the runs.
    pub aim: Aim,
    /// The number of seeds within which it is found.
    pub seeds: u64,
}

/// Every rule that can be left out, by name.
pub const FAULTS: &[Planted] = &[
    planted("word-before-refusal", Bug::WordBeforeRefusal, Aim::Fenced),
    planted("refusal-lost-with-link", Bug::RefusalLostWithLink, Aim::Fenced),
    planted("removal-frees-whole-piece", Bug::RemovalFreesWholePiece, Aim::Removals),
    planted("answer-despite-refusal", Bug::AnswerDespiteRefusal, Aim::Fenced),
    planted("answers-overtake-records", Bug::AnswersOvertakeRecords, Aim::Deaths),
    planted("answers-behind-one-copy", Bug::AnswersBehindOneCopy, Aim::Diverged),
    planted("policy-outlives-frame", Bug::PolicyOutlivesFrame, Aim::Usual),
    planted("older-link-read-on", Bug::OlderLinkReadOn, Aim::Usual),
    planted("resume-one-behind", Bug::ResumeOneBehind, Aim::Usual),
    planted("piece-needs-one-link", Bug::PieceNeedsOneLink, Aim::Usual),
    planted("read-not-parked", Bug::ReadNotParked, Aim::Fenced),
    planted("set-after-mandatory", Bug::SetAfterMandatory, Aim::Diverged),
    planted("number-not-kept-on-resend", Bug::NumberNotKeptOnResend, Aim::Usual),
    planted("log-dropped-early", Bug::LogDroppedEarly, Aim::Usual),
    planted("log-survives-wipe", Bug::LogSurvivesWipe, Aim::Fenced),
    planted("deposal-releases", Bug::DeposalReleases, Aim::Usual),
    planted("answer-of-any-sending", Bug::AnswerOfAnySending, Aim::Usual),
    planted("kept-op-not-resent", Bug::KeptOpNotResent, Aim::Diverged),
    planted("unchanged-survives-deposal", Bug::UnchangedSurvivesDeposal, Aim::Fenced),
    planted("adopt-in-any-stream-clears", Bug::AdoptInAnyStreamClears, Aim::Fenced),
    planted("found-answered-at-once", Bug::FoundAnsweredAtOnce, Aim::Usual),
    planted("unseen-lane-is-new", Bug::UnseenLaneIsNew, Aim::Usual),
    planted("serves-before-adopted", Bug::ServesBeforeAdopted, Aim::Diverged),
    planted("log-dies-with-stream", Bug::LogDiesWithStream, Aim::Usual),
    planted("looked-up-on-arrival", Bug::LookedUpOnArrival, Aim::Usual),
    planted("done-not-refused", Bug::DoneNotRefused, Aim::Fenced),
    planted("acked-before-inbox", Bug::AckedBeforeInbox, Aim::Fenced),
    planted("chunk-without-log", Bug::ChunkWithoutLog, Aim::Usual),
    planted("deposal-opens-nothing", Bug::DeposalOpensNothing, Aim::Usual),
    planted("no-dedupe", Bug::NoDedupe, Aim::Usual),
    planted("late-mandatory", Bug::LateMandatory, Aim::Joins),
    planted("learner-behind", Bug::LearnerBehind, Aim::Joins),
    planted("transfer-undrained", Bug::TransferUndrained, Aim::Usual),
    planted("serve-in-transfer", Bug::ServeInTransfer, Aim::Usual),
    planted("clock-of-node", Bug::ClockOfNode, Aim::Usual),
    planted("reads-unconfirmed", Bug::ReadsUnconfirmed, Aim::Readers),
    planted("serve-when-lost", Bug::ServeWhenLost, Aim::Abandoned),
    planted("accept-old-attempts", Bug::AcceptOldAttempts, Aim::Fenced),
    planted("owner-unbounded", Bug::OwnerUnbounded, Aim::Usual),
    planted("answer-early", Bug::AnswerEarly, Aim::Usual),
    planted("drop-silent-backup", Bug::DropSilentBackup, Aim::Usual),
    planted("rests-before-first-record", Bug::RestsBeforeFirstRecord, Aim::Diverged),
    planted("restored-past-refusals", Bug::RestoredPastRefusals, Aim::Fenced),
    planted("removal-at-once", Bug::RemovalAtOnce, Aim::Deaths),
    planted("accept-old-terms", Bug::AcceptOldTerms, Aim::Fenced),
    planted("sweep-by-wall", Bug::SweepByWall, Aim::Usual),
    planted("sweep-by-map-primary", Bug::SweepByMapPrimary, Aim::Fenced),
];

const fn planted(name: &'static str, bug: Bug, aim: Aim) -> Planted {
    Planted { name, bug, aim, seeds: 100 }
}
