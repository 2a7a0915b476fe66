//! The web UI: pages rendered here, for operators and teams.
//!
//! Here: the paths of pages and forms, and the headers of every page. Not here: any right or change
//! of its own; each form asks the host as the API does. Pages work without JavaScript; the modules
//! in `assets` only keep figures fresh.

mod assets;
mod audit;
mod chart;
mod cluster;
mod confirm;
mod format;
mod hot;
mod key;
mod key_text;
mod limit;
mod limit_change;
mod limit_conflict;
mod limit_form;
mod limits;
mod login;
mod overrides;
mod overview;
mod policy_form;
mod removed;
mod rights;
mod tail;
#[cfg(test)]
mod tests;
mod visit;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{Redirect, Response};
use axum::routing::{get, post};

use crate::access::Access;
use crate::host::AdminHost;

use self::visit::{PageRefusal, UiState};

/// Longest time for the comparison of two texts on a page.
const DIFF_TIME_MAX: Duration = Duration::from_millis(20);
/// Most bytes of a form.
const FORM_MAX: usize = 1 << 20;

/// The rules of a browser for every page: nothing inline, nothing from elsewhere, no frame.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

/// Returns the routes of pages and their files.
pub(crate) fn routes(host: Arc<dyn AdminHost>, access: Arc<Access>) -> Router {
    let state = UiState { host, access };
    Router::new()
        .route("/ui/", get(overview::show))
        .route("/ui/limits", get(limits::show))
        .route("/ui/limit/new", get(limit::create))
        .route("/ui/limit", get(limit::show).post(limit_change::submit))
        .route("/ui/limit/text", post(limit_change::submit_text))
        .route("/ui/limit/shadow", post(limit_change::shadow))
        .route("/ui/limit/remove", post(limit_change::remove))
        .route("/ui/limit/revert", post(limit_change::revert))
        .route("/ui/limit/adopt", post(limit_change::adopt))
        .route("/ui/overrides", get(overrides::show).post(overrides::put))
        .route("/ui/overrides/remove", post(overrides::remove))
        .route("/ui/key", get(key::show))
        .route("/ui/key/reset", post(key::reset))
        .route("/ui/key/refund", post(key::refund))
        .route("/ui/hot", get(hot::show))
        .route("/ui/cluster", get(cluster::show))
        .route("/ui/cluster/drain", post(cluster::drain))
        .route("/ui/cluster/forget", post(cluster::forget))
        .route("/ui/cluster/setting", post(cluster::setting))
        .route("/ui/tail", get(tail::show))
        .route("/ui/audit", get(audit::show))
        .route("/ui/config", get(audit::configuration))
        .route("/ui/config/log-level", post(audit::log_level))
        .route("/ui/login", get(login::show).post(login::submit))
        .route("/ui/logout", post(login::end))
        .route("/ui/{*path}", get(missing))
        .layer(DefaultBodyLimit::max(FORM_MAX))
        .layer(from_fn(headers))
        .route("/", get(async || Redirect::to("/ui/")))
        .route("/ui", get(async || Redirect::to("/ui/")))
        .route("/login", get(async || Redirect::to("/ui/login")))
        .route("/assets/{hash}/{name}", get(assets::serve))
        .with_state(state)
}

async fn missing() -> PageRefusal {
    PageRefusal::new(StatusCode::NOT_FOUND, "There is no page of this name.")
}

/// Sets the headers of every page.
async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
