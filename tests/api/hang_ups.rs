//! Clients of the API that hang up before they are answered.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{Operated, TestedApi, limit_text};

/// Requests of each kind: an answer may be faster than the end of its connection.
const ROUNDS: usize = 20;

/// Sends a request with a body below `/api/v1/`, and closes the connection at once.
fn hang_up(api: &TestedApi, request: &str, headers: &str, body: &Value) {
    let body = body.to_string();
    let (method, path) = request.split_once(' ').expect("a method and a path");
    let text = format!(
        "{method} /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(api.address).expect("the listener is bound");
    stream.write_all(text.as_bytes()).expect("the listener reads");
}

#[test]
fn changes_go_on_without_their_clients() {
    let Operated { mut server, api } = Operated::start(&["--limits-store", "{folder}/store"]);
    api.put("login", &limit_text("login", "login:{ip}", "fixed:1000/d", ""), "*");
    let taken = server.connect().ask_until("take login:a 1000 -\r\n", "\r\n");
    assert!(taken.starts_with("ALLOW"), "{taken}");
    for round in 0..ROUNDS {
        hang_up(&api, "POST keys/login:a/refund", "", &json!({ "units": 1 }));
        let path = format!("PUT limits/login/overrides/login:{round}");
        hang_up(&api, &path, "If-None-Match: *\r\n", &json!({ "policy": "block" }));
    }
    server.until("all changes are in the audit log", |server| {
        let log = server.log();
        ["refund 1 to login:a", "override put"].map(|line| log.matches(line).count())
            == [ROUNDS, ROUNDS]
    });
    assert_eq!(api.get("overrides")["total"], json!(ROUNDS));
}
