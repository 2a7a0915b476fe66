//! What other copies say: records that no batch could install, and all that is rarer.
//!
//! Not here: records in batches (`front`), what a copy makes of it (`cluster::replica`).

use cluster::LaneId;
use cluster::LinkIndex;
use cluster::dedup_log::CopyLife;
use cluster::frames::{Adopt, ChunkReader, Fault, Pull, Record, Refused, Restart, Round, Section};
use cluster::id::{Partition, Term};
use cluster::partition_header::{HeaderState, PartitionHeader};
use cluster::receive_stream::ReceiveStream;
use cluster::replica::{At, Machine as _, Position};

use super::{Copies, Hands, close};

impl Copies {
    /// Installs a record that came in a frame of so many `bytes`, the next of `stream`, or refuses it.
    pub(crate) fn install(
        &self,
        hands: &mut Hands<'_>,
        section: &Section,
        frame_ns: u64,
        record: &Record<'_>,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let partition = record.partition;
        let Some((header, slot)) = self.enter(partition) else {
            return self.refuse(partition, record.term, false, stream, bytes);
        };
        let Some(replica) = &slot.replica else {
            return self.refuse(partition, record.term, false, stream, bytes);
        };
        let state = close(hands, partition, header);
        let is_next = state == HeaderState::Follows
            && header.term() == record.term
            && header.lsn() + 1 == record.lsn;
        if is_next {
            self.install_next(hands, header, section, frame_ns, record);
        } else {
            let end = stream.end_of(bytes);
            stream.refuse(replica.refusal(header, record.term, end), false);
        }
        header.open(state);
    }

    fn install_next(
        &self,
        hands: &mut Hands<'_>,
        header: &PartitionHeader,
        section: &Section,
        frame_ns: u64,
        record: &Record<'_>,
    ) {
        let &Record { partition, place, term, lsn, pt_ns, key, state, result } = record;
        let pt_ns = header.time_of(frame_ns, pt_ns).max(header.pt_ns());
        let at = At { pt_ns, term, lsn };
        self.with(hands, partition, header, |turn| turn.machine.install(at, key, &state));
        header.installed(lsn, pt_ns);
        if section.lane.node == LaneId::default().node {
            return;
        }
        let copy = CopyLife { partition, life: header.life(), term };
        let log = self.logs.log_for_records(section.lane);
        let mut log = log.lock();
        log.hear(section.done);
        log.add(section.first + u64::from(place), copy, result);
    }

    /// Refuses what is for a partition of which there is no copy.
    fn refuse(
        &self,
        partition: Partition,
        term: Term,
        is_origin: bool,
        stream: &mut ReceiveStream,
        bytes: usize,
    ) {
        let copy_term = self.header(partition).map_or(Term(0), PartitionHeader::term);
        let (end, last) = (stream.end_of(bytes), Position::default());
        stream.refuse(Refused { partition, term, copy_term, end, last }, is_origin);
    }

    /// An `Adopt` with this body came; the frame has so many `bytes` and is the next of `stream`.
    ///
    /// # Errors
    ///
    /// It is broken.
    pub(crate) fn adopt(
        &self,
        hands: &mut Hands<'_>,
        body: &[u8],
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), Fault> {
        let adopt = Adopt::decode(body)?;
        stream.heard_time(adopt.time_ns);
        let done = self.on(hands, adopt.partition, |replica, turn| {
            replica.adopt(turn, &adopt, stream, bytes);
        });
        if done.is_none() {
            self.refuse(adopt.partition, adopt.term, true, stream, bytes);
        }
        Ok(())
    }

    /// A `Chunk` came, as [`Copies::adopt`].
    ///
    /// # Errors
    ///
    /// It is broken.
    pub(crate) fn chunk(
        &self,
        hands: &mut Hands<'_>,
        body: &[u8],
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), Fault> {
        let reader = ChunkReader::new(body)?;
        let chunk = *reader.chunk();
        stream.heard_time(chunk.time_ns);
        let done = self.on(hands, chunk.partition, |replica, turn| {
            let done = replica.chunk(turn, reader, stream, bytes);
            if done.is_err() {
                // A call that ends early leaves the header closed: this one opens it.
                replica.advance(turn);
            }
            done
        });
        done.unwrap_or_else(|| {
            self.refuse(chunk.partition, chunk.term, chunk.is_first, stream, bytes);
            Ok(())
        })
    }

    /// A `Round` came, as [`Copies::adopt`].
    ///
    /// # Errors
    ///
    /// It is broken.
    pub(crate) fn round(
        &self,
        hands: &mut Hands<'_>,
        body: &[u8],
        stream: &mut ReceiveStream,
        bytes: usize,
    ) -> Result<(), Fault> {
        let round = Round::decode(body)?;
        let done = self.on(hands, round.partition, |replica, turn| {
            replica.round(turn, &round, stream, bytes);
        });
        if done.is_none() {
            self.refuse(round.partition, round.term, false, stream, bytes);
        }
        Ok(())
    }

    /// A `Restart` came.
    ///
    /// # Errors
    ///
    /// It is broken.
    pub(crate) fn restart(
        &self,
        hands: &mut Hands<'_>,
        body: &[u8],
        _: &mut ReceiveStream,
        _: usize,
    ) -> Result<(), Fault> {
        let restart = Restart::decode(body)?;
        self.on(hands, restart.partition, |replica, turn| replica.restart(turn, &restart));
        Ok(())
    }

    /// A `Pull` came.
    ///
    /// # Errors
    ///
    /// It is broken.
    pub(crate) fn pull(
        &self,
        hands: &mut Hands<'_>,
        body: &[u8],
        _: &mut ReceiveStream,
        _: usize,
    ) -> Result<(), Fault> {
        let pull = Pull::decode(body)?;
        self.on(hands, pull.partition, |replica, turn| replica.pulled(turn, &pull));
        Ok(())
    }

    /// The copy at the other end of a link did not take something of its stream. To be called before the acknowledgement of
    /// the same word is stored.
    pub(crate) fn refused(&self, hands: &mut Hands<'_>, link: LinkIndex, refused: &Refused) {
        self.on(hands, refused.partition, |replica, turn| replica.refused(turn, link, refused));
    }
}
