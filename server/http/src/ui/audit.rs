//! The audit log, and the configuration in force.

use askama::Template;
use axum::http::StatusCode;

use crate::host::ChangeView;

use super::format as f;
use super::visit::{PageFrame, PageRefusal, PageResult, Posted, Visit, page, redirect};

/// Changes on a page.
const AUDIT_SHOWN: usize = 100;
/// The highest level of the log, as of `verbosity`.
const LOG_LEVEL_MAX: u32 = 3;

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    frame: PageFrame,
    changes: Vec<ChangeView>,
    /// The number from which the next page begins.
    older: Option<u64>,
}

pub(super) async fn show(visit: Visit) -> PageResult {
    if !visit.caller.administers() {
        return Err(PageRefusal::forbidden("read the audit log"));
    }
    let below = visit.query("older").parse().unwrap_or(u64::MAX);
    let mut changes = visit.host().history(None);
    changes.retain(|change| change.seq < below);
    let older = (changes.len() > AUDIT_SHOWN).then(|| changes[AUDIT_SHOWN - 1].seq);
    changes.truncate(AUDIT_SHOWN);
    Ok(page(&AuditPage { frame: visit.frame("Audit", "/ui/audit"), changes, older }))
}

#[derive(Template)]
#[template(path = "config.html")]
struct ConfigPage {
    frame: PageFrame,
    text: String,
    can_set: bool,
}

pub(super) async fn configuration(visit: Visit) -> PageResult {
    Ok(page(&ConfigPage {
        frame: visit.frame("Configuration", "/ui/config"),
        text: visit.host().configuration(),
        can_set: visit.caller.administers(),
    }))
}

pub(super) async fn log_level(posted: Posted) -> PageResult {
    if !posted.visit.caller.administers() {
        return Err(PageRefusal::forbidden("change the log level"));
    }
    let level = posted.field("level").parse().ok().filter(|level| *level <= LOG_LEVEL_MAX);
    let Some(level) = level else {
        return Err(PageRefusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "The level is 0, 1, 2 or 3.",
        ));
    };
    posted.visit.host().set_log_level(level, posted.visit.actor()).await?;
    Ok(redirect("/ui/config", "log-level"))
}
