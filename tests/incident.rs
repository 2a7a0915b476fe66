//! An incident from its first sign to its end, and a limit tried on recorded traffic, as an
//! operator works on them over the API of the admin listener.
//!
//! Here: a key that floods is found, a limit is tried, put in shadow, enforced, lifted for one key
//! for a time, and taken back. Not here: each path by itself (`server/http`).

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::free_port;
use crate::live::{Program, Server};

/// Keys of which each has a few attempts: about a hundred of them are recorded.
const KEYS: u64 = 6400;
const ATTEMPTS: u64 = 3;
/// Attempts on the key that floods, in one go.
const FLOOD: usize = 20_000;
/// Requests that are sent before their replies are read.
const PIPELINE: usize = 500;
/// The key that floods.
const HOT_KEY: &str = "api:flood";

/// A server and its API.
pub(crate) struct Operated {
    pub(crate) server: Server,
    address: SocketAddr,
}

/// A reply of the API.
#[derive(Debug)]
pub(crate) struct ApiReply {
    pub(crate) status: u16,
    /// The version in the `ETag`.
    pub(crate) version: Option<String>,
    pub(crate) body: Value,
}

impl Operated {
    fn start(flags: &[&str]) -> Self {
        Self::start_in(flags, tempfile::tempdir().expect("a temporary folder can be made"))
    }

    /// Starts in the folder of an earlier server, to find the files that it left.
    pub(crate) fn start_in(flags: &[&str], folder: tempfile::TempDir) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let http = address.to_string();
        let flags = [&["--http", &http, "-t", "2"], flags].concat();
        let server = Server::start_in(Program::under_test(), &flags, folder);
        let mut operated = Self { server, address };
        let is_ready = || TcpStream::connect(address).is_ok();
        operated.server.until("the API answers", |_| is_ready());
        operated
    }

    fn ask(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: Option<&Value>,
    ) -> ApiReply {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.try_ask(method, path, version, &body).expect("the listener answers")
    }

    /// Asks a server that may end meanwhile.
    pub(crate) fn try_ask(
        &self,
        method: &str,
        path: &str,
        version: Option<&str>,
        body: &str,
    ) -> io::Result<ApiReply> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let condition = match version {
            Some("*") => "If-None-Match: *\r\n".to_owned(),
            Some(version) => format!("If-Match: {version}\r\n"),
            None => String::new(),
        };
        let kind = if body.starts_with('{') { "application/json" } else { "application/toml" };
        let request = format!(
            "{method} /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\n{condition}\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let tag = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("etag").then(|| value.to_owned())
        });
        let body = match serde_json::from_str(body) {
            Ok(body) => body,
            Err(_) if body.is_empty() => Value::Null,
            // A part of a reply is none.
            Err(error) => return Err(io::Error::other(error)),
        };
        Ok(ApiReply { status: status.ok_or(io::ErrorKind::InvalidData)?, version: tag, body })
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let reply = self.ask("GET", path, None, None);
        assert_eq!(reply.status, 200, "GET {path}: {}", reply.body);
        reply.body
    }

    /// Puts a limit and returns the number of the change.
    fn put(&self, name: &str, toml: &str, version: &str) -> u64 {
        let path = format!("limits/{name}");
        let reply = self.ask("PUT", &path, Some(version), Some(&json!({ "toml": toml })));
        assert!(matches!(reply.status, 200 | 201), "{toml}: {} {}", reply.status, reply.body);
        reply.body["seq"].as_u64().expect("a change has a number")
    }

    fn version(&self, name: &str) -> String {
        let reply = self.ask("GET", &format!("limits/{name}"), None, None);
        reply.version.expect("a limit has a version")
    }

    /// Asks until `is_so`, for at most `limit`.
    fn until(&self, path: &str, limit: Duration, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let body = self.get(path);
            if is_so(&body) {
                return body;
            }
            assert!(start.elapsed() < limit, "GET {path} still says {body}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Tries a limit on the last hour.
    fn try_limit(&self, name: &str, toml: &str) -> Value {
        // The observer drains the samples ten times a second.
        thread::sleep(Duration::from_millis(500));
        let body = json!({ "toml": toml, "minutes": 60, "scope": "node" });
        let reply = self.ask("POST", &format!("limits/{name}/try"), None, Some(&body));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.body
    }

    /// Sends an attempt on each key and returns the number of refused ones.
    fn send(&self, keys: &[String]) -> usize {
        let mut client = self.server.connect();
        let replies = keys.chunks(PIPELINE).map(|keys| {
            let requests: String = keys.iter().flat_map(|key| ["take ", key, " 1 -\r\n"]).collect();
            client.ask_until(requests + "mn\r\n", "MN\r\n")
        });
        replies.map(|reply| reply.lines().filter(|line| line.starts_with("DENY")).count()).sum()
    }

    /// Sends a few attempts on each of many keys, so slowly that no sample is dropped.
    fn send_many_keys(&self) {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("api:{key}")).collect();
        for _ in 0..ATTEMPTS {
            for some in keys.chunks(1000) {
                self.send(some);
                thread::sleep(Duration::from_millis(150));
            }
        }
    }

    /// Sends many attempts on one key and returns the number of refused ones.
    fn flood(&self) -> usize {
        self.send(&vec![HOT_KEY.to_owned(); FLOOD])
    }
}

fn limit(policy: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"api\"\nmatch = \"api:{{user}}\"\npolicy = \"{policy}\"\n{more}")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn limit_is_tried_on_recorded_traffic() {
    let operated = Operated::start(&["--limits-store", "{folder}/limits"]);
    operated.put("api", &limit("fixed:2/d", ""), "*");
    operated.send_many_keys();
    let tried = operated.try_limit("api", &limit("fixed:2/d", ""));
    assert_eq!((&tried["fidelity"], &tried["too_few"]), (&json!(1.0), &json!(false)), "{tried}");
    assert!((number(&tried["scale"]) - 64.0).abs() < 1e-9);
    let keys = number(&tried["keys"]);
    assert!((40.0..=180.0).contains(&keys), "about a hundred of {KEYS}, not {keys}");
    let share = |tried: &Value, of: &str| number(&tried[of]["denied"]);
    // Each key has the same three attempts, so the shares are exact.
    assert!((share(&tried, "now") - 1.0 / 3.0).abs() < 1e-9, "{tried}");
    assert!((share(&tried, "then") - 1.0 / 3.0).abs() < 1e-9, "{tried}");
    let tried = operated.try_limit("api", &limit("fixed:3/d", ""));
    assert!(share(&tried, "then") < 1e-9, "{tried}");
    assert_eq!(tried["newly_allowed"].as_array().map(Vec::len), Some(20), "{tried}");
    // A limit that is not there binds the same keys only where no limit did.
    let other = limit("block", "").replace("\"api\"", "\"other\"");
    let tried = operated.try_limit("other", &other);
    assert_eq!(tried["keys"], json!(0), "{tried}");
}

#[test]
fn incident_is_found_limited_and_taken_back() {
    let operated = Operated::start(&["--limits-store", "{folder}/limits"]);
    let first = operated.put("api", &limit("fixed:1000000/d", ""), "*");
    operated.send_many_keys();

    // A key floods, and is the first of the hot keys within three seconds.
    assert_eq!(operated.flood(), 0);
    let is_hot = |hot: &Value| hot["keys"][0]["key"] == HOT_KEY;
    operated.until("hotkeys?what=taken&n=5", Duration::from_secs(3), is_hot);

    // Fifty a day would not have harmed the other keys.
    let strict = limit("fixed:50/d", "");
    let tried = operated.try_limit("api", &strict);
    let harmed = tried["newly_denied"].as_array().expect("a list");
    assert!(harmed.iter().all(|key| key == HOT_KEY), "{tried}");

    // In shadow the flood passes, and the report names it.
    let shadow = limit("fixed:50/d", "shadow = true\n");
    operated.put("api", &shadow, &operated.version("api"));
    assert_eq!(operated.flood(), 0);
    let report = operated.until("limits/api/report?minutes=5", Duration::from_secs(5), |report| {
        report["shadow_denied"].as_u64() > Some(0) && report["top_shadow"][0]["key"] == HOT_KEY
    });
    assert_eq!(report["denied"], json!(0), "{report}");

    // Enforced, it is refused.
    operated.put("api", &strict, &operated.version("api"));
    assert_eq!(operated.flood(), FLOOD);

    // A partner is exempt for two seconds.
    let path = format!("limits/api/overrides/{HOT_KEY}");
    let exempt = json!({ "policy": "allow", "for_ms": 2000, "note": "partner" });
    let put = operated.ask("PUT", &path, Some("*"), Some(&exempt));
    assert!(matches!(put.status, 200 | 201), "{}", put.body);
    assert_eq!(operated.flood(), 0);
    operated.until("overrides?limit=api", Duration::from_secs(5), |list| {
        list["overrides"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(operated.flood(), FLOOD);

    // The incident is over: the first text comes back as a change of its own.
    let version = operated.version("api");
    let body = json!({ "seq": first });
    let reverted = operated.ask("POST", "limits/api/revert", Some(&version), Some(&body));
    assert_eq!(reverted.status, 200, "{}", reverted.body);
    assert_eq!(operated.flood(), 0);
    let history = operated.get("limits/api/history");
    assert_eq!(history["changes"][0]["reverts"], json!(first), "{history}");
}
