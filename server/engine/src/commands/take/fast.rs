//! The fast path of a take: a state is read, decided on and written in place.
//!
//! Here: takes from an existing state without holds and leases, under the requested policy. The
//! state may be past its deadline, because a key with few takes is idle again before the next: its
//! slot is then reused. Not here: all other takes, which take the general path (`take`) with the
//! same result.

use std::hint::cold_path;

use protocol::Policy;

use super::loaded_state::release_large;
use super::{LimitedKey, TakeInfo, TakeParams, TakeResult, is_general, only_watches};
use crate::algorithms::{self, Attempt, Decision, FastPath, PlainBucket, TwoWindows, Verdict};
use crate::engine::{Engine, LimitParts, Uniques};
use crate::policy_table::{LimitState, PolicyRef, PolicyTable};
use crate::store::arena::Slot;
use crate::store::item::{Content, ItemFlag, ItemHeader, ItemMut};
use crate::store::state_bytes::StateBytes;
use crate::store::{Full, ItemChange, Located};
use crate::time::{Deadline, Nanos, Now};

impl Engine {
    /// Like [`Engine::take`] of `cost` units, without any other option: the common case. `WAITS`: a
    /// queue may ask the caller to wait, for as long as its policy says; else it admits at once or
    /// not at all. Passes the result to `report` by reference; returns false if nothing was
    /// decided. `state` is scratch memory of the caller, because scratch memory of the shard would
    /// move from processor to processor.
    pub fn take_units<const WAITS: bool>(
        &mut self,
        now: Now,
        (hash, key): (u64, &[u8]),
        policy_ref: PolicyRef<'_>,
        cost: u64,
        state: &mut Vec<u8>,
        mut report: impl FnMut(&TakeInfo),
    ) -> bool {
        let wait = if WAITS { None } else { Some(0) };
        let take = TakeParams { cost, wait, ..TakeParams::default() };
        let limited_key = LimitedKey { now, hash, key, policy_ref: Some(policy_ref) };
        if let Some(taken) = self.take_in_place(limited_key, &take, Some(state), &mut report) {
            return taken.is_ok();
        }
        self.take_units_general(limited_key, (cost, wait), &mut report)
    }

    #[cold]
    fn take_units_general(
        &mut self,
        limited_key: LimitedKey<'_>,
        (cost, wait): (u64, Option<u64>),
        report: &mut dyn FnMut(&TakeInfo),
    ) -> bool {
        let LimitedKey { now, hash, key, policy_ref } = limited_key;
        if self.uniques.given.is_some() {
            self.mark_before_general = Some(self.mark_before_change(hash, key));
        }
        let at = self.at(now, hash, key);
        let take = TakeParams { cost, wait, ..TakeParams::default() };
        let TakeResult::Decided(facts) = self.take_general(at, policy_ref, &take) else {
            return false;
        };
        report(&facts);
        true
    }

    /// Takes from an existing state, expired or not, and reports the decision. Returns `None`, with
    /// nothing changed, if the general path is needed. `state` is scratch; `None` for that of the
    /// shard.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is a tenth fewer instructions for `take_units`")]
    pub(super) fn take_in_place(
        &mut self,
        limited_key: LimitedKey<'_>,
        take: &TakeParams,
        state: Option<&mut Vec<u8>>,
        report: &mut impl FnMut(&TakeInfo),
    ) -> Option<Result<(), Full>> {
        let LimitedKey { now, hash, key, policy_ref } = limited_key;
        let is_simple =
            take.hold.is_none() && take.compare_cas.is_none() && take.client_flags.is_none();
        if !is_simple {
            cold_path();
            return None;
        }
        self.flush_if_due(now);
        let LimitParts { policies, encoded, .. } = &mut self.limits;
        let (policies, uniques) = (&*policies, &mut self.uniques);
        let (changed_at, state) = (&mut self.changed_at, state.unwrap_or(encoded));
        let mut resized = None;
        let anew_at = &mut resized;
        let taking = TakeInPlace {
            now,
            hash,
            policy_ref,
            take,
            policies,
            uniques,
            changed_at,
            state,
            report,
            resized_at: anew_at,
        };
        let taken = self.store.change(hash, key, taking)??;
        if let Some(is_unfetched) = taken.expired {
            cold_path();
            self.store.losses.note_expired(is_unfetched, true);
        }
        if let Some((former, cas)) = taken.uniques {
            self.store.note_cas(former, cas);
        }
        let mut written = Ok(());
        if let Some(ResizedState { slot, policy_id, deadline, facts }) = resized {
            cold_path();
            self.uniques.is_change_unplaced = true;
            state.splice(..0, [0, 0]);
            let header = ItemHeader { cas: facts.cas, deadline, ..self.store.item(slot).header() };
            let content = Content::State(LimitState { policy_id, body: state });
            let at = Located { now, hash, key, slot: Some(slot) };
            written = self.store.write(at, header, content).map(|_| ());
            if written.is_ok() {
                report(&facts);
            }
        }
        release_large(state);
        Some(written)
    }
}

/// A take from the state of an existing item, reported as soon as it is decided. The result is
/// `None` if the general path is needed.
struct TakeInPlace<'a, F> {
    now: Now,
    hash: u64,
    policy_ref: Option<PolicyRef<'a>>,
    take: &'a TakeParams,
    policies: &'a PolicyTable,
    uniques: &'a mut Uniques,
    changed_at: &'a mut Option<Slot>,
    state: &'a mut Vec<u8>,
    report: &'a mut F,
    resized_at: &'a mut Option<ResizedState>,
}

/// The effect on an item.
struct TakeEffect {
    /// The cas unique before and after, if it was changed.
    uniques: Option<(u64, u64)>,
    /// Set if the item was past its deadline; true if it had not been fetched.
    expired: Option<bool>,
}

/// A state of another length under the same policy: the caller must write the item, and then
/// report.
struct ResizedState {
    slot: Slot,
    policy_id: u32,
    deadline: Deadline,
    facts: TakeInfo,
}

impl<F: FnMut(&TakeInfo)> ItemChange for TakeInPlace<'_, F> {
    type Answer = Option<TakeEffect>;

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is most of `take_in_place`")]
    fn make(self, slot: Slot, mut item: ItemMut<'_>) -> Self::Answer {
        if !slot.is_limit_state() {
            cold_path();
            return None;
        }
        let now = self.now;
        let TakeParams { cost, part, peek, wait, debit, .. } = *self.take;
        let former = item.as_item();
        // Neither holds nor leases.
        let Some(LimitState { policy_id: number, body: [0, 0, own @ ..] }) = former.state() else {
            cold_path();
            return None;
        };
        let Some(owned) = self.policies.get(number) else {
            cold_path();
            return None;
        };
        let policy = &owned.policy;
        let is_past = former.deadline().is_past(now);
        let is_asked_for = match self.policy_ref {
            Some(policy_ref) => policy_ref.limit == owned.limit && policy_ref.policy == policy,
            None => !is_past,
        };
        if !is_asked_for || is_general(policy) {
            cold_path();
            return None;
        }
        let former = StateBefore {
            policy,
            cas: former.cas(),
            client_flags: if is_past { 0 } else { former.client_flags() },
            expired: is_past.then(|| !former.has(ItemFlag::FETCHED)),
            own_bytes: own.len(),
            behind_state: former.bytes_to_flags(),
        };
        let own = if is_past { &[][..] } else { own };
        let (over, hash) = (policy.over || debit, self.hash);
        let attempt = Attempt { cost, part, peek, over, wait, hold: None, lease: None, hash };
        let Self { uniques, changed_at, state, report, .. } = self;
        let output = TakeOutput { now, peek, slot, uniques, changed_at, report };
        if let Some((decision, short)) = former.short::<PlainBucket>(own, now, &attempt) {
            let write = |item: &mut ItemMut<'_>| item.set_state_end(former.behind_state, short);
            return Some(former.keep(item, decision, output, write));
        }
        if let Some((decision, short)) = former.short::<TwoWindows>(own, now, &attempt) {
            let write = |item: &mut ItemMut<'_>| item.set_state_end(former.behind_state, short);
            return Some(former.keep(item, decision, output, write));
        }
        state.clear();
        state.extend_from_slice(own);
        // A copy: the argument is passed by reference and lies in memory, and without the copy the
        // original would too.
        let attempt = Attempt { ..attempt };
        let decision = algorithms::take_general(policy, state, now, &attempt);
        let stays = decision.changed && state.len() == former.own_bytes;
        if (is_past && !stays) || (decision.changed && state.is_empty()) {
            cold_path();
            return None;
        }
        if decision.changed && !stays {
            cold_path();
            let deadline = deadline(now, &decision);
            let facts = former.facts(&mut item, decision, peek, output.uniques);
            let facts = TakeInfo { cas: output.uniques.next(None), ..facts };
            *self.resized_at = Some(ResizedState { slot, policy_id: number, deadline, facts });
            return Some(TakeEffect { uniques: None, expired: None });
        }
        let write = |item: &mut ItemMut<'_>| item.set_state_end(former.behind_state, &state[..]);
        Some(former.keep(item, decision, output, write))
    }
}

/// The receivers of a decision: the item's next cas unique, and the caller's report.
struct TakeOutput<'a, F> {
    now: Now,
    peek: bool,
    slot: Slot,
    uniques: &'a mut Uniques,
    changed_at: &'a mut Option<Slot>,
    report: &'a mut F,
}

/// The state before a take.
struct StateBefore<'a> {
    policy: &'a Policy,
    cas: u64,
    client_flags: u32,
    /// Set if the state is past its deadline; true if it has not been fetched.
    expired: Option<bool>,
    /// Bytes of the algorithm's state.
    own_bytes: usize,
    behind_state: usize,
}

impl StateBefore<'_> {
    /// The decision of an algorithm's fast path, if the policy has this fast path and the state
    /// keeps its length.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a decision is not copied")]
    fn short<W: FastPath>(
        &self,
        own: &[u8],
        now: Now,
        attempt: &Attempt,
    ) -> Option<(Decision, W::State)> {
        let (decision, state) = W::of(self.policy)?.take(own, now, attempt)?;
        let stays = decision.changed && state.len() == self.own_bytes;
        (stays || !decision.changed && self.expired.is_none()).then_some((decision, state))
    }

    /// Stores and reports a decision: the state stays unchanged, or `write` overwrites it.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a decision is not copied")]
    fn keep(
        &self,
        mut item: ItemMut<'_>,
        decision: Decision,
        output: TakeOutput<'_, impl FnMut(&TakeInfo)>,
        write: impl FnOnce(&mut ItemMut<'_>),
    ) -> TakeEffect {
        let TakeOutput { now, peek, slot, uniques, changed_at, report } = output;
        let deadline = deadline(now, &decision);
        let mut facts = self.facts(&mut item, decision, peek, uniques);
        if facts.decision.changed {
            facts.cas = uniques.next_in_place(slot, changed_at);
            item.set_cas(facts.cas);
            item.set_deadline(deadline);
            write(&mut item);
        }
        report(&facts);
        let uniques = facts.decision.changed.then_some((self.cas, facts.cas));
        TakeEffect { uniques, expired: self.expired }
    }

    /// Marks the item, and returns the result to report.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "a decision is not copied")]
    fn facts(
        &self,
        item: &mut ItemMut<'_>,
        mut decision: Decision,
        peek: bool,
        uniques: &mut Uniques,
    ) -> TakeInfo {
        if self.expired.is_some() {
            item.clear_marks();
        }
        if decision.verdict == Verdict::Deny && !peek {
            uniques.is_change_unplaced = !item.as_item().has(ItemFlag::REFUSED);
            item.set_mark(ItemFlag::REFUSED);
        }
        let shadow = only_watches(self.policy, &mut decision);
        let Self { cas, client_flags, .. } = *self;
        TakeInfo { decision, cas, client_flags, has_state: true, shadow, at: None }
    }
}

/// The deadline of a state.
#[inline]
fn deadline(now: Now, decision: &Decision) -> Deadline {
    Deadline::not_before(Nanos(now.mono.0.saturating_add(decision.reset)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{EngineOptions, KeyHasher, MemoryCap, Now};

    const POLICIES: [&str; 13] = [
        "bucket:5/1s",
        "bucket:5/1s,debt=3,over",
        "bucket:9/2s,init=2",
        "bucket:4/1s,interval,shadow",
        "gcra:5/1s,burst=3",
        "leaky:5/1s,capacity=4,wait=300ms",
        "fixed:5/1s",
        "sliding:200/2s",
        "sliding:6/1s,slices=4",
        "log:4/1s",
        "concurrency:3,hold=1s",
        "unlimited",
        "fixed:3/1s;bucket:5/1s",
    ];

    fn engine() -> Engine {
        let memory_cap = Arc::new(MemoryCap::new(64 << 20));
        Engine::new(KeyHasher::new([1, 2, 3, 4]), memory_cap, EngineOptions::default())
    }

    /// Milliseconds: some keys are idle before their next take, most are not.
    fn any_gap() -> impl Strategy<Value = u64> {
        prop_oneof![4 => 0_u64..60, 1 => 0_u64..900]
    }

    proptest! {
        #[test]
        fn both_ways_answer_and_keep_the_same(
            has_flags: bool,
            steps in prop::collection::vec(
                (0..POLICIES.len(), 0..POLICIES.len(), 0_u64..7, any_gap(), any::<[bool; 4]>()), 1..200,
            ),
        ) {
            let policies = POLICIES.map(|word| Policy::parse_list(word.as_bytes()).expect(word));
            let (mut fast, mut general) = (engine(), engine());
            let mut state = b"of another key".to_vec();
            let mut ms = 1000;
            for (policy, index, cost, later, [part, peek, remembered, holds]) in steps {
                ms += later;
                let (now, key) = (Now::at_ms(ms), format!("key{index}"));
                let hash = KeyHasher::new([1, 2, 3, 4]).hash(key.as_bytes());
                let hold = (holds && later < 9).then_some(500_000_000);
                let client_flags = (has_flags && holds && later == 9).then_some(7);
                let take = TakeParams { cost, part, peek, hold, client_flags, ..TakeParams::default() };
                // Mostly one policy for each key, so that states are found again.
                let policy = if later == 7 { &policies[policy] } else { &policies[index] };
                let policy_ref = (!remembered).then_some(PolicyRef { policy, limit: 0 });
                let one = match policy_ref {
                    Some(policy_ref) if take == (TakeParams { cost, ..TakeParams::default() }) => {
                        let mut result = None;
                        let at = (hash, key.as_bytes());
                        let report = |facts: &TakeInfo| result = Some(TakeResult::Decided(*facts));
                        fast.take_units::<true>(now, at, policy_ref, cost, &mut state, report);
                        result.expect("there is room")
                    }
                    policy_ref => fast.take(now, hash, key.as_bytes(), policy_ref, &take),
                };
                let at = general.at(now, hash, key.as_bytes());
                let other = general.take_general(at, policy_ref, &take);
                prop_assert_eq!(one, other);
                let [one, other] = [&fast, &general].map(|engine| {
                    let item = engine.store.find_item(hash, key.as_bytes()).map(|(_, item)| item);
                    item.map(|item| (item.client_flags(), item.has(ItemFlag::REFUSED), item.has(ItemFlag::FETCHED)))
                });
                prop_assert_eq!(one, other);
                // A reused item keeps its room for client flags.
                prop_assert!(has_flags || fast.item_bytes() == general.item_bytes());
                prop_assert_eq!(fast.losses(), general.losses());
                // A key that was idle keeps its slot or gets the last one.
                let [one, other] = [&fast, &general].map(|engine| {
                    let mut records: Vec<_> = engine.limit_records(now).collect();
                    records.sort_by_key(|record| record.key);
                    records
                });
                prop_assert_eq!(one, other);
            }
        }
    }
}
