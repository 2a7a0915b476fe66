//! Leases of a key's quota, and of its parents' with it.
//!
//! Not here: the grant (`engine`), keys that are charged together (`multi_key`).

use engine::{LeaseParams, LeaseResult, PolicyRef};
use protocol::Lease;
use tollgate_limits::{LimitMatch, LimitedKeyError, UNLIMITED};

use super::RequestPolicy;
use crate::commands::context::ExecContext;
use crate::commands::scratch::Scratch;
use crate::shards::NoRoom;

const NOT_LEASABLE: &str = "CLIENT_ERROR holders and places in a queue cannot be leased";

const LIST_NOT_LEASABLE: &str =
    "CLIENT_ERROR a limit with several policies or a ban cannot be leased";

impl ExecContext<'_> {
    /// The reply to a lease of policies that cannot be leased; those of parents are listed.
    pub(super) fn why_not_leasable(&self, meant: &RequestPolicy<'_>) -> &'static str {
        let has_list = match meant {
            RequestPolicy::Bound(found) => {
                found.policy().is_list()
                    || (self.charges_more(found) && self.scratch.charges.has_list())
            }
            RequestPolicy::Named { policy, .. } => policy.is_list(),
            RequestPolicy::Written(_) | RequestPolicy::Exempt => false,
        };
        if has_list { LIST_NOT_LEASABLE } else { NOT_LEASABLE }
    }

    /// Lists a key and its parents in `scratch.charges`. Returns the refusal of a lease of them.
    pub(crate) fn list_for_lease(&mut self, found: &LimitMatch<'_>) -> Option<String> {
        if let Err(error) = self.list_charges(found) {
            return Some(error.to_string());
        }
        let charges = &self.scratch.charges;
        if charges.rows().any(|row| row.has_rule()) {
            return Some(LimitedKeyError::NotLeasable.to_string());
        }
        if charges.is_leasable() {
            return None;
        }
        Some(if charges.has_list() { LIST_NOT_LEASABLE } else { NOT_LEASABLE }.to_owned())
    }

    /// Whether a policy is that of a limit whose weight or parents have rules of their own.
    fn is_ruled(&mut self, meant: &RequestPolicy<'_>) -> bool {
        let RequestPolicy::Bound(found) = meant else { return false };
        // A failure to list the keys is reported by the lease itself.
        self.charges_more(found)
            && self.list_charges(found).is_ok()
            && self.scratch.charges.rows().any(|row| row.has_rule())
    }

    /// Leases quota of a key and its parents.
    pub(super) fn lease(
        &mut self,
        key: &[u8],
        hash: u64,
        meant: &RequestPolicy<'_>,
        lease: &Lease<'_>,
    ) -> Result<LeaseResult, LimitedKeyError> {
        let &Lease { client, want, used, unused, weight, ttl, .. } = lease;
        if self.is_ruled(meant) {
            return Err(LimitedKeyError::NotLeasable);
        }
        let (max, peek) = (u64::MAX, false);
        let params = LeaseParams { client, want, used, unused, weight, ttl, max, peek };
        let policy_ref = match meant {
            RequestPolicy::Bound(found) if self.charges_more(found) => {
                self.list_charges(found)?;
                let charge_ctx = self.charge_context();
                let Scratch { charges, charge_scratch, .. } = &mut *self.scratch;
                let leased = charges.locked(charge_ctx, |engines| {
                    match charges.lease(charge_ctx, charge_scratch, engines, &params) {
                        Ok(LeaseResult::Full) => Err(NoRoom),
                        other => other,
                    }
                });
                return Ok(leased.unwrap_or(LeaseResult::Full));
            }
            RequestPolicy::Bound(found) => self.policy_of(found),
            RequestPolicy::Written(policy_id) => {
                PolicyRef::from(self.scratch.policy_cache.policy(*policy_id))
            }
            RequestPolicy::Named { policy, limit } => self.active_limits.policy_ref(*limit, policy),
            RequestPolicy::Exempt => PolicyRef::from(&UNLIMITED),
        };
        let leased = self.shards().with_room(self.now, hash, |engine| {
            match engine.lease(self.now, hash, key, Some(policy_ref), &params) {
                LeaseResult::Full => None,
                done => Some(done),
            }
        });
        Ok(leased.unwrap_or(LeaseResult::Full))
    }
}
