//! Links between nodes of one process, over loopback.
//!
//! Here: the helpers. The tests: `transport/carrying.rs`, `transport/handshake.rs`,
//! `transport/ending.rs`.

#[path = "transport/carrying.rs"]
mod carrying;
#[path = "transport/ending.rs"]
mod ending;
#[path = "transport/handshake.rs"]
mod handshake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cluster::id::{Incarnation, NodeId};
use cluster::message::control::ControlCall;
use cluster::message::handshake::{DataLinkId, Hello, NONCE_BYTES, Proof, Side};
use cluster::message::query::QueryFrame;
use cluster::message::tunnel::{TunnelEvent, TunnelFrame};
use cluster::message::{DecodedFrame, Frame, FrameBounds, decode, frame_bytes};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tollgate::net::BoundListener;
use tollgate::transport::{
    FrameClass, FrameHandler, LinkError, LinkEvent, PeerAddr, PeerIdentity, PeerSecurity,
    PeerSender, RemotePeer, Transport, TransportOptions,
};

const CLUSTER: u128 = 77;

/// Records frames and link events, and answers tunnel frames if `answers`.
struct Node {
    since: Instant,
    answers: bool,
    received: Mutex<Vec<(NodeId, Frame)>>,
    events: Mutex<Vec<LinkEvent>>,
}

impl FrameHandler for Node {
    fn now_ns(&self) -> u64 {
        self.since.elapsed().as_nanos() as u64 + 1_000_000_000
    }

    fn frames(&self, from: &RemotePeer, frames: &mut Vec<Frame>) {
        if self.answers {
            for reply in frames.iter().filter_map(reply_to) {
                let _ = from.sender.send(reply);
            }
        }
        self.received.lock().extend(frames.drain(..).map(|frame| (from.node, frame)));
    }

    fn link(&self, event: LinkEvent) {
        self.events.lock().push(event);
    }
}

impl Node {
    fn new(answers: bool) -> Arc<Self> {
        let (received, events) = (Mutex::default(), Mutex::default());
        Arc::new(Self { since: Instant::now(), answers, received, events })
    }

    /// Returns the numbers of the tunnel frames from a node, in the order of arrival.
    fn ops_from(&self, node: u32) -> Vec<u64> {
        let received = self.received.lock();
        let ops = received.iter().filter_map(|(from, frame)| match frame {
            frame if *from == NodeId(node) => seq_of(frame),
            _ => None,
        });
        ops.collect()
    }

    fn replies(&self) -> usize {
        let received = self.received.lock();
        received.iter().filter(|(_, frame)| matches!(frame, Frame::Answer(_))).count()
    }

    fn has_event(&self, is_it: impl Fn(&LinkEvent) -> bool) -> bool {
        self.events.lock().iter().any(is_it)
    }

    fn is_up(&self) -> bool {
        self.has_event(|event| matches!(event, LinkEvent::Up(_)))
    }

    /// Waits for the first failure and returns it.
    async fn failure(&self) -> LinkError {
        let failure = || {
            self.events.lock().iter().find_map(|event| match event {
                LinkEvent::Failed { why, .. } => Some(why.clone()),
                _ => None,
            })
        };
        until("a failure", || failure().is_some()).await;
        failure().expect("there is one")
    }
}

/// A node and its transport.
struct Host {
    node: Arc<Node>,
    transport: Transport,
    address: String,
}

fn identity(node: u32) -> PeerIdentity {
    PeerIdentity { cluster: CLUSTER, node: NodeId(node), incarnation: Incarnation(1), core: 0 }
}

fn options(node: u32) -> TransportOptions {
    with_room(TransportOptions::new(identity(node), PeerSecurity::Insecure))
}

/// Adds room for as many answers as a test may have outstanding.
fn with_room(mut options: TransportOptions) -> TransportOptions {
    options.windows.of[FrameClass::Control as usize].frames = 32_768;
    options
}

impl Host {
    fn new(node: u32) -> Self {
        Self::with(options(node), Node::new(true))
    }

    fn with(options: TransportOptions, node: Arc<Node>) -> Self {
        Self::at("127.0.0.1:0", options, node)
    }

    fn at(address: &str, options: TransportOptions, node: Arc<Node>) -> Self {
        let address = address.parse().expect("an address");
        let bound = BoundListener::tcp(address, 1024).expect("a free port");
        let address = bound.address().expect("it is TCP").to_string();
        let listener = bound.attach().expect("there is a runtime");
        let handler = Arc::clone(&node) as Arc<dyn FrameHandler>;
        let transport = Transport::start(options, vec![listener], handler).expect("sound security");
        Self { node, transport, address }
    }

    fn to(&self, node: u32, host: &Self) -> PeerSender {
        self.transport.sender(NodeId(node), &host.address)
    }

    fn metrics(&self, node: u32) -> tollgate::transport::PeerMetrics {
        let peer_addr = PeerAddr::Node(NodeId(node));
        let metrics = self.transport.metrics();
        metrics
            .into_iter()
            .find(|(of, _)| *of == peer_addr)
            .map(|(_, metrics)| metrics)
            .unwrap_or_default()
    }
}

/// Waits until `is_so` returns true.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("not so after long: {what}");
}

/// Returns a numbered tunnel frame.
fn op(seq: u64) -> Frame {
    op_of(seq, Bytes::from_static(b"\x01user:00000000000042"))
}

fn op_of(seq: u64, bytes: Bytes) -> Frame {
    let id = DataLinkId { index: 0, number: 1 };
    Frame::Tunnel(TunnelFrame { id, event: TunnelEvent::Bytes { at: seq, taken: 0, bytes } })
}

/// Returns the number of a tunnel frame.
fn seq_of(frame: &Frame) -> Option<u64> {
    match frame {
        Frame::Tunnel(TunnelFrame { event: TunnelEvent::Bytes { at, .. }, .. }) => Some(*at),
        _ => None,
    }
}

fn reply_to(frame: &Frame) -> Option<Frame> {
    let rpc = Bytes::from_static(b"an answer of 23 letters");
    seq_of(frame).map(|id| Frame::Answer(ControlCall { id, wall_ns: 0, rpc }))
}

fn hello(node: u32) -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        cluster: CLUSTER,
        node: NodeId(node),
        incarnation: Incarnation(1),
        core: 0,
        nonce: [node as u8; NONCE_BYTES],
        workers: 0,
        data_link: None,
        more: Bytes::new(),
    }
}

fn bytes_of(frame: &Frame) -> BytesMut {
    let mut bytes = BytesMut::new();
    frame.encode(FrameBounds::default(), &mut bytes).expect("a good frame");
    bytes
}

/// A raw stream, to send bytes that no node would.
struct Raw {
    stream: TcpStream,
    input: BytesMut,
}

impl Raw {
    async fn connect(host: &Host) -> Self {
        let stream = TcpStream::connect(&host.address).await.expect("it listens");
        Self { stream, input: BytesMut::new() }
    }

    async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().await.expect("somebody comes");
        Self { stream, input: BytesMut::new() }
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("it is listened to");
    }

    /// Returns the next frame with its bytes; `None` at the end.
    async fn receive(&mut self) -> Option<(Frame, Bytes)> {
        loop {
            let bytes = frame_bytes(&self.input);
            if let DecodedFrame::Frame(frame) =
                decode(&mut self.input, FrameBounds::default()).expect("a good frame")
            {
                // A ping may arrive at any time.
                if !matches!(frame, Frame::Ping(_)) {
                    return Some((frame, bytes.expect("it was whole")));
                }
                continue;
            }
            if self.stream.read_buf(&mut self.input).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Exchanges the handshake, without a key.
    async fn exchange_handshake(&mut self, side: Side, node: u32) {
        let ours = bytes_of(&Frame::Hello(hello(node)));
        self.send(&ours).await;
        let Some((Frame::Hello(_), theirs)) = self.receive().await else { panic!("no hello") };
        let (connecting, accepting) = match side {
            Side::Connecting => (&ours[..], &theirs[..]),
            Side::Accepting => (&theirs[..], &ours[..]),
        };
        let proof = Proof::new(b"", side, connecting, accepting);
        self.send(&bytes_of(&Frame::Proof(proof))).await;
        assert!(matches!(self.receive().await, Some((Frame::Proof(_), _))));
    }
}

/// A runtime on its own thread, which can be killed with all its tasks.
struct Runtime {
    handle: tokio::runtime::Handle,
    end: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Runtime {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(ended);
        });
        Self { handle, end, thread }
    }

    /// Closes all sockets without a farewell, as when a process is killed.
    fn kill(self) {
        let _ = self.end.send(());
        self.thread.join().expect("nothing panicked");
    }
}
