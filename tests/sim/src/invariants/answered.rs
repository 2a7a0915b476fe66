//! While one link is cut, all requests are answered through all nodes.

use std::time::Duration;

use crate::history::{Answer, History};

/// The time within which nodes route around a cut.
const HEALS_WITHIN: Duration = Duration::from_secs(3);

/// Checks the requests within the cuts, each of which has a beginning and an end.
pub(crate) fn check(history: &History, cuts: &[(Duration, Duration)], found: &mut Vec<String>) {
    for (from, to) in cuts {
        let is_within =
            |began: Duration, ended: Duration| began >= *from + HEALS_WITHIN && ended <= *to;
        let within = history.requests.iter().filter(|it| is_within(it.began, it.ended));
        for request in within {
            if matches!(request.answer, Answer::NotApplied | Answer::Unknown) {
                found.push(format!(
                    "{:?} of {} at {:?} was not answered, {:?} after a link was cut",
                    request.verb,
                    request.key,
                    request.began,
                    request.began.saturating_sub(*from)
                ));
            }
        }
    }
}
