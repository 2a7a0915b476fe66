//! The data links that one worker reads.
//!
//! Here: taking a connection over, one read a link and round, frames out of what was read. Not here:
//! what frames do (`crate::node::front`), writing (`transport`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use cluster::id::NodeId;
use cluster::message::hello::Farewell;
use cluster::message::{Decoded, Fault, Frame, decode};
use slab::Slab;

use super::transport::{Life, Number};
use super::{Arrival, DataLink, DataLinks};
use crate::lanes::ping::Pings;
use crate::net::shared::SharedStream;
use crate::node::Node;
use crate::worker::{Ready, ReadyWaker};

/// Most bytes that are read from a link at once.
const READ_BYTES_MAX: usize = 64 << 10;
/// An input buffer that was longer than this is not kept.
const KEPT_BYTES: usize = 1 << 20;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error("{0}")]
    Lost(#[from] io::Error),
    #[error("closed by the peer: {0}")]
    Theirs(Farewell),
    #[error("{0}")]
    Fault(Fault),
}

/// What a read tells of the peer.
enum News {
    None,
    /// It gives no sign of life from now on.
    Silent,
    /// It was silent and is heard again.
    Heard,
}

/// A connection that this worker reads.
#[derive(Debug)]
struct Place {
    links: Arc<DataLinks>,
    link: Arc<DataLink>,
    number: Number,
    stream: Arc<SharedStream>,
    has_tls: bool,
    input: BytesMut,
    queue: Arc<ReadyWaker>,
    waker: Waker,
}

/// The data links of a worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLinks {
    places: Slab<Place>,
    ready: Arc<Ready>,
    /// Of one read.
    frames: Vec<Frame>,
}

impl WorkerLinks {
    /// Whether some link is to be looked at.
    pub(crate) fn is_ready(&self) -> bool {
        !self.places.is_empty() && !self.ready.lock().is_empty()
    }

    /// Takes a connection over. An older one of the same link ends before the first read.
    pub(crate) fn adopt(
        &mut self,
        node: &Node,
        now_ns: u64,
        context: &Context<'_>,
        arrival: Arrival,
    ) {
        let Arrival { links, link, connection } = arrival;
        let number = (connection.incarnation, connection.id.number);
        let stream = match SharedStream::attach(connection.stream) {
            Ok(stream) => Arc::new(stream),
            Err(error) => {
                tracing::warn!(node = %links.peer, %error, "a data link cannot be taken over");
                return node.data_link_down(&links, &link, number.1, now_ns);
            }
        };
        let older = self.places.iter().find(|(_, place)| Arc::ptr_eq(&place.link, &link));
        let older = older.map(|(key, _)| key);
        let entry = self.places.vacant_entry();
        let queue = Arc::new(ReadyWaker::new(entry.key(), &self.ready, context.waker()));
        let waker = Waker::from(Arc::clone(&queue));
        let has_tls = connection.tls.is_some();
        let pings = Pings::new(true, links.timing, now_ns);
        let (transport, tls) = (&link.transport, connection.tls);
        if !transport.install(number, Arc::clone(&stream), tls, waker.clone(), pings) {
            // A newer one was faster.
            return node.data_link_down(&links, &link, number.1, now_ns);
        }
        tracing::info!(node = %links.peer, index = link.index, number = number.1, "data link up");
        // What came behind the handshake is here already.
        waker.wake_by_ref();
        let peer = links.peer;
        let index = link.index;
        let input = connection.rest;
        entry.insert(Place { links, link, number, stream, has_tls, input, queue, waker });
        if let Some(older) = older {
            let place = self.places.remove(older);
            node.data_link_down(&place.links, &place.link, place.number.1, now_ns);
        }
        node.note_reach(now_ns, None, |reach| reach.data_link_heard(peer, index));
    }

    /// Reads each link that is ready, once, and has the frames carried out. `scratch` is what is read into.
    pub(crate) fn read(
        &mut self,
        node: &Node,
        now_ns: u64,
        scratch: &mut [u8],
        mut carry: impl FnMut(NodeId, &mut Vec<Frame>),
    ) {
        let mut left = self.ready.lock().len();
        while left > 0 {
            left -= 1;
            let Some(key) = self.ready.lock().pop_front() else { break };
            // Keys are used again: a successor is looked at once too often.
            let Some(place) = self.places.get_mut(key) else { continue };
            place.queue.queued.store(false, Ordering::Release);
            let outcome = place.read(now_ns, scratch, &mut self.frames);
            let (links, index) = (&place.links, place.link.index);
            match outcome {
                Ok(News::None) | Err(_) => {}
                Ok(News::Silent) => node.data_link_silent(links, index, now_ns),
                Ok(News::Heard) => {
                    node.note_reach(now_ns, None, |reach| reach.data_link_heard(links.peer, index));
                }
            }
            if !self.frames.is_empty() {
                carry(place.links.peer, &mut self.frames);
                self.frames.clear();
            }
            if let Err(why) = outcome {
                self.end(node, now_ns, key, &why);
            }
        }
    }

    fn end(&mut self, node: &Node, now_ns: u64, key: usize, why: &Ending) {
        let Place { links, link, number, .. } = self.places.remove(key);
        tracing::info!(node = %links.peer, index = link.index, number = number.1, %why, "data link down");
        link.transport.end(number);
        node.data_link_down(&links, &link, number.1, now_ns);
    }

    /// Says farewell on all links and closes them, at the end of the worker.
    pub(crate) fn close(&mut self, node: &Node) {
        node.has_closed_links.store(true, Ordering::Release);
        for place in self.places.drain() {
            let transport = &place.link.transport;
            let farewell = Frame::Farewell(Farewell::ShuttingDown);
            transport.lock().append_control(&farewell, place.links.bounds);
            transport.flush();
            transport.end(place.number);
        }
    }
}

impl Place {
    /// One read, and the frames that are whole with it.
    fn read(
        &mut self,
        now_ns: u64,
        scratch: &mut [u8],
        frames: &mut Vec<Frame>,
    ) -> Result<News, Ending> {
        let transport = &self.link.transport;
        if let Some(kind) = transport.failure(self.number) {
            return Err(io::Error::from(kind).into());
        }
        let mut context = Context::from_waker(&self.waker);
        if transport.poll_unblocked(&mut context) {
            transport.flush();
        }
        let most = scratch.len().min(READ_BYTES_MAX);
        let count = match self.stream.poll_recv(&mut context, &mut scratch[..most])? {
            Poll::Ready(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Poll::Ready(count) => count,
            Poll::Pending => 0,
        };
        let read = &scratch[..count];
        let decrypted = if self.has_tls {
            transport.decrypt(self.number, read, &mut self.input)
        } else {
            self.input.extend_from_slice(read);
            Ok(())
        };
        // What was said before the end counts.
        let was_silent = self.decode(now_ns, frames)?;
        decrypted?;
        let mut context = Context::from_waker(&self.waker);
        if count > 0 && self.stream.poll_readable(&mut context)?.is_ready() {
            self.waker.wake_by_ref();
        }
        match self.link.transport.look_for_life(now_ns) {
            Life::Silent => Ok(News::Silent),
            Life::Lost => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            Life::Known if was_silent => Ok(News::Heard),
            Life::Known => Ok(News::None),
        }
    }

    /// Takes whole frames out of the input. True: the peer was silent and is heard again.
    fn decode(&mut self, now_ns: u64, frames: &mut Vec<Frame>) -> Result<bool, Ending> {
        let (transport, bounds) = (&self.link.transport, self.links.bounds);
        let mut was_silent = false;
        while let Decoded::Frame(frame) =
            decode(&mut self.input, now_ns, bounds).map_err(Ending::Fault)?
        {
            match frame {
                Frame::Ping(number) => {
                    transport.lock().append_control(&Frame::Pong(number), bounds);
                    transport.flush();
                }
                Frame::Pong(number) => was_silent |= transport.answered(number),
                Frame::Farewell(why) => return Err(Ending::Theirs(why)),
                frame if is_of_partitions(&frame) => frames.push(frame),
                _ => return Err(Ending::Fault(Fault::Range("frame of a data link"))),
            }
        }
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = BytesMut::new();
        }
        Ok(was_silent)
    }
}

/// Whether a frame may come over a data link.
fn is_of_partitions(frame: &Frame) -> bool {
    matches!(
        frame,
        Frame::Op { .. } | Frame::Settle { .. } | Frame::Reply { .. } | Frame::Copy { .. }
    )
}
