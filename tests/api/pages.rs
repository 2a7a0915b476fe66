//! The pages of a real server in Chromium, during the traffic of a shop.
//!
//! Here: the server, its tokens and what it must have recorded. The flows are in
//! `tests/ui/real.js`; `tests/setup.sh` installs node's packages and Chromium. Not here: a fake
//! host, accessibility (`server/http/tests/ui.rs`), the pictures (`cluster::pictures`).

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::shop::{ShopTraffic, log_users_in, put_limits};
use super::{Operated, make_token, root};

/// Runs flows in a browser.
#[track_caller]
pub(crate) fn run_flows(script: &str, words: &[&str]) {
    let modules = crate::http::target().join("clients/ui/node_modules");
    let status = Command::new("node")
        .arg(root().join("tests/ui").join(script))
        .args(words)
        .env("NODE_PATH", modules)
        .current_dir(root())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "see above, or run tests/setup.sh");
}

/// Makes a token for an admin, an editor, a member of the support team and a viewer. Returns them
/// in this order, in which the scripts take them, and the path of their tokens file in `folder`.
pub(crate) fn make_team(folder: &Path) -> (Vec<String>, String) {
    let roles = [("ada", "admin"), ("eve", "editor"), ("sue", "support"), ("vera", "viewer")];
    let (tokens, lines): (Vec<_>, Vec<_>) =
        roles.iter().map(|(name, role)| make_token(name, role)).unzip();
    let path = folder.join("tokens");
    fs::write(&path, lines.join("\n")).expect("the folder is ours");
    (tokens, path.to_string_lossy().into_owned())
}

#[test]
fn operators_reach_their_aims_on_a_real_server() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (tokens, path) = make_team(folder.path());
    let flags = ["--limits-store", "{folder}/store", "--tokens", &path];
    let mut operated = Operated::start_in(&flags, folder);
    operated.api.token = Some(tokens[0].clone());
    put_limits(&operated.api);
    log_users_in(operated.server.address());
    let traffic = ShopTraffic::start(&[operated.server.address()]);
    let site = format!("http://{}", operated.api.address);
    let words: Vec<&str> =
        std::iter::once(site.as_str()).chain(tokens.iter().map(String::as_str)).collect();
    run_flows("real.js", &words);
    drop(traffic);

    // What the pages said has happened.
    let audit = operated.api.get("audit?limit=1000");
    let rows = audit["changes"].as_array().expect("a list");
    let has = |by: &str, via: &str, what: &str, name: &str| {
        let of = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
        rows.iter().any(|row| {
            of(row, "by") == by
                && of(row, "via") == via
                && of(row, "what") == what
                && of(row, "name") == name
        })
    };
    for (by, via, what, name) in [
        ("eve", "ui", "limit", "checkout"),
        ("eve", "ui", "limit", "login"),
        ("sue", "ui", "override", "login"),
        ("ada", "api", "limit", "login"),
    ] {
        assert!(has(by, via, what, name), "{by} {via} {what} {name}: {audit}");
    }
    assert!(rows.iter().any(|row| row["via"] == "expiry" && row["key"] == "login:alice"));
    assert!(!rows.iter().any(|row| row["by"] == "vera"), "{audit}");
    let log = operated.server.log();
    assert!(log.contains("reset login:bob") && log.contains("refund 2 to login:bob"), "{log}");
}
