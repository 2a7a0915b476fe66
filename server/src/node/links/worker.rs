//! The data links that one worker reads.
//!
//! Here: taking over a connection, one read per link and round, decoding the frames, the ack that
//! follows. Not here: the effect of frames ([`LinkHandler`]), writing (`writer`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use cluster::frames::{
    BODY_BYTES_MAX, FrameError, FrameKind, KeepAlive, Ping, StreamAck, StreamDone,
};
use cluster::link::{LinkReceiver, ReceiveBuffer};
use cluster::receive_stream::ReceiveStream;
use slab::Slab;

use super::peer_link::PeerLink;
use super::stream::LinkStream;
use super::writer::{NewConnection, PeerLiveness};
use super::{DataLinks, LinkArrival, LinkHandler};
use crate::node::Node;
use crate::runtime::ready::{ReadyQueue, ReadyWaker};
use crate::transport::ping::Pings;

/// Most bytes of one read from a link.
const READ_BYTES_MAX: usize = 64 << 10;
/// Time between two reports of the done numbers of this worker's streams to the peer.
const REPORT_NS: u64 = 1_000_000_000;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0}")]
    Lost(#[from] io::Error),
    #[error("{0}")]
    Fault(#[from] FrameError),
}

/// A connection that this worker reads.
#[derive(Debug)]
struct ReadLink {
    links: Arc<DataLinks>,
    link: Arc<PeerLink>,
    number: u64,
    wire: LinkStream,
    has_tls: bool,
    /// The peer's first ack has arrived.
    has_ack: bool,
    /// When this worker last reported the done numbers of its streams.
    reported_ns: u64,
    queue: Arc<ReadyWaker>,
    waker: Waker,
}

/// The data links of a worker.
#[derive(Debug, Default)]
pub(crate) struct WorkerLinks {
    read_links: Slab<ReadLink>,
    ready: Arc<ReadyQueue>,
    memory: ReadScratch,
}

/// Memory of one read.
#[derive(Debug, Default)]
struct ReadScratch {
    plain: Vec<u8>,
    pings: Vec<u64>,
    done: Vec<StreamDone>,
}

/// The findings of one read.
#[derive(Debug, Default)]
struct ReadFindings {
    /// The first ack of the connection arrived.
    is_first_ack: bool,
    /// The peer was silent before this read.
    was_silent: bool,
    /// The peer has become silent.
    is_silent: bool,
}

impl WorkerLinks {
    /// Whether some link is ready to be read.
    pub(crate) fn is_ready(&self) -> bool {
        !self.read_links.is_empty() && !self.ready.lock().is_empty()
    }

    /// Takes over a connection. An older one of the same link ends before the first read.
    pub(crate) fn adopt(
        &mut self,
        node: &Node,
        now_ns: u64,
        context: &Context<'_>,
        arrival: LinkArrival,
    ) {
        let LinkArrival { links, link, number, wire, tls, rest } = arrival;
        let wire = match wire.attach() {
            Ok(wire) => wire,
            Err(error) => {
                tracing::warn!(
                    node = %links.peer,
                    %error,
                    "the data link cannot be attached to its worker: it is opened again"
                );
                return node.data_link_down(&links, &link, number, now_ns);
            }
        };
        // Links to an earlier incarnation of the peer end too.
        let is_older =
            |read_link: &ReadLink| read_link.links.peer == links.peer && read_link.link.k == link.k;
        let older =
            self.read_links.iter().find(|(_, read_link)| is_older(read_link)).map(|(key, _)| key);
        let entry = self.read_links.vacant_entry();
        let queue = Arc::new(ReadyWaker::new(entry.key(), &self.ready, context.waker()));
        let waker = Waker::from(Arc::clone(&queue));
        let has_tls = tls.is_some();
        let pings = Pings::new(true, links.timing, now_ns);
        let fresh = NewConnection { number, wire: wire.clone(), tls, waker: waker.clone(), pings };
        let mut receiver = link.receiver.lock();
        if !link.writer.install(&mut receiver, fresh) {
            // A newer connection was installed first.
            drop(receiver);
            wire.close();
            return node.data_link_down(&links, &link, number, now_ns);
        }
        receiver.inbound.push(&rest);
        drop(receiver);
        tracing::info!(node = %links.peer, index = link.k, number, "data link up");
        // Sends the first ack; bytes behind the handshake are in `inbound` already.
        link.writer.flush(now_ns);
        waker.wake_by_ref();
        let (peer, k) = (links.peer, link.k);
        let (has_ack, reported_ns) = (false, 0);
        entry.insert(ReadLink {
            links,
            link,
            number,
            wire,
            has_tls,
            has_ack,
            reported_ns,
            queue,
            waker,
        });
        if let Some(older) = older {
            let read_link = self.read_links.remove(older);
            read_link.link.writer.end(read_link.number);
            node.data_link_down(&read_link.links, &read_link.link, read_link.number, now_ns);
        }
        node.update_reachability(now_ns, None, |reach| reach.data_link_up(peer, k));
    }

    /// Reads each ready link once, and hands its frames to `handler`. `scratch` is the read buffer.
    pub(crate) fn read<L>(
        &mut self,
        node: &Node,
        now_ns: u64,
        scratch: &mut [u8],
        ctx: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) {
        let count = self.ready.lock().len();
        for _ in 0..count {
            let Some(key) = self.ready.lock().pop_front() else { break };
            // Keys are reused, so a successor may be read once too often.
            let Some(read_link) = self.read_links.get_mut(key) else { continue };
            read_link.queue.queued.store(false, Ordering::Release);
            let mut findings = ReadFindings::default();
            let outcome =
                read_link.read(now_ns, scratch, &mut self.memory, &mut findings, ctx, handler);
            if findings.was_silent || findings.is_first_ack {
                let (peer, k) = (read_link.links.peer, read_link.link.k);
                node.update_reachability(now_ns, None, |reach| reach.data_link_up(peer, k));
            }
            if findings.is_silent {
                node.data_link_silent(&read_link.links, &read_link.link, read_link.number, now_ns);
            }
            if let Err(why) = outcome {
                self.end(node, now_ns, key, &why);
            }
        }
    }

    fn end(&mut self, node: &Node, now_ns: u64, key: usize, why: &ConnectionError) {
        let ReadLink { links, link, number, .. } = self.read_links.remove(key);
        tracing::info!(node = %links.peer, index = link.k, number, %why, "data link down");
        link.writer.end(number);
        node.data_link_down(&links, &link, number, now_ns);
    }

    /// Flushes and closes all links, at the end of the worker.
    pub(crate) fn close(&mut self, node: &Node, now_ns: u64) {
        node.has_closed_links.store(true, Ordering::Release);
        for read_link in self.read_links.drain() {
            read_link.link.writer.flush(now_ns);
            read_link.link.writer.end(read_link.number);
        }
    }
}

impl ReadLink {
    /// Reads once, processes the complete frames, and writes the frames that are due in return.
    fn read<L>(
        &mut self,
        now_ns: u64,
        scratch: &mut [u8],
        memory: &mut ReadScratch,
        findings: &mut ReadFindings,
        ctx: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) -> Result<(), ConnectionError> {
        let link = Arc::clone(&self.link);
        if let Some(kind) = link.writer.failure(self.number) {
            return Err(io::Error::from(kind).into());
        }
        let mut receiver = link.receiver.lock();
        let LinkReceiver { stream, inbound, .. } = &mut *receiver;
        let count = self.receive(now_ns, scratch, &mut memory.plain, inbound);
        handler.has_read(ctx);
        // Frames that arrived before the end of the connection count.
        let mut reading = Reading {
            links: &self.links,
            link: &link,
            has_ack: &mut self.has_ack,
            now_ns,
            findings,
            pings: &mut memory.pings,
        };
        let gone_through = reading.frames(inbound, stream, ctx, handler);
        let life_ns = &link.time.time_ns;
        if stream.time_ns() > life_ns.load(Ordering::Relaxed) {
            life_ns.fetch_max(stream.time_ns(), Ordering::AcqRel);
        }
        gone_through?;
        let count = count?;
        let is_report_due = now_ns.saturating_sub(self.reported_ns) >= REPORT_NS;
        memory.done.clear();
        if is_report_due {
            handler.streams_done(&mut memory.done);
        }
        let writer = &link.writer;
        if writer.settle(now_ns, count, &mut memory.pings, stream, &memory.done, is_report_due)
            && is_report_due
        {
            self.reported_ns = now_ns;
        }
        // Flushed with the rest of the round's output.
        handler.touched(&link);
        if (findings.is_first_ack || findings.was_silent) && link.is_up() {
            handler.link_up(ctx, &link);
        }
        let mut context = Context::from_waker(&self.waker);
        if count > 0 && self.wire.poll_readable(&mut context)?.is_ready() {
            self.waker.wake_by_ref();
            return Ok(());
        }
        match writer.check_liveness(now_ns) {
            PeerLiveness::Known => {}
            PeerLiveness::Silent => findings.is_silent = true,
            PeerLiveness::Lost => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
        }
        Ok(())
    }

    /// Moves received bytes into `inbound`. Returns the number of bytes that were read.
    fn receive(
        &self,
        now_ns: u64,
        scratch: &mut [u8],
        plain: &mut Vec<u8>,
        inbound: &mut ReceiveBuffer,
    ) -> io::Result<usize> {
        let writer = &self.link.writer;
        let mut context = Context::from_waker(&self.waker);
        if writer.poll_unblocked(&mut context) {
            writer.flush(now_ns);
        }
        let max = scratch.len().min(READ_BYTES_MAX);
        let count = match self.wire.poll_recv(&mut context, &mut scratch[..max])? {
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
        let decrypted = writer.decrypt(self.number, read, plain);
        inbound.push(plain);
        decrypted.map(|()| count)
    }
}

/// The state of a read while its frames are processed.
struct Reading<'a> {
    links: &'a DataLinks,
    link: &'a Arc<PeerLink>,
    has_ack: &'a mut bool,
    now_ns: u64,
    findings: &'a mut ReadFindings,
    pings: &'a mut Vec<u64>,
}

impl Reading<'_> {
    /// Processes the complete frames in `inbound`, in order.
    fn frames<L>(
        &mut self,
        inbound: &mut ReceiveBuffer,
        stream: &mut ReceiveStream,
        ctx: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) -> Result<(), FrameError> {
        self.pings.clear();
        while let Some(frame) = inbound.frame(BODY_BYTES_MAX)? {
            let bytes = frame.bytes();
            let (kind, body) = (frame.kind, frame.body);
            if !*self.has_ack && kind != FrameKind::Ack {
                return Err(FrameError::Range("first frame"));
            }
            match kind {
                FrameKind::Ack => self.ack(&StreamAck::decode(body)?, ctx, handler)?,
                FrameKind::Ping => self.pings.push(Ping::decode(body)?.0),
                FrameKind::Pong => {
                    self.findings.was_silent |= self.link.writer.answered(Ping::decode(body)?.0);
                }
                FrameKind::KeepAlive => {
                    stream.record_time(KeepAlive::decode(body)?.time_ns);
                    handler.link_frame(ctx, self.link, stream, kind, body, bytes)?;
                }
                _ => {
                    if matches!(kind, FrameKind::Answers | FrameKind::AnswersBehindRecords) {
                        self.progress();
                    } else if kind == FrameKind::Records
                        && let Some(time_ns) = body.first_chunk()
                    {
                        stream.record_time(u64::from_le_bytes(*time_ns));
                    }
                    handler.link_frame(ctx, self.link, stream, kind, body, bytes)?;
                    if kind.is_numbered() {
                        stream.advance(bytes);
                    }
                }
            }
            inbound.consume(bytes);
        }
        Ok(())
    }

    /// Processes an ack. The first one sets the stream's position before anything is appended;
    /// refusals are processed before the acknowledgement is stored.
    fn ack<L>(
        &mut self,
        ack: &StreamAck<'_>,
        ctx: &mut L,
        handler: &mut impl LinkHandler<L>,
    ) -> Result<(), FrameError> {
        let writer = &self.link.writer;
        let pings = Pings::new(true, self.links.timing, self.now_ns);
        self.findings.is_first_ack |= writer.on_ack(ack, pings)?;
        *self.has_ack = true;
        self.progress();
        handler.ack(ctx, self.link, ack);
        writer.lock().sender.stream.acknowledge(ack.held, self.now_ns)?;
        handler.acknowledged(ctx, self.link);
        Ok(())
    }

    fn progress(&self) {
        self.link.progress_ns.fetch_max(self.now_ns, Ordering::AcqRel);
    }
}
