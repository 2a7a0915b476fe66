//! The table of counters and the replies of the two floors, the bare servers that `load` measures
//! beside the others.
//!
//! Not here: sockets (`bin/floor.rs`, `bin/cluster_floor`). The table does not grow.

use kit::rng::mix;

use crate::keys::KEY_BYTES;

/// Slots of the table, 32 bytes each; at most half of them may be used.
const SLOTS: usize = 1 << 21;

/// A counter, or a place for one.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))]
pub struct BareSlot {
    /// The count.
    pub count: u64,
    /// The key.
    pub key: [u8; KEY_BYTES],
    /// The partition of the key; 0 without a cluster.
    pub partition: u16,
    /// False for a free slot.
    pub is_used: bool,
}

/// Counters by key.
#[derive(Debug)]
pub struct BareTable(Vec<BareSlot>);

impl Default for BareTable {
    fn default() -> Self {
        Self(vec![BareSlot::default(); SLOTS])
    }
}

impl BareTable {
    /// The most keys that a run may use.
    pub const KEYS_MAX: usize = SLOTS / 2;

    /// The first slot in which a key may be.
    #[must_use]
    pub fn home(key: [u8; KEY_BYTES]) -> usize {
        let mut words = [0; 3];
        for (word, bytes) in words.iter_mut().zip(key.chunks(8)) {
            let mut wide = [0; 8];
            wide[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(wide);
        }
        let [a, b, c] = words;
        mix(a ^ mix(b ^ mix(c))) as usize % SLOTS
    }

    /// Reads a slot and so fetches its memory; the returned value has no use.
    #[must_use]
    pub fn touch(&self, home: usize) -> u64 {
        self.0[home].count
    }

    /// The slot of a key: the one that stores it, or the free one to use.
    pub fn slot(&mut self, home: usize, key: [u8; KEY_BYTES]) -> &mut BareSlot {
        let mut at = home;
        while self.0[at].is_used && self.0[at].key != key {
            at = (at + 1) % SLOTS;
        }
        &mut self.0[at]
    }

    /// All counters.
    pub fn used(&self) -> impl Iterator<Item = &BareSlot> {
        self.0.iter().filter(|slot| slot.is_used)
    }
}

/// Appends the reply to `incr`.
pub fn write_count(out: &mut Vec<u8>, count: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends the block of an item to the reply to `get`. A value has at most nine digits in any run,
/// so its length is a single digit.
pub fn write_value(out: &mut Vec<u8>, key: [u8; KEY_BYTES], count: u64) {
    let mut digits = itoa::Buffer::new();
    let value = digits.format(count).as_bytes();
    let mut head = *b"VALUE 0123456789abcdef0123 0 1\r\n";
    head[6..6 + KEY_BYTES].copy_from_slice(&key);
    head[6 + KEY_BYTES + 3] = b'0' + value.len() as u8;
    out.extend_from_slice(&head);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::{BareTable, write_count, write_value};
    use crate::keys::{Space, key};

    #[test]
    fn slots_keep_every_key() {
        let mut table = BareTable::default();
        for index in 0..5000 {
            let key = key(Space::Counter, index);
            let slot = table.slot(BareTable::home(key), key);
            assert!(!slot.is_used, "{index}");
            (slot.key, slot.count, slot.is_used) = (key, u64::from(index), true);
        }
        for index in 0..5000 {
            let key = key(Space::Counter, index);
            assert_eq!(table.slot(BareTable::home(key), key).count, u64::from(index));
        }
        assert_eq!(table.used().count(), 5000);
    }

    #[test]
    fn replies_are_memcached_text() {
        let mut out = Vec::new();
        write_count(&mut out, 17);
        write_value(&mut out, *b"ctr:0123456789abcdef", 123);
        assert_eq!(out, b"17\r\nVALUE ctr:0123456789abcdef 0 3\r\n123\r\n");
    }
}
