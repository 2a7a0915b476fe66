//! The commonest requests, answered while the shards of a batch are held: each shard is locked once a
//! batch, not once a request.
//!
//! Not here: reading them (`protocol`), everything else about them (`session`, `items`, `native`), which
//! also answers them wherever the short way does not go.

use std::hint::cold_path;

use engine::{Engine, FastResult, Judgement, PolicyRef, TakeInfo, TakeParams, counted, taking};
use protocol::{
    Arithmetic, CONFIGURED_POLICY, Command, Exptime, FastRequest, ItemView, Key, Operation,
    Outcome, Set, SetMode, Value, encode_hit, encode_number,
};

use crate::commands::native::encode_decision;
use crate::limits::LimitMatch;
use crate::session::{ExecContext, KeyLookup};

/// Longer values are stored, and read by `get`, under the lock of their own shard alone.
pub(crate) const LOCKED_VALUE_BYTES_MAX: usize = 4096;

/// Whether a request may be answered while the shards of a batch are held, if no limit is bound to its key.
#[inline]
pub(crate) fn may_run_locked(fast: &FastRequest<'_>) -> bool {
    match fast {
        FastRequest::Set { value, .. } => value.len() <= LOCKED_VALUE_BYTES_MAX,
        FastRequest::Take { policy, .. } => *policy != CONFIGURED_POLICY,
        FastRequest::Get { .. } | FastRequest::Count { .. } => true,
    }
}

impl ExecContext<'_> {
    /// Answers a request; on a key that a limit is bound to only an `incr`, or a `take` under that limit.
    /// False if it is not answered, because it has to go the long way.
    #[inline]
    pub(crate) fn answer_fast(
        &mut self,
        engine: &mut Engine,
        fast: &FastRequest<'_>,
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Ok(Some(found)) = &lookup.key_limit else {
            return self.answer_without_limit_outlined(engine, fast, lookup.hash, out);
        };
        match *fast {
            FastRequest::Count { delta, .. } => {
                self.count_limited_fast(engine, (found, lookup.hash), delta, out)
            }
            FastRequest::Take { cost, policy: CONFIGURED_POLICY, .. } => {
                self.take_limited_fast(engine, (found, lookup.hash), cost, out)
            }
            _ => false,
        }
    }

    /// Answers a request on a key that no limit is bound to. False if it is not answered, because it has to go
    /// the long way.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of what the commonest batches do")]
    pub(crate) fn answer_without_limit(
        &mut self,
        engine: &mut Engine,
        fast: &FastRequest<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        match *fast {
            FastRequest::Get { key } => {
                let is_done = self.get_fast(engine, key, hash, out);
                if is_done {
                    out.extend_from_slice(b"END\r\n");
                }
                is_done
            }
            FastRequest::Count { key, delta, decrement } => {
                let counters = self.counters;
                let (hits, misses) = if decrement {
                    (&counters.decr_hits, &counters.decr_misses)
                } else {
                    (&counters.incr_hits, &counters.incr_misses)
                };
                match engine.count_in_place(self.now, hash, key, delta, decrement) {
                    FastResult::Done(number) => {
                        hits.add(1);
                        encode_number(out, number);
                    }
                    FastResult::Missing => {
                        misses.add(1);
                        out.extend_from_slice(b"NOT_FOUND\r\n");
                    }
                    FastResult::General => return false,
                }
                true
            }
            FastRequest::Set { key, client_flags, exptime, value } => {
                self.set_fast(engine, (key, hash), (client_flags, exptime, value), out)
            }
            FastRequest::Take { policy: CONFIGURED_POLICY, .. } => false,
            FastRequest::Take { key, cost, policy } => {
                let scratch = &mut *self.scratch;
                let Ok(policy_id) = scratch.policy_cache.parse(policy) else {
                    cold_path();
                    return false;
                };
                let policy_ref = PolicyRef::from(scratch.policy_cache.policy(policy_id));
                let report = |facts: &TakeInfo| encode_decision(out, facts);
                engine.take_units(
                    self.now,
                    (hash, key),
                    policy_ref,
                    cost,
                    &mut scratch.state,
                    report,
                )
            }
        }
    }

    /// As [`ExecContext::answer_without_limit`], by itself.
    #[inline(never)]
    fn answer_without_limit_outlined(
        &mut self,
        engine: &mut Engine,
        fast: &FastRequest<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        self.answer_without_limit(engine, fast, hash, out)
    }

    /// As `limited_command` of an `incr`, where nothing is charged but the key itself.
    fn count_limited_fast(
        &self,
        engine: &mut Engine,
        (found, hash): (&LimitMatch<'_>, u64),
        delta: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let take = taking(&Arithmetic::plain(delta, false));
        let limited = engine.take(self.now, hash, found.key(), Some(self.policy_of(found)), &take);
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
    fn take_limited_fast(
        &mut self,
        engine: &mut Engine,
        (found, hash): (&LimitMatch<'_>, u64),
        cost: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let (key, policy_ref) = ((hash, found.key()), self.policy_of(found));
        let mut judgement = Judgement::Nothing;
        let report = |facts: &TakeInfo| {
            judgement = facts.judgement(&TakeParams { cost, ..TakeParams::default() });
            encode_decision(out, facts);
        };
        let is_told =
            engine.take_units(self.now, key, policy_ref, cost, &mut self.scratch.state, report);
        self.note_judgement(found.limit().index(), judgement);
        is_told
    }

    /// A `VALUE` block, or nothing where there is no item.
    #[inline]
    pub(crate) fn get_fast(
        &self,
        engine: &mut Engine,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        match engine.get_in_place(self.now, hash, key) {
            FastResult::Done((value, _)) if value.len() > LOCKED_VALUE_BYTES_MAX => return false,
            FastResult::Done((value, client_flags)) => {
                self.counters.get_hits.add(1);
                let item = ItemView { value, client_flags, ..ItemView::default() };
                encode_hit(out, key, &item, false);
            }
            FastResult::Missing => self.counters.get_misses.add(1),
            FastResult::General => return false,
        }
        self.counters.cmd_get.add(1);
        true
    }

    /// As `command_at` of a `set`, in a tenth fewer instructions.
    fn set_fast(
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
