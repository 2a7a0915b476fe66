//! Limits: the list, and one limit read, put, removed and taken back.
//!
//! Not here: history (`history`), the whole file (`file`), overrides (`overrides`).

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reply::{changed, json, versioned, view};
use super::request::{ApiRequest, BodyInteger, INTEGER_MAX};
use crate::caller::Caller;
use crate::host::{AdminHost, LimitChange, LimitView, ServiceError};
use crate::problem::Problem;
use crate::tokens::TokenRole;

/// Maximum number of entries of a page.
pub(super) const PAGE_MAX: u64 = 1000;
/// Entries of a page if the request does not say.
pub(super) const PAGE_DEFAULT: u64 = 100;

/// Fields of a limit that a list leaves out.
const LONG_FIELDS: [&str; 1] = ["toml"];

pub(super) async fn list(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["q", "source", "owner", "after", "limit"])?;
    let count = query.number("limit", 1, PAGE_MAX, PAGE_DEFAULT)? as usize;
    let (part, owner) = (query.text("q")?, query.text("owner")?);
    let sources = ["file", "api", "rls"].map(|word| (word, Some(word)));
    let source = query.choice("source", &sources, None)?;
    let host = request.host();
    let mut limits = host.limits();
    if let Some(after) = query.text("after")? {
        let place = limits.iter().position(|limit| limit.name == after);
        let Some(place) = place else {
            let detail = format!("there is no limit {after} any more: read from the first page");
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        };
        limits.drain(..=place);
    }
    limits.retain(|limit| {
        let has_part = |part| {
            limit.name.contains(part)
                || limit.pattern.contains(part)
                || limit.owner.as_ref().is_some_and(|owner| owner.contains(part))
        };
        part.is_none_or(has_part)
            && source.is_none_or(|source| limit.source == source)
            && owner.is_none_or(|owner| limit.owner.as_deref() == Some(owner))
    });
    let has_more = limits.len() > count;
    limits.truncate(count);
    let next = limits.last().filter(|_| has_more).map(|limit| limit.name.clone());
    let limits: Vec<Value> = limits.iter().map(|limit| summary(host, limit)).collect();
    let read_only = host.read_only();
    Ok(json(&json!({ "limits": limits, "next": next, "read_only": read_only })))
}

/// A limit with its figures of the last minute, without its text.
fn summary(host: &dyn AdminHost, limit: &LimitView) -> Value {
    let mut value = view(limit);
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !LONG_FIELDS.contains(&name.as_str()));
        let minute = host.activity(&limit.name).map(|activity| {
            let minute = activity.last_minute;
            json!({
                "allowed": minute.allowed,
                "denied": minute.denied,
                "shadow_denied": minute.shadow_denied,
                "units": minute.units,
            })
        });
        fields.insert("minute".to_owned(), minute.into());
    }
    value
}

pub(super) async fn get(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let limit = found(request.host(), &request.text("name")?)?;
    Ok(versioned(limit.version, &view(&limit)))
}

/// The limit of a name, or 404.
pub(super) fn found(host: &dyn AdminHost, name: &str) -> Result<LimitView, Problem> {
    host.limit(name).ok_or_else(|| no_limit(name))
}

pub(super) fn no_limit(name: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("there is no limit {name}"))
}

/// The body of a request that puts a limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitBody {
    toml: String,
    before: Option<String>,
    note: Option<String>,
    #[serde(default)]
    adopt: bool,
}

pub(super) async fn put(mut request: ApiRequest) -> Result<Response, Problem> {
    let dry_run = request.query(&["dry_run"])?.flag("dry_run")?;
    let name = request.text("name")?;
    request.caller.may_name(&name)?;
    // A check compares no versions, so none is needed.
    let needs_version = !dry_run || request.has_version();
    let given = needs_version.then(|| request.version()).transpose()?;
    let body: LimitBody = request.json().await?;
    if body.adopt {
        request.require(TokenRole::Admin)?;
    }
    let checked = request.host().check_limit(&body.toml)?;
    if checked.name != name {
        let detail = format!("the path names the limit {name}, and the text {}", checked.name);
        return Err(ServiceError::Invalid { detail, line: Some(1) }.into());
    }
    // Read now: the body may have taken its time.
    let present = reached(request.host(), &name, given.flatten()).await;
    let version = given.unwrap_or_else(|| present.as_ref().map(|limit| limit.version));
    may_change(&request.caller, (present.as_ref(), version), Some(&checked))?;
    let change = LimitChange {
        name,
        toml: body.toml,
        before: body.before,
        note: body.note,
        version,
        adopt: body.adopt,
        dry_run,
        actor: request.actor(),
    };
    let done = request.host().put_limit(change).await?;
    Ok(changed(done, version.is_none()))
}

/// Returns the limit of a name, once this node knows the version that the sender has read.
async fn reached(host: &dyn AdminHost, name: &str, version: Option<u64>) -> Option<LimitView> {
    if let Some(version) = version {
        host.reach(version).await;
    }
    host.limit(name)
}

/// Refuses a change from `present` to `wanted`, of which each may be missing, unless both are the
/// caller's. `version` is the one that the change replaces.
fn may_change(
    caller: &Caller,
    (present, version): (Option<&LimitView>, Option<u64>),
    wanted: Option<&LimitView>,
) -> Result<(), Problem> {
    for limit in present.into_iter().chain(wanted) {
        caller.may_limit(limit)?;
    }
    Ok(caller.may_version(present, version)?)
}

pub(super) async fn delete(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["note"])?;
    let note = query.text("note")?.map(str::to_owned);
    let name = request.text("name")?;
    request.caller.may_name(&name)?;
    let version = request.existing_version()?;
    let present = reached(request.host(), &name, Some(version)).await;
    let present = present.ok_or_else(|| no_limit(&name))?;
    may_change(&request.caller, (Some(&present), Some(version)), None)?;
    let done = request.host().remove_limit(name, version, note, request.actor()).await?;
    Ok(changed(done, false))
}

/// The body of a request that takes changes back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RevertBody {
    seq: BodyInteger,
}

pub(super) async fn revert(mut request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let name = request.text("name")?;
    request.caller.may_name(&name)?;
    let version = request.version()?;
    let RevertBody { seq: BodyInteger(seq) } = request.json().await?;
    let host = request.host();
    if seq > INTEGER_MAX {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "seq is at most 2^53 - 1"));
    }
    let present = reached(host, &name, version).await;
    let changes = host.history(Some(&name));
    let Some(change) = changes.into_iter().find(|change| change.seq == seq) else {
        let detail = format!("history keeps no change {seq} of {name}");
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    if change.what != "limit" {
        let key = change.key.unwrap_or_default();
        let detail = format!(
            "change {seq} of {name} is one of the override of {key}: put or remove that override"
        );
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    if !request.caller.is_unrestricted() {
        let wanted = change.body.map(|toml| host.check_limit(&toml)).transpose()?;
        may_change(&request.caller, (present.as_ref(), version), wanted.as_ref())?;
    }
    let done = host.revert_limit(name, seq, version, request.actor()).await?;
    Ok(changed(done, version.is_none()))
}
