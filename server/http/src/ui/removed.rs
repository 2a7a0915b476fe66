//! The page of a limit that was removed, and the form that brings it back from history.

use askama::Template;
use axum::http::StatusCode;

use crate::diff;
use crate::host::{ChangeView, LimitView, ServiceError};

use super::DIFF_TIME_MAX;
use super::confirm::ConfirmPage;
use super::format as f;
use super::limit::{HistoryRow, edits, history_rows};
use super::limit_change::old_text;
use super::limit_conflict::conflict;
use super::visit::{
    PageFrame, PageRefusal, PageResult, Posted, Visit, limit_path, redirect, render,
};

#[derive(Template)]
#[template(path = "removed.html")]
struct RemovedPage {
    frame: PageFrame,
    name: String,
    read_only: Option<String>,
    history: Vec<HistoryRow>,
    older: Option<u64>,
}

/// Returns whether history has the text of a limit.
pub(super) fn is_kept(visit: &Visit, limit: &LimitView) -> bool {
    let changes = visit.host().history(Some(&limit.name));
    changes.iter().any(|c| c.what == "limit" && c.body.as_deref() == Some(&limit.toml))
}

/// Returns a sentence about the text of a limit after its removal.
pub(super) fn kept(is_kept: bool) -> &'static str {
    if is_kept {
        "History keeps the text while the change that gave it is among the last 1,024 changes of \
         all limits and overrides."
    } else {
        "History does not have this text any more: copy it, or it is lost."
    }
}

/// Shows the page of a removed limit of which history keeps a change.
pub(super) fn show(visit: &Visit, name: String) -> PageResult {
    let host = visit.host();
    if !host.history(Some(&name)).iter().any(|change| change.what == "limit") {
        let detail = "There is no limit of this name, and history has no change of one.";
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, detail));
    }
    let read_only = host.read_only();
    let can_edit = read_only.is_none() && visit.caller.edits_name(&name);
    let may_put = |body: &str| {
        visit.caller.is_unrestricted()
            || host.check_limit(body).is_ok_and(|limit| edits(&visit.caller, &limit))
    };
    let can_bring_back =
        |change: &ChangeView| can_edit && change.body.as_deref().is_some_and(may_put);
    let (history, older) = history_rows(visit, &name, can_bring_back);
    let frame = visit.frame(format!("The limit {name} was removed"), "/ui/limits");
    let page = RemovedPage { frame, name, read_only, history, older };
    Ok(render(StatusCode::NOT_FOUND, &page))
}

/// Creates a removed limit with a text of history.
pub(super) async fn bring_back(posted: Posted) -> PageResult {
    let (name, visit) = (posted.field("name").to_owned(), &posted.visit);
    if !visit.caller.edits_name(&name) {
        return Err(PageRefusal::forbidden("create this limit"));
    }
    let (seq, body) = old_text(&posted, &name, None)?;
    let hidden = vec![("seq", seq.to_string())];
    if !posted.is_confirmed() {
        let confirm = ConfirmPage {
            frame: visit.frame(format!("Bring {name} back?"), "/ui/limits"),
            effects: vec![format!("The limit {name} exists again, with the text of change {seq}.")],
            diff: diff::lines("", &body, DIFF_TIME_MAX),
            action: "/ui/limit/revert",
            hidden: [hidden, vec![("name", name.clone()), ("version", String::new())]].concat(),
            button: "Bring the limit back",
            back: limit_path(&name),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    // The form was made for a version that another hand has removed.
    if posted.version()?.is_some() {
        return Ok(conflict(visit, &name, None, Some(body), "/ui/limit/revert", hidden));
    }
    match visit.host().revert_limit(name.clone(), seq, None, visit.actor()).await {
        Ok(_) => Ok(redirect(&limit_path(&name), "brought-back")),
        Err(ServiceError::Changed(_)) => {
            let present = visit.host().limit(&name);
            Ok(conflict(visit, &name, present, Some(body), "/ui/limit/revert", hidden))
        }
        Err(error) => Err(error.into()),
    }
}
