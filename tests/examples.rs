//! The programs of `examples/`, and unmodified limiter libraries, on keys that limits match.
//!
//! Here: each runs on the limits file beside it and prints the expected lines. The actions of a
//! library are a script in `clients/`; it also runs on a server without limits. Not here: the wire
//! (the transcripts). `tests/setup.sh` installs the required programs.

use std::{env, fs, path::Path};

use tollgate_limits::Limits;

use crate::clients::run;
use crate::live::{Program, Server};

const PYMEMCACHE: &[&str] = &["python", "-c", "import pymemcache"];

/// A server with a limits file of `examples/`.
fn with_limits(file: &str) -> Server {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(file);
    Server::start_as(Program::Tollgate, &["--limits", &file.to_string_lossy()])
}

/// Runs an example twice, because its leftovers must not disturb it. It prints these lines.
#[track_caller]
fn shows(probe: &[&str], words: &[&str], lines: &[&str]) {
    let mut server = with_limits("limits.toml");
    let address = server.address().to_string();
    for _ in 0..2 {
        let said = run(&mut server, probe, &[words, &[&address]].concat());
        for line in lines {
            assert!(said.contains(line), "{}: no `{line}` in:\n{said}", words.join(" "));
        }
    }
}

#[test]
fn python_login() {
    let lines = [
        "192.0.2.7: try try try try try wait wait\n",
        "192.0.2.7, after a success: try\n",
        "10.1.2.3, the office: always\n",
        "203.0.113.66, blocked: never\n",
    ];
    shows(PYMEMCACHE, &["python", "../../examples/login.py"], &lines);
}

#[test]
fn python_api_key() {
    let lines = [
        "call 1: 200 {'X-RateLimit-Limit': 150, 'X-RateLimit-Remaining': 149, ",
        "call 150: 200 {'X-RateLimit-Limit': 150, 'X-RateLimit-Remaining': 0, ",
        "call 151: 429 {'X-RateLimit-Limit': 150, 'X-RateLimit-Remaining': 0, ",
        "after 10 were given back: 11 refused, 10 allowed\n",
    ];
    shows(PYMEMCACHE, &["python", "../../examples/api_key.py"], &lines);
}

#[test]
fn python_tenants() {
    let lines = [
        "acme, cid: 30 of 40\n",
        "acme, dora: 10 of 40\n",
        "acme used 100 of 100, dora 10 of 30\n",
        "acme, dora: 5 more, that ann gave back\n",
    ];
    shows(PYMEMCACHE, &["python", "../../examples/tenants.py"], &lines);
}

#[test]
fn python_verdict() {
    let lines = [
        "first call: ALLOW 150 149 0\n",
        "dearer than the limit: DENY -1\n",
        "one too many: DENY 0\n",
        "no answer: calls are allowed, logins are not\n",
    ];
    shows(PYMEMCACHE, &["python", "../../examples/verdict.py"], &lines);
}

#[test]
fn python_llm_tokens() {
    let lines = [
        "a prompt that may need 60000: ALLOW, 40000 left\n",
        "another one beside it: DENY, in 12 s\n",
        "the other one again: ALLOW\n",
    ];
    shows(&["python", "-c", ""], &["python", "../../examples/llm_tokens.py"], &lines);
}

#[test]
fn node_api_key() {
    let lines = ["200 calls at once: 150 allowed, 50 refused\n", "one more: 429 {"];
    shows(&["node", "-e", "require('memcached')"], &["node", "../../examples/api_key.js"], &lines);
}

#[test]
fn php_login() {
    let probe = ["php", "-r", "exit(extension_loaded('memcached') ? 0 : 1);"];
    let lines = [
        "198.51.100.4: try try try try try wait wait\n",
        "198.51.100.4, after a success: try\n",
        "203.0.113.66, blocked: wait\n",
    ];
    shows(&probe, &["php", "../../examples/login.php"], &lines);
}

#[test]
fn rust_bytes() {
    // The test executable is target/<profile>/deps/tests-<hash>.
    let executable = env::current_exe().expect("a test knows its executable");
    let profile = executable.ancestors().nth(2).expect("cargo keeps tests two folders deep");
    let bytes = profile.join("examples/bytes");
    assert!(bytes.exists(), "{} is missing: `cargo test -p tests` builds it", bytes.display());
    shows(&["true"], &[&bytes.to_string_lossy()], &[" ms:  96 KiB\n", "\n96 KiB, "]);
}

#[test]
fn netcat_native() {
    let lines = [
        "> take sh:mail 3 bucket:5/h\n< ALLOW 5 2 0 2160000\n",
        "> take api:sh 1 -\n< ALLOW 150 149 0 ",
        "\n< SETTLED 100000 8",
        "> takem 25 user:sh:ann user:sh:bob\n< ALLOW 30 5 0 ",
    ];
    shows(&["nc", "-h"], &["sh", "../../examples/native.sh"], &lines);
}

/// Runs a library's script: on keys that a limit matches, and on a server without limits.
#[track_caller]
fn serves(probe: &[&str], script: &[&str]) {
    for (mut server, mode) in [
        (with_limits("libraries.toml"), "bound"),
        (Server::start_as(Program::Tollgate, &[]), "plain"),
    ] {
        let (host, port) = (server.address().ip().to_string(), server.address().port().to_string());
        run(&mut server, probe, &[script, &[&host, &port, mode]].concat());
    }
}

#[test]
fn python_limits() {
    serves(&["python", "-c", "import limits"], &["python", "with_limits.py"]);
}

#[test]
fn flask_limiter() {
    serves(&["python", "-c", "import flask_limiter"], &["python", "with_flask_limiter.py"]);
}

#[test]
fn django_ratelimit() {
    serves(&["python", "-c", "import django_ratelimit"], &["python", "with_django_ratelimit.py"]);
}

#[test]
fn node_rate_limiter_flexible() {
    let probe = ["node", "-e", "require('rate-limiter-flexible')"];
    serves(&probe, &["node", "with_rate_limiter_flexible.js"]);
}

#[test]
fn the_limits_of_the_readme_are_good() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/README.md");
    let text = fs::read_to_string(readme).expect("examples have a README");
    let blocks = text.split("```toml\n").skip(1);
    let blocks: Vec<_> = blocks.filter_map(|rest| rest.split_once("```")).collect();
    assert!(blocks.len() >= 3, "each library has its limits");
    for (block, _) in blocks {
        if let Err(error) = Limits::parse("README.md", block.as_bytes()) {
            panic!("{error}\n{block}");
        }
    }
}
