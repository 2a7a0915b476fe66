//! Hot keys, denials and times of requests, as a running server tells them on its client port.

use std::fs;
use std::time::{Duration, Instant};

use crate::http::{Admin, sample};
use crate::live::{Client, Program, Server};

/// Time in which the observer certainly publishes.
const LONG: Duration = Duration::from_secs(20);

const LIMIT: &str =
    "[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:2/1h\"\n";

/// Writes a limits file into the folder of a server's flags.
fn limits() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    fs::write(&path, LIMIT).expect("the folder is ours");
    let path = path.to_string_lossy().into_owned();
    (folder, path)
}

/// The lines of `request` once there are some.
fn lines(client: &mut Client, request: &str) -> Vec<String> {
    let start = Instant::now();
    loop {
        let answer = client.ask_until(request, "END\r\n");
        let lines: Vec<String> = answer
            .split_terminator("\r\n")
            .filter_map(|line| line.strip_prefix("STAT "))
            .map(str::to_owned)
            .collect();
        if !lines.is_empty() {
            return lines;
        }
        assert!(start.elapsed() < LONG, "{request:?} stays empty");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes a key hot and denies another.
fn make_traffic(client: &mut Client) {
    client.ask("set secret:hot 0 0 1\r\n1\r\n", "STORED\r\n");
    for count in 2..2000 {
        client.ask("incr secret:hot 1\r\n", &format!("{count}\r\n"));
    }
    for count in [1, 2, 3, 3, 3, 3, 3] {
        client.ask("incr login:secret 1\r\n", &format!("{count}\r\n"));
    }
}

#[test]
fn hot_and_denied_keys_are_listed_with_bounds() {
    if Program::under_test() == Program::Memcached {
        return;
    }
    let (_folder, limits) = limits();
    let admin = Admin::start(&["--limits", &limits]);
    let mut client = admin.server.connect();
    make_traffic(&mut client);
    let hot = lines(&mut client, "stats hotkeys 1\r\n");
    let words: Vec<&str> = hot[0].split(' ').collect();
    let [name, rate, at_least, "-", "secret:hot"] = words.as_slice() else { panic!("{hot:?}") };
    assert_eq!(*name, "hot:1");
    let number = |text: &str| text.parse::<f64>().expect("a rate");
    assert!(number(rate) > 0.0 && number(at_least) <= number(rate), "{hot:?}");
    assert!(rate.rsplit_once('.').is_some_and(|(_, decimals)| decimals.len() == 1), "{hot:?}");

    let denied = lines(&mut client, "stats denied\r\n");
    assert_eq!(denied.len(), 1);
    assert!(denied[0].starts_with("denied:1 ") && denied[0].ends_with(" login login:secret"));
    for request in ["hotkeys 0", "hotkeys 1001", "hotkeys x", "denied 1 2", "latency 1"] {
        client.ask(format!("stats {request}\r\n"), "ERROR\r\n");
    }

    let page = admin.get("/metrics").body;
    assert_eq!(sample(&page, "tollgate_samples_total{kind=\"denied\"}"), 5);
    assert!(sample(&page, "tollgate_samples_total{kind=\"taken\"}") > 10);
    assert_eq!(sample(&page, "tollgate_samples_dropped_total{kind=\"taken\"}"), 0);
    assert_eq!(sample(&page, "tollgate_decision_units_total{limit=\"login\"}"), 2);
    assert_eq!(sample(&page, "tollgate_near_limit_total{limit=\"login\"}"), 1);
    let timed = sample(&page, "tollgate_request_duration_seconds_count{listener=\"tcp\"}");
    assert!(timed > 20, "{timed} of 2,000 requests");
}

#[test]
fn times_of_requests_are_told() {
    if Program::under_test() == Program::Memcached {
        return;
    }
    let server = Server::start(&[]);
    let mut client = server.connect();
    make_plain_traffic(&mut client);
    let start = Instant::now();
    let figures = loop {
        let lines = lines(&mut client, "stats latency\r\n");
        let figure = |name: &str| -> u64 {
            let value = lines.iter().find_map(|line| line.strip_prefix(&format!("{name} ")));
            value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}"))
        };
        if figure("latency_count") > 0 || start.elapsed() > LONG {
            break ["count", "p50_us", "p99_us", "p999_us", "max_us"]
                .map(|name| figure(&format!("latency_{name}")));
        }
    };
    assert!(figures[0] > 0, "{figures:?}");
    assert!(figures[1..].is_sorted(), "{figures:?}");
}

fn make_plain_traffic(client: &mut Client) {
    for _ in 0..1000 {
        client.ask("get nothing\r\n", "END\r\n");
    }
}

#[test]
fn hashed_display_shows_no_key_anywhere() {
    if Program::under_test() == Program::Memcached {
        return;
    }
    let (_folder, limits) = limits();
    let admin = Admin::start(&["--limits", &limits, "--key-display", "hashed", "-vvv"]);
    let mut client = admin.server.connect();
    make_traffic(&mut client);
    let hot = lines(&mut client, "stats hotkeys 1\r\n");
    let key = hot[0].rsplit(' ').next().expect("a key");
    assert!(key.starts_with("-#") && key.len() == 14, "{hot:?}");
    let denied = lines(&mut client, "stats denied\r\n");
    let key = denied[0].rsplit(' ').next().expect("a key");
    assert!(key.starts_with("login#") && key.len() == 18, "{denied:?}");
    let items = client.ask_until("stats cachedump 1 0\r\n", "END\r\n");
    assert!(items.starts_with("ITEM -#"), "{items}");
    let pages = ["/metrics", "/metrics/memcached"].map(|path| admin.get(path).body).concat();
    let all = [hot.concat(), denied.concat(), items, pages, admin.server.log()].concat();
    assert!(!all.contains("secret"), "{all}");
}

#[test]
fn explanations_show_only_the_typed_key() {
    if Program::under_test() == Program::Memcached {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    let text = "[[limit]]\nname = \"tenant\"\nmatch = \"tenant:{t}\"\npolicy = \"fixed:5/1h\"\n\
        [[limit]]\nname = \"user\"\nmatch = \"user:{t}:{u}\"\npolicy = \"fixed:3/1h\"\n\
        parents = [\"tenant:{t}\"]\n";
    fs::write(&path, text).expect("the folder is ours");
    let limits = path.to_string_lossy().into_owned();
    for (display, parent) in [("full", "\"tenant:secret\""), ("hashed", "\"tenant#")] {
        let admin = Admin::start(&["--limits", &limits, "--key-display", display]);
        for page in ["explain", "match"] {
            let body = admin.get(&format!("/api/v1/{page}?key=user:secret:a")).body;
            assert!(body.contains("\"user:secret:a\""), "{display}: {body}");
            assert!(body.contains(parent), "{display}: {body}");
            let is_shown = body.contains("tenant:secret");
            assert_eq!(is_shown, display == "full", "{display}: {body}");
        }
    }
}
