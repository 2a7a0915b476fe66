//! The keys of a partition as its copies keep them equal.
//!
//! Here: what an operation is, how the primary does it, how a copy takes over what it did. Not here:
//! when that happens (`cluster::replica`), how an item lies in bytes (`engine`).
//!
//! An operation is what the client wrote, with one byte before it; its result is what the client is
//! told. So whoever is primary decodes, decides and answers as a server by itself does, and the node
//! that the client talks to only looks for the key.

use std::mem::take;

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::id::Partition;
use cluster::replica::{At, Effect, Machine, Write};
use engine::{HashRange, IdCopy, KeyChange, Nanos, Now};
use protocol::{Command, Decoded, Get, Key, Operation, Request, decode};

use super::Space;
use super::gather::put_part;
use super::step::{Step, Told};
use super::talk::is_silent;
use crate::counters::Counters;
use crate::limits::InForce;
use crate::plain::line;
use crate::scratch::Scratch;
use crate::service::Service;
use crate::session::{Round, counted_key, look_up_in};
use crate::shards::Shards;

/// 2025-01-01T00:00:00Z in nanoseconds since 1970: where the times in items count from, on all nodes.
/// Deadlines have forty bits of milliseconds, thirty-four years.
pub(super) const ORIGIN_NS: u64 = 1_735_689_600_000_000_000;
/// 2055-01-01T00:00:00Z, likewise: no partition begins later, so that deadlines of four years and more
/// are left to it.
pub(super) const LATEST_NS: u64 = 2_682_374_400_000_000_000;

/// The unique numbers of a term begin with it: the record's number has the lower bits.
const LSN_BITS: u32 = 40;
/// Above these bits a unique number counts the requests of one operation, backwards to 0.
const UNIQUE_BITS: u32 = 56;

/// What the byte before the client's words says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// As a client asked.
    Plain = 0,
    /// Everything goes; no words follow.
    Flush = 1,
    /// One key's part in a request that charges several.
    Step = 2,
    /// A value for this key was too large: the old one goes, for nobody must go on reading it.
    Drop = 3,
    /// Several requests on one key, as clients asked, one after the other: their number, then the words.
    Several = 4,
}

impl Sort {
    fn of_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Plain,
            1 => Self::Flush,
            2 => Self::Step,
            3 => Self::Drop,
            4 => Self::Several,
            _ => return None,
        })
    }
}

/// An operation of these words.
pub(crate) fn operation(sort: Sort, words: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + words.len());
    bytes.put_u8(sort as u8);
    bytes.put_slice(words);
    bytes.freeze()
}

/// A partition's time as the engine counts it.
pub(crate) fn items_time(pt_ns: u64) -> Nanos {
    Nanos(pt_ns.saturating_sub(ORIGIN_NS))
}

/// Buffers that operations use one after the other.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    output: Vec<u8>,
    state: Vec<u8>,
    counted: Vec<u8>,
}

/// The keys of one copy, with what it takes to work on them.
pub(crate) struct Keys<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) in_force: &'a InForce,
    pub(crate) worker: usize,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) partition: Partition,
    pub(crate) bits: u32,
    /// The node's wall clock, for windows of the calendar and exptimes that are dates.
    pub(crate) unix_ms: u64,
}

/// Told where the nodes do not agree on what a key is counted under: their limits change right now.
const LIMITS_CHANGE: &str = "SERVER_ERROR not applied: limits are changing";
/// Told for words that the node in front should not have sent.
const NO_OPERATION: &str = "SERVER_ERROR not applied: no operation on a key";

/// What ids are copied under: longer than a key.
const IDS_KEY: &[u8] = &[b'i'; protocol::KEY_BYTES_MAX + 1];

/// What became of a key.
enum Changed<'a> {
    Nothing,
    To(&'a [u8]),
    Gone,
}

/// The unique number of an item that is made now.
pub(super) fn unique(at: At) -> u64 {
    u64::from(at.term.0) << LSN_BITS | at.lsn
}

impl Keys<'_> {
    fn range(&self) -> HashRange {
        range_of(self.partition, self.bits)
    }

    /// Does what `words` ask and notes what became of the key.
    fn perform(&mut self, at: At, sort: Sort, words: &[u8], effect: &mut Effect) {
        let mut output = take(&mut self.buffers.output);
        let mut counted = take(&mut self.buffers.counted);
        output.clear();
        if sort == Sort::Step {
            match Step::decode(words) {
                Some(step) => self.step(at, &step, &mut output, effect),
                None => line(&mut output, NO_OPERATION),
            }
        } else if sort == Sort::Several {
            self.several(at, words, &mut counted, &mut output, effect);
        } else if sort == Sort::Drop {
            self.drop_value(at, words, effect);
        } else {
            match decode(words, 0, self.service.shards().bounds()) {
                Ok(Decoded::Request { request, .. }) => {
                    self.answer(at, &request, &mut counted, &mut output, effect);
                }
                _ => line(&mut output, NO_OPERATION),
            }
        }
        effect.answer(&output);
        self.buffers.output = output;
        self.buffers.counted = counted;
    }

    fn now(&self, pt_ns: u64) -> Now {
        Now { mono: items_time(pt_ns), unix_ms: self.unix_ms }
    }

    fn round(&mut self, at: At) -> Round<'_> {
        let (now, counters) = (self.now(at.pt_ns), self.counters);
        Round::of_key(self.service, counters, now, self.in_force, self.scratch, self.worker)
    }

    /// Runs `work` on a key, and says whether that changed it, and to what.
    fn change(
        &mut self,
        at: At,
        key: &[u8],
        hash: u64,
        work: impl FnOnce(&mut Round<'_>),
    ) -> Changed<'_> {
        let shards = self.service.shards();
        // Another partition of the shard must not name what this one makes.
        let _turn = shards.turn(hash);
        let before = shards.begin_change(hash, key, unique(at));
        self.scratch.kept_id.set(None);
        work(&mut self.round(at));
        let is_unchanged = before == shards.mark_of(hash, key);
        let kept_id = self.scratch.kept_id.take();
        if is_unchanged && kept_id.is_none() {
            return Changed::Nothing;
        }
        let state = &mut self.buffers.state;
        if state.capacity() > BUFFER_BYTES_MAX {
            *state = Vec::new();
        }
        state.clear();
        if let Some(id) = kept_id {
            // What the id was answered belongs to what became of the key: no copy has one alone.
            id.encode_with(state, is_unchanged, |state| shards.copy_of(hash, key, state));
            return Changed::To(state);
        }
        if shards.copy_of(hash, key, state) { Changed::To(state) } else { Changed::Gone }
    }

    /// Runs `work` on a key and notes what became of it.
    fn noting(
        &mut self,
        at: At,
        key: &[u8],
        hash: u64,
        effect: &mut Effect,
        work: impl FnOnce(&mut Round<'_>),
    ) {
        match self.change(at, key, hash, work) {
            Changed::Nothing => {}
            Changed::To(state) => effect.put(key, state),
            Changed::Gone => effect.delete(key),
        }
    }

    /// Runs `work`, which is answered at once, on a key. What other copies are told of it; nothing where
    /// there are none.
    pub(super) fn at_once(
        &mut self,
        at: At,
        is_copied: bool,
        key: &[u8],
        hash: u64,
        work: impl FnOnce(&mut Round<'_>),
    ) -> Option<Write> {
        if !is_copied {
            let shards = self.service.shards();
            let _turn = shards.turn(hash);
            shards.begin_at(hash, unique(at));
            work(&mut self.round(at));
            return None;
        }
        let state = match self.change(at, key, hash, work) {
            Changed::Nothing => return None,
            Changed::To(state) => Some(Bytes::copy_from_slice(state)),
            Changed::Gone => None,
        };
        Some(Write { key: Bytes::copy_from_slice(key), state })
    }

    fn step(&mut self, at: At, step: &Step<'_>, output: &mut Vec<u8>, effect: &mut Effect) {
        let hash = self.service.shards().hash(step.key);
        if !self.range().contains(hash) {
            return Told::NoLimit.encode(output);
        }
        self.noting(at, step.key, hash, effect, |round| round.step(step, hash).encode(output));
    }

    /// Requests on one key, each with an answer of its own.
    fn several(
        &mut self,
        at: At,
        words: &[u8],
        counted: &mut Vec<u8>,
        output: &mut Vec<u8>,
        effect: &mut Effect,
    ) {
        let Some((number, words)) = words.split_first() else { return };
        let (service, in_force) = (self.service, self.in_force);
        let (shards, bounds) = (service.shards(), service.shards().bounds());
        let Ok(Decoded::Request { request: Request::Command { command, .. }, .. }) =
            decode(words, 0, bounds)
        else {
            return;
        };
        let own = command.key.as_bytes();
        let looked = look_up_in(shards, in_force, own, counted);
        let (key, hash) = counted_key(shards, own, Some(&command.operation), &looked);
        let is_here = self.range().contains(hash);
        let (mut rest, mut counted) = (words, Vec::new());
        self.noting(at, key, hash, effect, |round| {
            for left in (0..u64::from(*number)).rev() {
                let Ok(Decoded::Request { request, consumed }) = decode(rest, 0, bounds) else {
                    return;
                };
                put_part(output, |output| {
                    let Request::Command { command, form } = &request else { return };
                    let own = command.key.as_bytes();
                    let looked = look_up_in(shards, in_force, own, &mut counted);
                    let same = counted_key(shards, own, Some(&command.operation), &looked);
                    if is_here && same == (key, hash) {
                        // A hold that a plain `incr` makes has a name, though nobody is told it.
                        shards.begin_at(hash, unique(at) | left << UNIQUE_BITS);
                        round.one_key(command, form, &looked, output);
                    } else if !is_silent(&request) {
                        line(output, LIMITS_CHANGE);
                    }
                });
                rest = rest.get(consumed..).unwrap_or_default();
            }
        });
    }

    fn install_ids(&self, now: Now, mut ids: &[u8]) {
        while let Some((id, rest)) = IdCopy::decode(ids) {
            self.service.shards().put_id(now, self.partition.0, &id);
            ids = rest;
        }
    }

    fn drop_value(&mut self, at: At, key: &[u8], effect: &mut Effect) {
        let hash = self.service.shards().hash(key);
        let is_bound = !matches!(self.in_force.limits().find(key, &mut Vec::new()), Ok(None));
        let (Some(of_item), true, false) = (Key::plain(key), self.range().contains(hash), is_bound)
        else {
            return;
        };
        self.noting(at, key, hash, effect, |round| {
            let key = of_item;
            let command = Command { key, operation: Operation::TooLarge { drop: true } };
            round.service.shards().apply(round.now, hash, &command, |_| ());
        });
    }

    fn answer(
        &mut self,
        at: At,
        request: &Request<'_>,
        counted: &mut Vec<u8>,
        output: &mut Vec<u8>,
        effect: &mut Effect,
    ) {
        let (own, operation) = match request {
            Request::Command { command, .. } => (command.key.as_bytes(), Some(&command.operation)),
            Request::Retrieve { keys, .. } => match keys.first() {
                Some(key) => (key, None),
                None => return line(output, NO_OPERATION),
            },
            _ => return line(output, NO_OPERATION),
        };
        let in_force = self.in_force;
        let looked = look_up_in(self.service.shards(), in_force, own, counted);
        let (key, hash) = counted_key(self.service.shards(), own, operation, &looked);
        if !self.range().contains(hash) {
            if !is_silent(request) {
                line(output, LIMITS_CHANGE);
            }
            return;
        }
        self.noting(at, key, hash, effect, |round| match request {
            Request::Command { command, form } => round.one_key(command, form, &looked, output),
            Request::Retrieve { keys, with_cas, touch } => {
                for (key, _) in keys.iter().take(1) {
                    let get = Get { touch: *touch, ..Get::default() };
                    let command = Command { key, operation: Operation::Get(get) };
                    round.retrieve_one(&command, &looked, *with_cas, output);
                }
            }
            _ => {}
        });
    }
}

/// One large value must not cost a thread its size for ever.
const BUFFER_BYTES_MAX: usize = 1 << 20;

impl Machine for Keys<'_> {
    fn apply(&mut self, at: At, op: &[u8], effect: &mut Effect) {
        let sort = op.first().and_then(|byte| Sort::of_byte(*byte));
        match (sort, op.get(1..)) {
            (Some(Sort::Flush), _) => {
                self.service.shards().remove_range(self.range());
                // No key is empty: a copy that is told this one is gone drops all.
                effect.delete(b"");
            }
            (Some(sort), Some(words)) => self.perform(at, sort, words, effect),
            _ => effect.answer(NO_OPERATION.as_bytes()),
        }
    }

    fn install(&mut self, pt_ns: u64, key: &[u8], state: Option<&[u8]>) {
        let shards = self.service.shards();
        if key.is_empty() {
            shards.remove_range(self.range());
            return;
        }
        let (hash, now) = (shards.hash_in(self.partition.0, key), self.now(pt_ns));
        if let (IDS_KEY, Some(state)) = (key, state) {
            return self.install_ids(now, state);
        }
        let state = match state.map(|state| (IdCopy::split(state), state)) {
            // Not of this version: without the state the key begins anew, as one that was evicted.
            None | Some((Some(Err(())), _)) => None,
            Some((None, state)) => Some(state),
            Some((Some(Ok((id, change))), _)) => {
                shards.put_id(now, self.partition.0, &id);
                match change {
                    KeyChange::Unchanged => return,
                    KeyChange::Gone => None,
                    KeyChange::Changed(state) => Some(state),
                }
            }
        };
        match state {
            Some(state) => {
                if let Err(error) = shards.put_copy(now, hash, key, state) {
                    // What does not fit is as if it had been evicted here right after.
                    tracing::debug!(?error, partition = %self.partition, "item not kept in a copy");
                    shards.remove_copy(hash, key);
                }
            }
            None => shards.remove_copy(hash, key),
        }
    }

    fn export(
        &mut self,
        pt_ns: u64,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        out: &mut Vec<(Bytes, Bytes)>,
    ) -> Option<Bytes> {
        let (range, now, shards) = (self.range(), self.now(pt_ns), self.service.shards());
        // First the items, then the ids.
        if cursor.is_none_or(|cursor| !Shards::is_of_ids(cursor)) {
            let next = shards.export(now, range, cursor, bytes_max, |key, state| {
                out.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(state)));
            });
            if next.is_some() {
                return next.map(Bytes::from);
            }
        }
        let cursor = cursor.filter(|cursor| Shards::is_of_ids(cursor));
        let mut ids = Vec::new();
        let next = shards.export_ids(now, self.partition.0, cursor, bytes_max, &mut ids);
        if !ids.is_empty() {
            out.push((Bytes::from_static(IDS_KEY), ids.into()));
        }
        next.map(Bytes::from)
    }

    fn clear(&mut self) {
        self.service.shards().remove_range(self.range());
        self.service.shards().forget_ids(self.range());
    }
}

/// The hashes of a partition's keys.
pub(super) fn range_of(partition: Partition, bits: u32) -> HashRange {
    HashRange { prefix: u64::from(partition.0), bits }
}

/// The partition that a key of this hash is in.
pub(crate) fn partition_of(space: &Space, hash: u64) -> Partition {
    Partition((hash >> (u64::BITS - space.bits)) as u16)
}
