//! The server, its nodes, its settings and its log.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

use super::reply::{done, json, object, view};
use super::request::{ApiRequest, BodyInteger};
use crate::problem::Problem;

/// The largest argument of `verbosity` that differs from a smaller one.
const LOG_LEVEL_MAX: u32 = 3;

pub(super) async fn status(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    Ok(json(&view(&request.host().status())))
}

pub(super) async fn nodes(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let Some(nodes) = request.host().nodes() else {
        let detail = "the server is in no cluster, or has not joined it yet";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    };
    let mut value = view(&nodes);
    value["settings"] = object(nodes.settings);
    Ok(json(&value))
}

pub(super) async fn drain(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    request.host().drain_node(request.text("node")?, request.actor()).await?;
    Ok(done())
}

pub(super) async fn forget(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    request.host().forget_node(request.text("node")?, request.actor()).await?;
    Ok(done())
}

/// The body of a request that puts a setting.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingBody {
    value: String,
}

pub(super) async fn put_setting(mut request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let name = request.text("name")?;
    let SettingBody { value } = request.json().await?;
    request.host().put_setting(name, value, request.actor()).await?;
    Ok(done())
}

/// The body of a request that puts the log's level.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LogLevelBody {
    level: BodyInteger,
}

pub(super) async fn put_log_level(mut request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let LogLevelBody { level: BodyInteger(level) } = request.json().await?;
    let Some(level) = u32::try_from(level).ok().filter(|level| *level <= LOG_LEVEL_MAX) else {
        let detail = format!("level is a number from 0 to {LOG_LEVEL_MAX}, as of verbosity");
        return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
    };
    request.host().set_log_level(level, request.actor()).await?;
    Ok(done())
}
