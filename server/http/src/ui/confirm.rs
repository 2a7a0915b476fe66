//! The question before a destructive change, and the page after a change of another hand.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

use crate::diff::DiffLine;

use super::visit::{PageFrame, page, render};

/// A question before a destructive change. It names the effect; the button sends the form again.
#[derive(Template)]
#[template(path = "confirm.html")]
pub(super) struct ConfirmPage {
    pub(super) frame: PageFrame,
    /// The effect, a sentence each.
    pub(super) effects: Vec<String>,
    pub(super) diff: Vec<DiffLine>,
    pub(super) action: &'static str,
    /// The fields of the form, sent again.
    pub(super) hidden: Vec<(&'static str, String)>,
    pub(super) button: &'static str,
    /// The page to return to without a change.
    pub(super) back: String,
    /// The word to type, if one is asked for.
    pub(super) typed: Option<String>,
    pub(super) error: Option<&'static str>,
}

impl ConfirmPage {
    pub(super) fn reply(&self) -> Response {
        match self.error {
            None => page(self),
            Some(_) => render(StatusCode::UNPROCESSABLE_ENTITY, self),
        }
    }
}

/// A change that was refused because another one came first: the present text beside the sender's.
#[derive(Template)]
#[template(path = "conflict.html")]
pub(super) struct ConflictPage {
    pub(super) frame: PageFrame,
    /// The thing, such as `the limit login`.
    pub(super) subject: String,
    /// The present text; `None`: the thing is gone.
    pub(super) present: Option<String>,
    /// The sender's text; `None`: a removal.
    pub(super) yours: Option<String>,
    pub(super) diff: Vec<DiffLine>,
    /// The form that sends the change again for the present version; empty if it makes no sense.
    pub(super) action: &'static str,
    pub(super) hidden: Vec<(&'static str, String)>,
    pub(super) button: String,
    pub(super) back: String,
}

impl ConflictPage {
    pub(super) fn reply(&self) -> Response {
        render(StatusCode::PRECONDITION_FAILED, self)
    }
}
