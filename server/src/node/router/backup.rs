//! The frames of the links that a worker reads.
//!
//! Here: installing records into backups, in batches; dispatching the other frames. Not here:
//! reading links (`links`), the effect of other frames on a replica (`replicas`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::OpStreamId;
use cluster::dedup_log::{CopyGeneration, DedupLog};
use cluster::frames::{
    Answers, FrameError, FrameKind, KeepAlive, KeyState, Record, RecordsReader, Section, StreamAck,
    StreamDone,
};
use cluster::partition_header::PartitionHeader;
use cluster::receive_stream::ReceiveStream;
use cluster::replica::ApplyPosition;
use engine::{Engine, LimitCopy, Now};
use parking_lot::Mutex;

use super::{Router, RouterContext, node_now};
use crate::node::WorkerEvent;
use crate::node::links::{LinkHandler, PeerLink};
use crate::node::operation::OpSource;
use crate::node::replicas::Replicas;
use crate::node::state_machine::{is_bare, items_time, unique};
use crate::shards::BATCH_SHARDS_MAX;

/// Records of one section that are installed while their shards are held together.
type InstallBatch<'a> = ArrayVec<Record<'a>, BATCH_SHARDS_MAX>;

impl<'a> LinkHandler<RouterContext<'a>> for Router {
    fn link_frame(
        &mut self,
        ctx: &mut RouterContext<'a>,
        link: &Arc<PeerLink>,
        stream: &mut ReceiveStream,
        kind: FrameKind,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), FrameError> {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace().filter(|_| self.begin_plane()) else { return Ok(()) };
        let copies = &keyspace.replicas;
        match kind {
            FrameKind::Records => self.records(ctx, copies, stream, body, bytes),
            FrameKind::Forward => self.serve_forward(ctx, OpSource::Link(link.index), body),
            FrameKind::Answers | FrameKind::AnswersBehindRecords => {
                let answers = Answers::decode(kind, body)?;
                if answers.records_end > stream.held() {
                    return Err(FrameError::Range("end of records"));
                }
                self.on_answers(ctx, &answers, |partition, term| {
                    let is_installed = |header: &PartitionHeader| {
                        stream.has_installed(partition, term, header.term())
                    };
                    answers.records_end == 0 || copies.header(partition).is_some_and(is_installed)
                });
                Ok(())
            }
            FrameKind::KeepAlive => {
                self.finish_streams(KeepAlive::decode(body)?.done());
                Ok(())
            }
            FrameKind::Adopt
            | FrameKind::Chunk
            | FrameKind::Restart
            | FrameKind::TermCheck
            | FrameKind::Pull => {
                let replica_ctx = &mut ctx.replica_context(&node, self.contact, &mut self.scratch);
                match kind {
                    FrameKind::Adopt => copies.adopt(replica_ctx, body, stream, bytes),
                    FrameKind::Chunk => copies.chunk(replica_ctx, body, stream, bytes),
                    FrameKind::Restart => copies.restart(replica_ctx, body, stream, bytes),
                    FrameKind::TermCheck => copies.check_term(replica_ctx, body, stream, bytes),
                    _ => copies.pull(replica_ctx, body, stream, bytes),
                }
            }
            _ => Ok(()),
        }
    }

    fn ack(&mut self, ctx: &mut RouterContext<'a>, link: &Arc<PeerLink>, ack: &StreamAck<'_>) {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return };
        for refused in ack.refused() {
            keyspace.replicas.refused(
                &mut ctx.replica_context(&node, self.contact, &mut self.scratch),
                link.index,
                &refused,
            );
        }
        self.finish_streams(ack.done());
    }

    fn acknowledged(&mut self, ctx: &mut RouterContext<'a>, link: &Arc<PeerLink>) {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return };
        keyspace.replicas.acknowledged(
            &mut ctx.replica_context(&node, self.contact, &mut self.scratch),
            link.index,
        );
        for (core, inbox) in node.inboxes.iter().enumerate() {
            if core != usize::from(self.core) && inbox.awaits_copies() {
                inbox.wake();
            }
        }
    }

    fn link_up(&mut self, ctx: &mut RouterContext<'a>, link: &Arc<PeerLink>) {
        let node = Arc::clone(&self.node);
        let Some(keyspace) = node.keyspace() else { return };
        keyspace.replicas.connected(
            &mut ctx.replica_context(&node, self.contact, &mut self.scratch),
            link.index,
        );
        for inbox in &node.inboxes {
            inbox.push(WorkerEvent::LinkUp(link.peer));
        }
    }

    fn has_read(&mut self, ctx: &mut RouterContext<'a>) {
        ctx.now = node_now(ctx.service.clock(), ctx.service.clock().now());
    }

    fn touched(&mut self, link: &Arc<PeerLink>) {
        self.scratch.touched.add(link);
    }

    fn streams_done(&mut self, done: &mut Vec<StreamDone>) {
        if let Some(plane) = &self.plane {
            done.extend(plane.ops.all_done());
        }
    }
}

impl Router {
    /// Applies the peer's report of the done numbers of its streams.
    fn finish_streams(&self, done: impl Iterator<Item = StreamDone>) {
        let Some(keyspace) = self.node.keyspace() else { return };
        done.for_each(|done| keyspace.replicas.logs().advance_done(&done));
    }

    fn records(
        &mut self,
        ctx: &mut RouterContext<'_>,
        copies: &Replicas,
        stream: &mut ReceiveStream,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), FrameError> {
        let mut reader = RecordsReader::new(body)?;
        let frame_ns = reader.time_ns();
        stream.record_time(frame_ns);
        let mut log = StreamLog::default();
        loop {
            let mut batch = InstallBatch::new();
            while !batch.is_full()
                && let Some(record) = reader.next_record()?
            {
                batch.push(record);
                if !reader.has_more_of_section() {
                    break;
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.install(
                ctx,
                copies,
                stream,
                (frame_ns, bytes),
                (reader.section(), &batch),
                &mut log,
            );
        }
    }

    /// Installs records. The shard of a record is held until its lsn and its result are stored too.
    fn install(
        &mut self,
        ctx: &mut RouterContext<'_>,
        copies: &Replicas,
        stream: &mut ReceiveStream,
        (frame_ns, bytes): (u64, usize),
        (section, batch): (&Section, &InstallBatch<'_>),
        log: &mut StreamLog,
    ) {
        let node = Arc::clone(&self.node);
        let shards = ctx.service.shards();
        let unix_ms = ctx.now.wall_ns / 1_000_000;
        let mut from = 0;
        while from < batch.len() {
            let rest = &batch[from..];
            let mut hashes: ArrayVec<u64, BATCH_SHARDS_MAX> = ArrayVec::new();
            for record in rest {
                let hash = shards.hash_in(record.partition.0, record.key);
                shards.prefetch_shard(hash);
                if let Some(header) = copies.header(record.partition) {
                    engine::prefetch(header);
                }
                hashes.push(hash);
            }
            let mut done = 0;
            if !copies.are_shared() {
                let mut locked = shards.lock_batch(&hashes);
                for (position, record) in rest.iter().enumerate() {
                    let Some(header) = copies.header(record.partition) else { break };
                    let Some(engine) = locked.engine_beside(position, hashes[position]) else {
                        break;
                    };
                    let pt_ns = header.time_of(frame_ns, record.pt_ns);
                    let now = Now { mono: items_time(pt_ns), unix_ms };
                    if !install_held(engine, now, hashes[position], header, record) {
                        break;
                    }
                    header.installed(record.lsn, pt_ns);
                    done += 1;
                }
                log.add(copies, section, &rest[..done]);
            }
            from += done;
            if done == rest.len() {
                return;
            }
            // Refused, or not to be installed while other shards are held.
            let record = &batch[from];
            copies.install(
                &mut ctx.replica_context(&node, self.contact, &mut self.scratch),
                section,
                frame_ns,
                record,
                stream,
                bytes,
            );
            from += 1;
        }
    }
}

/// Installs a record. Returns false, and changes nothing, if the replica does not follow or the
/// record needs more than its shard.
#[inline]
fn install_held(
    engine: &mut Engine,
    now: Now,
    hash: u64,
    header: &PartitionHeader,
    record: &Record<'_>,
) -> bool {
    if !header.accepts(record.term, record.lsn) || record.key.is_empty() {
        return false;
    }
    let at = ApplyPosition { pt_ns: 0, term: record.term, lsn: record.lsn };
    match record.state {
        KeyState::Counter(count) => engine.put_bare_count(now, hash, record.key, count, unique(at)),
        KeyState::Limit { policy, state } => {
            let copy = LimitCopy { policy, state };
            engine.put_limit(now, (hash, record.key), copy, unique(at)).is_ok()
        }
        KeyState::Item(bytes) => {
            is_bare(record.key, bytes) && engine.put_copy(now, hash, record.key, bytes).is_ok()
        }
        KeyState::Deleted => {
            engine.remove_copy(hash, record.key);
            true
        }
        KeyState::Unchanged => true,
    }
}

/// The dedup log of the stream of the last records.
#[derive(Default)]
struct StreamLog(Option<(OpStreamId, Arc<Mutex<DedupLog>>)>);

impl StreamLog {
    /// Adds the results of records that were just installed, while their shards are held.
    fn add(&mut self, copies: &Replicas, section: &Section, records: &[Record<'_>]) {
        let stream = section.stream;
        if stream == OpStreamId::default() || records.is_empty() {
            return;
        }
        if self.0.as_ref().is_none_or(|(known, _)| *known != stream) {
            self.0 = Some((stream, copies.logs().log_for_records(stream)));
        }
        let Some((_, log)) = &self.0 else { return };
        let mut log = log.lock();
        log.advance_done(section.done);
        for record in records {
            let Some(header) = copies.header(record.partition) else { continue };
            let (partition, term) = (record.partition, record.term);
            let copy = CopyGeneration { partition, generation: header.generation(), term };
            log.add(section.first + u64::from(record.place), copy, record.result);
        }
    }
}
