//! All limits as a limits file, read and put.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::reply::{json, view};
use super::request::ApiRequest;
use crate::body::FILE_BYTES_MAX;
use crate::host::ImportMode;
use crate::problem::Problem;

/// Media types of a limits file.
const KINDS: [&str; 2] = ["application/toml", "text/plain"];

pub(super) async fn get(request: ApiRequest) -> Result<Response, Problem> {
    request.query(&[])?;
    let kind = HeaderValue::from_static("application/toml");
    Ok(([(header::CONTENT_TYPE, kind)], request.host().export()).into_response())
}

pub(super) async fn put(mut request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["mode", "dry_run"])?;
    let modes = [("merge", ImportMode::Merge), ("replace", ImportMode::Replace)];
    let mode = query.choice("mode", &modes, ImportMode::Merge)?;
    let dry_run = query.flag("dry_run")?;
    if !request.caller.is_unrestricted() {
        let detail = "a token with names= or keys= changes one limit at a time";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    let toml = request.plain(&KINDS, FILE_BYTES_MAX).await?;
    let plan = request.host().import(toml, mode, dry_run, request.actor()).await?;
    Ok(json(&view(&plan)))
}
