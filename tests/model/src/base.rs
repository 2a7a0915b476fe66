//! The basic profile of a seed: the cluster, the load and the faults, drawn so that seeds differ
//! widely.

use cluster::NodeId;

use crate::rng::Rng;

const MS: u64 = 1_000_000;
const HOUR: u64 = 3_600_000 * MS;

/// The cluster, the load and the faults of a run.
#[derive(Debug, Clone)]
pub struct Base {
    /// Nodes at the start.
    pub nodes: u64,
    /// The binary logarithm of the number of partitions.
    pub partition_bits: u8,
    /// Copies at the start.
    pub replicas: u8,
    /// Whether the wanted number of copies changes from time to time.
    pub resizes: bool,
    /// The time during which faults occur.
    pub chaos_ns: u64,
    /// Mean time between operations.
    pub call_ns: u64,
    /// Mean time between faults of each kind; 0: none.
    pub crash_ns: u64,
    /// Mean time between cuts, one-way and two-way.
    pub cut_ns: u64,
    /// Mean time between new targets, which cause handoffs.
    pub move_ns: u64,
    /// Mean time between joins and drains.
    pub member_ns: u64,
    /// Mean time between stalls of links, which then deliver all bytes at once.
    pub stall_ns: u64,
    /// Messages lost, in ten thousand.
    pub drop: u64,
    /// Messages that take up to 400 ms, in ten thousand.
    pub spike: u64,
    /// Messages to and from the controller may overtake each other.
    pub reorders: bool,
    /// The largest deviation of a node clock's rate, in millionths, either way.
    pub rate_ppm: u64,
    /// The largest deviation of a wall clock, either way.
    pub skew_ns: u64,
    /// The silence after which the controller declares a node dead.
    pub patience_ns: u64,
    /// Nothing fails: nodes join, leave and hand over, and no client may notice.
    pub is_gentle: bool,
    /// All copies of a partition may die, after which it starts empty.
    pub may_lose: bool,
    /// The silence after which a copy without acks is to be removed.
    pub silent_ns: u64,
    /// The time after a heartbeat in which reads need no round; 0: each needs one.
    pub read_lease_ns: u64,
    /// The time after which a partition with all copies out of contact starts empty; `None`: never.
    pub lost_after_ns: Option<u64>,
}

impl Base {
    /// Draws the profile of a seed.
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
        // Two draws without use: they keep the profiles of all seeds as before.
        let _ = (rng.draw(), rng.draw());
        let silent_ns = rng.pick(&[400 * MS, 1500 * MS]).unwrap_or(1500 * MS);
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
            rate_ppm: rng.pick(&[0, 200, 20_000]).unwrap_or(0),
            skew_ns: rng.pick(&[0, 50 * MS, 5000 * MS, HOUR, 87_660 * HOUR]).unwrap_or(0),
            patience_ns,
            is_gentle,
            may_lose,
            silent_ns,
            read_lease_ns: if has_lease { 1400 * MS } else { 0 },
            lost_after_ns: may_lose.then_some(4000 * MS),
        };
        if is_gentle { drawn.gentle() } else { drawn }
    }

    /// The same profile without faults.
    fn gentle(self) -> Self {
        Self { crash_ns: 0, cut_ns: 0, stall_ns: 0, drop: 0, spike: 0, may_lose: false, ..self }
    }
}

/// The controller as an end of messages; no node has this id.
pub(crate) const CONTROL: NodeId = NodeId(0);
