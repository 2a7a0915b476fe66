//! The data links that one worker reads.
//!
//! Here: taking a connection over, one read a link and round, frames out of what was read, the word that
//! follows. Not here: what frames do ([`LinkHandler`]), writing (`transport`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use cluster::frames::{BODY_BYTES_MAX, Beat, Fault, Kind, LaneDone, Ping, Word};
use cluster::link::{Inbound, LinkReceiver};
use cluster::receive_stream::ReceiveStream;
use slab::Slab;

use super::peer_link::PeerLink;
use super::transport::{Fresh, Life};
use super::wire::Wire;
use super::{Arrival, DataLinks, LinkHandler};
use crate::lanes::ping::Pings;
use crate::node::Node;
use crate::worker::{Ready, ReadyWaker};

/// Most bytes that are read from a link at once.
const READ_BYTES_MAX: usize = 64 << 10;
/// The peer is told so often what this worker's lanes are done with.
const TELL_NS: u64 = 1_000_000_000;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum Ending {
    #[error("{0}")]
    Lost(#[from] io::Error),
    #[error("{0}")]
    Fault(#[from] Fault),
}

/// A connection that this worker reads.
#[derive(Debug)]
struct Place {
    links: Arc<DataLinks>,
    link: Arc<PeerLink>,
    number: u64,
    wire: Wire,
    has_tls: bool,
    /// The peer's first word came.
    has_word: bool,
    /// When the peer was last told what this worker's lanes are done with.
    told_ns: u64,
    queue: Arc<ReadyWaker>,
    waker: Waker,
}

/// The data links of a worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLinks {
    places: Slab<Place>,
    ready: Arc<Ready>,
    memory: Memory,
}

/// Memory of one read.
#[derive(Debug, Default)]
struct Memory {
    plain: Vec<u8>,
    pings: Vec<u64>,
    done: Vec<LaneDone>,
}

/// What was found out in one read.
#[derive(Debug, Default)]
struct Heard {
    /// The first word of the connection came.
    is_first_word: bool,
    /// The peer was silent until now.
    was_silent: bool,
    /// The peer gives no sign of life from now on.
    is_silent: bool,
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
        let Arrival { links, link, number, wire, tls, rest } = arrival;
        let wire = match wire.attach() {
            Ok(wire) => wire,
            Err(error) => {
                tracing::warn!(node = %links.peer, %error, "a data link cannot be taken over");
                return node.data_link_down(&links, &link, number, now_ns);
            }
        };
        // Links to an earlier life of the peer end with it.
        let is_older = |place: &Place| place.links.peer == links.peer && place.link.k == link.k;
        let older = self.places.iter().find(|(_, place)| is_older(place)).map(|(key, _)| key);
        let entry = self.places.vacant_entry();
        let queue = Arc::new(ReadyWaker::new(entry.key(), &self.ready, context.waker()));
        let waker = Waker::from(Arc::clone(&queue));
        let has_tls = tls.is_some();
        let pings = Pings::new(true, links.timing, now_ns);
        let fresh = Fresh { number, wire: wire.clone(), tls, waker: waker.clone(), pings };
        let mut receiver = link.receiver.lock();
        if !link.transport.install(&mut receiver, fresh) {
            // A newer one was faster.
            drop(receiver);
            wire.close();
            return node.data_link_down(&links, &link, number, now_ns);
        }
        receiver.inbound.push(&rest);
        drop(receiver);
        tracing::info!(node = %links.peer, index = link.k, number, "data link up");
        // The first word leaves, and what came behind the handshake is here already.
        link.transport.flush(now_ns);
        waker.wake_by_ref();
        let (peer, k) = (links.peer, link.k);
        let (has_word, told_ns) = (false, 0);
        entry.insert(Place { links, link, number, wire, has_tls, has_word, told_ns, queue, waker });
        if let Some(older) = older {
            let place = self.places.remove(older);
            place.link.transport.end(place.number);
            node.data_link_down(&place.links, &place.link, place.number, now_ns);
        }
        node.note_reach(now_ns, None, |reach| reach.data_link_heard(peer, k));
    }

    /// Reads each link that is ready, once, and hands what came to `handler`. `scratch` is what is read into.
    pub(crate) fn read<L>(
        &mut self,
        node: &Node,
        now_ns: u64,
        scratch: &mut [u8],
        lent: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) {
        let count = self.ready.lock().len();
        for _ in 0..count {
            let Some(key) = self.ready.lock().pop_front() else { break };
            // Keys are used again: a successor is looked at once too often.
            let Some(place) = self.places.get_mut(key) else { continue };
            place.queue.queued.store(false, Ordering::Release);
            let mut heard = Heard::default();
            let outcome = place.read(now_ns, scratch, &mut self.memory, &mut heard, lent, handler);
            if heard.was_silent || heard.is_first_word {
                let (peer, k) = (place.links.peer, place.link.k);
                node.note_reach(now_ns, None, |reach| reach.data_link_heard(peer, k));
            }
            if heard.is_silent {
                node.data_link_silent(&place.links, &place.link, place.number, now_ns);
            }
            if let Err(why) = outcome {
                self.end(node, now_ns, key, &why);
            }
        }
    }

    fn end(&mut self, node: &Node, now_ns: u64, key: usize, why: &Ending) {
        let Place { links, link, number, .. } = self.places.remove(key);
        tracing::info!(node = %links.peer, index = link.k, number, %why, "data link down");
        link.transport.end(number);
        node.data_link_down(&links, &link, number, now_ns);
    }

    /// Sends what waits on all links and closes them, at the end of the worker.
    pub(crate) fn close(&mut self, node: &Node, now_ns: u64) {
        node.has_closed_links.store(true, Ordering::Release);
        for place in self.places.drain() {
            place.link.transport.flush(now_ns);
            place.link.transport.end(place.number);
        }
    }
}

impl Place {
    /// One read, the frames that are whole with it, and what this node has to say about them.
    fn read<L>(
        &mut self,
        now_ns: u64,
        scratch: &mut [u8],
        memory: &mut Memory,
        heard: &mut Heard,
        lent: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) -> Result<(), Ending> {
        let link = Arc::clone(&self.link);
        if let Some(kind) = link.transport.failure(self.number) {
            return Err(io::Error::from(kind).into());
        }
        let mut receiver = link.receiver.lock();
        let LinkReceiver { stream, inbound, .. } = &mut *receiver;
        let count = self.receive(now_ns, scratch, &mut memory.plain, inbound);
        handler.has_read(lent);
        // What was said before the end counts.
        let mut reading = Reading {
            links: &self.links,
            link: &link,
            has_word: &mut self.has_word,
            now_ns,
            heard,
            pings: &mut memory.pings,
        };
        let gone_through = reading.frames(inbound, stream, lent, handler);
        let life_ns = &link.life.time_ns;
        if stream.time_ns() > life_ns.load(Ordering::Relaxed) {
            life_ns.fetch_max(stream.time_ns(), Ordering::AcqRel);
        }
        gone_through?;
        let count = count?;
        let tells = now_ns.saturating_sub(self.told_ns) >= TELL_NS;
        memory.done.clear();
        if tells {
            handler.lanes_done(&mut memory.done);
        }
        let transport = &link.transport;
        if transport.settle(now_ns, &mut memory.pings, stream, &memory.done, tells) && tells {
            self.told_ns = now_ns;
        }
        // With what else the round has to say.
        handler.touched(&link);
        if (heard.is_first_word || heard.was_silent) && link.is_up() {
            handler.link_up(lent, &link);
        }
        let mut context = Context::from_waker(&self.waker);
        if count > 0 && self.wire.poll_readable(&mut context)?.is_ready() {
            self.waker.wake_by_ref();
            return Ok(());
        }
        match transport.look_for_life(now_ns) {
            Life::Known => {}
            Life::Silent => heard.is_silent = true,
            Life::Lost => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
        Ok(())
    }

    /// Moves what came into `inbound`. Returns the number of bytes that were read.
    fn receive(
        &self,
        now_ns: u64,
        scratch: &mut [u8],
        plain: &mut Vec<u8>,
        inbound: &mut Inbound,
    ) -> io::Result<usize> {
        let transport = &self.link.transport;
        let mut context = Context::from_waker(&self.waker);
        if transport.poll_unblocked(&mut context) {
            transport.flush(now_ns);
        }
        let most = scratch.len().min(READ_BYTES_MAX);
        let count = match self.wire.poll_recv(&mut context, &mut scratch[..most])? {
            Poll::Ready(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Poll::Ready(count) => count,
            Poll::Pending => 0,
        };
        let read = &scratch[..count];
        if !self.has_tls {
            inbound.push(read);
            return Ok(count);
        }
        plain.clear();
        let decrypted = transport.decrypt(self.number, read, plain);
        inbound.push(plain);
        decrypted.map(|()| count)
    }
}

/// A read whose frames are gone through.
struct Reading<'a> {
    links: &'a DataLinks,
    link: &'a Arc<PeerLink>,
    has_word: &'a mut bool,
    now_ns: u64,
    heard: &'a mut Heard,
    pings: &'a mut Vec<u64>,
}

impl Reading<'_> {
    /// Goes through the whole frames in `inbound`, in order.
    fn frames<L>(
        &mut self,
        inbound: &mut Inbound,
        stream: &mut ReceiveStream,
        lent: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) -> Result<(), Fault> {
        self.pings.clear();
        while let Some(frame) = inbound.frame(BODY_BYTES_MAX)? {
            let bytes = frame.bytes();
            let (kind, body) = (frame.kind, frame.body);
            if !*self.has_word && kind != Kind::Word {
                return Err(Fault::Range("first frame"));
            }
            match kind {
                Kind::Word => self.word(&Word::decode(body)?, lent, handler)?,
                Kind::Ping => self.pings.push(Ping::decode(body)?.0),
                Kind::Pong => {
                    self.heard.was_silent |= self.link.transport.answered(Ping::decode(body)?.0);
                }
                Kind::Beat => {
                    stream.heard_time(Beat::decode(body)?.time_ns);
                    handler.link_frame(lent, self.link, stream, kind, body, bytes)?;
                }
                _ => {
                    if kind == Kind::Answers {
                        self.progress();
                    } else if kind == Kind::Records
                        && let Some(time_ns) = body.first_chunk()
                    {
                        stream.heard_time(u64::from_le_bytes(*time_ns));
                    }
                    handler.link_frame(lent, self.link, stream, kind, body, bytes)?;
                    if kind.is_numbered() {
                        stream.advance(bytes);
                    }
                }
            }
            inbound.consume(bytes);
        }
        Ok(())
    }

    /// The first word sets the stream's place before anything is appended; refusals come before the acknowledgement.
    fn word<L>(
        &mut self,
        word: &Word<'_>,
        lent: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) -> Result<(), Fault> {
        let transport = &self.link.transport;
        let pings = Pings::new(true, self.links.timing, self.now_ns);
        self.heard.is_first_word |= transport.hear(word, pings)?;
        *self.has_word = true;
        self.progress();
        handler.word(lent, self.link, word);
        transport.lock().sender.stream.acknowledge(word.held, self.now_ns)?;
        handler.acknowledged(lent, self.link);
        Ok(())
    }

    fn progress(&self) {
        self.link.progress_ns.fetch_max(self.now_ns, Ordering::AcqRel);
    }
}
