//! Limits of a whole cluster: changed at one node, in force at all; parents with owners elsewhere.
//!
//! Not here: limits when nodes die (`limits`), limits of one node (`tests/limits.rs`).

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;

use super::nodes::{Cluster, Line, ask};
use crate::live::{PATIENCE, Program, Server};

/// The time limit for a heartbeat to take effect: the period is 300 ms, and a busy machine adds to
/// it.
const BEAT: Duration = Duration::from_secs(2);

const API: &str = "[[limit]]\nname = \"api\"\nmatch = \"api:{user}\"\n";

fn limit(name: &str, more: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\n{more}\n")
}

fn put(name: &str, text: &str) -> String {
    format!("cluster limit {name} {}\r\n{text}\r\n", text.len())
}

fn api(policy: &str) -> String {
    format!("{API}policy = \"{policy}\"\n")
}

/// Waits until a node's reply is the expected one.
#[track_caller]
fn until(line: &mut Line, text: &str, expected: &str, patience: Duration) {
    let start = Instant::now();
    loop {
        let reply = line.ask(text).expect("it answers").expect("it is there");
        if reply == expected {
            return;
        }
        assert!(start.elapsed() < patience, "{text:?}: {reply:?} and not {expected:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `stats limits` of every node has had this line for a heartbeat: the owner decides on
/// a key, whichever node receives the request.
#[track_caller]
fn until_all(lines: &mut [Line], stat: &str) {
    let (since, wanted) = (Instant::now(), format!("STAT {stat}"));
    for line in lines {
        loop {
            let reply = line.lines("stats limits\r\n").expect("it answers");
            if reply.contains(&wanted) {
                break;
            }
            assert!(since.elapsed() < BEAT, "no {stat} in {reply:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The value of a key; `None` if there is no such key.
fn value(line: &mut Line, key: &str) -> Option<u64> {
    let reply = line.lines(&format!("get {key}\r\n")).expect("it answers");
    reply.get(1).map(|value| value.parse().expect("usage is a number"))
}

/// The limits as a node lists them.
fn listed(line: &mut Line) -> String {
    let reply = line.lines("cluster limits\r\n").expect("it answers");
    assert!(reply[0].starts_with("CONFIG limits 0 "), "{reply:?}");
    reply[1..].join("\n").trim_end().to_owned()
}

#[test]
fn a_limit_put_at_one_node_holds_at_all() {
    let cluster = Cluster::start(3, &[]);
    let mut lines: Vec<Line> = (0..3).map(|number| cluster.line(number)).collect();
    assert_eq!(ask(&mut lines[0], "take api:a 1 -\r\n"), "NOT_FOUND");
    assert_eq!(ask(&mut lines[0], &put("api", &api("fixed:30/10h"))), "OK");
    let since = Instant::now();
    until_all(&mut lines, "api:policy fixed:30/10h");
    println!("in force everywhere after {:?}", since.elapsed());
    // One limit, whichever node and spelling a request uses.
    let mut allowed = 0;
    for turn in 0..60 {
        let line = &mut lines[turn % 3];
        allowed += if turn % 2 == 0 {
            u64::from(ask(line, "take api:a 1 -\r\n").starts_with("ALLOW"))
        } else {
            u64::from(ask(line, "incr api:a 1\r\n").parse::<u64>().expect("a number") <= 30)
        };
    }
    assert_eq!(allowed, 30);

    // Used units stay used when the limit changes.
    assert_eq!(ask(&mut lines[1], &put("api", &api("fixed:40/10h"))), "OK");
    until_all(&mut lines, "api:policy fixed:40/10h");
    for line in &mut lines {
        assert_eq!(ask(line, "incr api:a 100\r\n"), "130");
    }
    assert!(ask(&mut lines[2], "take api:a 10 -\r\n").starts_with("ALLOW 40 0 "));
    assert!(ask(&mut lines[0], "take api:a 1 -\r\n").starts_with("DENY 40 0 "));

    // A bad limit, alone or with the others, is refused, with the place of the fault.
    for (name, text, reply) in [
        (
            "api",
            "[[limit]]\nname = \"api\"\n".to_owned(),
            "limit api:1: the limit lacks its `match`",
        ),
        ("x", api("block"), "limit x:2: its name is x elsewhere"),
        (
            "b",
            limit("b", "match = \"api:{x}\"\npolicy = \"block\""),
            "limit b:3: never reached: `api` takes all its keys",
        ),
        (
            "c",
            limit("c", "match = \"c:{x}\"\npolicy = \"block\"\nparents = [\"d:{x}\"]"),
            "limit c:5: `d:{x}`: the parent matches no limit",
        ),
    ] {
        let reply = format!("CLIENT_ERROR cluster: {reply}");
        assert_eq!(ask(&mut lines[1], &put(name, &text)), reply);
    }
    assert_eq!(
        ask(&mut lines[1], "cluster unlimit x\r\n"),
        "CLIENT_ERROR cluster: there is no limit x"
    );

    // Order: the special limit precedes the general one.
    let special = limit("vip", "match = \"api:vip\"\npolicy = \"fixed:1000/10h\"");
    let line = format!("cluster limit vip {} before=api\r\n{special}\r\n", special.len());
    assert_eq!(ask(&mut lines[2], &line), "OK");
    let both = format!("{}\n\n{}", special.trim_end(), api("fixed:40/10h").trim_end());
    until_all(&mut lines, "limits 2");
    for line in &mut lines {
        assert_eq!(ask(line, "take api:vip 0 -\r\n"), "ALLOW 1000 1000 0 0");
        assert_eq!(listed(line), both);
    }
    let reply = lines[0].lines("stats cluster limits\r\n").expect("it answers");
    assert_eq!(reply[0], "STAT limits 2");
    assert!(reply[1].starts_with("STAT vip:version ") && reply[2].starts_with("STAT api:version "));

    // After removal of a limit its keys are plain, except those with a state: these keep their
    // policy.
    assert_eq!(ask(&mut lines[0], "cluster unlimit api\r\n"), "OK");
    until_all(&mut lines, "limits 1");
    for line in &mut lines {
        assert_eq!(ask(line, "take api:a 1 -\r\n"), "NOT_FOUND");
        assert_eq!(ask(line, "incr api:new 1\r\n"), "NOT_FOUND");
        assert_eq!(ask(line, "incr api:a 1\r\n"), "41");
    }
    assert_eq!(ask(&mut lines[1], "delete api:a\r\n"), "DELETED");
    assert_eq!(ask(&mut lines[1], "set api:a 0 0 2\r\n70\r\n"), "STORED");
    assert_eq!(ask(&mut lines[2], "incr api:a 5\r\n"), "75");
}

#[test]
fn parents_hold_wherever_their_owners_are() {
    let cluster = Cluster::start(3, &[]);
    let mut lines: Vec<Line> = (0..3).map(|number| cluster.line(number)).collect();
    for (name, more) in [
        ("all", "match = \"all\"\npolicy = \"fixed:1000/10h\""),
        ("tenant", "match = \"tenant:{t}\"\npolicy = \"fixed:12/10h\"\nparents = [\"all\"]"),
        ("user", "match = \"user:{t}:{u}\"\npolicy = \"fixed:5/10h\"\nparents = [\"tenant:{t}\"]"),
    ] {
        assert_eq!(ask(&mut lines[0], &put(name, &limit(name, more))), "OK");
    }
    until_all(&mut lines, "limits 3");
    // The keys have many owners: of each twenty, every node owns some.
    for tenant in 0..20 {
        let key = |user: usize| format!("user:{tenant}:{user}");
        let mut allowed = [0_u64; 4];
        for turn in 0..28 {
            let (line, user) = (&mut lines[turn % 3], turn % 4);
            allowed[user] += if turn % 2 == 0 {
                let reply = ask(line, &format!("take {} 1 -\r\n", key(user)));
                assert!(reply.starts_with("ALLOW") || reply.starts_with("DENY"), "{reply}");
                u64::from(reply.starts_with("ALLOW"))
            } else {
                let reply = ask(line, &format!("incr {} 1\r\n", key(user)));
                u64::from(reply.parse::<u64>().expect("a number") <= 5)
            };
        }
        // Units that the parent refused are refunded to the children.
        assert_eq!(allowed, [3; 4], "twelve of the tenant's, in turn");
        let start = Instant::now();
        let used = |line: &mut Line| -> Vec<Option<u64>> {
            let tenant = format!("tenant:{tenant}");
            (0..4).map(key).chain([tenant]).map(|key| value(line, &key)).collect()
        };
        while used(&mut lines[0]) != [Some(3), Some(3), Some(3), Some(3), Some(12)] {
            assert!(start.elapsed() < PATIENCE, "{:?}", used(&mut lines[0]));
        }
        if tenant % 4 > 0 {
            continue;
        }
        // A refund goes to the key and all its parents.
        let line = &mut lines[tenant % 3];
        assert_eq!(ask(line, &format!("decr {} 2\r\n", key(0))), "1");
        assert!(ask(line, &format!("refund {} 3\r\n", key(1))).starts_with("ALLOW 5 5 "));
        assert_eq!(used(line), [Some(1), None, Some(3), Some(3), Some(7)]);
        // Several keys at once: each of them and their common parent.
        let many = format!("takem 2 {} {}\r\n", key(0), key(1));
        assert!(ask(line, &many).starts_with("ALLOW 12 1 "), "the tenant has least left");
        assert_eq!(used(line), [Some(3), Some(2), Some(3), Some(3), Some(11)]);
        let reply = ask(line, &format!("takem 1 {} {}\r\n", key(0), key(1)));
        assert!(reply.starts_with("DENY 12 1 "), "{reply}");
        until(line, &format!("incr {} 0\r\n", key(0)), "3", PATIENCE);
        until(line, &format!("incr {} 0\r\n", key(1)), "2", PATIENCE);
        until(line, &format!("incr tenant:{tenant} 0\r\n"), "11", PATIENCE);
        // An estimate that is settled.
        assert!(ask(line, &format!("refund {} 3\r\n", key(2))).starts_with("ALLOW"));
        let reply = ask(line, &format!("take {} 4 - hold=5m\r\n", key(2)));
        let lease = reply.split("lease=").nth(1).unwrap_or_else(|| panic!("{reply}"));
        let lease = lease.split(' ').next().expect("a word").to_owned();
        assert_eq!(used(line), [Some(3), Some(2), Some(4), Some(3), Some(12)]);
        let reply = ask(line, &format!("renew {} {lease} 10m\r\n", key(2)));
        assert_eq!(reply, "RENEWED 600000");
        let reply = ask(line, &format!("settle {} {lease} 1\r\n", key(2)));
        assert!(reply.starts_with("SETTLED 5 4 "), "{reply}");
        assert_eq!(used(line), [Some(3), Some(2), Some(1), Some(3), Some(9)]);
        assert_eq!(ask(line, &format!("settle {} {lease} 1\r\n", key(2))), "NOT_FOUND");
    }
}

#[test]
fn a_cluster_of_one_keeps_its_limits() {
    let data = tempfile::tempdir().expect("a temporary folder can be made");
    let file = data.path().join("limits.toml");
    fs::write(&file, api("fixed:3/10h")).expect("the folder is ours");
    let place = data.path().join("data");
    let alone = [
        "--data-dir",
        path(&place),
        "--peer-listen",
        "127.0.0.1:0",
        "--ring-name",
        "one",
        "--admin-loopback",
    ];
    let flags = [&alone[..], &["--limits", path(&file)]].concat();
    let mut server = Server::start(&flags);
    let mut line = Line::connect(server.address()).expect("it listens");
    until(&mut line, "incr api:a 0\r\n", "0", PATIENCE);
    assert_eq!(
        ask(&mut line, &put("b", &limit("b", "match = \"b:{x}\"\npolicy = \"fixed:7/h\""))),
        "OK"
    );
    until(&mut line, "incr b:a 3\r\n", "3", BEAT);
    // A changed file applies its changes, at once after a signal.
    fs::write(&file, api("fixed:4/10h")).expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    until(&mut line, "take api:a 0 -\r\n", "ALLOW 4 4 0 0", PATIENCE);
    until(&mut line, "take b:z 0 -\r\n", "ALLOW 7 7 0 0", PATIENCE);
    assert_eq!(ask(&mut line, &put("api", &api("fixed:5/10h"))), "OK");
    server.signal(Signal::SIGKILL);
    server.ended();

    // An old file reverts nothing, and a log line reports it.
    let mut server = Server::start(&flags);
    let mut line = Line::connect(server.address()).expect("it listens");
    until(&mut line, "take api:a 0 -\r\n", "ALLOW 5 5 0 0", PATIENCE);
    until(&mut line, "take b:a 0 -\r\n", "ALLOW 7 7 0 0", PATIENCE);
    server.until("it says what differs", |server| {
        server.log().contains("the cluster's limits differ from the limits file")
    });
    assert!(server.log().contains("names=\"api b\""), "{}", server.log());
    // A bad file changes nothing.
    fs::write(&file, "nothing = 1").expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    server.until("it refuses the file", |server| server.log().contains("limits kept as they were"));
    let reply = line.lines("stats limits\r\n").expect("it answers");
    assert!(reply.iter().any(|stat| stat.starts_with("STAT limits_fault ")), "{reply:?}");
    // A file without the limit removes it.
    fs::write(&file, "allow_empty = true\n").expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    until(&mut line, "take api:a 0 -\r\n", "NOT_FOUND", PATIENCE);
    until(&mut line, "take b:a 0 -\r\n", "ALLOW 7 7 0 0", PATIENCE);
    drop(server);
    let server = Server::start(&alone);
    let mut line = Line::connect(server.address()).expect("it listens");
    until(&mut line, "take b:a 0 -\r\n", "ALLOW 7 7 0 0", PATIENCE);
    until(&mut line, "take api:a 0 -\r\n", "NOT_FOUND", PATIENCE);
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

#[test]
fn nodes_with_the_same_file_do_as_one() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("limits.toml");
    let many = |policy: &str| -> String {
        let one = |number| {
            limit(
                &format!("l{number}"),
                &format!("match = \"l{number}:{{x}}\"\npolicy = \"{policy}\""),
            )
        };
        (0..40).map(one).collect()
    };
    let hour = many("fixed:9/10h");
    fs::write(&file, &hour).expect("the folder is ours");
    let cluster = Cluster::start(3, &["--limits", path(&file)]);
    let mut lines: Vec<Line> = (0..3).map(|number| cluster.line(number)).collect();
    for line in &mut lines {
        until(line, "take l39:a 0 -\r\n", "ALLOW 9 9 0 0", PATIENCE);
        assert_eq!(listed(line).replace("\n\n", "\n"), hour.trim_end());
    }
    fs::write(&file, many("fixed:8/10h")).expect("the folder is ours");
    for number in 0..3 {
        cluster.signal(number, Signal::SIGHUP);
    }
    for line in &mut lines {
        for number in 0..40 {
            until(line, &format!("take l{number}:a 0 -\r\n"), "ALLOW 8 8 0 0", PATIENCE);
        }
    }
    assert!(!cluster.logs().contains("ERROR tollgate::node"), "{}", cluster.logs());
}

#[test]
fn an_operator_reads_and_writes_all_limits() {
    let cluster = Cluster::start(2, &[]);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("limits.toml");
    let run = |node: u8, words: &[&str]| -> (bool, String) {
        let server = cluster.address(node).to_string();
        let done = Command::new(Program::Tollgate.path())
            .args(["cluster", "limits"])
            .args(words)
            .args(["--server", &server])
            .output()
            .expect("the program runs");
        let reply = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8(reply).expect("text"))
    };
    // The parent follows its child in the order.
    let child = limit("c", "match = \"c:{x}\"\npolicy = \"block\"\nparents = [\"p:{x}\"]");
    let parent = limit("p", "match = \"p:{x}\"\npolicy = \"fixed:5/h\"");
    fs::write(&file, format!("# A comment\n{child}{parent}")).expect("the folder is ours");
    assert_eq!(run(0, &["put", path(&file)]), (true, "done\n".to_owned()));
    let expected = format!("{}\n\n{}\n", child.trim_end(), parent.trim_end());
    // The other node receives it within a heartbeat.
    let heard = |node, expected: &str| {
        let start = Instant::now();
        while run(node, &["get"]) != (true, expected.to_owned()) {
            assert!(start.elapsed() < PATIENCE, "{:?}", run(node, &["get"]));
        }
    };
    heard(1, &expected);
    let first = limit("first", "match = \"p:first\"\npolicy = \"block\"");
    fs::write(&file, &first).expect("the folder is ours");
    let (done, reply) = run(1, &["put", path(&file)]);
    assert!(!done && reply.contains("never reached: `p` takes all its keys"), "{reply}");
    assert_eq!(run(1, &["put", path(&file), "--before", "p"]), (true, "done\n".to_owned()));
    let ordered = [&child, &first, &parent].map(|limit| limit.trim_end().to_owned());
    heard(0, &format!("{}\n", ordered.join("\n\n")));
    assert_eq!(run(0, &["remove", "first"]), (true, "done\n".to_owned()));
    heard(1, &expected);
    let (done, reply) = run(1, &["remove", "p"]);
    assert!(!done && reply.contains("`p:{x}`: the parent matches no limit"), "{reply}");
    assert_eq!(run(1, &["remove", "c"]), (true, "done\n".to_owned()));
    assert_eq!(run(1, &["remove", "p"]), (true, "done\n".to_owned()));
    heard(0, "");
}
