//! The offsets of other nodes' wall clocks from this node's.
//!
//! Here: the best estimate for each node, from measurements. Not here: making the measurements
//! (`inbound`), deciding which clocks are off (`cluster::map::clocks`).

use std::collections::BTreeMap;

use cluster::id::NodeId;

/// An estimate without a new measurement for this long is dropped.
const KEPT_NS: u64 = 10_000_000_000;
/// The length of a window; one-way estimates are compared over the present window and the one
/// before.
const WINDOW_NS: u64 = 2_000_000_000;
/// Fewer one-way estimates are not used: each message may have been delayed.
const HEARD_MIN: u32 = 2;

/// The measurements of all nodes.
#[derive(Debug, Default)]
pub(super) struct Clocks(BTreeMap<NodeId, Measured>);

/// The measurements of one node.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    /// The estimate from a call and its answer, and its time.
    both_ways: Option<(i64, u64)>,
    /// Estimates from messages that were not asked for, in the present window and the one before.
    one_way: [ClockSample; 2],
    window: u64,
}

/// A message gives a lower bound of its sender's offset, because it took some time to arrive. The
/// largest bound is the best.
#[derive(Debug, Clone, Copy, Default)]
struct ClockSample {
    count: u32,
    most_ms: i64,
}

impl Clocks {
    /// Records the estimate from a call to a node and its answer: its clock is ahead by `ahead_ms`.
    pub(super) fn measure(&mut self, node: NodeId, ahead_ms: i64, now_ns: u64) {
        self.0.entry(node).or_default().both_ways = Some((ahead_ms, now_ns));
    }

    /// Records a message from a node whose timestamp is `ahead_ms` ahead of its arrival.
    pub(super) fn record(&mut self, node: NodeId, ahead_ms: i64, now_ns: u64) {
        let measured = self.0.entry(node).or_default();
        let window = now_ns / WINDOW_NS;
        match window.saturating_sub(measured.window) {
            0 => {}
            1 => measured.one_way = [ClockSample::default(), measured.one_way[0]],
            _ => measured.one_way = [ClockSample::default(); 2],
        }
        measured.window = measured.window.max(window);
        let [present, _] = &mut measured.one_way;
        let most_ms = if present.count == 0 { ahead_ms } else { present.most_ms.max(ahead_ms) };
        *present = ClockSample { count: present.count.saturating_add(1), most_ms };
    }

    /// Drops all nodes for which `is_known` is false.
    pub(super) fn retain(&mut self, is_known: impl Fn(NodeId) -> bool) {
        self.0.retain(|node, _| is_known(*node));
    }

    /// The milliseconds by which a node's clock is ahead, if known.
    pub(super) fn ahead_ms(&self, node: NodeId, now_ns: u64) -> Option<i64> {
        self.0.get(&node)?.ahead_ms(now_ns)
    }

    /// `ahead_ms` of all nodes for which it is known.
    pub(super) fn all(&self, now_ns: u64) -> BTreeMap<NodeId, i64> {
        let known =
            |(node, measured): (&NodeId, &Measured)| Some((*node, measured.ahead_ms(now_ns)?));
        self.0.iter().filter_map(known).collect()
    }
}

impl Measured {
    fn ahead_ms(&self, now_ns: u64) -> Option<i64> {
        let is_new = |at_ns: u64| now_ns.saturating_sub(at_ns) <= KEPT_NS;
        if let Some((ahead_ms, at_ns)) = self.both_ways
            && is_new(at_ns)
        {
            return Some(ahead_ms);
        }
        let count: u32 = self.one_way.iter().map(|heard| heard.count).sum();
        let heard = self.one_way.iter().filter(|heard| heard.count > 0);
        let most_ms = heard.map(|heard| heard.most_ms).max()?;
        (count >= HEARD_MIN && is_new(self.window.saturating_mul(WINDOW_NS))).then_some(most_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const NODE: NodeId = NodeId(7);

    #[test]
    fn a_late_message_makes_no_clock_slow() {
        let mut clocks = Clocks::default();
        for (at, ahead) in [(10, -9000), (11, -4)] {
            assert_eq!(clocks.ahead_ms(NODE, at * SECOND), None);
            clocks.record(NODE, ahead, at * SECOND);
        }
        clocks.record(NODE, -40, 11 * SECOND);
        assert_eq!(clocks.ahead_ms(NODE, 11 * SECOND), Some(-4));
        // A clock that was set back is noticed once all earlier samples are dropped.
        for at in 12..16 {
            for _ in 0..4 {
                clocks.record(NODE, -5000, at * SECOND);
            }
        }
        assert_eq!(clocks.all(15 * SECOND), BTreeMap::from([(NODE, -5000)]));
        assert_eq!(clocks.all(30 * SECOND), BTreeMap::new());
    }

    #[test]
    fn a_call_and_its_answer_count_more() {
        let mut clocks = Clocks::default();
        for _ in 0..9 {
            clocks.record(NODE, -300, 20 * SECOND);
        }
        clocks.measure(NODE, 2, 20 * SECOND);
        assert_eq!(clocks.ahead_ms(NODE, 21 * SECOND), Some(2));
        assert_eq!(clocks.ahead_ms(NODE, 40 * SECOND), None);
        clocks.retain(|node| node != NODE);
        assert!(clocks.0.is_empty());
    }
}
