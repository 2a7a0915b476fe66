//! Within an era, each value of a counter is answered only once.

use std::collections::BTreeMap;

use super::Case;
use crate::history::Answer;

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    for (key, requests) in case.history.by_key("count:") {
        if case.was_lost(key) {
            continue;
        }
        let mut seen = BTreeMap::new();
        for request in requests {
            let Answer::Value(value) = request.answer else { continue };
            if let Some(before) = seen.insert(value, request) {
                found.push(format!(
                    "{key}: {value} was answered to client {} at {:?} and to client {} at {:?}",
                    before.client, before.ended, request.client, request.ended
                ));
            }
        }
    }
}
