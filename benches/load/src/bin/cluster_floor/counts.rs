//! The counters of a node, of those partitions that it owns and of those that it copies.
//!
//! Here: one request on one counter, with its record; one record at the copy; the sums that prove a
//! run. Not here: the way of records (`frame`, `peer`).

use kit::rng::mix;
use load::bare::{BareSlot, BareTable, write_count, write_value};
use load::keys::KEY_BYTES;

use crate::frame::{Record, write_record};
use crate::request::Verb;

/// The partitions of a cluster, as in the server's default.
pub(crate) const PARTITION_BITS: u8 = 14;
/// Results of operations that each node keeps.
const RESULTS: usize = 1 << 16;

/// A request with its places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) verb: Verb,
    pub(crate) key: [u8; KEY_BYTES],
    pub(crate) partition: u16,
    pub(crate) home: usize,
}

/// The result of an operation that could be sent again.
#[derive(Debug, Clone, Copy, Default)]
struct KeptResult {
    operation: u32,
    count: u64,
}

/// The sums over the counters of owned partitions and the results of their operations, or over
/// those of copied ones.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// The sum of the counts.
    pub(crate) counts: u64,
    /// The wrapping sum of a hash of each key with its count, and of each result: equal for equal
    /// counters and results.
    pub(crate) digest: u64,
}

/// The counters of a node.
pub(crate) struct Counts {
    table: BareTable,
    /// The number of the last record of each partition.
    positions: Vec<u64>,
    results: Vec<KeptResult>,
    /// The same of the other node.
    copied_results: Vec<KeptResult>,
    /// The number of the last operation of this node as an owner.
    operation: u32,
    copies: u8,
}

impl Counts {
    pub(crate) fn new(copies: u8) -> Self {
        Self {
            table: BareTable::default(),
            positions: vec![0; 1 << PARTITION_BITS],
            results: vec![KeptResult::default(); RESULTS],
            copied_results: vec![KeptResult::default(); RESULTS],
            operation: 0,
            copies,
        }
    }

    /// Reads the memory of a request before its turn, so that the cache misses of many overlap.
    pub(crate) fn touch(&self, home: usize, partition: u16) -> u64 {
        self.table.touch(home) ^ self.positions[usize::from(partition)]
    }

    /// Performs a request, writes its reply into `out`, and the record of a change into `records`.
    /// Returns true if it made a record. `is_forwarded`: the other node may send it again.
    #[inline]
    pub(crate) fn perform(
        &mut self,
        ask: &Ask,
        is_forwarded: bool,
        out: &mut Vec<u8>,
        records: &mut Vec<u8>,
    ) -> bool {
        let Ask { verb, key, partition, home } = *ask;
        let slot = self.table.slot(home, key);
        match verb {
            Verb::Incr if slot.is_used => {
                slot.count += 1;
                write_count(out, slot.count);
            }
            Verb::Incr => {
                out.extend_from_slice(b"NOT_FOUND\r\n");
                return false;
            }
            Verb::Set(digit) => {
                *slot = BareSlot { count: u64::from(digit), key, partition, is_used: true };
                out.extend_from_slice(b"STORED\r\n");
            }
            Verb::Get => {
                if slot.is_used {
                    write_value(out, key, slot.count);
                }
                out.extend_from_slice(b"END\r\n");
                return false;
            }
        }
        let count = slot.count;
        let position = &mut self.positions[usize::from(partition)];
        *position += 1;
        if self.copies == 1 && !is_forwarded {
            return false;
        }
        self.operation = self.operation.wrapping_add(1);
        let operation = self.operation;
        self.results[operation as usize % RESULTS] = KeptResult { operation, count };
        if self.copies == 1 {
            return false;
        }
        write_record(records, &Record { partition, operation, position: *position, count, key });
        true
    }

    /// Installs a record of the owner. Returns false if it does not follow the one before it.
    #[inline]
    pub(crate) fn install(&mut self, record: &Record, home: usize) -> bool {
        let Record { partition, operation, position, count, key } = *record;
        let last = &mut self.positions[usize::from(partition)];
        if *last + 1 != position {
            return false;
        }
        *last = position;
        self.copied_results[operation as usize % RESULTS] = KeptResult { operation, count };
        let slot = self.table.slot(home, key);
        if slot.is_used {
            slot.count = count;
        } else {
            *slot = BareSlot { count, key, partition, is_used: true };
        }
        true
    }

    /// The sums over the counters whose partition is, or is not, among the `owned` ones.
    pub(crate) fn sums(&self, owned: &[bool], are_owned: bool) -> Sums {
        let mut sums = Sums::default();
        let results = if are_owned { &self.results } else { &self.copied_results };
        for KeptResult { operation, count } in results {
            sums.digest = sums.digest.wrapping_add(mix(mix(u64::from(*operation)) ^ count));
        }
        let is_meant = |slot: &&BareSlot| owned[usize::from(slot.partition)] == are_owned;
        for slot in self.table.used().filter(is_meant) {
            sums.counts += slot.count;
            let hash = BareTable::home(slot.key) as u64;
            sums.digest = sums.digest.wrapping_add(mix(mix(hash) ^ slot.count));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use load::bare::BareTable;
    use load::keys::{Space, key};

    use super::{Ask, Counts};
    use crate::frame::{RECORD_BYTES, Record};
    use crate::request::Verb;

    fn ask(verb: Verb, index: u32) -> Ask {
        let key = key(Space::Counter, index);
        Ask { verb, key, partition: index as u16 % 7, home: BareTable::home(key) }
    }

    #[test]
    fn records_make_the_copy_equal() {
        let (mut owner, mut copy) = (Counts::new(2), Counts::new(2));
        let (mut out, mut records) = (Vec::new(), Vec::new());
        for index in 0..50 {
            assert!(owner.perform(&ask(Verb::Set(0), index), false, &mut out, &mut records));
            for _ in 0..index {
                assert!(owner.perform(&ask(Verb::Incr, index), true, &mut out, &mut records));
            }
        }
        assert!(!owner.perform(&ask(Verb::Get, 3), false, &mut out, &mut records));
        assert!(!owner.perform(&ask(Verb::Incr, 99), false, &mut out, &mut records));
        assert!(out.ends_with(b" 0 1\r\n3\r\nEND\r\nNOT_FOUND\r\n"));
        let (whole, rest) = records.as_chunks::<RECORD_BYTES>();
        assert!(rest.is_empty());
        for bytes in whole {
            let record = Record::read(bytes);
            assert!(copy.install(&record, BareTable::home(record.key)));
            assert!(!copy.install(&record, BareTable::home(record.key)), "a record again");
        }
        let sums = owner.sums(&[true; 7], true);
        assert_eq!((sums.counts, copy.sums(&[false; 7], false)), ((0..50).sum(), sums));
        assert!(owner.perform(&ask(Verb::Incr, 0), false, &mut out, &mut records));
        assert_ne!(owner.sums(&[true; 7], true), copy.sums(&[false; 7], false));
    }
}
