//! What comes over the links that a worker reads.
//!
//! Here: records into the copies that follow, sixteen at a time; the other frames to where they belong. Not here: reading links
//! (`links`), what a frame does to a copy beyond its records (`copies`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::LaneId;
use cluster::dedup_log::{CopyLife, DedupLog};
use cluster::frames::{
    Answers, Beat, Fault, Kind, LaneDone, Record, RecordsReader, Section, State, Word,
};
use cluster::partition_header::PartitionHeader;
use cluster::receive_stream::ReceiveStream;
use cluster::replica::At;
use engine::{Engine, Now};
use parking_lot::Mutex;

use super::{Front, Lent, node_now};
use crate::node::Inbound;
use crate::node::copies::Copies;
use crate::node::links::{LinkHandler, PeerLink};
use crate::node::machine::{is_bare, items_time, unique};
use crate::node::operation::Source;
use crate::shards::HELD_MAX;

/// Records that are installed under one hold of their shards.
type Batch<'a> = ArrayVec<(Record<'a>, Section), HELD_MAX>;

impl<'a> LinkHandler<Lent<'a>> for Front {
    fn link_frame(
        &mut self,
        lent: &mut Lent<'a>,
        link: &Arc<PeerLink>,
        stream: &mut ReceiveStream,
        kind: Kind,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), Fault> {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space().filter(|_| self.begin_plane()) else { return Ok(()) };
        let copies = &space.copies;
        match kind {
            Kind::Records => self.records(lent, copies, stream, body, bytes),
            Kind::Forward => self.serve_forward(lent, Source::Link(link.index), body),
            Kind::Answers => {
                self.hear_answers(lent, &Answers::decode(body)?);
                Ok(())
            }
            Kind::Beat => {
                self.lanes_are_done(Beat::decode(body)?.done());
                Ok(())
            }
            Kind::Adopt | Kind::Chunk | Kind::Restart | Kind::Round | Kind::Pull => {
                let hands = &mut lent.hands(&node, self.contact, &mut self.work);
                match kind {
                    Kind::Adopt => copies.adopt(hands, body, stream, bytes),
                    Kind::Chunk => copies.chunk(hands, body, stream, bytes),
                    Kind::Restart => copies.restart(hands, body, stream, bytes),
                    Kind::Round => copies.round(hands, body, stream, bytes),
                    _ => copies.pull(hands, body, stream, bytes),
                }
            }
            _ => Ok(()),
        }
    }

    fn word(&mut self, lent: &mut Lent<'a>, link: &Arc<PeerLink>, word: &Word<'_>) {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return };
        for refused in word.refused() {
            space.copies.refused(
                &mut lent.hands(&node, self.contact, &mut self.work),
                link.index,
                &refused,
            );
        }
        self.lanes_are_done(word.done());
    }

    fn acknowledged(&mut self, lent: &mut Lent<'a>, link: &Arc<PeerLink>) {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return };
        space.copies.acknowledged(&mut lent.hands(&node, self.contact, &mut self.work), link.index);
        for (core, inbox) in node.inboxes.iter().enumerate() {
            if core != usize::from(self.core) && inbox.awaits_copies() {
                inbox.wake();
            }
        }
    }

    fn link_up(&mut self, lent: &mut Lent<'a>, link: &Arc<PeerLink>) {
        let node = Arc::clone(&self.node);
        let Some(space) = node.space() else { return };
        space.copies.connected(&mut lent.hands(&node, self.contact, &mut self.work), link.index);
        for inbox in &node.inboxes {
            inbox.push(Inbound::LinkUp(link.peer));
        }
    }

    fn has_read(&mut self, lent: &mut Lent<'a>) {
        lent.now = node_now(lent.service.clock(), lent.service.clock().now());
    }

    fn touched(&mut self, link: &Arc<PeerLink>) {
        self.work.touched.add(link);
    }

    fn lanes_done(&mut self, done: &mut Vec<LaneDone>) {
        if let Some(plane) = &self.plane {
            done.extend(plane.ops.all_done());
        }
    }
}

impl Front {
    /// What the lanes of the peer are done with.
    fn lanes_are_done(&self, done: impl Iterator<Item = LaneDone>) {
        let Some(space) = self.node.space() else { return };
        done.for_each(|done| space.copies.logs().hear(&done));
    }

    fn records(
        &mut self,
        lent: &mut Lent<'_>,
        copies: &Copies,
        stream: &mut ReceiveStream,
        body: &[u8],
        bytes: usize,
    ) -> Result<(), Fault> {
        let mut reader = RecordsReader::new(body)?;
        let frame_ns = reader.time_ns();
        stream.heard_time(frame_ns);
        let mut log = LaneLog::default();
        loop {
            let mut batch = Batch::new();
            while !batch.is_full()
                && let Some(record) = reader.next_record()?
            {
                batch.push((record, *reader.section()));
            }
            if batch.is_empty() {
                return Ok(());
            }
            self.install(lent, copies, stream, (frame_ns, bytes), &batch, &mut log);
        }
    }

    /// Installs records, each with its number, its position and its result under one hold of its shard.
    fn install(
        &mut self,
        lent: &mut Lent<'_>,
        copies: &Copies,
        stream: &mut ReceiveStream,
        (frame_ns, bytes): (u64, usize),
        batch: &Batch<'_>,
        log: &mut LaneLog,
    ) {
        let node = Arc::clone(&self.node);
        let shards = lent.service.shards();
        let unix_ms = lent.now.wall_ns / 1_000_000;
        let mut from = 0;
        while from < batch.len() {
            let rest = &batch[from..];
            let mut hashes: ArrayVec<u64, HELD_MAX> = ArrayVec::new();
            for (record, _) in rest {
                let hash = shards.hash_in(record.partition.0, record.key);
                shards.prefetch_shard(hash);
                if let Some(header) = copies.header(record.partition) {
                    engine::prefetch(header);
                }
                hashes.push(hash);
            }
            let mut done = 0;
            if !copies.are_shared() {
                let mut held = shards.hold(&hashes);
                for (position, (record, _)) in rest.iter().enumerate() {
                    let Some(header) = copies.header(record.partition) else { break };
                    let Some(engine) = held.engine_beside(position, hashes[position]) else {
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
                log.add(copies, &rest[..done]);
            }
            from += done;
            if done == rest.len() {
                return;
            }
            // Refused, or not to be done under the hold of others.
            let (record, section) = &batch[from];
            copies.install(
                &mut lent.hands(&node, self.contact, &mut self.work),
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

/// Makes the key what the record says; false: nothing is done, for the copy does not follow, or more than this shard is needed.
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
    match record.state {
        State::Counter(count) => {
            let at = At { pt_ns: 0, term: record.term, lsn: record.lsn };
            engine.put_bare_count(now, hash, record.key, count, unique(at)).is_ok()
        }
        State::Item(bytes) => {
            is_bare(record.key, bytes) && engine.put_copy(now, hash, record.key, bytes).is_ok()
        }
        State::Deleted => {
            engine.remove_copy(hash, record.key);
            true
        }
        State::Unchanged => true,
    }
}

/// The log of the lane that records come from.
#[derive(Default)]
struct LaneLog(Option<(LaneId, Arc<Mutex<DedupLog>>)>);

impl LaneLog {
    /// Adds the results of records that were just installed, whose shards are still held.
    fn add(&mut self, copies: &Copies, mut records: &[(Record<'_>, Section)]) {
        while let Some((_, section)) = records.first() {
            let lane = section.lane;
            let count = records.iter().take_while(|(_, section)| section.lane == lane).count();
            let (of_lane, others) = records.split_at(count);
            records = others;
            if lane == LaneId::default() {
                continue;
            }
            if self.0.as_ref().is_none_or(|(known, _)| *known != lane) {
                self.0 = Some((lane, copies.logs().log_for_records(lane)));
            }
            let Some((_, log)) = &self.0 else { return };
            let mut log = log.lock();
            for (record, section) in of_lane {
                log.hear(section.done);
                let Some(header) = copies.header(record.partition) else { continue };
                let (partition, term) = (record.partition, record.term);
                let copy = CopyLife { partition, life: header.life(), term };
                log.add(section.first + u64::from(record.place), copy, record.result);
            }
        }
    }
}
