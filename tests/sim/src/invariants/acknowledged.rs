//! Every count that was acknowledged is there at the end, and nothing is that was not asked.
//!
//! What a counter holds at the end is read from its copies. Where all copies were lost it began anew,
//! and only the upper bound holds.

use super::Case;
use crate::history::{Answer, Verb};

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    for (key, requests) in case.history.by_key("count:") {
        let counts = || requests.iter().filter(|request| request.verb == Verb::Incr);
        let told = counts().filter_map(|request| match request.answer {
            Answer::Value(value) => Some(value),
            _ => None,
        });
        let acknowledged = told.clone().count() as u64;
        let unknown = counts().filter(|request| request.is_unknown()).count() as u64;
        let highest = told.max().unwrap_or(0);
        if highest > acknowledged + unknown {
            found.push(format!(
                "{key}: answered {highest}, though {acknowledged} were acknowledged and {unknown} \
                 may have been done"
            ));
        }
        // Each acknowledged count has its value: with none lost, the values up to the highest that
        // nobody was told are of counts with an unknown outcome.
        if !case.was_lost(key) && highest < acknowledged {
            found.push(format!("{key}: {acknowledged} acknowledged, and only {highest} counted"));
        }
    }
}
