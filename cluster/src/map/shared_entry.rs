//! Entries of partitions that maps and replicas share.
//!
//! A node has an entry in the chunks of its maps and groups, in the kept deltas and in replicas.
//! Equal entries share one allocation, whichever partition they are of: most partitions with the
//! same holders have the same history. Not here: the entry itself (`map`), the chunks (`entries`).

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::PartitionEntry;

/// The number of recent entries that a new one is compared with by its hash, a power of two.
const RECENT_MAX: usize = 512;

/// The last entry of each hash. The values alone decide, so the maps of all nodes of a process may
/// use one table.
static RECENT: Mutex<[Option<SharedEntry>; RECENT_MAX]> = Mutex::new([const { None }; RECENT_MAX]);

/// An entry that never changes, in an allocation that equal entries share. Its encoding is that of
/// the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedEntry(Arc<PartitionEntry>);

impl From<PartitionEntry> for SharedEntry {
    fn from(entry: PartitionEntry) -> Self {
        let mut hasher = DefaultHasher::new();
        entry.hash(&mut hasher);
        let place = hasher.finish() as usize % RECENT_MAX;
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        match &recent[place] {
            Some(known) if **known == entry => known.clone(),
            _ => {
                let mut entry = entry;
                entry.in_sync.shrink_to_fit();
                let new = Self(Arc::new(entry));
                recent[place] = Some(new.clone());
                new
            }
        }
    }
}

impl Default for SharedEntry {
    fn default() -> Self {
        PartitionEntry::default().into()
    }
}

impl Deref for SharedEntry {
    type Target = PartitionEntry;

    fn deref(&self) -> &PartitionEntry {
        &self.0
    }
}

impl Serialize for SharedEntry {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(out)
    }
}

impl<'de> Deserialize<'de> for SharedEntry {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        PartitionEntry::deserialize(input).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{CopyId, NodeId, Term};

    fn entry(ver: u32) -> PartitionEntry {
        let copy = CopyId { node: NodeId(1), assignment: 1, ..CopyId::default() };
        let mut in_sync = Vec::with_capacity(8);
        in_sync.push(copy);
        PartitionEntry {
            term: Term(7_001),
            ver,
            primary: Some(copy),
            in_sync,
            ..PartitionEntry::default()
        }
    }

    /// Entries of other tests in this process may take the place of a recent one, so one of many
    /// attempts has to succeed.
    #[test]
    fn equal_entries_share_an_allocation() {
        let is_shared = |ver| {
            let (one, other) = (SharedEntry::from(entry(ver)), SharedEntry::from(entry(ver)));
            assert_eq!((&*one, &one), (&entry(ver), &other));
            Arc::ptr_eq(&one.0, &other.0)
        };
        assert!((0..100).any(is_shared));
        assert_eq!(SharedEntry::from(entry(1)).in_sync.capacity(), 1);
        assert_ne!(SharedEntry::from(entry(1)), SharedEntry::from(entry(2)));
    }

    #[test]
    fn shared_entries_are_encoded_as_entries() {
        let bytes = postcard::to_allocvec(&entry(3)).expect("it can be written");
        let shared = SharedEntry::from(entry(3));
        assert_eq!(postcard::to_allocvec(&shared).expect("it can be written"), bytes);
        assert_eq!(postcard::from_bytes::<SharedEntry>(&bytes), Ok(shared));
    }
}
