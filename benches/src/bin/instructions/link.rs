//! The two ends of a data link: a frame of records is appended to a stream, and read at the other
//! end.
//!
//! Here: frames of sixteen counters. Not here: what nodes do with them (`load`, which times nodes).

use std::hint::black_box;

use cluster::frames::{HEADER_BYTES, KeyState, Record, RecordResult, RecordsReader, RecordsWriter};
use cluster::id::{OpStreamId, Partition, Term};
use cluster::receive_stream::ReceiveStream;
use cluster::send_stream::SendStream;

use crate::run::{KEYS, PIPELINE, key, measured};

/// A name, and a function that handles one record of each key.
pub(crate) const PARTS: [(&str, fn()); 2] = [("append", append), ("read", read)];

/// Writes a frame of records for each batch, and passes it on.
fn write_frames(keys: &[String], mut take: impl FnMut(&[u8])) {
    let mut writer = RecordsWriter::default();
    for (batch, keys) in keys.chunks(PIPELINE).enumerate() {
        let first = (batch * PIPELINE) as u64;
        writer.begin(first);
        writer.section(OpStreamId::default(), first, first);
        for (number, key) in (1..).zip(keys) {
            writer.record(&Record {
                partition: Partition(number),
                place: number,
                term: Term(3),
                lsn: first,
                pt_ns: None,
                key: key.as_bytes(),
                state: KeyState::Counter(first),
                result: RecordResult::Number(first),
            });
        }
        take(writer.finish());
    }
}

/// Writes the frames, and appends each to a stream whose peer acknowledges it before the next.
fn append() {
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let mut stream = SendStream::default();
    let mut run = || {
        write_frames(&keys, |frame| {
            let end = stream.append(frame, 1000);
            stream.sent(frame.len());
            stream.acknowledge(end, 1000).expect("it was sent");
        });
    };
    run();
    measured(&mut run);
    assert_eq!(stream.unacked(), 0);
}

/// Reads the records of each frame, and acknowledges it.
fn read() {
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let mut frames = Vec::new();
    write_frames(&keys, |frame| frames.push(frame.to_vec()));
    let (mut stream, mut out, mut records) = (ReceiveStream::default(), Vec::new(), 0);
    let mut run = || {
        for frame in &frames {
            let mut reader = RecordsReader::new(&frame[HEADER_BYTES..]).expect("a good frame");
            black_box(stream.end_of(frame.len()));
            while let Some(record) = reader.next_record().expect("a good record") {
                black_box(&record);
                records += 1;
            }
            stream.record_time(reader.time_ns());
            stream.advance(frame.len());
            out.clear();
            stream.ack(&[], &mut out);
        }
    };
    run();
    measured(&mut run);
    assert_eq!(records, 2 * KEYS);
}
