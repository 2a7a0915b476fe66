//! Overrides: the list, and one override of the API put and removed.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::limits::{PAGE_DEFAULT, PAGE_MAX};
use super::reply::{changed, json, now_ms, parse_time, view};
use super::request::{ApiRequest, BodyInteger, INTEGER_MAX};
use crate::host::OverrideChange;
use crate::problem::Problem;

/// The longest time that an override may be in force for, in milliseconds: ten years.
const LIFE_MS_MAX: u64 = 10 * 366 * 86_400_000;

pub(super) async fn list(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["limit", "q", "skip", "n"])?;
    let skip = query.number("skip", 0, INTEGER_MAX, 0)? as usize;
    let count = query.number("n", 1, PAGE_MAX, PAGE_DEFAULT)? as usize;
    let all = request.host().overrides(query.text("limit")?, query.text("q")?);
    let total = all.len();
    let page: Vec<_> = all.into_iter().skip(skip).take(count).collect();
    Ok(json(&json!({ "overrides": view(&page), "total": total })))
}

/// The body of a request that puts an override.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideBody {
    policy: String,
    expires: Option<String>,
    for_ms: Option<BodyInteger>,
    note: Option<String>,
}

impl OverrideBody {
    /// The end of the override, in milliseconds since the Unix epoch.
    fn expires_ms(&self, now_ms: u64) -> Result<Option<u64>, Problem> {
        let bad = |detail: &str| Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        let end_ms = match (&self.expires, self.for_ms.map(|for_ms| for_ms.0)) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return bad("send either expires or for_ms"),
            (Some(expires), None) => parse_time("expires", expires)?,
            (None, Some(for_ms)) if for_ms <= LIFE_MS_MAX => now_ms.saturating_add(for_ms),
            (None, Some(_)) => return bad("for_ms is at most ten years; leave it out for ever"),
        };
        if end_ms <= now_ms {
            return bad("the override would end in the past");
        }
        Ok(Some(end_ms))
    }
}

pub(super) async fn put(mut request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let mut change = change(&request)?;
    let is_new = change.version.is_none();
    let body: OverrideBody = request.json().await?;
    change.expires_ms = body.expires_ms(now_ms())?;
    change.policy = Some(body.policy);
    change.note = body.note;
    Ok(changed(request.host().put_override(change).await?, is_new))
}

pub(super) async fn delete(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["note"])?;
    request.existing_version()?;
    let change =
        OverrideChange { note: query.text("note")?.map(str::to_owned), ..change(&request)? };
    Ok(changed(request.host().put_override(change).await?, false))
}

/// The removal of the override that the path names, if it is the caller's.
fn change(request: &ApiRequest) -> Result<OverrideChange, Problem> {
    let (limit, key) = (request.text("name")?, request.text("key")?);
    request.caller.may_override(request.host(), &limit, &key)?;
    let (version, actor) = (request.version()?, request.actor());
    Ok(OverrideChange { limit, key, policy: None, expires_ms: None, note: None, version, actor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_ends_in_the_future_or_never() {
        let body = |expires: Option<&str>, for_ms: Option<u64>| OverrideBody {
            policy: "block".to_owned(),
            expires: expires.map(str::to_owned),
            for_ms: for_ms.map(BodyInteger),
            note: None,
        };
        let end = |expires, for_ms| body(expires, for_ms).expires_ms(1_000).map_err(drop);
        assert_eq!(end(None, None), Ok(None));
        assert_eq!(end(None, Some(1)), Ok(Some(1_001)));
        assert_eq!(end(Some("1970-01-01T00:00:02Z"), None), Ok(Some(2_000)));
        assert_eq!(end(None, Some(LIFE_MS_MAX)), Ok(Some(LIFE_MS_MAX + 1_000)));
        for (expires, for_ms) in [
            (Some("1970-01-01T00:00:01Z"), None),
            (None, Some(0)),
            (None, Some(LIFE_MS_MAX + 1)),
            (Some("1970-01-01T00:00:02Z"), Some(1)),
            (Some("tomorrow"), None),
        ] {
            assert_eq!(end(expires, for_ms), Err(()), "{expires:?} {for_ms:?}");
        }
    }
}
