//! A sorted list of entries with units, with the sum of the units and the number of the entries
//! before any position.
//!
//! Here: a B+-tree. Each branch stores the sums of its children, so lookup, change, the sum before
//! a key and the search for the entry at which a sum is reached each take one descent. Nodes that
//! become small are merged with a neighbour, so memory follows the number of entries. Not here: the
//! meaning of entries (`holders`).

/// Most entries of a leaf and most children of a branch.
const FANOUT: usize = 64;

/// Below this size a node is merged with a neighbour, if the result is at most `MERGED_MAX`.
const MERGE_BELOW: usize = FANOUT / 4;
const MERGED_MAX: usize = FANOUT / 4 * 3;

/// The order of entries.
pub(crate) type SumKey = (u64, u64);

/// An entry: its key and its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SumEntry {
    pub(crate) key: SumKey,
    pub(crate) units: u64,
}

/// The units and the number of some entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sum {
    pub(crate) units: u128,
    pub(crate) len: usize,
}

impl Sum {
    fn plus(self, other: Self) -> Self {
        Self { units: self.units + other.units, len: self.len + other.len }
    }

    fn of(entry: SumEntry) -> Self {
        Self { units: entry.units.into(), len: 1 }
    }

    fn reaches(self, least: Self) -> bool {
        self.units >= least.units && self.len >= least.len
    }
}

#[derive(Debug)]
enum TreeNode {
    Leaf(Vec<SumEntry>),
    Branch(Vec<Child>),
}

#[derive(Debug)]
struct Child {
    /// The key of the first entry below it.
    low: SumKey,
    sum: Sum,
    node: TreeNode,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct SumTree {
    root: TreeNode,
    sum: Sum,
    /// Bytes allocated for all nodes.
    bytes: usize,
}

const LEAF_BYTES: usize = FANOUT * size_of::<SumEntry>();
const BRANCH_BYTES: usize = FANOUT * size_of::<Child>();

/// Most bytes that an insert allocates if no branch is split.
pub(crate) const GROWTH_MAX: usize = LEAF_BYTES;

impl Default for SumTree {
    fn default() -> Self {
        Self { root: TreeNode::Leaf(Vec::new()), sum: Sum::default(), bytes: 0 }
    }
}

impl SumTree {
    /// The sum of all entries.
    pub(crate) fn sum(&self) -> Sum {
        self.sum
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Inserts an entry, replacing one of the same key; returns the units of the replaced one.
    pub(crate) fn insert(&mut self, entry: SumEntry) -> Option<u64> {
        let (old, split) = self.root.insert(entry, &mut self.bytes);
        self.sum = self.sum.plus(Sum::of(entry));
        if let Some(old) = old {
            self.sum.units -= u128::from(old);
            self.sum.len -= 1;
        }
        if let Some(right) = split {
            let mut children = branch(&mut self.bytes);
            let left = std::mem::replace(&mut self.root, TreeNode::Leaf(Vec::new()));
            children.push(Child { low: left.low(), sum: left.sum(), node: left });
            children.push(right);
            self.root = TreeNode::Branch(children);
        }
        old
    }

    /// Removes the entry of a key; returns its units.
    pub(crate) fn remove(&mut self, key: SumKey) -> Option<u64> {
        let units = self.root.remove(key, &mut self.bytes)?;
        self.sum.units -= u128::from(units);
        self.sum.len -= 1;
        while let TreeNode::Branch(children) = &mut self.root {
            if children.len() > 1 {
                break;
            }
            let Some(only) = children.pop() else { break };
            self.bytes -= BRANCH_BYTES;
            self.root = only.node;
        }
        Some(units)
    }

    /// The first entry with a key not below `key`.
    pub(crate) fn at_or_after(&self, key: SumKey) -> Option<SumEntry> {
        let mut found = None;
        self.visit_from(key, &mut |entry| {
            found = Some(entry);
            false
        });
        found
    }

    /// Passes entries to `visit` in order, from a key on, until it returns false.
    pub(crate) fn visit_from(&self, key: SumKey, visit: &mut impl FnMut(SumEntry) -> bool) {
        self.root.visit_from(key, visit);
    }

    pub(crate) fn first(&self) -> Option<SumEntry> {
        self.at_or_after((0, 0))
    }

    pub(crate) fn last(&self) -> Option<SumEntry> {
        let mut node = &self.root;
        loop {
            match node {
                TreeNode::Leaf(entries) => return entries.last().copied(),
                TreeNode::Branch(children) => node = &children.last()?.node,
            }
        }
    }

    /// The sum of the entries before a key.
    pub(crate) fn before(&self, key: SumKey) -> Sum {
        let (mut sum, mut node) = (Sum::default(), &self.root);
        loop {
            step();
            match node {
                TreeNode::Leaf(entries) => {
                    let end = entries.partition_point(|entry| entry.key < key);
                    return entries[..end].iter().fold(sum, |sum, entry| sum.plus(Sum::of(*entry)));
                }
                TreeNode::Branch(children) => {
                    let end = children.partition_point(|child| child.low < key);
                    let Some(last) = end.checked_sub(1) else { return sum };
                    sum = children[..last].iter().fold(sum, |sum, child| sum.plus(child.sum));
                    node = &children[last].node;
                }
            }
        }
    }

    /// The first entry with which the sum of the entries up to it reaches `least`.
    pub(crate) fn reaching(&self, least: Sum) -> Option<SumEntry> {
        let (mut sum, mut node) = (Sum::default(), &self.root);
        loop {
            step();
            match node {
                TreeNode::Leaf(entries) => {
                    return entries.iter().copied().find(|entry| {
                        sum = sum.plus(Sum::of(*entry));
                        sum.reaches(least)
                    });
                }
                TreeNode::Branch(children) => {
                    let found = children.iter().find(|child| {
                        let with = sum.plus(child.sum);
                        let reaches = with.reaches(least);
                        if !reaches {
                            sum = with;
                        }
                        reaches
                    });
                    node = &found?.node;
                }
            }
        }
    }
}

/// Counts a visited node, for tests.
fn step() {
    #[cfg(test)]
    tests::STEPS.with(|steps| steps.set(steps.get() + 1));
}

fn leaf(bytes: &mut usize) -> Vec<SumEntry> {
    *bytes += LEAF_BYTES;
    Vec::with_capacity(FANOUT)
}

fn branch(bytes: &mut usize) -> Vec<Child> {
    *bytes += BRANCH_BYTES;
    Vec::with_capacity(FANOUT)
}

/// The position at which a full node is split for an entry at `place`: an entry at the end gets a
/// node of its own, so that entries inserted in order fill their nodes.
fn split_at(place: usize) -> usize {
    if place == FANOUT { FANOUT } else { FANOUT / 2 }
}

impl TreeNode {
    fn low(&self) -> SumKey {
        match self {
            Self::Leaf(entries) => entries.first().map_or((0, 0), |entry| entry.key),
            Self::Branch(children) => children.first().map_or((0, 0), |child| child.low),
        }
    }

    fn sum(&self) -> Sum {
        match self {
            Self::Leaf(entries) => {
                entries.iter().fold(Sum::default(), |sum, entry| sum.plus(Sum::of(*entry)))
            }
            Self::Branch(children) => {
                children.iter().fold(Sum::default(), |sum, child| sum.plus(child.sum))
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Leaf(entries) => entries.len(),
            Self::Branch(children) => children.len(),
        }
    }

    /// Inserts an entry; returns the replaced units, and the node that was split off to the right.
    fn insert(&mut self, entry: SumEntry, bytes: &mut usize) -> (Option<u64>, Option<Child>) {
        step();
        match self {
            Self::Leaf(entries) => {
                let place = match entries.binary_search_by_key(&entry.key, |entry| entry.key) {
                    Ok(place) => {
                        let old = std::mem::replace(&mut entries[place].units, entry.units);
                        return (Some(old), None);
                    }
                    Err(place) => place,
                };
                if entries.capacity() == 0 {
                    *entries = leaf(bytes);
                }
                if entries.len() < FANOUT {
                    entries.insert(place, entry);
                    return (None, None);
                }
                let middle = split_at(place);
                let mut right = leaf(bytes);
                right.extend(entries.drain(middle..));
                if place >= middle {
                    right.insert(place - middle, entry);
                } else {
                    entries.insert(place, entry);
                }
                (None, Some(Child::of(Self::Leaf(right))))
            }
            Self::Branch(children) => {
                let after = children.partition_point(|child| child.low <= entry.key);
                let at = after.saturating_sub(1);
                let child = &mut children[at];
                let (old, split) = child.node.insert(entry, bytes);
                let Some(right) = split else {
                    child.low = child.low.min(entry.key);
                    child.sum = child.sum.plus(Sum::of(entry));
                    if let Some(old) = old {
                        child.sum.units -= u128::from(old);
                        child.sum.len -= 1;
                    }
                    return (old, None);
                };
                child.low = child.node.low();
                child.sum = child.node.sum();
                let place = at + 1;
                if children.len() < FANOUT {
                    children.insert(place, right);
                    return (old, None);
                }
                let middle = split_at(place);
                let mut new = branch(bytes);
                new.extend(children.drain(middle..));
                if place >= middle {
                    new.insert(place - middle, right);
                } else {
                    children.insert(place, right);
                }
                (old, Some(Child::of(Self::Branch(new))))
            }
        }
    }

    fn remove(&mut self, key: SumKey, bytes: &mut usize) -> Option<u64> {
        step();
        match self {
            Self::Leaf(entries) => {
                let place = entries.binary_search_by_key(&key, |entry| entry.key).ok()?;
                Some(entries.remove(place).units)
            }
            Self::Branch(children) => {
                let after = children.partition_point(|child| child.low <= key);
                let at = after.checked_sub(1)?;
                let child = &mut children[at];
                let units = child.node.remove(key, bytes)?;
                child.low = child.node.low();
                child.sum.units -= u128::from(units);
                child.sum.len -= 1;
                if child.node.len() < MERGE_BELOW {
                    merge(children, at, bytes);
                }
                Some(units)
            }
        }
    }

    fn visit_from(&self, key: SumKey, visit: &mut impl FnMut(SumEntry) -> bool) -> bool {
        step();
        match self {
            Self::Leaf(entries) => {
                let from = entries.partition_point(|entry| entry.key < key);
                entries[from..].iter().all(|entry| visit(*entry))
            }
            Self::Branch(children) => {
                let after = children.partition_point(|child| child.low <= key);
                let from = after.saturating_sub(1);
                children[from..].iter().all(|child| child.node.visit_from(key, visit))
            }
        }
    }
}

impl Child {
    fn of(node: TreeNode) -> Self {
        Self { low: node.low(), sum: node.sum(), node }
    }
}

/// Drops an empty child, or merges it with a neighbour if both fit into one node.
fn merge(children: &mut Vec<Child>, at: usize, bytes: &mut usize) {
    let len = children[at].node.len();
    if len > 0 {
        let fits = |other: usize| {
            children.get(other).is_some_and(|child| child.node.len() + len <= MERGED_MAX)
        };
        let left = match at {
            0 if fits(1) => 0,
            0 => return,
            _ if fits(at - 1) => at - 1,
            _ if fits(at + 1) => at,
            _ => return,
        };
        let right = children.remove(left + 1);
        let into = &mut children[left];
        into.sum = into.sum.plus(right.sum);
        match (&mut into.node, right.node) {
            (TreeNode::Leaf(entries), TreeNode::Leaf(more)) => {
                entries.extend(more);
                *bytes -= LEAF_BYTES;
            }
            (TreeNode::Branch(children), TreeNode::Branch(more)) => {
                children.extend(more);
                *bytes -= BRANCH_BYTES;
            }
            // All leaves have the same depth.
            _ => debug_assert!(false, "a leaf beside a branch"),
        }
        return;
    }
    match children.remove(at).node {
        TreeNode::Leaf(_) => *bytes -= LEAF_BYTES,
        TreeNode::Branch(_) => *bytes -= BRANCH_BYTES,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// The number of visited nodes.
        pub(crate) static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    /// Recomputes the sums and the bytes of the nodes.
    fn check(node: &TreeNode, is_root: bool) -> (Sum, usize) {
        match node {
            TreeNode::Leaf(entries) => {
                assert!(entries.is_sorted_by(|one, other| one.key < other.key));
                assert!(is_root || !entries.is_empty());
                let bytes = if entries.capacity() == 0 { 0 } else { LEAF_BYTES };
                (node.sum(), bytes)
            }
            TreeNode::Branch(children) => {
                assert!(children.len() > usize::from(is_root) && children.len() <= FANOUT);
                assert!(children.is_sorted_by(|one, other| one.low < other.low));
                children.iter().fold((Sum::default(), BRANCH_BYTES), |(sum, bytes), child| {
                    let (own, more) = check(&child.node, false);
                    assert_eq!((child.sum, child.low), (own, child.node.low()));
                    (sum.plus(own), bytes + more)
                })
            }
        }
    }

    fn agree(tree: &SumTree, twin: &BTreeMap<SumKey, u64>, probes: &[(SumKey, u64, usize)]) {
        assert_eq!(check(&tree.root, true), (tree.sum, tree.bytes));
        let sum_of = |range: &mut dyn Iterator<Item = (&SumKey, &u64)>| {
            range.fold(Sum::default(), |sum, (key, units)| {
                sum.plus(Sum::of(SumEntry { key: *key, units: *units }))
            })
        };
        assert_eq!(tree.sum(), sum_of(&mut twin.iter()));
        let entry = |found: Option<(&SumKey, &u64)>| {
            found.map(|(key, units)| SumEntry { key: *key, units: *units })
        };
        assert_eq!(tree.first(), entry(twin.first_key_value()));
        assert_eq!(tree.last(), entry(twin.last_key_value()));
        for &(key, units, len) in probes {
            assert_eq!(tree.before(key), sum_of(&mut twin.range(..key)));
            assert_eq!(tree.at_or_after(key), entry(twin.range(key..).next()));
            let least = Sum { units: units.into(), len };
            let mut sum = Sum::default();
            let found = twin.iter().find(|(key, units)| {
                sum = sum.plus(Sum::of(SumEntry { key: **key, units: **units }));
                sum.reaches(least)
            });
            assert_eq!(tree.reaching(least), entry(found));
            let mut seen = Vec::new();
            tree.visit_from(key, &mut |entry| {
                seen.push((entry.key, entry.units));
                seen.len() < 100
            });
            let expected: Vec<_> =
                twin.range(key..).take(100).map(|(key, units)| (*key, *units)).collect();
            assert_eq!(seen, expected);
        }
    }

    proptest! {
        #[test]
        fn a_tree_agrees_with_a_sorted_map(
            rounds in prop::collection::vec(
                (any::<bool>(), 1..900_u64, 1..5_u64, any::<u64>(), 0..9_u64), 1..12,
            ),
            probes in prop::collection::vec((0..1500_u64, 0..3_u64, 0..9000_u64, 0..1500_usize), 4),
        ) {
            let probes: Vec<_> =
                probes.iter().map(|&(key, tag, units, len)| ((key, tag), units, len)).collect();
            let (mut tree, mut twin) = (SumTree::default(), BTreeMap::new());
            for (puts, count, step, start, units) in rounds {
                for number in 0..count {
                    let key = (start.wrapping_add(number * step) % 1500, number % 2);
                    if puts {
                        let old = tree.insert(SumEntry { key, units: units + number % 3 });
                        prop_assert_eq!(old, twin.insert(key, units + number % 3));
                    } else {
                        prop_assert_eq!(tree.remove(key), twin.remove(&key));
                    }
                }
                agree(&tree, &twin, &probes);
            }
            for key in twin.keys().copied().collect::<Vec<_>>() {
                prop_assert_eq!(tree.remove(key), twin.remove(&key));
            }
            agree(&tree, &twin, &probes);
            prop_assert!(tree.bytes() <= LEAF_BYTES);
        }
    }

    #[test]
    fn entries_in_order_fill_their_nodes() {
        let mut tree = SumTree::default();
        for key in 0..100_000 {
            tree.insert(SumEntry { key: (key, 0), units: 1 });
        }
        assert!(tree.bytes() < 100_000 * (size_of::<SumEntry>() + 2));
        for key in 0..100_000 {
            // Alternately from the front and from the back.
            tree.remove((if key % 2 == 0 { key / 2 } else { 99_999 - key / 2 }, 0));
        }
        assert!(tree.bytes() <= LEAF_BYTES);
        assert_eq!(tree.sum(), Sum::default());
    }
}
