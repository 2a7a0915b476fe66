//! The fast path: executes the commonest requests while the shards of a batch are locked, so that
//! each shard is locked once per batch, not once per request.
//!
//! Not here: decoding (`protocol`), the general path (`session`, `items`, `native`), which handles
//! every request that the fast path does not.

use std::hint::cold_path;

use engine::{Engine, FastResult, PolicyRef, TakeInfo, TakeParams, refused_count, units, usage};
use protocol::{
    CONFIGURED_POLICY, Command, Exptime, FastRequest, ItemView, Key, Operation, Outcome, Set,
    SetMode, Value, encode_hit, encode_number, name_refusal,
};
use tollgate_limits::LimitMatch;

use crate::commands::context::ExecContext;
use crate::commands::lookup::KeyLookup;
use crate::commands::verdict::encode_decision;
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
        if self.counters.probe.records(lookup.hash) {
            cold_path();
            return self.answer_recorded(engine, fast, lookup, out);
        }
        let Ok(Some(found)) = &lookup.key_limit else {
            return self.answer_unrecorded(engine, fast, lookup.hash, out);
        };
        self.answer_limited(engine, fast, (found, lookup.hash), out, |_, _| ())
    }

    /// Executes an `incr` on a key with a limit, or a `take` under that limit, and passes the
    /// decision to `decided`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the decision stays in registers")]
    fn answer_limited(
        &mut self,
        engine: &mut Engine,
        fast: &FastRequest<'_>,
        place: (&LimitMatch<'_>, u64),
        out: &mut Vec<u8>,
        decided: impl FnMut(&TakeInfo, &TakeParams),
    ) -> bool {
        match *fast {
            FastRequest::Count { delta, .. } => {
                self.count_limited_fast(engine, place, delta, out, decided)
            }
            FastRequest::Take { cost, policy: CONFIGURED_POLICY, .. } => {
                self.take_limited_fast(engine, place, cost, out, decided)
            }
            _ => false,
        }
    }

    /// [`ExecContext::answer_fast`] on a key of the recorder's sample, apart from the others, which
    /// it must cost nothing.
    #[cold]
    #[inline(never)]
    fn answer_recorded(
        &mut self,
        engine: &mut Engine,
        fast: &FastRequest<'_>,
        lookup: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) -> bool {
        let KeyLookup { hash, key_limit } = lookup;
        let decision_ctx = self.decision_context();
        let verb = match fast {
            FastRequest::Take { .. } => SampledVerb::Take,
            _ => SampledVerb::Incr,
        };
        if let Ok(Some(found)) = key_limit {
            let key = (*hash, found.base());
            return self.answer_limited(engine, fast, (found, *hash), out, |facts, take| {
                decision_ctx.record(key, verb, facts, take);
            });
        }
        match *fast {
            FastRequest::Take { key, cost, policy } if policy != CONFIGURED_POLICY => self
                .take_fast(engine, (key, *hash), (cost, policy), out, |facts, take| {
                    decision_ctx.record((*hash, key), verb, facts, take);
                }),
            FastRequest::Count { key, delta, decrement: false } => {
                let is_done = self.answer_unrecorded(engine, fast, *hash, out);
                if is_done {
                    self.record_plain((*hash, key), verb, delta);
                }
                is_done
            }
            _ => self.answer_unrecorded(engine, fast, *hash, out),
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
        if self.counters.probe.records(hash) {
            cold_path();
            let lookup = KeyLookup { hash, key_limit: Ok(None) };
            return self.answer_recorded(engine, fast, &lookup, out);
        }
        self.answer_plain(engine, fast, hash, out)
    }

    /// [`ExecContext::answer_without_limit`] that records nothing.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of what the commonest batches do")]
    pub(crate) fn answer_plain(
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
                self.take_fast(engine, (key, hash), (cost, policy), out, |_, _| ())
            }
        }
    }

    /// [`ExecContext::answer_plain`], not inlined.
    #[inline(never)]
    fn answer_unrecorded(
        &mut self,
        engine: &mut Engine,
        fast: &FastRequest<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        self.answer_plain(engine, fast, hash, out)
    }

    /// Executes a `take` under the policy in the request.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of what the commonest batches do")]
    fn take_fast(
        &mut self,
        engine: &mut Engine,
        (key, hash): (&[u8], u64),
        (cost, policy): (u64, &[u8]),
        out: &mut Vec<u8>,
        mut decided: impl FnMut(&TakeInfo, &TakeParams),
    ) -> bool {
        let scratch = &mut *self.scratch;
        let Ok(policy_id) = scratch.policy_cache.parse(policy) else {
            cold_path();
            return false;
        };
        let policy_ref = PolicyRef::from(scratch.policy_cache.policy(policy_id));
        let (now, state) = (self.now, &mut scratch.state);
        engine.take_units::<true>(now, (hash, key), policy_ref, cost, state, |facts| {
            decided(facts, &TakeParams { cost, ..TakeParams::default() });
            encode_decision(out, facts);
        })
    }

    /// Like `limited_command` for an `incr` that charges no key but its own.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the decision stays in registers")]
    fn count_limited_fast(
        &mut self,
        engine: &mut Engine,
        (found, hash): (&LimitMatch<'_>, u64),
        delta: u64,
        out: &mut Vec<u8>,
        mut decided: impl FnMut(&TakeInfo, &TakeParams),
    ) -> bool {
        let (key, policy_ref) = ((hash, found.key()), self.policy_of(found));
        let decision_ctx = self.decision_context();
        let take = TakeParams { cost: units(delta), wait: Some(0), ..TakeParams::default() };
        let mut refused = None;
        let report = |facts: &TakeInfo| {
            decision_ctx.note(found.limit().index(), key, facts, &take);
            decided(facts, &take);
            if facts.refuses() && take.cost > 0 {
                refused = Some(refused_count(facts, take.cost));
            } else {
                encode_number(out, usage(facts));
            }
        };
        let state = &mut self.scratch.state;
        let cost = take.cost;
        let is_told = engine.take_units::<false>(self.now, key, policy_ref, cost, state, report);
        if let Some(number) = refused {
            encode_number(out, self.above_limit(found, number));
        }
        self.counters.incr_hits.add(u64::from(is_told));
        is_told
    }

    /// Like `native` for a `take` under the key's own limit that charges no key but its own.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the decision stays in registers")]
    fn take_limited_fast(
        &mut self,
        engine: &mut Engine,
        (found, hash): (&LimitMatch<'_>, u64),
        cost: u64,
        out: &mut Vec<u8>,
        mut decided: impl FnMut(&TakeInfo, &TakeParams),
    ) -> bool {
        let (key, policy_ref) = ((hash, found.key()), self.policy_of(found));
        let decision_ctx = self.decision_context();
        let (start, mut is_refused) = (out.len(), false);
        let report = |facts: &TakeInfo| {
            let take = TakeParams { cost, ..TakeParams::default() };
            decision_ctx.note(found.limit().index(), key, facts, &take);
            decided(facts, &take);
            is_refused = facts.refuses();
            encode_decision(out, facts);
        };
        let state = &mut self.scratch.state;
        let is_told = engine.take_units::<true>(self.now, key, policy_ref, cost, state, report);
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
        if value.len() > LOCKED_VALUE_BYTES_MAX {
            cold_path();
            return false;
        }
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
