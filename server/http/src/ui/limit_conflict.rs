//! The page for a change of a limit that another hand changed first.

use axum::response::Response;

use crate::diff;
use crate::host::LimitView;

use super::DIFF_TIME_MAX;
use super::confirm::ConflictPage;
use super::visit::{Posted, Visit, limit_path};

pub(super) const LIMITS: &str = "/ui/limits";

/// The page for a limit that another hand changed first. `yours` is the text that was sent.
pub(super) fn conflict(
    visit: &Visit,
    name: &str,
    present: Option<LimitView>,
    yours: Option<String>,
    action: &'static str,
    mut hidden: Vec<(&'static str, String)>,
) -> Response {
    let version = present.as_ref().map(|limit| limit.version.to_string()).unwrap_or_default();
    let present = present.map(|limit| limit.toml);
    let is_useless = present.is_none() && yours.is_none();
    hidden.extend([("name", name.to_owned()), ("version", version.clone())]);
    let button = match (&yours, &present) {
        (None, _) => format!("Remove version {version}"),
        (_, None) => "Create it again".to_owned(),
        _ => format!("Replace version {version}"),
    };
    let lines = match (&present, &yours) {
        (Some(present), Some(yours)) => diff::lines(present, yours, DIFF_TIME_MAX),
        _ => Vec::new(),
    };
    let page = ConflictPage {
        frame: visit.frame("The limit has changed", LIMITS),
        subject: format!("The limit {name}"),
        present,
        yours,
        diff: lines,
        action: if is_useless { "" } else { action },
        hidden,
        button,
        back: limit_path(name),
    };
    page.reply()
}

/// The page for a form of another version than that of `limit`.
pub(super) fn conflict_of(
    posted: &Posted,
    limit: LimitView,
    yours: Option<String>,
    action: &'static str,
    hidden: Vec<(&'static str, String)>,
) -> Response {
    let name = limit.name.clone();
    conflict(&posted.visit, &name, Some(limit), yours, action, hidden)
}
