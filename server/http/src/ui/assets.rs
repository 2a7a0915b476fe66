//! The files of the pages: styles, modules and the icon, embedded in the program.
//!
//! All of them share one hash in their path, so that modules can import each other by name, and
//! browsers keep them for ever.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Each file: its name, its type, its bytes.
pub(super) const ASSETS: [(&str, &str, &[u8]); 7] = [
    ("app.css", STYLE, include_bytes!("../../assets/app.css")),
    ("app.js", SCRIPT, include_bytes!("../../assets/app.js")),
    ("charts.js", SCRIPT, include_bytes!("../../assets/charts.js")),
    ("policy.js", SCRIPT, include_bytes!("../../assets/policy.js")),
    ("tail.js", SCRIPT, include_bytes!("../../assets/tail.js")),
    ("theme.js", SCRIPT, include_bytes!("../../assets/theme.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../../assets/icon.svg")),
];

/// The first 12 hexadecimal digits of the SHA-256 of all files.
static ASSETS_HASH: LazyLock<String> = LazyLock::new(|| {
    let mut sum = Sha256::new();
    for (name, _, bytes) in ASSETS {
        sum.update(name);
        sum.update([0]);
        sum.update(bytes);
    }
    let mut text = String::new();
    for byte in &sum.finalize()[..6] {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
});

/// Returns the hash in the path of every file.
pub(super) fn hash() -> &'static str {
    &ASSETS_HASH
}

/// Answers `/assets/<hash>/<name>`.
pub(super) async fn serve(Path((hash, name)): Path<(String, String)>) -> Response {
    let found = ASSETS.iter().find(|(known, _, _)| *known == name);
    let Some((_, kind, bytes)) = found.filter(|_| hash == *ASSETS_HASH) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let keep = HeaderValue::from_static("public, max-age=31536000, immutable");
    let kind = HeaderValue::from_static(kind);
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, keep)], *bytes).into_response()
}
