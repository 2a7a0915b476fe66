//! A key: its limit, its verdict and the reasons, its owner; reset, refund, block and allow.

use askama::Template;
use axum::http::StatusCode;

use crate::host::{AdminHost, ExplainView, KeyStanding, KeyVerdict, LimitView, OverrideView};
use crate::scope::ScopedKeyChange;

use super::confirm::ConfirmPage;
use super::format as f;
use super::key_text::PageKey;
use super::visit::{PageFrame, PageRefusal, PageResult, Posted, Visit, redirect, render};

/// The largest cost and the largest number of units: 2^53 - 1.
const UNITS_MAX: u64 = (1 << 53) - 1;
/// Most limits that a key without a limit is said to be counted by.
const COUNTING_MAX: usize = 8;

#[derive(Template)]
#[template(path = "key.html")]
struct KeyPage {
    frame: PageFrame,
    key: PageKey,
    /// The cost as it was typed.
    cost: String,
    cost_error: Option<String>,
    /// The explanation; `None` while no key is asked for.
    explained: Option<ExplainView>,
    error: Option<String>,
    hashed: bool,
    can_change: bool,
    /// Whether an override can be stored.
    has_store: bool,
    /// The API's override of exactly this counted key.
    override_here: Option<OverrideView>,
    /// Without a limit of the key: limits that may count others under it.
    counting: Vec<String>,
}

impl KeyPage {
    /// Returns whether the standing's limit refuses the attempt.
    fn refuses(view: &ExplainView, standing: &KeyStanding) -> bool {
        view.refused_by.contains(&standing.limit)
    }

    /// Returns whether the standing's limit is in shadow and would refuse the attempt.
    fn would_refuse(view: &ExplainView, standing: &KeyStanding) -> bool {
        standing.shadow && view.shadow_refused_by.contains(&standing.limit)
    }

    /// Returns whether an override of this counted key can be stored: what is shown must be the
    /// key.
    fn can_override(&self, counted: &str) -> bool {
        self.has_store
            && !counted.contains(char::REPLACEMENT_CHARACTER)
            && (!self.hashed || counted == self.key.text())
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
    let key = visit.key.clone();
    let cost = units(visit.given("cost").unwrap_or("1"));
    let (mut explained, mut error, mut status) = (None, None, StatusCode::OK);
    if cost.is_none() {
        status = StatusCode::BAD_REQUEST;
    }
    if let Some(cost) = cost.filter(|_| !key.is_empty()) {
        match host.explain(key.bytes().to_vec(), cost).await {
            Ok(view) => explained = Some(view),
            Err(cause) => {
                let refusal = PageRefusal::from(cause);
                (error, status) = (Some(refusal.detail), refusal.status);
            }
        }
    }
    let matched = explained.as_ref().map(|view| &view.matched);
    let limit = matched.and_then(|matched| matched.limit.as_deref());
    let counted = matched.and_then(|matched| matched.counted_key.as_deref()).unwrap_or_default();
    let overrides = limit.map(|limit| host.overrides(Some(limit), Some(counted)));
    let is_here = |row: &OverrideView| row.key == counted && row.source == "api";
    let override_here = overrides.unwrap_or_default().into_iter().find(is_here);
    let page = KeyPage {
        frame: visit.frame("Key", "/ui/key"),
        can_change: visit.caller.supports_key(host, key.bytes()),
        has_store: host.read_only().is_none(),
        override_here,
        counting: if limit.is_none() { counting(host, &key) } else { Vec::new() },
        cost: visit.given("cost").unwrap_or("1").to_owned(),
        cost_error: cost
            .is_none()
            .then(|| format!("The cost is a whole number from 1 to {UNITS_MAX}.")),
        error,
        hashed: host.status().keys_hashed,
        explained,
        key,
    };
    Ok(render(status, &page))
}

/// Parses a number of units.
fn units(text: &str) -> Option<u64> {
    text.parse().ok().filter(|units| (1..=UNITS_MAX).contains(units))
}

/// Returns limits with counted keys of their own that begin as the key.
fn counting(host: &dyn AdminHost, key: &PageKey) -> Vec<String> {
    let counts = |limit: &LimitView| {
        limit.has_own_keys && key.bytes().starts_with(limit.counted_front.as_bytes())
    };
    let names = host.limits().into_iter().filter(counts).map(|limit| limit.name);
    names.take(COUNTING_MAX).collect()
}

/// Returns the key of a form, if the caller may change it.
fn changeable_key(posted: &Posted, change: ScopedKeyChange) -> Result<PageKey, PageRefusal> {
    let (key, visit) = (posted.key(), &posted.visit);
    if !visit.caller.supports() {
        return Err(PageRefusal::forbidden("change keys"));
    }
    visit.host().match_key(key.bytes())?;
    visit.caller.may_change_key(visit.host(), key.bytes(), change)?;
    Ok(key)
}

pub(super) async fn reset(posted: Posted) -> PageResult {
    let key = changeable_key(&posted, ScopedKeyChange::Reset)?;
    if !posted.is_confirmed() {
        let confirm = ConfirmPage {
            frame: posted.visit.frame("Reset the key?", "/ui/key"),
            effects: vec![format!(
                "The server forgets what {} has used. Its limit counts from the beginning.",
                key.text()
            )],
            diff: Vec::new(),
            action: "/ui/key/reset",
            hidden: vec![(key.field(), key.value())],
            button: "Reset the key",
            back: key.path(),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    let actor = posted.visit.actor();
    let had_state = posted.visit.host().reset_key(key.bytes().to_vec(), actor).await?;
    Ok(redirect(&key.path(), if had_state { "reset" } else { "no-state" }))
}

pub(super) async fn refund(posted: Posted) -> PageResult {
    let key = changeable_key(&posted, ScopedKeyChange::Refund)?;
    let Some(units) = units(posted.field("units")) else {
        let detail = "Units are a whole number from 1.";
        return Err(PageRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    };
    let actor = posted.visit.actor();
    posted.visit.host().refund_key(key.bytes().to_vec(), units, actor).await?;
    Ok(redirect(&key.path(), "refunded"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use crate::access::Access;
    use crate::fake_host::{FakeHost, SHADOW_KEY};

    #[test]
    fn a_shadow_would_refuse_and_does_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let page = runtime.expect("a runtime").block_on(async {
            let access = Arc::new(Access::new(Vec::new(), None, false));
            let routes = crate::routes::router(Arc::new(FakeHost::default()), access);
            let request = Request::get(format!("/ui/key?key={SHADOW_KEY}")).body(Body::empty());
            let response = routes.oneshot(request.expect("a request")).await;
            let body = response.expect("routes do not fail").into_body();
            let bytes = to_bytes(body, usize::MAX).await.expect("the body is in memory");
            String::from_utf8_lossy(&bytes).into_owned()
        });
        for text in [" passes now. In shadow, login would refuse it.", " shadow", "◐ would"] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("✕ yes"), "{page}");
    }
}
