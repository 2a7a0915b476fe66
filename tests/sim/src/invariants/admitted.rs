//! No limit admits more than its policy, whichever node is primary and whatever its clock shows.
//!
//! The time of a partition runs up to a twentieth faster than true time, because clocks run wrong
//! and are corrected: so a true span counts as a twentieth longer.

use std::time::Duration;

use super::Case;
use crate::history::{Answer, Request};

/// The most that a limit admits in a span.
fn most(key: &str, span: Duration) -> Option<u64> {
    let span = span.as_secs_f64() * 1.05;
    Some(match key {
        "log:long" if span < 600.0 => 40,
        "log:short" if span < 1.0 => 8,
        "fixed:short" if span < 2.0 => 16,
        #[expect(clippy::cast_sign_loss, reason = "spans are positive")]
        "bucket" => 10 + (10.0 * span).ceil() as u64,
        _ => return None,
    })
}

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    for key in ["log:long", "log:short", "fixed:short", "bucket"] {
        if case.was_lost(key) {
            continue;
        }
        let mut allowed: Vec<&Request> = case
            .history
            .requests
            .iter()
            .filter(|request| request.key == key && request.answer == Answer::Yes)
            .collect();
        allowed.sort_by_key(|request| request.ended_at);
        for first in &allowed {
            // The requests that certainly began from here on, the earliest end first.
            let later = allowed.iter().filter(|request| request.began >= first.began);
            let mut count = 0;
            let mut worst = None;
            for last in later {
                count += 1;
                let span = last.ended.saturating_sub(first.began);
                if most(key, span).is_some_and(|most| count > most) {
                    worst = Some((count, span));
                }
            }
            if let Some((count, span)) = worst {
                found.push(format!(
                    "{key}: {count} admitted within {span:?} from {:?}",
                    first.began
                ));
                break;
            }
        }
    }
}
