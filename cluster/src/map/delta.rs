//! How changes of the map reach those who only watch.
//!
//! Here: what a command changed, the last changes kept, and their bytes. Not here: what may change
//! (`apply`), the message around them (`message`).
//!
//! A delta carries states, not commands: whoever has the version before gets the very same map
//! without knowing a rule.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::{Map, MapHeader, MapLimit, MapNode, PartitionEntry, Settings};
use crate::id::{NodeId, Partition};

/// Most deltas kept.
pub const DELTAS_MAX: usize = 10_000;
/// Most changed items kept in them. A command can change 256; this bounds the memory. A limit counts
/// once more for each `ITEM_BYTES` of its body.
pub const ITEMS_MAX: usize = 100_000;
/// Bytes of a limit's body that count as one item.
const ITEM_BYTES: usize = 256;

/// What one command changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// The map's version after it; it applies to the one before.
    pub ver: u64,
    /// What has a new state.
    pub items: Vec<DeltaItem>,
}

/// Something with its new state; none: it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeltaItem {
    /// What is fixed, and the count of nodes.
    Head(MapHeader),
    /// All settings.
    Settings(Settings),
    /// A node.
    Node(NodeId, Option<MapNode>),
    /// A limit.
    Limit(String, Option<MapLimit>),
    /// A partition.
    Partition(Partition, PartitionEntry),
}

/// Bytes that are no map, or no delta for this map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadBytes {
    /// Not what we write.
    #[error("not an encoded map or delta")]
    Malformed,
    /// Not the next version.
    #[error("not the next version of the map")]
    OutOfOrder,
    /// It breaks what always holds.
    #[error("the map would break: {0}")]
    Broken(&'static str),
}

impl Map {
    /// Brings an older copy of the map one version on.
    ///
    /// # Errors
    ///
    /// [`BadBytes`] if it does not fit; then nothing has changed.
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
                DeltaItem::Settings(_) | DeltaItem::Node(..) | DeltaItem::Limit(..) => {}
            }
        }
        self.take(delta);
        Ok(())
    }

    /// Takes over the new states.
    pub(super) fn take(&mut self, delta: &Delta) {
        self.ver = delta.ver;
        for item in &delta.items {
            match item.clone() {
                DeltaItem::Head(head) => {
                    self.head = Some(head);
                    self.partitions
                        .resize_with(head.placement.partitions(), PartitionEntry::default);
                }
                DeltaItem::Settings(settings) => self.settings = settings,
                DeltaItem::Node(id, Some(node)) => drop(self.nodes.insert(id, node)),
                DeltaItem::Node(id, None) => drop(self.nodes.remove(&id)),
                DeltaItem::Limit(name, Some(limit)) => drop(self.limits.insert(name, limit)),
                DeltaItem::Limit(name, None) => drop(self.limits.remove(&name)),
                DeltaItem::Partition(partition, entry) => {
                    if let Some(place) = self.partitions.get_mut(partition.index()) {
                        *place = entry;
                    }
                }
            }
        }
    }

    /// The whole map as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("nothing in it can fail to be written")
    }

    /// The map of these bytes.
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
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("nothing in it can fail to be written")
    }

    /// The delta of these bytes.
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

impl Delta {
    /// As how many items it counts.
    fn weight(&self) -> usize {
        let one = |item: &DeltaItem| match item {
            DeltaItem::Limit(_, Some(limit)) => 1 + limit.body.len() / ITEM_BYTES,
            _ => 1,
        };
        self.items.iter().map(one).sum()
    }
}

/// The last deltas, without a gap.
#[derive(Debug, Default, Clone)]
pub struct Deltas {
    deltas: VecDeque<Delta>,
    items: usize,
}

/// How someone who has an old map gets the present one.
#[derive(Debug, PartialEq, Eq)]
pub enum Since<'a> {
    /// By these, in order; none if nothing is missing.
    Deltas(Vec<&'a Delta>),
    /// Only by the whole map: too old, or of another history.
    Full,
}

impl Deltas {
    /// Keeps one more, and drops the oldest. After a gap only the new one is kept.
    pub fn push(&mut self, delta: Delta) {
        if self.deltas.back().is_some_and(|last| last.ver + 1 != delta.ver) {
            self.deltas.clear();
            self.items = 0;
        }
        self.items += delta.weight();
        self.deltas.push_back(delta);
        while self.deltas.len() > DELTAS_MAX || self.items > ITEMS_MAX && self.deltas.len() > 1 {
            let gone = self.deltas.pop_front();
            self.items -= gone.map_or(0, |delta| delta.weight());
        }
    }

    /// What brings version `from` to version `to`, the map's own.
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
