//! There are never more live holders than the limit admits.
//!
//! A holder is certainly live from the reply to its request until it sends its settle, or until the
//! hold may have expired.

use super::Case;
use crate::client::{HOLD, HOLDERS};
use crate::history::{Answer, Verb};

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    if case.was_lost("hold") {
        return;
    }
    // A partition's time may run a twentieth faster than true time.
    let least = HOLD.mul_f64(0.95);
    let mut spans = Vec::new();
    let requests: Vec<_> =
        case.history.requests.iter().filter(|request| request.key == "hold").collect();
    for (at, request) in requests.iter().enumerate() {
        let (Verb::Hold, Answer::Value(name)) = (request.verb, request.answer) else { continue };
        let client = request.client;
        let settled = requests[at + 1..].iter().find(|later| later.client == client);
        // The hold may have begun as early as its request.
        let mut end = request.began + least;
        if let Some(settled) = settled.filter(|later| later.verb == Verb::Settle) {
            end = end.min(settled.began);
        }
        if end > request.ended {
            spans.push((request.ended, end, name));
        }
    }
    for (start, _, _) in &spans {
        let live = spans.iter().filter(|(from, to, _)| from <= start && start < to).count();
        if live > HOLDERS {
            found.push(format!("hold: {live} holders at {start:?}"));
            return;
        }
    }
}
