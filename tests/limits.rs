//! Limits on a live server: many clients at one token, floods of keys, limits files that change.
//!
//! `HAMMER_SECONDS` and `FLOOD_KEYS` select the long forms of two tests (`just hammer`, `just
//! flood`). Not here: the reply to each verb (`transcripts/{native,bound,lease}.txt`), the
//! arithmetic (`engine`).

use std::fs;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::live::{Client, PATIENCE, Program, Server};
use crate::operators::NODE;

fn number_from(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable);
    text.map_or(default, |text| text.parse().expect("the variable is a number"))
}

/// The value `name` in `stats limits`.
fn stat(client: &mut Client, name: &str) -> String {
    let stats = client.ask_until("stats limits\r\n", "END\r\n");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {stats}")).to_owned()
}

#[test]
fn of_64_clients_one_gets_the_one_token() {
    const CLIENTS: usize = 64;
    const ROUNDS: usize = 1_000;
    let server = Server::start(&["-t", "4"]);
    let (begin, end) = (Barrier::new(CLIENTS + 1), Barrier::new(CLIENTS + 1));
    let allowed = std::sync::atomic::AtomicUsize::new(0);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let mut client = server.connect();
            let (begin, end, allowed) = (&begin, &end, &allowed);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    begin.wait();
                    let policy = ["bucket:1/1h", "sliding:1/1d", "gcra:1/1h,burst=0"][round % 3];
                    let request = format!("take one{round} 1 {policy}\r\n");
                    match client.ask_until(request, "\r\n").split(' ').next() {
                        Some("ALLOW") => _ = allowed.fetch_add(1, relaxed),
                        Some("DENY") => {}
                        other => panic!("{other:?}"),
                    }
                    end.wait();
                }
            });
        }
        for round in 0..ROUNDS {
            begin.wait();
            end.wait();
            assert_eq!(allowed.swap(0, relaxed), 1, "round {round}");
        }
    });
}

/// An admission happens between the sending of its request and the arrival of its reply. An excess
/// within a second is proven only if the first request was sent and the last reply arrived within
/// it.
#[test]
fn no_second_admits_more_than_a_log_of_100() {
    hammer(&Server::start(&["-t", "4"]));
}

#[test]
fn no_second_admits_more_than_a_log_of_100_at_a_node() {
    hammer(&Server::start(&[&["-t", "4"], &NODE[..]].concat()));
}

fn hammer(server: &Server) {
    const LIMIT: usize = 100;
    let seconds = number_from("HAMMER_SECONDS", 3);
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let mut admitted: Vec<(Duration, Duration)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let mut client = server.connect();
                scope.spawn(move || {
                    let mut admitted = Vec::new();
                    while Instant::now() < end {
                        let sent = start.elapsed();
                        let answer = client.ask_until("take hot 1 log:100/1s\r\n", "\r\n");
                        if answer.starts_with("ALLOW") {
                            admitted.push((sent, start.elapsed()));
                        }
                    }
                    admitted
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it hammers")).collect()
    });
    admitted.sort_unstable();
    for (number, (sent, _)) in admitted.iter().enumerate() {
        let within = Duration::from_secs(1);
        let proven = admitted[number..].iter().filter(|(_, came)| *came < *sent + within).count();
        assert!(proven <= LIMIT, "{proven} within the second from {sent:?}");
    }
    println!("{} admitted in {seconds} s", admitted.len());
    // It does not refuse units that fit either: each second but the last was used up.
    let least = LIMIT * usize::try_from(seconds).expect("a few seconds");
    assert!(admitted.len() >= least, "{} admitted in {seconds} s", admitted.len());
    assert!(admitted.len() <= least + LIMIT, "{} admitted in {seconds} s", admitted.len());
}

#[test]
fn an_offender_stays_refused_in_a_flood_of_keys() {
    const BATCH: u64 = 1_000;
    let keys = number_from("FLOOD_KEYS", 600_000);
    // 10 million keys meet 64 MB, and fewer keys proportionally less.
    let megabytes = (keys * 64 / 10_000_000).max(8);
    let megabytes_text = megabytes.to_string();
    let flags = ["-m", &megabytes_text, "-t", "4", "--limits", "limits/bound.toml"];
    let server = Server::start(&flags);
    let mut client = server.connect();
    client.ask("incr visit:t:a 3\r\n", "3\r\n");
    let offenders =
        [("a", "bucket:5/1h"), ("b", "sliding:5/1h"), ("c", "fixed:5/1h"), ("d", "log:5/1h")];
    for (key, policy) in offenders {
        client.ask_until(format!("take {key} 5 {policy}\r\n"), "\r\n");
    }
    for batch in 0..keys / BATCH {
        // This key is charged with its parent, and is idle long before any key of the flood.
        client.ask("incr visit:t:a 1\r\n", "4\r\n");
        for (key, policy) in offenders {
            let answer = client.ask_until(format!("take {key} 1 {policy}\r\n"), "\r\n");
            assert!(answer.starts_with("DENY 5 0 "), "{key} after {batch} batches: {answer}");
        }
        let policy = offenders[usize::try_from(batch % 4).expect("below four")].1;
        let flood: Vec<String> = (batch * BATCH..(batch + 1) * BATCH)
            .map(|number| format!("take flood:{number} 1 {policy} noreply\r\n"))
            .collect();
        client.ask(flood.concat() + "mn\r\n", "MN\r\n");
    }
    let slabs = client.ask_until("stats slabs\r\n", "END\r\n");
    let used = slabs.lines().find_map(|line| line.strip_prefix("STAT total_malloced "));
    let used: u64 = used.expect("it is there").parse().expect("a number");
    println!("{keys} keys, {used} of {} bytes", megabytes << 20);
    assert!(used <= megabytes << 20);
    assert!(used > (megabytes << 20) * 9 / 10, "the flood was too small to prove anything");
    assert!(client.stat("evictions") > keys / 10);
}

const LOGIN: &str =
    "[[limit]]\nname = \"login\"\nmatch = \"login:{ip}\"\npolicy = \"fixed:2/1h\"\n";

/// Waits until the limit `login` has this policy.
fn until_policy(server: &mut Server, client: &mut Client, policy: &str) {
    server.until("the file is read again", |_| stat(client, "login:policy") == policy);
}

#[test]
fn a_changed_file_holds_at_once_and_a_bad_one_never() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    fs::write(&path, LOGIN).expect("the folder is ours");
    let flags = ["--limits", "{folder}/limits.toml"];
    let mut server = Server::start_in(Program::under_test(), &flags, folder);
    let mut client = server.connect();
    client.ask("incr login:a 2\r\nincr login:a 1\r\n", "2\r\n3\r\n");

    // The server notices the change by the file's time or size.
    fs::write(&path, LOGIN.replace("2/1h", "30/1h")).expect("the folder is ours");
    until_policy(&mut server, &mut client, "fixed:30/h");
    client.ask("incr login:a 1\r\n", "3\r\n");

    // A container replaces its link: another file under the same name.
    let next = server.folder().join("next.toml");
    fs::write(&next, LOGIN.replace("2/1h", "40/1h")).expect("the folder is ours");
    fs::rename(&next, &path).expect("both are in the folder");
    until_policy(&mut server, &mut client, "fixed:40/h");

    // A writer that needs two steps leaves a partial file: the server waits until it stays the
    // same.
    for lines in 0..20 {
        let cut = if lines % 2 == 0 { "" } else { "#" };
        fs::write(&path, cut).expect("the folder is ours");
        thread::sleep(Duration::from_millis(100));
        assert_eq!(stat(&mut client, "limits"), "1");
    }
    fs::write(&path, LOGIN.replace("2/1h", "50/1h")).expect("the folder is ours");
    until_policy(&mut server, &mut client, "fixed:50/h");
    fs::write(&path, LOGIN.replace("2/1h", "40/1h")).expect("the folder is ours");
    until_policy(&mut server, &mut client, "fixed:40/h");

    // A bad file is refused as a whole, with its line, and the last good one stays in force.
    fs::write(&path, LOGIN.replace("2/1h", "0/1h")).expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    server.until("the file is refused", |_| stat(&mut client, "limits_refused") != "0");
    assert_eq!(stat(&mut client, "login:policy"), "fixed:40/h");
    // The line follows the count.
    server.until("the refusal is logged", |server| server.log().contains("limits.toml:4: "));
    // The log shows the line and a caret, in lines that continue the record.
    let excerpt = "\n      |\n    4 | policy = \"fixed:0/1h\"\n      |                 ^\n";
    server.until("the log shows the line", |server| server.log().contains(excerpt));
    client.ask("incr login:a 1\r\n", "4\r\n");

    // Without the file nothing changes; a file without limits on purpose frees the keys.
    fs::remove_file(&path).expect("it is there");
    server.signal(Signal::SIGHUP);
    client.ask("incr login:a 1\r\n", "5\r\n");
    fs::write(&path, "allow_empty = true\n").expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    server.until("there is no limit", |_| stat(&mut client, "limits") == "0");
    client.ask("incr login:b 1\r\n", "NOT_FOUND\r\n");
    // The key's state is still there, and keeps its policy.
    client.ask("incr login:a 1\r\n", "6\r\n");
}

#[test]
fn each_limit_tells_what_it_judged() {
    let flags = ["-t", "2", "--limits", "limits/bound.toml"];
    let server = Server::start(&flags);
    let mut client = server.connect();
    client.ask(
        "incr api:a 2\r\nincr api:b 1\r\nincr api:a 2\r\nincr api:a 0\r\n",
        "2\r\n1\r\n4\r\n2\r\n",
    );
    client.ask("incr watched:a 1\r\nincr watched:a 1\r\n", "1\r\n1\r\n");
    client.ask_until(
        "take user:t:a 4 -\r\ntake user:t:a 2 -\r\ntake user:t:b 3 -\r\n",
        "ALLOW 3 0 0 60000\r\n",
    );
    client.ask_until("take user:t:c 1 -\r\n", "\r\n");
    client.ask_until("take api:n 1 =api\r\n", "\r\n");
    client.ask_until("take elsewhere 4 =api\r\n", "\r\n");
    for (name, value) in [
        ("limits", "26"),
        ("api:allowed", "3"),
        ("api:denied", "2"),
        ("api:shadow_denied", "0"),
        ("api:active_keys", "3"),
        ("watched:allowed", "1"),
        ("watched:denied", "0"),
        ("watched:shadow_denied", "1"),
        ("user:allowed", "2"),
        ("user:denied", "1"),
        ("user:active_keys", "2"),
        ("tenant:allowed", "2"),
        ("tenant:denied", "1"),
        ("tenant:active_keys", "1"),
        ("login-ip:active_keys", "0"),
    ] {
        assert_eq!(stat(&mut client, name), value, "{name}");
    }
    client.ask("stats reset\r\n", "RESET\r\n");
    assert_eq!(stat(&mut client, "api:allowed"), "0");
    assert_eq!(stat(&mut client, "api:active_keys"), "3");
    client.ask("delete api:a\r\n", "DELETED\r\n");
    assert_eq!(stat(&mut client, "api:active_keys"), "2");
}

#[test]
fn parents_are_exact_under_many_clients() {
    let server = Server::start(&["-t", "4", "--limits", "limits/bound.toml"]);
    let allowed: usize = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|number| {
                let mut client = server.connect();
                scope.spawn(move || {
                    let mut allowed = 0;
                    for round in 0..50 {
                        // Each user may take three, all users of a tenant five.
                        let request = format!("take user:t{round}:u{number} 1 -\r\n");
                        allowed +=
                            usize::from(client.ask_until(request, "\r\n").starts_with("ALLOW"));
                        let request =
                            format!("takem 1 user:s{round}:u{number} user:s{round}:v\r\n");
                        client.ask_until(request, "\r\n");
                    }
                    allowed
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it takes")).sum()
    });
    assert_eq!(allowed, 50 * 5);
    let mut client = server.connect();
    for round in 0..50 {
        // Two pairs of a tenant's five units were taken; the fifth unit is left.
        client.ask(format!("incr tenant:s{round} 0\r\n"), "4\r\n");
        client.ask(format!("incr user:s{round}:v 0\r\n"), "2\r\n");
    }
}

/// A shard's policy table takes memory outside the store, and any client can write policies: so the
/// states of all but a few carry their own policy.
#[test]
fn policies_written_out_by_thousands_are_all_obeyed() {
    let server = Server::start(&["-m", "8", "-t", "1"]);
    let mut client = server.connect();
    let before = server.resident_bytes();
    for round in [1, 2] {
        for batch in 0..40 {
            let takes: Vec<String> = (batch * 1000..(batch + 1) * 1000)
                .map(|number| format!("take f:{number} 1 fixed:{}/1h\r\n", 1000 + number))
                .collect();
            let answers = client.ask_until(takes.concat() + "mn\r\n", "MN\r\n");
            for (number, line) in answers.lines().enumerate().take(1000) {
                let limit = 1000 + batch * 1000 + number;
                assert!(line.starts_with(&format!("ALLOW {limit} {} ", limit - round)), "{line}");
            }
        }
    }
    let grown = server.resident_bytes().saturating_sub(before);
    println!("{} KiB more", grown >> 10);
    assert!(grown < 16 << 20, "{grown} bytes");
    // The policy of a key may change, and change back.
    for policy in ["log:7/1h", "fixed:41000/1h", "fixed:9/1h"] {
        let answer = client.ask_until(format!("take f:39999 1 {policy}\r\n"), "\r\n");
        assert!(answer.starts_with("ALLOW "), "{policy}: {answer}");
    }
    client.ask("set n 0 0 1\r\n1\r\nincr n 1\r\n", "STORED\r\n2\r\n");
}

#[test]
fn a_limits_file_is_checked_offline() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    let check = || {
        let mut command = Command::new(Program::under_test().path());
        let output = command.arg("check-limits").arg(&path).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    fs::write(&path, LOGIN).expect("the folder is ours");
    assert_eq!(check(), (Some(0), "login  login:{ip}  fixed:2/h\n".to_owned(), String::new()));
    fs::write(&path, format!("{LOGIN}polcy = 3\n")).expect("the folder is ours");
    let expected = format!(
        "tollgate: {}:5: unknown field `polcy`: write `policy`; the fields are name, match, regex, \
         policy, key, parents, weight, overrides, order, overrides_file, companions, \
         on_unavailable, deny, over, shadow, ban, owner, note, disabled, expires\n  |\n5 | polcy = 3\n  | ^^^^^\n",
        path.display()
    );
    assert_eq!(check(), (Some(64), String::new(), expected.clone()));
    // A server does not start with this file.
    let mut command = Command::new(Program::under_test().path());
    let output = command.args(["-p", "-1", "--limits"]).arg(&path).output().expect("it runs");
    // A supervisor must not restart it after this exit code, and the reason is logged once.
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    let mut command = Command::new(Program::under_test().path());
    let output = command.args(["-p", "-1", "--limits"]).arg(folder.path()).output();
    let stderr = output.expect("it runs").stderr;
    let expected = format!("tollgate: cannot read {}: is a directory\n", folder.path().display());
    assert_eq!(String::from_utf8_lossy(&stderr), expected);
}

#[test]
fn a_path_that_is_no_bounded_file_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let at = |name: &str| folder.path().join(name);
    mkfifo(&at("pipe"), Mode::S_IRWXU).expect("the folder is ours");
    let huge = fs::File::create(at("huge")).expect("the folder is ours");
    huge.set_len(1 << 40).expect("it takes no place");
    let data = at("data").display().to_string();
    for (path, why) in [
        (at("pipe"), "it is not a regular file"),
        (at("huge"), "it has more than 67108864 bytes"),
        ("/dev/zero".into(), "it is not a regular file"),
        (folder.path().to_owned(), "is a directory"),
    ] {
        for words in [
            &["check-limits"][..],
            &["-p", "-1", "--limits"],
            &["--check-config", "--limits"],
            &["-p", "-1", "-Y"],
            &["--config"],
            &["--data-dir", &data, "--peer-key-file"],
        ] {
            let mut command = Command::new("timeout");
            command.arg("10").arg(Program::Tollgate.path()).args(words).arg(&path);
            let output = command.output().expect("coreutils have timeout");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{words:?} {path:?}: {stderr}");
            let is_limits = words.iter().any(|word| word.contains("limits"));
            assert!(!is_limits || stderr.contains(why), "{words:?} {path:?}: {stderr}");
        }
    }
}

/// A limit with `overrides` overrides.
fn limit_of(overrides: usize) -> String {
    let row = |number| {
        format!("    {{ key = \"api:customer-{number:06}\", policy = \"bucket:100/s\" }},\n")
    };
    let rows = (0..overrides).map(row).collect::<Vec<String>>().concat();
    format!(
        "[[limit]]\nname = \"api\"\nmatch = \"api:{{user}}\"\npolicy = \"fixed:2/h\"\n\
         overrides = [\n{rows}]\n"
    )
}

#[test]
fn a_long_limit_is_in_force_or_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    let file = path.display().to_string();
    // The file has some 30,000 bytes.
    fs::write(&path, limit_of(500)).expect("the folder is ours");
    let check = |words: &[&str]| {
        let mut command = Command::new(Program::Tollgate.path());
        command.args(words).arg(&path).output().expect("it ends")
    };
    assert!(check(&["check-limits"]).status.success());
    let flags = ["--limits", &file, "--data-dir", "{folder}/data", "--ring-name", "n"];
    let mut server = Server::start(&[&flags[..], &["--peer-listen", "127.0.0.1:0"]].concat());
    let mut client = server.connect();
    server.until("the limit is in force", |_| stat(&mut client, "limits") == "1");
    client.ask("incr api:x 1\r\nincr api:x 1\r\nincr api:x 1\r\n", "1\r\n2\r\n3\r\n");
    assert_eq!(stat(&mut client, "api:denied"), "1");

    fs::write(&path, limit_of(700)).expect("the folder is ours");
    let data = folder.path().join("data").display().to_string();
    for words in [
        &["check-limits"][..],
        &["-p", "-1", "--limits"],
        &["-p", "11299", "--data-dir", &data, "--limits"],
    ] {
        let output = check(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{words:?}: {stderr}");
        let reason = "and may have 32768: divide it into several limits";
        assert!(stderr.contains(":1: the limit has ") && stderr.contains(reason), "{stderr}");
    }
}

#[test]
fn an_emptied_file_keeps_the_limits() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    fs::write(&path, LOGIN).expect("the folder is ours");
    let file = path.display().to_string();
    let alone = Server::start(&["--limits", &file]);
    let flags = ["--limits", &file, "--data-dir", "{folder}/data", "--ring-name", "n"];
    let node = Server::start(&[&flags[..], &["--peer-listen", "127.0.0.1:0"]].concat());
    for mut server in [alone, node] {
        fs::write(&path, LOGIN).expect("the folder is ours");
        server.signal(Signal::SIGHUP);
        let mut client = server.connect();
        server.until("limits are in force", |_| stat(&mut client, "limits") == "1");
        fs::write(&path, "").expect("the folder is ours");
        server.signal(Signal::SIGHUP);
        let fault = format!("{file} has no limits: those in force stay");
        server.until("the file is refused", |server| {
            server.log().contains(&fault) && stat(&mut client, "limits") == "1"
        });
        fs::write(&path, "allow_empty = true\n").expect("the folder is ours");
        server.signal(Signal::SIGHUP);
        server.until("no limit is left", |_| stat(&mut client, "limits") == "0");
    }
    // At start, a file without limits causes a warning.
    for (text, warns) in [("", true), ("# none\n", true), ("allow_empty = true\n", false)] {
        fs::write(&path, text).expect("the folder is ours");
        let warning = format!("{file} has no limits; `allow_empty = true` at its top");
        let mut command = Command::new(Program::Tollgate.path());
        let output = command.arg("check-limits").arg(&path).output().expect("it ends");
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr).contains(&warning), warns);
        let server = Server::start(&["--limits", &file]);
        assert_eq!(server.log().contains(&warning), warns, "{}", server.log());
    }
}

#[test]
fn waiting_as_long_as_told_suffices() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    for policy in ["bucket:5/1s", "gcra:5/1s,burst=0", "sliding:5/1s", "fixed:5/1s", "log:5/1s"] {
        let mut refused = None;
        for _ in 0..6 {
            let answer = client.ask_until(format!("take {policy} 1 {policy}\r\n"), "\r\n");
            if let Some(rest) = answer.strip_prefix("DENY ") {
                let retry = rest.split(' ').nth(2).and_then(|word| word.parse().ok());
                refused = Some(Duration::from_millis(retry.expect("a number")));
                break;
            }
        }
        let wait = refused.expect("five a second, six at once");
        assert!(wait <= Duration::from_secs(2) && wait < PATIENCE);
        thread::sleep(wait);
        let answer = client.ask_until(format!("take {policy} 1 {policy}\r\n"), "\r\n");
        assert!(answer.starts_with("ALLOW"), "{policy}: {answer} after {wait:?}");
    }
}

/// Microseconds of user time per plain `incr`, on a server with this limits file.
fn microseconds_of_incr(limits: &str) -> f64 {
    const REQUESTS: u32 = 40_000;
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    fs::write(&path, limits).expect("the folder is ours");
    let server = Server::start(&["-t", "1", "--limits", &path.display().to_string()]);
    let mut client = server.connect();
    let user = |client: &mut Client| -> f64 {
        let stats = client.ask_until("stats\r\n", "END\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix("STAT rusage_user "));
        line.and_then(|text| text.parse().ok()).expect("a number of seconds")
    };
    client.ask("set user_7_plain 0 0 1\r\n0\r\nset plain 0 0 1\r\n0\r\n", "STORED\r\nSTORED\r\n");
    // The first keys build the states of the automaton.
    client.ask("incr user_7_plain 0\r\nincr plain 0\r\n", "0\r\n0\r\n");
    let before = user(&mut client);
    let requests = "incr user_7_plain 1\r\nincr plain 1\r\n".repeat(100);
    for batch in 0..REQUESTS / 200 {
        let answer = |n| format!("{n}\r\n{n}\r\n");
        let answers: Vec<String> = (batch * 100 + 1..=batch * 100 + 100).map(answer).collect();
        client.ask(&requests, &answers.concat());
    }
    (user(&mut client) - before) * 1e6 / f64::from(REQUESTS)
}

#[test]
fn a_thousand_regexes_cost_a_plain_key_little() {
    let limit = |number: usize, regex: String| {
        format!("[[limit]]\nname = \"r{number}\"\nregex = '{regex}'\npolicy = \"fixed:1/h\"\n")
    };
    let shared = |number| limit(number, format!("^user_(?P<id>\\d+)_x{number}$"));
    let open = |number| limit(number, format!("^.*:(?P<user>\\w+):route{number}$"));
    let alone = microseconds_of_incr(&limit(0, "^never$".to_owned()));
    for (what, file) in [
        ("of one beginning", (0..1000).map(shared).collect::<String>()),
        ("without a beginning", (0..1000).map(open).collect::<String>()),
    ] {
        let with = microseconds_of_incr(&file);
        println!("{alone:.2} us with one regex, {with:.2} us with a thousand {what}");
        assert!(with < alone + 8.0, "{with} us with a thousand {what}, {alone} with one");
    }
}
