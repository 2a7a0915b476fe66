//! Every acknowledged count is there at the end, and no count is that was not requested.
//!
//! The final value of a counter is read from its copies. If all copies were lost it started again,
//! and only the upper bound holds.

use super::Case;
use crate::history::{Answer, Verb};

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    for (key, requests) in case.history.by_key("count:") {
        let counts = || requests.iter().filter(|request| request.verb == Verb::Incr);
        let values = counts().filter_map(|request| match request.answer {
            Answer::Value(value) => Some(value),
            _ => None,
        });
        let acknowledged = values.clone().count() as u64;
        let unknown = counts().filter(|request| request.is_unknown()).count() as u64;
        let highest = values.max().unwrap_or(0);
        if highest > acknowledged + unknown {
            found.push(format!(
                "{key}: answered {highest}, though {acknowledged} were acknowledged and {unknown} \
                 may have been done"
            ));
        }
        // Each acknowledged count has its value: with none lost, the other values up to the highest
        // belong to counts with an unknown outcome.
        if !case.was_lost(key) && highest < acknowledged {
            found.push(format!("{key}: {acknowledged} acknowledged, and only {highest} counted"));
        }
    }
}
