//! The HTTP API of real servers: a client of it, and a server whose API answers.
//!
//! Here: requests and replies. Not here: the listener itself (`http`), an incident (`incident`), a
//! cluster (`cluster::steered`), each path by itself (`server/http`).

mod access;
mod commands;
mod description;
mod hang_ups;
mod limits;
mod override_files;
pub(crate) mod overrides;
pub(crate) mod pages;
pub(crate) mod shop;

use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::free_port;
use crate::live::{Program, Server};

/// The longest time for a reply. A server gives up after 30 s.
const REPLY_MAX: Duration = Duration::from_secs(40);

/// A reply of the API.
#[derive(Debug)]
pub(crate) struct ApiReply {
    pub(crate) status: u16,
    head: String,
    /// The version in the `ETag`.
    pub(crate) version: Option<String>,
    text: String,
    /// The body as JSON; null if it is none.
    pub(crate) body: Value,
}

impl ApiReply {
    /// The reason in a problem.
    pub(crate) fn detail(&self) -> &str {
        self.body["detail"].as_str().unwrap_or_default()
    }

    /// The number of the change.
    #[track_caller]
    pub(crate) fn seq(&self) -> u64 {
        self.body["seq"].as_u64().unwrap_or_else(|| panic!("no change: {self:?}"))
    }
}

/// A client of the API at one address, with a token or without.
#[derive(Debug, Clone)]
pub(crate) struct TestedApi {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
}

impl TestedApi {
    /// A client without a token.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, token: None }
    }

    /// The same with a token.
    fn with_token(&self, token: &str) -> Self {
        Self { address: self.address, token: Some(token.to_owned()) }
    }

    /// Sends a request to any path, with these headers and this body.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[&str], body: &str) -> ApiReply {
        self.try_send(method, path, headers, body).expect("the listener answers")
    }

    /// [`TestedApi::send`] to a server that may end meanwhile.
    fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &str,
    ) -> io::Result<ApiReply> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(REPLY_MAX))?;
        let token = self.token.iter().map(|token| format!("Authorization: Bearer {token}"));
        let host = "Host: localhost".to_owned();
        let host = (!headers.iter().any(|line| line.starts_with("Host:"))).then_some(host);
        let headers = headers.iter().map(|line| (*line).to_owned());
        let lines: Vec<String> = host.into_iter().chain(token).chain(headers).collect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            lines.join("\r\n"),
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, text) = text.split_once("\r\n\r\n").ok_or(ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let version = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("etag").then(|| value.to_owned())
        });
        Ok(ApiReply {
            status: status.expect("a status"),
            head: head.to_owned(),
            version,
            body: serde_json::from_str(text).unwrap_or_default(),
            text: text.to_owned(),
        })
    }

    /// Sends JSON or a limits file to a path below `/api/v1/` of a server that may end meanwhile.
    pub(crate) fn try_ask(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: &str,
    ) -> io::Result<ApiReply> {
        let kind = if body.starts_with('{') { "json" } else { "toml" };
        let condition = version.map(condition);
        let kind = (!body.is_empty()).then(|| format!("Content-Type: application/{kind}"));
        let headers: Vec<String> = condition.into_iter().chain(kind).collect();
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.try_send(method, &format!("/api/v1/{path}"), &headers, body)
    }

    /// Sends JSON to a path below `/api/v1/`. A `version` of `*` creates something.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: Option<&Value>,
    ) -> ApiReply {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.try_ask(method, path, version, &body).expect("the listener answers")
    }

    /// Reads a path that is there.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let reply = self.ask("GET", path, None, None);
        assert_eq!(reply.status, 200, "GET {path}: {}", reply.text);
        reply.body
    }

    /// Puts a limit and returns the number of the change.
    #[track_caller]
    pub(crate) fn put(&self, name: &str, toml: &str, version: &str) -> u64 {
        let path = format!("limits/{}", name.replace('/', "%2F"));
        let reply = self.ask("PUT", &path, Some(version), Some(&json!({ "toml": toml })));
        assert!(matches!(reply.status, 200 | 201), "{toml}: {reply:?}");
        reply.seq()
    }

    /// The present version of a limit.
    #[track_caller]
    pub(crate) fn version(&self, name: &str) -> String {
        let reply = self.ask("GET", &format!("limits/{name}"), None, None);
        reply.version.unwrap_or_else(|| panic!("{name} has no version"))
    }

    /// Asks until `is_so`, for at most `limit`.
    #[track_caller]
    pub(crate) fn until(
        &self,
        path: &str,
        limit: Duration,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let start = Instant::now();
        loop {
            let body = self.get(path);
            if is_so(&body) {
                return body;
            }
            assert!(start.elapsed() < limit, "GET {path} still says {body}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The header for a change of what has this version; `*`: of what is not there.
fn condition(version: &str) -> String {
    match version {
        "*" => "If-None-Match: *".to_owned(),
        version => format!("If-Match: {version}"),
    }
}

/// A server and its API.
#[derive(Debug)]
pub(crate) struct Operated {
    pub(crate) server: Server,
    pub(crate) api: TestedApi,
}

impl Operated {
    /// Starts a server; `{folder}` in a flag is its folder.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self::start_in(flags, folder)
    }

    /// Starts in a folder with files.
    pub(crate) fn start_in(flags: &[&str], folder: tempfile::TempDir) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let http = address.to_string();
        let flags = [&["--http", &http, "-t", "2"], flags].concat();
        let server = Server::start_in(Program::Tollgate, &flags, folder);
        let mut operated = Self { server, api: TestedApi::new(address) };
        let api = operated.api.clone();
        let is_ready = || {
            TcpStream::connect(address).is_ok() && api.send("GET", "/readyz", &[], "").status == 200
        };
        operated.server.until("the API answers", |_| is_ready());
        operated
    }
}

/// The text of a limit: its name, its pattern, its policy and more lines.
fn limit_text(name: &str, pattern: &str, policy: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nmatch = \"{pattern}\"\npolicy = \"{policy}\"\n{more}")
}

/// Writes the limits file of a folder and returns its path.
pub(crate) fn write_limits(folder: &Path, text: &str) -> String {
    let path = folder.join("limits.toml");
    fs::write(&path, text).expect("the folder is ours");
    path.to_string_lossy().into_owned()
}

/// A new token of a role, and its line for the tokens file.
fn make_token(name: &str, role: &str) -> (String, String) {
    let made = Command::new(Program::Tollgate.path()).args(["token", name, role]).output();
    let made = made.expect("the program runs");
    let made = String::from_utf8(made.stdout).expect("output is UTF-8");
    let (token, line) = made.trim_end().split_once('\n').expect("a token and its line");
    (token.to_owned(), line.to_owned())
}

/// The folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
