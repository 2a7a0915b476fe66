//! Options of a take that its policies cannot carry out.

use engine::TakeParams;
use protocol::{Algorithm, Policy};

/// The reply where `wait=` would have no effect.
const NEVER_WAITS: &str = "CLIENT_ERROR take: wait= needs a policy that waits: bucket, \
                                        gcra, or leaky with wait=; wait=0 goes with any";

/// The reply to a debit of holders, whose units are held and not spent.
const NO_DEBIT: &str = "CLIENT_ERROR take: debit does not go with concurrency";

/// Returns the reply to a take with an option that its policies cannot carry out: a wait that none
/// of them grants, or a debit of holders.
pub(crate) fn refusal<'p>(
    take: &TakeParams,
    mut policies: impl Iterator<Item = &'p Policy> + Clone,
) -> Option<&'static str> {
    let waits = take.wait.is_some_and(|wait| wait > 0);
    if waits && !policies.clone().any(Policy::accepts_wait) {
        return Some(NEVER_WAITS);
    }
    let is_held = |policy: &Policy| matches!(policy.algorithm, Algorithm::Concurrency { .. });
    (take.debit && policies.any(is_held)).then_some(NO_DEBIT)
}
