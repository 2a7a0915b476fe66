//! The parts of a shard that limits need beside its store.
//!
//! Here: the ids of policies, the numbers of leases, buffers. Not here: the table of policies
//! (`policy_table`), the states (`commands/take`).

use std::hint::cold_path;

use super::Engine;
use crate::algorithms::{SeveralDecision, SeveralScratch};
use crate::policy_table::{INLINE, OwnedPolicy, POLICY_BYTES, PolicyTable, put_inline};
use crate::time::Now;

/// The parts of a shard that limits need beside its store: the policies of its states, and buffers
/// that are reused from command to command.
#[repr(C)]
pub(crate) struct LimitParts {
    /// The first field, for its place in memory ([`Engine`]).
    pub(crate) policies: PolicyTable,
    last_lease: u64,
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
