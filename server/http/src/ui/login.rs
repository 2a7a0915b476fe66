//! The exchange of a token for a session.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};

use crate::caller::ClientAddress;

use super::visit::{PageFrame, PageResult, UiState, read_form, render};

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    frame: PageFrame,
    needs_token: bool,
    error: Option<String>,
}

fn form(state: &UiState, status: StatusCode, error: Option<String>) -> Response {
    let frame = PageFrame::anonymous("Log in");
    render(status, &LoginPage { frame, needs_token: state.access.has_tokens(), error })
}

pub(super) async fn show(State(state): State<UiState>) -> Response {
    form(&state, StatusCode::OK, None)
}

pub(super) async fn submit(State(state): State<UiState>, request: Request) -> PageResult {
    let headers = request.headers().clone();
    let page = page_after(request.uri());
    let address = address_of(&request);
    let fields = read_form(request).await?;
    let token = fields.get("token").map_or("", |token| token.trim());
    match state.access.login(token, address) {
        Ok(id) => Ok(with_cookie(state.access.cookie(&headers, &id), Redirect::to(&page))),
        Err(problem) => Ok(form(&state, problem.status, Some(problem.detail))),
    }
}

pub(super) async fn end(State(state): State<UiState>, request: Request) -> PageResult {
    let headers = request.headers();
    state.access.logout(headers, address_of(&request));
    Ok(with_cookie(state.access.ended_cookie(headers), Redirect::to("/ui/login")))
}

/// Returns the page that led to the login, or the overview. A link to the login leads to no other
/// site.
fn page_after(login: &Uri) -> String {
    let query = Query::<BTreeMap<String, String>>::try_from_uri(login).unwrap_or_default();
    let next = query.get("next").map_or("", String::as_str);
    let is_page = next.starts_with("/ui/")
        && !["/ui/login", "/ui/logout"].iter().any(|path| next.starts_with(path))
        && next.bytes().all(|byte| byte.is_ascii_graphic());
    if is_page { next.to_owned() } else { "/ui/".to_owned() }
}

/// The address of a request's sender.
fn address_of(request: &Request) -> ClientAddress {
    request.extensions().get().copied().unwrap_or_default()
}

fn with_cookie(cookie: HeaderValue, to: Redirect) -> Response {
    let mut response = to.into_response();
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
}
