//! The end of links, and their return.

use cluster::message::handshake::CloseReason;
use tollgate::transport::{LinkEnd, Shed};

use super::*;

/// A node that can be killed.
struct Mortal {
    runtime: Runtime,
    host: Host,
}

impl Mortal {
    fn born(address: &str, incarnation: u64) -> Self {
        let runtime = Runtime::new();
        let identity = PeerIdentity { incarnation: Incarnation(incarnation), ..identity(2) };
        let options = TransportOptions::new(identity, PeerSecurity::Insecure);
        let host = {
            let _context = runtime.handle.enter();
            Host::at(address, options, Node::new(true))
        };
        Self { runtime, host }
    }

    fn kill(self) {
        self.runtime.kill();
    }
}

#[tokio::test]
async fn a_killed_peer_is_noticed_and_found_again() {
    let a = Host::new(1);
    let b = Mortal::born("127.0.0.1:0", 1);
    let address = b.host.address.clone();
    let sender = a.to(2, &b.host);
    sender.send(op(1)).expect("there is room");
    until("it is answered", || a.node.replies() == 1).await;
    let since = Instant::now();
    b.kill();
    // Nothing is sent: the broken link alone triggers the check.
    assert_eq!(a.node.failure().await, LinkError::Refused);
    println!("a killed peer was noticed after {:?}", since.elapsed());
    assert!(a.node.has_event(
        |event| matches!(event, LinkEvent::Down(peer, LinkEnd::Lost(_)) if peer.node == NodeId(2))
    ));

    let b = Mortal::born(&address, 2);
    let mut seq = 1;
    let answered = || a.node.replies() > 1;
    while !answered() {
        seq += 1;
        // Dropped while there is no link: a sender that needs an answer sends again.
        sender.send(op(seq)).expect("there is room");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reborn = |event: &LinkEvent| matches!(event, LinkEvent::Up(peer) if peer.incarnation == Incarnation(2));
    assert!(a.node.has_event(reborn));
    assert_eq!(a.metrics(2).links, 2);
    b.kill();
}

#[tokio::test]
async fn a_probe_finds_whether_a_peer_listens() {
    let (a, b) = (Host::new(1), Host::new(2));
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gone = nobody.local_addr().expect("it is bound").to_string();
    drop(nobody);
    let _senders = (a.to(2, &b), a.transport.sender(NodeId(3), &gone));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(a.node.events.lock().is_empty(), "no link without need");
    a.transport.probe(&PeerAddr::Node(NodeId(2)));
    until("the link is up", || a.node.is_up()).await;
    a.transport.probe(&PeerAddr::Node(NodeId(3)));
    assert_eq!(a.node.failure().await, LinkError::Refused);
}

#[tokio::test]
async fn a_bad_frame_ends_its_link_with_a_farewell() {
    let (a, b) = (Host::new(1), Host::new(2));
    a.to(2, &b).send(op(1)).expect("there is room");
    let mut raw = Raw::connect(&b).await;
    raw.exchange_handshake(Side::Connecting, 9).await;
    let mut wire = bytes_of(&op(1));
    wire.extend([3, 0, 0, 0, 99, 0, 0]);
    raw.send(&wire).await;
    let mut said = Vec::new();
    while let Some((frame, _)) = raw.receive().await {
        said.push(frame);
    }
    assert!(matches!(said.last(), Some(Frame::Farewell(CloseReason::BadFrame))), "{said:?}");
    assert_eq!(b.node.ops_from(9), [1], "what came before is good");
    let fault = |event: &LinkEvent| matches!(event, LinkEvent::Down(peer, LinkEnd::Fault(_)) if peer.node == NodeId(9));
    until("it is told", || b.node.has_event(fault)).await;
    until("others go on", || a.node.replies() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_link_without_work_is_closed_and_opened_again() {
    let (a, b) = (Host::new(1), Host::new(2));
    let sender = a.to(2, &b);
    sender.send(op(1)).expect("there is room");
    until("it is here", || a.node.replies() == 1).await;
    tokio::time::sleep(Duration::from_secs(70)).await;
    let idle = |event: &LinkEvent| {
        matches!(
            event,
            LinkEvent::Down(
                _,
                LinkEnd::Ours(CloseReason::Idle) | LinkEnd::Theirs(CloseReason::Idle)
            )
        )
    };
    until("both closed it", || a.node.has_event(idle) && b.node.has_event(idle)).await;
    sender.send(op(2)).expect("there is room");
    until("it is here", || b.node.ops_from(1) == [1, 2]).await;
    assert_eq!(a.metrics(2).links, 2);
}

#[tokio::test]
async fn a_node_that_stops_writes_what_waits_and_says_so() {
    let (a, b) = (Host::new(1), Host::new(2));
    let sender = a.to(2, &b);
    sender.send(op(1)).expect("there is room");
    until("it is answered", || a.node.replies() == 1).await;
    for seq in 2..=5000 {
        sender.send(op(seq)).expect("fewer than the window");
    }
    a.transport.stop().await;
    assert_eq!(sender.send(op(5001)), Err(Shed::Gone));
    let stopping = |event: &LinkEvent| {
        matches!(event, LinkEvent::Down(_, LinkEnd::Theirs(CloseReason::ShuttingDown)))
    };
    until("it is told", || b.node.has_event(stopping)).await;
    assert!(b.node.ops_from(1).into_iter().eq(1..=5000));
}

#[tokio::test]
async fn a_peer_that_moved_gets_a_new_link() {
    let (a, b, c) = (Host::new(1), Host::new(2), Host::new(2));
    let sender = a.to(2, &b);
    sender.send(op(1)).expect("there is room");
    until("it is here", || b.node.ops_from(1) == [1]).await;
    let moved = a.to(2, &c);
    assert_eq!(sender.send(op(2)), Err(Shed::Gone));
    moved.send(op(3)).expect("there is room");
    until("it is there", || c.node.ops_from(1) == [3]).await;
    until("the old link is gone", || {
        b.node.has_event(|event| {
            matches!(event, LinkEvent::Down(_, LinkEnd::Theirs(CloseReason::Idle)))
        })
    })
    .await;
}
