//! Deltas: changes of the map, for nodes that follow it.
//!
//! Here: the changes of one command, the last changes kept, and their encoding. Not here: the rules
//! of changes (`apply`), the message around them (`message`).
//!
//! A delta carries states, not commands: a node that has the version before gets the same map
//! without knowing a rule.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Map, MapHeader, MapLimit, MapNode, Settings, SharedEntry};
use crate::id::{NodeId, Partition};

/// The most deltas kept.
pub const DELTAS_MAX: usize = 10_000;
/// The most changed items in the kept deltas, those of partitions aside. A limit counts once more
/// for each `ITEM_BYTES` of its body.
pub const ITEMS_MAX: usize = 100_000;
/// Changes of partitions are kept for one in this many of the map's partitions, or for
/// [`PARTITION_ITEMS_MIN`]. A node that is further behind gets the whole map.
pub const PARTITIONS_PER_ITEM: usize = 8;
/// Changes of partitions that are kept in any case: those of a few full commands.
pub const PARTITION_ITEMS_MIN: usize = 2048;
/// A delta with changes of partitions counts as this many of them more, for its own memory.
const DELTA_ITEMS: usize = 4;
/// Bytes of a limit's body that count as one item.
const ITEM_BYTES: usize = 256;

/// The changes of one command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// The map's version after the command; the delta applies to the version before.
    pub ver: u64,
    /// The changed items.
    pub items: Vec<DeltaItem>,
}

/// An item with its new state; none: the item was removed.
///
/// A node keeps some deltas, mostly of partitions. The other items are boxed, so that an item takes
/// 16 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaItem {
    /// The fixed properties, and the last node id.
    Head(Box<MapHeader>),
    /// All settings.
    Settings(Box<Settings>),
    /// A node.
    Node(NodeId, Option<Box<MapNode>>),
    /// A limit or another record.
    Limit(Box<(String, Option<MapLimit>)>),
    /// A partition.
    Partition(Partition, SharedEntry),
}

/// The bytes are no map, or no delta for this map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadBytes {
    /// The encoding is invalid.
    #[error("not an encoded map or delta")]
    Malformed,
    /// The delta is not for the next version.
    #[error("not the next version of the map")]
    OutOfOrder,
    /// The map would violate an invariant.
    #[error("the map would break: {0}")]
    Broken(&'static str),
}

impl Map {
    /// Applies a delta to a copy of the map that is one version older.
    ///
    /// # Errors
    ///
    /// [`BadBytes`] if the delta does not apply. Then the map is unchanged.
    pub fn follow(&mut self, delta: &Delta) -> Result<(), BadBytes> {
        if delta.ver != self.ver.wrapping_add(1) {
            return Err(BadBytes::OutOfOrder);
        }
        let mut partitions = self.partitions.len();
        for item in &delta.items {
            match item {
                DeltaItem::Head(head) => partitions = head.placement.partitions(),
                DeltaItem::Partition(partition, entry) => {
                    entry.check().map_err(BadBytes::Broken)?;
                    if partition.index() >= partitions {
                        return Err(BadBytes::Broken("no such partition"));
                    }
                }
                DeltaItem::Settings(_) | DeltaItem::Node(..) | DeltaItem::Limit(_) => {}
            }
        }
        self.take(delta);
        Ok(())
    }

    /// Stores the new states.
    pub(super) fn take(&mut self, delta: &Delta) {
        self.ver = delta.ver;
        for item in &delta.items {
            match item.clone() {
                DeltaItem::Head(head) => {
                    self.head = Some(*head);
                    self.partitions.grow(head.placement.partitions());
                }
                DeltaItem::Settings(settings) => self.settings = *settings,
                DeltaItem::Node(id, Some(node)) => drop(self.nodes.insert(id, *node)),
                DeltaItem::Node(id, None) => drop(self.nodes.remove(&id)),
                DeltaItem::Limit(change) => {
                    let limits = Arc::make_mut(&mut self.limits);
                    match *change {
                        (name, Some(limit)) => drop(limits.insert(name, limit)),
                        (name, None) => drop(limits.remove(&name)),
                    }
                }
                DeltaItem::Partition(partition, entry) => self.partitions.set(partition, entry),
            }
        }
    }

    /// Encodes the whole map.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("nothing in it can fail to be written")
    }

    /// Decodes a map.
    ///
    /// # Errors
    ///
    /// [`BadBytes`] for anything that [`encode`](Self::encode) did not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBytes> {
        let map: Self = whole(bytes)?;
        map.check().map_err(BadBytes::Broken)?;
        Ok(map)
    }
}

impl Delta {
    /// The changed partitions.
    pub fn partitions(&self) -> impl Iterator<Item = Partition> + '_ {
        self.items.iter().filter_map(|item| match item {
            DeltaItem::Partition(partition, _) => Some(*partition),
            _ => None,
        })
    }

    /// Encodes the delta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("nothing in it can fail to be written")
    }

    /// Decodes a delta.
    ///
    /// # Errors
    ///
    /// [`BadBytes`] for anything that [`encode`](Self::encode) did not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBytes> {
        whole(bytes)
    }
}

fn whole<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, BadBytes> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(BadBytes::Malformed),
    }
}

/// The memory that deltas count as.
#[derive(Debug, Default, Clone, Copy)]
struct DeltaWeight {
    /// In changes of partitions.
    partitions: usize,
    /// In other items.
    others: usize,
}

impl DeltaWeight {
    fn of(delta: &Delta) -> Self {
        let mut weight = Self::default();
        for item in &delta.items {
            match item {
                DeltaItem::Partition(..) => weight.partitions += 1,
                DeltaItem::Limit(change) => {
                    let bytes = change.1.as_ref().map_or(0, |limit| limit.body.len());
                    weight.others += 1 + bytes / ITEM_BYTES;
                }
                DeltaItem::Head(_) | DeltaItem::Settings(_) | DeltaItem::Node(..) => {
                    weight.others += 1;
                }
            }
        }
        if weight.partitions > 0 {
            weight.partitions += DELTA_ITEMS;
        }
        weight
    }

    fn exceeds(self, partitions: usize) -> bool {
        let items_max = (partitions / PARTITIONS_PER_ITEM).max(PARTITION_ITEMS_MIN);
        self.partitions > items_max || self.others > ITEMS_MAX
    }
}

/// The last deltas, with consecutive versions.
#[derive(Debug, Default, Clone)]
pub struct Deltas {
    deltas: VecDeque<Delta>,
    weight: DeltaWeight,
}

/// The data that brings an older map up to date.
#[derive(Debug, PartialEq, Eq)]
pub enum Since<'a> {
    /// These deltas, in order; empty if the map is current.
    Deltas(Vec<&'a Delta>),
    /// The whole map: the older one is too old, or of another history.
    Full,
}

impl Deltas {
    /// Keeps one more delta of a map with this number of partitions, and drops the oldest ones.
    /// After a gap only the new one is kept.
    pub fn push(&mut self, mut delta: Delta, partitions: usize) {
        // `collect` may have reused an allocation for larger items.
        delta.items.shrink_to_fit();
        if self.deltas.back().is_some_and(|last| last.ver + 1 != delta.ver) {
            *self = Self::default();
        }
        let added = DeltaWeight::of(&delta);
        self.weight.partitions += added.partitions;
        self.weight.others += added.others;
        self.deltas.push_back(delta);
        while self.deltas.len() > DELTAS_MAX
            || self.weight.exceeds(partitions) && self.deltas.len() > 1
        {
            let Some(gone) = self.deltas.pop_front() else { break };
            let gone = DeltaWeight::of(&gone);
            self.weight.partitions -= gone.partitions;
            self.weight.others -= gone.others;
        }
    }

    /// The deltas from version `from` to version `to`, the map's own.
    #[must_use]
    pub fn since(&self, from: u64, to: u64) -> Since<'_> {
        if from == to {
            return Since::Deltas(Vec::new());
        }
        let (Some(first), Some(last)) = (self.deltas.front(), self.deltas.back()) else {
            return Since::Full;
        };
        if from > to || last.ver != to || from + 1 < first.ver {
            return Since::Full;
        }
        let skip = (from + 1 - first.ver) as usize;
        Since::Deltas(self.deltas.iter().skip(skip).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After any changes, one by one or in full commands, they take at most 2 bytes a partition.
    #[test]
    fn kept_items_are_small() {
        const PARTITIONS: usize = 1 << 14;
        assert_eq!((size_of::<DeltaItem>(), size_of::<Delta>()), (16, 32));
        for size in [1, 3, 256] {
            let mut deltas = Deltas::default();
            for ver in 1..=4 * PARTITIONS / size {
                let mut items = Vec::with_capacity(1000);
                let partition = Partition((ver % PARTITIONS) as u16);
                items.resize(size, DeltaItem::Partition(partition, SharedEntry::default()));
                deltas.push(Delta { ver: ver as u64, items }, PARTITIONS);
            }
            let kept = deltas.deltas.iter().map(|delta| 16 * delta.items.capacity());
            let bytes = kept.sum::<usize>() + size_of::<Delta>() * deltas.deltas.capacity();
            assert!(bytes <= 2 * PARTITIONS, "{bytes} bytes in deltas of {size}");
            assert!(deltas.deltas.len() * size >= 400, "too few are kept");
        }
    }

    #[test]
    fn limits_have_a_bound_of_their_own() {
        let mut deltas = Deltas::default();
        let body = vec![0; ITEM_BYTES * ITEMS_MAX / 4];
        let limit = Some(MapLimit { version: 1, body });
        let limit = DeltaItem::Limit(Box::new(("name".to_owned(), limit)));
        let partition = DeltaItem::Partition(Partition(1), SharedEntry::default());
        for (ver, item) in [&partition, &limit, &limit, &limit, &limit].into_iter().enumerate() {
            deltas.push(Delta { ver: ver as u64 + 1, items: vec![item.clone()] }, 1 << 14);
        }
        assert_eq!(deltas.deltas.front().map(|delta| delta.ver), Some(3));
        assert_eq!((deltas.weight.partitions, deltas.weight.others), (0, 3 * (ITEMS_MAX / 4 + 1)));
    }
}
