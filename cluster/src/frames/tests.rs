//! Frames of data links: round trips, frames cut at every byte, and garbage.

use proptest::prelude::*;

use super::*;
use crate::id::OpStreamId;
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::position::Position;
use crate::route::{Refusal, Route};

fn op_stream() -> impl Strategy<Value = OpStreamId> {
    (any::<u32>(), any::<u64>(), any::<u16>(), any::<u32>()).prop_map(
        |(node, incarnation, worker, owner)| OpStreamId {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            worker,
            owner: NodeId(owner),
        },
    )
}

fn copy() -> impl Strategy<Value = CopyId> {
    (any::<u32>(), any::<u64>(), any::<u32>()).prop_map(|(node, incarnation, assignment)| CopyId {
        node: NodeId(node),
        incarnation: Incarnation(incarnation),
        assignment,
    })
}

fn term() -> impl Strategy<Value = Term> {
    (0_u32..1 << 24).prop_map(Term)
}

/// A record that owns its fields.
#[derive(Debug, Clone)]
struct Owned {
    fields: (u16, u16, u32, u64, Option<u64>),
    key: Vec<u8>,
    state: (u8, u64, Vec<u8>),
    result: (u8, Vec<u8>),
}

impl Owned {
    fn borrowed(&self) -> Record<'_> {
        let (partition, place, term, lsn, pt_ns) = self.fields;
        let state = match self.state.0 {
            0 => KeyState::Counter(self.state.1),
            1 => KeyState::Item(&self.state.2),
            2 => KeyState::Deleted,
            3 => KeyState::Unchanged,
            // Few policies, so that many records have that of the record before.
            number => {
                let policy =
                    [&b"gcra:5/1s"[..], b"fixed:5/1s", b"gcra:7/1s"][usize::from(number % 3)];
                KeyState::Limit { policy, state: &self.state.2 }
            }
        };
        let result = match (self.result.0, state) {
            (0, KeyState::Counter(value)) => RecordResult::Number(value),
            (0, KeyState::Limit { .. }) => RecordResult::Number(self.state.1),
            (1, _) => RecordResult::Bytes(&self.result.1),
            _ => RecordResult::None,
        };
        let (partition, term) = (Partition(partition), Term(term));
        Record { partition, place, term, lsn, pt_ns, key: &self.key, state, result }
    }
}

fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

fn record() -> impl Strategy<Value = Owned> {
    let key = prop_oneof![bytes(40), prop::collection::vec(any::<u8>(), 250..=KEY_BYTES_MAX)];
    (
        (any::<u16>(), any::<u16>(), 0_u32..1 << 24, any::<u64>(), any::<Option<u64>>()),
        key,
        (0_u8..10, any::<u64>(), bytes(60)),
        (0_u8..3, bytes(30)),
    )
        .prop_map(|(fields, key, state, result)| Owned { fields, key, state, result })
}

type Sections = Vec<((OpStreamId, u64, u64), Vec<Owned>)>;

fn sections() -> impl Strategy<Value = Sections> {
    let section =
        ((op_stream(), any::<u64>(), any::<u64>()), prop::collection::vec(record(), 1..6));
    prop::collection::vec(section, 0..4)
}

fn encode(time_ns: u64, sections: &Sections) -> Vec<u8> {
    let mut writer = RecordsWriter::default();
    writer.begin(time_ns);
    for ((stream, first, done), records) in sections {
        writer.section(*stream, *first, *done);
        for record in records {
            writer.record(&record.borrowed());
        }
    }
    writer.finish().to_vec()
}

/// Reads a frame of records and writes it again.
fn reencode(body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut reader = RecordsReader::new(body)?;
    let mut writer = RecordsWriter::default();
    writer.begin(reader.time_ns());
    let mut left = 0;
    while let Some(record) = reader.next_record()? {
        if left == 0 {
            let section = reader.section();
            writer.section(section.stream, section.first, section.done);
            left = section.count;
        }
        left -= 1;
        writer.record(&record);
    }
    Ok(writer.finish().to_vec())
}

fn body(frame: &[u8]) -> (FrameKind, &[u8]) {
    let raw = cut(frame, usize::MAX).expect("it is right").expect("it is whole");
    assert_eq!(raw.bytes(), frame.len());
    (raw.kind, raw.body)
}

/// Reads any frame and writes it again.
fn again(kind: FrameKind, body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    match kind {
        FrameKind::Records => out = reencode(body)?,
        FrameKind::Adopt => Adopt::decode(body)?.encode(&mut out),
        FrameKind::TermCheck => TermCheck::decode(body)?.encode(&mut out),
        FrameKind::Restart => Restart::decode(body)?.encode(&mut out),
        FrameKind::Pull => Pull::decode(body)?.encode(&mut out),
        FrameKind::Chunk => {
            let mut reader = ChunkReader::new(body)?;
            let mut writer = ChunkWriter::new(reader.chunk(), &mut out);
            while let Some((key, state)) = reader.next_key()? {
                writer.key(key, &state);
            }
            while let Some(stream) = reader.next_stream()? {
                writer.stream(stream.stream, stream.done);
                while let Some(result) = reader.next_result()? {
                    writer.result(&result);
                }
            }
            writer.finish(reader.finish()?);
        }
        FrameKind::Forward => {
            let forward = Forward::decode(body)?;
            let mut writer = ForwardWriter::default();
            for (at, request) in forward.requests().enumerate() {
                writer.request(request, if at == 0 { forward.lines } else { &[] });
            }
            let Forward { sending, stream, first, done, left_ms, .. } = forward;
            writer.finish(&ForwardHead { sending, stream, first, done, left_ms }, &mut out);
        }
        FrameKind::Answers | FrameKind::AnswersBehindRecords => {
            let answers = Answers::decode(kind, body)?;
            let mut writer = AnswersWriter::default();
            let mut exceptions = answers.exceptions().peekable();
            let mut text = answers.text;
            for (at, length) in answers.lengths().enumerate() {
                let at = answers.first + at as u16;
                let (one, rest) = text.split_at(length as usize);
                text = rest;
                match exceptions.next_if(|exception| exception.place == at) {
                    Some(exception) => writer.exception(at, exception.kind),
                    None => writer.text(one),
                }
            }
            writer.finish(answers.sending, answers.first, answers.records_end, &mut out);
        }
        FrameKind::Ack => {
            let ack = StreamAck::decode(body)?;
            let mut writer = StreamAckWriter::new(&mut out);
            ack.refused().for_each(|refused| writer.refused(&refused));
            writer.finish(ack.held, &ack.done().collect::<Vec<_>>());
        }
        FrameKind::KeepAlive => {
            let keep_alive = KeepAlive::decode(body)?;
            KeepAlive::encode(keep_alive.time_ns, &keep_alive.done().collect::<Vec<_>>(), &mut out);
        }
        FrameKind::Ping => Ping::decode(body)?.encode(&mut out),
        FrameKind::Pong => Ping::decode(body)?.encode_answer(&mut out),
    }
    Ok(out)
}

fn round_trip(frame: &[u8]) {
    let (kind, body) = body(frame);
    assert_eq!(again(kind, body).expect("it was written so"), frame, "{kind:?}");
    for length in 0..frame.len() {
        assert_eq!(cut(&frame[..length], usize::MAX), Ok(None));
    }
}

#[test]
fn record_of_a_counter_is_short() {
    let mut writer = RecordsWriter::default();
    writer.begin(1);
    assert!(writer.is_empty());
    writer.section(OpStreamId::default(), 1, 1);
    let lengths = [1, 2].map(|lsn| {
        writer.record(&Record {
            partition: Partition(1),
            place: 0,
            term: Term(1),
            lsn,
            pt_ns: None,
            key: b"0123456789012345678",
            state: KeyState::Counter(7),
            result: RecordResult::Number(7),
        });
        writer.finish().len()
    });
    assert_eq!(lengths[1] - lengths[0] - 36, 18 + 8 + 19, "a section is begun after `finish`");
}

/// A frame of limit states with these policies, as it is written to a node of peer version 6.
fn frame_of_limits(policies: &[&[u8]]) -> Vec<u8> {
    let mut writer = RecordsWriter::default();
    for first in [&b"of a frame before"[..], b""] {
        writer.begin(1);
        for (lsn, policy) in [first].iter().chain(policies).enumerate() {
            if policy.is_empty() {
                continue;
            }
            if lsn % 2 == 0 {
                writer.section(OpStreamId::default(), lsn as u64, 1);
            }
            writer.record(&Record {
                partition: Partition(1),
                place: 0,
                term: Term(1),
                lsn: lsn as u64,
                pt_ns: None,
                key: b"0123456789012345678",
                state: KeyState::Limit { policy, state: b"0123456789" },
                result: RecordResult::None,
            });
        }
        writer.section(OpStreamId::default(), 0, 1);
    }
    writer.finish().to_vec()
}

#[test]
fn policy_of_the_record_before_is_left_out() {
    let (one, two) = (&b"bucket:5/1s"[..], &b"gcra:5/1s"[..]);
    let bytes = |policies: &[&[u8]]| frame_of_limits(policies).len();
    let record = 18 + 2 + 10 + 19;
    assert_eq!(bytes(&[one]), HEADER_BYTES + 8 + 36 + record + one.len());
    assert_eq!(bytes(&[one, one]), bytes(&[one]) + 36 + record, "also in another section");
    assert_eq!(bytes(&[one, one, one]), bytes(&[one, one]) + record);
    assert_eq!(bytes(&[one, two, one]), bytes(&[one, one, one]) + two.len() + one.len());
    assert_eq!(bytes(&[two, one]), bytes(&[one, two]));
}

#[test]
fn limit_state_has_a_policy_and_each_policy_once() {
    let frame = frame_of_limits(&[b"gcra:5/1s", b"fixed:5/1s"]);
    let refusal_of = |damage: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = frame.clone();
        damage(&mut frame);
        reencode(&frame[HEADER_BYTES..]).expect_err("it is damaged")
    };
    assert_eq!(reencode(&frame[HEADER_BYTES..]).as_deref(), Ok(&frame[..]));
    let first = HEADER_BYTES + 8 + 36 + 18;
    let unknown = refusal_of(&|frame| {
        frame[first] = 0;
        frame.drain(first + 2..first + 2 + 9);
    });
    assert_eq!(unknown, FrameError::Range("policy that is not known"));
    let second = frame.len() - 19 - 10 - 10 - 2;
    let twice = refusal_of(&|frame| {
        frame[second] = 9;
        frame.splice(second + 2..second + 2 + 10, *b"gcra:5/1s");
    });
    assert_eq!(twice, FrameError::Range("policy that is known"));
    for kind in [0_u8, 2, 3] {
        let wrong = refusal_of(&|frame| frame[first - 15] = 0b0010_0000 | kind);
        assert_eq!(wrong, FrameError::Range("state"), "{kind}");
    }
    let short = refusal_of(&|frame| frame.truncate(first + 5));
    assert_eq!(short, FrameError::Short);
}

#[test]
fn frame_that_is_too_long_is_refused_by_its_header() {
    let frame = encode(7, &Vec::new());
    let length = frame.len() - HEADER_BYTES;
    assert!(cut(&frame, length).is_ok());
    assert_eq!(cut(&frame[..HEADER_BYTES], length - 1), Err(FrameError::Length(length)));
    for (place, byte) in [(4, 0), (4, 200), (5, 1), (6, 1), (7, 1)] {
        let mut wrong = frame.clone();
        wrong[place] = byte;
        assert!(cut(&wrong, length).is_err(), "{place}");
    }
}

#[test]
fn counter_record_and_forward_have_bounded_sizes() {
    let (stream, fields) = (OpStreamId::default(), (7, 3, 2, 1 << 40, None));
    let key = b"ctr:0123456789abcdef".to_vec();
    let record = Owned { fields, key, state: (0, u64::MAX, Vec::new()), result: (0, Vec::new()) };
    let bytes_of =
        |count: usize| encode(0, &vec![((stream, 1, 0), vec![record.clone(); count])]).len();
    assert!(bytes_of(17) - bytes_of(1) <= 16 * 48);
    assert!(bytes_of(16) <= 16 * 48 + 64, "{} bytes for 16 records", bytes_of(16));

    let incr = b"incr ctr:0123456789abcdef 1\r\n";
    let bytes_of = |count: usize| {
        let (mut writer, mut out) = (ForwardWriter::default(), Vec::new());
        for _ in 0..count {
            writer.request(ForwardOp { partition: Partition(7), term: Term(2), op_flags: 1 }, incr);
        }
        writer.finish(&ForwardHead { sending: 1, stream, first: 1, done: 0, left_ms: 9 }, &mut out);
        out.len()
    };
    assert!(bytes_of(17) - bytes_of(1) <= 16 * (incr.len() + 8));
}

proptest! {
    #[test]
    fn records_come_as_they_were_written(time_ns: u64, sections in sections()) {
        let frame = encode(time_ns, &sections);
        let mut reader = RecordsReader::new(body(&frame).1).expect("it was written so");
        prop_assert_eq!(reader.time_ns(), time_ns);
        for ((stream, first, done), records) in &sections {
            for record in records {
                prop_assert_eq!(reader.next_record(), Ok(Some(record.borrowed())));
                let section = *reader.section();
                let count = records.len() as u16;
                prop_assert_eq!(section, Section { stream: *stream, first: *first, done: *done, count });
            }
        }
        prop_assert_eq!(reader.next_record(), Ok(None));
        round_trip(&frame);
    }

    #[test]
    fn frames_of_copies_come_as_they_were_written(
        (partition, to, from, term) in (any::<u16>().prop_map(Partition), copy(), copy(), term()),
        (last_term, lsn, times, start, is_first) in
            (term(), any::<u64>(), any::<[u64; 3]>(), any::<u32>(), any::<bool>()),
        keys in prop::collection::vec((bytes(30), any::<Option<u64>>(), bytes(50)), 0..5),
        streams in prop::collection::vec(
            (op_stream(), any::<u64>(), prop::collection::vec((any::<u64>(), 0_u8..3, bytes(9)), 0..4)),
            0..4,
        ),
        cursor in proptest::option::of(bytes(20)),
    ) {
        let last = Position { term: last_term, lsn };
        let [ahead_ns, time_ns, pt_ns] = times;
        let cursor = cursor.as_deref();
        let mut out = Vec::new();
        Adopt { partition, to, from, term, last, ahead_ns, time_ns }.encode(&mut out);
        round_trip(&out);
        out.clear();
        TermCheck { partition, term }.encode(&mut out);
        round_trip(&out);
        out.clear();
        Restart { partition, to, term, start }.encode(&mut out);
        round_trip(&out);
        out.clear();
        Pull { partition, from, to, term, start, cursor }.encode(&mut out);
        round_trip(&out);
        out.clear();
        let chunk =
            Chunk { partition, to, from, term, start, is_first, last, ahead_ns, time_ns, pt_ns };
        let mut writer = ChunkWriter::new(&chunk, &mut out);
        for (key, value, item) in &keys {
            writer.key(key, &value.map_or(KeyState::Item(item), KeyState::Counter));
        }
        for (stream, done, results) in &streams {
            writer.stream(*stream, *done);
            for (number, op_flags, bytes) in results {
                let result = match op_flags {
                    0 => RecordResult::None,
                    1 => RecordResult::Number(*number),
                    _ => RecordResult::Bytes(bytes),
                };
                writer.result(&ExportedResult { number: *number, result });
            }
        }
        writer.finish(cursor);
        round_trip(&out);
    }

    #[test]
    fn other_frames_come_as_they_were_written(
        (stream, numbers, left_ms) in (op_stream(), any::<[u32; 3]>(), any::<u16>()),
        requests in prop::collection::vec((any::<u16>(), term(), any::<u8>(), bytes(20)), 1..9),
        answers in prop::collection::vec((0_u8..6, copy(), term(), bytes(20)), 1..9),
        refused in prop::collection::vec((any::<u16>(), [term(), term(), term()], any::<[u64; 2]>()), 0..4),
        done in prop::collection::vec((op_stream(), any::<u64>()), 0..4),
    ) {
        let [sending, first, floor] = numbers.map(u64::from);
        let mut out = Vec::new();
        let mut writer = ForwardWriter::default();
        for (partition, term, op_flags, line) in &requests {
            writer.request(ForwardOp { partition: Partition(*partition), term: *term, op_flags: *op_flags }, line);
        }
        writer.finish(&ForwardHead { sending, stream, first, done: floor, left_ms }, &mut out);
        let forward = Forward::decode(body(&out).1).expect("it was written so");
        prop_assert_eq!(forward.count(), requests.len());
        for (request, (partition, term, op_flags, _)) in forward.requests().zip(&requests) {
            let expected = ForwardOp { partition: Partition(*partition), term: *term, op_flags: *op_flags };
            prop_assert_eq!(request, expected);
        }
        round_trip(&out);
        out.clear();
        let mut writer = AnswersWriter::default();
        for (place, (op_flags, primary, term, text)) in answers.iter().enumerate() {
            let route = Some(Route { term: *term, primary: *primary });
            let place = place as u16 + 3;
            match op_flags {
                0 => writer.exception(place, ExceptionKind::NotOwner(route)),
                1 => writer.exception(place, ExceptionKind::Deposed(None)),
                2 => writer.exception(place, ExceptionKind::Deposed(route)),
                3 => writer.exception(place, ExceptionKind::Refused(Refusal::Stale)),
                4 => writer.exception(place, ExceptionKind::NotOwner(None)),
                _ => writer.text(text),
            }
        }
        writer.finish(sending, 3, sending % 3, &mut out);
        round_trip(&out);
        out.clear();
        let done: Vec<_> = done.iter().map(|(stream, done)| StreamDone { stream: *stream, done: *done }).collect();
        let mut writer = StreamAckWriter::new(&mut out);
        for (partition, [term, copy_term, last_term], [end, lsn]) in refused {
            let (partition, last) = (Partition(partition), Position { term: last_term, lsn });
            writer.refused(&StreamRefusal { partition, term, copy_term, end, last });
        }
        writer.finish(sending, &done);
        round_trip(&out);
        out.clear();
        KeepAlive::encode(first, &done, &mut out);
        round_trip(&out);
        out.clear();
        Ping(first).encode(&mut out);
        round_trip(&out);
        out.clear();
        Ping(first).encode_answer(&mut out);
        round_trip(&out);
    }

    #[test]
    fn garbage_is_refused_or_has_one_form(kind in 0_u8..24, body in bytes(200)) {
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&[kind, 0, 0, 0]);
        frame.extend_from_slice(&body);
        if let Ok(Some(raw)) = cut(&frame, usize::MAX)
            && let Ok(written) = again(raw.kind, raw.body)
        {
            prop_assert_eq!(written, frame);
        }
    }

    #[test]
    fn damaged_records_are_refused_or_have_one_form(
        sections in sections(), places in prop::collection::vec((any::<u16>(), any::<u8>()), 1..4),
    ) {
        let mut frame = encode(1, &sections);
        for (place, byte) in places {
            let place = HEADER_BYTES + usize::from(place) % (frame.len() - HEADER_BYTES);
            frame[place] = byte;
        }
        if let Ok(written) = reencode(&frame[HEADER_BYTES..]) {
            prop_assert_eq!(written, frame);
        }
    }
}
