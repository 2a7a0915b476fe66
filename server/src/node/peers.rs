//! What other nodes say to this one, and the control plane's way to them.
//!
//! Here: control frames from lanes to where they belong, calls and their answers. Not here: the lanes
//! themselves (`crate::lanes`), what comes over data links (`links`, `front`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::message::Frame;
use cluster::message::call::Call;
use control::{Called, Peers, Unreachable};
use engine::Nanos;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Node;
use super::copies::{Hands, Work, own_bytes};
use super::front::node_now;
use crate::lanes::{Ending, Event, Handler, Lane, NewDataLink, NoLink, Peer, Whom};
use crate::scratch::Scratch;
use crate::service::Service;

/// Clocks that differ by more are warned of.
const CLOCK_WARN_MS: i64 = 50;
/// A call that takes longer says nothing about clocks.
const CLOCK_CALL_NS_MAX: u64 = 100_000_000;
/// A link is told to be silent after this time; the default of `crate::lanes`.
const SILENT_NS: u64 = 300_000_000;

/// Calls that wait for their answers.
#[derive(Default)]
pub(super) struct Calls {
    last: u64,
    open: BTreeMap<u64, Open>,
}

/// One of them.
struct Open {
    whom: Whom,
    /// When it was sent, on our monotonic clock.
    sent_ns: u64,
    answer: oneshot::Sender<Result<Bytes, Unreachable>>,
}

impl Calls {
    fn open(
        &mut self,
        whom: Whom,
        sent_ns: u64,
    ) -> (u64, oneshot::Receiver<Result<Bytes, Unreachable>>) {
        let (answer, receiver) = oneshot::channel();
        self.last += 1;
        self.open.insert(self.last, Open { whom, sent_ns, answer });
        (self.last, receiver)
    }

    fn end(&mut self, id: u64, answer: Result<Bytes, Unreachable>) {
        if let Some(open) = self.open.remove(&id) {
            // Who does not wait any more has given up.
            let _ = open.answer.send(answer);
        }
    }

    pub(super) fn end_all(&mut self, whom: &Whom, why: Unreachable) {
        let ended: Vec<u64> =
            self.open.iter().filter(|(_, open)| open.whom == *whom).map(|(id, _)| *id).collect();
        for id in ended {
            self.end(id, Err(why));
        }
    }
}

/// Forgets a call that nobody waits for any more.
struct Waits {
    node: Arc<Node>,
    id: u64,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.node.calls.lock().open.remove(&self.id);
    }
}

/// What brings calls of the control plane to other nodes.
pub(super) struct Post(pub(super) Arc<Node>, pub(super) Arc<Service>);

impl Peers for Post {
    fn call(&self, to: Option<NodeId>, address: &str, rpc: Bytes, ttl: Duration) -> Called {
        let node = Arc::clone(&self.0);
        let Some(lanes) = node.lanes() else {
            return Box::pin(async { Err(Unreachable::Lost) });
        };
        let to = to.or_else(|| node.places.read().get(address).copied());
        if to.is_some_and(|to| to == node.me().0) {
            // Nobody there but ourselves.
            return Box::pin(async { Err(Unreachable::Lost) });
        }
        let (whom, lane) = match to {
            Some(to) => (Whom::Node(to), lanes.lane(to, address)),
            None => (Whom::Address(address.to_owned()), lanes.lane_at(address)),
        };
        let clock = self.1.clock();
        let sent = clock.now().mono;
        let wall_ns = clock.unix_ns(sent);
        let (id, receiver) = node.calls.lock().open(whom, sent.0);
        let frame = Frame::Call(Call { id, wall_ns, rpc });
        let sent = match to {
            Some(to) => node.ways.send_or(node.me().0, to, &lane, frame),
            None => lane.send(frame),
        };
        let waits = Waits { node, id };
        Box::pin(async move {
            let _waits = waits;
            if sent.is_err() {
                return Err(Unreachable::Lost);
            }
            match tokio::time::timeout(ttl, receiver).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(Unreachable::Lost),
                Err(_) => Err(Unreachable::Late),
            }
        })
    }
}

/// How many milliseconds one wall clock is ahead of another.
fn ahead_ms(one_ns: u64, other_ns: u64) -> i64 {
    let ahead_ns = i128::from(one_ns) - i128::from(other_ns);
    i64::try_from(ahead_ns / 1_000_000).unwrap_or_default()
}

/// The wall clock as it is, right or not.
fn wall_ns(service: &Service) -> u64 {
    let clock = service.clock();
    clock.unix_ns(clock.now().mono)
}

/// Takes what comes over lanes.
pub(super) struct Reception {
    service: Arc<Service>,
    node: Arc<Node>,
    memory: Mutex<(Scratch, Work)>,
}

impl Reception {
    pub(super) fn new(service: Arc<Service>, node: Arc<Node>) -> Self {
        Self { service, node, memory: Mutex::default() }
    }

    /// Runs `work` with what it takes to work on copies, as none of the workers.
    pub(super) fn with_hands(&self, work: impl FnOnce(&mut Hands<'_>)) {
        let number = self.service.config().threads;
        let in_force = self.service.limits().load();
        let mut memory = self.memory.lock();
        let (scratch, buffers) = &mut *memory;
        work(&mut Hands {
            service: &self.service,
            node: &self.node,
            now: node_now(self.service.clock(), self.service.clock().now()),
            contact: self.node.last_contact(),
            counters: self.service.counters(number),
            in_force: &in_force,
            worker: number,
            scratch,
            work: buffers,
        });
        buffers.touched.flush(self.now_ns());
    }

    /// The answer was given about in the middle of the time that the call took.
    fn note_clock(&self, from: NodeId, answer: &Call) {
        let sent = self.node.calls.lock().open.get(&answer.id).map(|open| open.sent_ns);
        let Some(sent_ns) = sent else { return };
        let clock = self.service.clock();
        let now_ns = clock.now().mono.0;
        let took_ns = now_ns.saturating_sub(sent_ns);
        if took_ns > CLOCK_CALL_NS_MAX {
            // What took so long tells little.
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
            tracing::warn!(node = %from, ahead_ms, "the clocks of two nodes differ");
        }
    }

    /// A call that comes says at least how far its sender's clock is ahead.
    fn hear_clock(&self, from: NodeId, call: &Call) {
        let now = self.service.clock().now().mono;
        let ahead_ms = ahead_ms(call.wall_ns, self.service.clock().unix_ns(now));
        self.node.clocks.lock().hear(from, ahead_ms, now.0);
    }

    fn answer(&self, source: Source<'_>, call: Call) {
        let Some(control) = self.node.control().cloned() else { return };
        let way = source.way_back(self.node.me().0);
        let service = Arc::clone(&self.service);
        tokio::spawn(async move {
            let rpc = control.handle(own_bytes(&call.rpc)).await;
            let wall_ns = wall_ns(&service);
            // Who hears nothing asks again.
            way.send(Frame::Answer(Call { id: call.id, wall_ns, rpc }));
        });
    }

    /// A frame that came over a link, or over two.
    fn frame(&self, source: Source<'_>, frame: Frame) {
        let node = &*self.node;
        match frame {
            Frame::Call(call) => {
                self.hear_clock(source.node, &call);
                self.answer(source, call);
            }
            Frame::Answer(call) => {
                if !source.is_relayed() {
                    self.note_clock(source.node, &call);
                }
                node.calls.lock().end(call.id, Ok(own_bytes(&call.rpc)));
            }
            // Signs of life on a link are asked for and given there.
            Frame::Ping(number) if source.is_relayed() => {
                source.way_back(node.me().0).send(Frame::Pong(number));
            }
            Frame::Pong(number) if source.is_relayed() => {
                let relay = source.peer.node;
                node.note_reach(self.now_ns(), None, |reach| {
                    reach.answered(source.node, relay, number);
                });
            }
            Frame::Tunnel(piece) if source.is_relayed() && source.is_known => {
                node.hear_tunnel(source.node, &source.peer.lane, piece);
            }
            Frame::Relay { from, to, frame } if source.is_known => {
                self.relayed(source, from, to, frame);
            }
            _ => {}
        }
    }

    /// A frame on its second link is for this node; one on its first is to be passed on.
    fn relayed(&self, source: Source<'_>, from: NodeId, to: NodeId, frame: Box<Frame>) {
        if to == self.node.me().0 {
            if from != to && self.node.ways.contains(from) {
                self.frame(Source { node: from, ..source }, *frame);
            }
        } else if from == source.node {
            self.node.ways.pass_on(from, to, frame);
        }
    }
}

/// Who says something.
#[derive(Clone, Copy)]
struct Source<'a> {
    /// Who it is from.
    node: NodeId,
    /// The other side of the link that it came over.
    peer: &'a Peer,
    /// The map has the node that it is from.
    is_known: bool,
}

/// The way back to who says something: over the same links.
struct WayBack {
    lane: Lane,
    /// From whom, and to whom, where another node passes it on.
    relayed: Option<(NodeId, NodeId)>,
}

impl Source<'_> {
    fn is_relayed(&self) -> bool {
        self.node != self.peer.node
    }

    fn way_back(&self, me: NodeId) -> WayBack {
        let relayed = self.is_relayed().then_some((me, self.node));
        WayBack { lane: self.peer.lane.clone(), relayed }
    }
}

impl WayBack {
    /// Who hears nothing asks again.
    fn send(&self, frame: Frame) {
        let frame = match self.relayed {
            Some((from, to)) => Frame::Relay { from, to, frame: Box::new(frame) },
            None => frame,
        };
        let _ = self.lane.send(frame);
    }
}

impl Handler for Reception {
    fn now_ns(&self) -> u64 {
        self.service.clock().now().mono.0
    }

    fn frames(&self, from: &Peer, frames: &mut Vec<Frame>) {
        let node = &*self.node;
        // What a node says that the cluster does not know, or knows no more, is not for copies.
        let source =
            Source { node: from.node, peer: from, is_known: node.ways.contains(from.node) };
        for frame in frames.drain(..) {
            self.frame(source, frame);
        }
    }

    fn data_link(&self, link: NewDataLink) {
        self.node.take_data_link(link);
    }

    fn link(&self, event: Event) {
        self.note_link(&event);
        if let Event::Failed { address, why, .. } = &event {
            self.node.note_refusal(address, why);
        }
        let (whom, why) = match event {
            Event::Up(_) | Event::Opening(_) | Event::Silent(_) | Event::Heard(_) => return,
            Event::Down(peer, Ending::Silent) => (Whom::Node(peer.node), Unreachable::Late),
            Event::Down(peer, _) => (Whom::Node(peer.node), Unreachable::Lost),
            Event::Failed { whom, why: NoLink::Refused, .. } => (whom, Unreachable::Refused),
            Event::Failed { whom, why: NoLink::Late, .. } => (whom, Unreachable::Late),
            Event::Failed { whom, .. } => (whom, Unreachable::Lost),
        };
        let Whom::Node(lost) = whom else { return self.node.calls.lock().end_all(&whom, why) };
        if self.node.ways.is_relayed(lost) {
            // Nothing of it went over that link.
            return;
        }
        if let Some(control) = self.node.control().cloned()
            && !matches!(why, Unreachable::Late)
            && lost != NodeId::default()
        {
            tokio::spawn(async move { control.suspect(lost).await });
        }
        self.node.lose(lost, why);
    }
}

impl Reception {
    /// What an event says of who is in reach. What this node sends goes over links that it opens: one that
    /// the peer opened says no more than that it lives.
    fn note_link(&self, event: &Event) {
        let now_ns = self.now_ns();
        let known = |node: NodeId| Some(node).filter(|node| *node != NodeId::default());
        if let Event::Up(peer) = event
            && !peer.is_dialled
            && let Some(node) = known(peer.node)
        {
            return self.node.note_reach(now_ns, None, |reach| reach.lives(node, now_ns));
        }
        let dialled = |peer: &Peer| known(peer.node).filter(|_| peer.is_dialled);
        let Some(node) = (match event {
            Event::Opening(Whom::Node(node)) | Event::Failed { whom: Whom::Node(node), .. } => {
                known(*node)
            }
            Event::Opening(_) | Event::Failed { .. } => None,
            Event::Up(peer) | Event::Silent(peer) | Event::Heard(peer) | Event::Down(peer, _) => {
                dialled(peer)
            }
        }) else {
            return;
        };
        self.node.note_reach(now_ns, None, |reach| match event {
            Event::Opening(_) => reach.opening(node, now_ns),
            Event::Up(_) | Event::Heard(_) => reach.heard(node),
            Event::Silent(_) => reach.broken(node, now_ns, SILENT_NS),
            Event::Down(_, Ending::Silent | Ending::Stalled) | Event::Failed { .. } => {
                reach.broken(node, now_ns, 0);
            }
            Event::Down(..) => reach.down(node),
        });
    }
}
