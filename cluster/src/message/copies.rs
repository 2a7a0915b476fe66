//! What copies of a partition say to each other.
//!
//! Here: the fields of each message. Not here: what they mean (`replica`), to whom and from whom
//! they are (the frame around them).

use super::Fault;
use super::wire::{Reader, Writer};
use crate::replica::{Chunk, Message, Nak, Record, SessionResults, Stamp, Write};

const ADOPT: u8 = 1;
const RECORD: u8 = 2;
const BEAT: u8 = 3;
const ACK: u8 = 4;
const NAK_STALE: u8 = 5;
const NAK_DIVERGED: u8 = 6;
const NAK_GAP: u8 = 7;
const PULL: u8 = 8;
const CHUNK: u8 = 9;
const RESTART: u8 = 10;

pub(super) fn encode(message: &Message, writer: &mut Writer<'_>) {
    match message {
        Message::Adopt { position, pt_ns } => {
            writer.byte(ADOPT);
            writer.position(*position);
            writer.number(*pt_ns);
        }
        Message::Record(record) => {
            writer.byte(RECORD);
            encode_record(record, writer);
        }
        Message::Beat { lsn, commit, pt_ns, round } => {
            writer.byte(BEAT);
            writer.number(*lsn);
            writer.number(*commit);
            writer.number(*pt_ns);
            writer.number(*round);
        }
        Message::Ack { lsn, round, base, complete } => {
            writer.byte(ACK);
            writer.number(*lsn);
            writer.number(*round);
            writer.number(*base);
            writer.flag(*complete);
        }
        Message::Nak(Nak::Stale) => writer.byte(NAK_STALE),
        Message::Nak(Nak::Diverged(position)) => {
            writer.byte(NAK_DIVERGED);
            writer.position(*position);
        }
        Message::Nak(Nak::Gap(position)) => {
            writer.byte(NAK_GAP);
            writer.position(*position);
        }
        Message::Pull { base, pull, cursor } => {
            writer.byte(PULL);
            writer.number(*base);
            writer.number(*pull);
            writer.option(cursor.as_ref(), |writer, cursor| writer.key(cursor));
        }
        Message::Chunk(chunk) => {
            writer.byte(CHUNK);
            encode_chunk(chunk, writer);
        }
        Message::Restart { base } => {
            writer.byte(RESTART);
            writer.number(*base);
        }
    }
}

pub(super) fn decode(reader: &mut Reader) -> Result<Message, Fault> {
    Ok(match reader.byte()? {
        ADOPT => Message::Adopt { position: reader.position()?, pt_ns: reader.number()? },
        RECORD => Message::Record(decode_record(reader)?),
        BEAT => Message::Beat {
            lsn: reader.number()?,
            commit: reader.number()?,
            pt_ns: reader.number()?,
            round: reader.number()?,
        },
        ACK => Message::Ack {
            lsn: reader.number()?,
            round: reader.number()?,
            base: reader.small()?,
            complete: reader.flag()?,
        },
        NAK_STALE => Message::Nak(Nak::Stale),
        NAK_DIVERGED => Message::Nak(Nak::Diverged(reader.position()?)),
        NAK_GAP => Message::Nak(Nak::Gap(reader.position()?)),
        PULL => Message::Pull {
            base: reader.small()?,
            pull: reader.small()?,
            cursor: reader.option(Reader::key)?,
        },
        CHUNK => Message::Chunk(decode_chunk(reader)?),
        RESTART => Message::Restart { base: reader.small()? },
        _ => return Err(Fault::Range("message")),
    })
}

fn encode_record(record: &Record, writer: &mut Writer<'_>) {
    writer.position(record.position);
    writer.number(record.commit);
    writer.number(record.pt_ns);
    writer.option(record.write.as_ref(), |writer, write| {
        writer.key(&write.key);
        writer.option(write.state.as_ref(), |writer, state| writer.bytes(state));
    });
    writer.option(record.stamp.as_ref(), |writer, stamp| {
        writer.session(stamp.session);
        writer.number(stamp.first_unacked);
        writer.option(stamp.result.as_ref(), |writer, (seq, result)| {
            writer.number(*seq);
            writer.bytes(result);
        });
    });
}

fn decode_record(reader: &mut Reader) -> Result<Record, Fault> {
    Ok(Record {
        position: reader.position()?,
        commit: reader.number()?,
        pt_ns: reader.number()?,
        write: reader.option(|reader| {
            Ok(Write { key: reader.key()?, state: reader.option(Reader::bytes)? })
        })?,
        stamp: reader.option(|reader| {
            Ok(Stamp {
                session: reader.session()?,
                first_unacked: reader.number()?,
                result: reader.option(|reader| Ok((reader.number()?, reader.bytes()?)))?,
            })
        })?,
    })
}

fn encode_chunk(chunk: &Chunk, writer: &mut Writer<'_>) {
    writer.number(chunk.pull);
    writer.position(chunk.position);
    writer.number(chunk.pt_ns);
    writer.list(&chunk.states, |writer, (key, state)| {
        writer.key(key);
        writer.bytes(state);
    });
    writer.option(chunk.cursor.as_ref(), |writer, cursor| writer.key(cursor));
    writer.list(&chunk.results, |writer, results| {
        writer.session(results.session);
        writer.number(results.floor);
        writer.list(&results.kept, |writer, (seq, lsn, result)| {
            writer.number(*seq);
            writer.number(*lsn);
            writer.bytes(result);
        });
    });
}

fn decode_chunk(reader: &mut Reader) -> Result<Chunk, Fault> {
    Ok(Chunk {
        pull: reader.small()?,
        position: reader.position()?,
        pt_ns: reader.number()?,
        states: reader.list(|reader| Ok((reader.key()?, reader.bytes()?)))?,
        cursor: reader.option(Reader::key)?,
        results: reader.list(|reader| {
            Ok(SessionResults {
                session: reader.session()?,
                floor: reader.number()?,
                kept: reader
                    .list(|reader| Ok((reader.number()?, reader.number()?, reader.bytes()?)))?,
            })
        })?,
    })
}
