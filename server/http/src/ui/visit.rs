//! A request for a page or from a form: its sender, its parameters, and the replies to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::extract::{Form, FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use tokio::time::timeout;

use crate::access::Access;
use crate::body::BODY_TIME_MAX;
use crate::caller::{Caller, ClientAddress};
use crate::host::{Actor, AdminHost, ServiceError, Via};
use crate::problem::Problem;

use super::key_text::PageKey;
use super::{assets, format};

/// The state of the pages.
#[derive(Clone)]
pub(super) struct UiState {
    pub(super) host: Arc<dyn AdminHost>,
    pub(super) access: Arc<Access>,
}

/// Messages after a form, by the code in the query. A code that is not here shows nothing, so no
/// link can put words of its own on a page.
const FLASHES: [(&str, &str); 18] = [
    ("saved", "The limit is saved and in force."),
    ("disabled", "The limit is saved. It is disabled: no key is counted under it."),
    ("same", "Nothing changed."),
    ("removed", "The limit is removed. Its page brings it back while history keeps its text."),
    ("reverted", "The old text is in force again."),
    ("brought-back", "The limit is in force again."),
    ("adopted", "The limit belongs to the API now; the file no longer changes it."),
    ("shadowed", "The limit only counts now: it refuses nothing."),
    ("enforced", "The limit refuses now."),
    ("override", "The override is in force."),
    ("override-removed", "The override is removed."),
    ("reset", "The key is as good as new."),
    ("no-state", "The key had no state."),
    ("refunded", "The units are given back."),
    ("draining", "The node gives its copies away."),
    ("forgotten", "The node is removed from the cluster."),
    ("setting", "The setting is changed."),
    ("log-level", "The log level is changed."),
];

/// The surroundings of every page.
#[derive(Debug)]
pub(super) struct PageFrame {
    pub(super) title: String,
    /// The path of the page in the navigation.
    pub(super) here: &'static str,
    pub(super) caller: Option<Caller>,
    /// Whether the caller has a session or a token.
    pub(super) has_tokens: bool,
    pub(super) flash: Option<&'static str>,
    /// The topics of the page's stream of events, joined by commas; empty: no stream.
    pub(super) live: &'static str,
    /// The hash in the path of assets.
    pub(super) assets: &'static str,
}

impl PageFrame {
    /// The surroundings for a caller who is not known.
    pub(super) fn anonymous(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            here: "",
            caller: None,
            has_tokens: false,
            flash: None,
            live: "",
            assets: assets::hash(),
        }
    }

    /// Returns whether the page belongs to this entry of the navigation.
    pub(super) fn is_at(&self, path: &str) -> bool {
        self.here == path
    }

    /// Returns whether the navigation shows pages for admins.
    pub(super) fn shows_audit(&self) -> bool {
        self.caller.as_ref().is_some_and(Caller::administers)
    }
}

/// A request for a page.
pub(super) struct Visit {
    pub(super) state: UiState,
    pub(super) caller: Caller,
    /// The key that the query names, byte by byte.
    pub(super) key: PageKey,
    query: BTreeMap<String, String>,
}

impl Visit {
    pub(super) fn host(&self) -> &dyn AdminHost {
        &*self.state.host
    }

    /// Returns a parameter of the query, without blanks around it; empty if it is not there.
    pub(super) fn query(&self, name: &str) -> &str {
        self.query.get(name).map_or("", |value| value.trim())
    }

    /// Returns a parameter that is not empty.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        Some(self.query(name)).filter(|value| !value.is_empty())
    }

    pub(super) fn frame(&self, title: impl Into<String>, here: &'static str) -> PageFrame {
        let code = self.query("did");
        PageFrame {
            title: title.into(),
            here,
            caller: Some(self.caller.clone()),
            has_tokens: self.state.access.has_tokens(),
            flash: FLASHES.iter().find(|(known, _)| *known == code).map(|(_, text)| *text),
            live: "",
            assets: assets::hash(),
        }
    }

    pub(super) fn actor(&self) -> Actor {
        self.caller.actor(Via::Ui)
    }
}

/// Answers a request without a session: a page is shown after the login, and a form can be sent
/// again.
fn unknown_caller(parts: &Parts, problem: Problem) -> Response {
    if parts.method == Method::GET {
        let page = parts.uri.path_and_query().map_or("/ui/", PathAndQuery::as_str);
        return Redirect::to(&format!("/ui/login?next={}", format::encode(page))).into_response();
    }
    if parts.headers.contains_key(header::AUTHORIZATION) {
        return PageRefusal::from(problem).into_response();
    }
    let detail = "Your session has ended, so nothing was done. Log in in another tab, then reload \
                  this page to send the form again.";
    PageRefusal::new(problem.status, detail).into_response()
}

impl FromRequestParts<UiState> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &UiState) -> Result<Self, Response> {
        let address = parts.extensions.get::<ClientAddress>().copied().unwrap_or_default();
        let caller = match state.access.caller(&parts.headers, address) {
            Ok(caller) => caller,
            Err(problem) if problem.status == StatusCode::UNAUTHORIZED => {
                return Err(unknown_caller(parts, problem));
            }
            Err(problem) => return Err(PageRefusal::from(problem).into_response()),
        };
        if !caller.reads() {
            return Err(PageRefusal::forbidden("read pages").into_response());
        }
        let query = Query::<BTreeMap<String, String>>::try_from_uri(&parts.uri);
        let Ok(Query(query)) = query else {
            let refusal =
                PageRefusal::new(StatusCode::BAD_REQUEST, "The address is not well formed.");
            return Err(refusal.into_response());
        };
        let key = PageKey::of_query(parts.uri.query().unwrap_or_default());
        Ok(Self { state: state.clone(), caller, key, query })
    }
}

/// A form that a page of this server sent.
pub(super) struct Posted {
    pub(super) visit: Visit,
    fields: BTreeMap<String, String>,
}

impl Posted {
    /// Returns a field without blanks around it; empty if it is not there.
    pub(super) fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", |value| value.trim())
    }

    /// Returns a field that is not empty.
    pub(super) fn given(&self, name: &str) -> Option<String> {
        Some(self.field(name)).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// Returns the key that the form is about, byte by byte.
    pub(super) fn key(&self) -> PageKey {
        let key = self.fields.get("key").map_or("", String::as_str);
        PageKey::of_fields(self.field("exact"), key.as_bytes())
    }

    /// Returns the version that the form was made for; `None` for something new.
    pub(super) fn version(&self) -> Result<Option<u64>, PageRefusal> {
        self.given("version").map(|text| text.parse()).transpose().map_err(|_| {
            PageRefusal::new(
                StatusCode::BAD_REQUEST,
                "The form has no version: open the page again.",
            )
        })
    }

    /// Returns whether the caller has said yes to the question before a destructive change.
    pub(super) fn is_confirmed(&self) -> bool {
        self.field("confirm") == "yes"
    }
}

impl FromRequest<UiState> for Posted {
    type Rejection = Response;

    async fn from_request(request: Request, state: &UiState) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::from_request_parts(&mut parts, state).await?;
        let request = Request::from_parts(parts, body);
        let fields = read_form(request).await.map_err(IntoResponse::into_response)?;
        Ok(Self { visit, fields })
    }
}

/// Reads the fields of a form, within the time of a body.
pub(super) async fn read_form(request: Request) -> Result<BTreeMap<String, String>, PageRefusal> {
    match timeout(BODY_TIME_MAX, Form::from_request(request, &())).await {
        Ok(Ok(Form(fields))) => Ok(fields),
        Ok(Err(error)) => Err(PageRefusal::new(error.status(), error.body_text())),
        Err(_) => {
            let detail = "The form took longer than 10 s to arrive.";
            Err(PageRefusal::new(StatusCode::REQUEST_TIMEOUT, detail))
        }
    }
}

/// A page that says why a request was not served.
#[derive(Debug)]
pub(super) struct PageRefusal {
    pub(super) status: StatusCode,
    pub(super) detail: String,
}

impl PageRefusal {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into() }
    }

    /// The caller's role does not allow the `deed`.
    pub(super) fn forbidden(deed: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, format!("Your token does not allow you to {deed}."))
    }
}

impl From<Problem> for PageRefusal {
    fn from(problem: Problem) -> Self {
        Self::new(problem.status, problem.detail)
    }
}

impl From<ServiceError> for PageRefusal {
    fn from(error: ServiceError) -> Self {
        let status = match &error {
            ServiceError::NotFound(_) => StatusCode::NOT_FOUND,
            ServiceError::Invalid { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            ServiceError::Conflict(_) => StatusCode::CONFLICT,
            ServiceError::Changed(_) => StatusCode::PRECONDITION_FAILED,
            ServiceError::Full(_) => StatusCode::INSUFFICIENT_STORAGE,
            ServiceError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

#[derive(Template)]
#[template(path = "refusal.html")]
struct RefusalPage {
    frame: PageFrame,
    status: StatusCode,
    detail: String,
}

impl IntoResponse for PageRefusal {
    fn into_response(self) -> Response {
        let frame = PageFrame::anonymous(self.status.canonical_reason().unwrap_or("Error"));
        render(self.status, &RefusalPage { frame, status: self.status, detail: self.detail })
    }
}

/// The reply to a request: a page, or a page that says why not.
pub(super) type PageResult = Result<Response, PageRefusal>;

/// Renders a page.
pub(super) fn render(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => (status, Html(text)).into_response(),
        // Rendering fails only if a value cannot be printed.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Renders a page that was asked for.
pub(super) fn page(page: &impl Template) -> Response {
    render(StatusCode::OK, page)
}

/// Leads the browser to the page that shows the result of a form. `code` is one of [`FLASHES`].
pub(super) fn redirect(path: &str, code: &str) -> Response {
    let separator = if path.contains('?') { '&' } else { '?' };
    Redirect::to(&format!("{path}{separator}did={code}")).into_response()
}

/// Returns the path of a limit's page.
pub(super) fn limit_path(name: &str) -> String {
    format!("/ui/limit?name={}", format::encode(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_messages_are_unique() {
        let mut codes: Vec<&str> = FLASHES.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), FLASHES.len());
    }
}
