//! Many limits and overrides on a live server: what they do, and what they cost.
//!
//! Not here: the cost of a change (`server`, `limits::service::tests::costs`).

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::http::{Admin, sample};
use crate::live::{Client, Server};

const MIB: u64 = 1 << 20;

/// Limits of a full server.
const LIMITS: usize = 10_000;
/// Overrides of a full file.
const OVERRIDES: usize = 1_000_000;
/// Most CPU time of a scrape of these limits.
const SCRAPE_CPU_MAX: Duration = Duration::from_millis(50);
/// Most memory of a scrape of these limits.
const SCRAPE_BYTES_MAX: u64 = 4 * MIB;
/// Most memory of these overrides, with keys of some 17 bytes; and while they are read.
const OVERRIDES_BYTES_MAX: [u64; 2] = [88 * MIB, 192 * MIB];
/// Longest time until a new file is in force, on a busy machine.
const OVERRIDES_TIME_MAX: Duration = Duration::from_mins(1);

/// A value of the process in `/proc/PID/status`, in bytes.
fn status_bytes(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("a size") << 10
}

/// Forgets the most memory that the process had.
fn reset_peak(server: &Server) {
    fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").expect("the process is ours");
}

/// The CPU time of the living threads of the process.
fn cpu(server: &Server) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

#[test]
fn scrape_of_very_many_limits_costs_little() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    let mut text = String::new();
    for at in 0..LIMITS {
        let _ = writeln!(
            text,
            "[[limit]]\nname = 'limit-{at}'\nmatch = 'l{at}:{{x}}'\npolicy = 'fixed:5/m'"
        );
    }
    fs::write(&path, text).expect("the folder is ours");
    let admin = Admin::start(&["--limits", path.to_str().expect("the path is text")]);
    // The code is in memory; a second scrape would find memory that the first has left.
    admin.get("/metrics/memcached");
    // Other work of the server may take memory meanwhile, so the least of three counts.
    let (mut page, mut bytes) = (String::new(), u64::MAX);
    for _ in 0..3 {
        reset_peak(&admin.server);
        let resident = status_bytes(&admin.server, "VmRSS");
        page = admin.get("/metrics").body;
        bytes = bytes.min(status_bytes(&admin.server, "VmHWM").saturating_sub(resident));
    }
    assert_eq!(page.matches("\ntollgate_decisions_total{").count(), 3 * LIMITS);
    assert_eq!(page.matches("\ntollgate_limit_active_keys{").count(), LIMITS);
    assert_eq!(sample(&page, "tollgate_limits"), LIMITS as u64);
    let mut least_cpu = Duration::MAX;
    for _ in 0..10 {
        let before = cpu(&admin.server);
        admin.get("/metrics");
        least_cpu = least_cpu.min(cpu(&admin.server).saturating_sub(before));
    }
    println!("a scrape of {LIMITS} limits: {least_cpu:?} of CPU, {} KiB", bytes >> 10);
    assert!(least_cpu <= SCRAPE_CPU_MAX, "{least_cpu:?}");
    assert!(bytes <= SCRAPE_BYTES_MAX, "{bytes} bytes");
}

/// The override of a line.
fn line_of(at: usize) -> String {
    match at {
        0 => "a:key-* fixed:7/m\n".to_owned(),
        1 => "a:192.0.2.0/24 fixed:8/m\n".to_owned(),
        _ => format!("a:key-{at:08} {}\n", ["allow", "block"][at % 2]),
    }
}

/// The limit in the verdict on a key.
fn verdict(client: &mut Client, key: &str) -> String {
    let reply = client.ask_until(format!("take {key} 1 - peek\r\n"), "\r\n");
    reply.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn file_of_a_million_overrides_is_in_force() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (limits, list) = (folder.path().join("limits.toml"), folder.path().join("list.txt"));
    let limit = "[[limit]]\nname = 'a'\nmatch = 'a:{x}'\npolicy = 'fixed:5/m'\n";
    fs::write(&limits, limit).expect("the folder is ours");
    let path = limits.to_str().expect("the path is text").to_owned();
    let mut server = Server::start(&["--limits", &path]);
    let mut client = server.connect();
    assert_eq!(verdict(&mut client, "a:key-00000003"), "ALLOW 5");
    let resident = server.resident_bytes();

    let mut text: String = (0..OVERRIDES).map(line_of).collect();
    fs::write(&list, &text).expect("the folder is ours");
    fs::write(&limits, format!("{limit}overrides_file = 'list.txt'\n"))
        .expect("the folder is ours");
    let since = Instant::now();
    server.signal(Signal::SIGHUP);
    let wait = |server: &mut Server, client: &mut Client, key: &str, expected: &str| {
        while verdict(client, key) != expected {
            assert!(since.elapsed() < OVERRIDES_TIME_MAX, "{}", server.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait(&mut server, &mut client, "a:key-00000003", "DENY 0");
    let took = since.elapsed();
    // The thread that has read the file frees it, and the allocator returns it in half a second.
    server.until("the overrides are told", |server| server.log().contains("count=1000000"));
    std::thread::sleep(Duration::from_secs(1));
    let (now, peak) = (server.resident_bytes(), status_bytes(&server, "VmHWM"));
    let [kept, peak] = [now, peak].map(|bytes| bytes.saturating_sub(resident));
    println!(
        "{OVERRIDES} overrides ({} MiB): in force after {took:?}, {} MiB kept, {} MiB at most",
        text.len() as u64 / MIB,
        kept / MIB,
        peak / MIB
    );
    for (key, expected) in [
        ("a:key-00000002", "ALLOW 9007199254740991"),
        ("a:key-00999999", "DENY 0"),
        ("a:key-01000000", "ALLOW 7"),
        ("a:192.0.2.77", "ALLOW 8"),
        ("a:192.0.3.77", "ALLOW 5"),
    ] {
        assert_eq!(verdict(&mut client, key), expected, "{key}");
    }
    assert!(kept <= OVERRIDES_BYTES_MAX[0] && peak <= OVERRIDES_BYTES_MAX[1], "{kept} {peak}");

    // The server finds the new version by itself, and keeps the last good one.
    let _ = writeln!(text, "a:key-{OVERRIDES:08} block");
    let first = text.find("a:key-00000003").expect("it is there");
    text.replace_range(first..text.find("a:key-00000004").expect("it is there"), "");
    fs::write(&list, &text).expect("the folder is ours");
    wait(&mut server, &mut client, "a:key-01000000", "DENY 0");
    assert_eq!(verdict(&mut client, "a:key-00000003"), "ALLOW 7");
    text.push_str("a:key-00000005 allow\n");
    fs::write(&list, &text).expect("the folder is ours");
    server
        .until("the file is refused", |server| server.log().contains("file of overrides refused"));
    let stats = client.ask_until("stats limits\r\n", "END\r\n");
    assert!(stats.contains("list.txt:1000001: "), "{stats}");
    assert!(stats.contains("STAT a:overrides_of_file 1000000\r\n"), "{stats}");
    assert_eq!(verdict(&mut client, "a:key-01000000"), "DENY 0");
    // At start a bad file is refused.
    server.signal(Signal::SIGTERM);
    let output = std::process::Command::new(crate::live::Program::Tollgate.path())
        .args(["check-limits", &path])
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(64));
}
