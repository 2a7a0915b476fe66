//! The fast path: executes the commonest requests while the shards of a batch are locked, so that
//! each shard is locked once per batch, not once per request.
//!
//! Not here: decoding (`protocol`), the general path (`session`, `items`, `native`), which handles
//! every request that the fast path does not.

use std::hint::cold_path;

use engine::{Engine, FastResult, Now, PolicyRef, TakeInfo, TakeParams, counted, taking};
use protocol::{
    Arithmetic, CONFIGURED_POLICY, Command, Exptime, FastRequest, ItemView, Key, Operation,
    Outcome, Set, SetMode, Value, encode_hit, encode_number, name_refusal,
};

use crate::commands::context::ExecContext;
use crate::commands::decisions::DecisionContext;
use crate::commands::lookup::KeyLookup;
use crate::commands::verdict::encode_decision;
use crate::limits::LimitMatch;
use crate::probe::SampledVerb;

/// A longer value is stored, and read by `get`, under the lock of its own shard alone.
pub(crate) const LOCKED_VALUE_BYTES_MAX: usize = 4096;

/// Returns whether a request on a key without a limit may be executed while the shards of a batch
/// are locked.
#[inline]
pub(crate) fn may_run_locked(fast: &FastRequest<'_>) -> bool {
    match fast {
        FastRequest::Set { value, .. } => value.len() <= LOCKED_VALUE_BYTES_MAX,
        FastRequest::Take { policy, .. } => *policy != CONFIGURED_POLICY,
        FastRequest::Get { .. } | FastRequest::Count { .. } => true,
    }
}

/// Returns whether a request may be executed while the shard of its key is locked.
#[inline]
pub(crate) fn is_fast(fast: &FastRequest<'_>, key: &KeyLookup<'_>) -> bool {
    let knows_limits = matches!(
        fast,
        FastRequest::Count { decrement: false, .. }
            | FastRequest::Take { policy: CONFIGURED_POLICY, .. }
    );
    (knows_limits && key.has_limit_alone()) || (key.has_no_limit() && may_run_locked(fast))
}

impl ExecContext<'_> {
    /// Executes a request and writes its reply. On a limited key it executes only an `incr`, and a
    /// `take` under that limit. Returns false, without a reply, if the general path is needed.
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

    /// Executes a request on a key without a limit and writes its reply. Returns false, without a
    /// reply, if the general path is needed.
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
                if self.counters.probe.records(hash) && !decrement {
                    cold_path();
                    self.record_plain((hash, key), SampledVerb::Incr, delta);
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
                let (now, state) = (self.now, &mut scratch.state);
                if self.counters.probe.records(hash) {
                    cold_path();
                    let decision_ctx = DecisionContext {
                        active_limits: self.active_limits,
                        counters: self.counters,
                        worker: self.worker,
                        unix_ms: now.unix_ms,
                    };
                    let place = (now, (hash, key), policy_ref);
                    return take_recorded(decision_ctx, engine, place, cost, state, out);
                }
                let report = |facts: &TakeInfo| encode_decision(out, facts);
                engine.take_units(now, (hash, key), policy_ref, cost, state, report)
            }
        }
    }

    /// [`ExecContext::answer_without_limit`], not inlined.
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

    /// Like `limited_command` for an `incr` that charges no key but its own.
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
        self.note_result(found.limit().index(), (hash, found.key()), &limited, &take);
        self.record_result((hash, found.base()), SampledVerb::Incr, &limited, &take);
        self.counters.incr_hits.add(1);
        match item.value {
            Value::Number(number) => encode_number(out, number),
            // Usage is always a number.
            Value::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
        }
        true
    }

    /// Like `native` for a `take` under the key's own limit that charges no key but its own.
    fn take_limited_fast(
        &mut self,
        engine: &mut Engine,
        (found, hash): (&LimitMatch<'_>, u64),
        cost: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let (key, policy_ref) = ((hash, found.key()), self.policy_of(found));
        let decision_ctx = self.decision_context();
        let (start, mut is_refused) = (out.len(), false);
        let report = |facts: &TakeInfo| {
            let take = TakeParams { cost, ..TakeParams::default() };
            decision_ctx.note(found.limit().index(), key, facts, &take);
            decision_ctx.record((hash, found.base()), SampledVerb::Take, facts, &take);
            is_refused = facts.refuses();
            encode_decision(out, facts);
        };
        let is_told =
            engine.take_units(self.now, key, policy_ref, cost, &mut self.scratch.state, report);
        if is_refused {
            name_refusal(out, start, found.limit().name());
        }
        is_told
    }

    /// Writes a `VALUE` block, or nothing if the key has no item. Returns false if the general path
    /// is needed.
    #[inline]
    pub(crate) fn get_fast(
        &self,
        engine: &mut Engine,
        key: &[u8],
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        let encode = |value: Value<'_>, client_flags| {
            let is_short = value.len() <= LOCKED_VALUE_BYTES_MAX;
            if is_short {
                self.counters.get_hits.add(1);
                let item = ItemView { value, client_flags, ..ItemView::default() };
                encode_hit(out, key, &item, false);
            }
            is_short
        };
        match engine.get_in_place(self.now, hash, key, encode) {
            FastResult::Done(true) => {}
            FastResult::Missing => self.counters.get_misses.add(1),
            FastResult::Done(false) | FastResult::General => return false,
        }
        self.counters.cmd_get.add(1);
        true
    }

    /// Like `command_at` for a `set`, in fewer instructions.
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

/// Takes under a policy in the request from a key in the recorder's sample. Apart from the other
/// takes, which it must cost nothing.
#[cold]
#[inline(never)]
fn take_recorded(
    decision_ctx: DecisionContext<'_>,
    engine: &mut Engine,
    (now, key, policy_ref): (Now, (u64, &[u8]), PolicyRef<'_>),
    cost: u64,
    state: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    let report = |facts: &TakeInfo| {
        let take = TakeParams { cost, ..TakeParams::default() };
        decision_ctx.record(key, SampledVerb::Take, facts, &take);
        encode_decision(out, facts);
    };
    engine.take_units(now, key, policy_ref, cost, state, report)
}
