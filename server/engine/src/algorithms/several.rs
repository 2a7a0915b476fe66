//! Several policies on one key: each of them lets an attempt pass, or nothing is taken. A ban
//! refuses everything.
//!
//! Here: the states of all policies and the ban in one, and the decision over them. Not here: the
//! arithmetic of each policy (the other algorithms) and of the ban (`ban`), which policies go
//! together (`protocol`).
//!
//! ```text
//! for each policy, and for the ban: n as a varint | its own state n bytes
//! ```
//!
//! If every policy is idle, the whole state is empty. Every policy is first peeked at. One refusal
//! refuses all, and then nothing is taken, unless refused attempts count (`over`).

mod adopt;
mod ban;

pub(super) use self::adopt::adopt;
pub(crate) use self::adopt::counterparts;
use protocol::{Ban, LIST_POLICIES_MAX, Policy, PolicyList};

use super::{Attempt, Decision, Verdict};
use crate::time::Now;

/// Most parts of a state.
const PARTS_MAX: usize = LIST_POLICIES_MAX + 1;

/// The policies of a limit, and its ban.
pub(super) struct Several {
    policies: &'static [Policy],
    ban: Option<&'static Ban>,
}

/// Buffers that a caller keeps, so that a decision allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct SeveralScratch {
    /// The state of one policy.
    part: Vec<u8>,
    /// The new state of all.
    whole: Vec<u8>,
}

/// Greatest capacity in bytes of a buffer that is kept for the next decision.
const SPARE_BYTES_MAX: usize = 16 << 10;

impl SeveralScratch {
    /// One large state must not occupy its memory for ever.
    pub(crate) fn release_large(&mut self) {
        for buffer in [&mut self.part, &mut self.whole] {
            if buffer.capacity() > SPARE_BYTES_MAX {
                *buffer = Vec::new();
            }
        }
    }
}

/// A decision over several policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeveralDecision {
    /// The decision, with the figures of the policy at `at`; `reset` is the time until all policies
    /// are idle.
    pub(crate) decision: Decision,
    /// The position of the policy with the least remaining, or of the one that refuses for longest.
    pub(crate) at: usize,
    /// Whether a ban refuses.
    pub(crate) banned: bool,
    /// Nanoseconds until the policy at `at` is idle, and the ban over.
    pub(crate) reset: u64,
    /// The figures of the first policy; its verdict is its own.
    pub(crate) first: Decision,
}

/// The places of the parts in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Places([(usize, usize); PARTS_MAX]);

/// Whether these bytes are a state of the list.
pub(crate) fn is_state_of_several(list: PolicyList, state: &[u8]) -> bool {
    let several = Several::of(list);
    let has_ban = |places: Places| {
        let (start, end) = places.0[several.policies.len()];
        several.ban.is_none() || state.get(start..end).is_some_and(ban::is_state)
    };
    state.is_empty() || Places::read(state, several.parts()).is_some_and(has_ban)
}

impl Places {
    /// Finds `count` parts, which are the whole state; `None` for any other bytes.
    fn read(state: &[u8], count: usize) -> Option<Self> {
        let (mut places, mut at) = ([(0, 0); PARTS_MAX], 0);
        for place in places.iter_mut().take(count) {
            let (mut length, mut shift) = (0_usize, 0);
            loop {
                let byte = *state.get(at)?;
                at += 1;
                length |= usize::from(byte & 0x7F) << shift;
                shift += 7;
                if byte & 0x80 == 0 {
                    break;
                }
                // A state has fewer than 2^24 bytes.
                if shift > 21 {
                    return None;
                }
            }
            let end = at.checked_add(length).filter(|end| *end <= state.len())?;
            *place = (at, end);
            at = end;
        }
        (at == state.len()).then_some(Self(places))
    }

    /// Like [`Places::read`]; any other bytes count as idle policies.
    fn of(state: &[u8], count: usize) -> Self {
        Self::read(state, count).unwrap_or(Self([(0, 0); PARTS_MAX]))
    }

    /// Copies the part at a position into `part`.
    fn copy(&self, state: &[u8], at: usize, part: &mut Vec<u8>) {
        let (start, end) = self.0[at];
        part.clear();
        part.extend_from_slice(state.get(start..end).unwrap_or_default());
    }
}

/// Whether a part is a bucket that an attempt, even a refused one, lets begin to fill.
fn is_to_begin(policy: &Policy, part: &[u8]) -> bool {
    part.is_empty() && super::begins_unfilled(policy)
}

/// Appends a part to a state.
fn push(part: &[u8], whole: &mut Vec<u8>) {
    let mut length = part.len();
    while length >= 0x80 {
        whole.push(length as u8 | 0x80);
        length >>= 7;
    }
    whole.push(length as u8);
    whole.extend_from_slice(part);
}

impl Several {
    pub(super) fn of(list: PolicyList) -> Self {
        Self { policies: list.policies(), ban: list.ban() }
    }

    /// The number of parts of a state.
    fn parts(&self) -> usize {
        self.policies.len() + usize::from(self.ban.is_some())
    }

    /// Replaces the state by its parts after `change`, which gets the position of each, and
    /// `change_ban`.
    fn change(
        &self,
        state: &mut Vec<u8>,
        scratch: &mut SeveralScratch,
        mut change: impl FnMut(usize, &Policy, &mut Vec<u8>),
        mut change_ban: impl FnMut(&Ban, &mut Vec<u8>),
    ) {
        let SeveralScratch { part, whole } = scratch;
        let places = Places::of(state, self.parts());
        let mut is_idle = true;
        whole.clear();
        for (at, policy) in self.policies.iter().enumerate() {
            places.copy(state, at, part);
            change(at, policy, part);
            is_idle &= part.is_empty();
            push(part, whole);
        }
        if let Some(ban) = self.ban {
            places.copy(state, self.policies.len(), part);
            change_ban(ban, part);
            is_idle &= part.is_empty();
            push(part, whole);
        }
        state.clear();
        if !is_idle {
            state.extend_from_slice(whole);
        }
    }

    /// Passes a copy of each part to `look`.
    fn each(
        &self,
        state: &[u8],
        scratch: &mut SeveralScratch,
        mut look: impl FnMut(usize, &Policy, &mut Vec<u8>),
    ) {
        let places = Places::of(state, self.parts());
        for (at, policy) in self.policies.iter().enumerate() {
            places.copy(state, at, &mut scratch.part);
            look(at, policy, &mut scratch.part);
        }
    }

    /// Nanoseconds until the ban ends, and until its state is idle; 0 without one.
    fn ban_times(&self, state: &[u8], now: Now, scratch: &mut SeveralScratch) -> (u64, u64) {
        let Some(ban) = self.ban else { return (0, 0) };
        let part = &mut scratch.part;
        Places::of(state, self.parts()).copy(state, self.policies.len(), part);
        (ban::left(ban, part, now), ban::reset(ban, part, now))
    }

    /// Decides, and stores the new state unless the attempt is a peek.
    pub(super) fn decide(
        &self,
        state: &mut Vec<u8>,
        now: Now,
        attempt: &Attempt,
        scratch: &mut SeveralScratch,
    ) -> SeveralDecision {
        let peek = Attempt { peek: true, ..*attempt };
        let mut all = [Decision::without_state(0, attempt); LIST_POLICIES_MAX];
        let seen = &mut all[..self.policies.len()];
        let mut begins = false;
        self.each(state, scratch, |at, policy, part| {
            begins |= !attempt.peek && is_to_begin(policy, part);
            seen[at] = super::take(policy, part, now, &peek);
        });
        let (ban_left, ban_reset) = self.ban_times(state, now, scratch);
        let refuses = seen.iter().any(|one| one.verdict == Verdict::Deny);
        if refuses || ban_left > 0 {
            let counted = attempt.over && !attempt.peek;
            let notes = refuses && ban_left == 0 && !attempt.peek && attempt.cost > 0;
            let notes = notes && self.ban.is_some();
            if counted || notes || begins {
                let count = Attempt { part: false, ..*attempt };
                let take = |_: usize, policy: &Policy, part: &mut Vec<u8>| {
                    if counted {
                        super::take(policy, part, now, &count);
                    } else if is_to_begin(policy, part) {
                        super::take(policy, part, now, &Attempt { cost: 0, ..count });
                    }
                };
                self.change(state, scratch, take, |ban, part| {
                    if notes {
                        ban::refuse(ban, part, now);
                    }
                });
            }
            if counted || attempt.part {
                // The time until the whole cost passes.
                let whole = Attempt { part: false, ..peek };
                self.each(state, scratch, |at, policy, part| {
                    seen[at] = super::take(policy, part, now, &whole);
                });
            }
            let mut decided = refused(seen, counted);
            decided.decision.changed |= notes || begins;
            decided.add_ban(self.ban_times(state, now, scratch));
            return decided;
        }
        let parts = seen.iter().filter(|one| one.verdict == Verdict::Part);
        let granted = parts.map(|one| one.granted).fold(attempt.cost, u64::min);
        let charge = Attempt { cost: granted, part: false, ..*attempt };
        if !attempt.peek {
            let take = |at: usize, policy: &Policy, part: &mut Vec<u8>| {
                seen[at] = super::take(policy, part, now, &charge);
            };
            self.change(state, scratch, take, |ban, part| ban::tidy(ban, part, now));
        }
        let mut decided = allowed(seen, granted);
        decided.add_ban((0, ban_reset));
        if granted < attempt.cost {
            decided.decision.verdict = Verdict::Part;
            let rest = Attempt { cost: attempt.cost - granted, part: false, ..peek };
            let untaken = attempt.peek.then_some(Attempt { peek: false, ..charge });
            decided.decision.retry = self.retry(state, now, (untaken, &rest), scratch);
        }
        decided
    }

    /// Nanoseconds until `rest` passes; `None` for never. `untaken` is taken first, from a copy.
    fn retry(
        &self,
        state: &[u8],
        now: Now,
        (untaken, rest): (Option<Attempt>, &Attempt),
        scratch: &mut SeveralScratch,
    ) -> Option<u64> {
        let mut longest = 0;
        self.each(state, scratch, |_, policy, part| {
            if let Some(untaken) = &untaken {
                super::take(policy, part, now, untaken);
            }
            let look = super::take(policy, part, now, rest);
            longest = longest.max(look.retry.unwrap_or(u64::MAX));
        });
        Some(longest).filter(|retry| *retry < u64::MAX)
    }

    pub(super) fn take(&self, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> Decision {
        self.decide(state, now, attempt, &mut SeveralScratch::default()).decision
    }

    /// Gives units back in all policies; returns the number of the first.
    pub(super) fn refund(&self, state: &mut Vec<u8>, now: Now, units: u64) -> u64 {
        let mut of_first = 0;
        self.change(
            state,
            &mut SeveralScratch::default(),
            |at, policy, part| {
                let given = super::refund(policy, part, now, units);
                if at == 0 {
                    of_first = given;
                }
            },
            |_, _| (),
        );
        of_first
    }

    /// Gives back amounts that were taken at `taken`, one for each policy.
    pub(super) fn give_back(
        &self,
        state: &mut Vec<u8>,
        now: Now,
        amounts: &[u128; LIST_POLICIES_MAX],
        taken: i64,
    ) {
        self.change(
            state,
            &mut SeveralScratch::default(),
            |at, policy, part| super::amounts::give_back_one(policy, part, now, amounts[at], taken),
            |_, _| (),
        );
    }

    /// The usage under each policy, for [`super::used_of_each`].
    pub(super) fn used_of_each(
        &self,
        state: &[u8],
        now: Now,
        hash: u64,
        used: &mut [u128; LIST_POLICIES_MAX],
    ) {
        let places = Places::of(state, self.parts());
        for ((start, end), (policy, used)) in
            places.0.into_iter().zip(self.policies.iter().zip(used))
        {
            let part = state.get(start..end).unwrap_or_default();
            if let Some(limiter) = super::Limiter::of(policy) {
                *used = limiter.amount_used(part, now, hash);
            }
        }
    }

    pub(super) fn set_used(&self, state: &mut Vec<u8>, now: Now, used: u64) {
        self.change(
            state,
            &mut SeveralScratch::default(),
            |_, policy, part| {
                super::set_used(policy, part, now, used);
            },
            |_, _| (),
        );
    }

    pub(super) fn shift(&self, state: &mut Vec<u8>, by: i128) {
        self.change(
            state,
            &mut SeveralScratch::default(),
            |_, policy, part| {
                super::shift(policy, part, by);
            },
            |ban, part| ban::shift(ban, part, by),
        );
    }
}

impl SeveralDecision {
    /// Adds the nanoseconds until a ban ends and until its state is idle.
    fn add_ban(&mut self, (left, reset): (u64, u64)) {
        let decision = &mut self.decision;
        decision.reset = decision.reset.max(reset);
        if left > 0 {
            self.banned = true;
            self.reset = self.reset.max(left);
            decision.retry = decision.retry.map(|retry| retry.max(left));
        }
    }
}

/// The decision if one of the policies refuses: that of the one that does for longest.
fn refused(seen: &[Decision], counted: bool) -> SeveralDecision {
    let retry = |one: &Decision| match one.verdict {
        Verdict::Deny => one.retry.unwrap_or(u64::MAX),
        _ => 0,
    };
    let longest = (0..seen.len()).rev().max_by_key(|at| retry(&seen[*at]));
    let verdict = Verdict::Deny;
    of(seen, longest.unwrap_or(0), |one| {
        let retry = if one.verdict == verdict { one.retry } else { Some(0) };
        Decision { verdict, granted: 0, retry, changed: counted, counted, ..*one }
    })
}

/// The decision if all policies allow `granted` units: that of the one with the least remaining.
fn allowed(seen: &[Decision], granted: u64) -> SeveralDecision {
    let tightest = (0..seen.len()).min_by_key(|at| seen[*at].remaining).unwrap_or(0);
    let changed = seen.iter().any(|one| one.changed);
    let waits = seen.iter().filter(|one| one.verdict == Verdict::Wait);
    let longest = waits.map(|one| one.retry.unwrap_or(0)).max();
    let verdict = if longest.is_some() { Verdict::Wait } else { Verdict::Allow };
    let retry = Some(longest.unwrap_or(0));
    of(seen, tightest, |one| Decision { verdict, granted, retry, changed, counted: false, ..*one })
}

/// The decision that `make` makes of the one of the policy at `at`.
fn of(seen: &[Decision], at: usize, make: impl Fn(&Decision) -> Decision) -> SeveralDecision {
    let decision = make(&seen[at]);
    let all_idle = seen.iter().map(|one| one.reset).max().unwrap_or(0);
    SeveralDecision {
        decision: Decision { reset: all_idle, lease: None, ..decision },
        at,
        banned: false,
        reset: decision.reset,
        first: Decision { counted: decision.counted, ..seen[0] },
    }
}

/// Decides on a state of several policies.
pub(crate) fn take_several(
    list: PolicyList,
    state: &mut Vec<u8>,
    now: Now,
    attempt: &Attempt,
    scratch: &mut SeveralScratch,
) -> SeveralDecision {
    Several::of(list).decide(state, now, attempt, scratch)
}

/// The state of the policy at `place`.
#[cfg(test)]
pub(crate) fn part_of_several(list: PolicyList, state: &[u8], place: usize) -> &[u8] {
    let (start, end) = Places::of(state, Several::of(list).parts()).0[place];
    state.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests;
