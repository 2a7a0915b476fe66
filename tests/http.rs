//! The admin listener of a real server: health, metrics, access and the commands beside it.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::Signal;

use crate::live::{Program, Server};

/// The most connections at once (`server/http`).
const CONNECTIONS_MAX: usize = 64;

/// A port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

/// A server with its admin listener.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) server: Server,
    address: SocketAddr,
}

impl Admin {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, |_| {})
    }

    /// The same, after `prepare`, which may set variables of the environment.
    pub(crate) fn start_with(flags: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let http = address.to_string();
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let flags = [&["--http", &http], flags].concat();
        let mut server = Server::start_with(Program::under_test(), &flags, folder, prepare);
        if !flags.contains(&"--http-tls") {
            server.until("the server is ready", |_| get(address, "/readyz", &[]).status == 200);
        }
        Self { server, address }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        get(self.address, path, &[])
    }
}

/// A reply of the listener.
#[derive(Debug)]
pub(crate) struct Reply {
    status: u16,
    head: String,
    pub(crate) body: String,
}

fn get(address: SocketAddr, path: &str, headers: &[&str]) -> Reply {
    let mut stream = TcpStream::connect(address).expect("the listener is bound");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    let more: String = headers.iter().flat_map(|header| [header, "\r\n"]).collect();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).expect("the listener reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the listener answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { joined(body) } else { body.to_owned() };
    Reply { status, head: head.to_owned(), body }
}

/// Joins the chunks of a body.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = chunks.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk begins with its size");
        body.push_str(&rest[..size]);
        chunks = &rest[(size + 2).min(rest.len())..];
    }
    body
}

/// The value of a sample that is a count.
pub(crate) fn sample(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {page}"))
}

/// Runs the program with these words.
fn run(words: &[&str]) -> Output {
    Command::new(Program::Tollgate.path())
        .args(words)
        .env_remove("TOLLGATE_ADMIN_SOCKET")
        .stdin(Stdio::null())
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("output is UTF-8")
}

#[test]
fn probes_tell_a_serving_server_from_a_stopping_one() {
    let mut admin = Admin::start(&["-t", "2"]);
    for path in ["/livez", "/readyz", "/healthz"] {
        let reply = admin.get(path);
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"), "{path}");
    }
    let alive = admin.get("/livez?verbose");
    assert_eq!(alive.body, "[+] worker-0 ok\n[+] worker-1 ok\n[+] housekeeping ok\nok\n");
    // A client within a request keeps the server from stopping.
    let mut client = admin.server.connect();
    client.send("set a 0 0 5\r\n12");
    thread::sleep(Duration::from_millis(100));
    admin.server.signal(Signal::SIGTERM);
    let start = Instant::now();
    let stopping = loop {
        let reply = admin.get("/readyz");
        if reply.status != 200 || start.elapsed() > Duration::from_secs(5) {
            break reply;
        }
    };
    assert_eq!(stopping.status, 503);
    assert_eq!(stopping.body, "[-] serving: the server is stopping\nfailed\n");
    assert_eq!(admin.get("/livez").status, 200, "it is alive while it stops");
    client.send("345\r\n");
    client.expect("STORED\r\n");
    drop(client);
    assert!(admin.server.ended().success());
}

#[test]
fn counters_are_those_of_stats() {
    let mut admin = Admin::start(&["-o", "idle_timeout=0"]);
    let mut client = admin.server.connect();
    client.ask("set a 0 0 1\r\n7\r\n", "STORED\r\n");
    client.ask("incr a 1\r\n", "8\r\n");
    client.ask("incr b 1\r\n", "NOT_FOUND\r\n");
    client.ask("get a\r\n", "VALUE a 0 1\r\n8\r\nEND\r\n");
    client.ask("get c\r\n", "END\r\n");
    // The start of the server was tried by a connection of its own.
    admin.server.until_connected(&mut client, 0);
    let page = admin.get("/metrics").body;
    for (command, result, count) in [
        ("set", "stored", 1),
        ("incr", "hit", 1),
        ("incr", "miss", 1),
        ("get", "hit", 1),
        ("get", "miss", 1),
    ] {
        let name = format!("tollgate_commands_total{{command=\"{command}\",result=\"{result}\"}}");
        assert_eq!(sample(&page, &name), count, "{name}");
    }
    assert_eq!(sample(&page, "tollgate_connections{listener=\"tcp\"}"), 1);
    assert_eq!(sample(&page, "tollgate_items"), 1);
    assert_eq!(sample(&page, "tollgate_ready"), 1);
    let pages: [(&str, &[(&str, &str)]); 1] = [(
        "/metrics/memcached",
        &[
            ("memcached_connections_total", "total_connections"),
            ("memcached_current_items", "curr_items"),
            ("memcached_limit_bytes", "limit_maxbytes"),
            ("memcached_max_connections", "max_connections"),
            ("memcached_items_total", "total_items"),
        ],
    )];
    for (path, names) in pages {
        let page = admin.get(path).body;
        for (metric, stat) in names {
            assert_eq!(sample(&page, metric), client.stat(stat), "{metric}");
        }
    }
    drop(client);
    admin.server.signal(Signal::SIGTERM);
    assert!(admin.server.ended().success());
}

#[test]
fn decisions_of_a_limit_are_counted_under_its_name() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = folder.path().join("limits.toml");
    let limit = "[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:2/1h\"\n";
    fs::write(&limits, limit).expect("the folder is ours");
    let admin = Admin::start(&["--limits", &limits.to_string_lossy()]);
    let mut client = admin.server.connect();
    // A refused increment answers one more than the limit.
    for count in [1, 2, 3, 3, 3] {
        client.ask("incr login:a 1\r\n", &format!("{count}\r\n"));
    }
    let page = admin.get("/metrics").body;
    let decisions = |outcome: &str| {
        let labels = format!("{{limit=\"login\",outcome=\"{outcome}\"}}");
        sample(&page, &format!("tollgate_decisions_total{labels}"))
    };
    assert_eq!((decisions("allowed"), decisions("denied")), (2, 3));
    assert_eq!(sample(&page, "tollgate_limit_active_keys{limit=\"login\"}"), 1);
    assert_eq!(sample(&page, "tollgate_limits"), 1);
    assert_eq!(sample(&page, "tollgate_limits_fault"), 0);
}

#[test]
fn promtool_accepts_both_pages() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = folder.path().join("limits.toml");
    let limit = "[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:2/1h\"\n";
    fs::write(&limits, limit).expect("the folder is ours");
    let snapshot = folder.path().join("snapshot");
    let flags = ["--limits", &limits.to_string_lossy(), "-e", &snapshot.to_string_lossy()];
    let admin = Admin::start(&flags);
    for path in ["/metrics", "/metrics/memcached"] {
        let page = admin.get(path).body;
        let mut check = Command::new(promtool())
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tests/setup.sh has unpacked promtool");
        check.stdin.take().expect("it is piped").write_all(page.as_bytes()).expect("it reads");
        let output = check.wait_with_output().expect("it ends");
        // memcached's exporter chose some names against the rules of today.
        let complaints: Vec<&str> = text(&output.stderr)
            .lines()
            .filter(|line| path != "/metrics/memcached" || !line.contains("memcached_"))
            .collect();
        assert_eq!(complaints, [""; 0], "{path}");
    }
}

/// Prometheus's tool, as tests/setup.sh unpacks it.
pub(crate) fn promtool() -> PathBuf {
    target().join("clients/prometheus/usr/bin/promtool")
}

/// The folder of built things.
pub(crate) fn target() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Names that the dashboards and alerts of `memcached-mixin` query.
const MIXIN: [&str; 18] = [
    "memcached_commands_total",
    "memcached_connections_total",
    "memcached_current_bytes",
    "memcached_current_connections",
    "memcached_current_items",
    "memcached_items_evicted_total",
    "memcached_items_total",
    "memcached_limit_bytes",
    "memcached_max_connections",
    "memcached_read_bytes_total",
    "memcached_slab_commands_total",
    "memcached_slab_current_items",
    "memcached_slab_items_age_seconds",
    "memcached_slab_items_evicted_total",
    "memcached_up",
    "memcached_uptime_seconds",
    "memcached_version",
    "memcached_written_bytes_total",
];

#[test]
fn memcacheds_dashboards_find_their_metrics() {
    let admin = Admin::start(&[]);
    let page = admin.get("/metrics/memcached").body;
    let names: BTreeSet<&str> = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let missing: Vec<&&str> = MIXIN.iter().filter(|name| !names.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_scrape_in_open_metrics_ends_with_its_mark() {
    let admin = Admin::start(&[]);
    let accept = "Accept: application/openmetrics-text; version=1.0";
    let reply = get(admin.address, "/metrics", &[accept]);
    assert!(reply.head.contains("application/openmetrics-text"), "{}", reply.head);
    assert!(reply.body.ends_with("# EOF\n"));
    assert!(reply.body.contains("# TYPE tollgate_commands counter\n"));
}

#[test]
fn strangers_names_and_paths_are_refused() {
    let admin = Admin::start(&["--http-host", "tollgate.example"]);
    for (host, status) in
        [("tollgate.example", 200), ("evil.example", 421), ("tollgate.example.evil.example", 421)]
    {
        let mut stream = TcpStream::connect(admin.address).expect("the listener is bound");
        let request = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("the listener reads");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("the listener answers");
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {reply}");
    }
    assert_eq!(admin.get("/nothing").status, 404);
}

#[test]
fn garbage_and_silence_cost_no_other_client_anything() {
    let admin = Admin::start(&[]);
    let mut garbage = TcpStream::connect(admin.address).expect("the listener is bound");
    garbage.write_all(b"\x16\x03\x01\x00garbage\r\n\r\n").expect("the listener reads");
    let mut silent: Vec<TcpStream> = (0..CONNECTIONS_MAX)
        .map(|_| TcpStream::connect(admin.address).expect("the listener is bound"))
        .collect();
    let start = Instant::now();
    let busy = loop {
        let reply = admin.get("/metrics");
        if reply.status != 200 || start.elapsed() > Duration::from_secs(5) {
            break reply;
        }
    };
    assert_eq!(busy.status, 503);
    assert!(busy.body.contains(r#""detail":"too many connections""#), "{}", busy.body);
    assert_eq!(admin.get("/livez").status, 200, "probes have places of their own");
    let busy = loop {
        // Each keeps the place of a probe for a second.
        let place = || TcpStream::connect(admin.address).expect("the listener is bound");
        silent.extend((0..8).map(|_| place()));
        let reply = admin.get("/livez");
        if reply.status != 200 || start.elapsed() > Duration::from_secs(5) {
            break reply;
        }
    };
    assert_eq!((busy.status, busy.body.as_str()), (503, "too many connections\n"));
    admin.server.connect().ask("incr a 1\r\n", "NOT_FOUND\r\n");
    silent.clear();
    let start = Instant::now();
    while admin.get("/metrics").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(5), "places are free again");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_token_of_the_role_metrics_guards_the_pages() {
    let made = run(&["token", "scraper", "metrics"]);
    let output = text(&made.stdout);
    let (token, line) = output.trim_end().split_once('\n').expect("a token and its line");
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let tokens = folder.path().join("tokens");
    fs::write(&tokens, format!("{line}\n")).expect("the folder is ours");
    let admin = Admin::start(&["--tokens", &tokens.to_string_lossy()]);
    let bearer = format!("Authorization: Bearer {token}");
    let status = |headers: &[&str]| get(admin.address, "/metrics", headers).status;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&["Authorization: Bearer tg_wrong"]), 401);
    assert_eq!(status(&[&bearer]), 200);
    assert_eq!(admin.get("/readyz").status, 200, "probes need no token");
    let page = get(admin.address, "/metrics", &[&bearer]).body;
    assert_eq!(sample(&page, "tollgate_auth_failures_total{surface=\"http\"}"), 1);
    let refused = "tollgate_http_requests_total{route=\"/metrics\",code=\"401\"}";
    assert_eq!(sample(&page, refused), 2);
    // Another file takes effect; a bad one does not.
    let other = run(&["token", "other", "metrics"]);
    let other = text(&other.stdout);
    let (other_token, other_line) = other.trim_end().split_once('\n').expect("a token and a line");
    fs::write(&tokens, "nonsense\n").expect("the folder is ours");
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(status(&[&bearer]), 200);
    fs::write(&tokens, format!("{other_line}\n")).expect("the folder is ours");
    let bearer_of_other = format!("Authorization: Bearer {other_token}");
    let start = Instant::now();
    while status(&[&bearer_of_other]) != 200 {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", admin.server.log());
        // Ten wrong tokens in a minute would shut the address out.
        thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(status(&[&bearer]), 401);
}

#[test]
fn an_open_listener_off_loopback_must_be_wanted() {
    let refused = run(&["-p", "-1", "--http", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused.stderr).contains("add --tokens FILE, or --http-insecure"));
    for (words, reason) in [
        (vec!["--http", "nonsense"], "expected off or an IP address"),
        (vec!["--http", "off", "--http-insecure"], "need the admin listener, which is off"),
        (vec!["-p", "-1", "--http", "127.0.0.1"], "add a port"),
        (vec!["--http-tls"], "needs a certificate"),
        (vec!["-o", "ssl_chain_cert=/x,ssl_key=/y"], "TLS for clients is not built yet"),
        (vec!["-p", "-1", "--http", "127.0.0.1:0", "--tokens", "/nonexistent"], "/nonexistent"),
        (vec!["-p", "-1", "--http", "127.0.0.1:0", "--tokens", "/dev/zero"], "not a regular file"),
        (
            vec![
                "-p",
                "-1",
                "--http",
                "127.0.0.1:0",
                "--http-tls",
                "-o",
                "ssl_chain_cert=/dev/zero,ssl_key=/dev/zero",
            ],
            "not a regular file",
        ),
    ] {
        let output = run(&words);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(reason), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_taken_address_is_an_error_only_where_it_was_named() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = holder.local_addr().expect("it is bound");
    let output = run(&["-p", "-1", "--http", &taken.to_string()]);
    assert_eq!(output.status.code(), Some(71), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains(&format!("--http {taken}")));
}

#[test]
fn the_listener_speaks_tls() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a key");
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    fs::write(&chain, made.cert.pem()).expect("the folder is ours");
    fs::write(&key, made.signing_key.serialize_pem()).expect("the folder is ours");
    let files = format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
    let admin = Admin::start(&["--http-tls", "-o", &files]);
    let program = "import ssl, sys, urllib.request\n\
        context = ssl.create_default_context(cafile=sys.argv[2])\n\
        print(urllib.request.urlopen(sys.argv[1], context=context).read().decode(), end='')\n";
    let url = format!("https://localhost:{}/readyz", admin.address.port());
    let output = Command::new("python3")
        .args(["-c", program, &url, &chain.to_string_lossy()])
        .output()
        .expect("python runs");
    assert_eq!(text(&output.stdout), "ok\n", "{}", text(&output.stderr));
    // A handshake that fails, and the figures of both.
    let mut stranger = TcpStream::connect(admin.address).expect("the listener is bound");
    stranger.write_all(b"GET /readyz HTTP/1.1\r\n\r\n").expect("the listener reads");
    let _ = stranger.read_to_end(&mut Vec::new());
    let url = format!("https://localhost:{}/metrics", admin.address.port());
    let output = Command::new("python3")
        .args(["-c", program, &url, &chain.to_string_lossy()])
        .output()
        .expect("python runs");
    let page = text(&output.stdout);
    let handshakes = |result: &str| {
        let labels = format!("{{surface=\"http\",result=\"{result}\"}}");
        sample(page, &format!("tollgate_tls_handshakes_total{labels}"))
    };
    assert!(handshakes("ok") >= 2 && handshakes("error") >= 1, "{page}");
    // The authority of the test makes certificates that end in the year 4096.
    let expiry = sample(page, "tollgate_tls_cert_expiry_timestamp_seconds{surface=\"http\"}");
    assert!(expiry > 60_000_000_000, "{expiry}");
}

#[test]
fn healthcheck_asks_the_client_port() {
    let server = Server::start(&["-Y", "{auth}"]);
    let address = server.address().to_string();
    let live = run(&["healthcheck", "--live", "--server", &address]);
    assert!(live.status.success(), "{}", text(&live.stderr));
    assert_eq!(text(&live.stdout), "ok\n");
    let ready = run(&["healthcheck", "--server", &address]);
    assert_eq!(ready.status.code(), Some(1));
    assert!(text(&ready.stderr).contains("password"), "{}", text(&ready.stderr));
    let password = server.folder().join("password");
    fs::write(&password, "pass").expect("the folder is ours");
    let password = password.to_string_lossy().into_owned();
    let login = ["--login", "user", "--password-file", &password];
    let ready = run(&[&["healthcheck", "--server", &address], login.as_slice()].concat());
    assert!(ready.status.success(), "{}", text(&ready.stderr));
    drop(server);
    let gone = run(&["healthcheck", "--live", "--server", &address]);
    assert_eq!(gone.status.code(), Some(1));
}

#[test]
fn a_worker_that_stands_still_is_named() {
    // A worker is stopped by a tracer, as by a fault of the kernel; the other threads go on.
    let admin = Admin::start(&["-t", "2"]);
    let is_worker = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "worker-1")
    };
    let start = Instant::now();
    let worker = loop {
        let tasks = fs::read_dir(format!("/proc/{}/task", admin.server.pid())).expect("it runs");
        if let Some(worker) = tasks.flatten().find(is_worker) {
            break worker;
        }
        assert!(start.elapsed() < Duration::from_secs(5), "the threads have names");
    };
    let worker = worker.file_name().to_string_lossy().into_owned();
    let program = "import ctypes, os, sys, time\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207\n\
        pid = int(sys.argv[1])\n\
        assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0, ctypes.get_errno()\n\
        assert libc.ptrace(PTRACE_INTERRUPT, pid, None, None) == 0\n\
        os.waitpid(pid, 0x40000000)\n\
        print('stopped', flush=True)\n\
        sys.stdin.read()\n";
    let mut tracer = Command::new("python3")
        .args(["-c", program, &worker])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    let mut line = [0; 8];
    let read = tracer.stdout.as_mut().expect("it is piped").read_exact(&mut line);
    read.expect("the tracer stops the worker");
    let reply = admin.get("/livez");
    assert_eq!(reply.status, 503);
    assert_eq!(reply.body, "[-] worker-1: no answer within a second\nfailed\n");
    drop(tracer.stdin.take());
    tracer.wait().expect("the tracer ends");
    assert_eq!(admin.get("/livez").status, 200);
}
