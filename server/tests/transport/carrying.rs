//! The transport of frames: order, batches, windows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::net::TcpSocket;
use tollgate::transport::{LinkEnd, PeerMetrics, SendWindow, Shed};

use super::handshake::Authority;
use super::*;

#[tokio::test]
async fn frames_arrive_in_order_between_three_nodes() {
    const FRAMES: u64 = 5000;
    let hosts = [Host::new(1), Host::new(2), Host::new(3)];
    let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
    let senders = pairs.map(|(from, to): (usize, usize)| {
        let sender = hosts[from].to(to as u32 + 1, &hosts[to]);
        std::thread::spawn(move || {
            for seq in 1..=FRAMES {
                sender.send(op(seq)).expect("fewer than the window");
            }
        })
    });
    for (from, to) in pairs {
        let node = &hosts[to].node;
        until("all are here", || node.ops_from(from as u32 + 1).len() as u64 == FRAMES).await;
        assert!(node.ops_from(from as u32 + 1).into_iter().eq(1..=FRAMES));
    }
    for host in &hosts {
        until("all are answered", || host.node.replies() as u64 == 2 * FRAMES).await;
    }
    for sender in senders {
        sender.join().expect("it sent all");
    }
}

#[tokio::test]
async fn query_never_goes_over_a_link_of_version_one() {
    let query = || Frame::Query(QueryFrame { id: 7, body: Bytes::from_static(b"hot keys") });
    for (versions, arrives) in [(1..=1, false), (1..=2, true)] {
        let new = Host::new(1);
        let old = Host::with(TransportOptions { versions, ..options(2) }, Node::new(true));
        let sender = new.to(2, &old);
        let relayed = Frame::Relay { from: NodeId(1), to: NodeId(3), frame: Box::new(query()) };
        for frame in [query(), relayed, op(1)] {
            sender.send(frame).expect("there is room");
        }
        until("the last frame is there", || old.node.ops_from(1) == [1]).await;
        until("its answer is there", || new.node.replies() == 1).await;
        let received = old.node.received.lock().len();
        assert_eq!(received, if arrives { 3 } else { 1 });
        assert_eq!(new.metrics(2).unsendable, if arrives { 0 } else { 2 });
        let version = new.transport.version_of(NodeId(2));
        assert_eq!(version, Some(if arrives { 2 } else { 1 }));
        assert_eq!(new.transport.version_of(NodeId(3)), None);
        assert!(!new.node.has_event(|event| matches!(event, LinkEvent::Down(..))));
    }
}

/// To print the measurements: `LANES_FRAMES=1000000 cargo test -p tollgate --test transport busier
/// -- --nocapture`.
#[test]
fn the_busier_a_link_the_larger_its_batches() {
    let frames = std::env::var("LANES_FRAMES").ok().and_then(|text| text.parse().ok());
    let frames: u64 = frames.unwrap_or(100_000);
    let mut batches = Vec::new();
    let cases = [(1, 1), (16, 1), (256, 1), (256, 16), (4096, 16), (u64::MAX, 64)];
    let plain = cases.map(|case| (case, false));
    for ((unanswered, burst), is_tls) in plain.into_iter().chain([((4096, 16), true)]) {
        // One frame at a time is slow, and a few suffice.
        let frames = if unanswered == 1 { frames / 20 } else { frames };
        let (elapsed, out, back) = measure(frames, unanswered, burst, is_tls);
        let batch = |metrics: PeerMetrics| metrics.frames_out / metrics.writes.max(1);
        println!(
            "{unanswered} unanswered, sent by {burst}, TLS {is_tls}: {} ns per op and its reply; {} ops and {} replies a write; {} shed",
            elapsed.as_nanos() / u128::from(frames),
            batch(out),
            batch(back),
            out.shed[FrameClass::Tunnel as usize],
        );
        assert_eq!((out.frames_out, out.frames_in), (frames, frames));
        assert_eq!((back.frames_in, back.shed), (frames, [0; 2]));
        batches.push(batch(out));
    }
    assert_eq!(batches[0], 1);
    assert!(batches.last().is_some_and(|batch| *batch > 16), "{batches:?}");
}

/// Answers each frame and records nothing.
struct Echo {
    since: Instant,
    replies: AtomicU64,
}

impl FrameHandler for Echo {
    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64 + 1_000_000_000
    }

    fn frames(&self, from: &RemotePeer, frames: &mut Vec<Frame>) {
        let count = frames.len();
        let replies: Vec<Frame> = frames.drain(..).filter_map(|op| reply_to(&op)).collect();
        self.replies.fetch_add((count - replies.len()) as u64, Relaxed);
        for reply in replies {
            from.sender.send(reply).expect("there is room for answers");
        }
    }

    fn link(&self, _: LinkEvent) {}
}

/// Measures one thread that sends as fast as it can with at most `unanswered` frames outstanding;
/// each node's transport has a thread of its own.
fn measure(
    frames: u64,
    unanswered: u64,
    burst: usize,
    is_tls: bool,
) -> (Duration, PeerMetrics, PeerMetrics) {
    let (here, there) = (Runtime::new(), Runtime::new());
    let authority = Authority::new();
    let options = |node| {
        if is_tls { authority.options(node, &authority, "127.0.0.1", None) } else { options(node) }
    };
    let echo = || Arc::new(Echo { since: Instant::now(), replies: AtomicU64::new(0) });
    let start = |runtime: &Runtime, node, handler: &Arc<Echo>| {
        let _context = runtime.handle.enter();
        let bound = BoundListener::tcp("127.0.0.1:0".parse().expect("an address"), 16);
        let bound = bound.expect("a free port");
        let address = bound.address().expect("it is TCP").to_string();
        let listeners = vec![bound.attach().expect("there is a runtime")];
        let handler = Arc::clone(handler) as Arc<dyn FrameHandler>;
        (Transport::start(options(node), listeners, handler).expect("sound"), address)
    };
    let asking = echo();
    let (a, _) = start(&here, 1, &asking);
    let (b, address) = start(&there, 2, &echo());
    let sender = a.sender(NodeId(2), &address);
    let of = |transport: &Transport, node| {
        let peer_addr = PeerAddr::Node(NodeId(node));
        let metrics = transport.metrics().into_iter().find(|(of, _)| *of == peer_addr);
        metrics.map(|(_, metrics)| metrics).unwrap_or_default()
    };
    let since = Instant::now();
    let replies = || asking.replies.load(Relaxed);
    let mut waiting = Vec::new();
    let mut seq = 0;
    while replies() < frames {
        while waiting.len() < burst && seq < frames && seq - replies() < unanswered {
            seq += 1;
            waiting.push(op(seq));
        }
        let is_idle = waiting.is_empty();
        waiting.retain(|frame: &Frame| sender.send(frame.clone()).is_err());
        if is_idle || !waiting.is_empty() {
            std::thread::yield_now();
        }
        assert!(since.elapsed() < Duration::from_mins(1));
    }
    let measured = (since.elapsed(), of(&a, 2), of(&b, 1));
    here.kill();
    there.kill();
    measured
}

#[tokio::test]
async fn one_operation_alone_does_not_wait_for_company() {
    let (a, b) = (Host::new(1), Host::new(2));
    let sender = a.to(2, &b);
    for seq in 1..=100 {
        sender.send(op(seq)).expect("there is room");
        until("it is answered", || a.node.replies() as u64 == seq).await;
    }
    assert_eq!(a.metrics(2).writes, 100);
}

fn narrow(node: u32) -> TransportOptions {
    let mut options = options(node);
    options.windows.of = [SendWindow { frames: 1000, bytes: 1 << 20 }; 2];
    options.timing.stall = Duration::from_hours(1);
    options.timing.lost = Duration::from_hours(1);
    options
}

/// Returns a peer that completes the handshake and then reads nothing, and a full sender to it.
async fn stuck(a: &Host) -> (Raw, PeerSender, u64) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let sender = a.transport.sender(NodeId(9), &address);
    sender.send(op(1)).expect("there is room");
    let mut peer = Raw::accept(&listener).await;
    peer.exchange_handshake(Side::Accepting, 9).await;
    let mut sent = 1;
    // The system buffers some megabytes before writes block.
    let mut full = 0;
    while full < 50 {
        match sender.send(op(sent + 1)) {
            Ok(()) => {
                sent += 1;
                full = 0;
            }
            Err(why) => {
                assert_eq!(why, Shed::Full(FrameClass::Tunnel));
                full += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    (peer, sender, sent)
}

#[tokio::test]
async fn a_peer_that_does_not_read_fills_only_its_window() {
    let (a, b) = (Host::with(narrow(1), Node::new(false)), Host::new(2));
    let (mut peer, sender, sent) = stuck(&a).await;
    let reply = reply_to(&op(1)).expect("it is an operation");
    assert_eq!(sender.send(reply), Ok(()), "answers have room of their own");
    assert!(a.metrics(9).shed[FrameClass::Tunnel as usize] >= 50);

    let other = a.to(2, &b);
    other.send(op(1)).expect("there is room");
    until("another peer answers", || a.node.replies() == 1).await;

    // The peer reads again: it receives every accepted frame, and the window has room.
    for seq in 1..=sent {
        let Some((frame, _)) = peer.receive().await else { panic!("it ended") };
        assert_eq!(seq_of(&frame), Some(seq));
    }
    assert!(matches!(peer.receive().await, Some((Frame::Answer(_), _))));
    sender.send(op(sent + 1)).expect("there is room again");
    assert!(matches!(peer.receive().await, Some((frame, _)) if seq_of(&frame) == Some(sent + 1)));
    assert_eq!(a.metrics(9).lost, 0);
}

#[tokio::test]
async fn a_peer_that_reads_no_answers_is_not_read() {
    let b = Host::new(2);
    // The system would otherwise buffer megabytes for it.
    let socket = TcpSocket::new_v4().expect("files are left");
    socket.set_recv_buffer_size(64 << 10).expect("a good size");
    let stream = socket.connect(b.address.parse().expect("an address")).await;
    let mut raw = Raw { stream: stream.expect("it listens"), input: BytesMut::new() };
    raw.exchange_handshake(Side::Connecting, 9).await;
    let stream = raw.stream.into_std().expect("it is plain");
    let copy = stream.try_clone().expect("files are left");
    let mut write = TcpStream::from_std(copy).expect("there is a runtime");
    let sending = tokio::spawn(async move {
        for seq in 1..=300_000 {
            write.write_all(&bytes_of(&op(seq))).await.expect("it is read in the end");
        }
    });
    let received = || b.metrics(9).frames_in;
    let mut before = u64::MAX;
    while before != received() || before == 0 {
        before = received();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(before < 300_000, "it reads on and on");
    raw.stream = TcpStream::from_std(stream).expect("there is a runtime");
    for seq in 1..=300_000 {
        let Some((Frame::Answer(reply), _)) = raw.receive().await else { panic!("it ended") };
        assert_eq!(reply.id, seq);
    }
    sending.await.expect("all is sent");
    assert_eq!(b.metrics(9).shed, [0; 2], "every operation has its answer");
}

#[tokio::test]
async fn a_peer_that_takes_nothing_for_long_is_given_up() {
    let mut options = narrow(1);
    options.timing.stall = Duration::from_secs(2);
    let a = Host::with(options, Node::new(false));
    let (_peer, sender, _) = stuck(&a).await;
    let stalled = |event: &LinkEvent| matches!(event, LinkEvent::Down(_, LinkEnd::Stalled));
    until("it is given up", || a.node.has_event(stalled)).await;
    sender.send(op(1)).expect("the window is empty");
}

#[tokio::test]
async fn long_frames_pass_and_too_long_ones_are_dropped() {
    let (a, b) = (Host::new(1), Host::new(2));
    let sender = a.to(2, &b);
    let long = |seq, bytes: usize| op_of(seq, vec![7; bytes].into());
    sender.send(long(1, 3 << 20)).expect("there is room");
    until("it is here", || b.node.ops_from(1) == [1]).await;
    sender.send(long(2, 5 << 20)).expect("a single frame always has room");
    until("it was seen", || a.metrics(2).unsendable == 1).await;
    sender.send(op(3)).expect("there is room");
    until("the next is here", || b.node.ops_from(1) == [1, 3]).await;
}
