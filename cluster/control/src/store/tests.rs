//! The store after a power cut at any moment; and openraft's own tests of stores.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{CopyId, Incarnation, NodeId, Partition};
use cluster::map::command::MapChange;
use cluster::map::{Map, MapCommand, NodeDescription, Transition};
use cluster::placement::{Placement, Scheme};
use openraft::storage::{RaftLogStorage as _, RaftLogStorageExt as _, RaftStateMachine as _};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{
    CommittedLeaderId, EntryPayload, LogId, RaftLogReader as _, RaftSnapshotBuilder as _,
    StorageError, Vote,
};
use tokio::time::{Instant, sleep};

use super::raft_log::RaftLog;
use super::state_machine::MapStateMachine;
use super::{ControlStore, Membership, NodeIdentity, StoreError};
use crate::map_watch::MapPublisher;
use crate::raft_types::Types;
use crate::simulation::Disk;

struct Builder;

impl StoreBuilder<Types, RaftLog, MapStateMachine> for Builder {
    async fn build(&self) -> Result<((), RaftLog, MapStateMachine), StorageError<u64>> {
        let (log, state_machine) = open(&ControlStore::in_memory().expect("memory"));
        Ok(((), log, state_machine))
    }
}

fn open(store: &ControlStore) -> (RaftLog, MapStateMachine) {
    let state_machine =
        MapStateMachine::new(store.clone(), MapPublisher::new()).expect("it is readable");
    (RaftLog::new(store.clone()), state_machine)
}

#[test]
fn store_passes_openrafts_tests() {
    Suite::test_all(Builder).expect("all of them");
}

fn id(term: u64, index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entry(term: u64, index: u64) -> openraft::Entry<Types> {
    let command = if index == 1 {
        let placement = Placement::new(Scheme::Ketama, 6).expect("few");
        MapCommand::Create { cluster: 7, placement }
    } else {
        // Some bodies are longer than a page.
        let body = Some(vec![term as u8; 300 * (index as usize % 5)]);
        MapCommand::PutLimit { name: format!("limit{index}"), version: 0, body }
    };
    openraft::Entry { log_id: id(term, index), payload: EntryPayload::Normal(command) }
}

#[tokio::test]
async fn idle_disk_is_probed_until_the_store_is_dropped() {
    let directory = tempfile::tempdir().expect("there is room");
    let store = ControlStore::open(directory.path()).expect("it can be written");
    let lock = directory.path().join("lock");
    let written = || fs::metadata(&lock).and_then(|found| found.modified()).expect("it is there");
    assert!(store.is_on_disk() && !ControlStore::in_memory().expect("memory").is_on_disk());
    store.keep_probing(Duration::from_millis(20)).expect("a thread");
    // The first probe of sixteen writes to the control log.
    for _ in 0..3 {
        let (before, start) = (written(), Instant::now());
        while written() == before {
            assert!(start.elapsed() < Duration::from_secs(30), "no probe");
            sleep(Duration::from_millis(5)).await;
        }
    }
    let left = Arc::downgrade(&store.inner);
    drop(store);
    let start = Instant::now();
    while left.upgrade().is_some() {
        assert!(start.elapsed() < Duration::from_secs(30), "the thread has it");
        sleep(Duration::from_millis(5)).await;
    }
    let last = written();
    sleep(Duration::from_millis(200)).await;
    assert_eq!(written(), last, "nothing writes any more");
}

/// The writes of a node, in an order that can occur.
#[derive(Debug, Clone)]
enum Write {
    Begin,
    Sit(u32),
    Vote(u64),
    Append(u64, std::ops::Range<u64>),
    Committed(u64, u64),
    Truncate(u64, u64),
    Snapshot(u64, std::ops::Range<u64>),
    Purge(u64, u64),
}

const SCRIPT: [Write; 17] = [
    Write::Begin,
    Write::Sit(1),
    Write::Vote(1),
    Write::Append(1, 1..4),
    Write::Committed(1, 3),
    Write::Append(1, 4..12),
    Write::Vote(2),
    Write::Truncate(1, 9),
    Write::Append(2, 9..10),
    Write::Append(2, 10..30),
    Write::Committed(2, 20),
    Write::Snapshot(2, 1..20),
    Write::Purge(2, 15),
    Write::Append(2, 30..31),
    Write::Begin,
    Write::Snapshot(2, 20..30),
    Write::Sit(5),
];

/// The acknowledged state, which must be read back.
#[derive(Debug, PartialEq)]
struct Image {
    identity: Option<NodeIdentity>,
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
    log: Vec<openraft::Entry<Types>>,
    snapshot: Option<(String, Vec<u8>)>,
}

async fn image(store: &ControlStore) -> Image {
    let (mut log, mut state_machine) = open(store);
    let snapshot = state_machine.get_current_snapshot().await.expect("readable");
    Image {
        identity: store.fact(super::IDENTITY).expect("readable"),
        vote: log.read_vote().await.expect("readable"),
        purged: log.get_log_state().await.expect("readable").last_purged_log_id,
        log: log.try_get_log_entries(..).await.expect("readable"),
        snapshot: snapshot.map(|one| (one.meta.snapshot_id, one.snapshot.to_vec())),
    }
}

async fn write(
    store: &ControlStore,
    write: &Write,
    state_machine: &mut MapStateMachine,
) -> Result<(), String> {
    let text = |error: StorageError<u64>| error.to_string();
    let mut log = RaftLog::new(store.clone());
    match write.clone() {
        Write::Begin => {
            let begun: Result<NodeIdentity, StoreError> = store.begin(3).await;
            begun.map(|_| ()).map_err(|error| error.to_string())
        }
        Write::Sit(node) => {
            let membership = Membership { cluster: 7, node: NodeId(node), is_founder: node == 1 };
            let incarnation = Incarnation(u64::from(node));
            let identity = NodeIdentity { node_uuid: 3, incarnation, membership: Some(membership) };
            store.store_membership(identity).await.map_err(|error| error.to_string())
        }
        Write::Vote(term) => log.save_vote(&Vote::new(term, 1)).await.map_err(text),
        Write::Append(term, range) => {
            let entries: Vec<_> = range.map(|index| entry(term, index)).collect();
            log.blocking_append(entries).await.map_err(text)
        }
        Write::Committed(term, index) => {
            log.save_committed(Some(id(term, index))).await.map_err(text)
        }
        Write::Truncate(term, index) => log.truncate(id(term, index)).await.map_err(text),
        Write::Snapshot(term, range) => {
            let entries: Vec<_> = range.map(|index| entry(term, index)).collect();
            state_machine.apply(entries).await.map_err(text)?;
            let mut photographer = state_machine.get_snapshot_builder().await;
            photographer.build_snapshot().await.map(|_| ()).map_err(text)
        }
        Write::Purge(term, index) => log.purge(id(term, index)).await.map_err(text),
    }
}

#[tokio::test]
async fn a_power_cut_at_any_sync_loses_nothing_acknowledged() {
    let disk = Disk::new();
    let store = disk.store().expect("the disk works");
    let (_, mut state_machine) = open(&store);
    let mut images = vec![image(&store).await];
    let mut syncs = vec![disk.syncs()];
    for one in &SCRIPT {
        write(&store, one, &mut state_machine).await.expect("the disk works");
        images.push(image(&store).await);
        syncs.push(disk.syncs());
    }
    let before = syncs[0];
    let after = disk.syncs();
    let last = images.last().expect("one for each");
    assert!(last.vote.is_none() && last.log.is_empty() && last.snapshot.is_none(), "another id");
    println!("{} power cuts, from sync {before} to {after}", (after - before) * 8);
    assert!(after - before >= 15, "each is synced but `committed`");
    let mut chance = 1_u64;
    for cut in before + 1..=after {
        for round in 0..8 {
            let disk = Disk::new();
            let store = disk.store().expect("the disk works");
            let (_, mut state_machine) = open(&store);
            disk.cut_at(cut);
            let mut acknowledged = 0;
            for one in &SCRIPT {
                if write(&store, one, &mut state_machine).await.is_err() {
                    break;
                }
                acknowledged += 1;
            }
            drop((store, state_machine));
            // None, all, or some of the unsynced sectors survive.
            let left = disk.after_power_cut(|| match round {
                0 => false,
                1 => true,
                _ => {
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    chance >> 62 != 0
                }
            });
            let store = left.store().expect("it opens");
            let found = image(&store).await;
            let next = (acknowledged + 1).min(SCRIPT.len());
            assert!(
                found == images[acknowledged] || found == images[next],
                "cut at sync {cut}, {acknowledged} acknowledged: {found:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_later_snapshot_is_not_replaced_by_an_earlier_one() {
    let store = ControlStore::in_memory().expect("memory");
    let (_, mut state_machine) = open(&store);
    state_machine.apply([entry(1, 1)]).await.expect("it works");
    let mut early = state_machine.get_snapshot_builder().await;
    state_machine.apply([entry(1, 2)]).await.expect("it works");
    state_machine.get_snapshot_builder().await.build_snapshot().await.expect("it works");
    early.build_snapshot().await.expect("it works");
    let kept = state_machine.get_current_snapshot().await.expect("it works").expect("one");
    assert_eq!(kept.meta.last_log_id, Some(id(1, 2)));
}

/// Two nodes, and 64 partitions that begin on the first of them and change often.
fn commands_on_partitions() -> Vec<MapCommand> {
    let placement = Placement::new(Scheme::Ketama, 6).expect("few");
    let life = Incarnation(1);
    let register = |number: u128| {
        let description = NodeDescription {
            client_address: format!("client{number}:1"),
            peer_address: format!("peer{number}:1"),
            ring_name: format!("ring{number}:1"),
            weight: 1,
            zone: String::new(),
        };
        MapCommand::Register { node_uuid: number, incarnation: life, description }
    };
    let all = |ver: u32, transition: Transition, step: usize| {
        let partitions = (0..64).step_by(step).map(Partition);
        let change = |partition| MapChange { partition, ver, transition };
        MapCommand::Partitions(partitions.map(change).collect())
    };
    let learner = CopyId { node: NodeId(2), incarnation: life, assignment: 2 };
    vec![
        MapCommand::Create { cluster: 7, placement },
        register(1),
        register(2),
        all(0, Transition::Reset { node: NodeId(1), incarnation: life, waited: false }, 1),
        all(1, Transition::SetLearner(NodeId(2), life), 1),
        all(2, Transition::AddInSync(learner), 1),
        MapCommand::Bury(NodeId(1), life),
        all(3, Transition::Promote(learner), 20),
    ]
}

#[track_caller]
fn assert_shared(machine: &MapStateMachine, published: &MapPublisher) {
    let (map, readers) = (&machine.map, published.map());
    assert_eq!(map, &*readers);
    assert_eq!(map.partitions().shared(readers.partitions()), 4);
}

/// The map of Raft and that of the node's readers share each chunk of entries, whichever of them
/// has a change first.
#[tokio::test]
async fn maps_of_a_node_share_all_entries() {
    let commands = commands_on_partitions();
    let entry = |(index, command): (usize, &MapCommand)| openraft::Entry::<Types> {
        log_id: id(1, index as u64 + 1),
        payload: EntryPayload::Normal(command.clone()),
    };
    let mut leader = Map::default();
    let deltas: Vec<_> =
        commands.iter().map(|command| leader.apply(command).expect("a change").1).collect();
    let node = || {
        let (store, published) = (ControlStore::in_memory().expect("memory"), MapPublisher::new());
        let machine = MapStateMachine::new(store, Arc::clone(&published)).expect("it is readable");
        (machine, published)
    };
    // How many changes, and whether the whole map at last, a voter's answers bring first.
    for (changes, is_whole) in [(0, false), (3, false), (6, false), (0, true), (5, true)] {
        let (mut machine, published) = node();
        deltas[..changes].iter().flatten().for_each(|delta| published.follow(delta.clone()));
        for entry in commands.iter().enumerate().map(entry) {
            machine.apply([entry]).await.expect("it works");
            if is_whole {
                let whole = Map::decode(&leader.encode()).expect("its own");
                published.replace(whole);
            }
        }
        assert_shared(&machine, &published);
        // Another node gets the same map as a snapshot.
        machine.get_snapshot_builder().await.build_snapshot().await.expect("it works");
        let snapshot = machine.get_current_snapshot().await.expect("it works").expect("one");
        let (mut other, published) = node();
        deltas.iter().flatten().take(changes).for_each(|delta| published.follow(delta.clone()));
        if is_whole {
            published.replace(Map::decode(&leader.encode()).expect("its own"));
        }
        other.install_snapshot(&snapshot.meta, snapshot.snapshot).await.expect("it works");
        assert_shared(&other, &published);
    }
}

#[tokio::test]
async fn a_store_of_another_format_is_not_read() {
    let disk = Disk::new();
    let store = disk.store().expect("the disk works");
    let newer = super::FORMAT_VERSION + 1;
    let written = store
        .write(redb::Durability::Immediate, move |write| super::put(write, super::FORMAT, &newer));
    written.await.expect("the disk works");
    drop(store);
    let opened = disk.after_power_cut(|| false).store();
    assert!(matches!(opened, Err(StoreError::Unreadable("its format"))), "{opened:?}");
}

#[tokio::test]
async fn a_reopened_file_has_what_was_written() {
    let directory = tempfile::tempdir().expect("a place for it");
    let store = ControlStore::open(directory.path()).expect("it can be written");
    let identity = store.begin(7).await.expect("it can be written");
    let mut log = RaftLog::new(store.of_this_opening());
    log.save_vote(&Vote::new(3, 1)).await.expect("it can be written");
    log.blocking_append((1..200).map(|index| entry(3, index))).await.expect("it can be written");
    let before = log.try_get_log_entries(0..1000).await.expect("it can be read");
    store.reopen().await.expect("it can be opened again");
    // The handle of the Raft before is invalid.
    assert!(log.save_vote(&Vote::new(9, 1)).await.is_err());
    assert!(log.read_vote().await.is_err());
    drop(log);
    let mut log = RaftLog::new(store.of_this_opening());
    assert_eq!(log.read_vote().await.expect("it can be read"), Some(Vote::new(3, 1)));
    let after = log.try_get_log_entries(0..1000).await.expect("it can be read");
    assert_eq!(format!("{after:?}"), format!("{before:?}"));
    assert!(matches!(ControlStore::open(directory.path()), Err(StoreError::InUse { .. })));
    drop((log, store));
    let store = ControlStore::open(directory.path()).expect("nobody has it");
    let again = store.begin(8).await.expect("it can be written");
    assert_eq!((again.node_uuid, again.incarnation.0), (identity.node_uuid, 2));
}

#[tokio::test]
async fn a_file_that_is_gone_is_not_made_anew() {
    let directory = tempfile::tempdir().expect("a place for it");
    let store = ControlStore::open(directory.path()).expect("it can be written");
    store.begin(7).await.expect("it can be written");
    std::fs::remove_file(directory.path().join("control.redb")).expect("it is there");
    // A node without its vote could vote twice in one term.
    assert!(store.reopen().await.is_err());
    assert!(!directory.path().join("control.redb").exists());
}
