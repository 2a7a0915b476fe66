//! The contents of the verdict line: a decision of a limit as the reply to a native verb.
//!
//! Not here: the wire format (`protocol`), which reply a verb gets (`limit_op`).

use std::hint::cold_path;

use engine::algorithms::{Decision, Verdict};
use engine::{Decider, TakeInfo, TakeParams, TakeResult, undecided};
use protocol::{
    CasCondition, CountLine, Outcome, Take, VerdictLine, VerdictWord, encode_allow, encode_deny,
    encode_verdict, name_hold,
};

use crate::commands::items::line;
use crate::commands::limited_keys::milliseconds;
use crate::commands::multi_key::ChargeResult;

/// Builds the verdict line of a decision.
pub(crate) fn verdict_line(facts: &TakeInfo, show_cas: bool) -> VerdictLine {
    let Decision { verdict, limit, remaining, granted, reset, lease, .. } = facts.decision;
    VerdictLine {
        word: verdict_word(facts),
        limit,
        remaining,
        retry_ms: retry_ms(facts),
        reset_ms: milliseconds(reset),
        cas: show_cas.then_some(facts.cas),
        lease,
        granted: (verdict == Verdict::Part).then_some(granted),
        at: facts.at.and_then(Decider::index),
        ban: facts.at == Some(Decider::BAN),
        shadow: facts.shadow,
        degraded: false,
    }
}

fn verdict_word(facts: &TakeInfo) -> VerdictWord {
    match facts.decision.verdict {
        Verdict::Deny if facts.shadow => VerdictWord::Allow,
        Verdict::Allow => VerdictWord::Allow,
        Verdict::Deny => VerdictWord::Deny,
        Verdict::Wait => VerdictWord::Wait,
        Verdict::Part => VerdictWord::Part,
    }
}

fn retry_ms(facts: &TakeInfo) -> Option<u64> {
    if verdict_word(facts) == VerdictWord::Allow {
        return Some(0);
    }
    facts.decision.retry.map(milliseconds)
}

/// Writes the verdict line of a decision. Most consist of the verdict and four numbers, which are
/// encoded without building a [`VerdictLine`].
#[inline(always)]
#[expect(clippy::inline_always, reason = "most decisions are `ALLOW`, and end where they are made")]
pub(crate) fn encode_decision(out: &mut Vec<u8>, facts: &TakeInfo) {
    let Decision { verdict, limit, remaining, retry, reset, lease, .. } = facts.decision;
    let (room, reset_ms) = ((limit, remaining), milliseconds(reset));
    match verdict {
        Verdict::Allow if !facts.shadow && lease.is_none() => encode_allow(out, room, reset_ms),
        Verdict::Deny if !facts.shadow && lease.is_none() => {
            encode_deny(out, room, retry.map(milliseconds), reset_ms);
        }
        _ => {
            cold_path();
            encode_verdict(out, &verdict_line(facts, false));
        }
    }
}

pub(crate) fn settled(limited: TakeResult) -> Outcome<'static> {
    match limited {
        TakeResult::Decided(TakeInfo { decision, .. }) => Outcome::Settled {
            limit: decision.limit,
            remaining: decision.remaining,
            reset_ms: milliseconds(decision.reset),
        },
        other => undecided(other),
    }
}

pub(crate) fn verdict(limited: TakeResult, show_cas: bool) -> Outcome<'static> {
    match limited {
        TakeResult::Decided(facts) => Outcome::Verdict(verdict_line(&facts, show_cas)),
        TakeResult::Exists(facts) => Outcome::Verdict(VerdictLine {
            word: VerdictWord::Exists,
            retry_ms: facts.decision.retry.map(milliseconds),
            lease: None,
            granted: None,
            shadow: false,
            ..verdict_line(&facts, true)
        }),
        other => undecided(other),
    }
}

/// Returns the outcome of a `takem`.
pub(crate) fn outcome_of_many(charged: ChargeResult) -> Outcome<'static> {
    match verdict(charged.all, false) {
        Outcome::Verdict(line) => {
            let at = (line.word == VerdictWord::Deny).then_some(charged.at);
            Outcome::Verdict(VerdictLine { at, ..line })
        }
        outcome => outcome,
    }
}

pub(crate) fn write_many_reply(outcome: &Outcome<'_>, out: &mut Vec<u8>) {
    match outcome {
        Outcome::Verdict(verdict) => encode_verdict(out, verdict),
        Outcome::NotFound => line(out, "NOT_FOUND"),
        _ => line(out, "SERVER_ERROR out of memory storing object"),
    }
}

/// Adds the holds on parents to the verdict line that `out` contains from `start` on. All have the
/// id of the request's own hold.
pub(crate) fn name_holds<'n>(
    outcome: &Outcome<'_>,
    limits: impl Iterator<Item = &'n str>,
    start: usize,
    out: &mut Vec<u8>,
) {
    use VerdictWord::{Allow, Part, Wait};
    if let Outcome::Verdict(VerdictLine { word: Allow | Wait | Part, lease: Some(id), .. }) =
        outcome
    {
        limits.for_each(|limit| name_hold(out, start, limit, *id));
    }
}

/// Returns whether the reply shows the cas unique, and the one that the state must have.
pub(crate) fn cas_of(cas: CasCondition) -> (bool, Option<u64>) {
    match cas {
        CasCondition::None => (false, None),
        CasCondition::Show => (true, None),
        CasCondition::Compare(unique) => (true, Some(unique)),
    }
}

/// Returns the reply to an `incrx` on a limited key. A key without a state has no usage.
pub(crate) fn applied(limited: TakeResult, delta: i64, show_cas: bool) -> Outcome<'static> {
    let line = |facts: &TakeInfo, exists: bool, applied: i64| {
        Outcome::Counted(CountLine {
            exists,
            value: facts.decision.used.cast_signed(),
            applied,
            ttl_ms: Some(milliseconds(facts.decision.reset)),
            cas: show_cas.then_some(facts.cas),
        })
    };
    match limited {
        // A refund floors at 0; it is applied even to a key that then still refuses.
        TakeResult::Decided(facts) if delta < 0 => {
            let given_back = facts.decision.granted.cast_signed();
            line(&facts, false, given_back.saturating_neg().max(delta))
        }
        TakeResult::Decided(facts) if facts.refuses() => line(&facts, false, 0),
        TakeResult::Decided(facts) => line(&facts, false, delta),
        TakeResult::Exists(facts) => line(&facts, true, 0),
        TakeResult::NotFound => Outcome::Counted(CountLine {
            exists: false,
            value: 0,
            applied: 0,
            ttl_ms: Some(0),
            cas: show_cas.then_some(0),
        }),
        TakeResult::Full => undecided(limited),
    }
}

/// Returns a take in the engine's terms, and whether the reply shows the cas unique.
pub(crate) fn units_of(take: &Take<'_>) -> (TakeParams, bool) {
    let (show_cas, compare_cas) = cas_of(take.cas);
    let units = TakeParams {
        cost: take.cost,
        part: take.part,
        peek: take.peek,
        // Nobody waits for what is spent already.
        wait: if take.debit { Some(0) } else { take.wait },
        hold: take.hold,
        compare_cas,
        client_flags: None,
        lease: None,
        debit: take.debit,
        of_first: false,
    };
    (units, show_cas)
}
