//! Data links: the connections over which workers of two nodes exchange frames about partitions.
//!
//! Here: which frame goes over which link, what becomes of a link for the node. In `transport` one link:
//! bytes out and signs of life; in `worker` the links that a worker reads; in `dial` opening them. Not
//! here: the handshake (`crate::lanes`), the path to a node (`ways`), what a frame does (`peers`).
//!
//! Two nodes have as many links as the greater number of their workers. Worker `index % workers` reads a link
//! at either end; any thread writes. An operation, and the reply to it, go over the link of the session's
//! worker, so that the worker that waits reads the reply; frames between copies go over the link of their
//! partition. So all frames that need an order go over one link. While a link is down or silent its frames go
//! over the node's lane.

mod dial;
mod transport;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use cluster::id::NodeId;
use cluster::message::hello::{DATA_LINKS_MAX, data_links};
use cluster::message::{Bounds, Frame};
use tokio::sync::Notify;

use super::{Inbound, Node};
use crate::lanes::{Class, NewDataLink, Timing};
pub(super) use dial::keep;
pub(crate) use transport::NotAppended;
use transport::Transport;
pub(crate) use worker::WorkerLinks;

/// Frames of a class are refused while this many bytes wait in the output of a link. Answers have most room:
/// their senders have done the work already.
const fn output_bytes_max(class: Class) -> usize {
    match class {
        Class::Forward => 4 << 20,
        Class::Copy => 8 << 20,
        Class::Answer | Class::Control => 16 << 20,
    }
}

/// All data links to one node.
#[derive(Debug)]
pub(crate) struct DataLinks {
    peer: NodeId,
    address: String,
    bounds: Bounds,
    timing: Timing,
    /// The number of links; 0 until a handshake has told the peer's number of workers.
    count: AtomicU16,
    links: Box<[Arc<DataLink>]>,
    /// The map has no such node at this address any more.
    is_forgotten: AtomicBool,
    /// Notified when a link goes down.
    down: Notify,
}

/// One of them.
#[derive(Debug, Default)]
pub(crate) struct DataLink {
    index: u16,
    transport: Transport,
    /// The number of the connection that a worker has or is to take over, if this side opened it.
    handed: AtomicU64,
}

/// Links with output that this thread has to flush.
#[derive(Debug, Default)]
pub(crate) struct Touched(Vec<Arc<DataLink>>);

impl Touched {
    fn add(&mut self, link: &Arc<DataLink>) {
        if !self.0.iter().any(|known| Arc::ptr_eq(known, link)) {
            self.0.push(Arc::clone(link));
        }
    }

    /// Sends the output of these links. Called once a round, without locks.
    pub(crate) fn flush(&mut self) {
        for link in self.0.drain(..) {
            link.transport.flush();
        }
    }
}

/// A connection on its way to the worker that takes it over.
#[derive(Debug)]
pub(crate) struct Arrival {
    links: Arc<DataLinks>,
    link: Arc<DataLink>,
    connection: NewDataLink,
}

impl DataLinks {
    pub(super) fn new(peer: NodeId, address: &str, bounds: Bounds, timing: Timing) -> Self {
        let link = |index| Arc::new(DataLink { index, ..DataLink::default() });
        Self {
            peer,
            address: address.to_owned(),
            bounds,
            timing,
            count: AtomicU16::new(0),
            links: (0..DATA_LINKS_MAX).map(link).collect(),
            is_forgotten: AtomicBool::new(false),
            down: Notify::new(),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// No more connections are opened.
    pub(super) fn forget(&self) {
        self.is_forgotten.store(true, Ordering::Relaxed);
        self.down.notify_one();
    }

    /// The links that are in use.
    fn used(&self) -> &[Arc<DataLink>] {
        &self.links[..usize::from(self.count.load(Ordering::Acquire))]
    }

    /// The link of a frame, if it goes over one.
    fn link_of(&self, frame: &Frame) -> Option<&Arc<DataLink>> {
        let number = match frame {
            Frame::Op { op, .. } => op.session.core,
            Frame::Settle { session, .. } => session.core,
            Frame::Reply { to, .. } => to.core,
            Frame::Copy { partition, .. } => partition.0,
            _ => return None,
        };
        let used = self.used();
        used.get(usize::from(number).checked_rem(used.len())?)
    }

    /// Appends a frame to the output of its link.
    ///
    /// # Errors
    ///
    /// The frame was not appended.
    pub(super) fn send(
        &self,
        frame: &Frame,
        now_ns: u64,
        touched: &mut Touched,
    ) -> Result<(), NotAppended> {
        let link = self.link_of(frame).ok_or(NotAppended::Down)?;
        let most = output_bytes_max(Class::of(frame));
        link.transport.lock().append(frame, most, now_ns, self.bounds)?;
        touched.add(link);
        Ok(())
    }

    /// Appends the frames of one session under one lock, and leaves those that were not appended.
    ///
    /// # Errors
    ///
    /// The reason of the last one that was not.
    pub(super) fn send_all(
        &self,
        frames: &mut Vec<Frame>,
        now_ns: u64,
        touched: &mut Touched,
    ) -> Result<(), NotAppended> {
        let Some(first) = frames.first() else { return Ok(()) };
        let link = self.link_of(first).ok_or(NotAppended::Down)?;
        let mut result = Ok(());
        let mut appending = link.transport.lock();
        frames.retain(|frame| {
            let most = output_bytes_max(Class::of(frame));
            let appended = appending.append(frame, most, now_ns, self.bounds);
            if appended.is_err() {
                result = appended;
            }
            appended.is_err()
        });
        drop(appending);
        touched.add(link);
        result
    }

    /// Asks for signs of life where that is due.
    pub(super) fn tick(&self, now_ns: u64) {
        for link in self.used() {
            if link.transport.tick(now_ns, self.bounds) {
                link.transport.flush();
            }
        }
    }

    /// How many links are up.
    pub(super) fn up(&self) -> usize {
        self.used().iter().filter(|link| link.transport.is_up()).count()
    }
}

impl Node {
    /// Hands a connection to the worker that reads it; drops it if it is no link to a node of the map.
    pub(super) fn take_data_link(&self, connection: NewDataLink) {
        let workers = self.options.workers as u16;
        let (me, _) = self.me();
        let is_openers =
            if connection.is_dialled { me < connection.node } else { connection.node < me };
        let index = connection.id.index;
        let count = data_links(workers, connection.workers);
        let Some(links) = self.ways.data_links(connection.node) else { return };
        if !is_openers || index >= count || self.has_closed_links.load(Ordering::Acquire) {
            return;
        }
        links.count.store(count, Ordering::Release);
        let link = Arc::clone(&links.links[usize::from(index)]);
        if connection.is_dialled {
            link.handed.store(connection.id.number, Ordering::Release);
        }
        if let Some(inbox) = self.inbox(index % workers) {
            inbox.push(Inbound::DataLink(Box::new(Arrival { links, link, connection })));
        }
    }

    /// A connection of a link ended, or could not be used.
    fn data_link_down(&self, links: &DataLinks, link: &DataLink, number: u64, now_ns: u64) {
        let peer = links.peer;
        // What another node passes on did not go over the link.
        if !self.ways.is_relayed(peer) {
            self.lose_of_link(links, link.index);
        }
        self.note_reach(now_ns, None, |reach| reach.data_link_heard(peer, link.index));
        let _ = link.handed.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
        links.down.notify_one();
    }

    /// Operations that went over a link may be lost: the sessions that use it send them again.
    fn lose_of_link(&self, links: &DataLinks, index: u16) {
        let count = links.used().len();
        for (core, inbox) in self.inboxes.iter().enumerate() {
            if core.checked_rem(count) == Some(usize::from(index)) {
                inbox.push(Inbound::Lost(links.peer));
            }
        }
    }

    /// Nothing is heard over a link: frames take another way, and what was sent may be lost.
    fn data_link_silent(&self, links: &DataLinks, index: u16, now_ns: u64) {
        let peer = links.peer;
        tracing::info!(node = %peer, index, "data link silent");
        self.note_reach(now_ns, None, |reach| reach.data_link_silent(peer, index, now_ns));
        self.lose_of_link(links, index);
    }

    /// Asks for signs of life over all data links where that is due.
    pub(super) fn tick_data_links(&self, now_ns: u64) {
        for links in self.ways.all_data_links() {
            links.tick(now_ns);
        }
    }
}

#[cfg(test)]
mod tests;
