//! The silence that counts, and the silence that does not.

use cluster::map::NodeDescription;
use cluster::placement::{Placement, Scheme};

use super::*;
use cluster::map::MapCommand;

const LIFE: Incarnation = Incarnation(1);

fn map(nodes: u32) -> Map {
    let mut map = Map::default();
    let placement = Placement::new(Scheme::Ketama, 0).expect("few");
    map.apply(&MapCommand::Create { cluster: 1, placement }).expect("the first");
    for number in 1..=nodes {
        let description = NodeDescription {
            client_address: format!("{number}"),
            peer_address: format!("{number}"),
            ring_name: format!("{number}"),
            weight: 1,
            zone: String::new(),
        };
        let node_uuid = u128::from(number);
        map.apply(&MapCommand::Register { node_uuid, incarnation: LIFE, description })
            .expect("new");
    }
    map
}

fn ids(ids: impl IntoIterator<Item = u32>) -> BTreeSet<NodeId> {
    ids.into_iter().map(NodeId).collect()
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Whether leader 1 calls node 4 silent when its last message is too old at the voters `late`, and
/// the voters `mute` report nothing.
fn is_silent(voters: u32, late: &[u32], mute: &[u32]) -> bool {
    let map = map(7);
    let now = ms(60_000);
    let mut liveness = FailureDetector::default();
    liveness.see(&map, &ids(1..=voters), NodeId(1), ms(0));
    let ago = |voter: u32| if late.contains(&voter) { 1500 } else { 1499 };
    for node in 2..=7 {
        let ago = if node == 4 { ms(u64::from(ago(1))) } else { ms(0) };
        liveness.record(NodeId(node), LIFE, now.saturating_sub(ago));
    }
    for voter in (2..=voters).filter(|voter| !mute.contains(voter)) {
        liveness.take_report(NodeId(voter), vec![(NodeId(4), LIFE, ago(voter))], now);
    }
    let silent = liveness.silent(&map, NodeId(1), now);
    assert!(silent.is_subset(&ids([4])), "{silent:?}");
    !silent.is_empty()
}

#[test]
fn a_majority_of_all_voters_has_to_miss_it() {
    assert!(!is_silent(3, &[1], &[]), "a bad link at the leader");
    assert!(!is_silent(3, &[2], &[]));
    assert!(is_silent(3, &[1, 2], &[]));
    assert!(is_silent(3, &[1, 2], &[3]));
    assert!(!is_silent(3, &[1], &[2, 3]), "who says nothing does not say that it is silent");
    assert!(is_silent(1, &[1], &[]));
    assert!(!is_silent(5, &[1, 2], &[3]));
    assert!(is_silent(5, &[1, 2, 3], &[5]));
}

#[test]
fn new_node_is_not_silent_before_its_first_heartbeat() {
    let map = map(3);
    let mut liveness = FailureDetector::default();
    liveness.see(&map, &ids([1]), NodeId(1), ms(5000));
    let silent = |liveness: &FailureDetector, now| liveness.silent(&map, NodeId(1), ms(now));
    assert_eq!(silent(&liveness, 6499), ids([]));
    assert_eq!(silent(&liveness, 6500), ids([2, 3]));
    liveness.record(NodeId(2), LIFE, ms(6400));
    liveness.see(&map, &ids([1]), NodeId(1), ms(7000));
    assert_eq!(silent(&liveness, 7000), ids([3]));
    // Suspended for ten seconds: silence in that time proves nothing.
    liveness.slept(ms(10_000), ms(17_000));
    assert_eq!(silent(&liveness, 17_000), ids([3]), "it was silent before");
    assert_eq!(silent(&liveness, 17_899), ids([3]));
    assert_eq!(silent(&liveness, 17_900), ids([2, 3]));
}

#[test]
fn refused_or_replaced_incarnation_is_over() {
    let map = map(3);
    let mut liveness = FailureDetector::default();
    let now = ms(10_000);
    liveness.see(&map, &ids([1]), NodeId(1), ms(0));
    liveness.record(NodeId(2), Incarnation(2), now);
    liveness.record(NodeId(2), LIFE, now);
    liveness.record(NodeId(3), Incarnation(0), now);
    // A later incarnation sends a message before it is in the map; a message of an earlier one is
    // an echo.
    assert_eq!(liveness.silent(&map, NodeId(1), now), ids([3]));
    // It died before the map had it, so the incarnation in the map is over too.
    liveness.record(NodeId(3), LIFE, now + ms(1500));
    assert_eq!(liveness.silent(&map, NodeId(1), now + ms(1499)), ids([]));
    assert_eq!(liveness.silent(&map, NodeId(1), now + ms(1500)), ids([2]));
    liveness.record(NodeId(3), Incarnation(0), now);
    // An incarnation that is new in the map had no time to send.
    let mut reborn = map.clone();
    let description = map.nodes()[&NodeId(3)].description.clone();
    let incarnation = Incarnation(5);
    reborn
        .apply(&MapCommand::Register { node_uuid: 3, incarnation, description })
        .expect("it is later");
    liveness.see(&reborn, &ids([1]), NodeId(1), now);
    assert_eq!(liveness.silent(&reborn, NodeId(1), now + ms(1499)), ids([]));
    assert_eq!(liveness.silent(&reborn, NodeId(1), now + ms(1500)), ids([2, 3]));
    liveness.see(&map, &ids([1]), NodeId(1), now);
    liveness.refuse(NodeId(2), LIFE, now);
    assert_eq!(liveness.silent(&map, NodeId(1), now), ids([2]));
    // A message in flight is no sign of life, a later one is.
    liveness.record(NodeId(2), LIFE, now + ms(250));
    assert_eq!(liveness.silent(&map, NodeId(1), now + ms(250)), ids([2]));
    liveness.record(NodeId(2), LIFE, now + ms(251));
    assert_eq!(liveness.silent(&map, NodeId(1), now + ms(251)), ids([]));
}

#[test]
fn stale_reports_do_not_count() {
    let map = map(4);
    let mut liveness = FailureDetector::default();
    liveness.see(&map, &ids([1, 2, 3]), NodeId(1), ms(0));
    liveness.take_report(NodeId(2), vec![(NodeId(4), LIFE, 9000)], ms(9000));
    let silent = |now| liveness.silent(&map, NodeId(1), ms(now));
    assert_eq!(silent(9768), ids([4]));
    assert_eq!(silent(9769), ids([]));
}

#[test]
fn new_voters_call_no_node_silent_at_first() {
    let map = map(5);
    let mut liveness = FailureDetector::default();
    let me = NodeId(4);
    liveness.see(&map, &ids([1, 2, 3]), me, ms(0));
    assert!(liveness.report(ms(60_000)).iter().all(|heard| heard.2 == 60_000));
    liveness.see(&map, &ids([1, 4, 5]), me, ms(60_000));
    assert!(liveness.report(ms(60_000)).iter().all(|heard| heard.2 == 0));
    // The leader waits too, although the two others are a majority.
    liveness.take_report(
        NodeId(5),
        vec![(NodeId(1), LIFE, 60_000), (NodeId(2), LIFE, 60_000)],
        ms(61_400),
    );
    liveness.take_report(NodeId(1), vec![(NodeId(2), LIFE, 60_000)], ms(61_400));
    assert_eq!(liveness.silent(&map, me, ms(61_499)), ids([]));
    assert_eq!(liveness.silent(&map, me, ms(61_500)), ids([1, 2]));
}
