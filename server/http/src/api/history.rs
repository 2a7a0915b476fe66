//! Changes that are kept: of one limit with their differences, and of all for the audit.

use std::time::{Duration, Instant};

use axum::response::Response;
use serde_json::{Value, json};

use super::limits::{PAGE_MAX, no_limit};
use super::reply::{json, view};
use super::request::{ApiQuery, ApiRequest, INTEGER_MAX};
use crate::diff;
use crate::host::ChangeView;
use crate::problem::Problem;

/// Changes of a page if the request does not say.
const CHANGES_DEFAULT: u64 = 50;
/// Longest time for the differences of a reply; those of further changes are `null`.
const DIFF_TIME_MAX: Duration = Duration::from_millis(100);

pub(super) async fn history(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["before", "limit"])?;
    let name = request.text("name")?;
    let host = request.host();
    let changes = host.history(Some(&name));
    if changes.is_empty() && host.limit(&name).is_none() {
        return Err(no_limit(&name));
    }
    let (changes, next) = page(&query, changes)?;
    let mut left = DIFF_TIME_MAX;
    let changes: Vec<Value> = changes.iter().map(|change| with_diff(change, &mut left)).collect();
    Ok(json(&json!({ "changes": changes, "next": next })))
}

pub(super) async fn audit(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["before", "limit"])?;
    let (changes, next) = page(&query, request.host().history(None))?;
    let mut changes = view(&changes);
    for change in changes.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        change.retain(|name, _| name != "body" && name != "body_before");
    }
    Ok(json(&json!({ "changes": changes, "next": next })))
}

/// The changes of a page, and the `before` of the next one.
fn page(
    query: &ApiQuery,
    mut changes: Vec<ChangeView>,
) -> Result<(Vec<ChangeView>, Option<u64>), Problem> {
    let before = query.number("before", 1, INTEGER_MAX, INTEGER_MAX)?;
    let count = query.number("limit", 1, PAGE_MAX, CHANGES_DEFAULT)? as usize;
    changes.retain(|change| change.seq < before);
    let has_more = changes.len() > count;
    changes.truncate(count);
    let next = changes.last().filter(|_| has_more).map(|change| change.seq);
    Ok((changes, next))
}

fn with_diff(change: &ChangeView, left: &mut Duration) -> Value {
    let mut value = view(change);
    if let Value::Object(fields) = &mut value {
        fields.remove("body_before");
        let diff = (change.knows_text_before() && !left.is_zero()).then(|| {
            let (old, new) = (change.body_before.as_deref(), change.body.as_deref());
            let start = Instant::now();
            let lines = diff::lines(old.unwrap_or_default(), new.unwrap_or_default(), *left);
            *left = left.saturating_sub(start.elapsed());
            lines.iter().map(|line| format!("{}{}", line.sign, line.text)).collect::<Vec<_>>()
        });
        fields.insert("diff".to_owned(), diff.into());
    }
    value
}
