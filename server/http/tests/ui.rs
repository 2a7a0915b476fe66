//! The pages in a browser: a listener with a fake host, and Chromium that walks through it.
//!
//! Here: the servers, and the changes that must have reached the host. The flows themselves are in
//! `tests/ui/flows.js`. `tests/setup.sh` installs node's packages and Chromium; without them the
//! test fails. Not here: a real host (`tests/http.rs`).

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tollgate_http::{Access, AdminListener, Tokens, new_token, serve};

use crate::steered_host::SteeredHost;

#[path = "../src/fake_host.rs"]
#[allow(dead_code)]
mod fake_host;
#[path = "ui/steered_host.rs"]
mod steered_host;

/// The names under which the fake host imports the package.
mod host {
    pub(crate) use tollgate_http::*;
}
mod metrics {
    pub(crate) use tollgate_http::MetricFamily;
}

/// Serves the pages of a host and returns their address. The thread ends with the test.
fn open(host: Arc<SteeredHost>, access: Access) -> String {
    let listener = AdminListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.address().expect("it is bound");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let routes = tollgate_http::router(host, Arc::new(access));
        let served = serve(listener, None, routes, Box::pin(std::future::pending()));
        runtime.expect("a runtime").block_on(served).expect("the socket stays");
    });
    format!("http://{address}")
}

/// The folder where `tests/setup.sh` installs node's packages.
fn installed() -> PathBuf {
    // The test executable is target/<profile>/deps/ui-<hash>.
    let executable = env::current_exe().expect("a test knows its executable");
    executable.ancestors().nth(3).expect("cargo keeps tests two folders deep").join("clients/ui")
}

#[test]
fn operators_reach_their_aims_in_a_browser() {
    let host = Arc::new(SteeredHost::default());
    let (admin, viewer) = (new_token([1; 32]), new_token([2; 32]));
    let lines = format!("alice admin {}\nvera viewer {}\n", admin.1, viewer.1);
    let tokens = Tokens::parse(Path::new("tokens"), &lines).expect("it is well formed");
    let free = open(host.clone(), Access::default());
    let guarded = open(host.clone(), Access::new(Vec::new(), Some(tokens), false));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let status = Command::new("node")
        .arg(root.join("tests/ui/flows.js"))
        .args([&free, &guarded, &admin.0, &viewer.0])
        .env("NODE_PATH", installed().join("node_modules"))
        .current_dir(root)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "see above, or run tests/setup.sh");
    let changes: BTreeSet<String> = host.changes().into_iter().collect();
    for expected in [
        "put checkout by -",
        "remove checkout by -",
        "revert login to 1 by -",
        "override login:alice is block by -",
        "reset login:alice by -",
        "refund 2 login:alice by -",
        "drain n2 by -",
    ] {
        assert!(changes.contains(expected), "{expected} is not among {changes:#?}");
    }
    assert!(!changes.iter().any(|change| change.ends_with("by vera")), "{changes:#?}");
}
