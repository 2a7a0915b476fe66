//! The contract of `stats` with the programs that monitor memcached: the names that exporters and
//! dashboards read must exist, with values of the expected form.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use crate::live::{Client, Program, Server};

/// Numeric lines that must be there.
const GENERAL: &str = "pid uptime time pointer_size rusage_user rusage_system max_connections \
    curr_connections total_connections rejected_connections connection_structures cmd_get cmd_set \
    cmd_flush cmd_touch cmd_meta get_hits get_misses get_expired get_flushed delete_misses \
    delete_hits incr_misses incr_hits decr_misses decr_hits cas_misses cas_hits cas_badval \
    touch_hits touch_misses store_too_large store_no_memory auth_cmds auth_errors bytes_read \
    bytes_written limit_maxbytes accepting_conns listen_disabled_num threads conn_yields \
    hash_power_level hash_bytes hash_is_expanding curr_items total_items bytes evictions reclaimed \
    expired_unfetched evicted_unfetched evicted_active crawler_reclaimed crawler_items_checked \
    lru_crawler_starts moves_to_cold moves_to_warm moves_within_lru direct_reclaims \
    lrutail_reflocked malloc_fails log_worker_dropped log_worker_written log_watcher_skipped \
    log_watcher_sent log_watchers idle_kicks response_obj_count read_buf_count";

const SETTINGS: &str = "maxbytes maxconns tcpport udpport inter verbosity oldest evictions \
    domain_socket umask num_threads stat_key_prefix detail_enabled reqs_per_event cas_enabled \
    tcp_backlog binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast \
    hashpower_init flush_enabled dump_enabled hash_algorithm idle_timeout lru_crawler \
    lru_maintainer_thread ssl_enabled shutdown_command";

const ITEMS: &str = "number age evicted evicted_nonzero evicted_time outofmemory tailrepairs \
    reclaimed expired_unfetched evicted_unfetched crawler_reclaimed crawler_items_checked \
    lrutail_reflocked moves_to_cold moves_to_warm moves_within_lru direct_reclaims";

const SLABS: &str = "chunk_size chunks_per_page total_pages total_chunks used_chunks free_chunks \
    free_chunks_end get_hits cmd_set delete_hits incr_hits decr_hits cas_hits \
    cas_badval touch_hits";

/// The lines of one `stats` answer, each of three words at least.
fn table(client: &mut Client, request: &str) -> BTreeMap<String, String> {
    let answer = client.ask_until(request, "END\r\n");
    let lines = answer.strip_suffix("END\r\n").expect("it ends so").split_terminator("\r\n");
    let mut table = BTreeMap::new();
    for line in lines {
        let (name, value) = line
            .strip_prefix("STAT ")
            .and_then(|rest| rest.split_once(' '))
            .unwrap_or_else(|| panic!("{line:?} in the answer to {request:?}"));
        assert!(!name.is_empty() && !value.is_empty() && value.trim() == value, "{line:?}");
        let before = table.insert(name.to_owned(), value.to_owned());
        assert_eq!(before, None, "{name} is there twice");
    }
    table
}

#[track_caller]
fn number(table: &BTreeMap<String, String>, name: &str) -> u64 {
    let value = table.get(name).unwrap_or_else(|| panic!("no {name}"));
    value.parse().unwrap_or_else(|error| panic!("{name} {value}: {error}"))
}

#[test]
fn the_names_that_agents_read_exist() {
    let mut server = Server::start(&[]);
    let mut client = server.connect();
    server.until_connected(&mut client, 0);
    client.ask("set k 0 0 1\r\n1\r\nincr k 1\r\n", "STORED\r\n2\r\n");
    let general = table(&mut client, "stats\r\n");
    for name in GENERAL.split_whitespace() {
        let value = general.get(name).unwrap_or_else(|| panic!("no {name}"));
        if let Some((seconds, micros)) = value.split_once('.').filter(|_| name.contains("rusage")) {
            assert!(seconds.parse::<u64>().is_ok() && micros.len() == 6, "{name} {value}");
            assert!(micros.parse::<u32>().is_ok(), "{name} {value}");
        } else {
            assert!(!name.contains("rusage"), "{name} {value}");
            number(&general, name);
        }
    }
    assert_eq!(number(&general, "pid"), u64::from(server.pid()));
    assert_eq!(general["version"].split('.').count(), 3);
    assert!(general["version"].split('.').all(|part| part.parse::<u32>().is_ok()));
    assert!(general.contains_key("libevent"));
    let settings = table(&mut client, "stats settings\r\n");
    for name in SETTINGS.split_whitespace() {
        assert!(settings.contains_key(name), "no {name}");
    }
    assert_eq!(settings["lru_crawler"], "no");
    assert_eq!(settings["tcpport"], server.address().port().to_string());
    for name in ["maxbytes", "maxconns", "udpport", "num_threads", "tcp_backlog", "item_size_max"] {
        number(&settings, name);
    }
    let items = table(&mut client, "stats items\r\n");
    for name in ITEMS.split_whitespace() {
        number(&items, &format!("items:1:{name}"));
    }
    let slabs = table(&mut client, "stats slabs\r\n");
    for name in SLABS.split_whitespace() {
        number(&slabs, &format!("1:{name}"));
    }
    // An exporter treats such a name as a counter in one reply and as a gauge in the other, and
    // refuses both.
    let kinds = |table: &BTreeMap<String, String>| -> BTreeSet<String> {
        table.keys().filter_map(|name| name.rsplit_once(':')).map(|name| name.1.into()).collect()
    };
    let (in_slabs, in_items) = (kinds(&slabs), kinds(&items));
    assert!(in_items.contains("mem_requested") && in_slabs.contains("used_chunks"));
    let both: Vec<_> = in_slabs.intersection(&in_items).collect();
    assert!(both.is_empty(), "in stats slabs and in stats items: {both:?}");
    assert_eq!(number(&slabs, "active_slabs"), 1);
    number(&slabs, "total_malloced");
    assert_eq!(table(&mut client, "stats sizes\r\n")["sizes_status"], "disabled");
}

/// `stats conns`, each socket by its address: its listening address, its state, its idle seconds.
fn sockets(client: &mut Client) -> BTreeMap<String, (Option<String>, String, u64)> {
    let conns = table(client, "stats conns\r\n");
    let numbers = conns.keys().filter_map(|name| name.strip_suffix(":addr"));
    let row = |number: &str| {
        let value = |name: &str| conns.get(&format!("{number}:{name}")).cloned();
        let idle = value("secs_since_last_cmd").and_then(|idle| idle.parse().ok());
        let state = value("state").expect("each has a state");
        (value("listen_addr"), state, idle.expect("each has seconds"))
    };
    numbers.map(|number| (conns[&format!("{number}:addr")].clone(), row(number))).collect()
}

#[test]
fn conns_tells_each_socket_as_the_original_does() {
    for program in [Program::Tollgate, Program::Memcached] {
        let mut server = Server::start_as(program, &[]);
        let mut client = server.connect();
        let mut value = server.connect();
        value.send("set k 0 0 100000\r\nabc");
        let mut line = server.connect();
        line.send("set k 0 0");
        let mut swallowed = server.connect();
        swallowed.send("set k x 0 100\r\nabc");
        server.until_connected(&mut client, 3);
        let (here, name) = (format!("tcp:{}", server.address()), |client: &Client| {
            format!("tcp:{}", client.stream.local_addr().expect("it is connected"))
        });
        let states = [
            (name(&client), "conn_parse_cmd"),
            (name(&value), "conn_nread"),
            (name(&line), "conn_read"),
        ];
        server.until(&format!("{program:?} tells what each is in"), |_| {
            let conns = sockets(&mut client);
            states.iter().all(|(name, state)| {
                let is_right = |(_, found, _): &(_, String, _)| found == state;
                conns.get(name).is_some_and(is_right)
            })
        });
        let conns = sockets(&mut client);
        assert_eq!(conns.len(), 5, "{conns:?}");
        assert_eq!((&conns[&here].0, &*conns[&here].1), (&None, "conn_listening"));
        for socket in [&client, &value, &line, &swallowed] {
            assert_eq!(conns[&name(socket)].0.as_ref(), Some(&here), "{conns:?}");
        }
        if program == Program::Tollgate {
            // memcached 1.6.18 executes the value as a command.
            assert_eq!(conns[&name(&swallowed)].1, "conn_swallow");
        }
    }
}

#[test]
fn conns_tells_the_paths_of_unix_sockets() {
    for program in [Program::Tollgate, Program::Memcached] {
        let mut server = Server::start_as(program, &["-s", "{folder}/socket"]);
        let path = server.folder().join("socket");
        server.until("it listens", |_| UnixStream::connect(&path).is_ok());
        let mut stream = UnixStream::connect(&path).expect("it listens");
        let path = format!("unix:{}", path.display());
        server.until(&format!("{program:?} tells the path"), |_| {
            stream.write_all(b"stats conns\r\n").expect("it listens");
            let mut reply = Vec::new();
            while !reply.ends_with(b"END\r\n") {
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).expect("it answers");
                reply.extend_from_slice(&bytes[..count]);
            }
            let reply = String::from_utf8_lossy(&reply).into_owned();
            // The connection that only probed the socket may not be gone yet.
            reply.contains(&format!(":addr {path}\r\n"))
                && reply.contains(&format!(":listen_addr {path}\r\n"))
                && reply.contains(":addr ?:<AF 0>\r\n")
        });
    }
}

#[test]
fn a_flushed_key_that_is_met_is_counted() {
    // The behaviour of memcached, which is not tested here: its background thread drops such items
    // uncounted.
    let server = Server::start_as(Program::Tollgate, &[]);
    let mut client = server.connect();
    for key in ["a", "b", "c", "d", "e"] {
        client.ask(format!("set {key} 0 0 1\r\n1\r\n"), "STORED\r\n");
    }
    client.ask("flush_all\r\n", "OK\r\n");
    assert_eq!(client.stat("get_flushed"), 0);
    client.ask("get a x\r\n", "END\r\n");
    client.ask("get a\r\n", "END\r\n");
    assert_eq!(client.stat("get_flushed"), 1, "a key counts once");
    client.ask("incr b 1\r\n", "NOT_FOUND\r\n");
    client.ask("mg c\r\n", "EN\r\n");
    client.ask("set d 0 0 1\r\n1\r\n", "STORED\r\n");
    assert_eq!(client.stat("get_flushed"), 4);
    client.ask("delete d\r\n", "DELETED\r\n");
    client.ask("get d\r\n", "END\r\n");
    assert_eq!(client.stat("get_flushed"), 4, "it was stored since");
    client.ask("stats reset\r\n", "RESET\r\n");
    assert_eq!(client.stat("get_flushed"), 0);
    client.ask("gat 0 e\r\n", "END\r\n");
    assert_eq!(client.stat("get_flushed"), 1);
}

#[test]
fn no_name_of_the_original_is_missing() {
    let ours = Server::start_as(Program::Tollgate, &[]);
    let theirs = Server::start_as(Program::Memcached, &[]);
    let (mut ours, mut theirs) = (ours.connect(), theirs.connect());
    for request in ["stats\r\n", "stats slabs\r\n", "stats items\r\n"] {
        for client in [&mut ours, &mut theirs] {
            client.ask("set k 0 0 1\r\n1\r\n", "STORED\r\n");
        }
        let ours = table(&mut ours, request);
        let mut missing: Vec<String> = table(&mut theirs, request).into_keys().collect();
        missing.retain(|name| !ours.contains_key(name));
        assert!(missing.is_empty(), "{}: {missing:?}", request.trim());
    }
}

#[test]
fn the_answer_stays_short_however_large_the_numbers() {
    let server = Server::start(&["-m", "1048576", "-c", "12000"]);
    let mut client = server.connect();
    let short = client.ask_until("stats\r\n", "END\r\n");
    println!("{} bytes", short.len());
    assert!(short.len() < 4096);
    // The length if each number had 12 digits.
    let longest: usize = short
        .lines()
        .filter_map(|line| line.strip_prefix("STAT "))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, value)| "STAT  \r\n".len() + name.len() + value.len().max(12))
        .sum();
    println!("{longest} bytes with 12 digits each");
    assert!(longest < 4096, "{longest}");
}

#[test]
fn blanks_and_bare_newlines_are_accepted() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    for request in ["stats \n", "stats\n", "stats  \r\n", "stats items\n", "stats slabs \r\n"] {
        table(&mut client, request);
    }
    for request in ["stats settings \n", "stats conns\n", "stats sizes \r\n"] {
        assert!(!table(&mut client, request).is_empty());
    }
    client.ask("stats nonsense\r\n", "ERROR\r\n");
    client.ask("mn\r\n", "MN\r\n");
}

#[test]
fn reset_zeroes_what_was_counted_and_no_more() {
    let mut server = Server::start(&[]);
    let mut client = server.connect();
    server.until_connected(&mut client, 0);
    client.ask("set k 0 0 1\r\n1\r\nincr k 1\r\nget k x\r\n", "STORED\r\n2\r\n");
    client.ask("", "VALUE k 0 1\r\n2\r\nEND\r\n");
    client.ask("stats reset\r\n", "RESET\r\n");
    let after = table(&mut client, "stats\r\n");
    for name in ["cmd_get", "cmd_set", "get_hits", "get_misses", "incr_hits", "total_items"] {
        assert_eq!(number(&after, name), 0, "{name}");
    }
    assert_eq!(number(&after, "curr_items"), 1);
    assert_eq!(number(&after, "curr_connections"), 1);
    assert_eq!(number(&after, "total_connections"), 0);
    assert!(number(&after, "bytes_written") < 100, "what is written since");
}

#[test]
fn detail_counts_what_comes_behind_it_in_one_write() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.ask(
        "stats detail on\r\nset p:c 0 0 1\r\nx\r\nget p:c\r\nget p:c p:d\r\ndelete p:c\r\nstats detail dump\r\n",
        "OK\r\nSTORED\r\nVALUE p:c 0 1\r\nx\r\nEND\r\nVALUE p:c 0 1\r\nx\r\nEND\r\nDELETED\r\n\
         PREFIX p get 3 hit 2 set 1 del 1\r\nEND\r\n",
    );
}

#[test]
fn detail_counts_by_prefix_while_it_is_on() {
    let server = Server::start(&["-D", ":"]);
    let mut client = server.connect();
    assert_eq!(table(&mut client, "stats settings\r\n")["detail_enabled"], "yes");
    client.ask("stats detail off\r\n", "OK\r\n");
    client.ask("set a:1 0 0 1\r\n1\r\n", "STORED\r\n");
    client.ask("stats detail dump\r\n", "END\r\n");
    client.ask("stats detail on\r\n", "OK\r\n");
    client.ask("set a:1 0 0 1\r\n1\r\n", "STORED\r\n");
    client.ask("get a:1 a:2 b:1 plain\r\n", "VALUE a:1 0 1\r\n1\r\nEND\r\n");
    client.ask("delete a:1\r\n", "DELETED\r\n");
    let dump = client.ask_until("stats detail dump\r\n", "END\r\n");
    assert!(dump.contains("PREFIX a get 2 hit 1 set 1 del 1\r\n"), "{dump}");
    assert!(dump.contains("PREFIX b get 1 hit 0 set 0 del 0\r\n"), "{dump}");
    client.ask("stats detail\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    client.ask("stats detail x\r\n", "CLIENT_ERROR usage: stats detail on|off|dump\r\n");
}

const COUNTERS: &str = "cmd_get cmd_set cmd_flush cmd_touch get_hits get_misses \
    get_expired get_flushed delete_misses delete_hits incr_misses incr_hits decr_misses decr_hits \
    cas_misses cas_hits cas_badval touch_hits touch_misses store_too_large total_items \
    curr_items auth_cmds auth_errors";
const SCRIPT: &[&str] = &[
    "set k 0 0 1\r\n5\r\n",
    "set k2 0 0 1\r\nx\r\n",
    "set k 0 0 1 noreply\r\n5\r\n",
    "set k 0 0 1\r\n5\r\nset k 0 0 1\r\n5\r\n",
    "add k 0 0 1\r\n5\r\n",
    "add new 0 0 1\r\n5\r\n",
    "replace k 0 0 1\r\n5\r\n",
    "replace none 0 0 1\r\n5\r\n",
    "append k 0 0 1\r\n5\r\n",
    "prepend none 0 0 1\r\n5\r\n",
    "set k 0 0 1\r\nabc\r\n",
    "set k 0 0 x\r\n",
    "cas k 0 0 1 999999\r\n5\r\n",
    "cas none 0 0 1 9\r\n5\r\n",
    "set k 0 0 1\r\n5\r\n",
    "get k\r\n",
    "get k k2 none none2\r\n",
    "gets k none\r\n",
    "get none\r\n",
    "gat 0 k\r\n",
    "gat 0 k none\r\n",
    "gats 0 none\r\n",
    "touch k 0\r\n",
    "touch none 0\r\n",
    "incr k 1\r\n",
    "incr none 1\r\n",
    "incr k2 1\r\n",
    "incr k x\r\n",
    "decr k 1\r\n",
    "decr none 1\r\n",
    "delete k2\r\n",
    "delete none\r\n",
    "mg k v\r\n",
    "mg none v\r\n",
    "mg k\r\n",
    "mg k T0 v\r\n",
    "mg none q\r\n",
    "mg vivid N30 v\r\n",
    "ms m 1\r\n5\r\n",
    "ms m 1 ME\r\n5\r\n",
    "ms m 1 C99\r\n5\r\n",
    "ms none 1 C99\r\n5\r\n",
    "ms none 1 MR\r\n5\r\n",
    "ma m\r\n",
    "ma m MD\r\n",
    "ma none\r\n",
    "md m\r\n",
    "md none\r\n",
    "md k C99\r\n",
    "md k I\r\n",
    "set k 0 0 1\r\n5\r\n",
    "md k x\r\n",
    "md k I C99\r\n",
    "mg none T0 v\r\n",
    "me k\r\n",
    "mn\r\n",
    "flush_all 1000\r\n",
];

/// The increase of the counters by each of many requests, compared with memcached's. Not compared:
/// `cmd_meta`, which memcached does not count; `curr_items` after a flush, which memcached lowers
/// only as it meets items; an item made by `ma` with `N`, which Tollgate counts as an increment.
#[test]
fn counters_move_as_in_the_original() {
    let large = format!("set large 0 0 2000000\r\n{}\r\n", "x".repeat(2_000_000));
    let ours = Server::start_as(Program::Tollgate, &[]);
    let theirs = Server::start_as(Program::Memcached, &[]);
    let mut clients = [&ours, &theirs].map(Server::connect);
    let mut before = [vec![], vec![]];
    let mut wrong = Vec::new();
    for request in [""].iter().chain(SCRIPT).chain([&&*large]) {
        let mut moved = Vec::new();
        for (client, before) in clients.iter_mut().zip(&mut before) {
            client.send(request);
            let mut all = client.ask_until("stats\r\n", "END\r\n");
            while !all.contains("STAT pid") {
                all += &client.ask_until("", "END\r\n");
            }
            let now: Vec<u64> = COUNTERS
                .split_whitespace()
                .map(|name| {
                    let line =
                        all.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
                    line.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
                })
                .collect();
            let changes: String = COUNTERS
                .split_whitespace()
                .zip(now.iter().zip(before.iter()))
                .filter(|(_, (now, before))| now != before)
                .map(|(name, (now, before))| {
                    format!(" {name}{:+}", i128::from(*now) - i128::from(*before))
                })
                .collect::<Vec<_>>()
                .concat();
            moved.push(changes);
            *before = now;
        }
        if moved[0] != moved[1] {
            let line = request.lines().next().unwrap_or_default();
            wrong.push(format!("{line}\n  ours  {}\n  not  {}", moved[0], moved[1]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn keys_that_pass_unlimited_count_for_the_fallback() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("limits.toml");
    let limits = "exempt = ['login:root*']\n\
                  [[limit]]\nname = 'login'\nmatch = 'login:{x}'\npolicy = 'fixed:1/d'\n\
                  [[limit]]\nname = 'rest'\nmatch = '*'\npolicy = 'unlimited'\n";
    std::fs::write(&path, limits).expect("the folder is ours");
    let server = Server::start(&["--limits", path.to_str().expect("the path is text")]);
    let mut client = server.connect();
    let mut allowed = |request: &str, word: &str| {
        let reply = client.ask_until(format!("{request}\r\n"), "\r\n");
        assert!(reply.starts_with(word), "{request}: {reply}");
        let table = table(&mut client, "stats limits\r\n");
        ["rest:allowed", "rest:denied", "login:allowed"].map(|name| number(&table, name))
    };
    assert_eq!(allowed("take other 2 -", "ALLOW"), [1, 0, 0]);
    assert_eq!(allowed("takem 1 other more", "ALLOW"), [3, 0, 0]);
    assert_eq!(allowed("takem 1 other login:a other", "ALLOW"), [5, 0, 1]);
    // A call that is refused counts for nobody but the limit that refuses.
    assert_eq!(allowed("takem 1 other login:a", "DENY"), [5, 0, 1]);
    // Neither do looks, costs of 0 and exempt keys.
    assert_eq!(allowed("takem 1 other peek", "ALLOW"), [5, 0, 1]);
    assert_eq!(allowed("takem 0,1 other login:root", "ALLOW"), [5, 0, 1]);
}
