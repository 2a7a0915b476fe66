//! Tests of the operator's view, on a map of three nodes, a witness and four partitions.

use std::time::Duration;

use cluster::id::Incarnation;
use cluster::map::command::{MapChange, Setting};
use cluster::map::{MapAnswer, MapCommand, NodeDescription, Transition};
use cluster::placement::{Placement, Scheme};
use control::{DiskState, Membership, NodeIdentity, NodeReport};
use protocol::ClusterVerb;

use super::*;

pub(super) const LIFE: Incarnation = Incarnation(7);

fn description(host: &str, weight: u32, zone: &str) -> NodeDescription {
    NodeDescription {
        client_address: format!("{host}:11211"),
        peer_address: format!("{host}:21211"),
        ring_name: host.to_owned(),
        weight,
        zone: zone.to_owned(),
    }
}

pub(super) fn apply(map: &mut Map, command: &MapCommand) -> MapAnswer {
    map.apply(command).expect("the command is good").0
}

pub(super) fn step(map: &mut Map, partition: u16, transition: Transition) {
    let partition = Partition(partition);
    let ver = map.entry(partition).expect("it is there").ver;
    let change = MapChange { partition, ver, transition };
    let answer = apply(map, &MapCommand::Partitions(vec![change]));
    assert_eq!(answer, MapAnswer::Changes(vec![Ok(())]), "{transition:?}");
}

pub(super) fn placement(bits: u8) -> Placement {
    Placement::new(Scheme::Ketama, bits).expect("few partitions")
}

/// Registers a node of weight 1.
pub(super) fn joined(map: &mut Map, at: u128, host: &str) {
    let description = description(host, 1, "");
    apply(map, &MapCommand::Register { node_uuid: at, incarnation: LIFE, description });
}

/// Builds a map: n1 and n2 are active, n3 is dead, n4 is a witness. p0 is fine, p1 is being handed
/// over and gets a copy, p2 has lost its primary, p3 its backup.
fn map() -> Map {
    let mut map = Map::default();
    apply(&mut map, &MapCommand::Create { cluster: 0x00C0_FFEE, placement: placement(2) });
    for (at, (host, weight, zone)) in
        [("10.0.0.1", 1, "a"), ("cache-2", 1, "b"), ("n1", 2, ""), ("witness", 0, "")]
            .into_iter()
            .enumerate()
    {
        let description = description(host, weight, zone);
        let register =
            MapCommand::Register { node_uuid: at as u128, incarnation: LIFE, description };
        apply(&mut map, &register);
    }
    for (partition, nodes) in [(0, [1, 2]), (1, [1, 2]), (2, [3, 1]), (3, [2, 3])] {
        let [primary, backup] = nodes.map(NodeId);
        step(
            &mut map,
            partition,
            Transition::Reset { node: primary, incarnation: LIFE, waited: false },
        );
        step(&mut map, partition, Transition::SetLearner(backup, LIFE));
        let learner = map.entry(Partition(partition)).and_then(|entry| entry.learner);
        step(&mut map, partition, Transition::AddInSync(learner.expect("it was just set")));
    }
    step(&mut map, 1, Transition::SetLearner(NodeId(3), LIFE));
    let backup = map.entry(Partition(1)).and_then(|entry| entry.in_sync_on(NodeId(2)));
    step(&mut map, 1, Transition::SetTransfer(backup));
    for node in [1, 2] {
        apply(&mut map, &MapCommand::Activate(NodeId(node), LIFE));
    }
    apply(&mut map, &MapCommand::Bury(NodeId(3), LIFE));
    apply(&mut map, &MapCommand::Set(Setting::LostAfterMs(None)));
    let setting = Setting::Other { name: "founded".to_owned(), value: Some("yes".to_owned()) };
    apply(&mut map, &MapCommand::Set(setting));
    map
}

pub(super) fn status(map: &Map) -> Status {
    let membership = Membership { cluster: 0x00C0_FFEE, node: NodeId(1), is_founder: true };
    let report = |node, ago| NodeReport {
        node: NodeId(node),
        ago: Duration::from_millis(ago),
        is_ready: node < 3,
        load: node * 100,
        disk: DiskState::Fine,
    };
    Status {
        identity: NodeIdentity { node_uuid: 0, incarnation: LIFE, membership: Some(membership) },
        membership_state: MembershipState::Member(NodeState::Active),
        leader: Some(NodeId(2)),
        voters: [1, 2, 4].map(NodeId).into(),
        raft_term: 3,
        map_ver: map.ver(),
        contact: Some(Duration::from_millis(120)),
        lease: None,
        fault: None,
        disk: DiskState::Fine,
        reports: vec![report(2, 80), report(3, 9000)],
    }
}

fn with_view<T>(ask: impl FnOnce(&ClusterView<'_>) -> T) -> T {
    let map = map();
    let status = status(&map);
    let up = PeerLinkView { is_up: true, clock_offset_ms: Some(-3) };
    let links = [(NodeId(2), up), (NodeId(3), PeerLinkView::default())].into();
    let traffic = Traffic { ops_direct: 5, held: 1, ..Traffic::default() };
    ask(&ClusterView::of(&status, &map, &links, traffic))
}

fn stats_text(topic: &str) -> String {
    let topic = Topic::of(topic.as_bytes()).expect("a topic");
    let mut out = Vec::new();
    with_view(|view| write(view, topic, &mut out));
    let text = String::from_utf8(out).expect("what is told is text");
    assert!(text.ends_with("END\r\n"));
    for line in text.strip_suffix("END\r\n").unwrap_or_default().split_terminator("\r\n") {
        assert!(line.splitn(3, ' ').count() == 3 && !line.ends_with(' '), "{line:?}");
    }
    // The version changes with each release.
    let version = concat!("tollgate_version ", env!("CARGO_PKG_VERSION"));
    text.replace("\r\n", "\n").replace(version, "tollgate_version VERSION")
}

#[test]
fn topics_are_whole_words() {
    assert_eq!(Topic::of(b"cluster"), Some(Topic::General));
    assert_eq!(Topic::of(b"  cluster  nodes "), Some(Topic::Nodes));
    assert_eq!(Topic::of(b" cluster partitions"), Some(Topic::Partitions));
    assert_eq!(Topic::of(b" cluster partitions all"), Some(Topic::AllPartitions));
    for other in
        ["", "limits", "clusters", "cluster x", "cluster nodes all", "cluster partitions x"]
    {
        assert_eq!(Topic::of(other.as_bytes()), None, "{other}");
    }
}

#[test]
fn the_cluster_is_told_as_a_whole() {
    insta::assert_snapshot!(stats_text("cluster"));
}

#[test]
fn every_node_is_told() {
    insta::assert_snapshot!(stats_text("cluster nodes"));
}

#[test]
fn the_worst_partitions_come_first() {
    insta::assert_snapshot!(stats_text("cluster partitions"));
}

#[test]
fn all_partitions_come_in_order() {
    insta::assert_snapshot!(stats_text("cluster partitions all"));
}

#[test]
fn a_broken_cluster_lists_few_partitions() {
    let mut map = Map::default();
    apply(&mut map, &MapCommand::Create { cluster: 1, placement: placement(11) });
    let status = status(&map);
    let view = ClusterView::of(&status, &map, &BTreeMap::new(), Traffic::default());
    assert_eq!((view.partitions.without_primary, view.partitions.served), (2048, 0));
    let mut out = Vec::new();
    write(&view, Topic::Partitions, &mut out);
    let text = String::from_utf8_lossy(&out);
    assert_eq!(text.lines().filter(|line| line.contains("state=no_primary")).count(), 20);
    assert!(text.ends_with("STAT partitions_left_out 2028\r\nEND\r\n"), "{text}");
}

#[test]
fn a_node_without_a_cluster_reports_unknowns() {
    let map = Map::default();
    let mut status = status(&map);
    (status.identity.membership, status.membership_state) = (None, MembershipState::Seeking);
    (status.leader, status.contact, status.reports) = (None, None, vec![]);
    status.voters.clear();
    status.fault = Some("no space\nleft".to_owned());
    let view = ClusterView::of(&status, &map, &BTreeMap::new(), Traffic::default());
    let mut out = Vec::new();
    write(&view, Topic::General, &mut out);
    let text = String::from_utf8_lossy(&out);
    for line in ["node -", "place seeking", "voters -", "contact_ms -", "fault no space?left"] {
        assert!(text.contains(&format!("STAT {line}\r\n")), "{line}: {text}");
    }
    let mut out = Vec::new();
    write_config(&view, &mut out);
    assert_eq!(out, b"CONFIG cluster 0 3\r\n0\n\n\r\nEND\r\n");
}

#[test]
fn clients_get_the_nodes_that_hold_keys() {
    let mut out = Vec::new();
    let ver = with_view(|view| {
        write_config(view, &mut out);
        view.map.ver()
    });
    let body = format!("{ver}\n10.0.0.1|10.0.0.1|11211 cache-2||11211\n");
    let expected = format!("CONFIG cluster 0 {}\r\n{body}\r\nEND\r\n", body.len());
    assert_eq!(String::from_utf8_lossy(&out), expected);
}

#[test]
fn a_node_has_several_names() {
    let map = map();
    let named = |word: &str| node_of(&map, word.as_bytes()).map_err(|error| error.to_string());
    for (word, node) in [
        ("n2", 2),
        ("2", 2),
        ("cache-2", 2),
        ("cache-2:11211", 2),
        ("cache-2:21211", 2),
        ("n1:11211", 3),
        ("1", 1),
        ("witness", 4),
    ] {
        assert_eq!(named(word), Ok(NodeId(node)), "{word}");
    }
    // The ring name of the third node is n1.
    let unclear = "n1 may be n1 or n3: name it by its address";
    assert_eq!(named("n1"), Err(unclear.to_owned()));
    for word in ["n5", "5", "", "n", "cache", "CACHE-2", "-1"] {
        assert_eq!(named(word), Err(format!("there is no node {word}")));
    }
}

#[test]
fn words_become_commands() {
    let map = map();
    let command = |verb: ClusterVerb<'_>| command_of(&map, verb).map_err(|error| error.to_string());
    assert_eq!(command(ClusterVerb::Drain(b"n2")), Ok(MapCommand::Drain(NodeId(2), LIFE)));
    assert_eq!(command(ClusterVerb::Forget(b"3")), Ok(MapCommand::Forget(NodeId(3), LIFE)));
    let set = |name: &str, value: &str| {
        command(ClusterVerb::Set { name: name.as_bytes(), value: value.as_bytes() })
    };
    let done = |setting| Ok(MapCommand::Set(setting));
    assert_eq!(set("replicas", "3"), done(Setting::Replicas(3)));
    assert_eq!(set("lost_after", "60"), done(Setting::LostAfterMs(Some(60_000))));
    assert_eq!(set("lost_after", "never"), done(Setting::LostAfterMs(None)));
    for (name, value, why) in [
        ("replicas", "0", "replicas is a number from 1 to 3"),
        ("replicas", "4", "replicas is a number from 1 to 3"),
        ("replicas", "two", "replicas is a number from 1 to 3"),
        ("replicas", "", "replicas is a number from 1 to 3"),
        ("lost_after", "0", LOST_AFTER),
        ("lost_after", "4294967296", LOST_AFTER),
        ("lost_after", "soon", LOST_AFTER),
    ] {
        assert_eq!(set(name, value), Err(why.to_owned()));
    }
    assert_eq!(
        set("lost_after", "4294967295"),
        done(Setting::LostAfterMs(Some(4_294_967_295_000)))
    );
    for name in ["x", "version", "ack", "memory_limit", "founded", "limits_told", "", "Replicas"] {
        assert_eq!(set(name, "1"), Err(format!("there is no setting {name}; {SETTINGS}")));
    }
    let not_text = ClusterVerb::Set { name: b"replicas", value: b"\xff" };
    assert!(command_of(&map, not_text).is_err());
}

const LOST_AFTER: &str = "lost_after is a number of seconds from 1 to 4294967295, or never";

#[test]
fn a_node_reports_why_it_is_not_ready() {
    let map = map();
    let why = |change: &dyn Fn(&mut Status)| {
        let mut status = status(&map);
        status.lease = Some(Duration::from_millis(200));
        change(&mut status);
        ClusterView::of(&status, &map, &BTreeMap::new(), Traffic::default()).not_ready()
    };
    assert_eq!(why(&|_| {}), None);
    assert_eq!(
        why(&|status| status.membership_state = MembershipState::Seeking),
        Some("it seeks a cluster")
    );
    assert_eq!(
        why(&|status| status.membership_state = MembershipState::Member(NodeState::Draining)),
        Some("it is draining")
    );
    for lease in [None, Some(Duration::from_secs(3))] {
        let deaf = Some("it does not hear the control plane");
        assert_eq!(why(&|status| status.lease = lease), deaf);
    }
    let failed = Some("its part in the control plane has failed");
    assert_eq!(why(&|status| status.fault = Some("disk".to_owned())), failed);
    let all = status(&map);
    let mut view = ClusterView::of(&all, &map, &BTreeMap::new(), Traffic::default());
    view.waits_for = Some("it waits for limits");
    assert_eq!(view.not_ready(), view.waits_for);
    // The third node is getting a copy of p1.
    let mut status = status(&map);
    status.lease = Some(Duration::ZERO);
    status.identity.membership =
        Some(Membership { cluster: 1, node: NodeId(3), is_founder: false });
    let view = ClusterView::of(&status, &map, &BTreeMap::new(), Traffic::default());
    assert_eq!(view.not_ready(), Some("it is getting copies"));
    assert_eq!(view.nodes[2].is_ready, Some(false));
}
