//! Charges several keys in one step: all of them or none.
//!
//! Here: the keys to charge together (a key and its parents, the keys of a `takem`), the decision
//! over all of them, and its one reply. Not here: locks (`shards`), one key (`engine`).
//!
//! First every key is peeked at; one refusal refuses all. Then each is charged. If one finds no
//! room after all, the earlier ones are rolled back, and the whole charge is repeated after other
//! shards made room.

mod lease;
mod result;

use std::ops::Range;

use engine::algorithms::{Decision, Verdict};
use engine::{Now, PolicyRef, SavedState, TakeInfo, TakeParams, TakeResult};
use protocol::{Algorithm, COUNT_MAX, Policy};

pub(crate) use self::result::{Adjustment, ChargeResult};
use crate::commands::decisions::DecisionContext;
use crate::commands::native::refusal;
use crate::counters::Counters;
use crate::limits::{ActiveLimits, LimitMatch, LimitedKeyError, Limits, Parents};
use crate::shards::{KEYS_TOGETHER_MAX, LockedShards, NoRoom, Shards};

/// One key of a charge set.
#[derive(Debug)]
struct KeyCharge {
    /// Its range in [`ChargeSet::keys`].
    key: Range<usize>,
    hash: u64,
    policy: Policy,
    /// The index of its limit.
    limit: usize,
    /// The index of the request's key that it is charged for.
    member: usize,
    /// The number of times that the request charges it.
    times: u64,
}

/// Keys that are charged together. One set is reused for all requests.
#[derive(Debug, Default)]
pub(crate) struct ChargeSet {
    rows: Vec<KeyCharge>,
    keys: Vec<u8>,
    parents: Parents,
}

/// Scratch memory of a charge: the result and the saved state of each key. Reused for all requests.
#[derive(Debug, Default)]
pub(crate) struct ChargeScratch {
    facts: Vec<TakeInfo>,
    saved: Vec<SavedState>,
    bytes: Vec<u8>,
}

/// Most bytes of saved states that a worker keeps between requests.
const SAVED_BYTES_KEPT: usize = 64 << 10;

/// The context of a charge.
#[derive(Clone, Copy)]
pub(crate) struct ChargeContext<'a> {
    pub(crate) now: Now,
    pub(crate) shards: &'a Shards,
    pub(crate) active_limits: &'a ActiveLimits,
    /// The worker that decides, and its counters.
    pub(crate) worker: usize,
    pub(crate) counters: &'a Counters,
}

/// A listed key, for charging it elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargeRow<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    /// The index of its limit.
    pub(crate) limit: usize,
    /// Refused attempts are counted.
    pub(crate) counts_refused: bool,
    /// The limit counts holders (`concurrency:`).
    pub(crate) holds: bool,
    /// The index of the request's key that it is charged for.
    pub(crate) member: usize,
    /// The number of times that the request charges it.
    pub(crate) times: u64,
}

impl ChargeSet {
    /// Removes all keys.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.keys.clear();
    }

    /// Adds a limited key and its parents; a key that is already listed is charged once more.
    ///
    /// # Errors
    ///
    /// A parent's key cannot be derived, or there are too many keys.
    pub(crate) fn add(
        &mut self,
        limits: &Limits,
        shards: &Shards,
        found: &LimitMatch<'_>,
        member: usize,
    ) -> Result<(), LimitedKeyError> {
        let mut parents = std::mem::take(&mut self.parents);
        let listed = if found.has_parents() { limits.parents(found, &mut parents) } else { Ok(()) };
        let added = listed.and_then(|()| {
            let limit = found.limit().index();
            self.push(shards, found.key(), found.policy(), limit, member)?;
            if !found.has_parents() {
                return Ok(());
            }
            parents
                .iter()
                .try_for_each(|row| self.push(shards, row.key, row.policy, row.limit, member))
        });
        self.parents = parents;
        added
    }

    fn push(
        &mut self,
        shards: &Shards,
        key: &[u8],
        policy: &Policy,
        limit: usize,
        member: usize,
    ) -> Result<(), LimitedKeyError> {
        let keys = &self.keys;
        let is_it = |row: &&mut KeyCharge| row.limit == limit && &keys[row.key.clone()] == key;
        if let Some(row) = self.rows.iter_mut().find(is_it) {
            row.times += 1;
            return Ok(());
        }
        if self.rows.len() == KEYS_TOGETHER_MAX {
            return Err(LimitedKeyError::TooManyParents);
        }
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        let (key, hash) = (start..self.keys.len(), shards.hash(key));
        self.rows.push(KeyCharge { key, hash, policy: *policy, limit, member, times: 1 });
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
        charge_scratch.facts.clear();
        let mut granted = take.cost;
        for (index, row) in self.rows.iter().enumerate() {
            let attempt = TakeParams {
                cost: row.cost(take.cost),
                peek: true,
                compare_cas: take.compare_cas.filter(|_| index == 0),
                ..*take
            };
            let looked = engines.engine(row.hash).take(
                charge_ctx.now,
                row.hash,
                self.key(row),
                Some(charge_ctx.policy_ref(row)),
                &attempt,
            );
            let TakeResult::Decided(facts) = looked else {
                return Ok(ChargeResult::undecided(looked));
            };
            if facts.decision.verdict == Verdict::Part {
                granted = granted.min(facts.decision.granted);
            }
            charge_scratch.facts.push(facts);
        }
        if charge_scratch.facts.iter().any(TakeInfo::refuses) {
            return Ok(self.refuse(charge_ctx, charge_scratch, engines, take));
        }
        if take.peek {
            return Ok(ChargeResult::allowed(&charge_scratch.facts, granted, take.cost));
        }
        let holds = take.hold.is_some() || self.rows.iter().any(KeyCharge::holds_by_itself);
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
            charge_ctx.note(row, self.key(row), facts, &charge);
            if granted < take.cost {
                let rest = TakeParams { cost: take.cost - granted, peek: true, ..charge };
                let engine = engines.engine(row.hash);
                let looked = engine.take(
                    charge_ctx.now,
                    row.hash,
                    self.key(row),
                    Some(charge_ctx.policy_ref(row)),
                    &rest,
                );
                if let TakeResult::Decided(look) = looked {
                    facts.decision.retry = look.decision.retry;
                }
            }
        }
        Ok(ChargeResult::allowed(&charge_scratch.facts, granted, take.cost))
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
            let key = self.key(row);
            charge_scratch.saved.push(engine.save(
                charge_ctx.now,
                row.hash,
                key,
                &mut charge_scratch.bytes,
            ));
            let attempt = TakeParams {
                cost: row.cost(take.cost),
                client_flags: take.client_flags.filter(|_| index == 0),
                ..*take
            };
            let taken = engine.take(
                charge_ctx.now,
                row.hash,
                key,
                Some(charge_ctx.policy_ref(row)),
                &attempt,
            );
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

    /// Reports the key that refuses for longest: after that time all keys allow. Charges the
    /// refused attempt where the policy counts those.
    fn refuse(
        &self,
        charge_ctx: ChargeContext<'_>,
        charge_scratch: &mut ChargeScratch,
        engines: &mut LockedShards<'_>,
        take: &TakeParams,
    ) -> ChargeResult {
        let mut worst: Option<(usize, u64)> = None;
        for (index, (row, facts)) in self.rows.iter().zip(&mut charge_scratch.facts).enumerate() {
            if facts.refuses() {
                let attempt = TakeParams { cost: row.cost(take.cost), ..*take };
                charge_ctx.note(row, self.key(row), facts, &attempt);
                if !take.peek {
                    engines.engine(row.hash).note_refused(charge_ctx.now, row.hash, self.key(row));
                }
                let retry = facts.decision.retry.unwrap_or(u64::MAX);
                if worst.is_none_or(|(_, longest)| retry > longest) {
                    worst = Some((index, retry));
                }
            }
            // Only admitted holders count.
            let notes = facts.refuses() && row.policy.ban().is_some();
            if (row.policy.over || take.debit || notes) && !take.peek && !row.holds_by_itself() {
                let attempt = TakeParams {
                    cost: row.cost(take.cost),
                    compare_cas: None,
                    hold: None,
                    ..*take
                };
                let engine = engines.engine(row.hash);
                let counted = engine.take(
                    charge_ctx.now,
                    row.hash,
                    self.key(row),
                    Some(charge_ctx.policy_ref(row)),
                    &attempt,
                );
                if let TakeResult::Decided(counted) = counted {
                    let counts = row.policy.over || take.debit;
                    facts.at = counted.at;
                    facts.decision = Decision {
                        verdict: facts.decision.verdict,
                        counted: counts && counted.decision.changed,
                        ..counted.decision
                    };
                }
            }
        }
        let index = worst.map_or(0, |(index, _)| index);
        ChargeResult::refused(&charge_scratch.facts, index, self.rows[index].member)
    }

    /// Whether a listed key has several policies.
    pub(crate) fn has_list(&self) -> bool {
        self.rows.iter().any(|row| row.policy.is_list())
    }

    /// Returns the listed keys in order.
    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = ChargeRow<'_>> {
        self.rows.iter().map(|row| ChargeRow {
            key: self.key(row),
            hash: row.hash,
            limit: row.limit,
            counts_refused: row.policy.over && !row.holds_by_itself(),
            holds: row.holds_by_itself(),
            member: row.member,
            times: row.times,
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
            let done = change.apply(engine, now, hash, key, Some(charge_ctx.policy_ref(row)));
            match done {
                // Nothing is changed yet. A later key without room stays unchanged, which admits
                // less.
                TakeResult::Full if result.is_none() => return Err(NoRoom),
                TakeResult::Decided(_) if result.is_none() => result = Some(done),
                _ => {}
            }
        }
        Ok(result.unwrap_or(TakeResult::NotFound))
    }
}

impl KeyCharge {
    fn cost(&self, cost: u64) -> u64 {
        cost.saturating_mul(self.times).min(COUNT_MAX)
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
    /// Removes the saved states. Those of logs and of many holders are large, so their memory is
    /// released.
    fn forget_saved(&mut self) {
        self.saved.clear();
        self.bytes.clear();
        self.bytes.shrink_to(SAVED_BYTES_KEPT);
    }
}
