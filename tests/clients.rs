//! Client libraries against a live server, as applications use them.
//!
//! Here: one test per client. The actions and expectations of a client are a script in `clients/`,
//! which gets the server's host and port, and fails with a line that names the fault; the Rust
//! client is used in this file. Not here: the exact bytes on the wire (the transcripts).
//! `tests/setup.sh` installs the clients; a client that is missing fails its test.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use memcache::{CommandError, MemcacheError, exp};

use crate::live::{PATIENCE, Program, Server};

/// Keys of one multi-get.
const KEYS: usize = 500;
/// A value that fits the default maximum of 1 MiB for an item with its key, and one that does not.
const LARGE_BYTES: usize = 1_000_000;
const TOO_LARGE_BYTES: usize = 2_000_000;
const UNICODE_KEY: &str = "schlüssel:鍵:🔑";

#[test]
fn pymemcache() {
    runs(&["python", "-c", "import pymemcache"], &["python", "with_pymemcache.py"], &[]);
}

#[test]
fn pylibmc() {
    runs(&["python", "-c", "import pylibmc"], &["python", "with_pylibmc.py"], &[]);
}

#[test]
fn python_memcached() {
    runs(&["python", "-c", "import memcache"], &["python", "with_python_memcached.py"], &[]);
}

#[test]
fn aiomcache() {
    runs(&["python", "-c", "import aiomcache"], &["python", "with_aiomcache.py"], &[]);
}

#[test]
fn node_memcached() {
    runs(&["node", "-e", "require('memcached')"], &["node", "with_memcached.js"], &[]);
}

#[test]
fn php_memcached() {
    let probe = ["php", "-r", "exit(extension_loaded('memcached') ? 0 : 1);"];
    runs(&probe, &["php", "with_memcached.php"], &[]);
}

#[test]
fn perl_cache_memcached() {
    let probe = ["perl", "-MCache::Memcached", "-e1"];
    runs(&probe, &["perl", "with_cache_memcached.pl"], &[]);
}

#[test]
fn perl_cache_memcached_fast() {
    let probe = ["perl", "-MCache::Memcached::Fast", "-e1"];
    runs(&probe, &["perl", "with_cache_memcached_fast.pl"], &[]);
}

#[test]
fn libmemcached_tools() {
    // These two cases expect that `delete key 0 0` is refused; memcached itself deletes since
    // 1.6.40.
    let is_old = Program::under_test().is_before_1_6_40();
    let failing = if is_old { "" } else { "ascii delete,ascii delete noreply" };
    runs(&["memcping", "--version"], &["sh", "with_libmemcached_tools.sh"], &[failing]);
}

#[test]
fn netcat() {
    runs(&["nc", "-h"], &["sh", "with_nc.sh"], &[]);
}

#[test]
fn netdata_plugin() {
    let lies_in = installed().join("netdata/usr/lib/netdata/python.d");
    let lies_in = lies_in.to_str().expect("the path is text");
    let probe = ["ls", &format!("{lies_in}/memcached.chart.py")];
    runs(&probe, &["python3", "with_netdata.py"], &[lies_in]);
}

/// Runs a script of `clients/` on a server of its own.
#[track_caller]
fn runs(probe: &[&str], script: &[&str], more: &[&str]) {
    let mut server = Server::start(&[]);
    let (host, port) = (server.address().ip().to_string(), server.address().port().to_string());
    let words = [script, &[&host, &port], more].concat();
    run(&mut server, probe, &words);
}

/// Runs a client on `server` and returns its output. `probe` is a command that fails if the client
/// is not installed.
#[track_caller]
pub(crate) fn run(server: &mut Server, probe: &[&str], words: &[&str]) -> String {
    let installed = command(probe).output().is_ok_and(|output| output.status.success());
    assert!(installed, "{} failed: run tests/setup.sh", probe.join(" "));
    let said = server.folder().join("client.log");
    let log = fs::File::create(&said).expect("the folder is ours");
    let mut child = command(words)
        .stdout(log.try_clone().expect("a file can be shared"))
        .stderr(log)
        .spawn()
        .expect("the probe ran");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("the child is ours") {
            break Some(status);
        }
        if start.elapsed() > 6 * PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let said = fs::read_to_string(said).unwrap_or_default();
    let words = words.join(" ");
    match status {
        None => panic!("{words} does not end: {said}{}", server.log()),
        Some(status) => assert!(status.success(), "{words}: {status}: {said}{}", server.log()),
    }
    assert_eq!(server.exited(), None, "the server ended: {}", server.log());
    said
}

/// A command that finds the clients under `target/clients` and the scripts in `clients/`.
pub(crate) fn command(words: &[&str]) -> Command {
    // Python's clients are in a virtual environment, which precedes the system in PATH.
    let system = env::var("PATH").unwrap_or_default();
    let path = format!("{}:{system}", installed().join("venv/bin").display());
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients"))
        .env("NODE_PATH", installed().join("node/node_modules"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PATH", path)
        .stdin(Stdio::null());
    command
}

/// The folder where `setup.sh` installs clients that are not packages of the system.
fn installed() -> PathBuf {
    // The test executable is target/<profile>/deps/tests-<hash>.
    let executable = env::current_exe().expect("a test knows its executable");
    executable.ancestors().nth(3).expect("cargo keeps tests two folders deep").join("clients")
}

/// A client of the `memcache` crate, on the classic commands.
fn rust_client(server: &Server) -> memcache::Client {
    let url = format!("memcache://{}?protocol=ascii", server.address());
    memcache::Client::builder()
        .add_server(url)
        .expect("the address is good")
        .with_read_timeout(PATIENCE)
        .with_write_timeout(PATIENCE)
        .build()
        .expect("the server accepts")
}

/// Waits until `yes` returns true: the server's clock ticks in whole seconds.
#[track_caller]
fn eventually(what: &str, yes: impl Fn() -> bool) {
    let start = Instant::now();
    while !yes() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn rust_memcache_stores() -> Result<(), MemcacheError> {
    let server = Server::start(&[]);
    let client = rust_client(&server);
    client.set("k", "v", 0)?;
    assert_eq!(client.get("k")?, Some("v".to_owned()));
    assert_eq!(client.get::<String>("nothing")?, None);
    assert!(client.add("k", "w", 0).is_ok(), "the crate does not tell NOT_STORED");
    client.add("added", "w", 0)?;
    client.replace("k", "x", 0)?;
    client.append("k", "-end")?;
    client.prepend("k", "start-")?;
    let (value, flags, unique): (String, u32, Option<u64>) = client.get("k")?.expect("it is set");
    assert_eq!((value.as_str(), flags), ("start-x-end", 0));
    let unique = unique.expect("gets tells it");
    assert!(client.cas("k", "new", 0, unique)?);
    assert!(!client.cas("k", "newer", 0, unique)?);
    assert!(!client.cas("nothing", "newer", 0, unique)?);
    assert_eq!(client.get("k")?, Some("new".to_owned()));
    assert!(client.delete("k")?);
    assert!(!client.delete("k")?);

    client.set("empty", "", 0)?;
    assert_eq!(client.get("empty")?, Some(String::new()));
    client.set(UNICODE_KEY, "v", 0)?;
    assert_eq!(client.get(UNICODE_KEY)?, Some("v".to_owned()));
    let large = vec![b'l'; LARGE_BYTES];
    client.set("large", large.as_slice(), 0)?;
    assert_eq!(client.get("large")?, Some(large));
    let refused = client.set("large", vec![b't'; TOO_LARGE_BYTES].as_slice(), 0);
    assert!(matches!(refused, Err(MemcacheError::ServerError(_))), "{refused:?}");
    assert_eq!(client.get::<Vec<u8>>("large")?, None);

    let mut expected = HashMap::new();
    for n in 0..KEYS {
        let (key, value) = (format!("multi:{n}"), format!("value {n}"));
        client.set(&key, &value, 0)?;
        expected.insert(key, value);
    }
    let mut keys: Vec<&str> = expected.keys().map(String::as_str).collect();
    keys.push("nothing");
    assert_eq!(client.gets::<String>(&keys)?, expected);

    let version = client.version()?.remove(0).1;
    let numbers = version.split('.').filter(|number| number.parse::<u32>().is_ok());
    assert_eq!(numbers.count(), 3, "{version}");
    client.flush_with_delay(100)?;
    assert!(client.get::<String>("added")?.is_some());
    client.flush()?;
    assert_eq!(client.get::<String>("added")?, None);
    // This is last, because the crate leaves the rest of the reply unread.
    client.stats()?;
    Ok(())
}

#[test]
fn rust_memcache_counts() -> Result<(), MemcacheError> {
    let server = Server::start(&[]);
    let client = rust_client(&server);
    let missing = client.increment("n", 1);
    let is_missing = |error: &MemcacheError| {
        matches!(error, MemcacheError::CommandError(CommandError::KeyNotFound))
    };
    assert!(missing.as_ref().is_err_and(is_missing), "{missing:?}");
    client.set("n", 10, 0)?;
    assert_eq!(client.increment("n", 32)?, 42);
    assert_eq!(client.decrement("n", 2)?, 40);
    assert_eq!(client.decrement("n", 100)?, 0);
    assert_eq!(client.increment("n", u64::MAX)?, u64::MAX);
    assert_eq!(client.increment("n", 1)?, 0);
    client.set("n", "words", 0)?;
    assert!(client.increment("n", 1).is_err());
    assert_eq!(client.get("n")?, Some("words".to_owned()));

    client.set("touched", "v", 2)?;
    assert!(client.touch("touched", 100)?);
    assert!(!client.touch("nothing", 100)?);
    client.add("window", 1, 2)?;
    assert_eq!(client.increment("window", 1)?, 2);
    eventually("the window ends", || client.increment("window", 1).is_err());
    assert_eq!(client.get("touched")?, Some("v".to_owned()));
    Ok(())
}

#[test]
fn rust_memcache_speaks_meta() -> Result<(), exp::Error> {
    let server = Server::start(&[]);
    let cache = exp::Memcache::builder().timeout(PATIENCE).connect([server.address()])?;
    let ttl = exp::Ttl::secs(100);
    cache.set("k", "v", ttl)?;
    assert_eq!(cache.get::<String>("k")?, Some("v".to_owned()));
    assert_eq!(cache.get_and_touch::<String>("k", ttl)?, Some("v".to_owned()));
    assert_eq!(cache.get::<String>("nothing")?, None);
    assert!(!cache.add("k", "w", ttl)?);
    assert!(cache.replace("k", "x", ttl)?);
    assert!(!cache.replace("nothing", "x", ttl)?);
    cache.append("k", b"-end", ttl)?;
    cache.prepend("k", b"start-", ttl)?;
    assert_eq!(cache.take::<String>("k")?, Some("start-x-end".to_owned()));
    assert_eq!(cache.take::<String>("k")?, None);

    let items: HashMap<String, String> =
        (0..KEYS).map(|n| (format!("multi:{n}"), format!("value {n}"))).collect();
    cache.set_many(&items, ttl)?;
    let mut keys: Vec<String> = items.keys().cloned().collect();
    keys.push(UNICODE_KEY.to_owned());
    assert_eq!(cache.get_many::<String, _>(keys)?, items);
    cache.delete_many(items.keys())?;
    assert_eq!(cache.get_many::<String, _>(items.keys().cloned())?, HashMap::new());

    let large = "l".repeat(LARGE_BYTES);
    cache.set(UNICODE_KEY, large.as_str(), ttl)?;
    assert_eq!(cache.get::<String>(UNICODE_KEY)?, Some(large));
    let refused = cache.set(UNICODE_KEY, "t".repeat(TOO_LARGE_BYTES), ttl);
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(cache.get::<String>(UNICODE_KEY)?, None);

    assert_eq!(cache.incr("hits", 5, ttl)?, 5);
    assert_eq!(cache.incr("hits", 2, ttl)?, 7);
    assert_eq!(cache.decr("hits", 100, ttl)?, 0);
    let updated = cache.update("sum", ttl, |sum| sum.unwrap_or(0_u64) + 1)?;
    assert_eq!(updated + cache.update("sum", ttl, |sum| sum.unwrap_or(0_u64) + 1)?, 3);

    // The value is computed once, then served; after invalidation one reader refreshes it.
    for _ in 0..2 {
        let fetched: String = cache.fetch("report", ttl, || Ok::<_, exp::Error>("a".to_owned()))?;
        assert_eq!(fetched, "a");
    }
    cache.invalidate("report", Duration::from_mins(1))?;
    assert_eq!(cache.get::<String>("report")?, Some("a".to_owned()));
    let fetched: String = cache.fetch("report", ttl, || Ok::<_, exp::Error>("b".to_owned()))?;
    assert_eq!(fetched, "b");
    assert_eq!(cache.get::<String>("report")?, Some("b".to_owned()));
    cache.touch("report", ttl)?;
    assert!(cache.inspect("report")?.is_some());
    cache.delete("report")?;
    assert!(cache.inspect("report")?.is_none());
    cache.meta().noop()
}
