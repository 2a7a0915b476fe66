//! Tests of command lines and of output. Conversations with a node: `server/program/tests`.

use super::drain::DrainReport;
use super::login::LoginFlags;
use super::*;

fn read(line: &str) -> Result<CliRequest, String> {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    match parse(&words) {
        Ok(Parsed::Request(request)) => Ok(request),
        Ok(Parsed::Help(text)) => Err(format!("help: {text}")),
        Ok(other) => Err(format!("{other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

fn stats(lines: &str) -> client::StatPairs {
    let line = |line: &str| {
        let (name, value) = line.trim().split_once(' ').expect("a name and a value");
        (name.to_owned(), value.to_owned())
    };
    lines.lines().filter(|text| !text.trim().is_empty()).map(line).collect()
}

#[test]
fn only_the_first_word_asks_for_this_program() {
    let ask = |line: &str| {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        sub_command(&args).map(|parsed| parsed.is_ok())
    };
    assert_eq!(ask("tollgate cluster"), Some(false));
    assert_eq!(ask("/usr/bin/tollgate cluster drain n1"), Some(true));
    assert_eq!(ask("tollgate tollgate cluster status"), Some(true));
    assert_eq!(ask("tollgate snapshot --pid 1"), Some(true));
    assert_eq!(ask("tollgate -m 64 cluster"), None);
    assert_eq!(ask("tollgate -- cluster"), None);
    assert_eq!(ask("tollgate"), None);
}

#[test]
fn every_command_is_in_help_completions_and_docs() {
    let program = generate::program();
    let help = match tollgate::config::Config::from_sources(["tollgate", "-h"].map(Into::into), [])
    {
        Ok(tollgate::config::Startup::Print(help)) => help,
        other => panic!("{other:?}"),
    };
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/configuration.md");
    let docs = std::fs::read_to_string(docs).expect("the book is beside the source");
    let list = docs.split("Other first words are commands:").nth(1).expect("it lists them");
    let list = list.split("\n\n").next().unwrap_or_default();
    for (name, _) in SUB_COMMANDS {
        assert!(program.find_subcommand(name).is_some(), "{name} is not generated");
        assert!(help.contains(&format!("\n       tollgate {name}")), "{name} is not in --help");
        assert!(list.contains(&format!("[`{name}`](")), "{name} is not in configuration.md");
    }
    assert_eq!(program.get_subcommands().count(), SUB_COMMANDS.len());
    // The order of the commands in completions is that of the alphabet.
    assert!(SUB_COMMANDS.is_sorted_by_key(|(name, _)| *name));
}

#[test]
fn contradictory_flags_are_refused_before_anything_is_sent() {
    let refused = |line: &str, reason: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = sub_command(&words).expect("it is a command").expect_err(line);
        assert_eq!(error.to_string(), reason, "{line}");
    };
    for command in ["healthcheck", "top", "cluster status"] {
        let line = format!("tollgate {command} --password-file pw");
        refused(&line, "--password-file needs --login USER");
    }
    for command in ["limits list", "explain key"] {
        let line = format!("tollgate {command} --admin https://a");
        refused(&line, "https needs --ca FILE");
        let line = format!("tollgate {command} --ca pem");
        refused(&line, "--ca needs an address with https");
    }
}

#[test]
fn a_command_line_is_read() {
    let request = |verb, server: Option<&str>, json| CliRequest {
        verb,
        server: server.map(str::to_owned),
        json,
        login: LoginFlags::default(),
    };
    let local = |verb| request(verb, None, false);
    assert_eq!(read("status"), Ok(local(Verb::Status { ready: false })));
    assert_eq!(read("ready"), Ok(local(Verb::Ready)));
    assert_eq!(read("nodes"), Ok(local(Verb::Nodes { wide: false })));
    assert_eq!(read("nodes --wide"), Ok(local(Verb::Nodes { wide: true })));
    assert_eq!(read("partitions --all"), Ok(local(Verb::Partitions { all: true })));
    let drain = Verb::Drain { node: "n3".to_owned(), wait: true };
    let there = request(drain, Some("[::1]:11211"), true);
    assert_eq!(read("drain n3 --wait --json --server ::1"), Ok(there.clone()));
    assert_eq!(read("--json --server [::1]:11211 drain --wait n3"), Ok(there));
    let set = Verb::Set { name: "replicas".to_owned(), value: "3".to_owned() };
    let there = request(set, Some("cache-1:7"), false);
    assert_eq!(read("set replicas 3 --server=cache-1:7"), Ok(there));
    let there = request(Verb::Nodes { wide: false }, Some("/run/tollgate/admin.sock"), false);
    assert_eq!(read("nodes --server /run/tollgate/admin.sock"), Ok(there));
    let login = LoginFlags { login: Some("ann".to_owned()), password_file: Some("pw".into()) };
    let there = CliRequest { login, ..request(Verb::Nodes { wide: false }, None, false) };
    assert_eq!(read("--login ann nodes --password-file pw"), Ok(there));
}

#[test]
fn a_bad_command_line_gets_the_usage() {
    for line in ["", "--json", "state", "stats"] {
        assert_eq!(read(line), Err(USAGE.to_owned()), "{line}");
    }
    for line in ["limits", "limits bogus", "limits put", "--json limits remove"] {
        assert_eq!(read(line), Err(limits::USAGE.to_owned()), "{line}");
    }
    for line in ["drain", "forget"] {
        assert_eq!(read(line), Err(format!("an argument is missing: {USAGE}")), "{line}");
    }
    for line in ["set", "set replicas", "--json set"] {
        let reply = format!("write tollgate cluster set NAME VALUE; {SETTINGS}");
        assert_eq!(read(line), Err(reply), "{line}");
    }
    let none = |name: &str| format!("there is no setting {name}; {SETTINGS}");
    for (line, reply) in [
        ("set foo 3", none("foo")),
        ("set ack bogus", none("ack")),
        ("set memory_limit 512", none("memory_limit")),
        ("set replicas 4", "replicas is a number from 1 to 3".to_owned()),
        (
            "set lost_after 0",
            "lost_after is a number of seconds from 1 to 4294967295, or never".to_owned(),
        ),
    ] {
        assert_eq!(read(line), Err(reply), "{line}");
    }
    for (line, part) in [
        ("status --wait", "'--wait'"),
        ("forget n1 n2", "'n2'"),
        ("nodes --server a:b:c", "is not an address"),
        ("nodes --server a:x", "Invalid port number"),
        ("nodes --login a:b", "one word without a colon"),
    ] {
        let reason = read(line).expect_err(line);
        assert!(reason.contains(part) && !reason.contains('\n'), "{line}: {reason}");
    }
    // A word must not add a second line to the conversation.
    for node in ["a b", "a\r\nflush_all", "", "\u{7f}"] {
        let words = ["drain", node].map(OsString::from);
        assert!(parse(&words).is_err(), "{node:?}");
    }
}

#[test]
fn help_is_printed() {
    insta::assert_snapshot!(read("--help").expect_err("help"));
    assert!(read("drain -h").expect_err("help").contains("--wait"));
}

const NODES: &str = "
    n1:ring_name 10.0.0.1
    n1:client 10.0.0.1:11211
    n1:state active
    n1:ready yes
    n1:zone -
    n1:primaries 8192
    n1:clock_offset_ms -3
    n2:ring_name cache-2.example
    n2:client cache-2.example:11211
    n2:state draining
    n2:ready no
    n2:zone eu-1
    n2:primaries 0
    n2:unheard_of 1";

const PARTITIONS: &str = "
    partitions 4
    partitions_served 3
    p2 state=no_primary,primary=n3,backups=n1+n2,learner=-,to=-,term=1,era=0,ver=3
    p1 state=moving,primary=n1,backups=n2,learner=-,to=n2,term=12,era=0,ver=30
    partitions_left_out 0";

#[test]
fn nodes_are_a_table() {
    insta::assert_snapshot!(show::nodes(&stats(NODES), false, false));
}

#[test]
fn nodes_with_long_names_fit_a_terminal() {
    let name = "tollgate-0.tollgate-peers.a-namespace.svc.cluster.local";
    let long = NODES.replace("10.0.0.1", name).replace("8192", "16384");
    let page = show::nodes(&stats(&long), false, false);
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    assert!(page.contains("tollgate-0") && page.contains('…'), "{page}");
    let wide = show::nodes(&stats(&long), true, false);
    assert!(wide.contains(&format!("{name}:11211")) && wide.contains("eu-1"), "{wide}");
}

#[test]
fn nodes_are_a_list_in_json() {
    insta::assert_snapshot!(show::nodes(&stats(NODES), false, true));
}

#[test]
fn text_that_looks_like_a_number_stays_text_in_json() {
    let json = |page: &str| serde_json::from_str::<serde_json::Value>(page).expect("it is JSON");
    let text = "cluster 00123456\nnot_safe -\nfault 7\nsetting:x 5\nreplicas 2\nready no";
    let status = json(&show::status(&stats(text), true));
    let expected = serde_json::json!({
        "cluster": "00123456", "not_safe": null, "fault": "7", "setting:x": "5", "replicas": 2,
        "ready": false
    });
    assert_eq!(status, expected);
    let text = "n1:ring_name 12\nn1:client 7\nn1:peer 8\nn1:zone no\nn1:weight 1";
    let nodes = json(&show::nodes(&stats(text), false, true));
    let expected = serde_json::json!([
        { "id": "n1", "ring_name": "12", "client": "7", "peer": "8", "zone": "no", "weight": 1 }
    ]);
    assert_eq!(nodes, expected);
}

#[test]
fn partitions_are_a_table_below_the_totals() {
    insta::assert_snapshot!(show::partitions(&stats(PARTITIONS), false));
    let fine = show::partitions(&stats("partitions 4\npartitions_served 4"), false);
    assert_eq!(fine, "partitions         4\npartitions_served  4\n");
    let more = PARTITIONS.replace("left_out 0", "left_out 16364");
    let page = show::partitions(&stats(&more), false);
    assert!(page.ends_with("\nand 16364 more, which --all lists\n"), "{page}");
}

#[test]
fn partitions_are_a_list_in_json() {
    insta::assert_snapshot!(show::partitions(&stats(PARTITIONS), true));
}

#[test]
fn a_status_begins_with_a_sentence() {
    let good = "node n1\nplace active\nleader n2\nfault -\nlease_ms -\nnodes_dead 0\n\
                partitions_without_primary 0\npartitions_moving 0";
    let said = |change: &[(&str, &str)]| {
        let mut text = good.to_owned();
        for (from, to) in change {
            text = text.replace(from, to);
        }
        show::status(&stats(&text), false).lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(said(&[]), "All partitions are served and have their copies.");
    assert_eq!(said(&[("dead 0", "dead 1")]), "All partitions have their copies; dead nodes: 1.");
    assert_eq!(
        said(&[("primary 0", "primary 1"), ("moving 0", "moving 20")]),
        "Not yet as it should be: 1 partition without a primary, 20 partitions moving."
    );
    assert_eq!(
        said(&[("leader n2", "leader -"), ("moving 0", "moving 20")]),
        "There is no leader: keys are served, nothing changes."
    );
    assert_eq!(
        said(&[("place active", "place seeking")]),
        "This node is in no cluster now: seeking."
    );
    assert_eq!(
        said(&[("fault -", "fault no space left")]),
        "This node serves on with a fault: no space left"
    );
    let page = show::status(&stats(good), false);
    assert!(page.contains("\n\nnode        n1, active, not ready: -\ncluster"), "{page}");
    let json: serde_json::Value =
        serde_json::from_str(&show::status(&stats(good), true)).expect("it is JSON");
    assert_eq!(json["nodes_dead"], 0);
    assert_eq!(json["lease_ms"], serde_json::Value::Null);
    assert_eq!(json["leader"], "n2");
}

#[test]
fn status_ends_with_a_sentence_about_the_next_node() {
    let last = |change: &str| {
        let page = show::status(&stats(&format!("{STATUS}\n{change}")), false);
        page.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(last("safe_to_proceed yes\nnot_safe -"), "Safe to proceed with the next node.");
    assert_eq!(
        last("safe_to_proceed no\nnot_safe n2 is joining"),
        "Not yet safe to proceed with the next node: n2 is joining."
    );
    assert_eq!(last(""), "Not known whether it is safe to proceed: the asked node is older.");
}

#[test]
fn a_status_has_the_lines_that_are_documented() {
    insta::assert_snapshot!(show::status(&stats(STATUS), false));
    let docs = include_str!("../../../docs/operations/cluster.md");
    let page = show::status(&stats(STATUS), false);
    for line in page.lines().skip(2).take_while(|line| !line.is_empty()) {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(docs.contains(&format!("| `{name}` |")), "{name} is not documented");
    }
}

const STATUS: &str = "
    node n1
    incarnation 7
    cluster 00c0ffee
    place active
    ready no
    not_ready it is getting copies
    leader n2
    voters n1,n2,n4
    fault -
    replicas 2
    lost_after never
    nodes 4
    nodes_joining 1
    nodes_active 2
    nodes_draining 0
    nodes_dead 1
    partitions 4
    partitions_served 3
    partitions_without_primary 1
    partitions_under_replicated 2
    partitions_moving 0
    partitions_learners 1
    ops_direct 5";

#[test]
fn a_drain_tells_how_it_goes() {
    let left = DrainReport::Left { node: "n3".to_owned(), primaries: 2, backups: 40 };
    assert_eq!(show::progress(&left, false), "n3: 42 copies left, 2 of them primaries\n");
    let gone = DrainReport::Gone { node: "n3".to_owned() };
    assert_eq!(show::progress(&gone, false), "n3 has left\n");
    for response in [left, gone, DrainReport::Begun] {
        let line = show::progress(&response, true);
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok(), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}
