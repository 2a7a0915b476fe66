//! The entries of all partitions, in chunks that maps and replicas share.
//!
//! A node has each entry in the map of Raft's state machine, in the map that its readers see and in
//! the partition's group of replicas. At rest the three share the chunk with the entry. A change
//! copies the chunk, and [`EntryChunk::share`] brings equal chunks together again. Not here: the
//! entries themselves (`shared_entry`), when chunks are brought together (the owners of maps).

use std::iter::{FlatMap, FusedIterator, Take};
use std::ops::Index;
use std::slice;
use std::sync::{Arc, LazyLock};

use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::SharedEntry;
use crate::id::Partition;

/// The entries of a chunk.
pub const CHUNK_ENTRIES: usize = 16;

type ChunkArray = [SharedEntry; CHUNK_ENTRIES];

/// A chunk of entries without primaries.
static EMPTY: LazyLock<EntryChunk> = LazyLock::new(|| {
    let entry = SharedEntry::default();
    EntryChunk(Arc::new(std::array::from_fn(|_| entry.clone())))
});

/// The entries of consecutive partitions, the first of which has a multiple of [`CHUNK_ENTRIES`] as
/// its number. A clone shares them until either changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryChunk(Arc<ChunkArray>);

impl Default for EntryChunk {
    fn default() -> Self {
        EMPTY.clone()
    }
}

impl EntryChunk {
    /// The entry of a partition of the chunk.
    #[must_use]
    pub fn get(&self, partition: Partition) -> &SharedEntry {
        &self.0[partition.index() % CHUNK_ENTRIES]
    }

    /// Replaces the entry of a partition of the chunk.
    pub fn set(&mut self, partition: Partition, entry: SharedEntry) {
        Arc::make_mut(&mut self.0)[partition.index() % CHUNK_ENTRIES] = entry;
    }

    /// Shares the entries of `other` if they are equal.
    pub fn share(&mut self, other: &Self) {
        if !self.is_shared(other) && self == other {
            *self = other.clone();
        }
    }

    /// Whether the two share their entries.
    #[must_use]
    pub fn is_shared(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn array(&self) -> &ChunkArray {
        &self.0
    }
}

/// The entries of all partitions, in order. Their encoding is that of a list of entries.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Entries {
    /// The last chunk may have entries beyond `len`, which are empty.
    chunks: Vec<EntryChunk>,
    len: usize,
}

impl Entries {
    /// The number of partitions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no partitions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The entry of the partition with this number.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&SharedEntry> {
        (index < self.len).then(|| &self.chunks[index / CHUNK_ENTRIES].0[index % CHUNK_ENTRIES])
    }

    /// All entries.
    #[must_use]
    pub fn iter(&self) -> EntriesIter<'_> {
        self.into_iter()
    }

    /// The chunks, in order. The last one may have empty entries beyond the partitions.
    #[must_use]
    pub fn chunks(&self) -> &[EntryChunk] {
        &self.chunks
    }

    /// The number of chunks that the two share.
    #[must_use]
    pub fn shared(&self, other: &Self) -> usize {
        let pairs = self.chunks.iter().zip(&other.chunks);
        pairs.filter(|(one, other)| one.is_shared(other)).count()
    }

    /// Shares the chunks of `other` that are equal.
    pub(super) fn share(&mut self, other: &Self) {
        self.chunks.iter_mut().zip(&other.chunks).for_each(|(one, other)| one.share(other));
    }

    /// Shares the chunk of `other` with a partition, if it is equal.
    pub(super) fn share_chunk_of(&mut self, partition: Partition, other: &Self) {
        let place = partition.index() / CHUNK_ENTRIES;
        if let (Some(one), Some(other)) = (self.chunks.get_mut(place), other.chunks.get(place)) {
            one.share(other);
        }
    }

    /// Makes empty entries for further partitions, up to this number of them.
    pub(super) fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
        self.chunks.resize(self.len.div_ceil(CHUNK_ENTRIES), EntryChunk::default());
    }

    /// Replaces the entry of a partition, if there is such a partition.
    pub(super) fn set(&mut self, partition: Partition, entry: SharedEntry) {
        if partition.index() < self.len {
            self.chunks[partition.index() / CHUNK_ENTRIES].set(partition, entry);
        }
    }
}

impl Index<usize> for Entries {
    type Output = SharedEntry;

    fn index(&self, index: usize) -> &SharedEntry {
        self.get(index).expect("there is such a partition")
    }
}

/// All entries, in the order of the partitions.
#[derive(Debug, Clone)]
pub struct EntriesIter<'a>(Take<ChunksIter<'a>>);

type ChunksIter<'a> =
    FlatMap<slice::Iter<'a, EntryChunk>, &'a ChunkArray, fn(&'a EntryChunk) -> &'a ChunkArray>;

impl<'a> Iterator for EntriesIter<'a> {
    type Item = &'a SharedEntry;

    fn next(&mut self) -> Option<&'a SharedEntry> {
        self.0.next()
    }
}

impl FusedIterator for EntriesIter<'_> {}

impl<'a> IntoIterator for &'a Entries {
    type Item = &'a SharedEntry;
    type IntoIter = EntriesIter<'a>;

    fn into_iter(self) -> EntriesIter<'a> {
        let of_chunk: fn(&'a EntryChunk) -> &'a ChunkArray = EntryChunk::array;
        EntriesIter(self.chunks.iter().flat_map(of_chunk).take(self.len))
    }
}

impl FromIterator<SharedEntry> for Entries {
    fn from_iter<I: IntoIterator<Item = SharedEntry>>(entries: I) -> Self {
        let mut all = Self::default();
        for entry in entries {
            let index = all.len;
            all.grow(index + 1);
            let chunk = Arc::make_mut(&mut all.chunks[index / CHUNK_ENTRIES].0);
            chunk[index % CHUNK_ENTRIES] = entry;
        }
        all.chunks.shrink_to_fit();
        all
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut list = out.serialize_seq(Some(self.len))?;
        for entry in self {
            list.serialize_element(entry)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Ok(Vec::<SharedEntry>::deserialize(input)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::PartitionEntry;

    fn entry(ver: u32) -> SharedEntry {
        PartitionEntry { ver, ..PartitionEntry::default() }.into()
    }

    fn entries(len: u32) -> Entries {
        (1..=len).map(entry).collect()
    }

    #[test]
    fn entries_are_encoded_as_a_list() {
        for len in [0, 1, 15, 16, 17, 40] {
            let (all, list) = (entries(len), (1..=len).map(entry).collect::<Vec<_>>());
            let bytes = postcard::to_allocvec(&list).expect("it can be written");
            assert_eq!(postcard::to_allocvec(&all).expect("it can be written"), bytes);
            assert_eq!(postcard::from_bytes::<Entries>(&bytes), Ok(all.clone()));
            assert!(all.iter().eq(&list) && all.len() == list.len());
            assert_eq!(all.get(len as usize), None);
            assert_eq!(all.is_empty(), len == 0);
        }
    }

    #[test]
    fn change_copies_one_chunk_and_equal_ones_are_shared_again() {
        let mut one = entries(40);
        let mut other = one.clone();
        assert_eq!(one.shared(&other), 3);
        one.set(Partition(20), entry(99));
        assert_eq!((one.shared(&other), other[20].ver, one[20].ver), (2, 21, 99));
        one.share_chunk_of(Partition(20), &other);
        assert_eq!(one.shared(&other), 2, "the chunks differ");
        other.set(Partition(20), entry(99));
        assert_eq!(one.shared(&other), 2);
        one.share_chunk_of(Partition(20), &other);
        assert_eq!((one.shared(&other), &one), (3, &other));
        let mut read = entries(40);
        read.set(Partition(39), entry(7));
        read.share(&one);
        assert_eq!(read.shared(&one), 1);
    }

    #[test]
    fn entries_grow_by_empty_ones_that_share_a_chunk() {
        let mut all = Entries::default();
        all.set(Partition(0), entry(1));
        assert_eq!(all.len(), 0);
        all.grow(40);
        all.grow(3);
        assert_eq!((all.len(), all.chunks().len()), (40, 3));
        assert!(all.iter().all(|entry| *entry == SharedEntry::default()));
        assert!(all.chunks().iter().all(|chunk| chunk.is_shared(&EntryChunk::default())));
    }

    /// A partition's part of a chunk, with jemalloc's classes, and of the list of chunks.
    #[test]
    fn chunk_has_ten_bytes_a_partition() {
        let counts = 2 * size_of::<usize>();
        assert!(size_of::<ChunkArray>() + counts <= 10 * CHUNK_ENTRIES);
        assert_eq!(size_of::<EntryChunk>(), 8);
    }
}
