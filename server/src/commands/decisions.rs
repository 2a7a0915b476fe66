//! The account of a decision: the figures of its limit, and its samples.
//!
//! Not here: the decision (`engine`), the choice of samples and their ring (`probe`).

use std::hint::cold_path;

use engine::algorithms::Verdict;
use engine::{Judged, Judgement, TakeInfo, TakeParams, TakeResult};

use crate::commands::context::ExecContext;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::probe::{SampleKind, SampledVerb, SampledVerdict};

/// The worker that decides, with its counters.
#[derive(Clone, Copy)]
pub(crate) struct DecisionContext<'a> {
    pub(crate) active_limits: &'a ActiveLimits,
    pub(crate) counters: &'a Counters,
    pub(crate) worker: usize,
    pub(crate) unix_ms: u64,
}

impl DecisionContext<'_> {
    /// Counts a decision of the limit with index `limit` on a counted key. A denial is a sample.
    #[inline]
    pub(crate) fn note(
        &self,
        limit: usize,
        key: (u64, &[u8]),
        facts: &TakeInfo,
        take: &TakeParams,
    ) {
        if take.peek || take.cost == 0 {
            return;
        }
        if facts.decision.verdict == Verdict::Deny || facts.shadow {
            return self.note_denied(limit, key, facts, take);
        }
        if let Some(metrics) = self.active_limits.metrics(limit) {
            metrics.note_allowed(self.worker, facts.decision.granted, facts.is_near());
        }
    }

    /// [`DecisionContext::note`] for a denial, that of a shadow included.
    #[inline(never)]
    fn note_denied(&self, limit: usize, key: (u64, &[u8]), facts: &TakeInfo, take: &TakeParams) {
        self.note_judged(limit, key, &facts.judged(take));
    }

    /// [`DecisionContext::note`] for a judgement.
    #[inline(never)]
    pub(crate) fn note_judged(&self, limit: usize, key: (u64, &[u8]), judged: &Judged) {
        let Some(metrics) = self.active_limits.metrics(limit) else { return };
        metrics.note(self.worker, judged);
        let kind = match judged.judgement {
            Judgement::Nothing | Judgement::Allowed => return,
            Judgement::Denied => SampleKind::Denied,
            Judgement::ShadowDenied => SampleKind::Shadow,
        };
        let attempt = (judged.cost, judged.retry);
        self.counters.probe.put_denied(kind, self.unix_ms, key, metrics.number(), attempt);
    }

    /// Puts a decision into the recorder's sample, if the hash of its counted key is in it. `key`
    /// is the client's.
    #[inline]
    pub(crate) fn record(
        &self,
        (hash, key): (u64, &[u8]),
        verb: SampledVerb,
        facts: &TakeInfo,
        take: &TakeParams,
    ) {
        if self.counters.probe.records(hash) {
            cold_path();
            self.record_judged((hash, key), verb, &facts.judged(take));
        }
    }

    /// Puts a judgement on a key of the recorder's sample into it.
    #[cold]
    #[inline(never)]
    fn record_judged(&self, key: (u64, &[u8]), verb: SampledVerb, judged: &Judged) {
        let verdict = match judged.judgement {
            Judgement::Nothing => return,
            Judgement::Allowed => SampledVerdict::Allowed,
            Judgement::Denied => SampledVerdict::Denied,
            Judgement::ShadowDenied => SampledVerdict::ShadowDenied,
        };
        self.counters.probe.put_recorded(self.unix_ms, key, judged.cost, (verb, verdict));
    }
}

impl<'a> ExecContext<'a> {
    /// Returns the context for accounts of decisions.
    #[inline]
    pub(crate) fn decision_context(&self) -> DecisionContext<'a> {
        DecisionContext {
            active_limits: self.active_limits,
            counters: self.counters,
            worker: self.worker,
            unix_ms: self.now.unix_ms,
        }
    }

    /// Counts a decision of the limit with index `limit` on a counted key.
    pub(crate) fn note_judged(&self, limit: usize, key: (u64, &[u8]), judged: &Judged) {
        self.decision_context().note_judged(limit, key, judged);
    }

    /// Counts the decision in `result`, if there is one.
    pub(crate) fn note_result(
        &self,
        limit: usize,
        key: (u64, &[u8]),
        result: &TakeResult,
        take: &TakeParams,
    ) {
        if let TakeResult::Decided(facts) = result {
            self.decision_context().note(limit, key, facts, take);
        }
    }

    /// [`DecisionContext::record`] for a judgement.
    #[inline]
    pub(crate) fn record(&self, (hash, key): (u64, &[u8]), verb: SampledVerb, judged: &Judged) {
        if self.counters.probe.records(hash) {
            cold_path();
            self.decision_context().record_judged((hash, key), verb, judged);
        }
    }

    /// [`DecisionContext::record`] for the result of a take.
    #[inline]
    pub(crate) fn record_result(
        &self,
        (hash, key): (u64, &[u8]),
        verb: SampledVerb,
        result: &TakeResult,
        take: &TakeParams,
    ) {
        if self.counters.probe.records(hash) {
            cold_path();
            self.decision_context().record_judged((hash, key), verb, &result.judged(take));
        }
    }

    /// Puts a count of `cost` that no limit binds into the recorder's sample; the caller has found
    /// the hash in it.
    #[cold]
    #[inline(never)]
    pub(crate) fn record_plain(&self, key: (u64, &[u8]), verb: SampledVerb, cost: u64) {
        let cost = cost.min(protocol::COUNT_MAX);
        let judged = Judged { judgement: Judgement::Allowed, cost, units: cost, ..Judged::NOTHING };
        self.decision_context().record_judged(key, verb, &judged);
    }
}
