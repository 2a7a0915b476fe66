//! An incident from its first sign to its end, and a limit tried on recorded traffic, as an
//! operator works on them over the API of the admin listener.
//!
//! Here: a key that floods is found, a limit is tried, put in shadow, enforced, lifted for one key
//! for a time, and taken back. Not here: each path by itself (`server/http`).

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::Operated;

/// Keys of which each has a few attempts: about a hundred of them are recorded.
const KEYS: u64 = 6400;
const ATTEMPTS: u64 = 3;
/// Attempts on the key that floods, in one go.
const FLOOD: usize = 20_000;
/// Requests that are sent before their replies are read.
const PIPELINE: usize = 500;
/// The key that floods.
const HOT_KEY: &str = "api:flood";

impl Operated {
    /// Tries a limit on the last hour.
    fn try_limit(&self, name: &str, toml: &str) -> Value {
        // The observer drains the samples ten times a second.
        thread::sleep(Duration::from_millis(500));
        let body = json!({ "toml": toml, "minutes": 60, "scope": "node" });
        let reply = self.api.ask("POST", &format!("limits/{name}/try"), None, Some(&body));
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
    operated.api.put("api", &limit("fixed:2/d", ""), "*");
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
    let first = operated.api.put("api", &limit("fixed:1000000/d", ""), "*");
    operated.send_many_keys();

    // A key floods, and is the first of the hot keys within three seconds.
    assert_eq!(operated.flood(), 0);
    let is_hot = |hot: &Value| hot["keys"][0]["key"] == HOT_KEY;
    operated.api.until("hotkeys?what=taken&n=5", Duration::from_secs(3), is_hot);

    // Fifty a day would not have harmed the other keys.
    let strict = limit("fixed:50/d", "");
    let tried = operated.try_limit("api", &strict);
    let harmed = tried["newly_denied"].as_array().expect("a list");
    assert!(harmed.iter().all(|key| key == HOT_KEY), "{tried}");

    // In shadow the flood passes, and the report names it.
    let shadow = limit("fixed:50/d", "shadow = true\n");
    operated.api.put("api", &shadow, &operated.api.version("api"));
    assert_eq!(operated.flood(), 0);
    let report =
        operated.api.until("limits/api/report?minutes=5", Duration::from_secs(5), |report| {
            report["shadow_denied"].as_u64() > Some(0) && report["top_shadow"][0]["key"] == HOT_KEY
        });
    assert_eq!(report["denied"], json!(0), "{report}");

    // Enforced, it is refused.
    operated.api.put("api", &strict, &operated.api.version("api"));
    assert_eq!(operated.flood(), FLOOD);

    // A partner is exempt for two seconds.
    let path = format!("limits/api/overrides/{HOT_KEY}");
    let exempt = json!({ "policy": "allow", "for_ms": 2000, "note": "partner" });
    let put = operated.api.ask("PUT", &path, Some("*"), Some(&exempt));
    assert!(matches!(put.status, 200 | 201), "{}", put.body);
    assert_eq!(operated.flood(), 0);
    operated.api.until("overrides?limit=api", Duration::from_secs(5), |list| {
        list["overrides"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(operated.flood(), FLOOD);

    // The incident is over: the first text comes back as a change of its own.
    let version = operated.api.version("api");
    let body = json!({ "seq": first });
    let reverted = operated.api.ask("POST", "limits/api/revert", Some(&version), Some(&body));
    assert_eq!(reverted.status, 200, "{}", reverted.body);
    assert_eq!(operated.flood(), 0);
    let history = operated.api.get("limits/api/history");
    assert_eq!(history["changes"][0]["reverts"], json!(first), "{history}");
}
