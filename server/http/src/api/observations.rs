//! Observations: the report of a limit, hot keys, and what another limit would have done.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use super::limits::{PAGE_MAX, no_limit};
use super::reply::{json, view};
use super::request::{ApiRequest, BodyInteger};
use crate::host::{AdminHost, HotKind, Scope};
use crate::problem::Problem;

/// The longest time that a report covers, in minutes: two days.
const REPORT_MINUTES_MAX: u64 = 2880;
/// The longest time that is replayed, in minutes.
const TRY_MINUTES_MAX: u64 = 60;
/// Hot keys if the request does not say.
const HOT_KEYS_DEFAULT: u64 = 20;

/// Words for the nodes that are asked.
const SCOPES: [(&str, Scope); 2] = [("node", Scope::Node), ("cluster", Scope::Cluster)];

pub(super) async fn report(request: ApiRequest) -> Result<Response, Problem> {
    let minutes = request.query(&["minutes"])?.number("minutes", 1, REPORT_MINUTES_MAX, 60)?;
    let name = request.text("name")?;
    let report = request.host().report(&name, minutes);
    let report = report.ok_or_else(|| no_report(request.host(), &name))?;
    Ok(json(&view(&report)))
}

/// The reason why a limit has no figures: only those in force have.
fn no_report(host: &dyn AdminHost, name: &str) -> Problem {
    let Some(limit) = host.limit(name) else { return no_limit(name) };
    let reason = if limit.disabled { "is disabled" } else { "is not in force" };
    Problem::new(StatusCode::CONFLICT, format!("limit {name} {reason} and has no figures"))
}

pub(super) async fn hot_keys(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["what", "limit", "n", "scope"])?;
    let kinds =
        [("taken", HotKind::Taken), ("denied", HotKind::Denied), ("shadow", HotKind::Shadow)];
    let kind = query.choice("what", &kinds, HotKind::Taken)?;
    let scope = query.choice("scope", &SCOPES, Scope::Node)?;
    let count = query.number("n", 1, PAGE_MAX, HOT_KEYS_DEFAULT)? as usize;
    let limit = query.text("limit")?.map(str::to_owned);
    Ok(json(&view(&request.host().hot_keys(kind, limit, count, scope).await?)))
}

/// The body of a dry run on recorded traffic.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TryBody {
    toml: String,
    minutes: Option<BodyInteger>,
    scope: Option<String>,
}

pub(super) async fn try_limit(mut request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let name = request.text("name")?;
    let body: TryBody = request.json().await?;
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    let minutes = body.minutes.map_or(TRY_MINUTES_MAX, |minutes| minutes.0);
    if !(1..=TRY_MINUTES_MAX).contains(&minutes) {
        return Err(bad(format!("minutes is a number from 1 to {TRY_MINUTES_MAX}")));
    }
    let scope = body.scope.as_deref().unwrap_or("node");
    let scope = SCOPES.iter().find(|(word, _)| *word == scope).map(|(_, scope)| *scope);
    let scope = scope.ok_or_else(|| bad("scope is one of: node, cluster".to_owned()))?;
    // The first mistake with its line, before the traffic is replayed.
    request.host().check_limit(&body.toml)?;
    Ok(json(&view(&request.host().try_limit(name, body.toml, minutes, scope).await?)))
}
