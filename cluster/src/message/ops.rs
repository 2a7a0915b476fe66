//! Operations on their way to a primary, and their answers.
//!
//! Here: the fields of the two frames. Not here: what they mean (`replica`).

use super::Fault;
use super::wire::{Reader, Writer};
use crate::id::Partition;
use crate::replica::{AckMode, Kind, Op, Outcome, Refusal, Reply, Route, SessionId};

const WRITES: u8 = 1;
const ANSWERS_AT_ONCE: u8 = 2;

pub(super) fn encode_op(partition: Partition, op: &Op, now_ns: u64, writer: &mut Writer<'_>) {
    writer.partition(partition);
    writer.term(op.term);
    writer.session(op.session);
    writer.number(op.seq);
    writer.number(op.first_unacked);
    let kind = if op.kind == Kind::Write { WRITES } else { 0 };
    let ack = if op.ack == AckMode::Owner { ANSWERS_AT_ONCE } else { 0 };
    writer.byte(kind | ack);
    // Rounded down: a deadline is never later for having travelled.
    let left_us = op.deadline_ns.saturating_sub(now_ns) / 1000;
    writer.number(u32::try_from(left_us).unwrap_or(u32::MAX));
    writer.bytes(&op.op);
}

pub(super) fn decode_op(now_ns: u64, reader: &mut Reader) -> Result<(Partition, Op), Fault> {
    let partition = reader.partition()?;
    let term = reader.term()?;
    let session = reader.session()?;
    let seq = reader.number()?;
    let first_unacked = reader.number()?;
    let flags = reader.byte()?;
    if flags > WRITES | ANSWERS_AT_ONCE {
        return Err(Fault::Range("flags"));
    }
    let left_us = u64::from(reader.small::<u32>()?);
    let op = Op {
        term,
        session,
        seq,
        first_unacked,
        kind: if flags & WRITES > 0 { Kind::Write } else { Kind::Read },
        ack: if flags & ANSWERS_AT_ONCE > 0 { AckMode::Owner } else { AckMode::Replica },
        deadline_ns: now_ns.saturating_add(left_us * 1000),
        op: reader.bytes()?,
    };
    Ok((partition, op))
}

const DONE: u8 = 0;
const NOT_OWNER: u8 = 1;
const DEPOSED: u8 = 2;
/// And above.
const REFUSED: u8 = 8;

pub(super) fn encode_reply(
    partition: Partition,
    to: SessionId,
    reply: &Reply,
    writer: &mut Writer<'_>,
) {
    writer.partition(partition);
    writer.session(to);
    writer.term(reply.term);
    writer.number(reply.seq);
    match &reply.outcome {
        Outcome::Done(result) => {
            writer.byte(DONE);
            writer.bytes(result);
        }
        Outcome::NotOwner(route) => {
            writer.byte(NOT_OWNER);
            writer.option(*route, encode_route);
        }
        Outcome::Deposed(route) => {
            writer.byte(DEPOSED);
            writer.option(*route, encode_route);
        }
        Outcome::Refused(refusal) => writer.byte(match refusal {
            Refusal::Expired => REFUSED,
            Refusal::Moving => REFUSED + 1,
            Refusal::Busy => REFUSED + 2,
            Refusal::Stopped => REFUSED + 3,
            Refusal::Stale => REFUSED + 4,
            Refusal::Unreachable => REFUSED + 5,
        }),
    }
}

pub(super) fn decode_reply(reader: &mut Reader) -> Result<(Partition, SessionId, Reply), Fault> {
    let partition = reader.partition()?;
    let to = reader.session()?;
    let term = reader.term()?;
    let seq = reader.number()?;
    let outcome = match reader.byte()? {
        DONE => Outcome::Done(reader.bytes()?),
        NOT_OWNER => Outcome::NotOwner(reader.option(decode_route)?),
        DEPOSED => Outcome::Deposed(reader.option(decode_route)?),
        REFUSED => Outcome::Refused(Refusal::Expired),
        9 => Outcome::Refused(Refusal::Moving),
        10 => Outcome::Refused(Refusal::Busy),
        11 => Outcome::Refused(Refusal::Stopped),
        12 => Outcome::Refused(Refusal::Stale),
        13 => Outcome::Refused(Refusal::Unreachable),
        _ => return Err(Fault::Range("outcome")),
    };
    Ok((partition, to, Reply { term, seq, outcome }))
}

fn encode_route(writer: &mut Writer<'_>, route: Route) {
    writer.term(route.term);
    writer.copy(route.primary);
}

fn decode_route(reader: &mut Reader) -> Result<Route, Fault> {
    Ok(Route { term: reader.term()?, primary: reader.copy()? })
}
