//! Charges several keys in one step: all of them or none.
//!
//! Here: the keys to charge together (a key and its parents, the keys of a `takem`), the decision
//! over all of them, and its one reply. Not here: locks (`shards`), one key (`engine`).
//!
//! First every key is peeked at; one refusal refuses all. Then each is charged. If one finds no
//! room after all, the earlier ones are rolled back, and the whole charge is repeated after other
//! shards made room.

mod charge_row;
mod lease;
mod refuse;
mod result;

use std::ops::Range;

use engine::algorithms::Verdict;
use engine::{Now, PolicyRef, SavedState, TakeInfo, TakeParams, TakeResult};
use protocol::{Algorithm, Policy};
use tollgate_limits::{ChargeCost, LimitMatch, LimitedKeyError, Limits, Parents};

pub(crate) use self::charge_row::{ChargeRow, hold_of};
pub(crate) use self::refuse::deny_beyond;
pub(crate) use self::result::{Adjustment, ChargeResult};
use crate::commands::decider::{KeyDecisions, verdicts_of};
use crate::commands::decisions::DecisionContext;
use crate::commands::native::refusal;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::shards::{CommandShards, KEYS_TOGETHER_MAX, LockedShards, NoRoom, Shards};

/// One key of a charge set.
#[derive(Debug)]
struct KeyCharge {
    /// Its range in [`ChargeSet::keys`].
    key: Range<usize>,
    hash: u64,
    policy: Policy,
    /// The index of its limit.
    limit: usize,
    /// The index of the first key of the request that it is charged for.
    member: usize,
    /// A bit for each of them.
    members: u16,
    cost: ChargeCost,
    /// Nanoseconds for which the cost is held, if the limit of its child says so.
    hold: Option<u64>,
}

/// Keys that are charged together. One set is reused for all requests.
#[derive(Debug, Default)]
pub(crate) struct ChargeSet {
    rows: Vec<KeyCharge>,
    keys: Vec<u8>,
    /// Taken out while a key and its parents are added; in a box, so that only a pointer is moved.
    parents: Option<Box<Parents>>,
}

/// Scratch memory of a charge: the result and the saved state of each key. Reused for all requests.
#[derive(Debug, Default)]
pub(crate) struct ChargeScratch {
    facts: Vec<TakeInfo>,
    saved: Vec<SavedState>,
    bytes: Vec<u8>,
    /// The decision on each key of a `takem … each`.
    pub(crate) verdicts: KeyDecisions,
}

/// Most bytes of saved states that a worker keeps between requests.
const SAVED_BYTES_KEPT: usize = 64 << 10;

/// The context of a charge.
#[derive(Clone, Copy)]
pub(crate) struct ChargeContext<'a> {
    pub(crate) now: Now,
    pub(crate) shards: CommandShards<'a>,
    pub(crate) active_limits: &'a ActiveLimits,
    /// The worker that decides, and its counters.
    pub(crate) worker: usize,
    pub(crate) counters: &'a Counters,
}

impl ChargeSet {
    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
    }

    /// Returns whether nothing is to be charged.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a limited key and its parents, at a cost for each of them; a key that is already listed
    /// is charged once more.
    ///
    /// # Errors
    ///
    /// A parent's key cannot be derived, or there are too many keys.
    pub(crate) fn add(
        &mut self,
        limits: &Limits,
        shards: &Shards,
        found: &LimitMatch<'_>,
        (member, cost): (usize, ChargeCost),
    ) -> Result<(), LimitedKeyError> {
        let limit = found.limit().index();
        let own = (member, found.cost().for_units(cost), None);
        if !found.has_parents() {
            return self.push(shards, found.key(), (found.policy(), limit), own);
        }
        let mut parents = self.parents.take().unwrap_or_default();
        let added = limits.parents(found, &mut parents).and_then(|()| {
            self.push(shards, found.key(), (found.policy(), limit), own)?;
            parents.iter().try_for_each(|row| {
                let rule = (member, row.cost.for_units(cost), row.hold);
                self.push(shards, row.key, (row.policy, row.limit), rule)
            })
        });
        self.parents = Some(parents);
        added
    }

    fn push(
        &mut self,
        shards: &Shards,
        key: &[u8],
        (policy, limit): (&Policy, usize),
        (member, cost, hold): (usize, ChargeCost, Option<u64>),
    ) -> Result<(), LimitedKeyError> {
        let keys = &self.keys;
        let is_it = |row: &&mut KeyCharge| row.limit == limit && &keys[row.key.clone()] == key;
        if let Some(row) = self.rows.iter_mut().find(is_it) {
            row.cost.add(cost);
            row.hold = row.hold.max(hold);
            row.members |= 1 << member;
            return Ok(());
        }
        if self.rows.len() == KEYS_TOGETHER_MAX {
            return Err(LimitedKeyError::TooManyParents);
        }
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        let (key, hash) = (start..self.keys.len(), shards.hash(key));
        let members = 1 << member;
        self.rows.push(KeyCharge {
            key,
            hash,
            policy: *policy,
            limit,
            member,
            members,
            cost,
            hold,
        });
        Ok(())
    }

    fn hashes(&self) -> impl Iterator<Item = u64> + Clone + '_ {
        self.rows.iter().map(|row| row.hash)
    }

    fn key(&self, row: &KeyCharge) -> &[u8] {
        &self.keys[row.key.clone()]
    }

    /// Returns the refusal of a take with an option that the keys' policies cannot carry out.
    pub(crate) fn refusal(&self, take: &TakeParams) -> Option<&'static str> {
        refusal(take, self.rows.iter().map(|row| &row.policy))
    }

    /// Returns the index of the limit of the charge `row`.
    pub(crate) fn limit(&self, row: usize) -> Option<usize> {
        self.rows.get(row).map(|row| row.limit)
    }

    /// Returns the first key and its hash.
    pub(crate) fn first(&self) -> (&[u8], u64) {
        self.rows.first().map_or((&[], 0), |row| (self.key(row), row.hash))
    }

    /// Runs `change` with the shards of all keys locked. If it finds no room, other shards make
    /// room and it runs again.
    pub(crate) fn locked<T>(
        &self,
        charge_ctx: ChargeContext<'_>,
        change: impl FnMut(&mut LockedShards<'_>) -> Result<T, NoRoom>,
    ) -> Option<T> {
        charge_ctx.shards.with_locked(charge_ctx.now, &self.hashes(), change)
    }

    /// Takes from all keys or from none.
    pub(crate) fn take(
        &self,
        charge_ctx: ChargeContext<'_>,
        charge_scratch: &mut ChargeScratch,
        engines: &mut LockedShards<'_>,
        take: &TakeParams,
    ) -> Result<ChargeResult, NoRoom> {
        let Some(first) = self.rows.first() else {
            return Ok(ChargeResult::undecided(TakeResult::NotFound));
        };
        let granted = match self.look(charge_ctx, charge_scratch, engines, take) {
            Ok(granted) => granted,
            Err(undecided) => return Ok(ChargeResult::undecided(undecided)),
        };
        if charge_scratch.facts.iter().any(TakeInfo::refuses) {
            return Ok(self.refuse(charge_ctx, charge_scratch, engines, take));
        }
        if take.peek {
            return Ok(ChargeResult::allowed(&charge_scratch.facts, granted, take.cost));
        }
        let holds = self.rows.iter().any(|row| row.holds_by_itself() || row.hold(take).is_some());
        let lease = holds.then(|| engines.engine(first.hash).next_lease(charge_ctx.now));
        let charge = TakeParams { cost: granted, part: false, compare_cas: None, lease, ..*take };
        let done = self.charge(charge_ctx, charge_scratch, engines, &charge)?;
        if let Some(undecided) = done {
            return Ok(ChargeResult::undecided(undecided));
        }
        if charge_scratch.facts.iter().any(TakeInfo::refuses) {
            // Two limits count under one key, and the second found the units of the first taken.
            return Ok(self.refuse(charge_ctx, charge_scratch, engines, take));
        }
        for (row, facts) in self.rows.iter().zip(&mut charge_scratch.facts) {
            let attempt = TakeParams { cost: row.cost.capped(granted), ..charge };
            charge_ctx.note(row, self.key(row), facts, &attempt);
            if granted < take.cost {
                let cost = row.cost.capped(take.cost - granted);
                let rest = TakeParams { cost, peek: true, ..charge };
                let looked = self.decide(charge_ctx, engines, row, &rest);
                if let TakeResult::Decided(look) = looked {
                    facts.decision.retry = look.decision.retry;
                }
            }
        }
        Ok(ChargeResult::allowed(&charge_scratch.facts, granted, take.cost))
    }

    /// Peeks at all keys. Returns the units that all of them grant; `Err`: one was not decided on.
    fn look(
        &self,
        charge_ctx: ChargeContext<'_>,
        charge_scratch: &mut ChargeScratch,
        engines: &mut LockedShards<'_>,
        take: &TakeParams,
    ) -> Result<u64, TakeResult> {
        charge_scratch.facts.clear();
        let mut granted = take.cost;
        for (index, row) in self.rows.iter().enumerate() {
            let attempt = TakeParams {
                cost: row.cost.capped(take.cost),
                peek: true,
                part: take.part && row.cost.is_scaled(),
                hold: row.hold(take),
                compare_cas: take.compare_cas.filter(|_| index == 0),
                ..*take
            };
            let looked = self.decide(charge_ctx, engines, row, &attempt);
            let TakeResult::Decided(mut facts) = looked else {
                return Err(looked);
            };
            if row.cost.of(take.cost).is_none() {
                deny_beyond(&mut facts, row.policy.shadow);
            } else if facts.decision.verdict == Verdict::Part {
                let paid = row.cost.paid_by(facts.decision.granted, take.cost);
                if paid == 0 {
                    // The units that are left do not make one unit of the request.
                    let whole = TakeParams { part: false, ..attempt };
                    if let TakeResult::Decided(all) = self.decide(charge_ctx, engines, row, &whole)
                    {
                        facts = all;
                    }
                } else {
                    granted = granted.min(paid);
                }
            }
            charge_scratch.facts.push(facts);
        }
        Ok(granted)
    }

    /// Takes from one key, or peeks at it.
    fn decide(
        &self,
        charge_ctx: ChargeContext<'_>,
        engines: &mut LockedShards<'_>,
        row: &KeyCharge,
        attempt: &TakeParams,
    ) -> TakeResult {
        let policy_ref = Some(charge_ctx.policy_ref(row));
        let engine = engines.engine(row.hash);
        engine.take(charge_ctx.now, row.hash, self.key(row), policy_ref, attempt)
    }

    /// Charges one key after the other. Rolls all of them back unless each one allows.
    fn charge(
        &self,
        charge_ctx: ChargeContext<'_>,
        charge_scratch: &mut ChargeScratch,
        engines: &mut LockedShards<'_>,
        take: &TakeParams,
    ) -> Result<Option<TakeResult>, NoRoom> {
        charge_scratch.forget_saved();
        for (index, row) in self.rows.iter().enumerate() {
            let engine = engines.engine(row.hash);
            charge_scratch.saved.push(engine.save(
                charge_ctx.now,
                row.hash,
                self.key(row),
                &mut charge_scratch.bytes,
            ));
            // Only a limit that reports has let it pass, and reports it as refused: not charged.
            let Some(cost) = row.cost.of(take.cost) else { continue };
            let attempt = TakeParams {
                cost,
                hold: row.hold(take),
                client_flags: take.client_flags.filter(|_| index == 0),
                ..*take
            };
            let taken = self.decide(charge_ctx, engines, row, &attempt);
            let agreed = matches!(taken, TakeResult::Decided(facts) if !facts.refuses());
            if let TakeResult::Decided(facts) = taken {
                charge_scratch.facts[index] = facts;
            }
            if agreed {
                continue;
            }
            for (row, saved) in self.rows.iter().zip(&charge_scratch.saved).rev() {
                let engine = engines.engine(row.hash);
                engine.rollback(
                    charge_ctx.now,
                    row.hash,
                    self.key(row),
                    saved,
                    &charge_scratch.bytes,
                );
            }
            return match taken {
                TakeResult::Decided(_) => Ok(None),
                TakeResult::Full => Err(NoRoom),
                undecided => Ok(Some(undecided)),
            };
        }
        Ok(None)
    }

    /// Whether a listed key has several policies.
    pub(crate) fn has_list(&self) -> bool {
        self.rows.iter().any(|row| row.policy.is_list())
    }

    /// Returns the listed keys in order.
    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = ChargeRow<'_>> + Clone {
        self.rows.iter().map(|row| ChargeRow {
            key: self.key(row),
            hash: row.hash,
            limit: row.limit,
            counts_refused: row.policy.over && !row.holds_by_itself(),
            holds_by_itself: row.holds_by_itself(),
            hold: row.hold,
            member: row.member,
            members: row.members,
            cost: row.cost,
            shadow: row.policy.shadow,
            policy: &row.policy,
        })
    }

    /// Applies a change that cannot be refused to every key that has the state. Returns the result
    /// of the first such key.
    pub(crate) fn change(
        &self,
        charge_ctx: ChargeContext<'_>,
        engines: &mut LockedShards<'_>,
        change: Adjustment,
    ) -> Result<TakeResult, NoRoom> {
        let now = charge_ctx.now;
        let mut result = None;
        for row in &self.rows {
            let (engine, hash, key) = (engines.engine(row.hash), row.hash, self.key(row));
            let of_key = change.of_key(row.cost);
            let done = of_key.apply(engine, now, hash, key, Some(charge_ctx.policy_ref(row)));
            match done {
                // Nothing is changed yet. A later key without room stays unchanged, which admits
                // less.
                TakeResult::Full if result.is_none() => return Err(NoRoom),
                TakeResult::Decided(_) if result.is_none() => {
                    result = Some(change.in_request(row.cost, done));
                }
                _ => {}
            }
        }
        Ok(result.unwrap_or(TakeResult::NotFound))
    }
}

impl KeyCharge {
    /// The nanoseconds for which a take holds the cost.
    fn hold(&self, take: &TakeParams) -> Option<u64> {
        hold_of((self.hold, self.holds_by_itself()), self.cost, take)
    }

    fn holds_by_itself(&self) -> bool {
        matches!(self.policy.algorithm, Algorithm::Concurrency { .. })
    }
}

impl ChargeContext<'_> {
    fn policy_ref<'r>(&self, row: &'r KeyCharge) -> PolicyRef<'r> {
        self.active_limits.policy_ref(row.limit, &row.policy)
    }

    fn note(&self, row: &KeyCharge, key: &[u8], facts: &TakeInfo, take: &TakeParams) {
        let decision_ctx = DecisionContext {
            active_limits: self.active_limits,
            counters: self.counters,
            worker: self.worker,
            unix_ms: self.now.unix_ms,
        };
        decision_ctx.note(row.limit, (row.hash, key), facts, take);
    }
}

impl ChargeScratch {
    /// Derives the decision on each of `keys` keys from those on the charges of `charges`.
    pub(crate) fn decide_keys(&mut self, charges: &ChargeSet, keys: usize) {
        let rows = charges.rows.iter().map(|row| row.members).zip(&self.facts);
        self.verdicts = verdicts_of(keys, &rows);
    }

    /// Returns the decisions of the last charge set that was decided, in the order of its keys.
    pub(crate) fn facts(&self) -> &[TakeInfo] {
        &self.facts
    }

    /// Removes the saved states. Those of logs and of many holders are large, so their memory is
    /// released.
    fn forget_saved(&mut self) {
        self.saved.clear();
        self.bytes.clear();
        self.bytes.shrink_to(SAVED_BYTES_KEPT);
    }
}
