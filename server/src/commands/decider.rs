//! The pairs that `info` and `each` add to a verdict line: what decided on a request, and the
//! figures of each of its keys.
//!
//! Not here: the decision over several keys (`multi_key`), the spelling of the pairs (`protocol`).

use std::cmp::Reverse;

use arrayvec::ArrayVec;
use engine::algorithms::{Decision, Verdict};
use engine::{CachedReply, Decider, Now, TakeInfo};
use protocol::{
    DecidingLimit, ID_BYTES_MAX, KeyFigures, Policy, TAKE_KEYS_MAX, VerdictLine, VerdictWord,
    add_groups, name_decider,
};

use crate::commands::context::ExecContext;
use crate::commands::limited_keys::milliseconds;
use crate::commands::multi_key::ChargeSet;
use crate::commands::native::recall;
use crate::shards::Shards;

/// The pairs that a request asks for beyond the usual ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AskedPairs {
    /// `info`: the limit that decided, and its period.
    pub(crate) info: bool,
    /// `each`: the number of keys of the request; 0 without it.
    pub(crate) keys: usize,
}

/// The charge that decided on a request, and the part of its limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    /// The index of the charge.
    pub(crate) row: usize,
    /// The policy of several, or the ban.
    pub(crate) part: Option<Decider>,
}

/// Bits of the charge in [`Decided::code`]: a request has fewer than 256 charges.
const ROW_BITS: u32 = 8;
const _: () = assert!(crate::shards::KEYS_TOGETHER_MAX <= 1 << ROW_BITS);

impl Decided {
    /// A number to keep beside a cached reply.
    pub(crate) fn code(self) -> usize {
        self.row | usize::from(self.part.map_or(0, Decider::code)) << ROW_BITS
    }

    /// The inverse of [`Decided::code`].
    pub(crate) fn of_code(code: usize) -> Self {
        let part = u8::try_from(code >> ROW_BITS).ok().and_then(Decider::of_code);
        Self { row: code & ((1 << ROW_BITS) - 1), part }
    }

    /// The milliseconds of the period of the policy that decided; `policy` is that of the charge.
    pub(crate) fn period_ms(self, policy: &Policy) -> u64 {
        milliseconds(policy.period_nanos(self.part.and_then(Decider::index)))
    }
}

/// The decision on one key of a `takem`, its parents included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyDecision {
    pub(crate) figures: KeyFigures,
    pub(crate) decided: Decided,
}

/// The decision on each key of a `takem`; `None` for a key without a limit.
pub(crate) type KeyDecisions = ArrayVec<Option<KeyDecision>, TAKE_KEYS_MAX>;

/// Returns the decision on each of `keys` keys. `rows` are the charges in their order, each with
/// the bits of the keys that it is charged for.
pub(crate) fn verdicts_of<'f>(
    keys: usize,
    rows: &(impl Iterator<Item = (u16, &'f TakeInfo)> + Clone),
) -> KeyDecisions {
    let of = |key: usize| {
        let is_for = move |bits: u16| bits >> key & 1 == 1;
        let row = |(row, (bits, facts)): (usize, (u16, &'f TakeInfo))| {
            is_for(bits).then_some(KeyRow { row, sharers: bits.count_ones(), facts })
        };
        verdict_of(&rows.clone().enumerate().filter_map(row))
    };
    (0..keys.min(TAKE_KEYS_MAX)).map(of).collect()
}

/// A charge of one key.
#[derive(Clone, Copy)]
struct KeyRow<'f> {
    row: usize,
    /// The number of keys that it is charged for. A parent has at least as many as its child, so a
    /// key comes before its parents.
    sharers: u32,
    facts: &'f TakeInfo,
}

/// Returns the decision over the charges of one key: that of the one that refuses for longest, or
/// of the one with the least remaining.
fn verdict_of<'f>(rows: &(impl Iterator<Item = KeyRow<'f>> + Clone)) -> Option<KeyDecision> {
    let wait = |one: &KeyRow<'_>| one.facts.decision.retry.unwrap_or(u64::MAX);
    let refusing = rows.clone().filter(|one| one.facts.refuses());
    let (decider, longest) = if let Some(worst) =
        refusing.max_by_key(|one| (wait(one), Reverse((one.sharers, one.row))))
    {
        (worst, wait(&worst))
    } else {
        let counted = rows.clone().filter(|one| !one.facts.shadow);
        let waiting = counted.clone().filter(|one| one.facts.decision.verdict == Verdict::Wait);
        let longest = waiting.map(|one| wait(&one)).max().unwrap_or(0);
        let left = |one: &KeyRow<'_>| (one.facts.decision.remaining, one.sharers, one.row);
        (counted.min_by_key(left).or_else(|| rows.clone().next())?, longest)
    };
    let KeyRow { row, facts, .. } = decider;
    let Decision { limit, remaining, reset, .. } = facts.decision;
    let retry_ms = (longest < u64::MAX).then(|| milliseconds(longest));
    let figures = KeyFigures { limit, remaining, retry_ms, reset_ms: milliseconds(reset) };
    Some(KeyDecision { figures, decided: Decided { row, part: facts.at } })
}

/// Adds the decision on each key to the verdict line that `out` contains from `start` on.
/// `decider_of` returns the limit of a charge, if `info` asks for it.
pub(crate) fn write_verdicts<'n>(
    verdicts: &KeyDecisions,
    start: usize,
    out: &mut Vec<u8>,
    decider_of: impl Fn(Decided) -> Option<DecidingLimit<'n>>,
) {
    if !verdicts.is_empty() {
        let group = |one: KeyDecision| (one.figures, decider_of(one.decided));
        add_groups(out, start, verdicts.iter().map(|verdict| verdict.map(group)));
    }
}

impl ExecContext<'_> {
    /// The limit of a charge that `scratch.charges` lists.
    fn decider_of(&self, decided: Decided) -> Option<DecidingLimit<'_>> {
        let row = self.scratch.charges.rows().nth(decided.row)?;
        let name = self.active_limits.limits().get(row.limit)?.name();
        Some(DecidingLimit { name: Some(name), period_ms: decided.period_ms(row.policy) })
    }

    /// Adds the pairs that a request on the keys of `scratch.charges` asks for to the verdict line
    /// that `out` contains from `start` on; without `info`, a refusal names its limit.
    pub(crate) fn add_pairs(
        &self,
        asked: AskedPairs,
        decided: Option<Decided>,
        start: usize,
        out: &mut Vec<u8>,
    ) {
        if !asked.info {
            let limit = decided.and_then(|decided| self.scratch.charges.limit(decided.row));
            self.name_refusal(limit, start, out);
        } else if let Some(decider) = decided.and_then(|decided| self.decider_of(decided)) {
            name_decider(out, start, &decider);
        }
        if asked.keys > 0 {
            let verdicts = &self.scratch.charge_scratch.verdicts;
            write_verdicts(verdicts, start, out, |decided| {
                self.decider_of(decided).filter(|_| asked.info)
            });
        }
    }
}

/// The id under which the decision on a key of a request with an id is kept. A client's id has no
/// blank.
fn id_of_key(id: &[u8], key: usize) -> ArrayVec<u8, { ID_BYTES_MAX + 2 }> {
    id.iter().copied().take(ID_BYTES_MAX).chain([b' ', key as u8]).collect()
}

/// Keeps the decision on each key beside the reply to a request with an id.
pub(crate) fn keep_verdicts(
    shards: &Shards,
    now: Now,
    (charges, id): (&ChargeSet, &[u8]),
    verdicts: &KeyDecisions,
) {
    let (first, hash) = charges.first();
    for (index, verdict) in verdicts.iter().enumerate() {
        let Some(KeyDecision { figures, decided }) = *verdict else { continue };
        let KeyFigures { limit, remaining, retry_ms, reset_ms } = figures;
        let line = VerdictLine {
            word: VerdictWord::Allow,
            limit,
            remaining,
            retry_ms,
            reset_ms,
            cas: None,
            lease: None,
            granted: None,
            at: None,
            shadow: false,
            degraded: false,
            ban: false,
        };
        let key_id = shards.key_id(hash, first, &id_of_key(id, index));
        shards.keep_answer(now, key_id, CachedReply::Verdict(line, Some(decided.code())));
    }
}

/// Returns the decisions that [`keep_verdicts`] kept; none if the first request did not ask for
/// them, or one of them is forgotten already.
pub(crate) fn recall_verdicts(
    shards: &Shards,
    now: Now,
    (charges, id): (&ChargeSet, &[u8]),
    keys: usize,
) -> KeyDecisions {
    let (first, hash) = charges.first();
    let of = |index: usize| {
        let key_id = shards.key_id(hash, first, &id_of_key(id, index));
        let (line, code) = recall(shards, now, key_id)?;
        let VerdictLine { limit, remaining, retry_ms, reset_ms, .. } = line;
        let figures = KeyFigures { limit, remaining, retry_ms, reset_ms };
        Some(KeyDecision { figures, decided: Decided::of_code(code?) })
    };
    let verdicts: KeyDecisions = (0..keys.min(TAKE_KEYS_MAX)).map(of).collect();
    let members = charges.rows().fold(0, |bits, row| bits | row.members);
    let is_whole = |(index, verdict): (usize, &Option<KeyDecision>)| {
        verdict.is_some() || members >> index & 1 == 0
    };
    if verdicts.iter().enumerate().all(is_whole) { verdicts } else { KeyDecisions::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_comes_back_as_it_was() {
        let parts = (1..=9).map(|code| Decider::of_code(code).expect("it is one"));
        for part in [None].into_iter().chain(parts.map(Some)) {
            for row in [0, 1, crate::shards::KEYS_TOGETHER_MAX - 1] {
                let decided = Decided { row, part };
                assert_eq!(Decided::of_code(decided.code()), decided);
            }
        }
        assert_eq!(Decided::of_code(usize::MAX), Decided { row: 255, part: None });
    }

    #[test]
    fn ids_of_keys_are_no_clients_ids() {
        let longest = [b'x'; ID_BYTES_MAX];
        assert_eq!(id_of_key(&longest, 15).len(), ID_BYTES_MAX + 2);
        assert_ne!(id_of_key(b"a", 0), id_of_key(b"a", 1));
        assert!(id_of_key(b"a", 3).contains(&b' '));
    }
}
