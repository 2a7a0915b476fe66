//! The leases of one key as bytes: the units of each client, and their end.
//!
//! Here: the list in an item's state. Not here: the size of a grant (`size`), the effect of a lease
//! on the limit (`lease`).
//!
//! ```text
//! bytes u32 | leases u16 | outstanding u64 | first end u64 | last end u64 | lease …
//! lease: number u64 | units u64 | end u64 | until u64 | since u64 | rate u64 | weight u32
//!        | n u8 | client n bytes
//! ```
//!
//! The numbers in front let a `take` skip the leases without reading them.

use crate::time::Now;

const HEAD_BYTES: usize = 30;
const FIXED_BYTES: usize = 53;

/// One client's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// Its number.
    pub(crate) lease: u64,
    /// Units that may be spent and were not reported as spent.
    pub(crate) units: u64,
    /// The instant on the monotonic clock from which no units may be spent.
    pub(crate) end: u64,
    /// The instant until which its units are counted, so that it cannot end later.
    pub(crate) until: u64,
    /// The instant of the client's last call.
    pub(crate) since: u64,
    /// The client's spending in millionths of a unit per second.
    pub(crate) rate: u64,
    /// The weight of the client's share.
    pub(crate) weight: u32,
}

impl LeaseRecord {
    /// Nanoseconds until the client's next call is due: half of its lease after the last call. If
    /// that call is late, until the end of the lease.
    pub(crate) fn next_call(&self, now: Now) -> u64 {
        let due = self.since.saturating_add(self.end.saturating_sub(self.since) / 2);
        if due > now.mono.0 { due - now.mono.0 } else { self.end.saturating_sub(now.mono.0) }
    }
}

/// The leases of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Leases {
    /// The encoded leases, one after the other.
    list: Vec<u8>,
    len: usize,
    outstanding: u64,
    first_end: u64,
    last_end: u64,
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Splits a list into its first lease, the client, and the following bytes.
fn split(list: &[u8]) -> Option<(LeaseRecord, &[u8], &[u8])> {
    let (fixed, rest) = list.split_at_checked(FIXED_BYTES)?;
    let record = LeaseRecord {
        lease: read_u64(fixed, 0)?,
        units: read_u64(fixed, 8)?,
        end: read_u64(fixed, 16)?,
        until: read_u64(fixed, 24)?,
        since: read_u64(fixed, 32)?,
        rate: read_u64(fixed, 40)?,
        weight: u32::from_le_bytes(fixed.get(48..52)?.try_into().ok()?),
    };
    let (client, rest) = rest.split_at_checked(usize::from(*fixed.last()?))?;
    Some((record, client, rest))
}

impl Leases {
    /// Decodes the leases at the front of `bytes`, and returns the following bytes too.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let length = usize::try_from(u32::from_le_bytes(*bytes.first_chunk()?)).ok()?;
        let len = usize::from(u16::from_le_bytes(*bytes.get(4..)?.first_chunk()?));
        let (outstanding, first_end) = (read_u64(bytes, 6)?, read_u64(bytes, 14)?);
        let last_end = read_u64(bytes, 22)?;
        let (list, rest) = bytes.get(HEAD_BYTES..)?.split_at_checked(length)?;
        Some((Self { list: list.to_vec(), len, outstanding, first_end, last_end }, rest))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&u32::try_from(self.list.len()).unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&u16::try_from(self.len).unwrap_or(u16::MAX).to_le_bytes());
        for number in [self.outstanding, self.first_end, self.last_end] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.list);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Units of all leases together.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The end of the lease that ends first; meaningless without leases.
    pub(crate) fn first_end(&self) -> u64 {
        self.first_end
    }

    /// The end of the lease that ends last; meaningless without leases.
    pub(crate) fn last_end(&self) -> u64 {
        self.last_end
    }

    /// Iterates over the leases and their clients.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeaseRecord, &[u8])> {
        let mut rest = self.list.as_slice();
        std::iter::from_fn(move || {
            let (record, client, after) = split(rest)?;
            rest = after;
            Some((record, client))
        })
    }

    /// Adds a lease; a client's name is cut at 255 bytes.
    pub(crate) fn push(&mut self, record: LeaseRecord, client: &[u8]) {
        let client = &client[..client.len().min(usize::from(u8::MAX))];
        let first = self.is_empty();
        for number in
            [record.lease, record.units, record.end, record.until, record.since, record.rate]
        {
            self.list.extend_from_slice(&number.to_le_bytes());
        }
        self.list.extend_from_slice(&record.weight.to_le_bytes());
        self.list.push(client.len() as u8);
        self.list.extend_from_slice(client);
        self.len += 1;
        self.outstanding = self.outstanding.saturating_add(record.units);
        self.first_end = if first { record.end } else { self.first_end.min(record.end) };
        self.last_end = self.last_end.max(record.end);
    }

    /// Removes a client's lease and returns it.
    pub(crate) fn take_out(&mut self, client: &[u8]) -> Option<LeaseRecord> {
        let mut found = None;
        self.keep(|record, name| {
            let is_it = name == client;
            found = found.or(is_it.then_some(*record));
            !is_it
        });
        found
    }

    /// Removes the leases that have ended; returns their ends and units, in the order of the ends.
    pub(crate) fn take_ended(&mut self, now: Now) -> Vec<(u64, u64)> {
        let mut ended = Vec::new();
        if self.is_empty() || self.first_end > now.mono.0 {
            return ended;
        }
        self.keep(|record, _| {
            let lasts = record.end > now.mono.0;
            if !lasts {
                ended.push((record.end, record.units));
            }
            lasts
        });
        ended.sort_unstable();
        ended
    }

    /// Whether the list is complete, and the numbers in front match it.
    pub(crate) fn is_sound(&self) -> bool {
        self.shifted(0).as_ref() == Some(self)
    }

    /// Moves every instant by `by` nanoseconds. `None` if the list is damaged.
    pub(crate) fn shifted(&self, by: i128) -> Option<Self> {
        let moved = |at: u64| {
            let at = i128::from(at).saturating_add(by).max(0);
            u64::try_from(at).unwrap_or(u64::MAX)
        };
        let mut to = Self::default();
        let mut rest = self.list.as_slice();
        while !rest.is_empty() {
            let (record, client, after) = split(rest)?;
            let (end, since) = (moved(record.end), moved(record.since));
            let until = if record.until == u64::MAX { record.until } else { moved(record.until) };
            to.push(LeaseRecord { end, until, since, ..record }, client);
            rest = after;
        }
        Some(to)
    }

    fn keep(&mut self, mut keeps: impl FnMut(&LeaseRecord, &[u8]) -> bool) {
        let before = std::mem::take(self);
        for (record, client) in before.iter() {
            if keeps(&record, client) {
                self.push(record, client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(lease: u64, units: u64, end: u64) -> LeaseRecord {
        LeaseRecord { lease, units, end, until: u64::MAX, since: 1, rate: 7, weight: 3 }
    }

    fn three() -> Leases {
        let mut leases = Leases::default();
        leases.push(held(1, 10, 300), b"a");
        leases.push(held(2, 0, 100), &[b'b'; 250]);
        leases.push(held(3, 5, 200), b"");
        leases
    }

    #[test]
    fn leases_survive_encoding() {
        let mut bytes = Vec::new();
        three().encode(&mut bytes);
        bytes.extend_from_slice(b"rest");
        assert_eq!(Leases::decode(&bytes), Some((three(), b"rest".as_slice())));
        for cut in 0..bytes.len() - 4 {
            assert_eq!(Leases::decode(&bytes[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn figures_follow_the_list() {
        let mut leases = three();
        let numbers =
            |leases: &Leases| (leases.outstanding(), leases.first_end(), leases.last_end());
        assert_eq!(numbers(&leases), (15, 100, 300));
        assert_eq!(leases.take_out(b"a"), Some(held(1, 10, 300)));
        assert_eq!(leases.take_out(b"a"), None);
        assert_eq!(numbers(&leases), (5, 100, 200));
        let at = |nanos| Now { mono: crate::Nanos(nanos), unix_ms: 0 };
        assert_eq!((leases.take_ended(at(99)), leases.len()), (vec![], 2));
        assert_eq!((leases.take_ended(at(100)), leases.len()), (vec![(100, 0)], 1));
        assert_eq!(leases.take_ended(at(200)), [(200, 5)]);
        assert_eq!(leases, Leases::default());
        assert_eq!(three().take_ended(at(u64::MAX)), [(100, 0), (200, 5), (300, 10)]);
    }

    #[test]
    fn instants_move_and_stay_in_range() {
        let moved = three().shifted(-150).expect("a list");
        let ends: Vec<_> = moved.iter().map(|(record, _)| (record.end, record.since)).collect();
        assert_eq!(ends, [(150, 0), (0, 0), (50, 0)]);
        assert_eq!((moved.first_end(), moved.last_end()), (0, 150));
        let mut torn = three();
        torn.list.pop();
        torn.list.truncate(50);
        assert_eq!(torn.shifted(0), None);
    }
}
