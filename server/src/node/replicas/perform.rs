//! Operations outside batches: on closed headers, of uncommon kinds, sent again.
//!
//! Here: whether an operation is performed, its record and its entry in the dedup log, the needs of
//! its reply. Not here: its effect (`state_machine`), batches (`batch`), its delivery (`router`).

use std::sync::Arc;

use arrayvec::ArrayVec;
use cluster::OpStreamId;
use cluster::dedup_log::{CopyGeneration, DedupLog, DedupLookup, NotAdmitted};
use cluster::frames::{KeyState, Record, RecordResult, TermCheck, op_flags};
use cluster::parked_reply::Need;
use cluster::partition_header::{HeaderState, PartitionHeader};
use cluster::record_ends::RecordEnds;
use cluster::replica::{Admission, ApplyPosition, Refusal};
use cluster::replica_set::{LINKS_MAX, ReplicaSet};
use parking_lot::Mutex;

use super::super::links::PeerLink;
use super::super::operation::{OpRef, Performed};
use super::super::state_machine::OpKind;
use super::{ReplicaContext, Replicas, close, lacks_copy};

/// Longest reply that a dedup log keeps, in bytes. An operation with a longer reply is performed
/// again if it is sent again: it was a retrieval that touched its key.
const REPLY_BYTES_MAX: usize = u16::MAX as usize;

/// The partition of an operation: its header, replica set and links, and the operation's dedup log.
struct PerformTarget<'a> {
    header: &'a PartitionHeader,
    set: ReplicaSet,
    /// The links of the set, in its order.
    links: ArrayVec<Arc<PeerLink>, LINKS_MAX>,
    log: Arc<Mutex<DedupLog>>,
}

impl Replicas {
    /// Performs an operation and appends its reply to `out`, or holds it until its partition is
    /// served. An operation with the flag `AGAIN`, which was sent before or held, is first looked
    /// up in the dedup log.
    pub(crate) fn perform(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        op: &OpRef<'_>,
        out: &mut Vec<u8>,
    ) -> Performed {
        if replica_ctx.now.mono_ns >= op.deadline_ns {
            return Performed::Refused(Refusal::Expired);
        }
        if self.is_stopped(replica_ctx.contact, replica_ctx.now) {
            return Performed::Refused(Refusal::Stopped);
        }
        let log = match self.logs.log_of(op.stream) {
            Ok(log) => log,
            Err(NotAdmitted::NotYet) => return Performed::Refer(None),
            Err(NotAdmitted::Over) => return Performed::Refused(Refusal::Stale),
        };
        let Some(kind) = OpKind::of_bits(op.op_flags) else {
            return Performed::Refused(Refusal::Stale);
        };
        let Some((header, mut group)) = self.enter(op.partition) else {
            return Performed::Refer(None);
        };
        let host = self.host(replica_ctx.node);
        let admission =
            group.view(&host, op.partition, header, |replica| replica.admit(header, op.term));
        match admission {
            Admission::Refer(route) => return Performed::Refer(route),
            Admission::Perform | Admission::Hold | Admission::Refuse(_)
                if lacks_copy(replica_ctx.node, &group.entry(op.partition).in_sync) =>
            {
                return Performed::Refused(Refusal::Unreachable);
            }
            Admission::Perform => {}
            Admission::Refuse(refusal) => return Performed::Refused(refusal),
            Admission::Hold => {
                let mut held = op.to_held();
                // Another sending of it may be held too, so it is looked up when it is performed.
                held.op_flags |= op_flags::AGAIN;
                group.hold(op.partition, replica_ctx.now, held, op.deadline_ns);
                self.after(replica_ctx, &host, op.partition, (header, &group));
                return Performed::Held;
            }
        }
        let set = self.set_table.get(header.set());
        let links =
            set.links().iter().filter_map(|link| replica_ctx.node.links().get(*link)).collect();
        let target = PerformTarget { header, set, links, log };
        if target.links.len() < set.links().len() {
            return Performed::Refused(Refusal::Unreachable);
        }
        if op.op_flags & op_flags::READ == 0 && target.links.iter().any(|link| link.is_full()) {
            return Performed::Refused(Refusal::Busy);
        }
        close(replica_ctx, op.partition, header);
        let performed = self.perform_here(replica_ctx, &target, op, kind, out);
        header.open(HeaderState::Serves);
        performed
    }

    fn perform_here(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        target: &PerformTarget<'_>,
        op: &OpRef<'_>,
        kind: OpKind,
        out: &mut Vec<u8>,
    ) -> Performed {
        let header = target.header;
        let term = header.term();
        let copy =
            CopyGeneration { partition: op.partition, generation: header.generation(), term };
        if let Some(known) = look_up(&target.log, op, copy, out) {
            return match known {
                Ok(()) => Performed::Done { needs: self.confirm(replica_ctx, target, op), term },
                Err(refusal) => Performed::Refused(refusal),
            };
        }
        let from = out.len();
        let at = header.next_closed(replica_ctx.now);
        let mut change = std::mem::take(&mut replica_ctx.replica_scratch.change);
        change.clear();
        self.with(replica_ctx, op.partition, header, |call| {
            call.state_machine.perform(at, kind, op.line, out, &mut change);
        });
        let reply = &out[from..];
        let is_kept = op.op_flags & op_flags::READ == 0 && reply.len() <= REPLY_BYTES_MAX;
        let needs = if let Some(state) = change.state() {
            header.take(at);
            let result = if is_kept { result_of(state, reply) } else { RecordResult::None };
            let stream = if is_kept { op.stream } else { OpStreamId::default() };
            let change = (&change.key[..], state, result);
            append(&self.record_ends, replica_ctx, target, op, (at, stream), change);
            if is_kept {
                target.log.lock().add(op.number, copy, result);
            }
            self.needs(replica_ctx, target, op)
        } else {
            if is_kept {
                target.log.lock().add_unchanged(op.number, copy, reply);
            }
            self.confirm(replica_ctx, target, op)
        };
        replica_ctx.replica_scratch.change = change;
        Performed::Done { needs, term }
    }

    /// The needs of the reply to an operation, by the positions of its partition, which cover
    /// everything that the operation has read.
    fn needs(
        &self,
        replica_ctx: &ReplicaContext<'_>,
        target: &PerformTarget<'_>,
        op: &OpRef<'_>,
    ) -> ArrayVec<Need, LINKS_MAX> {
        let mandatory = || target.links.iter().take(target.set.mandatory().len());
        let lag_ns = self.options.read().owner_lag_ns;
        let is_near = |link: &Arc<PeerLink>| link.age_ns(replica_ctx.now.mono_ns) < lag_ns;
        if op.op_flags & op_flags::OWNER != 0 && mandatory().all(is_near) {
            return ArrayVec::new();
        }
        let needs = mandatory().enumerate().filter_map(|(slot, link)| {
            let position = self.record_ends.get(op.partition, slot);
            (link.acked.get() < position).then_some(Need { link: link.index, position })
        });
        needs.collect()
    }

    /// The needs of an operation without a record: its reply is valid if this node is still
    /// primary. A lease proves that; otherwise each mandatory copy has to confirm the term.
    fn confirm(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        target: &PerformTarget<'_>,
        op: &OpRef<'_>,
    ) -> ArrayVec<Need, LINKS_MAX> {
        if self.has_lease(replica_ctx.contact, replica_ctx.now) {
            return self.needs(replica_ctx, target, op);
        }
        let term_check = TermCheck { partition: op.partition, term: target.header.term() };
        let ask = |link: &Arc<PeerLink>| {
            replica_ctx.replica_scratch.touched.add(link);
            let position = link.append_with(replica_ctx.now.mono_ns, |out| term_check.encode(out));
            Need { link: link.index, position }
        };
        target.links.iter().take(target.set.mandatory().len()).map(ask).collect()
    }
}

/// Looks an operation up in its log. `None`: it is to be performed; otherwise its reply was
/// appended to `out`, or it is refused.
fn look_up(
    log: &Mutex<DedupLog>,
    op: &OpRef<'_>,
    copy: CopyGeneration,
    out: &mut Vec<u8>,
) -> Option<Result<(), Refusal>> {
    let mut log = log.lock();
    if op.op_flags & op_flags::AGAIN == 0 {
        return (op.number < log.done()).then_some(Err(Refusal::Stale));
    }
    match log.look_up(op.number, copy) {
        DedupLookup::New => None,
        DedupLookup::Stale => Some(Err(Refusal::Stale)),
        DedupLookup::Done(result) => {
            put_reply(result, out);
            Some(Ok(()))
        }
    }
}

/// Appends a record to the links of the set, and stores its end positions.
fn append(
    record_ends: &RecordEnds,
    replica_ctx: &mut ReplicaContext<'_>,
    target: &PerformTarget<'_>,
    op: &OpRef<'_>,
    (at, stream): (ApplyPosition, OpStreamId),
    (key, state, result): (&[u8], KeyState<'_>, RecordResult<'_>),
) {
    if target.links.is_empty() {
        return;
    }
    let now_ns = replica_ctx.now.mono_ns;
    let (first, done) = match stream {
        OpStreamId { node, .. } if node == OpStreamId::default().node => (0, 0),
        _ => (op.number, target.log.lock().done()),
    };
    let writer = &mut replica_ctx.replica_scratch.records;
    writer.begin(now_ns);
    writer.section(stream, first, done);
    writer.record(&Record {
        partition: op.partition,
        place: 0,
        term: at.term,
        lsn: at.lsn,
        pt_ns: target.header.time_beside(now_ns, at),
        key,
        state,
        result,
    });
    let frame = writer.finish();
    for (slot, link) in target.links.iter().enumerate() {
        let end = link.append(now_ns, frame);
        record_ends.set(op.partition, slot, end);
        replica_ctx.replica_scratch.touched.add(link);
    }
}

/// The form in which the log keeps a reply: that of a count as its number.
fn result_of<'a>(state: KeyState<'_>, reply: &'a [u8]) -> RecordResult<'a> {
    match state {
        _ if reply.is_empty() => RecordResult::None,
        KeyState::Counter(count) if is_number(reply, count) => RecordResult::Number(count),
        _ => RecordResult::Bytes(reply),
    }
}

/// Whether a reply is the line of this number.
fn is_number(reply: &[u8], number: u64) -> bool {
    let mut line = Vec::with_capacity(24);
    put_number(number, &mut line);
    reply == line
}

fn put_number(number: u64, out: &mut Vec<u8>) {
    use std::io::Write as _;
    // Writing to memory cannot fail.
    let _ = write!(out, "{number}\r\n");
}

/// Appends the reply of a kept result.
fn put_reply(result: RecordResult<'_>, out: &mut Vec<u8>) {
    match result {
        RecordResult::Number(number) => put_number(number, out),
        RecordResult::Bytes(bytes) => out.extend_from_slice(bytes),
        RecordResult::None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_kept_so_that_it_comes_back() {
        let replies: [&[u8]; 8] = [
            b"",
            b"5\r\n",
            b"05\r\n",
            b"5",
            b"6\r\n",
            b"STORED\r\n",
            b"HD O5\r\n",
            b"5\r\nEND\r\n",
        ];
        for state in [KeyState::Counter(5), KeyState::Deleted, KeyState::Item(b"5")] {
            for reply in replies {
                let result = result_of(state, reply);
                let is_number = matches!(result, RecordResult::Number(_));
                assert_eq!(is_number, state == KeyState::Counter(5) && reply == b"5\r\n");
                let mut out = Vec::new();
                put_reply(result, &mut out);
                assert_eq!(out, reply);
            }
        }
        assert!(is_number(b"18446744073709551615\r\n", u64::MAX) && is_number(b"0\r\n", 0));
    }
}
