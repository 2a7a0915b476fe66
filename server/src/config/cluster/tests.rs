//! Tests of resolving flags to `ClusterConfig`.

use std::ffi::OsString;

use cluster::placement::Scheme;

use super::*;
use crate::config::{Config, Startup};

fn config(line: &str) -> Result<Config, String> {
    let args = ["tollgate"].into_iter().chain(line.split_whitespace()).map(OsString::from);
    match Config::from_sources(args, []) {
        Ok(Startup::Serve(config) | Startup::Check(config)) => Ok(*config),
        Ok(other) => panic!("{line} does not serve: {other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn cluster(line: &str) -> ClusterConfig {
    let config = config(line).expect(line);
    config.cluster.unwrap_or_else(|| panic!("{line} is a cluster"))
}

/// The addresses of a command line: for peers, advertised to clients, advertised to peers, and the
/// ring name.
fn addresses(line: &str) -> String {
    let cluster = cluster(line);
    let peers: Vec<_> = cluster.peer_listen.iter().map(ToString::to_string).collect();
    let (client, peer) = (cluster.advertise, cluster.advertise_peer);
    format!("{} {client} {peer} {}", peers.join(","), cluster.ring_name)
}

#[test]
fn a_server_is_alone_unless_told_otherwise() {
    assert_eq!(config("").expect("a good line").cluster, None);
    assert_eq!(config("--insecure=no").expect("a good line").cluster, None);
    for flag in [
        "--peer-listen ::1",
        "--advertise a",
        "--advertise-peer a",
        "--ring-name a",
        "--weight 2",
        "--zone a",
        "--role witness",
        "--placement xxh3",
        "--partition-bits 4",
        "--replicas 3",
        "--lost-after 1",
        "--ack owner",
        "--on-unavailable deny",
        "--drain-timeout 1",
        "--peer-key-file k",
        "--peer-cert c",
        "--peer-key k",
        "--peer-ca a",
        "--insecure",
    ] {
        let name = flag.split(' ').next().unwrap_or_default();
        let expected =
            format!("{name} is of a cluster: add --data-dir, --join, --seeds or --expect");
        assert_eq!(config(flag).map(|config| config.cluster), Err(expected));
    }
}

#[test]
fn four_flags_say_how_a_cluster_is_got() {
    let begin = |line| {
        let cluster = cluster(line);
        let seeds: Vec<_> = cluster.seeds.iter().map(ToString::to_string).collect();
        (cluster.begin, seeds.join(" "))
    };
    assert_eq!(begin("--data-dir d"), (StartMode::Found, String::new()));
    assert_eq!(begin("--data-dir d --expect 1"), (StartMode::Found, String::new()));
    assert_eq!(begin("--expect 1"), (StartMode::Found, String::new()));
    assert_eq!(begin("--join a"), (StartMode::Join, "a:21211".to_owned()));
    assert_eq!(
        begin("--join a,dns:b --join [::1],dns:c:7,a:21211 --data-dir d"),
        (StartMode::Join, "a:21211 dns:b:21211 [::1]:21211 dns:c:7".to_owned())
    );
    assert_eq!(begin("--seeds a:1"), (StartMode::Join, "a:1".to_owned()));
    assert_eq!(begin("--seeds a:1,b:1 --expect 3"), (StartMode::Expect(3), "a:1 b:1".to_owned()));
    assert_eq!(begin("--seeds a:1 --expect 1"), (StartMode::Expect(1), "a:1".to_owned()));
}

#[test]
fn defaults_are_those_of_the_design() {
    let cluster = cluster("--data-dir /d");
    let expected = ClusterConfig {
        data_dir: Some("/d".into()),
        begin: StartMode::Found,
        seeds: vec![],
        peer_listen: vec![ListenAddr { host: "127.0.0.1".to_owned(), port: 21211, label: None }],
        advertise: HostPort { host: "127.0.0.1".to_owned(), port: 11211 },
        advertise_peer: HostPort { host: "127.0.0.1".to_owned(), port: 21211 },
        ring_name: "127.0.0.1".to_owned(),
        weight: 1,
        zone: String::new(),
        placement: Placement::new(Scheme::Ketama, 14).expect("14 bits"),
        replicas: 2,
        lost_after: Some(Duration::from_mins(5)),
        ack: Ack::Replica,
        on_unavailable: OnUnavailable::Local,
        drain_timeout: Duration::from_secs(90),
        peer_files: PeerFiles::None,
        insecure: false,
    };
    assert_eq!(cluster, expected);
    assert!(!cluster.is_witness());
}

#[test]
fn every_setting_is_taken() {
    let line = "--seeds a --expect 5 -l 10.0.0.1 --zone eu-1 --ring-name cache-1 --weight 7 \
                --placement xxh3 --partition-bits 8 --replicas 3 --lost-after never --ack owner \
                --on-unavailable error --drain-timeout 0 --peer-cert c --peer-key k --peer-ca a";
    let made = cluster(line);
    assert_eq!((&*made.zone, &*made.ring_name, made.weight), ("eu-1", "cache-1", 7));
    assert_eq!(Some(made.placement), Placement::new(Scheme::Xxh3, 8));
    assert_eq!((made.replicas, made.lost_after, made.ack), (3, None, Ack::Owner));
    assert_eq!(made.on_unavailable, OnUnavailable::Error);
    assert_eq!(made.drain_timeout, Duration::ZERO);
    let tls = PeerFiles::Tls { certificates: "c".into(), key: "k".into(), authorities: "a".into() };
    assert_eq!(made.peer_files, tls);
    assert_eq!(cluster("--join a --lost-after 1").lost_after, Some(Duration::from_mins(5)));
    assert_eq!(cluster("--expect 1 --lost-after 1").lost_after, Some(Duration::from_secs(1)));
    assert_eq!(cluster("--join a --peer-key-file f").peer_files, PeerFiles::Key("f".into()));
    assert!(cluster("--join a --role witness").is_witness());
    assert!(!cluster("--join a --role node --weight 2").is_witness());
}

#[test]
fn one_address_leads_to_the_others() {
    for (line, expected) in [
        ("--expect 1", "127.0.0.1:21211 127.0.0.1:11211 127.0.0.1:21211 127.0.0.1"),
        (
            "--expect 1 -p 11300 -l 127.0.0.1,::1",
            "127.0.0.1:21300,[::1]:21300 127.0.0.1:11300 127.0.0.1:21300 127.0.0.1:11300",
        ),
        (
            "--expect 1 -l * --insecure --advertise node-1",
            "*:21211 node-1:11211 node-1:21211 node-1",
        ),
        (
            "--expect 1 -l [::] --insecure --advertise fd00::1 --advertise-peer peer-1:7",
            "[::]:21211 [fd00::1]:11211 peer-1:7 fd00::1",
        ),
        (
            "--expect 1 -l 10.0.0.1 --insecure --advertise node-1:80 --advertise-peer node-1",
            "10.0.0.1:21211 node-1:80 node-1:21211 node-1:80",
        ),
        (
            "--expect 1 --peer-listen ::1,[::1]:7 --peer-listen 127.0.0.1:0 -p 11300",
            "[::1]:21300,[::1]:7,127.0.0.1:0 127.0.0.1:11300 [::1]:21300 127.0.0.1:11300",
        ),
        (
            "--expect 1 -p -1 --peer-listen 127.0.0.1:0 --ring-name x",
            "127.0.0.1:0 127.0.0.1:0 127.0.0.1:0 x",
        ),
        (
            "--expect 1 -s /s --peer-listen 127.0.0.1 --advertise node-1",
            "127.0.0.1:21211 node-1:11211 127.0.0.1:21211 node-1",
        ),
    ] {
        assert_eq!(addresses(line), expected, "{line}");
    }
}

#[test]
fn ports_that_the_system_chose_are_told() {
    let cluster = cluster("--expect 1 -p -1 --peer-listen 127.0.0.1:0 --ring-name x");
    let description = cluster.description(5, 6);
    assert_eq!(description.client_address, "127.0.0.1:5");
    assert_eq!(description.peer_address, "127.0.0.1:6");
    let fixed = super::tests::cluster("--expect 1").description(5, 6);
    assert_eq!(
        (&*fixed.client_address, &*fixed.peer_address),
        ("127.0.0.1:11211", "127.0.0.1:21211")
    );
}

#[test]
fn contradicting_flags_are_refused_with_a_remedy() {
    for (line, part) in [
        ("--join a --seeds b", "--join and --seeds: write one"),
        ("--join a --expect 3", "write --seeds instead"),
        ("--expect 3", "--expect 3: write --seeds"),
        ("--data-dir d --expect 2", "--expect 2: write --seeds"),
        ("--expect 1 -l 0.0.0.0", "write --advertise HOST"),
        ("--expect 1 -l *", "write --advertise HOST"),
        ("--expect 1 -s /s --peer-listen ::1", "write --advertise HOST:PORT"),
        ("--expect 1 -s /s --advertise a", "write where nodes connect"),
        ("--expect 1 -p 0", "write --advertise HOST:PORT"),
        ("--expect 1 -p -1", "write --peer-listen ADDR:PORT"),
        ("--expect 1 -p -1 --peer-listen ::1", "write --ring-name NAME"),
        ("--expect 1 -p 55536", "write --peer-listen ADDR:PORT"),
        ("--expect 1 -l 10.0.0.1", "peers off loopback (10.0.0.1:21211) must be secured"),
        ("--expect 1 --peer-listen *", "peers off loopback (*:21211) must be secured"),
        ("--expect 1 --peer-listen node-1", "peers off loopback (node-1:21211)"),
        ("--expect 1 --peer-cert c", "--peer-cert without --peer-key: all three"),
        ("--expect 1 --peer-cert c --peer-key k", "--peer-cert without --peer-ca: all three"),
        ("--expect 1 --peer-ca a --peer-key-file f", "--peer-key-file and --peer-ca"),
        ("--expect 1 --role witness", "--role witness needs --join or --seeds"),
        ("--join a --role witness --weight 1", "a witness holds nothing"),
        ("--expect 1 -C", "-C (--disable-cas)"),
        ("--expect 1 -e f", "-e (--memory-file)"),
        ("--expect 1 -m 1024 -I 1048577", "at most 1m"),
        ("--expect 1 -m 4096 -I 1g", "write -I 1m or less"),
        ("--expect 0", "expected a whole number from 1 to 4096"),
        ("--expect 1 --replicas 4", "expected a whole number from 1 to 3"),
        ("--expect 1 --partition-bits 3", "expected a whole number from 4 to 16"),
        ("--expect 1 --partition-bits 17", "expected a whole number from 4 to 16"),
        ("--expect 1 --weight 0", "expected a whole number from 1 to 1048576"),
        ("--expect 1 --lost-after 0", "or never"),
        ("--expect 1 --lost-after soon", "or never"),
        ("--expect 1 --placement md5", "expected ketama or xxh3"),
        ("--expect 1 --ack all", "expected replica or owner"),
        ("--expect 1 --on-unavailable x", "expected local, allow, deny or error"),
        ("--expect 1 --role leader", "expected node or witness"),
        ("--expect 1 --zone a,b", "without blank, comma or |"),
        ("--expect 1 --peer-listen tag[x]:::1", "tag[x]"),
        ("--expect 1 --peer-listen a:b:c", "is not an address"),
        ("--join ,", "expected an address"),
        ("--join a:0", "nobody can be reached at port 0"),
        ("--join *", "every interface"),
        ("--join dns:", "is not host"),
        ("--expect 1 --advertise 0.0.0.0", "every interface"),
        ("--expect 1 --advertise [::]:5", "every interface"),
    ] {
        let reason = config(line).map(|config| config.cluster).expect_err(line);
        assert!(reason.contains(part), "{line}: {reason}");
        assert_eq!(reason.lines().count(), 1, "{reason}");
    }
    // These are accepted without a cluster, or with the setting that the message asks for.
    for line in [
        "-C -e f",
        "-m 4096 -I 1g",
        "--expect 1 -m 64 -I 1m",
        "--expect 1 -p 55535",
        "--expect 1 -C=no",
        "--expect 1 -l localhost",
        "--expect 1 -l 127.0.0.2,::1",
        "--expect 1 -l ::ffff:127.0.0.1",
        "--expect 1 -l 10.0.0.1 --insecure",
        "--expect 1 -l 10.0.0.1 --peer-listen 127.0.0.1",
        "--seeds a --expect 3 --role witness",
    ] {
        assert!(config(line).is_ok(), "{line}: {:?}", config(line));
    }
}

#[test]
fn surprising_settings_are_warned_of() {
    let warnings = |line| config(line).expect(line).warnings;
    assert_eq!(warnings("--data-dir d"), Vec::<String>::new());
    let memory = "no --data-dir: the cluster's map is kept in memory only, and after a restart \
                  this is a new node";
    assert_eq!(warnings("--join a"), [memory]);
    assert_eq!(
        warnings("--join a --data-dir d --replicas 3 --placement xxh3"),
        ["--placement", "--replicas"]
            .map(|flag| format!("{flag} has no effect: a node that joins is told by the cluster"))
    );
    let line = "--join a --data-dir d --peer-listen * --insecure";
    let reply = "nodes are told to find this one at 127.0.0.1:21211, which no other machine \
                reaches; --advertise-peer tells them another place";
    assert_eq!(warnings(line), [reply]);
}

#[test]
fn printed_settings_read_back_to_the_same() {
    let dir = tempfile::tempdir().expect("a directory for one file");
    let file = dir.path().join("t.toml");
    for line in [
        "--expect 1",
        "--data-dir /d",
        "--join a,dns:b:7 --role witness --replicas 3",
        "--seeds [::1]:5 --expect 3 --data-dir /d --zone z --lost-after never --placement xxh3",
        "--expect 1 -l * --advertise a --peer-key-file /k --ack owner --on-unavailable deny",
        "--expect 1 -p -1 --peer-listen ::1,[::1]:0 --ring-name r --weight 9 --drain-timeout 5",
        "--expect 1 --peer-cert /c --peer-key /k --peer-ca /a --insecure --partition-bits 4",
    ] {
        let mut first = config(line).expect(line);
        std::fs::write(&file, first.to_toml()).expect("the directory is ours");
        let mut second = config(&format!("--config {}", file.display())).expect(line);
        (first.warnings, second.warnings) = (Vec::new(), Vec::new());
        assert_eq!(second, first, "{line}");
    }
}

#[test]
fn a_flag_outweighs_the_environment_list_by_list() {
    let args = ["tollgate", "--seeds", "a", "--seeds", "b"].map(OsString::from);
    let variables =
        [("TOLLGATE_SEEDS", "c"), ("TOLLGATE_EXPECT", "3"), ("TOLLGATE_INSECURE", "yes")];
    let variables = variables.map(|(name, text)| (name.into(), text.into()));
    let Ok(Startup::Serve(config)) = Config::from_sources(args, variables) else {
        panic!("a good line")
    };
    let cluster = config.cluster.expect("a cluster");
    assert_eq!(
        (cluster.begin, cluster.seeds.len(), cluster.insecure),
        (StartMode::Expect(3), 2, true)
    );
}

#[test]
fn a_daemons_paths_are_absolute() {
    let line = "-d --expect 1 --data-dir d --peer-cert c --peer-key k --peer-ca a";
    let mut cluster = cluster(line);
    assert_eq!(cluster.paths().len(), 4);
    assert!(cluster.paths().iter().all(|path| path.is_absolute()));
}

#[test]
fn files_are_read_when_they_are_needed() {
    let missing = cluster("--expect 1 --peer-key-file /nonexistent/key");
    assert!(matches!(missing.security(), Err(SecurityError::Unreadable { .. })));
    assert!(matches!(cluster("--expect 1").security(), Ok(PeerSecurity::Insecure)));
}
