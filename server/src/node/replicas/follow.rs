//! Frames from other copies: records that no batch could install, and all rarer frames.
//!
//! Not here: records in batches (`router`), the replica's reaction (`cluster::replica`).

use cluster::LinkIndex;
use cluster::OpStreamId;
use cluster::dedup_log::CopyGeneration;
use cluster::frames::{
    Adopt, ChunkReader, FrameError, Pull, Record, Restart, Section, StreamRefusal, TermCheck,
};
use cluster::id::{Partition, Term};
use cluster::partition_header::{HeaderState, PartitionHeader};
use cluster::receive_stream::ReceiveStream;
use cluster::replica::{ApplyPosition, Position, StateMachine as _};

use super::{ReplicaContext, Replicas, close};

impl Replicas {
    /// Installs a record or refuses it. The record's frame has `bytes` bytes and is the next of
    /// `stream`.
    pub(crate) fn install(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        section: &Section,
        frame_ns: u64,
        record: &Record<'_>,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let partition = record.partition;
        let Some((header, group)) = self.enter(partition) else {
            return refuse(partition, record.term, false, stream, bytes);
        };
        let state = close(replica_ctx, partition, header);
        let is_next = state == HeaderState::Follows
            && header.term() == record.term
            && header.lsn() + 1 == record.lsn;
        if is_next {
            self.install_next(replica_ctx, header, section, frame_ns, record);
        } else {
            let (host, end) = (self.host(replica_ctx.node), stream.end_of(bytes));
            let refusal = group.view(&host, partition, header, |replica| {
                replica.refusal(header, record.term, end)
            });
            stream.refuse(refusal, false);
        }
        header.open(state);
    }

    fn install_next(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        header: &PartitionHeader,
        section: &Section,
        frame_ns: u64,
        record: &Record<'_>,
    ) {
        let &Record { partition, place, term, lsn, pt_ns, key, state, result } = record;
        let pt_ns = header.time_of(frame_ns, pt_ns).max(header.pt_ns());
        let at = ApplyPosition { pt_ns, term, lsn };
        self.with(replica_ctx, partition, header, |call| {
            call.state_machine.install(at, key, &state);
        });
        header.installed(lsn, pt_ns);
        if section.stream.node == OpStreamId::default().node {
            return;
        }
        let copy = CopyGeneration { partition, generation: header.generation(), term };
        let log = self.logs.log_for_records(section.stream);
        let mut log = log.lock();
        log.advance_done(section.done);
        log.add(section.first + u64::from(place), copy, result);
    }

    /// Handles an `Adopt` with this body. Its frame has `bytes` bytes and is the next of `stream`.
    ///
    /// # Errors
    ///
    /// The body cannot be decoded.
    pub(crate) fn adopt(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        body: &[u8],
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), FrameError> {
        let adopt = Adopt::decode(body)?;
        stream.record_time(adopt.time_ns);
        let done = self.on(replica_ctx, adopt.partition, |replica, call| {
            replica.adopt(call, &adopt, stream, bytes);
        });
        if done.is_none() {
            refuse(adopt.partition, adopt.term, true, stream, bytes);
        }
        Ok(())
    }

    /// Handles a `LiteralChunk`, with the parameters of [`Replicas::adopt`].
    ///
    /// # Errors
    ///
    /// The body cannot be decoded.
    pub(crate) fn chunk(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        body: &[u8],
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), FrameError> {
        let reader = ChunkReader::new(body)?;
        let chunk = *reader.chunk();
        stream.record_time(chunk.time_ns);
        let done = self.on(replica_ctx, chunk.partition, |replica, call| {
            let done = replica.chunk(call, reader, stream, bytes);
            if done.is_err() {
                // A call that ends early leaves the header closed: this call opens it.
                replica.advance(call);
            }
            done
        });
        done.unwrap_or_else(|| {
            refuse(chunk.partition, chunk.term, chunk.is_first, stream, bytes);
            Ok(())
        })
    }

    /// Handles a `TermCheck`, with the parameters of [`Replicas::adopt`].
    ///
    /// # Errors
    ///
    /// The body cannot be decoded.
    pub(crate) fn check_term(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        body: &[u8],
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), FrameError> {
        let term_check = TermCheck::decode(body)?;
        let done = self.on(replica_ctx, term_check.partition, |replica, call| {
            replica.check_term(call, &term_check, stream, bytes);
        });
        if done.is_none() {
            refuse(term_check.partition, term_check.term, false, stream, bytes);
        }
        Ok(())
    }

    /// Handles a `Restart`.
    ///
    /// # Errors
    ///
    /// The body cannot be decoded.
    pub(crate) fn restart(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        body: &[u8],
        _: &mut ReceiveStream,
        _: usize,
    ) -> Result<(), FrameError> {
        let restart = Restart::decode(body)?;
        self.on(replica_ctx, restart.partition, |replica, call| replica.restart(call, &restart));
        Ok(())
    }

    /// Handles a `Pull`.
    ///
    /// # Errors
    ///
    /// The body cannot be decoded.
    pub(crate) fn pull(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        body: &[u8],
        _: &mut ReceiveStream,
        _: usize,
    ) -> Result<(), FrameError> {
        let pull = Pull::decode(body)?;
        self.on(replica_ctx, pull.partition, |replica, call| replica.pulled(call, &pull));
        Ok(())
    }

    /// Handles a refusal by the copy at the other end of a link. Called before the acknowledgement
    /// of the same ack is stored.
    pub(crate) fn refused(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        link: LinkIndex,
        refused: &StreamRefusal,
    ) {
        self.on(replica_ctx, refused.partition, |replica, call| {
            replica.refused(call, link, refused);
        });
    }
}

/// Refuses a frame for a partition that does not exist.
fn refuse(
    partition: Partition,
    term: Term,
    is_origin: bool,
    stream: &mut ReceiveStream,
    bytes: usize,
) {
    let (copy_term, end, last) = (Term(0), stream.end_of(bytes), Position::default());
    stream.refuse(StreamRefusal { partition, term, copy_term, end, last }, is_origin);
}
