//! Errors as `application/problem+json`.
//! Source: RFC 9457.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::host::ServiceError;

/// An error of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// One sentence that names the cause and the remedy.
    pub(crate) detail: String,
    /// The line of a limit's text with the mistake, from 1.
    pub(crate) line: Option<usize>,
    /// The present version of a thing that has changed, also as `ETag`.
    pub(crate) version: Option<u64>,
    /// The time after which the request may succeed, in seconds: `Retry-After`.
    pub(crate) retry_s: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), line: None, version: None, retry_s: None }
    }
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        let detail = error.to_string();
        match error {
            ServiceError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, detail),
            ServiceError::Invalid { line: None, .. } => Self::new(StatusCode::BAD_REQUEST, detail),
            ServiceError::Invalid { line, .. } => {
                Self { line, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail) }
            }
            ServiceError::Conflict(_) => Self::new(StatusCode::CONFLICT, detail),
            ServiceError::Changed(version) => {
                let problem = Self::new(StatusCode::PRECONDITION_FAILED, detail);
                Self { version: Some(version), ..problem }
            }
            ServiceError::Full(_) => Self::new(StatusCode::INSUFFICIENT_STORAGE, detail),
            ServiceError::Unavailable(_) => Self::new(StatusCode::SERVICE_UNAVAILABLE, detail),
        }
    }
}

/// The members of a problem, in the order of the text.
#[derive(Serialize)]
struct ProblemBody<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("error"),
            status: self.status.as_u16(),
            detail: &self.detail,
            line: self.line,
            version: self.version,
        };
        // A struct of numbers and text is always JSON.
        let body = serde_json::to_string(&body).unwrap_or_default();
        let kind = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, [(header::CONTENT_TYPE, kind)], body).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(version) = self.version {
            headers.insert(header::ETAG, etag(version));
        }
        if let Some(seconds) = self.retry_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// The `ETag` of a version.
pub(crate) fn etag(version: u64) -> HeaderValue {
    // Digits in quotation marks are always a header value.
    HeaderValue::from_str(&format!("\"{version}\""))
        .unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_service_have_one_status_each() {
        let text = || "it is so".to_owned();
        let invalid = |line| ServiceError::Invalid { detail: text(), line };
        for (error, status, line, version) in [
            (ServiceError::NotFound(text()), 404, None, None),
            (invalid(None), 400, None, None),
            (invalid(Some(3)), 422, Some(3), None),
            (ServiceError::Conflict(text()), 409, None, None),
            (ServiceError::Changed(9), 412, None, Some(9)),
            (ServiceError::Full(text()), 507, None, None),
            (ServiceError::Unavailable(text()), 503, None, None),
        ] {
            let problem = Problem::from(error);
            assert_eq!(
                (problem.status.as_u16(), problem.line, problem.version),
                (status, line, version)
            );
            let response = problem.into_response();
            let tag = response.headers().get(header::ETAG).map(HeaderValue::as_bytes);
            assert_eq!(tag, version.map(|_| b"\"9\"".as_slice()));
        }
    }
}
