//! Single keys: their limit, the reasons behind their verdict, reset and refund.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::reply::{done, json, view};
use super::request::{ApiRequest, BodyInteger, INTEGER_MAX};
use crate::host::{ExplainView, MatchView};
use crate::problem::Problem;
use crate::scope::ScopedKeyChange;

pub(super) async fn match_key(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["key"])?;
    let found = request.host().match_key(query.needed("key")?)?;
    Ok(json(&match_value(&found)))
}

/// The JSON of a match; captures are objects, because their order matters.
fn match_value(found: &MatchView) -> Value {
    let mut value = view(found);
    let captures = found.captures.iter();
    value["captures"] =
        captures.map(|(name, text)| json!({ "name": name, "value": text })).collect();
    value
}

fn explain_value(explained: &ExplainView) -> Value {
    let mut value = view(explained);
    value["matched"] = match_value(&explained.matched);
    value
}

pub(super) async fn explain(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["key", "cost"])?;
    let cost = query.number("cost", 0, INTEGER_MAX, 1)?;
    let key = query.needed("key")?.to_vec();
    Ok(json(&explain_value(&request.host().explain(key, cost).await?)))
}

pub(super) async fn get(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let key = request.bytes("key")?;
    Ok(json(&explain_value(&request.host().explain(key, 1).await?)))
}

pub(super) async fn reset(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let key = own_key(&request, ScopedKeyChange::Reset)?;
    let existed = request.host().reset_key(key, request.actor()).await?;
    Ok(json(&json!({ "existed": existed })))
}

/// The body of a refund.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefundBody {
    units: BodyInteger,
}

pub(super) async fn refund(mut request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let key = own_key(&request, ScopedKeyChange::Refund)?;
    let RefundBody { units: BodyInteger(units) } = request.json().await?;
    if !(1..=INTEGER_MAX).contains(&units) {
        let detail = "units is a number from 1 to 9007199254740991";
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    }
    request.host().refund_key(key, units, request.actor()).await?;
    Ok(done())
}

/// The key in the path, if the caller may change it.
fn own_key(request: &ApiRequest, change: ScopedKeyChange) -> Result<Vec<u8>, Problem> {
    let key = request.bytes("key")?;
    request.caller.may_change_key(request.host(), &key, change)?;
    Ok(key)
}
