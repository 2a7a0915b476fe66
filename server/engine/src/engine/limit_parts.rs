//! The parts of a shard that limits need beside its store.
//!
//! Here: the ids of policies, the numbers of leases, buffers. Not here: the table of policies
//! (`policy_table`), the states (`commands/take`).

use std::hint::cold_path;

use protocol::LIST_POLICIES_MAX;

use super::Engine;
use crate::algorithms::{SeveralDecision, SeveralScratch, instant, shifted};
use crate::policy_table::{INLINE, OwnedPolicy, POLICY_BYTES, PolicyTable, put_inline};
use crate::time::Now;

/// The parts of a shard that limits need beside its store: the policies of its states, and buffers
/// that are reused from command to command.
#[repr(C)]
pub(crate) struct LimitParts {
    /// The first field, for its place in memory ([`Engine`]).
    pub(crate) policies: PolicyTable,
    last_lease: u64,
    /// Whether states keep the usage since the take of each hold ([`Engine::keep_hold_usage`]).
    pub(crate) keeps_hold_usage: bool,
    /// The buffers of the holds and of the state of a command.
    pub(crate) spare: (Vec<Hold>, Vec<u8>),
    pub(crate) encoded: Vec<u8>,
    /// The buffers of a decision over several policies.
    pub(crate) several: SeveralScratch,
    /// The last decision over several policies.
    pub(crate) decided: Option<SeveralDecision>,
}

impl LimitParts {
    /// The end of the bytes that a lookup reads.
    pub(crate) const LOOKUP_END: usize = PolicyTable::LOOKUP_END;
}

impl Default for LimitParts {
    fn default() -> Self {
        Self {
            policies: PolicyTable::new(),
            last_lease: 0,
            keeps_hold_usage: true,
            spare: (Vec::new(), Vec::new()),
            encoded: Vec::new(),
            several: SeveralScratch::default(),
            decided: None,
        }
    }
}

/// An estimate that waits to be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) lease: u64,
    pub(crate) units: u64,
    /// The instant on the monotonic clock at which the hold ends.
    pub(crate) end: u64,
    /// The instant of the take, which may have been before this process began; `i64::MAX` if it is
    /// not known.
    pub(crate) taken: i64,
    /// For each policy the least usage since the take until that of the next hold, in amounts of
    /// [`used_of_each`](crate::algorithms::used_of_each); `u128::MAX` if it is not known.
    pub(crate) least: [u128; LIST_POLICIES_MAX],
}

impl Hold {
    /// A hold of which the time of the take is not known.
    pub(crate) const fn untimed(lease: u64, units: u64, end: u64) -> Self {
        Self { lease, units, end, taken: i64::MAX, least: [u128::MAX; LIST_POLICIES_MAX] }
    }

    /// A hold that is taken now, for `for_ns` nanoseconds.
    pub(crate) fn begin(lease: u64, units: u64, now: Now, for_ns: u64) -> Self {
        let hold = Self::untimed(lease, units, now.mono.0.saturating_add(for_ns));
        Self { taken: instant(now), ..hold }
    }

    /// The same hold on a clock on which its instants are `by` nanoseconds later.
    pub(crate) fn shifted(self, by: i128) -> Self {
        let end = i128::from(self.end).saturating_add(by).max(0);
        let taken = if self.taken == i64::MAX { i64::MAX } else { shifted(self.taken, by) };
        Self { end: u64::try_from(end).unwrap_or(u64::MAX), taken, ..self }
    }

    /// Lowers the least usage to `used` where that is less.
    pub(crate) fn lower(&mut self, used: &[u128; LIST_POLICIES_MAX]) {
        for (least, used) in self.least.iter_mut().zip(used) {
            *least = (*least).min(*used);
        }
    }
}

impl Engine {
    /// Returns a lease that no other hold has, on any key of any shard: it counts up from the
    /// clock, so that a lease granted before a restart names no later hold. In a store of 4096
    /// shards it stays below 2^53, which every client language represents, until the year 2039.
    /// After [`Engine::begin_at`] it is the number passed there.
    pub fn next_lease(&mut self, now: Now) -> u64 {
        if let Some(unique) = self.uniques.given {
            return unique.get();
        }
        let (shard, shards) = self.shard();
        let by_clock = now.unix_ms.saturating_mul(shards).saturating_add(shard);
        self.limits.last_lease = by_clock.max(self.limits.last_lease.saturating_add(shards));
        self.limits.last_lease
    }

    /// Whether states keep the time and the usage since the take of each hold, by which
    /// [`Engine::settle`] gives back no unit of a window that is over. Nodes of an older version
    /// cannot read such states. The default is true.
    pub fn keep_hold_usage(&mut self, keeps_hold_usage: bool) {
        self.limits.keeps_hold_usage = keeps_hold_usage;
    }

    /// Most policies stored by id at a time.
    pub(crate) fn policies_max(&self) -> usize {
        self.policy_bytes_max() / POLICY_BYTES
    }

    /// The id of a policy; [`INLINE`] if there is no room for it, and then the policy is appended
    /// to `body`, with which a state begins.
    pub(crate) fn policy_id(&mut self, owned: &OwnedPolicy, body: &mut Vec<u8>) -> u32 {
        let rules_max = self.policies_max();
        let (states, unused) = self.store.unused_policies();
        let number = self.limits.policies.number(owned, rules_max, states, unused);
        if number == INLINE {
            cold_path();
            put_inline(&owned.policy, body);
        }
        number
    }

    /// Removes the policies without states.
    pub(crate) fn drop_unused_policies(&mut self) {
        let (states, unused) = self.store.unused_policies();
        self.limits.policies.drop_unused(states, unused);
    }

    /// Passes every limit that has states, and their number, to `each`; a limit may be passed
    /// twice.
    pub fn active_keys(&self, mut each: impl FnMut(u32, u64)) {
        for (limit, number) in self.limits.policies.limits() {
            let states = self.store.states_by_policy().get(number as usize).copied().unwrap_or(0);
            if states > 0 {
                each(limit, u64::from(states));
            }
        }
    }

    /// Most bytes that the policies of this shard's states take beside the store.
    fn policy_bytes_max(&self) -> usize {
        let share = self.store.limit_bytes() / 8;
        share / usize::try_from(self.options.shards).unwrap_or(usize::MAX).max(1)
    }
}
