//! The map under any commands, and the controller from any state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::command::{FOUNDED, LIMITS_SET, LOST_AFTER_MS_MAX, MapChange, PUTS_MAX, Setting, YES};
use super::controller::{self, ControllerInput, MOVES_MAX};
use super::removals::WaitingRemovals;
use super::*;
use crate::placement::Scheme;

fn description(number: u128, weight: u32, zone: &str) -> NodeDescription {
    NodeDescription {
        client_address: format!("10.0.0.{number}:11211"),
        peer_address: format!("10.0.0.{number}:11212"),
        ring_name: format!("10.0.0.{number}"),
        weight,
        zone: zone.to_owned(),
    }
}

fn register(number: u128, incarnation: u64) -> MapCommand {
    let description = description(number, 1, "");
    MapCommand::Register { node_uuid: number, incarnation: Incarnation(incarnation), description }
}

fn created(scheme: Scheme, bits: u8) -> Map {
    let placement = Placement::new(scheme, bits).expect("few bits");
    let mut map = Map::default();
    map.apply(&MapCommand::Create { cluster: 7, placement }).expect("it is the first");
    map
}

/// Applies a command that must not be refused.
#[track_caller]
fn done(map: &mut Map, command: &MapCommand) {
    let (answer, _) = map.apply(command).unwrap_or_else(|why| panic!("{command:?}: {why}"));
    if let MapAnswer::Changes(answers) = answer {
        assert!(answers.iter().all(Result::is_ok), "{command:?}: {answers:?}");
    }
}

/// A transition of the present entry of a partition.
fn change_of(map: &Map, partition: Partition, transition: Transition) -> MapChange {
    MapChange { partition, ver: map.partitions()[partition.index()].ver, transition }
}

/// Applies one transition to partition 0.
fn step(map: &mut Map, transition: Transition) -> Result<(), MapRefusal> {
    let change = change_of(map, Partition(0), transition);
    match map.apply(&MapCommand::Partitions(vec![change]))? {
        (MapAnswer::Changes(answers), _) => answers[0],
        (answer, _) => panic!("{answer:?}"),
    }
}

const N: [NodeId; 5] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4), NodeId(5)];
const LIFE: Incarnation = Incarnation(1);

/// Four nodes; partition 0 on the first, with the second in sync.
fn paired() -> (Map, CopyId, CopyId) {
    let mut map = created(Scheme::Ketama, 0);
    (1..=4).for_each(|number| done(&mut map, &register(number, 1)));
    let reset = Transition::Reset { node: N[0], incarnation: LIFE, waited: false };
    step(&mut map, reset).expect("the first copy");
    step(&mut map, Transition::SetLearner(N[1], LIFE)).expect("the second");
    let backup = map.partitions()[0].learner.expect("it was just set");
    step(&mut map, Transition::AddInSync(backup)).expect("it is the learner");
    let primary = map.partitions()[0].primary.expect("it was set");
    (map, primary, backup)
}

#[test]
fn the_first_copy_loses_nothing() {
    let (map, primary, backup) = paired();
    let entry = &map.partitions()[0];
    assert_eq!((entry.term, entry.ver, entry.era), (Term(1), 3, 0));
    assert_eq!(entry.in_sync, [primary, backup]);
    assert_eq!((primary.assignment, backup.assignment), (1, 2));
}

#[test]
fn change_of_another_version_is_refused() {
    let (mut map, _, backup) = paired();
    let change =
        MapChange { partition: Partition(0), ver: 2, transition: Transition::Promote(backup) };
    let before = map.clone();
    let (answer, delta) = map.apply(&MapCommand::Partitions(vec![change])).expect("as a whole");
    assert_eq!(answer, MapAnswer::Changes(vec![Err(MapRefusal::OtherVersion(2))]));
    assert_eq!((delta, &map), (None, &before));
}

#[test]
fn changes_of_one_command_see_each_other() {
    let (mut map, _, backup) = paired();
    let change = |ver, transition| MapChange { partition: Partition(0), ver, transition };
    let wanted = Transition::SetTransfer(Some(backup));
    let changes = vec![
        change(3, wanted),
        change(3, Transition::SetTransfer(None)),
        change(4, Transition::Transfer(backup)),
        change(5, Transition::SetLearner(N[2], LIFE)),
        MapChange { partition: Partition(1), ver: 0, transition: wanted },
    ];
    let (answer, delta) = map.apply(&MapCommand::Partitions(changes)).expect("as a whole");
    let refused = [MapRefusal::OtherVersion(3), MapRefusal::UnknownPartition].map(Err);
    let expected = vec![Ok(()), refused[0], Ok(()), Ok(()), refused[1]];
    assert_eq!(answer, MapAnswer::Changes(expected));
    let entry = &map.partitions()[0];
    assert_eq!((entry.ver, entry.term, entry.primary), (6, Term(2), Some(backup)));
    assert_eq!(delta.map(|delta| delta.items.len()), Some(3));
    let too_many = vec![change(6, wanted); command::CHANGES_MAX + 1];
    assert_eq!(map.apply(&MapCommand::Partitions(too_many)), Err(MapRefusal::OutOfBounds));
}

#[test]
fn only_the_present_learner_becomes_in_sync() {
    let (mut map, primary, _) = paired();
    step(&mut map, Transition::SetLearner(N[2], LIFE)).expect("a third");
    let first = map.partitions()[0].learner.expect("it was just set");
    assert_eq!(step(&mut map, Transition::SetLearner(N[3], LIFE)), Err(MapRefusal::EnoughCopies));
    step(&mut map, Transition::DropLearner(first)).expect("it is there");
    step(&mut map, Transition::SetLearner(N[2], LIFE)).expect("once more");
    // The node and its incarnation are the same, but the copy is not: the first one was wiped.
    assert_eq!(step(&mut map, Transition::AddInSync(first)), Err(MapRefusal::NotLearner));
    let second = map.partitions()[0].learner.expect("it was just set");
    // Its node has a new incarnation, so the copy has lost its data.
    done(&mut map, &register(3, 2));
    assert_eq!(step(&mut map, Transition::AddInSync(second)), Err(MapRefusal::NotLiving));
    assert_eq!(step(&mut map, Transition::SetLearner(N[0], LIFE)), Err(MapRefusal::HasCopy));
    step(&mut map, Transition::SetLearner(N[3], LIFE)).expect("the old learner is not there");
    let third = map.partitions()[0].learner.expect("it was just set");
    step(&mut map, Transition::AddInSync(third)).expect("it is the learner");
    let entry = &map.partitions()[0];
    assert_eq!((entry.primary, entry.in_sync.len(), entry.term), (Some(primary), 3, Term(1)));
    assert_eq!(step(&mut map, Transition::SetLearner(N[2], LIFE)), Err(MapRefusal::EnoughCopies));
}

#[test]
fn only_a_living_in_sync_copy_becomes_primary() {
    let (mut map, primary, backup) = paired();
    assert_eq!(step(&mut map, Transition::Promote(primary)), Err(MapRefusal::IsPrimary));
    assert_eq!(step(&mut map, Transition::Transfer(backup)), Err(MapRefusal::NotWanted));
    assert_eq!(step(&mut map, Transition::SetTransfer(Some(primary))), Err(MapRefusal::IsPrimary));
    let other = CopyId { assignment: 9, ..backup };
    assert_eq!(step(&mut map, Transition::Promote(other)), Err(MapRefusal::NotInSync));
    assert_eq!(step(&mut map, Transition::SetTransfer(Some(other))), Err(MapRefusal::NotInSync));
    step(&mut map, Transition::SetLearner(N[2], LIFE)).expect("a third");
    let third = map.partitions()[0].learner.expect("it was just set");
    step(&mut map, Transition::AddInSync(third)).expect("it is the learner");
    step(&mut map, Transition::SetTransfer(Some(third))).expect("it is in sync");
    assert_eq!(step(&mut map, Transition::Transfer(backup)), Err(MapRefusal::NotWanted));
    step(&mut map, Transition::RemoveInSync(third)).expect("it is a backup");
    assert_eq!(map.partitions()[0].transfer_to, None);
    step(&mut map, Transition::SetTransfer(Some(backup))).expect("it is in sync");
    step(&mut map, Transition::Transfer(backup)).expect("it is wanted");
    let entry = &map.partitions()[0];
    assert_eq!((entry.term, entry.primary, entry.transfer_to), (Term(2), Some(backup), None));
    assert!(entry.in_sync.contains(&primary), "the old primary stays as backup");
    done(&mut map, &MapCommand::Bury(N[0], LIFE));
    assert_eq!(step(&mut map, Transition::Promote(primary)), Err(MapRefusal::NotLiving));
    done(&mut map, &register(1, 1));
    step(&mut map, Transition::Promote(primary)).expect("it was no death");
    assert_eq!(map.partitions()[0].in_sync, [primary]);
}

#[test]
fn the_last_living_copy_stays() {
    let (mut map, primary, backup) = paired();
    assert_eq!(step(&mut map, Transition::RemoveInSync(primary)), Err(MapRefusal::IsPrimary));
    done(&mut map, &MapCommand::Bury(N[0], LIFE));
    assert_eq!(step(&mut map, Transition::RemoveInSync(backup)), Err(MapRefusal::LastCopy));
    done(&mut map, &register(1, 1));
    step(&mut map, Transition::RemoveInSync(backup)).expect("the primary lives");
}

#[test]
fn partition_resets_only_when_no_copy_can_return() {
    let (mut map, ..) = paired();
    let reset = |waited| Transition::Reset { node: N[2], incarnation: LIFE, waited };
    assert_eq!(step(&mut map, reset(true)), Err(MapRefusal::MayReturn));
    done(&mut map, &MapCommand::Bury(N[0], LIFE));
    done(&mut map, &MapCommand::Bury(N[1], LIFE));
    assert_eq!(step(&mut map, reset(false)), Err(MapRefusal::MayReturn));
    done(&mut map, &MapCommand::Set(Setting::LostAfterMs(None)));
    assert_eq!(step(&mut map, reset(true)), Err(MapRefusal::MayReturn));
    // One node gets a new incarnation, the operator forgets the other.
    done(&mut map, &register(1, 2));
    assert_eq!(step(&mut map, reset(false)), Err(MapRefusal::MayReturn));
    done(&mut map, &MapCommand::Forget(N[1], LIFE));
    step(&mut map, reset(false)).expect("nothing can come back");
    let entry = &map.partitions()[0];
    assert_eq!((entry.era, entry.term, entry.in_sync.len()), (1, Term(2), 1));
}

#[test]
fn node_commands_need_the_present_incarnation() {
    let mut map = created(Scheme::Ketama, 0);
    assert_eq!(map.apply(&register(1, 5)).expect("new").0, MapAnswer::Registered(N[0]));
    let ver = map.ver();
    assert_eq!(map.apply(&register(1, 5)).expect("said twice").0, MapAnswer::Registered(N[0]));
    assert_eq!(map.ver(), ver);
    assert_eq!(map.apply(&register(1, 4)), Err(MapRefusal::OtherIncarnation));
    let mut same_name = description(1, 1, "");
    same_name.weight = 2;
    let other = MapCommand::Register { node_uuid: 2, incarnation: LIFE, description: same_name };
    assert_eq!(map.apply(&other), Err(MapRefusal::NameTaken));
    let incarnation = Incarnation(5);
    assert_eq!(map.apply(&MapCommand::Forget(N[0], incarnation)), Err(MapRefusal::WrongState));
    assert_eq!(map.apply(&MapCommand::Drain(N[0], LIFE)), Err(MapRefusal::OtherIncarnation));
    done(&mut map, &MapCommand::Drain(N[0], incarnation));
    assert_eq!(map.apply(&MapCommand::Activate(N[0], incarnation)), Err(MapRefusal::WrongState));
    done(&mut map, &MapCommand::Forget(N[0], incarnation));
    assert_eq!(map.apply(&register(1, 6)).expect("new").0, MapAnswer::Registered(N[1]));
    let long = "x".repeat(ADDRESS_BYTES_MAX + 1);
    let description = NodeDescription { ring_name: long, ..description(3, 1, "") };
    let long = MapCommand::Register { node_uuid: 3, incarnation: LIFE, description };
    assert_eq!(map.apply(&long), Err(MapRefusal::OutOfBounds));
    assert_eq!(Map::default().apply(&register(1, 1)), Err(MapRefusal::NotCreated));
}

#[test]
fn a_limit_is_replaced_by_version() {
    let mut map = created(Scheme::Ketama, 0);
    let put = |version, body: Option<&[u8]>| MapCommand::PutLimit {
        name: "login".to_owned(),
        version,
        body: body.map(<[u8]>::to_vec),
    };
    done(&mut map, &put(0, Some(b"a")));
    let first = map.limits()["login"].version;
    let long = vec![0; BODY_BYTES_MAX + 1];
    assert_eq!(map.apply(&put(0, Some(b"b"))), Err(MapRefusal::OtherVersion(0)));
    done(&mut map, &put(first, None));
    done(&mut map, &put(0, Some(b"c")));
    assert!(map.limits()["login"].version > first, "versions are never used twice");
    assert_eq!(map.apply(&put(0, Some(&long))), Err(MapRefusal::OtherVersion(0)));
    let version = map.limits()["login"].version;
    assert_eq!(map.apply(&put(version, Some(&long))), Err(MapRefusal::OutOfBounds));
    done(&mut map, &put(version, Some(&long[1..])));
    // The total size has a bound too.
    for index in 1..LIMITS_BYTES_MAX / BODY_BYTES_MAX {
        let name = format!("limit{index}");
        done(&mut map, &MapCommand::PutLimit { name, version: 0, body: Some(long[1..].to_vec()) });
    }
    let more = MapCommand::PutLimit { name: "more".to_owned(), version: 0, body: Some(vec![0]) };
    assert_eq!(map.apply(&more), Err(MapRefusal::OutOfBounds));
    let version = map.limits()["login"].version;
    done(&mut map, &put(version, Some(&long[2..])));
    done(&mut map, &more);
}

#[test]
fn records_change_together_from_version_2_on() {
    let mut map = created(Scheme::Ketama, 0);
    let put =
        |name: &str, version, body: Option<Vec<u8>>| Put { name: name.to_owned(), version, body };
    let some = |bytes: usize| Some(vec![b'x'; bytes]);
    let change = |puts: &[Put]| MapCommand::Change(puts.to_vec());
    let two = [put("a", 0, some(1)), put("@c/1", 0, some(2))];
    assert_eq!(map.apply(&change(&two)), Err(MapRefusal::BeingUpdated));
    done(&mut map, &MapCommand::Set(Setting::Version(RECORDS_VERSION)));
    done(&mut map, &change(&two));
    let version = map.limits()["a"].version;
    assert_eq!(map.limits()["@c/1"].version, version, "a change has one version");
    let before = map.clone();
    for refused in [
        vec![put("a", version, some(3)), put("@c/1", version + 1, some(3))],
        vec![put("a", version, some(3)), put("a", version, some(4))],
        vec![put("a", version, some(3)), put("b", 0, some(RECORD_BYTES_MAX + 1))],
        vec![put("a", version, some(3)), put(&"n".repeat(NAME_BYTES_MAX + 1), 0, some(1))],
        (0..=PUTS_MAX).map(|n| put(&format!("n{n}"), 0, some(1))).collect(),
        (0..13).map(|n| put(&format!("n{n}"), 0, some(RECORD_BYTES_MAX))).collect(),
    ] {
        assert!(map.apply(&MapCommand::Change(refused)).is_err());
        assert_eq!(map, before);
    }
    // Single puts still work, but not of our own records.
    let single = |name: &str, version| {
        let (name, body) = (name.to_owned(), Some(vec![1]));
        MapCommand::PutLimit { name, version, body }
    };
    done(&mut map, &single("a", version));
    assert_eq!(map.apply(&single("@c/1", version)), Err(MapRefusal::OutOfBounds));
    // Limits and other records are bounded separately.
    let fill = |map: &mut Map, prefix: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|n| format!("{prefix}{n}")).collect();
        for names in names.chunks(PUTS_MAX) {
            let puts = names.iter().map(|name| put(name, 0, some(1))).collect();
            done(map, &MapCommand::Change(puts));
        }
    };
    fill(&mut map, "l", LIMITS_MAX - 1);
    let more = |name| [put(name, 0, some(1))];
    assert_eq!(map.apply(&change(&more("more"))), Err(MapRefusal::OutOfBounds));
    let records = map.limits().len();
    fill(&mut map, "@x", RECORDS_MAX - records);
    assert_eq!(map.apply(&change(&more("@more"))), Err(MapRefusal::OutOfBounds));
    let version = map.limits()["@x1"].version;
    done(&mut map, &change(&[put("@x1", version, None), put("@more", 0, some(1))]));
    map.check().expect("always");
}

#[test]
fn settings_that_nothing_reads_are_refused() {
    let mut map = created(Scheme::Ketama, 0);
    let other = |name: &str, value: Option<&str>| {
        let (name, value) = (name.to_owned(), value.map(str::to_owned));
        MapCommand::Set(Setting::Other { name, value })
    };
    let before = map.clone();
    for (name, value) in [("foo", "3"), ("", "yes"), ("founded", "no"), ("replicas", "yes")] {
        assert_eq!(map.apply(&other(name, Some(value))), Err(MapRefusal::NoSetting), "{name}");
    }
    for setting in [
        Setting::Replicas(0),
        Setting::Replicas(4),
        Setting::LostAfterMs(Some(0)),
        Setting::LostAfterMs(Some(LOST_AFTER_MS_MAX + 1)),
    ] {
        assert_eq!(map.apply(&MapCommand::Set(setting)), Err(MapRefusal::OutOfBounds));
    }
    assert_eq!(map, before);
    for mark in [FOUNDED, LIMITS_SET] {
        done(&mut map, &other(mark, Some(YES)));
    }
    assert_eq!(map.settings().others.len(), 2);
    done(&mut map, &other(FOUNDED, None));
    assert_eq!(map.settings().others.len(), 1);
}

#[test]
fn watchers_get_deltas_or_the_whole_map() {
    let mut map = created(Scheme::Ketama, 0);
    let mut deltas = Deltas::default();
    for number in 1..=10 {
        let (_, delta) = map.apply(&register(number, 1)).expect("new");
        deltas.push(delta.expect("a change"), 4);
    }
    let now = map.ver();
    assert_eq!(now, 11);
    assert_eq!(deltas.since(now, now), Since::Deltas(vec![]));
    let Since::Deltas(some) = deltas.since(8, now) else { panic!("they are kept") };
    assert_eq!(some.iter().map(|delta| delta.ver).collect::<Vec<_>>(), [9, 10, 11]);
    assert_eq!(deltas.since(0, now), Since::Full);
    assert_eq!(deltas.since(12, now), Since::Full);
    assert_eq!(deltas.since(8, now + 1), Since::Full);
    let wide =
        Delta { ver: now + 1, items: vec![delta::DeltaItem::Node(N[0], None); delta::ITEMS_MAX] };
    deltas.push(wide, 4);
    assert_eq!(deltas.since(now - 1, now + 1), Since::Full, "the memory is bounded");
    assert!(matches!(deltas.since(now, now + 1), Since::Deltas(_)));
    deltas.push(Delta { ver: now + 3, items: vec![] }, 4);
    assert_eq!(deltas.since(now, now + 3), Since::Full, "there is a gap");
}

#[test]
fn a_full_map_takes_a_few_hundred_kilobytes() {
    let mut map = created(Scheme::Ketama, 14);
    (1..=10).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    let bytes = map.encode();
    assert_eq!(Map::decode(&bytes).as_ref(), Ok(&map));
    assert!((200_000..400_000).contains(&bytes.len()), "{}", bytes.len());
    assert!(Map::decode(&bytes[..bytes.len() - 1]).is_err());
}

/// Acts as the primaries: completes copies and hands over. `lazy` leaves some for later.
fn primaries_act(map: &mut Map, mut lazy: impl FnMut() -> bool) {
    let mut changes = Vec::new();
    for (at, entry) in map.partitions().iter().enumerate() {
        let Some(primary) = entry.primary.filter(|&primary| map.is_living(primary)) else {
            continue;
        };
        let is_held_up = entry.in_sync.iter().any(|&copy| !map.is_living(copy));
        let transition = match (entry.transfer_to, entry.learner) {
            (Some(to), _) if !is_held_up && to != primary => Transition::Transfer(to),
            (_, Some(learner)) if map.is_living(learner) => Transition::AddInSync(learner),
            _ => continue,
        };
        if !lazy() {
            changes.push(MapChange { partition: Partition(at as u16), ver: entry.ver, transition });
        }
    }
    for some in changes.chunks(command::CHANGES_MAX) {
        done(map, &MapCommand::Partitions(some.to_vec()));
    }
}

/// Runs the controller and the primaries until nothing is left to do.
#[track_caller]
fn settle(map: &mut Map, facts: &ControllerInput) {
    settle_watched(map, facts, |_| {});
}

/// Like [`settle`], and calls `watch` after each round.
#[track_caller]
fn settle_watched(map: &mut Map, facts: &ControllerInput, mut watch: impl FnMut(&Map)) {
    for _ in 0..2000 {
        let ver = map.ver();
        round(map, facts);
        primaries_act(map, || false);
        watch(map);
        if map.ver() == ver {
            return;
        }
    }
    panic!("it does not come to rest");
}

/// One round of the controller: its commands are never refused, and moves stay bounded.
#[track_caller]
fn round(map: &mut Map, facts: &ControllerInput) {
    let targets = map.targets();
    let mut begun = BTreeSet::new();
    for command in controller::next(map, facts, &targets) {
        done(map, &command);
        let MapCommand::Partitions(changes) = command else { continue };
        for change in changes {
            let to = match change.transition {
                Transition::SetLearner(node, _) => node,
                Transition::SetTransfer(Some(copy)) => copy.node,
                _ => continue,
            };
            let primary = map.partitions()[change.partition.index()].primary;
            begun.extend([to, primary.expect("it begins nothing otherwise").node]);
        }
    }
    let moves = controller::moves(map);
    assert!(begun.iter().all(|node| moves[node] <= MOVES_MAX), "{moves:?}");
}

#[track_caller]
fn is_at_target(map: &Map) {
    for (at, (entry, target)) in map.partitions().iter().zip(map.targets()).enumerate() {
        let mut held: Vec<NodeId> = entry.in_sync.iter().map(|copy| copy.node).collect();
        let mut wanted = target.to_vec();
        assert_eq!(entry.primary.map(|copy| copy.node), target.primary(), "{at}: {entry:?}");
        held.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(held, wanted, "{at}: {entry:?}");
        assert_eq!((entry.learner, entry.transfer_to), (None, None), "{at}");
    }
}

#[test]
fn a_join_a_drain_and_a_death() {
    for scheme in [Scheme::Ketama, Scheme::Xxh3] {
        let mut map = created(scheme, 10);
        let facts = ControllerInput::default();
        (1..=3).for_each(|number| done(&mut map, &register(number, 1)));
        settle(&mut map, &facts);
        is_at_target(&map);
        assert!(map.nodes().values().all(|node| node.state == NodeState::Active));
        done(&mut map, &register(4, 1));
        settle(&mut map, &facts);
        is_at_target(&map);
        done(&mut map, &MapCommand::Drain(N[0], LIFE));
        settle(&mut map, &facts);
        assert!(!map.nodes().contains_key(&N[0]), "it is let go");
        is_at_target(&map);
        let before = map.clone();
        let facts = ControllerInput { silent: [N[1]].into(), ..ControllerInput::default() };
        round(&mut map, &facts);
        assert_eq!(map.nodes()[&N[1]].state, NodeState::Dead);
        round(&mut map, &facts);
        for (before, after) in before.partitions().iter().zip(map.partitions()) {
            let died = before.primary.is_some_and(|copy| copy.node == N[1]);
            assert_eq!(after.term.0 - before.term.0, u32::from(died));
        }
        settle(&mut map, &facts);
        is_at_target(&map);
        assert!(map.partitions().iter().all(|entry| entry.era == 0), "nothing was lost");
    }
}

#[test]
fn a_single_copy_is_copied_even_while_copies_are_held() {
    let mut map = created(Scheme::Ketama, 6);
    done(&mut map, &MapCommand::Set(Setting::Replicas(3)));
    (1..=5).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    is_at_target(&map);
    let dies = |map: &mut Map, nodes: &[NodeId]| {
        let silent = nodes.iter().copied().collect();
        let facts = ControllerInput { silent, hold_copies: true, ..ControllerInput::default() };
        (0..2).for_each(|_| round(map, &facts));
        facts
    };
    let facts = dies(&mut map, &[N[1]]);
    // A copy that refuses to follow a new primary is removed, although its node lives.
    let lone = 0;
    while let Some(&copy) = map.partitions()[lone]
        .in_sync
        .iter()
        .find(|copy| Some(**copy) != map.partitions()[lone].primary)
    {
        step(&mut map, Transition::RemoveInSync(copy)).expect("it is a backup");
    }
    round(&mut map, &facts);
    for (number, entry) in map.partitions().iter().enumerate() {
        assert_eq!(entry.learner.is_some(), number == lone, "{number}: {entry:?}");
    }
    settle(&mut map, &facts);
    let copies = |entry: &PartitionEntry| entry.in_sync.len();
    assert!(map.partitions().iter().all(|entry| copies(entry) >= 2));
    assert!(map.partitions().iter().any(|entry| copies(entry) == 2), "others wait");
    dies(&mut map, &[N[1], N[2]]);
    assert!(map.partitions().iter().all(|entry| entry.era == 0), "nothing was lost");
}

/// Five nodes with three copies of each partition, one node dead, and a partition with two copies
/// left: the map, the input of the controller, and the number, the primary and the backup of the
/// partition.
fn after_a_death(hold_copies: bool) -> (Map, ControllerInput, Partition, CopyId, CopyId) {
    let mut map = created(Scheme::Ketama, 6);
    done(&mut map, &MapCommand::Set(Setting::Replicas(3)));
    (1..=5).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    let died = |entry: &SharedEntry| entry.primary.is_some_and(|copy| copy.node == N[1]);
    let place = map.partitions().iter().position(died).expect("it leads some");
    let silent = [N[1]].into();
    let facts = ControllerInput { silent, hold_copies, ..ControllerInput::default() };
    round(&mut map, &facts);
    let changes = controller::next(&map, &facts, &map.targets());
    let promotes = |command: &&MapCommand| {
        matches!(command, MapCommand::Partitions(changes) if
        changes.iter().any(|change| change.partition.index() == place))
    };
    done(&mut map, changes.iter().find(promotes).expect("it has a backup"));
    let entry = &map.partitions()[place];
    let primary = entry.primary.expect("it is promoted");
    let backup = *entry.in_sync.iter().find(|copy| **copy != primary).expect("three copies");
    (map, facts, Partition(place as u16), primary, backup)
}

#[test]
fn a_backup_that_refuses_stays_until_another_copy_is_in_sync() {
    for hold_copies in [false, true] {
        let (mut map, mut facts, partition, _, backup) = after_a_death(hold_copies);
        let place = partition.index();
        facts.removals = [(partition, backup)].into();
        round(&mut map, &facts);
        let entry = &map.partitions()[place];
        assert!(entry.in_sync.contains(&backup) && entry.in_sync.len() == 2, "{entry:?}");
        let learner = entry.learner.expect("another copy is made, even while copies are held");
        round(&mut map, &facts);
        assert_eq!(map.partitions()[place].in_sync.len(), 2, "it waits for the learner");
        let added = change_of(&map, partition, Transition::AddInSync(learner));
        done(&mut map, &MapCommand::Partitions(vec![added]));
        round(&mut map, &facts);
        assert_eq!(map.partitions()[place].in_sync.len(), 3, "the primary asks again");
        let again = change_of(&map, partition, Transition::RemoveInSync(backup));
        let (mut removals, mut changes) = (WaitingRemovals::default(), vec![again]);
        removals.withhold(&map, &mut changes, &[learner.node].into(), Duration::ZERO);
        assert!(changes.is_empty(), "the new copy may have died");
        changes.push(again);
        removals.withhold(&map, &mut changes, &BTreeSet::new(), Duration::ZERO);
        assert_eq!(changes, [again]);
    }
}

#[test]
fn a_backup_that_refuses_is_removed_at_once_if_no_node_is_left_for_a_copy() {
    let (mut map, mut facts, partition, primary, backup) = after_a_death(false);
    done(&mut map, &MapCommand::Set(Setting::Replicas(2)));
    facts.removals = [(partition, backup)].into();
    let mut targets = map.targets();
    targets[partition.index()] = map
        .targets()
        .into_iter()
        .find(|target| target.contains(&primary.node) && target.contains(&backup.node))
        .expect("some partition is on both");
    let commands = controller::next(&map, &facts, &targets);
    let wanted = change_of(&map, partition, Transition::RemoveInSync(backup));
    assert!(commands.iter().any(|command| matches!(command, MapCommand::Partitions(changes) if
        changes.contains(&wanted))));
}

#[test]
fn removal_that_leaves_one_copy_waits_for_a_second_in_each_term() {
    let (mut map, _, partition, primary, backup) = after_a_death(false);
    let at = Duration::from_millis;
    let mut removals = WaitingRemovals::default();
    let mut passes = |map: &Map, copy, now| {
        let mut changes = vec![change_of(map, partition, Transition::RemoveInSync(copy))];
        removals.withhold(map, &mut changes, &BTreeSet::new(), now);
        let waits = removals.waiting(map, now).contains(&(partition, copy));
        (changes.len() == 1, waits)
    };
    assert_eq!(passes(&map, backup, at(500)), (false, true));
    assert_eq!(passes(&map, backup, at(1400)), (false, true));
    assert_eq!(passes(&map, backup, at(1500)), (true, false), "it has waited for a second");
    assert_eq!(passes(&map, primary, at(1500)), (true, false), "that one is refused by the map");
    for to in [backup, primary] {
        for transition in [Transition::SetTransfer(Some(to)), Transition::Transfer(to)] {
            let moved = change_of(&map, partition, transition);
            done(&mut map, &MapCommand::Partitions(vec![moved]));
        }
    }
    assert_eq!(passes(&map, backup, at(1600)), (false, true), "this term is a later one");
    let promote = change_of(&map, partition, Transition::Promote(backup));
    done(&mut map, &MapCommand::Partitions(vec![promote]));
    assert_eq!(passes(&map, primary, at(1600)), (true, false), "it is in sync no more");
    let (mut map, _, partition, _, backup) = after_a_death(false);
    let mut changes = vec![change_of(&map, partition, Transition::RemoveInSync(backup))];
    changes[0].ver -= 1;
    removals.withhold(&map, &mut changes, &BTreeSet::new(), at(0));
    assert_eq!(changes.len(), 1, "one of an older version is refused by the map");
    let newer = MapChange { ver: changes[0].ver + 2, ..changes[0] };
    let mut ahead = vec![newer];
    removals.withhold(&map, &mut ahead, &BTreeSet::new(), at(0));
    assert!(ahead.is_empty(), "the leader cannot judge an entry that it does not have");
    done(&mut map, &MapCommand::Bury(backup.node, backup.incarnation));
    changes[0].ver += 1;
    removals.withhold(&map, &mut changes, &BTreeSet::new(), at(0));
    assert_eq!(changes.len(), 1, "a dead copy has nothing to wait for");
    assert!(removals.waiting(&map, at(0)).is_empty());
}

#[test]
fn a_partition_with_one_copy_is_copied_before_others() {
    let (mut map, facts, partition, _, backup) = after_a_death(false);
    let removed = change_of(&map, partition, Transition::RemoveInSync(backup));
    done(&mut map, &MapCommand::Partitions(vec![removed]));
    let commands = controller::next(&map, &facts, &map.targets());
    let first = commands.iter().find_map(|command| match command {
        MapCommand::Partitions(changes) => {
            changes.iter().find(|change| matches!(change.transition, Transition::SetLearner(..)))
        }
        _ => None,
    });
    assert_eq!(first.map(|change| change.partition), Some(partition));
}

#[test]
fn a_node_with_a_wrong_clock_becomes_primary_last() {
    let mut map = created(Scheme::Ketama, 8);
    (1..=3).for_each(|number| done(&mut map, &register(number, 1)));
    let off = |nodes: &[NodeId]| ControllerInput {
        off: nodes.iter().copied().collect(),
        ..ControllerInput::default()
    };
    let primaries = |map: &Map, node: NodeId| {
        let is_on = |entry: &&SharedEntry| entry.primary.is_some_and(|copy| copy.node == node);
        map.partitions().iter().filter(is_on).count()
    };
    // While its clock is not measured the node is not primary, and stays joining.
    settle(&mut map, &ControllerInput { unmeasured: [N[1]].into(), ..ControllerInput::default() });
    assert_eq!((primaries(&map, N[1]), map.nodes()[&N[1]].state), (0, NodeState::Joining));
    // Its clock is off: the node has its copies and is active, but is primary of none.
    settle(&mut map, &off(&[N[1]]));
    assert_eq!((primaries(&map, N[1]), map.nodes()[&N[1]].state), (0, NodeState::Active));
    assert!(map.partitions().iter().any(|entry| entry.in_sync_on(N[1]).is_some()));
    // Its clock is right: the node becomes primary of its share. Wrong again: it stays primary.
    settle(&mut map, &ControllerInput::default());
    is_at_target(&map);
    let before = map.clone();
    settle(&mut map, &off(&[N[1]]));
    assert_eq!(map, before);
    // A handover in progress is withdrawn.
    let number = map.partitions().iter().position(|entry| {
        entry.primary.is_some_and(|copy| copy.node != N[1]) && entry.in_sync_on(N[1]).is_some()
    });
    let index = number.expect("it holds backups");
    let entry = &map.partitions()[index];
    let begun = Transition::SetTransfer(entry.in_sync_on(N[1]));
    let change =
        MapChange { partition: Partition(index as u16), ver: entry.ver, transition: begun };
    done(&mut map, &MapCommand::Partitions(vec![change]));
    round(&mut map, &off(&[N[1]]));
    assert_eq!(map.partitions()[index].transfer_to, None);
    // Another node dies: its partitions move to this node if only this node has a copy.
    let before = map.clone();
    let facts = ControllerInput { silent: [N[0]].into(), ..off(&[N[1]]) };
    round(&mut map, &facts);
    round(&mut map, &facts);
    for (before, after) in before.partitions().iter().zip(map.partitions()) {
        let was = before.primary.expect("all are served").node;
        let now = after.primary.expect("all are served").node;
        let other = before.in_sync.iter().map(|copy| copy.node).find(|node| *node != N[0]);
        assert_eq!(now, if was == N[0] { other.expect("R is 2") } else { was });
    }
}

#[test]
fn backup_with_the_right_clock_is_promoted() {
    let mut map = created(Scheme::Ketama, 6);
    done(&mut map, &MapCommand::Set(Setting::Replicas(3)));
    (1..=4).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    let facts =
        ControllerInput { silent: [N[0]].into(), off: [N[1]].into(), ..ControllerInput::default() };
    let had = |map: &Map| -> Vec<bool> {
        let is_on = |entry: &SharedEntry| entry.primary.is_some_and(|copy| copy.node == N[1]);
        map.partitions().iter().map(is_on).collect()
    };
    let before = had(&map);
    round(&mut map, &facts);
    round(&mut map, &facts);
    assert_eq!(had(&map), before, "it takes over nothing");
    // Nor does the node become primary when a draining node's partitions have it as first target.
    done(&mut map, &MapCommand::Drain(N[2], LIFE));
    settle(&mut map, &facts);
    let after = had(&map);
    assert!(before.iter().zip(&after).all(|(before, after)| *before || !after));
    assert!(!map.nodes().contains_key(&N[2]));
}

#[test]
fn useless_learners_and_transfers_are_withdrawn() {
    let mut map = created(Scheme::Ketama, 0);
    (1..=3).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    let entry = map.partitions()[0].clone();
    let backup = entry.in_sync.iter().find(|&&copy| entry.primary != Some(copy)).expect("R is 2");
    let target = map.targets()[0];
    let third = N[..3].iter().find(|node| !target.contains(node)).expect("R is 2");
    step(&mut map, Transition::SetTransfer(Some(*backup))).expect("it is in sync");
    step(&mut map, Transition::SetLearner(*third, LIFE)).expect("there is room");
    for expected in [(None, Some(*backup)), (None, None)] {
        round(&mut map, &ControllerInput::default());
        let entry = &map.partitions()[0];
        assert_eq!((entry.learner, entry.transfer_to), expected);
    }
}

/// Moves copies between five nodes with three copies of each partition, by a drain and by other
/// weights. Returns the fewest and the most in-sync copies that a partition has meanwhile.
fn copies_while_they_move(version: u32) -> (usize, usize) {
    let mut map = created(Scheme::Ketama, 8);
    done(&mut map, &MapCommand::Set(Setting::Version(version)));
    done(&mut map, &MapCommand::Set(Setting::Replicas(3)));
    (1..=5).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    let (mut fewest, mut most) = (usize::MAX, 0);
    let mut rest = |map: &mut Map| {
        settle_watched(map, &ControllerInput::default(), |map| {
            for count in map.partitions().iter().map(|entry| entry.in_sync.len()) {
                (fewest, most) = (fewest.min(count), most.max(count));
            }
            map.check().expect("always");
        });
        is_at_target(map);
    };
    rest(&mut map);
    done(&mut map, &MapCommand::Drain(N[3], LIFE));
    rest(&mut map);
    for (number, weight) in [(1, 9), (2, 1), (3, 5), (5, 2)] {
        let description = description(number, weight, if number < 3 { "a" } else { "b" });
        done(&mut map, &MapCommand::Register { node_uuid: number, incarnation: LIFE, description });
    }
    rest(&mut map);
    (fewest, most)
}

#[test]
fn third_copy_stays_until_another_replaces_it() {
    assert_eq!(copies_while_they_move(FOURTH_COPY_VERSION), (3, 4));
    assert_eq!(copies_while_they_move(LIMITS_VERSION), (2, 3), "older nodes know three copies");
}

#[test]
fn fourth_copy_becomes_in_sync_even_if_fewer_are_wanted_meanwhile() {
    let mut map = created(Scheme::Ketama, 0);
    done(&mut map, &MapCommand::Set(Setting::Version(FOURTH_COPY_VERSION)));
    done(&mut map, &MapCommand::Set(Setting::Replicas(3)));
    (1..=4).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    let fourth = N[..4].iter().find(|node| map.partitions()[0].in_sync_on(**node).is_none());
    step(&mut map, Transition::SetLearner(*fourth.expect("R is 3"), LIFE)).expect("a fourth");
    let learner = map.partitions()[0].learner.expect("it was just set");
    done(&mut map, &MapCommand::Set(Setting::Replicas(2)));
    step(&mut map, Transition::AddInSync(learner)).expect("it is the learner");
    assert_eq!(map.partitions()[0].in_sync.len(), IN_SYNC_MAX);
    settle(&mut map, &ControllerInput::default());
    is_at_target(&map);
}

#[test]
fn three_copies_make_room_by_handing_over() {
    let mut map = created(Scheme::Ketama, 10);
    done(&mut map, &MapCommand::Set(Setting::Replicas(3)));
    (1..=4).for_each(|number| done(&mut map, &register(number, 1)));
    settle(&mut map, &ControllerInput::default());
    is_at_target(&map);
    // Other weights draw another circle, so targets change in all ways.
    for (number, weight) in [(1, 9), (2, 1), (3, 5), (4, 2)] {
        let description = description(number, weight, if number < 3 { "a" } else { "b" });
        done(&mut map, &MapCommand::Register { node_uuid: number, incarnation: LIFE, description });
    }
    settle(&mut map, &ControllerInput::default());
    is_at_target(&map);
}

#[test]
fn voters_are_odd_spread_and_steady() {
    let mut map = created(Scheme::Ketama, 0);
    let none = BTreeSet::new();
    let mut voters = none.clone();
    let mut counts = Vec::new();
    for number in 1..=8 {
        let zone = if number <= 4 { "a" } else { "b" };
        let description = description(number, 1, zone);
        done(&mut map, &MapCommand::Register { node_uuid: number, incarnation: LIFE, description });
        let next = controller::voters(&map, &voters, &none);
        let is_better_spread = number == 6;
        assert!(is_better_spread || next.is_superset(&voters), "no voter that is well is replaced");
        assert_eq!(controller::voters(&map, &next, &none), next, "a second look changes nothing");
        voters = next;
        counts.push(voters.len());
    }
    assert_eq!(counts, [1, 1, 3, 3, 5, 5, 5, 5]);
    assert_eq!(voters, [1, 2, 3, 5, 6].map(NodeId).into());
    done(&mut map, &MapCommand::Bury(N[1], LIFE));
    voters = controller::voters(&map, &voters, &none);
    assert_eq!(voters, [1, 3, 4, 5, 6].map(NodeId).into(), "a live node takes a dead one's seat");
    // The other non-voters are dead, so no node can replace the voter.
    for gone in [7, 8] {
        done(&mut map, &MapCommand::Bury(NodeId(gone), LIFE));
    }
    for gone in [4, 6] {
        done(&mut map, &MapCommand::Bury(NodeId(gone), LIFE));
        assert_eq!(controller::voters(&map, &voters, &none), voters, "{gone} keeps its seat");
    }
    let (one, some) = ([NodeId(1)].into(), [1, 3].map(NodeId).into());
    for gone in [2, 4, 6, 7, 8] {
        done(&mut map, &MapCommand::Forget(NodeId(gone), LIFE));
    }
    done(&mut map, &MapCommand::Bury(NodeId(5), LIFE));
    assert_eq!(controller::voters(&map, &one, &none), one, "a second one waits for a third");
    assert_eq!(controller::voters(&map, &some, &none), some, "two that vote already go on");
}

#[test]
fn unfit_voter_is_replaced_by_a_fit_node_only() {
    let mut map = created(Scheme::Ketama, 0);
    (1..=3).for_each(|number| done(&mut map, &register(number, 1)));
    let voters = [1, 2, 3].map(NodeId).into();
    let unfit = [N[1]].into();
    assert_eq!(controller::voters(&map, &voters, &unfit), voters, "there is no other");
    done(&mut map, &register(4, 1));
    let replaced = controller::voters(&map, &voters, &unfit);
    assert_eq!(replaced, [1, 3, 4].map(NodeId).into());
    assert_eq!(controller::voters(&map, &replaced, &BTreeSet::new()), replaced, "it comes back");
    assert_eq!(controller::voters(&map, &voters, &[N[1], N[3]].into()), voters, "4 is no better");
}

/// Makes a command from numbers; most of these commands can succeed.
fn command(map: &Map, kind: u8, a: u8, b: u8, c: u8) -> MapCommand {
    let id = NodeId(1 + u32::from(a % 6));
    let incarnation = match map.nodes().get(&id) {
        Some(node) if !b.is_multiple_of(8) => node.incarnation,
        _ => Incarnation(u64::from(c % 4)),
    };
    match kind % 24 {
        0..=3 => register(u128::from(a % 5) + 1, u64::from(b % 8) / 3 + 1),
        4 => MapCommand::Activate(id, incarnation),
        5 => MapCommand::Drain(id, incarnation),
        6 => MapCommand::Bury(id, incarnation),
        7 => MapCommand::Forget(id, incarnation),
        8 => MapCommand::Set(Setting::Replicas(a % 5)),
        9 => MapCommand::Set(Setting::LostAfterMs(a.is_multiple_of(2).then_some(1))),
        10 => MapCommand::PutLimit {
            name: format!("limit{}", a % 2),
            version: u64::from(b),
            body: c.is_multiple_of(2).then(|| vec![c]),
        },
        11 => MapCommand::Set(Setting::Version(u32::from(a % 6))),
        12 => MapCommand::Change(puts(map, [a, b, c])),
        _ => {
            let changes = [(a, b), (b, c), (c, a)].map(|(x, y)| change(map, x, y, incarnation, id));
            MapCommand::Partitions(changes.to_vec())
        }
    }
}

/// Makes puts, most of them of the present versions.
fn puts(map: &Map, draws: [u8; 3]) -> Vec<Put> {
    let put = |draw: u8| {
        let name = ["limit0", "limit1", "@c/0", "@o/1"][usize::from(draw % 4)].to_owned();
        let present = map.limits().get(&name).map_or(0, |record| record.version);
        let version = present + u64::from(draw.is_multiple_of(16));
        Put { name, version, body: (draw % 8 < 5).then(|| vec![draw]) }
    };
    draws[..=usize::from(draws[0] % 3)].iter().map(|draw| put(*draw)).collect()
}

/// A slow and plain twin of the rules of [`MapCommand::Change`], without bounds that these commands
/// do not reach: the records after it, or `None` if it is refused.
fn changed_records(before: &Map, puts: &[Put]) -> Option<BTreeMap<String, Vec<u8>>> {
    let bodies = before.limits().iter().map(|(name, record)| (name.clone(), record.body.clone()));
    let mut bodies: BTreeMap<String, Vec<u8>> = bodies.collect();
    let mut seen = BTreeSet::new();
    for Put { name, version, body } in puts {
        let present = before.limits().get(name).map_or(0, |record| record.version);
        if before.settings().version < 2 || present != *version || !seen.insert(name.clone()) {
            return None;
        }
        match body {
            Some(body) => drop(bodies.insert(name.clone(), body.clone())),
            None => drop(bodies.remove(name)),
        }
    }
    Some(bodies)
}

fn change(map: &Map, x: u8, y: u8, incarnation: Incarnation, id: NodeId) -> MapChange {
    let partition = Partition(u16::from(x % 5));
    let empty = PartitionEntry::default();
    let entry = map.entry(partition).unwrap_or(&empty);
    let copies: Vec<CopyId> = entry.copies().collect();
    let some = CopyId { node: id, incarnation, assignment: u32::from(y) };
    let copy = copies.get(usize::from(y % 4)).copied().unwrap_or(some);
    let transition = match x / 5 % 10 {
        0 | 1 => Transition::SetLearner(id, incarnation),
        2 => Transition::DropLearner(copy),
        3 | 4 => Transition::AddInSync(entry.learner.unwrap_or(copy)),
        5 => Transition::RemoveInSync(copy),
        6 => Transition::SetTransfer((!y.is_multiple_of(3)).then_some(copy)),
        7 => Transition::Transfer(entry.transfer_to.unwrap_or(copy)),
        8 => Transition::Promote(copy),
        _ => Transition::Reset { node: id, incarnation, waited: y.is_multiple_of(2) },
    };
    MapChange { partition, ver: entry.ver + u32::from(y.is_multiple_of(16)), transition }
}

/// Checks that one command may turn entry `before` into `after`.
fn follows(before: &PartitionEntry, after: &PartitionEntry, resets: bool) {
    assert_eq!(before.term == after.term, before.primary == after.primary || before == after);
    assert!(after.ver >= before.ver && after.term >= before.term && after.era >= before.era);
    assert_eq!(before.ver == after.ver, before == after);
    assert!(resets || before.era == after.era);
    let is_new = |copy: &&CopyId| !before.in_sync.contains(copy);
    if !resets {
        assert!(after.in_sync.iter().filter(is_new).all(|&copy| before.learner == Some(copy)));
        assert!(after.primary.is_none_or(|primary| before.in_sync.contains(&primary)));
    }
}

proptest! {
    #[test]
    fn any_commands_keep_what_always_holds(
        draws in proptest::collection::vec(any::<[u8; 4]>(), 1..200),
    ) {
        let mut map = created(Scheme::Ketama, 2);
        let mut watcher = map.clone();
        let mut deltas = Deltas::default();
        let mut commands = Vec::new();
        let mut primaries: BTreeMap<(usize, Term), CopyId> = BTreeMap::new();
        for [kind, a, b, c] in draws {
            let command = command(&map, kind, a, b, c);
            let before = map.clone();
            let changed = map.apply(&command);
            map.check().expect("always");
            if let MapCommand::Change(puts) = &command {
                let expected = changed_records(&before, puts);
                prop_assert_eq!(changed.is_ok(), expected.is_some(), "{:?}", command);
                if let Some(expected) = expected {
                    let bodies = map.limits().iter();
                    let bodies = bodies.map(|(name, record)| (name.clone(), record.body.clone()));
                    prop_assert_eq!(bodies.collect::<BTreeMap<_, _>>(), expected);
                    let is_new = |record: &&MapLimit| record.version > before.ver();
                    let changed: Vec<_> = map.limits().values().filter(is_new).collect();
                    let put: Vec<_> = puts.iter().filter(|put| put.body.is_some()).collect();
                    prop_assert_eq!(changed.len(), put.len());
                    // The answer to a command has the version of its records.
                    prop_assert!(changed.iter().all(|record| record.version == map.ver()));
                }
            }
            if let Ok((_, Some(delta))) = changed {
                prop_assert_eq!(map.ver(), before.ver() + 1);
                let delta_again = Delta::decode(&delta.encode()).expect("our own");
                watcher.follow(&delta_again).expect("the next one");
                prop_assert_eq!(watcher.follow(&delta), Err(delta::BadBytes::OutOfOrder));
                deltas.push(delta, map.partitions().len());
            } else {
                prop_assert_eq!(&map, &before);
            }
            for (at, (before, after)) in
                before.partitions().iter().zip(map.partitions()).enumerate()
            {
                let resets = matches!(&command, MapCommand::Partitions(changes) if changes.iter().any(
                    |change| change.partition.index() == at && matches!(change.transition, Transition::Reset { .. })
                ));
                // Two transitions of one partition in one command: only the ends are compared.
                let steps = after.ver - before.ver;
                if steps < 2 {
                    follows(before, after, resets);
                }
                if let Some(primary) = after.primary {
                    let first = *primaries.entry((at, after.term)).or_insert(primary);
                    prop_assert_eq!(first, primary, "two primaries in one term");
                }
            }
            commands.push(command);
        }
        prop_assert_eq!(&watcher, &map);
        let mut twin = created(Scheme::Ketama, 2);
        for command in &commands {
            let bytes = postcard::to_allocvec(command).expect("it is plain data");
            let again: MapCommand = postcard::from_bytes(&bytes).expect("our own");
            prop_assert_eq!(command, &again);
            let _ = twin.apply(&again);
        }
        prop_assert_eq!(&twin, &map);
        prop_assert_eq!(Map::decode(&map.encode()), Ok(twin));
    }

    #[test]
    fn garbage_is_no_map(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(map) = Map::decode(&bytes) {
            map.check().expect("always");
        }
        let _ = Delta::decode(&bytes);
    }

    #[test]
    fn controller_reaches_the_target_from_any_map(
        draws in proptest::collection::vec(any::<[u8; 3]>(), 1..60),
        scheme in prop_oneof![Just(Scheme::Ketama), Just(Scheme::Xxh3)],
        version in prop_oneof![Just(LIMITS_VERSION), Just(FOURTH_COPY_VERSION)],
    ) {
        let mut map = created(scheme, 8);
        done(&mut map, &MapCommand::Set(Setting::Version(version)));
        let mut facts = ControllerInput::default();
        let mut turn = 0_u32;
        for [kind, a, b] in draws {
            let id = NodeId(1 + u32::from(a % 8));
            let life = map.nodes().get(&id).map_or(LIFE, |node| node.incarnation);
            match kind % 16 {
                0..=4 => {
                    let zone = ["", "x", "y"][usize::from(b % 3)];
                    let description = description(u128::from(a % 7), u32::from(b % 4), zone);
                    let incarnation = Incarnation(life.0 + u64::from(b % 2));
                    let node_uuid = u128::from(a % 7);
                    let _ = map.apply(&MapCommand::Register { node_uuid, incarnation, description });
                }
                5 => drop(facts.silent.insert(id)),
                6 => drop(facts.silent.remove(&id)),
                7 => drop(map.apply(&MapCommand::Drain(id, life))),
                8 => drop(map.apply(&MapCommand::Set(Setting::Replicas(1 + a % 3)))),
                9 => facts.hold_copies = a.is_multiple_of(2),
                10 => drop(facts.off.insert(id)),
                11 => {
                    let place = usize::from(b) % map.partitions().len();
                    let entry = &map.partitions()[place];
                    let backup = entry.in_sync.iter().find(|copy| Some(**copy) != entry.primary);
                    facts.removals.extend(backup.map(|copy| (Partition(place as u16), *copy)));
                }
                _ => round(&mut map, &facts),
            }
            primaries_act(&mut map, || {
                turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223 + u32::from(b));
                turn >> 30 == 0
            });
        }
        // Silent nodes stay dead; the voters receive heartbeats from the others. A removal waits
        // for a second at most.
        facts.hold_copies = false;
        facts.removals.clear();
        facts.off.clear();
        let dead = map.nodes().iter().filter(|(_, node)| node.state == NodeState::Dead);
        facts.lost = dead.map(|(&id, _)| id).chain(facts.silent.iter().copied()).collect();
        settle(&mut map, &facts);
        if map.members().is_empty() {
            return Ok(());
        }
        is_at_target(&map);
        prop_assert!(map.nodes().values().all(|node| node.state != NodeState::Joining));
        prop_assert!(map.nodes().values().all(|node| node.state != NodeState::Draining));
    }
}
