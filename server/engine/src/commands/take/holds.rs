//! The end of a hold: it is settled, or renewed.
//!
//! Here: estimates of any policy. Not here: taking one (`take`), holds of `concurrency`
//! (`algorithms/concurrency`).

use super::{HOLDS_MAX, Hold, TakeResult, hold_list, is_state};
use crate::algorithms::{self, Attempt};
use crate::engine::Engine;
use crate::policy_table::PolicyRef;
use crate::store::Full;
use crate::time::Now;

/// A hold granted by another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignHold {
    /// Its lease.
    pub lease: u64,
    /// Its units.
    pub units: u64,
    /// Nanoseconds after which it ends by itself.
    pub for_ns: u64,
}

impl Engine {
    /// Ends a hold at its true cost `actual`. If that is more than its units, the rest is taken,
    /// into debt if necessary. If it is less, the rest is given back as far as it still counts: the
    /// usage is then as if the take had had the true cost.
    pub fn settle(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        lease: u64,
        actual: u64,
    ) -> TakeResult {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return TakeResult::NotFound;
        }
        let mut loaded = self.load(at, None);
        if self.settle_hold(&mut loaded, now, lease) {
            return self.store_and_look(at, &mut loaded);
        }
        let Some(place) = loaded.holds.iter().position(|hold| hold.lease == lease) else {
            self.recycle(&mut loaded);
            return TakeResult::NotFound;
        };
        let Hold { units, taken, .. } = loaded.holds[place];
        let less = algorithms::amounts_of(&loaded.policy, units.saturating_sub(actual));
        let back = hold_list::settle(&mut loaded.holds, place, less);
        if actual < units {
            algorithms::give_back(&loaded.policy, &mut loaded.state, now, &back, taken);
        } else {
            // Units already used count even if they would not pass.
            let attempt = Attempt { cost: actual - units, over: true, hash, ..Attempt::default() };
            self.decide(&mut loaded, now, &attempt);
        }
        self.store_and_look(at, &mut loaded)
    }

    /// Counts units that were used without a take, even if they would not pass: into debt if
    /// necessary.
    pub fn charge(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: PolicyRef<'_>,
        units: u64,
    ) -> TakeResult {
        let at = self.at(now, hash, key);
        let mut loaded = self.load(at, Some(policy_ref));
        let attempt = Attempt { cost: units, over: true, hash, ..Attempt::default() };
        self.decide(&mut loaded, now, &attempt);
        self.store_and_look(at, &mut loaded)
    }

    /// Counts a hold that was granted without a take, even if it would not pass. An existing hold
    /// with this lease is renewed, and not counted twice.
    pub fn charge_hold(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: PolicyRef<'_>,
        hold: &ForeignHold,
    ) -> TakeResult {
        let ForeignHold { lease, units, for_ns } = *hold;
        let renewed = self.renew(now, hash, key, lease, for_ns);
        if renewed != TakeResult::NotFound {
            return renewed;
        }
        let at = self.at(now, hash, key);
        let at = match self.room_to_hold(at) {
            Ok(at) => at,
            Err(Full) => return TakeResult::Full,
        };
        let mut loaded = self.load(at, Some(policy_ref));
        if !self.give_hold(&mut loaded, now, hold) {
            let attempt = Attempt { cost: units, over: true, hash, ..Attempt::default() };
            self.decide(&mut loaded, now, &attempt);
            if loaded.holds.len() < HOLDS_MAX {
                loaded.holds.push(Hold::begin(lease, units, now, for_ns));
            }
        }
        self.store_and_look(at, &mut loaded)
    }

    /// Lets a hold last `for_ns` nanoseconds from now; [`TakeResult::NotFound`] if there is no such
    /// hold.
    pub fn renew(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        lease: u64,
        for_ns: u64,
    ) -> TakeResult {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return TakeResult::NotFound;
        }
        let mut loaded = self.load(at, None);
        let end = now.mono.0.saturating_add(for_ns);
        let known = if self.renew_hold(&mut loaded, now, lease, for_ns) {
            true
        } else if let Some(hold) = loaded.holds.iter_mut().find(|hold| hold.lease == lease) {
            hold.end = end;
            true
        } else {
            false
        };
        if !known {
            self.recycle(&mut loaded);
            return TakeResult::NotFound;
        }
        self.store_and_look(at, &mut loaded)
    }
}
