//! An update of three nodes from an earlier version, one after the other, under load.
//!
//! `OLD_PROGRAM` names the earlier program (`just update` builds one); without it these tests do
//! nothing. Not here: the same with faults in a simulated world (`tests/sim`).

use std::{
    collections::BTreeMap,
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    nodes::{Cluster, LONG, Line, ask},
    work::Work,
};
use crate::api::{TestedApi, write_limits};
use crate::live::Program;

const NODES: u8 = 3;
/// Keys with an estimate that waits to be settled.
const ESTIMATES: u8 = 12;
/// The port of a new node's admin listener.
const HTTP: u16 = 31211;
/// Replies that clients receive between two steps.
const SOME: u64 = 2_000;
/// Limited keys of a kind.
const USERS: usize = 10;
/// Units of a key of each kind: one that is soon used up, and one that is not.
const FEW: u64 = 60;
const MANY: u64 = 3_000;
/// Time between two requests of a client of limits.
const PAUSE: Duration = Duration::from_millis(4);

/// Limits as earlier versions know them.
const LIMITS: &str = r#"
[[limit]]
name   = "few"
match  = "few:{user}"
policy = "fixed:60/30d"

[[limit]]
name    = "many"
match   = "many:{user}"
policy  = "log:3000/30d"
parents = ["house"]

[[limit]]
name   = "house"
match  = "house"
policy = "bucket:1000000/30d"
"#;

/// The replies to clients of one limited key.
#[derive(Debug, Default, Clone, Copy)]
struct Taken {
    allowed: u64,
    denied: u64,
    /// Requests whose outcome nobody knows.
    unknown: u64,
}

/// Limited keys, their limits, and the replies to their clients.
type TakenByKey = BTreeMap<String, Taken>;

/// Stops the clients of limits, also if a check fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn old_program() -> Option<PathBuf> {
    env::var_os("OLD_PROGRAM").map(PathBuf::from)
}

/// Takes a unit of each key, of a random node.
fn take_all(places: &[SocketAddr], seed: usize, stop: &AtomicBool) -> TakenByKey {
    let (mut all, mut line, mut turn) = (TakenByKey::new(), None, seed);
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        thread::sleep(PAUSE);
        if turn.is_multiple_of(50) {
            line = None;
        }
        let Some(open) = &mut line else {
            line = Line::connect(places[turn % places.len()]).ok();
            continue;
        };
        let key = format!("{}:{}", ["few", "many"][turn % 2], turn / 2 % USERS);
        let taken = all.entry(key.clone()).or_default();
        match open.ask(&format!("take {key} 1 -\r\n")) {
            Ok(Some(reply)) if reply.starts_with("ALLOW ") => taken.allowed += 1,
            Ok(Some(reply)) if reply.starts_with("DENY ") => taken.denied += 1,
            Ok(Some(reply)) if reply.contains("not applied") => {}
            Ok(Some(reply)) if reply.contains("unknown") => taken.unknown += 1,
            Ok(Some(reply)) => panic!("take {key}: {reply}"),
            _ => {
                taken.unknown += 1;
                line = None;
            }
        }
    }
    all
}

fn add(all: &mut TakenByKey, other: TakenByKey) {
    for (key, taken) in other {
        let sum = all.entry(key).or_default();
        sum.allowed += taken.allowed;
        sum.denied += taken.denied;
        sum.unknown += taken.unknown;
    }
}

/// The reply to a request, which is repeated while the partition of its key moves.
#[track_caller]
fn answer(cluster: &Cluster, node: u8, request: &str) -> String {
    let (start, mut line) = (Instant::now(), cluster.line(node));
    loop {
        let answer = ask(&mut line, request);
        let is_moving = answer.starts_with("SERVER_ERROR not applied");
        if !is_moving || answer.contains("the cluster is being updated") {
            return answer;
        }
        assert!(start.elapsed() < LONG, "{answer}: {}", cluster.logs());
    }
}

/// States that the nodes of before made: requests, and those that ask for the state afterwards.
struct Left {
    requests: Vec<(String, String)>,
    holds: Vec<String>,
    /// Estimates of 5 units of a limit of 1000, one for each key.
    estimates: Vec<String>,
}

/// Makes a hold, and returns the line that settles it.
#[track_caller]
fn hold(cluster: &Cluster, node: u8, key: &str, take: &str, actual: u64) -> String {
    let reply = answer(cluster, node, &format!("take {key} {take}\r\n"));
    let lease = reply.rsplit_once("lease=").unwrap_or_else(|| panic!("{reply}")).1;
    format!("settle {key} {lease} {actual}\r\n")
}

/// Makes states of every kind that the earlier version has.
fn leave(cluster: &Cluster) -> Left {
    let mut requests = Vec::new();
    for key in 0..40 {
        for request in [
            format!("take once{key} 3 fixed:1000/30d id=one\r\n"),
            format!("take big{key} 1001 fixed:1000/30d id=big\r\n"),
            format!("incrx sum{key} 5 600000 id=sum\r\n"),
        ] {
            let reply = answer(cluster, key % NODES, &request);
            requests.push((request, reply));
        }
        let value = format!("set item{key} 7 0 5\r\nhello\r\n");
        assert_eq!(answer(cluster, key % NODES, &value), "STORED");
    }
    // The holders of one key fit an item, those of the other do not.
    let holder = |number: usize| {
        let key = if number < 10 { "alone" } else { "crowd" };
        let node = (number % usize::from(NODES)) as u8;
        hold(cluster, node, key, "1 concurrency:500,hold=10d", 0)
    };
    let estimate = |key: u8| {
        hold(cluster, key % NODES, &format!("guess{key}"), "5 fixed:1000/30d hold=10d", 2)
    };
    Left {
        requests,
        holds: (0..310).map(holder).collect(),
        estimates: (0..ESTIMATES).map(estimate).collect(),
    }
}

impl Left {
    /// Checks that each node knows the states.
    #[track_caller]
    fn check(&self, cluster: &Cluster) {
        for (number, (request, reply)) in (0..).zip(&self.requests) {
            let again = answer(cluster, number % NODES, request);
            assert_eq!(&again, reply, "{request}: {}", cluster.logs());
        }
        for key in 0..40 {
            let peek = format!("take once{key} 0 fixed:1000/30d peek\r\n");
            assert!(answer(cluster, key % NODES, &peek).starts_with("ALLOW 1000 997 "), "{key}");
            let mut line = cluster.line(key % NODES);
            let item = line.lines(&format!("get item{key}\r\n")).expect("it answers");
            assert_eq!(item, [format!("VALUE item{key} 7 5"), "hello".to_owned()]);
        }
        for node in 0..NODES {
            assert_eq!(cluster.left(node, "crowd", "concurrency:500,hold=10d"), 200);
        }
        // A hold that one node makes, another settles.
        for key in 0..ESTIMATES {
            let take = "7 fixed:1000/30d hold=10d";
            let settle = hold(cluster, key % NODES, &format!("guess{key}"), take, 0);
            let reply = answer(cluster, (key + 1) % NODES, &settle);
            assert!(reply.starts_with("SETTLED 1000 995 "), "{settle} {reply}");
        }
    }

    fn settle(&self, cluster: &Cluster) {
        for (number, settle) in (0..).zip(&self.holds) {
            let reply = answer(cluster, (number % usize::from(NODES)) as u8, settle);
            assert!(reply.starts_with("SETTLED 500 "), "{settle} {reply}");
        }
        assert_eq!(cluster.left(0, "crowd", "concurrency:500,hold=10d"), 500);
        for (key, settle) in (0..).zip(&self.estimates) {
            let reply = answer(cluster, key % NODES, settle);
            assert!(reply.starts_with("SETTLED 1000 998 "), "{settle} {reply}");
        }
    }
}

fn api(cluster: &Cluster, node: u8) -> TestedApi {
    TestedApi::new((cluster.host(node), HTTP).into())
}

/// A limit with a part that earlier versions cannot read.
fn new_limit(name: &str) -> String {
    format!(
        "[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{user}}\"\npolicy = \"fixed:5/30d\"\n\
         overrides = [{{ where = {{ user = \"root\" }}, policy = \"block\" }}]\n"
    )
}

/// Puts a limit over the client port, and returns the reply.
fn put(cluster: &Cluster, node: u8, name: &str, text: &str) -> String {
    answer(cluster, node, &format!("cluster limit {name} {}\r\n{text}\r\n", text.len()))
}

/// While a node of the version before is in the cluster: a limit that it cannot read is refused
/// with the reason, others work through every node.
fn try_limits(cluster: &Cluster, new: &[u8], step: usize) {
    for node in 0..NODES {
        let reply = put(cluster, node, "fresh", &new_limit("fresh"));
        let reason = if new.contains(&node) {
            "SERVER_ERROR cluster: the cluster is being updated: until no older node is in it, \
             limit fresh cannot have an override with `where`"
        } else {
            "CLIENT_ERROR cluster: "
        };
        assert!(reply.starts_with(reason), "node {node}: {reply}");
        let name = format!("old{step}x{node}");
        let text = format!(
            "[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{user}}\"\npolicy = \"fixed:5/30d\"\n"
        );
        assert_eq!(put(cluster, node, &name, &text), "OK", "node {node}");
        for other in 0..NODES {
            let (start, peek) = (Instant::now(), format!("take {name}:a 1 - peek\r\n"));
            while !answer(cluster, other, &peek).starts_with("ALLOW 5 5 ") {
                assert!(start.elapsed() < LONG, "{name} at {other}: {}", cluster.logs());
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    for node in new {
        let body = json!({ "toml": new_limit("fresh") });
        let reply = api(cluster, *node).ask("PUT", "limits/fresh", Some("*"), Some(&body));
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.detail().starts_with("the cluster is being updated"), "{reply:?}");
    }
}

/// Requests with words that only the new version knows, at a new node, on keys of all owners: each
/// passes or is refused with a reason, and hurts nobody.
fn use_new_words(cluster: &Cluster, node: u8) {
    let mut refused = BTreeMap::<String, usize>::new();
    for key in 0..60 {
        for request in [
            format!("take zone{key} 1 fixed:9/d,align=calendar,tz=Europe/Berlin\r\n"),
            format!("take info{key} 1 fixed:9/30d info\r\n"),
            format!("take wait{key} 1 bucket:9/30d wait=1s\r\n"),
            format!("take debit{key} 1 bucket:9/30d debit\r\n"),
            format!("takem 1 few:{key} many:{key} each peek\r\n"),
        ] {
            let reply = answer(cluster, node, &request);
            let passes = ["ALLOW", "DENY", "WAIT"].iter().any(|word| reply.starts_with(word));
            if !passes {
                let word = request.split_once(char::is_numeric).map_or("", |(word, _)| word);
                *refused.entry(format!("{word}: {reply}")).or_default() += 1;
            }
        }
    }
    println!("new words at node {node}: refused {refused:?}");
}

/// Waits until a limit with a new part is accepted, by API or client port.
fn until_new_limits(cluster: &Cluster) {
    let start = Instant::now();
    loop {
        let reply = put(cluster, 0, "fresh", &new_limit("fresh"));
        if reply == "OK" {
            break;
        }
        assert!(reply.contains("the cluster is being updated"), "{reply}");
        assert!(start.elapsed() < LONG, "{reply}: {}", cluster.logs());
        thread::sleep(Duration::from_millis(50));
    }
    println!("new limits are accepted {:?} after the last node is at rest", start.elapsed());
    let body = json!({ "toml": new_limit("api") });
    let reply = api(cluster, 1).ask("PUT", "limits/api", Some("*"), Some(&body));
    assert_eq!(reply.status, 201, "{reply:?}");
    for node in 0..NODES {
        for name in ["fresh", "api"] {
            let start = Instant::now();
            let peek =
                |user: &str| answer(cluster, node, &format!("take {name}:{user} 1 - peek\r\n"));
            while !peek("ann").starts_with("ALLOW 5 ") || !peek("root").starts_with("DENY 0 ") {
                assert!(start.elapsed() < LONG, "{}", cluster.logs());
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Uses up each limited key, and checks that no limit let more pass than it may.
fn check_limits(cluster: &Cluster, mut all: TakenByKey) {
    let mut house = 0;
    for user in 0..USERS {
        for (name, limit) in [("few", FEW), ("many", MANY)] {
            let key = format!("{name}:{user}");
            let taken = all.entry(key.clone()).or_default();
            for node in (0..NODES).cycle() {
                let reply = answer(cluster, node, &format!("take {key} 1 -\r\n"));
                if reply.starts_with("DENY ") {
                    break;
                }
                assert!(reply.starts_with("ALLOW "), "{key}: {reply}");
                taken.allowed += 1;
            }
            let Taken { allowed, unknown, .. } = *taken;
            assert!(allowed <= limit, "{key}: {taken:?} of {limit}");
            assert!(allowed + unknown >= limit, "{key}: {taken:?} of {limit}");
            house += if name == "many" { allowed } else { 0 };
        }
    }
    let used = 1_000_000 - cluster.left(0, "house", "bucket:1000000/30d");
    // A bucket refills a unit in 2.6 s.
    assert!(used + 200 >= house, "{used} charged to the parent, {house} allowed");
    println!(
        "limits: {:?}",
        all.values().fold(Taken::default(), |sum, taken| Taken {
            allowed: sum.allowed + taken.allowed,
            denied: sum.denied + taken.denied,
            unknown: sum.unknown + taken.unknown,
        })
    );
}

/// A new node of the earlier version comes after the update: it is refused, and says why.
fn refuse_the_old(cluster: &mut Cluster, old: &Path) {
    assert!(cluster.end(2).success(), "{}", cluster.log(2));
    cluster.until_at_rest(2);
    cluster.use_program(old.to_owned());
    cluster.replace(2);
    let start = Instant::now();
    while !cluster.log(2).contains("no common version") {
        assert!(start.elapsed() < LONG, "{}", cluster.log(2));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(cluster.stat(0, "nodes_active").as_deref(), Some("2"));
    cluster.kill(2);
    cluster.use_program(Program::Tollgate.path());
    cluster.replace(2);
    cluster.until_at_rest(3);
}

/// Replaces a node by the present version, while the clients use the others.
fn replace(cluster: &mut Cluster, work: &Work, node: u8, is_killed: bool) {
    let others = (0..NODES).filter(|other| *other != node);
    work.use_nodes(others.map(|other| cluster.address(other)).collect());
    work.until_answered(SOME);
    let since = Instant::now();
    if is_killed {
        cluster.kill(node);
        cluster.until_at_rest(2);
    } else {
        assert!(cluster.end(node).success(), "{}", cluster.log(node));
    }
    cluster.restart_with(node, &["--http", &format!("{}:{HTTP}", cluster.host(node))]);
    cluster.until_at_rest(NODES.into());
    println!("node {node} is new and at rest after {:?}", since.elapsed());
    work.use_nodes(cluster.addresses());
    work.until_answered(SOME);
}

/// Updates all nodes: each drains and ends, or is killed.
fn update(old: &Path, is_killed: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let limits = write_limits(folder.path(), LIMITS);
    let flags = ["--replicas", "2", "--limits", &limits, "--on-unavailable", "deny"];
    let mut cluster = Cluster::start_by(old.to_owned(), NODES, &flags);
    let left = leave(&cluster);
    let work = Work::start(&cluster, 4, 60);
    let (stop, places) = (AtomicBool::new(false), cluster.addresses());
    let taken = thread::scope(|scope| {
        let clients = (0..3).map(|seed| {
            let (places, stop) = (&places, &stop);
            scope.spawn(move || take_all(places, seed * 17, stop))
        });
        let clients: Vec<_> = clients.collect();
        let stopping = Stopping(&stop);
        work.until_answered(SOME);
        cluster.use_program(Program::Tollgate.path());
        for node in 0..NODES {
            replace(&mut cluster, &work, node, is_killed);
            left.check(&cluster);
            if node + 1 < NODES {
                let new: Vec<u8> = (0..=node).collect();
                use_new_words(&cluster, node);
                try_limits(&cluster, &new, usize::from(node) + 1);
                work.until_answered(SOME);
            }
        }
        until_new_limits(&cluster);
        work.until_answered(SOME);
        drop(stopping);
        let mut all = TakenByKey::new();
        for client in clients {
            add(&mut all, client.join().expect("it takes"));
        }
        all
    });
    let account = work.settle(&cluster, 1);
    let (kinds, broken) = (account.kinds(), account.broken);
    println!("{} counts, longest pause {:?}, {kinds:?}", account.answered, account.longest);
    if !is_killed {
        assert!(kinds.is_empty() && broken == 0, "{kinds:?} {broken} {}", cluster.logs());
    }
    check_limits(&cluster, taken);
    left.check(&cluster);
    left.settle(&cluster);
    refuse_the_old(&mut cluster, old);
}

#[test]
fn update_of_drained_nodes_loses_no_count() {
    if let Some(old) = old_program() {
        update(&old, false);
    }
}

#[test]
fn update_of_killed_nodes_loses_no_count() {
    if let Some(old) = old_program() {
        update(&old, true);
    }
}
