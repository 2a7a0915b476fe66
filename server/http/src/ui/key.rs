//! A key: its limit, its verdict and the reasons, its owner; reset, refund, block and allow.

use askama::Template;
use axum::http::StatusCode;

use crate::host::{ExplainView, KeyStanding, KeyVerdict, OverrideView};

use super::confirm::ConfirmPage;
use super::format as f;
use super::visit::{PageFrame, PageRefusal, PageResult, Posted, Visit, key_path, redirect, render};

/// The largest cost and the largest number of units: 2^53 - 1.
const UNITS_MAX: u64 = (1 << 53) - 1;

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPage {
    frame: PageFrame,
    key: String,
    cost: u64,
    /// The explanation; `None` while no key is asked for.
    explained: Option<ExplainView>,
    error: Option<String>,
    hashed: bool,
    can_change: bool,
    /// The API's override of exactly this counted key.
    override_here: Option<OverrideView>,
}

impl KeyPage {
    /// Returns whether the standing's limit refuses the attempt.
    fn refuses(view: &ExplainView, standing: &KeyStanding) -> bool {
        view.refused_by.contains(&standing.limit)
    }

    /// Returns the time after which the attempt would pass, as words.
    fn passes(verdict: &KeyVerdict) -> String {
        match (verdict.allowed, verdict.retry_ms) {
            (true, _) => "now".to_owned(),
            (false, Some(ms)) => format!("in {}", f::span(ms)),
            (false, None) => "never".to_owned(),
        }
    }
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let host = visit.host();
    let key = visit.query("key").to_owned();
    let cost = visit.query("cost").parse().unwrap_or(1).clamp(1, UNITS_MAX);
    let (mut explained, mut error, mut status) = (None, None, StatusCode::OK);
    if !key.is_empty() {
        match host.explain(key.clone().into_bytes(), cost).await {
            Ok(view) => explained = Some(view),
            Err(cause) => {
                let refusal = PageRefusal::from(cause);
                (error, status) = (Some(refusal.detail), refusal.status);
            }
        }
    }
    let matched = explained.as_ref().map(|view| &view.matched);
    let limit = matched.and_then(|matched| matched.limit.as_deref());
    let counted = matched.and_then(|matched| matched.counted_key.as_deref()).unwrap_or(&key);
    let overrides = limit.map(|limit| host.overrides(Some(limit), Some(counted)));
    let is_here = |row: &OverrideView| row.key == counted && row.source == "api";
    let override_here = overrides.unwrap_or_default().into_iter().find(is_here);
    let page = KeyPage {
        frame: visit.frame("Key", "/ui/key"),
        can_change: visit.caller.supports_key(limit, &key),
        override_here,
        cost,
        error,
        hashed: host.status().keys_hashed,
        explained,
        key,
    };
    Ok(render(status, &page))
}

/// Returns the key of a form, if the caller may change it.
fn changeable_key(posted: &Posted, deed: &str) -> Result<String, PageRefusal> {
    let key = posted.field("key").to_owned();
    let matched = posted.visit.host().match_key(key.as_bytes())?;
    if posted.visit.caller.supports_key(matched.limit.as_deref(), &key) {
        return Ok(key);
    }
    Err(PageRefusal::forbidden(deed))
}

pub(super) async fn reset(posted: Posted) -> PageResult {
    let key = changeable_key(&posted, "reset this key")?;
    if !posted.is_confirmed() {
        let confirm = ConfirmPage {
            frame: posted.visit.frame("Reset the key?", "/ui/key"),
            effects: vec![format!(
                "The server forgets what {key} has used. Its limit counts from the beginning."
            )],
            diff: Vec::new(),
            action: "/ui/key/reset",
            hidden: vec![("key", key.clone())],
            button: "Reset the key",
            back: key_path(&key),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    let actor = posted.visit.actor();
    let had_state = posted.visit.host().reset_key(key.clone().into_bytes(), actor).await?;
    Ok(redirect(&key_path(&key), if had_state { "reset" } else { "no-state" }))
}

pub(super) async fn refund(posted: Posted) -> PageResult {
    let key = changeable_key(&posted, "give units back to this key")?;
    let units = posted.field("units").parse().ok().filter(|units| (1..=UNITS_MAX).contains(units));
    let Some(units) = units else {
        let detail = "Units are a whole number from 1.";
        return Err(PageRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let actor = posted.visit.actor();
    posted.visit.host().refund_key(key.clone().into_bytes(), units, actor).await?;
    Ok(redirect(&key_path(&key), "refunded"))
}
