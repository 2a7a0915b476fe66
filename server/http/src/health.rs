//! `/livez` and `/readyz`: one word for a probe, or each check in its line.

use std::fmt::Write as _;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::host::Check;

/// The reply to a probe: 200 if all checks hold, otherwise 503 with those that do not. `verbose`
/// lists all of them.
pub(crate) fn reply(checks: &[Check], verbose: bool) -> Response {
    let holds = checks.iter().all(Check::holds);
    let mut text = String::new();
    for check in checks.iter().filter(|check| verbose || !check.holds()) {
        // Writing to a String cannot fail.
        let _ = match &check.fault {
            None => writeln!(text, "[+] {} ok", check.name),
            Some(fault) => writeln!(text, "[-] {}: {fault}", check.name),
        };
    }
    text.push_str(if holds { "ok\n" } else { "failed\n" });
    let status = if holds { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text).into_response()
}
