//! Control frames of other nodes, and the control plane's calls to them.
//!
//! Here: delivering control frames to their destination. `calls`: the calls that wait for answers.
//! `link_loss`: the effect of a lost link on them. Not here: the links that carry the frames
//! (`crate::transport`), frames of data links (`links`, `router`).

mod calls;
mod link_loss;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::{Incarnation, NodeId};
use cluster::message::Frame;
use cluster::message::control::ControlCall;
use control::{CallFuture, ControlTransport, NodeIdentity, Unreachable};
use engine::Nanos;
use parking_lot::Mutex;

use super::Node;
use super::replicas::{ReplicaContext, ReplicaScratch, own_bytes};
use super::router::node_now;
use crate::commands::scratch::Scratch;
use crate::runtime::service::Service;
use crate::transport::{
    FrameHandler, LinkEnd, LinkEvent, NewDataLink, PeerAddr, PeerIdentity, PeerSender, RemotePeer,
};
pub(super) use calls::{CallGuard, PendingCalls};
use link_loss::LinkLoss;

/// A larger difference between two clocks is logged.
const CLOCK_WARN_MS: i64 = 50;
/// A call that takes longer does not measure clocks.
const CLOCK_CALL_NS_MAX: u64 = 100_000_000;
/// A link is reported as silent after this time; the default of `crate::transport`.
const SILENT_NS: u64 = 300_000_000;

/// Carries the control plane's calls to other nodes.
pub(super) struct PeerClient(pub(super) Arc<Node>, pub(super) Arc<Service>);

impl ControlTransport for PeerClient {
    fn call(&self, to: Option<NodeId>, address: &str, rpc: Bytes, ttl: Duration) -> CallFuture {
        let node = Arc::clone(&self.0);
        let Some(transport) = node.transport() else {
            return Box::pin(async { Err(Unreachable::NotSent) });
        };
        let to = to.or_else(|| node.places.read().get(address).copied());
        if to.is_some_and(|to| to == node.me().0) {
            // The address is this node's own.
            return Box::pin(async { Err(Unreachable::NotSent) });
        }
        let (peer_addr, sender) = match to {
            Some(to) => (PeerAddr::Node(to), transport.sender(to, address)),
            None => (PeerAddr::Address(address.to_owned()), transport.sender_at(address)),
        };
        let clock = self.1.clock();
        let sent = clock.now().mono;
        let wall_ns = clock.unix_ns(sent);
        let (id, receiver) = node.calls.lock().open(peer_addr, sent.0);
        let frame = Frame::Call(ControlCall { id, wall_ns, rpc });
        let sent = match to {
            Some(to) => node.paths.send_or(node.me().0, to, &sender, frame),
            None => sender.send(frame),
        };
        let waits = CallGuard::new(node, id);
        Box::pin(async move {
            let _waits = waits;
            if sent.is_err() {
                return Err(Unreachable::NotSent);
            }
            match tokio::time::timeout(ttl, receiver).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(Unreachable::Lost),
                Err(_) => Err(Unreachable::Late),
            }
        })
    }

    fn identify(&self, identity: NodeIdentity) {
        let Some(transport) = self.0.transport() else { return };
        let (cluster, node, incarnation) = match identity.membership {
            Some(membership) => (membership.cluster, membership.node, identity.incarnation),
            // All nodes that seek a cluster have id 0. Their uuids, in place of incarnations,
            // distinguish them, so that a link of one does not end that of another.
            None => (0, NodeId::default(), Incarnation(identity.node_uuid as u64)),
        };
        transport.identify(PeerIdentity { cluster, node, incarnation, core: 0 });
    }
}

/// The milliseconds by which one wall clock is ahead of another.
fn ahead_ms(one_ns: u64, other_ns: u64) -> i64 {
    let ahead_ns = i128::from(one_ns) - i128::from(other_ns);
    i64::try_from(ahead_ns / 1_000_000).unwrap_or_default()
}

/// The wall clock, uncorrected.
fn wall_ns(service: &Service) -> u64 {
    let clock = service.clock();
    clock.unix_ns(clock.now().mono)
}

/// Handles the frames and events of control links.
pub(super) struct PeerHandler {
    service: Arc<Service>,
    node: Arc<Node>,
    memory: Mutex<(Scratch, ReplicaScratch)>,
}

impl PeerHandler {
    pub(super) fn new(service: Arc<Service>, node: Arc<Node>) -> Self {
        Self { service, node, memory: Mutex::default() }
    }

    /// Runs `work` with a replica context that belongs to no worker.
    pub(super) fn with_replica_context(&self, work: impl FnOnce(&mut ReplicaContext<'_>)) {
        let index = self.service.config().threads;
        let active_limits = self.service.limits().load();
        let mut memory = self.memory.lock();
        let (scratch, buffers) = &mut *memory;
        work(&mut ReplicaContext {
            service: &self.service,
            node: &self.node,
            now: node_now(self.service.clock(), self.service.clock().now()),
            contact: self.node.last_contact(),
            counters: self.service.counters(index),
            active_limits: &active_limits,
            worker: index,
            scratch,
            replica_scratch: buffers,
        });
        buffers.touched.flush(self.now_ns());
    }

    /// Measures a clock by the answer to a call. The peer is taken to have read its clock in the
    /// middle of the call.
    fn note_clock(&self, from: NodeId, answer: &ControlCall) {
        let Some(sent_ns) = self.node.calls.lock().sent_ns(answer.id) else { return };
        let clock = self.service.clock();
        let now_ns = clock.now().mono.0;
        let took_ns = now_ns.saturating_sub(sent_ns);
        if took_ns > CLOCK_CALL_NS_MAX {
            // The middle is too uncertain.
            return;
        }
        let middle_ns = clock.unix_ns(Nanos(sent_ns + took_ns / 2));
        let ahead_ms = ahead_ms(answer.wall_ns, middle_ns);
        let mut clocks = self.node.clocks.lock();
        let before = clocks.ahead_ms(from, now_ns);
        clocks.measure(from, ahead_ms, now_ns);
        drop(clocks);
        let is_far = |offset: i64| offset.abs() > CLOCK_WARN_MS;
        if is_far(ahead_ms) && !before.is_some_and(is_far) {
            tracing::warn!(
                node = %from,
                ahead_ms,
                "the clock of the node differs from this node's: check time synchronization on both"
            );
        }
    }

    /// Records the timestamp of a call: the sender's clock is at least that far ahead.
    fn record_clock(&self, from: NodeId, call: &ControlCall) {
        let now = self.service.clock().now().mono;
        let ahead_ms = ahead_ms(call.wall_ns, self.service.clock().unix_ns(now));
        self.node.clocks.lock().record(from, ahead_ms, now.0);
    }

    fn answer(&self, source: CallSource<'_>, call: ControlCall) {
        let Some(control) = self.node.control().cloned() else { return };
        let way = source.return_path(self.node.me().0);
        let service = Arc::clone(&self.service);
        tokio::spawn(async move {
            let rpc = control.handle(own_bytes(&call.rpc)).await;
            let wall_ns = wall_ns(&service);
            // If the answer is lost, the caller asks again.
            way.send(Frame::Answer(ControlCall { id: call.id, wall_ns, rpc }));
        });
    }

    /// Handles a frame that came directly or through a relay.
    fn frame(&self, source: CallSource<'_>, frame: Frame) {
        let node = &*self.node;
        match frame {
            Frame::Call(call) => {
                self.record_clock(source.node, &call);
                self.answer(source, call);
            }
            Frame::Answer(call) => {
                if !source.is_relayed() {
                    self.note_clock(source.node, &call);
                }
                node.calls.lock().end(call.id, Ok(own_bytes(&call.rpc)));
            }
            Frame::Query(query) if source.is_known => {
                let way = source.return_path(node.me().0);
                node.answer_query(&query, move |reply| way.send(Frame::QueryReply(reply)));
            }
            Frame::QueryReply(reply) if source.is_known => {
                node.calls.lock().end(reply.id, Ok(own_bytes(&reply.body)));
            }
            // The transport sends and answers the pings of its own links.
            Frame::Ping(number) if source.is_relayed() => {
                source.return_path(node.me().0).send(Frame::Pong(number));
            }
            Frame::Pong(number) if source.is_relayed() => {
                let relay = source.peer.node;
                node.update_reachability(self.now_ns(), None, |reach| {
                    reach.answered(source.node, relay, number);
                });
            }
            Frame::Tunnel(frame) if source.is_relayed() && source.is_known => {
                node.on_tunnel(source.node, &source.peer.sender, frame);
            }
            Frame::Relay { from, to, frame } if source.is_known => {
                self.relayed(source, from, to, frame);
            }
            _ => {}
        }
    }

    /// Handles a relayed frame: one on its second link is for this node, one on its first is passed
    /// on.
    fn relayed(&self, source: CallSource<'_>, from: NodeId, to: NodeId, frame: Box<Frame>) {
        if to == self.node.me().0 {
            if from != to && self.node.paths.contains(from) {
                self.frame(CallSource { node: from, ..source }, *frame);
            }
        } else if from == source.node {
            self.node.paths.pass_on(from, to, frame);
        }
    }
}

/// The source of a frame.
#[derive(Clone, Copy)]
struct CallSource<'a> {
    /// The node that sent the frame.
    node: NodeId,
    /// The peer of the link that delivered it.
    peer: &'a RemotePeer,
    /// The map contains the peer.
    is_known: bool,
}

/// The path for answers to a source: over the same links.
struct ReturnPath {
    sender: PeerSender,
    /// The sending and receiving nodes, if a relay passes the frames on.
    relayed: Option<(NodeId, NodeId)>,
}

impl CallSource<'_> {
    fn is_relayed(&self) -> bool {
        self.node != self.peer.node
    }

    fn return_path(&self, me: NodeId) -> ReturnPath {
        let relayed = self.is_relayed().then_some((me, self.node));
        ReturnPath { sender: self.peer.sender.clone(), relayed }
    }
}

impl ReturnPath {
    /// Sends a frame. If it is lost, the peer asks again.
    fn send(&self, frame: Frame) {
        let frame = match self.relayed {
            Some((from, to)) => Frame::Relay { from, to, frame: Box::new(frame) },
            None => frame,
        };
        let _ = self.sender.send(frame);
    }
}

impl FrameHandler for PeerHandler {
    fn now_ns(&self) -> u64 {
        self.service.clock().now().mono.0
    }

    fn frames(&self, from: &RemotePeer, frames: &mut Vec<Frame>) {
        let node = &*self.node;
        // Replicas ignore the frames of a node that the map does not contain, or no longer
        // contains.
        let source =
            CallSource { node: from.node, peer: from, is_known: node.paths.contains(from.node) };
        for frame in frames.drain(..) {
            self.frame(source, frame);
        }
    }

    fn data_link(&self, link: NewDataLink) {
        self.node.take_data_link(link);
    }

    fn link(&self, event: LinkEvent) {
        self.note_link(&event);
        if let LinkEvent::Failed { address, why, .. } = &event {
            self.node.note_refusal(address, why);
        }
        let Some(LinkLoss { peer_addr, why, ends_calls, is_suspicious }) = LinkLoss::of(event)
        else {
            return;
        };
        let PeerAddr::Node(lost) = peer_addr else {
            return self.node.calls.lock().end_all(&peer_addr, why);
        };
        if self.node.paths.is_relayed(lost) {
            // No call to the node went over this link.
            return;
        }
        if let Some(control) = self.node.control().cloned()
            && is_suspicious
            && lost != NodeId::default()
        {
            tokio::spawn(async move { control.suspect(lost).await });
        }
        if ends_calls {
            self.node.fail_calls(lost, why);
        }
    }
}

impl PeerHandler {
    /// Updates reachability by a link event. This node sends over links that it dialled; a link
    /// that the peer dialled shows only that the peer is alive.
    fn note_link(&self, event: &LinkEvent) {
        let now_ns = self.now_ns();
        let known = |node: NodeId| Some(node).filter(|node| *node != NodeId::default());
        if let LinkEvent::Up(peer) = event
            && !peer.is_dialled
            && let Some(node) = known(peer.node)
        {
            return self
                .node
                .update_reachability(now_ns, None, |reach| reach.note_alive(node, now_ns));
        }
        let dialled = |peer: &RemotePeer| known(peer.node).filter(|_| peer.is_dialled);
        let Some(node) = (match event {
            LinkEvent::Opening(PeerAddr::Node(node))
            | LinkEvent::Failed { peer: PeerAddr::Node(node), .. } => known(*node),
            LinkEvent::Opening(_) | LinkEvent::Failed { .. } => None,
            LinkEvent::Up(peer)
            | LinkEvent::Silent(peer)
            | LinkEvent::Heard(peer)
            | LinkEvent::Down(peer, _) => dialled(peer),
        }) else {
            return;
        };
        self.node.update_reachability(now_ns, None, |reach| match event {
            LinkEvent::Opening(_) => reach.opening(node, now_ns),
            LinkEvent::Up(_) | LinkEvent::Heard(_) => reach.link_up(node),
            LinkEvent::Silent(_) => reach.broken(node, now_ns, SILENT_NS),
            LinkEvent::Down(_, LinkEnd::Silent | LinkEnd::Stalled) | LinkEvent::Failed { .. } => {
                reach.broken(node, now_ns, 0);
            }
            LinkEvent::Down(..) => reach.down(node),
        });
    }
}
