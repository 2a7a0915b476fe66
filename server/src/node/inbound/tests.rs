//! Lost links: which calls end, and which processes are suspected.

use cluster::message::handshake::CloseReason;
use tokio::sync::oneshot::error::TryRecvError;
use tollgate_limits::Limits;

use super::*;
use crate::transport::{LinkError, PeerSecurity, Transport, TransportOptions};

const PEER: NodeId = NodeId(2);
const IDLE: [LinkEnd; 2] = [LinkEnd::Ours(CloseReason::Idle), LinkEnd::Theirs(CloseReason::Idle)];
/// The end of a link whose process was killed.
const CUT: LinkEnd = LinkEnd::Lost(std::io::ErrorKind::UnexpectedEof);

struct World {
    node: Arc<Node>,
    handler: Arc<PeerHandler>,
    transport: Transport,
}

impl World {
    fn new() -> Self {
        let flags = ["--seeds=127.0.0.1:1", "--insecure"];
        let service = Arc::new(Service::of_flags(&flags, Limits::default()));
        let node = Node::of(&service).expect("it has a cluster");
        let handler = Arc::new(PeerHandler::new(service, Arc::clone(&node)));
        let identity =
            PeerIdentity { cluster: 1, node: NodeId(1), incarnation: Incarnation(1), core: 0 };
        let options = TransportOptions::new(identity, PeerSecurity::Insecure);
        let transport = Transport::start(options, Vec::new(), Arc::clone(&handler) as _);
        Self { node, handler, transport: transport.expect("it has no listener") }
    }

    fn peer(&self, is_dialled: bool) -> RemotePeer {
        RemotePeer {
            node: PEER,
            incarnation: Incarnation(1),
            core: 0,
            cluster: 1,
            version: 1,
            link: 1,
            is_dialled,
            sender: self.transport.sender(PEER, "127.0.0.1:1"),
        }
    }

    /// Returns the result of a call to the peer when a link to it ends; `None` if it still waits.
    fn end_of_call(&self, is_dialled: bool, end: LinkEnd) -> Option<Unreachable> {
        let (id, mut receiver) = self.node.calls.lock().open(PeerAddr::Node(PEER), 0);
        let _waits = CallGuard::new(Arc::clone(&self.node), id);
        self.handler.link(LinkEvent::Down(self.peer(is_dialled), end));
        match receiver.try_recv() {
            Ok(result) => Some(result.expect_err("no frame answers it")),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => panic!("the call is lost without a result"),
        }
    }
}

#[tokio::test]
async fn end_of_inbound_link_leaves_calls_open() {
    let world = World::new();
    for end in IDLE.into_iter().chain([CUT, LinkEnd::Replaced, LinkEnd::Stalled]) {
        assert_eq!(world.end_of_call(false, end), None, "{end:?}");
    }
}

#[tokio::test]
async fn calls_end_with_the_dialled_link() {
    let world = World::new();
    for (end, expected) in [
        (CUT, Some(Unreachable::Lost)),
        (LinkEnd::Stalled, Some(Unreachable::Lost)),
        (LinkEnd::Theirs(CloseReason::ShuttingDown), Some(Unreachable::Lost)),
        (LinkEnd::Silent, Some(Unreachable::Late)),
        // The link of a seed's address, which is closed once the node has joined.
        (LinkEnd::Ours(CloseReason::Idle), None),
        (LinkEnd::Theirs(CloseReason::Idle), None),
    ] {
        assert_eq!(world.end_of_call(true, end), expected, "{end:?}");
    }
}

#[tokio::test]
async fn orderly_end_raises_no_suspicion() {
    let world = World::new();
    let is_suspicious = |is_dialled, end| {
        LinkLoss::of(LinkEvent::Down(world.peer(is_dialled), end)).expect("a loss").is_suspicious
    };
    for is_dialled in [false, true] {
        assert!(is_suspicious(is_dialled, CUT), "the process may be gone");
        assert!(is_suspicious(is_dialled, LinkEnd::Theirs(CloseReason::ShuttingDown)));
        assert!(!is_suspicious(is_dialled, LinkEnd::Silent));
        assert!(!is_suspicious(is_dialled, LinkEnd::Replaced));
        for end in IDLE {
            assert!(!is_suspicious(is_dialled, end), "{end:?}");
        }
    }
    let refused = LinkEvent::Failed {
        peer: PeerAddr::Node(PEER),
        address: "127.0.0.1:1".to_owned(),
        why: LinkError::Refused,
    };
    let why = Unreachable::Refused;
    let peer_addr = PeerAddr::Node(PEER);
    let expected = LinkLoss { peer_addr, why, ends_calls: true, is_suspicious: true };
    assert_eq!(LinkLoss::of(refused), Some(expected));
}

#[tokio::test]
async fn call_without_a_path_is_not_sent() {
    let world = World::new();
    let client = PeerClient(Arc::clone(&world.node), Arc::clone(&world.handler.service));
    let call = client.call(Some(PEER), "127.0.0.1:1", Bytes::new(), Duration::from_secs(1));
    assert_eq!(call.await, Err(Unreachable::NotSent), "the node has no transport yet");
}
