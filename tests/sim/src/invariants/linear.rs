//! The replies to clients have an order that agrees with real time.
//!
//! A counter's replies give the order: a request that began after another one's reply got a higher
//! value. A register never returns a value that was overwritten before the request.

use super::Case;
use crate::history::{Answer, Request, Verb};

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    for (key, requests) in case.history.by_key("count:") {
        if !case.was_lost(key) {
            counter(key, &requests, found);
        }
    }
    for (key, requests) in case.history.by_key("register:") {
        if !case.was_lost(key) {
            register(key, &requests, found);
        }
    }
}

fn counter(key: &str, requests: &[&Request], found: &mut Vec<String>) {
    let mut answered: Vec<(u64, &Request)> = requests
        .iter()
        .filter_map(|request| match request.answer {
            Answer::Value(value) => Some((value, *request)),
            _ => None,
        })
        .collect();
    answered.sort_by_key(|(value, _)| *value);
    // From the highest value down: no request with a higher value may have ended before this one
    // began.
    let mut earliest: Option<(u64, &Request)> = None;
    for (value, request) in answered.into_iter().rev() {
        if let Some((higher, other)) = earliest
            && other.is_before(request)
            && higher > value
        {
            found.push(format!(
                "{key}: {higher} was answered at {:?}, before {value} was asked for at {:?}",
                other.ended, request.began
            ));
        }
        if earliest.is_none_or(|(_, other)| request.ended_at < other.ended_at) {
            earliest = Some((value, request));
        }
    }
}

fn register(key: &str, requests: &[&Request], found: &mut Vec<String>) {
    let sets: Vec<(u64, &Request)> = requests
        .iter()
        .filter_map(|request| match request.verb {
            Verb::Set(value) => Some((value, *request)),
            _ => None,
        })
        .collect();
    for read in requests.iter().filter(|request| request.verb == Verb::Get) {
        let written = match read.answer {
            Answer::Value(value) => {
                let set = sets.iter().find(|(written, _)| *written == value);
                let Some((_, set)) = set else {
                    found.push(format!("{key}: {value} was read, and nobody wrote it"));
                    continue;
                };
                if set.answer == Answer::NotApplied {
                    found
                        .push(format!("{key}: {value} was read, and its writer told: not applied"));
                }
                if read.is_before(set) {
                    found.push(format!("{key}: {value} was read before it was written"));
                }
                Some(*set)
            }
            Answer::Missing => None,
            _ => continue,
        };
        let newer = sets.iter().find(|(_, set)| {
            set.answer == Answer::Yes
                && set.is_before(read)
                && written
                    .is_none_or(|written| written.answer == Answer::Yes && written.is_before(set))
        });
        if let Some((value, set)) = newer {
            found.push(format!(
                "{key}: read {:?} at {:?}, though {value} had been written by {:?}",
                read.answer, read.began, set.ended
            ));
        }
    }
}
