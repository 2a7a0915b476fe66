//! Links on sockets of this process: streams over many connections, order, bounds, silence, TLS.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::task::Poll;
use std::thread;

use cluster::LinkIndex;
use cluster::frames::{StreamRefusal, TermCheck};
use cluster::id::{Incarnation, Partition, Term};
use cluster::replica::{AckMode, Position, ReplicaOptions};
use control::WakeGrid;
use tokio::runtime::Runtime;
use tokio_rustls::rustls;

use super::writer::PeerLiveness;
use super::*;
use crate::node::NodeOptions;

const MS: u64 = 1_000_000;
const PEER: NodeId = NodeId(2);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime")
}

fn round(number: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    TermCheck { partition: Partition(number as u16), term: Term(number) }.encode(&mut frame);
    frame
}

/// Records the calls of a link; refuses the frames numbered in `refuses`.
#[derive(Default)]
struct Heard {
    numbers: Vec<u32>,
    loose: usize,
    refused: Vec<StreamRefusal>,
    refuses: Vec<u32>,
    ups: usize,
    acknowledged: usize,
}

impl LinkHandler<()> for Heard {
    fn has_read(&mut self, (): &mut ()) {}

    fn link_frame(
        &mut self,
        (): &mut (),
        _: &Arc<PeerLink>,
        stream: &mut ReceiveStream,
        kind: FrameKind,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), FrameError> {
        if kind != FrameKind::TermCheck {
            self.loose += 1;
            return Ok(());
        }
        let TermCheck { partition, term } = TermCheck::decode(body)?;
        if self.refuses.contains(&term.0) {
            let end = stream.end_of(bytes);
            let (copy_term, last) = (Term(9), Position::default());
            stream.refuse(StreamRefusal { partition, term, copy_term, end, last }, false);
        }
        self.numbers.push(term.0);
        Ok(())
    }

    fn ack(&mut self, (): &mut (), link: &Arc<PeerLink>, ack: &StreamAck<'_>) {
        for refused in ack.refused() {
            assert!(link.acked.get() < refused.end, "refusals come before the acknowledgement");
            self.refused.push(refused);
        }
    }

    fn acknowledged(&mut self, (): &mut (), _: &Arc<PeerLink>) {
        self.acknowledged += 1;
    }

    fn link_up(&mut self, (): &mut (), _: &Arc<PeerLink>) {
        self.ups += 1;
    }

    fn touched(&mut self, link: &Arc<PeerLink>) {
        link.flush(0);
    }

    fn streams_done(&mut self, _: &mut Vec<StreamDone>) {}
}

/// One end of a link, with the worker that reads it.
struct End {
    node: Node,
    links: Arc<DataLinks>,
    link: Arc<PeerLink>,
    worker: WorkerLinks,
    findings: Heard,
    now_ns: u64,
}

impl End {
    fn new() -> Self {
        let (ack, copies) = (AckMode::Replica, ReplicaOptions::default());
        let node = Node::new(
            NodeOptions {
                ack,
                replicas: copies,
                workers: 1,
                memory_bytes: 1 << 20,
                grid: WakeGrid::from_now(),
            },
            Arc::default(),
        );
        let links = Arc::new(DataLinks::new(PEER, "a:1", Timing::default()));
        let link = node.links().links_to(PEER, Incarnation(1), 1, 0).expect("it is new");
        let (worker, findings) = (WorkerLinks::default(), Heard::default());
        Self { node, links, link, worker, findings, now_ns: 0 }
    }

    /// Hands a connection to the worker.
    fn connect(&mut self, runtime: &Runtime, number: u64, stream: UnixStream) {
        self.connect_with(runtime, number, stream, None);
    }

    fn connect_with(
        &mut self,
        runtime: &Runtime,
        number: u64,
        stream: UnixStream,
        tls: Option<Box<TlsConnection>>,
    ) {
        stream.set_nonblocking(true).expect("it is a socket");
        let wire = Detached::Socket(DetachedStream::Unix(stream));
        let (links, link, rest) =
            (Arc::clone(&self.links), Arc::clone(&self.link), BytesMut::new());
        let arrival = LinkArrival { links, link, number, wire, tls, rest };
        let mut arrival = Some(arrival);
        runtime.block_on(poll_fn(|context| {
            if let Some(arrival) = arrival.take() {
                self.worker.adopt(&self.node, 0, context, arrival);
            }
            Poll::Ready(())
        }));
    }

    /// Runs some rounds of the worker.
    fn work(&mut self, runtime: &Runtime) {
        let mut scratch = vec![0; 8 << 10];
        for _ in 0..4 {
            runtime.block_on(tokio::task::yield_now());
            runtime.block_on(poll_fn(|_| {
                let Self { node, worker, findings, now_ns, .. } = self;
                worker.read(node, *now_ns, &mut scratch, &mut (), findings);
                Poll::Ready(())
            }));
        }
    }

    fn append(&self, number: u32) -> u64 {
        self.link.append(0, &round(number))
    }
}

/// A connection between two ends through which a test carries the bytes.
struct Between {
    left: UnixStream,
    right: UnixStream,
    /// Bytes taken from each side and not yet given to the other.
    to_right: VecDeque<u8>,
    to_left: VecDeque<u8>,
}

impl Between {
    /// Connects two ends.
    fn new(runtime: &Runtime, number: u64, ends: &mut [End; 2]) -> Self {
        let (left, left_theirs) = UnixStream::pair().expect("a pair");
        let (right, right_theirs) = UnixStream::pair().expect("a pair");
        ends[0].connect(runtime, number, left_theirs);
        ends[1].connect(runtime, number, right_theirs);
        for side in [&left, &right] {
            side.set_nonblocking(true).expect("it is a socket");
        }
        Self { left, right, to_right: VecDeque::new(), to_left: VecDeque::new() }
    }

    fn take(mut from: &UnixStream, to: &mut VecDeque<u8>) {
        let mut room = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut room) {
            to.extend(&room[..count]);
        }
    }

    fn give(mut to: &UnixStream, from: &mut VecDeque<u8>, max: usize) {
        let bytes = &*from.make_contiguous();
        // A closed socket takes nothing; a full one takes the rest later.
        let count = to.write(&bytes[..max.min(bytes.len())]).unwrap_or(0);
        from.drain(..count);
    }

    /// Gives at most `max` bytes to each side.
    fn carry(&mut self, max: usize) {
        Self::take(&self.left, &mut self.to_right);
        Self::take(&self.right, &mut self.to_left);
        Self::give(&self.right, &mut self.to_right, max);
        Self::give(&self.left, &mut self.to_left, max);
    }

    fn settle(&mut self, runtime: &Runtime, ends: &mut [End; 2]) {
        for _ in 0..8 {
            self.carry(usize::MAX);
            for end in &mut *ends {
                end.work(runtime);
            }
        }
    }
}

/// Two ends whose first connection is up.
fn linked(runtime: &Runtime) -> ([End; 2], Between) {
    let mut ends = [End::new(), End::new()];
    let mut between = Between::new(runtime, 1, &mut ends);
    between.settle(runtime, &mut ends);
    (ends, between)
}

#[test]
fn streams_survive_connections_cut_within_frames() {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut ends = [End::new(), End::new()];
    let mut said = [0_u32; 2];
    for number in 1..120 {
        let mut between = Between::new(&runtime, number, &mut ends);
        for (at, end) in ends.iter().enumerate() {
            for _ in 0..number % 5 {
                said[at] += 1;
                end.append(said[at]);
            }
        }
        for step in 0..number % 7 {
            for end in &ends {
                end.link.flush(0);
            }
            between.carry((number * 13 % 31 + step) as usize);
            for end in &mut ends {
                end.work(&runtime);
            }
        }
        if number % 3 == 0 {
            // The next connection replaces it while it is open.
            std::mem::forget(between);
        }
    }
    let mut between = Between::new(&runtime, 120, &mut ends);
    between.settle(&runtime, &mut ends);
    for (at, end) in ends.iter().enumerate() {
        assert!(
            end.findings.numbers.iter().copied().eq(1..=said[1 - at]),
            "{:?}",
            end.findings.numbers
        );
        assert_eq!(end.link.acked.get(), end.link.end());
        assert!(end.findings.ups > 10 && end.findings.acknowledged > 10);
        assert!(end.link.is_up());
    }
}

#[test]
fn refusals_precede_acks_and_survive_a_loss() {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut ends = [End::new(), End::new()];
    ends[1].findings.refuses = vec![2];
    let mut between = Between::new(&runtime, 1, &mut ends);
    between.settle(&runtime, &mut ends);
    let first = ends[0].append(1);
    let second = ends[0].append(2);
    ends[0].link.flush(0);
    between.carry(usize::MAX);
    ends[1].work(&runtime);
    // The ack of this end is lost.
    drop(between);
    for end in &mut ends {
        end.work(&runtime);
    }
    assert_eq!(ends[0].link.acked.get(), 0);
    let mut between = Between::new(&runtime, 2, &mut ends);
    between.settle(&runtime, &mut ends);
    let refused: Vec<u64> = ends[0].findings.refused.iter().map(|refused| refused.end).collect();
    assert_eq!((refused, ends[0].link.acked.get()), (vec![second], second));
    assert!(first < second);
}

#[test]
fn newer_connection_ends_the_older_for_good() {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut ends = [End::new(), End::new()];
    let mut older = Between::new(&runtime, 5, &mut ends);
    older.settle(&runtime, &mut ends);
    ends[0].append(1);
    ends[0].link.flush(0);
    // The frame is in the socket of the older connection when the newer one arrives.
    older.carry(usize::MAX);
    let mut newer = Between::new(&runtime, 7, &mut ends);
    newer.settle(&runtime, &mut ends);
    assert_eq!(ends[1].findings.numbers, [1], "it came once");
    let (late, _theirs) = UnixStream::pair().expect("a pair");
    ends[0].connect(&runtime, 6, late);
    newer.settle(&runtime, &mut ends);
    ends[0].append(2);
    ends[0].link.flush(0);
    newer.settle(&runtime, &mut ends);
    assert_eq!(ends[1].findings.numbers, [1, 2]);
}

#[test]
fn first_frame_must_be_an_ack() {
    let runtime = runtime();
    let _context = runtime.enter();
    let mut end = End::new();
    let (mut theirs, ours) = UnixStream::pair().expect("a pair");
    end.connect(&runtime, 1, ours);
    assert!(!end.link.send(|out| out.extend_from_slice(b"lost")));
    theirs.write_all(&round(1)).expect("it is open");
    end.work(&runtime);
    assert_eq!((end.findings.numbers.len(), end.link.is_up()), (0, false));
    let mut rest = Vec::new();
    theirs.read_to_end(&mut rest).expect("it was closed");
}

#[test]
fn both_ends_ask_in_one_exchange() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (mut ends, mut between) = linked(&runtime);
    // The first bytes were accepted, which counts as an answer.
    assert!(ends.iter().all(|end| !end.link.writer.tick(0)));
    for second in 1..4 {
        let at = |ms: u64| (second * 1000 + ms) * MS;
        for end in &mut ends {
            end.now_ns = at(0);
        }
        assert!(ends[0].link.writer.tick(at(0)), "its ping is due");
        ends[0].link.flush(at(0));
        between.settle(&runtime, &mut ends);
        for end in &ends {
            assert!(!end.link.writer.tick(at(900)), "it has asked, and was answered");
        }
    }
}

#[test]
fn full_socket_keeps_what_was_appended_in_order() {
    const COUNT: u32 = 200_000;
    let runtime = runtime();
    let _context = runtime.enter();
    let (mut ends, mut between) = linked(&runtime);
    for number in 1..=COUNT {
        ends[0].append(number);
        if number % 100 == 0 {
            ends[0].link.flush(0);
        }
    }
    assert!(ends[0].link.writer.is_blocked());
    assert!(ends[0].link.quarters() >= 2 && !ends[0].link.is_full());
    assert_eq!(ends[0].link.acked.get(), 0);
    for _ in 0..10_000 {
        between.carry(usize::MAX);
        for end in &mut ends {
            end.work(&runtime);
        }
        if ends[0].link.acked.get() == ends[0].link.end() {
            break;
        }
    }
    assert!(ends[1].findings.numbers.iter().copied().eq(1..=COUNT));
    assert!(!ends[0].link.is_full() && ends[0].link.quarters() == 0);
}

#[test]
fn frames_of_many_threads_arrive_in_the_order_of_each() {
    const EACH: u32 = 3000;
    let runtime = runtime();
    let _context = runtime.enter();
    let mut ends = [End::new(), End::new()];
    let (left, right) = UnixStream::pair().expect("a pair");
    ends[0].connect(&runtime, 1, left);
    ends[1].connect(&runtime, 1, right);
    let link = Arc::clone(&ends[0].link);
    thread::scope(|scope| {
        for thread in 0..4 {
            let link = &link;
            scope.spawn(move || {
                for number in 0..EACH {
                    link.append(0, &round(thread << 16 | number));
                    if number % 7 == 6 || number + 1 == EACH {
                        link.flush(0);
                    }
                }
            });
        }
        while ends[1].findings.numbers.len() < 4 * EACH as usize {
            for end in &mut ends {
                end.work(&runtime);
            }
        }
    });
    for thread in 0..4 {
        let of = ends[1].findings.numbers.iter().filter(|number| **number >> 16 == thread);
        assert!(of.map(|number| number & 0xffff).eq(0..EACH), "thread {thread}");
    }
}

#[test]
fn silent_link_sends_nothing_until_an_answer() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (mut ends, mut between) = linked(&runtime);
    let link = Arc::clone(&ends[0].link);
    assert!(link.send(|_| ()));
    assert!(!link.writer.tick(0), "a new socket was blocked at first");
    assert!(!link.writer.tick(50 * MS));
    assert!(link.writer.tick(100 * MS), "it asks");
    assert!(!link.writer.tick(399 * MS));
    assert_eq!(link.writer.check_liveness(399 * MS), PeerLiveness::Known);
    assert!(!link.writer.tick(400 * MS) && link.is_up(), "its worker is to look");
    assert_eq!(link.writer.check_liveness(400 * MS), PeerLiveness::Silent);
    assert!(!link.is_up() && !link.send(|_| ()));
    let before = ends[0].findings.ups;
    ends[0].append(1);
    link.flush(0);
    between.settle(&runtime, &mut ends);
    assert!(link.is_up(), "the answer came after all");
    assert_eq!((ends[0].findings.ups, &ends[1].findings.numbers[..]), (before + 1, &[1][..]));
    assert!(link.writer.tick(500 * MS));
    assert_eq!(link.writer.check_liveness(3499 * MS), PeerLiveness::Silent);
    assert_eq!(link.writer.check_liveness(3499 * MS), PeerLiveness::Known);
    assert_eq!(link.writer.check_liveness(3500 * MS), PeerLiveness::Lost);
}

#[test]
fn answer_that_waits_in_the_socket_counts() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (mut ends, mut between) = linked(&runtime);
    let link = Arc::clone(&ends[0].link);
    let _ = link.writer.tick(0);
    assert!(link.writer.tick(1000 * MS), "an idle link is asked too");
    link.flush(0);
    between.carry(usize::MAX);
    ends[1].work(&runtime);
    between.carry(usize::MAX);
    // The process was paused for a while; its worker reads first.
    ends[0].now_ns = 9000 * MS;
    assert!(!link.writer.tick(9000 * MS));
    ends[0].work(&runtime);
    assert!(link.is_up());
}

/// Two ends of a TLS connection, after the handshake.
fn tls_pair() -> [TlsConnection; 2] {
    let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let certificate = made.cert.der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.expect("a key"))
        .expect("they fit");
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("node").expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(client), name).expect("it is set up");
    let server = rustls::ServerConnection::new(Arc::new(server)).expect("it is set up");
    let mut ends = [TlsConnection::from(client), TlsConnection::from(server)];
    while ends.iter().any(|end| end.is_handshaking() || end.wants_write()) {
        for from in 0..2 {
            let mut bytes = Vec::new();
            while ends[from].wants_write() {
                ends[from].write_tls(&mut bytes).expect("into memory");
            }
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                ends[1 - from].read_tls(&mut bytes).expect("from memory");
                ends[1 - from].process_new_packets().expect("a good handshake");
            }
        }
    }
    ends
}

#[test]
fn tls_carries_more_than_its_buffers() {
    const COUNT: u32 = 50_000;
    let runtime = runtime();
    let _context = runtime.enter();
    let mut ends = [End::new(), End::new()];
    let (left, right) = UnixStream::pair().expect("a pair");
    let [client, server] = tls_pair();
    ends[0].connect_with(&runtime, 1, left, Some(Box::new(client)));
    ends[1].connect_with(&runtime, 1, right, Some(Box::new(server)));
    for number in 1..=COUNT {
        ends[0].append(number);
    }
    for _ in 0..10_000 {
        for end in &mut ends {
            end.work(&runtime);
        }
        if ends[0].link.acked.get() == ends[0].link.end() {
            break;
        }
    }
    assert!(ends[1].findings.numbers.iter().copied().eq(1..=COUNT));
    let garbage = ends[1].link.writer.decrypt(1, &[9; 100], &mut Vec::new());
    assert!(garbage.is_err());
}

#[test]
fn peer_that_closed_is_noticed_by_the_sender() {
    let runtime = runtime();
    let _context = runtime.enter();
    let (mut ends, between) = linked(&runtime);
    drop(between);
    ends[0].append(1);
    ends[0].link.flush(0);
    ends[0].work(&runtime);
    assert!(!ends[0].link.is_up());
    assert_eq!(ends[0].append(2), ends[0].link.end(), "it waits for the next connection");
}

#[test]
fn links_last_as_long_as_incarnation_and_sets() {
    let links = Links::default();
    let (old, new) = (Incarnation(3), Incarnation(5));
    assert!(links.of_worker(PEER, 0).is_none() && links.link_to(PEER, old, 0).is_none());
    let first = links.links_to(PEER, old, 2, 1).expect("it is new");
    assert_eq!((first.k, links.generation()), (1, 1));
    assert_eq!(links.link_to(PEER, old, 7), Some(first.index));
    assert_eq!(links.of_worker(PEER, 3).expect("it is there").index, first.index);
    let second = links.links_to(PEER, new, 2, 1).expect("a newer life");
    assert_ne!(first.index, second.index);
    assert_eq!(links.of_worker(PEER, 3).expect("it is there").index, second.index);
    assert!(links.links_to(PEER, old, 2, 1).is_none(), "an older life");
    let is_over = |_: NodeId, incarnation| incarnation == old;
    links.retain_incarnations(is_over, |index| index == first.index);
    assert_eq!(links.link_to(PEER, old, 7), None);
    assert!(links.get(first.index).is_some(), "a set names it");
    links.retain_incarnations(is_over, |_| false);
    assert!(links.get(first.index).is_none() && links.get(second.index).is_some());
    links.retain_incarnations(|_, _| true, |_: LinkIndex| false);
    assert!(links.of_worker(PEER, 0).is_none());
    assert!(links.links_to(PEER, new, 2, 0).is_none(), "that life has ended");
    assert!(links.links_to(PEER, Incarnation(6), 2, 0).is_some());
}
