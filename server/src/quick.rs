//! The commonest requests, answered while the shards of a batch are held: each shard is locked once a
//! batch, not once a request.
//!
//! Not here: reading them (`protocol`), everything else about them (`session`, `plain`, `limiting`), which
//! also answers them wherever the short way does not go.

use std::hint::cold_path;

use engine::{Engine, Facts, InPlace, Judgement, Rule, Take, counted, taking};
use protocol::{
    Arithmetic, BOUND_POLICY, Command, Exptime, ItemView, Key, Operation, Outcome, Quick, Set,
    SetMode, Value, encode_hit, encode_number,
};

use crate::limiting::encode_decision;
use crate::limits::Found;
use crate::session::{LookedUp, Round};

/// Longer values are stored, and read by `get`, under the lock of their own shard alone.
pub(crate) const HELD_VALUE_BYTES_MAX: usize = 4096;

/// Whether a request may be answered while the shards of a batch are held, if no limit is bound to its key.
#[inline]
pub(crate) fn may_be_held(quick: &Quick<'_>) -> bool {
    match quick {
        Quick::Set { value, .. } => value.len() <= HELD_VALUE_BYTES_MAX,
        Quick::Take { policy, .. } => *policy != BOUND_POLICY,
        Quick::Get { .. } | Quick::Count { .. } => true,
    }
}

impl Round<'_> {
    /// Answers a request; on a key that a limit is bound to only an `incr`, or a `take` under that limit.
    /// False if it is not answered, because it has to go the long way.
    #[inline]
    pub(crate) fn answer_quickly(
        &mut self,
        engine: &mut Engine,
        quick: &Quick<'_>,
        looked: &LookedUp<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Ok(Some(found)) = &looked.bound else {
            return self.answer_unbound_apart(engine, quick, looked.hash, out);
        };
        match *quick {
            Quick::Count { delta, .. } => {
                self.count_bound_quickly(engine, (found, looked.hash), delta, out)
            }
            Quick::Take { cost, policy: BOUND_POLICY, .. } => {
                self.take_bound_quickly(engine, (found, looked.hash), cost, out)
            }
            _ => false,
        }
    }

    /// Answers a request on a key that no limit is bound to. False if it is not answered, because it has to go
    /// the long way.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of what the commonest batches do")]
    pub(crate) fn answer_unbound(
        &mut self,
        engine: &mut Engine,
        quick: &Quick<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        match *quick {
            Quick::Get { key } => {
                let is_done = self.get_quickly(engine, key, hash, out);
                if is_done {
                    out.extend_from_slice(b"END\r\n");
                }
                is_done
            }
            Quick::Count { key, delta, decrement } => {
                let counters = self.counters;
                let (hits, misses) = if decrement {
                    (&counters.decr_hits, &counters.decr_misses)
                } else {
                    (&counters.incr_hits, &counters.incr_misses)
                };
                match engine.count_in_place(self.now, hash, key, delta, decrement) {
                    InPlace::Done(number) => {
                        hits.add(1);
                        encode_number(out, number);
                    }
                    InPlace::Missing => {
                        misses.add(1);
                        out.extend_from_slice(b"NOT_FOUND\r\n");
                    }
                    InPlace::Apart => return false,
                }
                true
            }
            Quick::Set { key, client_flags, exptime, value } => {
                self.set_quickly(engine, (key, hash), (client_flags, exptime, value), out)
            }
            Quick::Take { policy: BOUND_POLICY, .. } => false,
            Quick::Take { key, cost, policy } => {
                let scratch = &mut *self.scratch;
                let Ok(written) = scratch.written.parse(policy) else {
                    cold_path();
                    return false;
                };
                let rule = Rule::from(scratch.written.policy(written));
                let tell = |facts: &Facts| encode_decision(out, facts);
                engine.take_units(self.now, (hash, key), rule, cost, &mut scratch.state, tell)
            }
        }
    }

    /// As [`Round::answer_unbound`], by itself.
    #[inline(never)]
    fn answer_unbound_apart(
        &mut self,
        engine: &mut Engine,
        quick: &Quick<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        self.answer_unbound(engine, quick, hash, out)
    }

    /// As `bound_command` of an `incr`, where nothing is charged but the key itself.
    fn count_bound_quickly(
        &self,
        engine: &mut Engine,
        (found, hash): (&Found<'_>, u64),
        delta: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let take = taking(&Arithmetic::plain(delta, false));
        let limited = engine.take(self.now, hash, found.key(), Some(self.rule_of(found)), &take);
        let item = match counted(limited, take.cost) {
            Outcome::Number(item) => item,
            Outcome::Refused(item) => self.above_limit(found, item),
            _ => return false,
        };
        self.note_judgement(found.limit().index(), limited.judgement(&take));
        self.counters.incr_hits.add(1);
        match item.value {
            Value::Number(number) => encode_number(out, number),
            // Usage is a number always.
            Value::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
        }
        true
    }

    /// As `native` of a `take` under the key's own limit, where nothing is charged but the key itself.
    fn take_bound_quickly(
        &mut self,
        engine: &mut Engine,
        (found, hash): (&Found<'_>, u64),
        cost: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let (key, rule) = ((hash, found.key()), self.rule_of(found));
        let mut judgement = Judgement::Nothing;
        let tell = |facts: &Facts| {
            judgement = facts.judgement(&Take { cost, ..Take::default() });
            encode_decision(out, facts);
        };
        let is_told = engine.take_units(self.now, key, rule, cost, &mut self.scratch.state, tell);
        self.note_judgement(found.limit().index(), judgement);
        is_told
    }

    /// A `VALUE` block, or nothing where there is no item.
    #[inline]
    pub(crate) fn get_quickly(
        &self,
        engine: &mut Engine,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        match engine.get_in_place(self.now, hash, key) {
            InPlace::Done((value, _)) if value.len() > HELD_VALUE_BYTES_MAX => return false,
            InPlace::Done((value, client_flags)) => {
                self.counters.get_hits.add(1);
                let item = ItemView { value, client_flags, ..ItemView::default() };
                encode_hit(out, key, &item, false);
            }
            InPlace::Missing => self.counters.get_misses.add(1),
            InPlace::Apart => return false,
        }
        self.counters.cmd_get.add(1);
        true
    }

    /// As `command_at` of a `set`, in a tenth fewer instructions.
    fn set_quickly(
        &self,
        engine: &mut Engine,
        (key, hash): (&[u8], u64),
        (client_flags, exptime, value): (u32, Exptime, &[u8]),
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(key) = Key::plain(key) else { return false };
        let set = Set::plain(SetMode::Set, client_flags, exptime, value);
        let command = Command { key, operation: Operation::Set(set) };
        let Outcome::Stored(_) = engine.apply(self.now, hash, &command) else { return false };
        self.counters.cmd_set.add(1);
        self.counters.total_items.add(1);
        out.extend_from_slice(b"STORED\r\n");
        true
    }
}
