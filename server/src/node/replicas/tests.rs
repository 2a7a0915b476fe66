//! Replicas on nodes without links: operations of a primary, and frames to a backup.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cluster::OpStreamId;
use cluster::frames::{
    Adopt, HEADER_BYTES, KeyState, Record, RecordResult, Section, StreamAck, StreamRefusal,
    TermCheck, cut, op_flags,
};
use cluster::id::{CopyId, Incarnation, NodeId, Partition, Term};
use cluster::map::delta::{DeltaItem, PARTITIONS_PER_ITEM};
use cluster::map::{Entries, EntryChunk, PartitionEntry, SharedEntry};
use cluster::partition_header::HeaderState;
use cluster::partition_header::PartitionHeader;
use cluster::receive_stream::ReceiveStream;
use cluster::record_ends::RecordEnds;
use cluster::replica::{GROUP_PARTITIONS, NodeTime, Position, Refusal, Route};
use engine::{Nanos, Partitioner};
use parking_lot::Mutex;
use tollgate_limits::Limits;

use super::super::operation::{OpRef, OpSource, Performed};
use super::super::state_machine::{ORIGIN_NS, OpKind};
use super::super::{Keyspace, Node, WorkerEvent};
use super::{ReplicaContext, ReplicaScratch, Replicas};
use crate::commands::scratch::Scratch;
use crate::runtime::service::Service;

const BITS: u32 = 8;
const PARTITION: Partition = Partition(b'k' as u16);
const SECOND: u64 = 1_000_000_000;

/// The first byte of a key is its partition.
struct FirstByte;

impl Partitioner for FirstByte {
    fn partition(&self, key: &[u8]) -> u64 {
        key[0].into()
    }
}

struct TestNode {
    service: Arc<Service>,
    node: Arc<Node>,
    scratch: Scratch,
    replica_scratch: ReplicaScratch,
    mono_ns: u64,
}

fn copy(node: u32) -> CopyId {
    CopyId { node: NodeId(node), incarnation: Incarnation(1), assignment: 1 }
}

fn entry(ver: u32, term: u32, primary: u32, in_sync: &[u32]) -> SharedEntry {
    PartitionEntry {
        ver,
        term: Term(term),
        primary: Some(copy(primary)),
        in_sync: in_sync.iter().map(|node| copy(*node)).collect(),
        ..PartitionEntry::default()
    }
    .into()
}

fn op_stream(node: u32) -> OpStreamId {
    OpStreamId { node: NodeId(node), incarnation: Incarnation(1), worker: 0, owner: NodeId(1) }
}

fn op(number: u64, term: u32, op_flags: u8, line: &str) -> OpRef<'_> {
    OpRef {
        worker: 0,
        source: OpSource::Own,
        sending: 1,
        place: 0,
        stream: op_stream(3),
        number,
        partition: PARTITION,
        term: Term(term),
        op_flags,
        deadline_ns: 1000 * SECOND,
        line: line.as_bytes(),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the map answers")]
fn route(term: u32, primary: u32) -> Option<Route> {
    Some(Route { term: Term(term), primary: copy(primary) })
}

impl TestNode {
    fn new(id: u32) -> Self {
        let flags = ["--seeds=127.0.0.1:1", "--insecure"];
        let service = Arc::new(Service::of_flags(&flags, Limits::default()));
        let node = Node::of(&service).expect("it has a cluster");
        node.partition_prefix.set(BITS, [1; 4], FirstByte);
        node.me.set((NodeId(id), Incarnation(1))).expect("it is new");
        let are_shared = service.shards().share_partitions(BITS);
        let copies = Replicas::new(1 << BITS, node.options.replicas, are_shared);
        node.partition_prefix.set_times(copies.item_times(node.links()));
        copies.logs().set_incarnations((1..=3).map(|id| (NodeId(id), Incarnation(1))).collect(), 3);
        copies.contact(1);
        assert!(node.keyspace.set(Keyspace { bits: BITS, replicas: copies }).is_ok());
        Self {
            service,
            node,
            scratch: Scratch::default(),
            replica_scratch: ReplicaScratch::default(),
            mono_ns: SECOND,
        }
    }

    fn on<T>(&mut self, work: impl FnOnce(&Replicas, &mut ReplicaContext<'_>) -> T) -> T {
        let node = &self.node;
        let active_limits = self.service.limits().load();
        let mut replica_ctx = ReplicaContext {
            service: &self.service,
            node,
            now: NodeTime { mono_ns: self.mono_ns, wall_ns: ORIGIN_NS + self.mono_ns },
            contact: node.last_contact(),
            counters: self.service.counters(0),
            active_limits: &active_limits,
            worker: 0,
            scratch: &mut self.scratch,
            replica_scratch: &mut self.replica_scratch,
        };
        work(&node.keyspace().expect("it is set").replicas, &mut replica_ctx)
    }

    fn learn(&mut self, entry: &SharedEntry) {
        self.on(|copies, replica_ctx| copies.learn(replica_ctx, PARTITION, entry));
    }

    fn state(&mut self) -> HeaderState {
        self.on(|copies, _| {
            copies.header(PARTITION).map(PartitionHeader::state).expect("it is there")
        })
    }

    fn perform(&mut self, op: &OpRef<'_>) -> (Performed, String) {
        let mut out = Vec::new();
        let performed = self.on(|copies, replica_ctx| copies.perform(replica_ctx, op, &mut out));
        (performed, String::from_utf8(out).expect("it is text"))
    }

    /// Performs an operation whose reply has no needs.
    fn reply(&mut self, op: &OpRef<'_>) -> String {
        let (performed, reply) = self.perform(op);
        let Performed::Done { needs, term } = performed else { panic!("{performed:?}") };
        assert!(needs.is_empty() && term == op.term);
        reply
    }

    fn inbox(&self) -> Vec<WorkerEvent> {
        let inbox = self.node.inbox(0).expect("there is a worker");
        std::iter::from_fn(|| inbox.pop()).collect()
    }

    fn adopt(&mut self, term: u32, from: u32, to: u32, last: Position, stream: &mut ReceiveStream) {
        let adopt = Adopt {
            partition: PARTITION,
            to: copy(to),
            from: copy(from),
            term: Term(term),
            last,
            ahead_ns: ORIGIN_NS,
            time_ns: self.mono_ns,
        };
        let mut frame = Vec::new();
        adopt.encode(&mut frame);
        let body = &frame[HEADER_BYTES..];
        let done =
            self.on(|copies, replica_ctx| copies.adopt(replica_ctx, body, stream, frame.len()));
        assert_eq!(done, Ok(()));
        stream.advance(frame.len());
    }

    /// Sends the record of a count, made by operation `9 + lsn` of the stream.
    fn record(&mut self, term: u32, lsn: u64, count: u64, stream: &mut ReceiveStream) {
        let section = Section { stream: op_stream(3), first: 9, done: 1, count: 1 };
        let record = Record {
            partition: PARTITION,
            place: lsn as u16,
            term: Term(term),
            lsn,
            pt_ns: None,
            key: b"key",
            state: KeyState::Counter(count),
            result: RecordResult::Number(count),
        };
        let frame_ns = self.mono_ns;
        self.on(|copies, replica_ctx| {
            copies.install(replica_ctx, &section, frame_ns, &record, stream, 100);
        });
        stream.advance(100);
    }
}

/// The refusals in the ack of a stream.
fn refused(stream: &mut ReceiveStream) -> Vec<StreamRefusal> {
    let mut out = Vec::new();
    stream.ack(&[], &mut out);
    let frame = cut(&out, usize::MAX).expect("it is a frame").expect("it is whole");
    StreamAck::decode(frame.body).expect("it is a word").refused().collect()
}

#[test]
fn an_operation_is_done_once() {
    let mut node = TestNode::new(1);
    assert_eq!(node.perform(&op(1, 1, 0, "incr key 1\r\n")).0, Performed::Refer(None));
    node.learn(&entry(1, 1, 1, &[1]));
    assert_eq!(node.state(), HeaderState::Serves);
    assert_eq!(node.reply(&op(1, 1, 0, "set key 0 0 1\r\n5\r\n")), "STORED\r\n");
    assert_eq!(node.reply(&op(2, 1, 0, "incr key 1\r\n")), "6\r\n");
    assert_eq!(node.reply(&op(2, 1, op_flags::AGAIN, "incr key 1\r\n")), "6\r\n");
    assert_eq!(node.reply(&op(3, 1, op_flags::AGAIN, "incr key 1\r\n")), "7\r\n");
    assert_eq!(node.reply(&op(4, 1, 0, "add key 0 0 1\r\n1\r\n")), "NOT_STORED\r\n");
    assert_eq!(node.reply(&op(5, 1, 0, "delete key\r\n")), "DELETED\r\n");
    assert_eq!(node.reply(&op(4, 1, op_flags::AGAIN, "add key 0 0 1\r\n1\r\n")), "NOT_STORED\r\n");
    assert_eq!(node.reply(&op(6, 1, op_flags::READ, "get key\r\n")), "");
    assert_eq!(node.reply(&op(7, 1, 0, "incr key 1 noreply\r\n")), "");
    assert_eq!(node.reply(&op(8, 1, OpKind::Drop as u8, "key")), "");
    assert_eq!(node.state(), HeaderState::Serves);
}

#[test]
fn operation_that_may_not_run_is_refused() {
    let mut node = TestNode::new(1);
    node.learn(&entry(1, 2, 1, &[1]));
    let line = "set key 0 0 1\r\n5\r\n";
    assert_eq!(node.perform(&op(1, 1, 0, line)).0, Performed::Refer(route(2, 1)));
    let late = OpRef { deadline_ns: SECOND, ..op(1, 2, 0, line) };
    assert_eq!(node.perform(&late).0, Performed::Refused(Refusal::Expired));
    let past = OpRef {
        stream: OpStreamId { incarnation: Incarnation(0), ..op_stream(3) },
        ..op(1, 2, 0, line)
    };
    assert_eq!(node.perform(&past).0, Performed::Refused(Refusal::Stale));
    let not_in_the_map_yet = OpRef { stream: op_stream(4), ..op(1, 2, 0, line) };
    assert_eq!(node.perform(&not_in_the_map_yet).0, Performed::Refer(None));
    node.on(|copies, _| {
        let log = copies.logs().log_of(op_stream(3)).expect("the map has it");
        log.lock().advance_done(5);
    });
    for op_flags in [0, op_flags::AGAIN] {
        assert_eq!(node.perform(&op(4, 2, op_flags, line)).0, Performed::Refused(Refusal::Stale));
    }
    node.on(|copies, _| copies.set_lost_after(Some(SECOND)));
    node.mono_ns = 2 * SECOND;
    assert_eq!(node.perform(&op(5, 2, 0, line)).0, Performed::Refused(Refusal::Stopped));
    assert!(
        node.on(|copies, replica_ctx| copies
            .headers(replica_ctx.contact, replica_ctx.now)
            .is_none())
    );
}

#[test]
fn a_held_operation_comes_back_and_is_looked_up() {
    let mut node = TestNode::new(1);
    // The other copy is unreachable: nothing is served until the map removes it.
    node.learn(&entry(1, 1, 1, &[1, 2]));
    assert_eq!(node.state(), HeaderState::Slow);
    assert_eq!(node.perform(&op(1, 1, 0, "incr key 1\r\n")), (Performed::Held, String::new()));
    assert!(node.inbox().is_empty());
    node.learn(&entry(2, 1, 1, &[1]));
    let inbox = node.inbox();
    let [.., WorkerEvent::Perform(held)] = &inbox[..] else { panic!("{inbox:?}") };
    assert_eq!(
        (held.number, held.op_flags, &held.line[..]),
        (1, op_flags::AGAIN, &b"incr key 1\r\n"[..])
    );
    // Another sending of it was performed meanwhile.
    node.reply(&op(2, 1, 0, "set key 0 0 1\r\n5\r\n"));
    assert_eq!(node.reply(&op(1, 1, op_flags::AGAIN, "incr key 1\r\n")), "6\r\n");
    assert_eq!(node.reply(&held.as_ref()), "6\r\n");
}

#[test]
fn a_copy_follows_and_takes_over_with_its_results() {
    let (mut node, mut stream) = (TestNode::new(2), ReceiveStream::default());
    node.record(1, 1, 7, &mut stream);
    assert_eq!(refused(&mut stream).len(), 1, "there is no copy");
    node.learn(&entry(1, 1, 1, &[1, 2]));
    node.adopt(1, 1, 2, Position::default(), &mut stream);
    assert_eq!((node.state(), stream.refusals()), (HeaderState::Follows, 0));
    node.record(1, 1, 7, &mut stream);
    node.record(1, 2, 8, &mut stream);
    assert_eq!(stream.refusals(), 0);
    node.record(1, 4, 9, &mut stream);
    let last = Position { term: Term(1), lsn: 2 };
    let said = refused(&mut stream);
    assert_eq!(said.iter().map(|refused| refused.last).collect::<Vec<_>>(), [last]);
    let round = |node: &mut TestNode, term, stream: &mut ReceiveStream| {
        let mut frame = Vec::new();
        TermCheck { partition: PARTITION, term: Term(term) }.encode(&mut frame);
        let body = &frame[HEADER_BYTES..];
        let done = node
            .on(|copies, replica_ctx| copies.check_term(replica_ctx, body, stream, frame.len()));
        assert_eq!(done, Ok(()));
    };
    node.adopt(1, 1, 2, last, &mut stream);
    round(&mut node, 1, &mut stream);
    assert_eq!(stream.refusals(), 0);
    node.learn(&entry(2, 2, 2, &[2]));
    assert_eq!(node.state(), HeaderState::Serves);
    round(&mut node, 1, &mut stream);
    assert_eq!(refused(&mut stream).len(), 1, "a newer term was seen");
    assert_eq!(node.reply(&op(11, 2, op_flags::AGAIN, "incr key 1\r\n")), "8\r\n");
    assert_eq!(node.reply(&op(12, 2, op_flags::AGAIN, "incr key 1\r\n")), "9\r\n");
}

#[test]
fn frames_of_partitions_that_do_not_exist_are_refused() {
    let (mut node, mut stream) = (TestNode::new(2), ReceiveStream::default());
    let term_check = TermCheck { partition: Partition(u16::MAX), term: Term(1) };
    let mut frame = Vec::new();
    term_check.encode(&mut frame);
    let body = &frame[HEADER_BYTES..];
    let done = node
        .on(|copies, replica_ctx| copies.check_term(replica_ctx, body, &mut stream, frame.len()));
    assert_eq!(done, Ok(()));
    let said = refused(&mut stream);
    assert_eq!((said.len(), said[0].partition), (1, Partition(u16::MAX)));
    let op = OpRef { partition: Partition(u16::MAX), ..op(1, 1, 0, "incr key 1\r\n") };
    assert_eq!(node.perform(&op).0, Performed::Refer(None));
    assert_eq!(node.on(|copies, _| copies.route(Partition(u16::MAX))), None);
}

#[test]
fn replicas_exist_while_something_is_under_way() {
    let mut node = TestNode::new(2);
    let mut stream = ReceiveStream::default();
    let active = |node: &mut TestNode| {
        node.on(|copies, _| copies.enter(PARTITION).expect("it exists").1.active())
    };
    node.learn(&entry(1, 1, 1, &[1, 3]));
    assert_eq!(active(&mut node), 0, "there is no copy here");
    node.learn(&entry(2, 1, 1, &[1, 2]));
    assert_eq!(active(&mut node), 1, "the copy waits for its primary");
    node.adopt(1, 1, 2, Position::default(), &mut stream);
    assert_eq!((active(&mut node), node.state()), (0, HeaderState::Follows));
    node.record(1, 1, 7, &mut stream);
    // Another primary has the same history, and nothing was done in its term yet.
    let last = Position { term: Term(1), lsn: 1 };
    node.learn(&entry(3, 2, 3, &[2, 3]));
    node.adopt(2, 3, 2, last, &mut stream);
    assert_eq!((active(&mut node), node.state()), (1, HeaderState::Follows));
    node.learn(&entry(4, 3, 2, &[2]));
    assert_eq!((active(&mut node), node.state()), (1, HeaderState::Serves));
    assert_eq!(node.reply(&op(2, 3, 0, "incr key 1\r\n")), "8\r\n");
    node.learn(&entry(5, 3, 2, &[2]));
    assert_eq!((active(&mut node), node.state()), (0, HeaderState::Serves));
    assert_eq!(node.reply(&op(3, 3, 0, "incr key 1\r\n")), "9\r\n");
    node.learn(&entry(6, 3, 2, &[1, 2]));
    assert_eq!((active(&mut node), node.state()), (1, HeaderState::Slow));
}

#[test]
fn items_have_the_time_of_their_copy() {
    let now = |node: &TestNode| engine::Now { mono: Nanos(node.mono_ns), unix_ms: 0 };
    let latest = |node: &TestNode| node.node.partition_prefix.latest_time(now(node));
    let mut node = TestNode::new(2);
    node.node.partition_prefix.set_now(Nanos(node.mono_ns));
    assert_eq!(latest(&node), Nanos(0), "there is no copy");
    node.learn(&entry(1, 1, 2, &[2]));
    assert_eq!(latest(&node), Nanos(SECOND), "its own");
    node.mono_ns += SECOND;
    node.node.partition_prefix.set_now(Nanos(node.mono_ns));
    assert_eq!(latest(&node), Nanos(2 * SECOND));
    // The header has the time of the last operation, and no link has a reading of the new clock.
    node.learn(&entry(2, 2, 1, &[1, 2]));
    assert_eq!(latest(&node), Nanos(SECOND));
    node.learn(&entry(3, 3, 1, &[1]));
    assert_eq!(latest(&node), Nanos(0), "the copy is gone");
}

#[test]
fn groups_share_the_entries_of_the_map_that_they_know() {
    let mut node = TestNode::new(2);
    let map = |ver: u32| -> Entries {
        let ver = |index: u32| if index < 128 { 1 } else { ver };
        (0..1 << BITS).map(|index| entry(ver(index), 1, 1 + index / 16 % 3, &[1, 2, 3])).collect()
    };
    let mut shared = |entries: &Entries, learns: &mut dyn FnMut(&Partition) -> bool| {
        node.on(|copies, replica_ctx| {
            let mut changes = copies.changes(entries).partitions;
            changes.retain(learns);
            for partition in &changes {
                copies.learn(replica_ctx, *partition, &entries[partition.index()]);
            }
            copies.share_entries(&changes, entries);
            let all = copies.groups.iter().zip(entries.chunks());
            let shared = all.filter(|(group, chunk)| group.lock().entries().is_shared(chunk));
            (changes.len(), shared.count())
        })
    };
    let first = map(1);
    assert_eq!(shared(&first, &mut |_| true), (256, 16));
    assert_eq!(shared(&first, &mut |_| true), (0, 16));
    let second = map(2);
    assert_eq!(shared(&second, &mut |one| one.index() < 200), (72, 4), "half a chunk is missing");
    assert_eq!(shared(&second, &mut |_| true), (56, 8), "the others are equal ones of another map");
}

/// A node has these for each partition, whether or not it holds a copy: 63.5 bytes. Sets of links
/// have rows, and items times, that take nothing.
#[test]
fn tables_of_partitions_are_small() {
    const PARTITIONS: usize = 1 << 14;
    /// The class of jemalloc for a chunk with the counts of its `Arc`.
    const CHUNK_BYTES: usize = 160;
    assert!(size_of::<[SharedEntry; GROUP_PARTITIONS]>() + 16 <= CHUNK_BYTES);
    assert_eq!(size_of::<Mutex<super::Group>>(), 40);
    let of_group = [
        CHUNK_BYTES,
        // The chunk in the map of Raft, and in that of the readers.
        2 * size_of::<EntryChunk>(),
        size_of::<Mutex<super::Group>>(),
    ];
    let of_one = [
        size_of::<PartitionHeader>(),
        RecordEnds::new(PARTITIONS).bytes() / PARTITIONS,
        size_of::<AtomicU64>(), // its destination
        size_of::<DeltaItem>() / PARTITIONS_PER_ITEM,
    ];
    let bytes = of_group.iter().sum::<usize>() + of_one.iter().sum::<usize>() * GROUP_PARTITIONS;
    assert!(bytes <= 64 * GROUP_PARTITIONS, "{bytes} bytes of {GROUP_PARTITIONS} partitions");
}
