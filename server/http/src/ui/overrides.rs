//! Overrides: the list of all sources, and changes of those of the API.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

use crate::host::{OverrideChange, OverrideView, ServiceError};

use super::confirm::{ConfirmPage, ConflictPage};
use super::format as f;
use super::key_text::PageKey;
use super::visit::{PageFrame, PageRefusal, PageResult, Posted, Visit, limit_path, page, redirect};

/// Overrides on the page.
const OVERRIDES_SHOWN: usize = 200;

#[derive(Template)]
#[template(path = "overrides.html")]
struct OverridesPage {
    frame: PageFrame,
    /// Each with whether the caller may remove it.
    rows: Vec<(OverrideView, bool)>,
    found: usize,
    query: String,
    limit: String,
    read_only: Option<String>,
    can_change: bool,
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let host = visit.host();
    let mut rows = host.overrides(visit.given("limit"), visit.given("q"));
    let found = rows.len();
    rows.truncate(OVERRIDES_SHOWN);
    Ok(page(&OverridesPage {
        frame: visit.frame("Overrides", "/ui/overrides"),
        rows: with_rights(&visit, rows),
        found,
        query: visit.query("q").to_owned(),
        limit: visit.query("limit").to_owned(),
        read_only: host.read_only(),
        can_change: visit.caller.supports() && host.read_only().is_none(),
    }))
}

/// Adds to each override whether the caller may remove it.
pub(super) fn with_rights(visit: &Visit, rows: Vec<OverrideView>) -> Vec<(OverrideView, bool)> {
    let (caller, host) = (&visit.caller, visit.host());
    let can_change = caller.supports() && host.read_only().is_none();
    let can_remove = |row: &OverrideView| {
        can_change && row.source == "api" && caller.may_override(host, &row.limit, &row.key).is_ok()
    };
    let with_right = |row| {
        let right = can_remove(&row);
        (row, right)
    };
    rows.into_iter().map(with_right).collect()
}

/// Returns the page that the form came from.
fn back(posted: &Posted) -> String {
    match posted.field("back") {
        // The page's key may be another one than the counted key of the override.
        "key" => PageKey::of_fields(posted.field("page_key"), posted.key().bytes()).path(),
        "limit" => limit_path(posted.field("limit")),
        _ => "/ui/overrides".to_owned(),
    }
}

/// Returns the counted key, which is text. Blanks of Unicode belong to it.
fn key_field(posted: &Posted) -> String {
    posted.key().text().into_owned()
}

/// Reads a time that people type, in milliseconds.
fn duration(text: &str) -> Result<u64, PageRefusal> {
    f::duration_ms(text).ok_or_else(|| {
        let detail = "A time is a number and s, m, h, d or w, such as 10m; at most 366d.";
        PageRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    })
}

/// Reads the change that a form asks for, if the caller may do it.
fn change(posted: &Posted, policy: Option<String>) -> Result<OverrideChange, PageRefusal> {
    let (limit, key) = (posted.field("limit").to_owned(), key_field(posted));
    let visit = &posted.visit;
    if !visit.caller.supports() {
        return Err(PageRefusal::forbidden("change overrides"));
    }
    visit.caller.may_override(visit.host(), &limit, &key)?;
    let expires_ms = match posted.given("for") {
        None => None,
        Some(text) => Some(f::now_ms() + duration(&text)?),
    };
    Ok(OverrideChange {
        limit,
        key,
        policy,
        expires_ms,
        note: posted.given("note"),
        version: posted.version()?,
        actor: posted.visit.actor(),
    })
}

pub(super) async fn put(posted: Posted) -> PageResult {
    let Some(policy) = posted.given("policy") else {
        let detail = "The override lacks its policy: allow, block, or a policy.";
        return Err(PageRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    send(&posted, change(&posted, Some(policy))?, "override").await
}

pub(super) async fn remove(posted: Posted) -> PageResult {
    let change = change(&posted, None)?;
    if !posted.is_confirmed() {
        let confirm = ConfirmPage {
            frame: posted.visit.frame("Remove the override?", "/ui/overrides"),
            effects: vec![format!(
                "The policy of the limit {} holds for {} again.",
                change.limit, change.key
            )],
            diff: Vec::new(),
            action: "/ui/overrides/remove",
            hidden: hidden(&posted, posted.field("version").to_owned()),
            button: "Remove the override",
            back: back(&posted),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    send(&posted, change, "override-removed").await
}

/// Returns the fields that send the form again, for another version.
fn hidden(posted: &Posted, version: String) -> Vec<(&'static str, String)> {
    let mut fields: Vec<(&'static str, String)> =
        ["limit", "policy", "for", "note", "back", "page_key"]
            .map(|name| (name, posted.field(name).to_owned()))
            .into();
    fields.push(("key", key_field(posted)));
    fields.retain(|(_, value)| !value.is_empty());
    fields.push(("version", version));
    fields
}

async fn send(posted: &Posted, change: OverrideChange, code: &str) -> PageResult {
    let (limit, key, policy) = (change.limit.clone(), change.key.clone(), change.policy.clone());
    let is_of_version = change.version.is_some();
    match posted.visit.host().put_override(change).await {
        Ok(_) => Ok(redirect(&back(posted), code)),
        Err(ServiceError::Changed(_)) => Ok(conflict(posted, &limit, &key, policy)),
        // The override is gone, which the conflict page says, unless its limit is gone too.
        Err(ServiceError::NotFound(_))
            if is_of_version && posted.visit.host().limit(&limit).is_some() =>
        {
            Ok(conflict(posted, &limit, &key, policy))
        }
        Err(error) => Err(error.into()),
    }
}

/// The page for an override that another hand changed first.
fn conflict(posted: &Posted, limit: &str, key: &str, policy: Option<String>) -> Response {
    let rows = posted.visit.host().overrides(Some(limit), Some(key));
    let present = rows.into_iter().find(|row| row.key == key && row.source == "api");
    let version = present.as_ref().map(|row| row.version.to_string()).unwrap_or_default();
    let is_useless = policy.is_none() && present.is_none();
    let action = if is_useless {
        ""
    } else if policy.is_some() {
        "/ui/overrides"
    } else {
        "/ui/overrides/remove"
    };
    let text = |row: OverrideView| match (row.expires_ms, row.by) {
        (Some(end), by) => {
            format!("{} until {}, by {}", row.policy, f::time(end), by.unwrap_or_default())
        }
        (None, by) => format!("{}, by {}", row.policy, by.unwrap_or_default()),
    };
    let page = ConflictPage {
        frame: posted.visit.frame("The override has changed", "/ui/overrides"),
        subject: format!("The override of {key}"),
        present: present.map(text),
        yours: policy,
        diff: Vec::new(),
        action,
        hidden: hidden(posted, version),
        button: "Do it all the same".to_owned(),
        back: back(posted),
    };
    page.reply()
}
