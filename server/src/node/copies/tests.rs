//! Copies on nodes without links: what their primary does, and what one that follows makes of frames.

use std::sync::Arc;

use cluster::LaneId;
use cluster::frames::{
    Adopt, HEADER_BYTES, Record, RecordResult, Refused, Round, Section, State, Word, cut, sort,
};
use cluster::id::{CopyId, Incarnation, NodeId, Partition, Term};
use cluster::map::Entry;
use cluster::partition_header::HeaderState;
use cluster::partition_header::PartitionHeader;
use cluster::receive_stream::ReceiveStream;
use cluster::replica::{Now, Position, Refusal, Route};
use engine::Place;

use super::super::machine::{ORIGIN_NS, Sort};
use super::super::operation::{OpRef, Performed, Source};
use super::super::{Inbound, Space};
use super::{Copies, Hands, Work};
use crate::config::{Config, Startup};
use crate::limits::Limits;
use crate::scratch::Scratch;
use crate::service::Service;

const BITS: u32 = 8;
const PARTITION: Partition = Partition(b'k' as u16);
const SECOND: u64 = 1_000_000_000;

/// The first byte of a key is its partition.
struct FirstByte;

impl Place for FirstByte {
    fn partition(&self, key: &[u8]) -> u64 {
        key[0].into()
    }
}

struct TestNode {
    service: Arc<Service>,
    scratch: Scratch,
    work: Work,
    mono_ns: u64,
}

fn copy(node: u32) -> CopyId {
    CopyId { node: NodeId(node), incarnation: Incarnation(1), assignment: 1 }
}

fn entry(ver: u32, term: u32, primary: u32, in_sync: &[u32]) -> Entry {
    Entry {
        ver,
        term: Term(term),
        primary: Some(copy(primary)),
        in_sync: in_sync.iter().map(|node| copy(*node)).collect(),
        ..Entry::default()
    }
}

fn lane(node: u32) -> LaneId {
    LaneId { node: NodeId(node), incarnation: Incarnation(1), worker: 0, owner: NodeId(1) }
}

fn op(number: u64, term: u32, sort: u8, line: &str) -> OpRef<'_> {
    OpRef {
        worker: 0,
        source: Source::Own,
        sending: 1,
        place: 0,
        lane: lane(3),
        number,
        partition: PARTITION,
        term: Term(term),
        sort,
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
        let args =
            ["tollgate", "--threads=1", "--memory-limit=64", "--seeds=127.0.0.1:1", "--insecure"];
        let startup = Config::from_sources(args.map(Into::into), []).expect("it is right");
        let Startup::Serve(config) = startup else { panic!("it runs") };
        let service =
            Arc::new(Service::new(*config, None, Limits::default(), [1; 4], Box::new(|_| ())));
        let node = service.node().expect("it has a cluster");
        node.placer.set(BITS, [1; 4], FirstByte);
        node.me.set((NodeId(id), Incarnation(1))).expect("it is new");
        let are_shared = service.shards().share_partitions(BITS);
        let copies = Copies::new(1 << BITS, node.options.copies, are_shared);
        copies.logs().set_lives((1..=3).map(|id| (NodeId(id), Incarnation(1))).collect(), 3);
        copies.contact(1);
        assert!(node.space.set(Space { bits: BITS, copies }).is_ok());
        Self { service, scratch: Scratch::default(), work: Work::default(), mono_ns: SECOND }
    }

    fn on<T>(&mut self, work: impl FnOnce(&Copies, &mut Hands<'_>) -> T) -> T {
        let node = self.service.node().expect("it has a cluster");
        let in_force = self.service.limits().load();
        let mut hands = Hands {
            service: &self.service,
            node,
            now: Now { mono_ns: self.mono_ns, wall_ns: ORIGIN_NS + self.mono_ns },
            contact: node.last_contact(),
            counters: self.service.counters(0),
            in_force: &in_force,
            worker: 0,
            scratch: &mut self.scratch,
            work: &mut self.work,
        };
        work(&node.space().expect("it is set").copies, &mut hands)
    }

    fn learn(&mut self, entry: &Entry) {
        self.on(|copies, hands| copies.learn(hands, PARTITION, entry));
    }

    fn state(&mut self) -> HeaderState {
        self.on(|copies, _| {
            copies.header(PARTITION).map(PartitionHeader::state).expect("it is there")
        })
    }

    fn perform(&mut self, op: &OpRef<'_>) -> (Performed, String) {
        let mut out = Vec::new();
        let performed = self.on(|copies, hands| copies.perform(hands, op, &mut out));
        (performed, String::from_utf8(out).expect("it is text"))
    }

    /// Does an operation whose reply waits for nothing.
    fn reply(&mut self, op: &OpRef<'_>) -> String {
        let (performed, reply) = self.perform(op);
        let Performed::Done { needs, term } = performed else { panic!("{performed:?}") };
        assert!(needs.is_empty() && term == op.term);
        reply
    }

    fn inbox(&self) -> Vec<Inbound> {
        let inbox = self.service.node().and_then(|node| node.inbox(0)).expect("there is a worker");
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
        let done = self.on(|copies, hands| copies.adopt(hands, body, stream, frame.len()));
        assert_eq!(done, Ok(()));
        stream.advance(frame.len());
    }

    /// A record of a count, made by operation 10 and so on of the lane.
    fn record(&mut self, term: u32, lsn: u64, count: u64, stream: &mut ReceiveStream) {
        let section = Section { lane: lane(3), first: 9, done: 1, count: 1 };
        let record = Record {
            partition: PARTITION,
            place: lsn as u16,
            term: Term(term),
            lsn,
            pt_ns: None,
            key: b"key",
            state: State::Counter(count),
            result: RecordResult::Number(count),
        };
        let frame_ns = self.mono_ns;
        self.on(|copies, hands| copies.install(hands, &section, frame_ns, &record, stream, 100));
        stream.advance(100);
    }
}

/// What a stream says it refused.
fn refused(stream: &mut ReceiveStream) -> Vec<Refused> {
    let mut out = Vec::new();
    stream.word(&[], &mut out);
    let frame = cut(&out, usize::MAX).expect("it is a frame").expect("it is whole");
    Word::decode(frame.body).expect("it is a word").refused().collect()
}

#[test]
fn an_operation_is_done_once() {
    let mut node = TestNode::new(1);
    assert_eq!(node.perform(&op(1, 1, 0, "incr key 1\r\n")).0, Performed::Refer(None));
    node.learn(&entry(1, 1, 1, &[1]));
    assert_eq!(node.state(), HeaderState::Serves);
    assert_eq!(node.reply(&op(1, 1, 0, "set key 0 0 1\r\n5\r\n")), "STORED\r\n");
    assert_eq!(node.reply(&op(2, 1, 0, "incr key 1\r\n")), "6\r\n");
    assert_eq!(node.reply(&op(2, 1, sort::AGAIN, "incr key 1\r\n")), "6\r\n");
    assert_eq!(node.reply(&op(3, 1, sort::AGAIN, "incr key 1\r\n")), "7\r\n");
    assert_eq!(node.reply(&op(4, 1, 0, "add key 0 0 1\r\n1\r\n")), "NOT_STORED\r\n");
    assert_eq!(node.reply(&op(5, 1, 0, "delete key\r\n")), "DELETED\r\n");
    assert_eq!(node.reply(&op(4, 1, sort::AGAIN, "add key 0 0 1\r\n1\r\n")), "NOT_STORED\r\n");
    assert_eq!(node.reply(&op(6, 1, sort::READ, "get key\r\n")), "");
    assert_eq!(node.reply(&op(7, 1, 0, "incr key 1 noreply\r\n")), "");
    assert_eq!(node.reply(&op(8, 1, Sort::Drop as u8, "key")), "");
    assert_eq!(node.state(), HeaderState::Serves);
}

#[test]
fn what_may_not_be_done_is_refused() {
    let mut node = TestNode::new(1);
    node.learn(&entry(1, 2, 1, &[1]));
    let line = "set key 0 0 1\r\n5\r\n";
    assert_eq!(node.perform(&op(1, 1, 0, line)).0, Performed::Refer(route(2, 1)));
    let late = OpRef { deadline_ns: SECOND, ..op(1, 2, 0, line) };
    assert_eq!(node.perform(&late).0, Performed::Refused(Refusal::Expired));
    let nobody = OpRef { lane: lane(4), ..op(1, 2, 0, line) };
    assert_eq!(node.perform(&nobody).0, Performed::Refused(Refusal::Stale));
    node.on(|copies, _| {
        let log = copies.logs().log_of(lane(3)).expect("the map has it");
        log.lock().hear(5);
    });
    for sort in [0, sort::AGAIN] {
        assert_eq!(node.perform(&op(4, 2, sort, line)).0, Performed::Refused(Refusal::Stale));
    }
    node.on(|copies, _| copies.set_lost_after(Some(SECOND)));
    node.mono_ns = 2 * SECOND;
    assert_eq!(node.perform(&op(5, 2, 0, line)).0, Performed::Refused(Refusal::Stopped));
    assert!(node.on(|copies, hands| copies.headers(hands.contact, hands.now).is_none()));
}

#[test]
fn a_held_operation_comes_back_and_is_looked_up() {
    let mut node = TestNode::new(1);
    // The other copy cannot be reached: nothing is served before the map removes it.
    node.learn(&entry(1, 1, 1, &[1, 2]));
    assert_eq!(node.state(), HeaderState::Slow);
    assert_eq!(node.perform(&op(1, 1, 0, "incr key 1\r\n")), (Performed::Held, String::new()));
    assert!(node.inbox().is_empty());
    node.learn(&entry(2, 1, 1, &[1]));
    let inbox = node.inbox();
    let [.., Inbound::Perform(held)] = &inbox[..] else { panic!("{inbox:?}") };
    assert_eq!((held.number, held.sort, &held.line[..]), (1, sort::AGAIN, &b"incr key 1\r\n"[..]));
    // Another sending of it was done meanwhile.
    node.reply(&op(2, 1, 0, "set key 0 0 1\r\n5\r\n"));
    assert_eq!(node.reply(&op(1, 1, sort::AGAIN, "incr key 1\r\n")), "6\r\n");
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
        Round { partition: PARTITION, term: Term(term) }.encode(&mut frame);
        let body = &frame[HEADER_BYTES..];
        let done = node.on(|copies, hands| copies.round(hands, body, stream, frame.len()));
        assert_eq!(done, Ok(()));
    };
    node.adopt(1, 1, 2, last, &mut stream);
    round(&mut node, 1, &mut stream);
    assert_eq!(stream.refusals(), 0);
    node.learn(&entry(2, 2, 2, &[2]));
    assert_eq!(node.state(), HeaderState::Serves);
    round(&mut node, 1, &mut stream);
    assert_eq!(refused(&mut stream).len(), 1, "a newer term was seen");
    assert_eq!(node.reply(&op(11, 2, sort::AGAIN, "incr key 1\r\n")), "8\r\n");
    assert_eq!(node.reply(&op(12, 2, sort::AGAIN, "incr key 1\r\n")), "9\r\n");
}
