//! `openapi.json` and the API of a real server: schemathesis makes requests from the one, and holds
//! the replies of the other to it.
//!
//! `API_FUZZ_SECONDS` is the time for each role; without it the run is short. Not here: single
//! requests (`limits`, `access`), routes and roles (`server/http`).

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};

use super::shop::{ShopTraffic, put_limits};
use super::{Operated, TestedApi, make_token, root};

/// Requests of each operation in the short run.
const EXAMPLES: &str = "3";
/// Requests that all operations together certainly get.
const REQUESTS_MIN: u64 = 300;

/// A program that `tests/setup.sh` installs.
fn installed(name: &str) -> PathBuf {
    crate::http::target().join("clients/venv/bin").join(name)
}

/// Lets schemathesis make requests as one sender and returns its report.
fn fuzz(api: &TestedApi, description: &str, role: &str) -> String {
    let mut command = Command::new(installed("schemathesis"));
    command
        .arg("--config-file")
        .arg(root().join("tests/api/schemathesis.toml"))
        .args(["run", description, "--url", &format!("http://{}", api.address)])
        .args(["--phases", "coverage,fuzzing,stateful", "--request-timeout", "20"])
        .args(["--continue-on-failure", "--output-sanitize", "false"]);
    match std::env::var("API_FUZZ_SECONDS") {
        Ok(seconds) => command.args(["--max-time", &seconds]),
        Err(_) => command.args(["--max-examples", EXAMPLES, "--seed", "29"]),
    };
    if let Some(token) = &api.token {
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let output = command
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("tests/setup.sh has installed it");
    let report = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "as {role}:\n{report}");
    report
}

/// Requests that a report counts.
fn requests(report: &str) -> u64 {
    let line = report.lines().find(|line| line.contains(" generated, "));
    let count = line.and_then(|line| line.trim().split(' ').next()?.replace(',', "").parse().ok());
    count.unwrap_or_else(|| panic!("no count in {report}"))
}

#[test]
fn replies_are_as_described_for_every_role() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let roles = ["viewer", "support", "editor", "admin"];
    let (tokens, lines): (Vec<_>, Vec<_>) = roles.iter().map(|role| make_token(role, role)).unzip();
    let path = folder.path().join("tokens");
    fs::write(&path, lines.join("\n")).expect("the folder is ours");
    let path = path.to_string_lossy().into_owned();
    let flags = ["--limits-store", "{folder}/store", "--tokens", &path];
    let Operated { mut server, api } = Operated::start_in(&flags, folder);
    let admin = api.with_token(&tokens[3]);
    put_limits(&admin);
    for (key, policy) in [("login:alice", "allow"), ("login:eve*", "block")] {
        let path = format!("limits/login/overrides/{key}");
        let put = admin.ask("PUT", &path, Some("*"), Some(&json!({ "policy": policy })));
        assert_eq!(put.status, 201, "{put:?}");
    }
    let traffic = ShopTraffic::start(&[server.address()]);

    let described = admin.send("GET", "/api/v1/openapi.json", &[], "");
    let description = server.folder().join("openapi.json");
    fs::write(&description, &described.text).expect("the folder is ours");
    let checked = Command::new(installed("openapi-spec-validator")).arg(&description).output();
    let checked = checked.expect("tests/setup.sh has installed it");
    assert!(checked.status.success(), "{checked:?}");

    let description = description.to_string_lossy().into_owned();
    let senders: Vec<(&str, TestedApi)> = std::iter::once(("nobody", api.clone()))
        .chain(roles.into_iter().zip(tokens.iter().map(|token| api.with_token(token))))
        .collect();
    let reports: Vec<String> = thread::scope(|scope| {
        let runs: Vec<_> = senders
            .iter()
            .map(|(role, api)| scope.spawn(|| fuzz(api, &description, role)))
            .collect();
        // A run that fails ends the test with its own report.
        runs.into_iter().map(|run| run.join().expect("see above")).collect()
    });
    for report in &reports {
        assert!(requests(report) >= REQUESTS_MIN, "{report}");
        if std::env::var_os("API_FUZZ_SECONDS").is_some() {
            println!("{report}");
        }
    }
    drop(traffic);
    assert_eq!(server.exited(), None, "{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    let status: Value = admin.get("status");
    assert_eq!(status["role"], json!("alone"), "{status}");
}
