//! Detects nodes with a wrong wall clock.
//!
//! Here: the nodes' wall clocks as one node measured them → the time that most of them agree on,
//! and the nodes too far from it. Not here: the measurement (`server`), the consequences
//! (`controller`).

use std::collections::{BTreeMap, BTreeSet};

use crate::id::NodeId;

/// A node with a clock further from the median does not become primary while another copy can.
pub const OFF_MS: u64 = 1000;
/// A clock that was off counts as right again within this distance. The gap to `OFF_MS` prevents
/// flapping.
const RIGHT_MS: u64 = 500;

/// The median of the clocks, in milliseconds ahead of the clock that measured them. With two clocks
/// in the middle it is the one nearer to the leader's. None if there are no clocks.
#[must_use]
pub fn common_ms(clocks: &BTreeMap<NodeId, i64>, leader: Option<NodeId>) -> Option<i64> {
    let mut sorted: Vec<i64> = clocks.values().copied().collect();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(middle.checked_sub(1)?)?;
    let leads = leader.and_then(|leader| clocks.get(&leader)).copied().unwrap_or(0);
    Some(if leads.abs_diff(lower) <= leads.abs_diff(upper) { lower } else { upper })
}

/// The nodes with a wrong clock. `before` is the previous result.
#[must_use]
pub fn off(
    clocks: &BTreeMap<NodeId, i64>,
    leader: Option<NodeId>,
    before: &BTreeSet<NodeId>,
) -> BTreeSet<NodeId> {
    let Some(common) = common_ms(clocks, leader) else { return BTreeSet::new() };
    let is_off = |(node, ahead): &(&NodeId, &i64)| {
        let max = if before.contains(node) { RIGHT_MS } else { OFF_MS };
        ahead.abs_diff(common) > max
    };
    clocks.iter().filter(is_off).map(|(node, _)| *node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks(ahead: &[i64]) -> BTreeMap<NodeId, i64> {
        (1..).map(NodeId).zip(ahead.iter().copied()).collect()
    }

    fn off_of(ahead: &[i64], leader: u32) -> Vec<u32> {
        let off = off(&clocks(ahead), Some(NodeId(leader)), &BTreeSet::new());
        off.into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn minority_is_off_on_any_measuring_node() {
        const HOUR: i64 = 3_600_000;
        assert_eq!(off_of(&[0, 20, HOUR], 1), [3]);
        assert_eq!(off_of(&[0, HOUR, HOUR + 400], 1), [1]);
        assert_eq!(off_of(&[0, -HOUR, HOUR], 1), [2, 3]);
        assert_eq!(off_of(&[0, 1000, -1000], 1), []);
        assert_eq!(off_of(&[0], 1), []);
        assert_eq!(off_of(&[], 1), []);
        assert_eq!(off_of(&[i64::MAX, i64::MIN, 0], 3), [1, 2]);
    }

    #[test]
    fn of_two_equal_groups_the_leaders_clock_counts() {
        assert_eq!(off_of(&[0, 5000], 1), [2]);
        assert_eq!(off_of(&[0, 5000], 2), [1]);
        assert_eq!(off_of(&[0, 10, 5000, 5010], 4), [1, 2]);
        assert_eq!(off_of(&[0, 10, 5000, 5010], 2), [3, 4]);
    }

    #[test]
    fn a_clock_that_was_off_has_to_come_nearer() {
        let before = BTreeSet::from([NodeId(2)]);
        let off = |ahead| off(&clocks(&[0, ahead]), Some(NodeId(1)), &before);
        assert_eq!(off(700), before);
        assert_eq!(off(500), BTreeSet::new());
    }
}
