//! What a seed means: the cluster, the load and the faults, drawn so that seeds differ widely.

use cluster::NodeId;
use cluster::replica::{Bug, Options};

use crate::rng::Rng;

/// A rule that is left out to see whether that is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// In the replica core.
    Replica(Bug),
    /// In the map: a copy is named by its node and incarnation only, so that one that was wiped and
    /// made again has the name of the one before.
    CopiesWithoutNumber,
    /// In what a node does that passes something on for two others.
    Relay(RelayBug),
}

/// A rule of relays that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayBug {
    /// A relay gives operations a name of its own.
    Renames,
    /// A relay says that an operation was not done that it has passed on.
    Refuses,
    /// A primary takes an operation that was relayed for new, though a later sending came before it.
    TakenForNew,
}

const MS: u64 = 1_000_000;
const HOUR: u64 = 3_600_000 * MS;

/// What happens in a run.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Nodes at the start.
    pub nodes: u64,
    /// Two to the power of it partitions.
    pub partition_bits: u8,
    /// Copies at the start.
    pub replicas: u8,
    /// Now and then more copies or fewer are wanted.
    pub resizes: bool,
    /// How long faults go on.
    pub chaos_ns: u64,
    /// Mean time between operations.
    pub call_ns: u64,
    /// Mean time between faults of each kind; 0: none.
    pub crash_ns: u64,
    /// Cuts, one-way and two-way.
    pub cut_ns: u64,
    /// New targets: handoffs.
    pub move_ns: u64,
    /// Joins and drains.
    pub member_ns: u64,
    /// Links that stand still for a while and then deliver all at once.
    pub stall_ns: u64,
    /// Messages lost, in ten thousand.
    pub drop: u64,
    /// Messages that take up to 400 ms, in ten thousand.
    pub spike: u64,
    /// Messages of one lane may overtake each other.
    pub reorders: bool,
    /// Messages that go through another node although their link is whole, in ten thousand: its sender
    /// has not noticed yet that it is whole again. Where it is cut most do.
    pub relays: u64,
    /// How far node clocks differ in rate, in millionths, either way.
    pub rate_ppm: u64,
    /// How far wall clocks differ, either way.
    pub skew_ns: u64,
    /// The controller's patience with a silent node.
    pub patience_ns: u64,
    /// Nothing fails: nodes join, leave and hand over, and no client may notice.
    pub is_gentle: bool,
    /// All copies of a partition may die, and it begins anew.
    pub may_lose: bool,
    /// Settings of every copy.
    pub options: Options,
    /// The rule that is left out.
    pub fault: Option<Fault>,
}

impl Profile {
    /// What the seed means.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x7072_6f66_696c_6500);
        let nodes = rng.between(3, 6);
        let replicas = rng.pick(&[2, 2, 2, 2, 3, 3, 1]).unwrap_or(2);
        let partition_bits = rng.pick(&[0, 0, 1, 1, 2, 4]).unwrap_or(0);
        let has_lease = rng.chance(1, 2);
        let may_lose = rng.chance(1, 5);
        let patience_ns = if has_lease { 1500 * MS } else { 700 * MS };
        let mut often = |low: u64, high: u64| rng.between(low * MS, high * MS);
        let (crash_ns, cut_ns) = (often(1500, 6000), often(800, 4000));
        let (move_ns, member_ns) = (often(400, 3000), often(3000, 12_000));
        let stall_ns = often(700, 5000);
        let calm = rng.below(10);
        let is_gentle = rng.chance(1, 10);
        let options = Options {
            unacked_max: rng.pick(&[12_usize, 64, 64]).unwrap_or(64),
            held_max: 32,
            hold_ns: 250 * MS,
            reads_max: 64,
            results_max: 64,
            chunk_bytes: rng.pick(&[40_usize, 120, 32 << 10]).unwrap_or(120),
            resend_records: 16,
            read_lease_ns: if has_lease { 1400 * MS } else { 0 },
            lost_after_ns: may_lose.then_some(4000 * MS),
            silent_ns: rng.pick(&[400 * MS, 1500 * MS]).unwrap_or(1500 * MS),
            ..Options::default()
        };
        let drawn = Self {
            nodes,
            partition_bits,
            replicas,
            resizes: rng.chance(1, 3),
            chaos_ns: rng.between(8_000, 16_000) * MS,
            call_ns: rng.between(2 * MS, 8 * MS),
            crash_ns: if calm == 0 { 0 } else { crash_ns },
            cut_ns: if calm == 1 { 0 } else { cut_ns },
            move_ns,
            member_ns,
            stall_ns: if calm == 2 { 0 } else { stall_ns },
            drop: rng.pick(&[0, 20, 100, 200]).unwrap_or(0),
            spike: rng.pick(&[0, 100, 300]).unwrap_or(0),
            reorders: rng.chance(1, 3),
            relays: 0,
            rate_ppm: rng.pick(&[0, 200, 20_000]).unwrap_or(0),
            skew_ns: rng.pick(&[0, 50 * MS, 5000 * MS, HOUR, 87_660 * HOUR]).unwrap_or(0),
            patience_ns,
            is_gentle,
            may_lose,
            options,
            fault: None,
        };
        // Drawn last, so that a seed means what it meant before there were relays.
        let drawn = Self { relays: rng.pick(&[0, 50, 500]).unwrap_or(0), ..drawn };
        if is_gentle { drawn.gentle() } else { drawn }
    }

    /// The same without anything that fails, and with queues as they are by default.
    fn gentle(self) -> Self {
        let queues = Options::default();
        let options = Options {
            unacked_max: queues.unacked_max,
            held_max: queues.held_max,
            reads_max: queues.reads_max,
            results_max: queues.results_max,
            ..self.options
        };
        Self {
            crash_ns: 0,
            cut_ns: 0,
            stall_ns: 0,
            drop: 0,
            spike: 0,
            may_lose: false,
            options,
            ..self
        }
    }

    /// The same with a rule left out.
    #[must_use]
    pub fn with(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        if let Fault::Replica(bug) = fault {
            self.options.bug = Some(bug);
        }
        if let Fault::Relay(_) = fault {
            self.relays = 500;
        }
        self
    }
}

/// The controller, where messages come from and go to; no node has this id.
pub const CONTROL: NodeId = NodeId(0);

/// Every rule that can be left out, by name.
pub const FAULTS: &[(&str, Fault)] = &[
    ("answer-early", Fault::Replica(Bug::AnswerEarly)),
    ("drop-silent-backup", Fault::Replica(Bug::DropSilentBackup)),
    ("no-dedupe", Fault::Replica(Bug::NoDedupe)),
    ("accept-old-terms", Fault::Replica(Bug::AcceptOldTerms)),
    ("late-mandatory", Fault::Replica(Bug::LateMandatory)),
    ("adopt-by-length", Fault::Replica(Bug::AdoptByLength)),
    ("copies-without-number", Fault::CopiesWithoutNumber),
    ("learner-behind", Fault::Replica(Bug::LearnerBehind)),
    ("transfer-undrained", Fault::Replica(Bug::TransferUndrained)),
    ("serve-in-transfer", Fault::Replica(Bug::ServeInTransfer)),
    ("clock-of-node", Fault::Replica(Bug::ClockOfNode)),
    ("reads-unconfirmed", Fault::Replica(Bug::ReadsUnconfirmed)),
    ("serve-when-lost", Fault::Replica(Bug::ServeWhenLost)),
    ("accept-old-attempts", Fault::Replica(Bug::AcceptOldAttempts)),
    ("old-starts-count", Fault::Replica(Bug::OldStartsCount)),
    ("copy-without-results", Fault::Replica(Bug::CopyWithoutResults)),
    ("owner-unbounded", Fault::Replica(Bug::OwnerUnbounded)),
    ("open-beside-copies", Fault::Replica(Bug::OpenBesideCopies)),
    ("close-without-number", Fault::Replica(Bug::CloseWithoutNumber)),
    ("relay-renames", Fault::Relay(RelayBug::Renames)),
    ("relay-refuses", Fault::Relay(RelayBug::Refuses)),
    ("relayed-taken-for-new", Fault::Relay(RelayBug::TakenForNew)),
    ("record-without-id", Fault::Replica(Bug::RecordWithoutId)),
    ("copy-without-ids", Fault::Replica(Bug::CopyWithoutIds)),
    ("clear-without-ids", Fault::Replica(Bug::ClearWithoutIds)),
];

/// The rule of that name.
#[must_use]
pub fn fault(name: &str) -> Option<Fault> {
    FAULTS.iter().find(|(known, _)| *known == name).map(|(_, fault)| *fault)
}
