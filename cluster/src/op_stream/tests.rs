//! Op streams: numbers, sendings, answers, ends.

use super::*;
use crate::frames::{Answers, AnswersWriter, ExceptionKind, Forward, FrameKind, cut, op_flags};
use crate::id::CopyId;
use crate::route::{Refusal, Route};

const OWNER: NodeId = NodeId(2);

#[expect(clippy::unnecessary_wraps, reason = "as the map answers")]
fn route(node: u32, term: u32) -> Option<Route> {
    let primary = CopyId { node: NodeId(node), incarnation: Incarnation(1), assignment: 1 };
    Some(Route { term: Term(term), primary })
}

fn now(ms: u64) -> NodeTime {
    NodeTime { mono_ns: ms * MS, wall_ns: 0 }
}

fn streams() -> (OpStreams, u16) {
    let mut streams = OpStreams::new(NodeId(1), Incarnation(1), 0, OpOptions::default());
    let stream = streams.stream_for(OWNER);
    (streams, stream)
}

fn new_op(token: u64, index: u32) -> NewOp {
    NewOp { partition: Partition(index as u16), op_flags: 0, token, index, for_ns: 0 }
}

fn submit(streams: &mut OpStreams, stream: u16, token: u64, index: u32) {
    assert!(streams.submit(stream, &new_op(token, index), b"line", now(0)));
}

/// Sends new operations to owner 2 in term 1.
fn send_new(streams: &mut OpStreams, stream: u16) -> Vec<u8> {
    let mut out = Vec::new();
    streams.send_new(stream, now(0), |_| route(2, 1).map(Route::destination), Some(&mut out));
    out
}

fn send_again(streams: &mut OpStreams, ms: u64, to: Option<Route>) -> Vec<(NodeId, Vec<u8>)> {
    let mut frames = Vec::new();
    streams.send_again(
        now(ms),
        |_| to.map(Route::destination),
        |node, frame| {
            frames.push((node, frame.to_vec()));
            true
        },
    );
    frames
}

fn forward(bytes: &[u8]) -> Forward<'_> {
    let frame = cut(bytes, usize::MAX).expect("it is right").expect("it is whole");
    assert_eq!((frame.kind, frame.bytes()), (FrameKind::Forward, bytes.len()));
    Forward::decode(frame.body).expect("it is right")
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Done(u64, u32, u32, Vec<u8>),
    NotApplied(u64, u32),
    Unknown(u64, u32),
}

fn note(seen: &mut Vec<Seen>) -> impl FnMut(OpEnd<'_>) + '_ {
    |OpEnd { token, index, count, outcome, .. }| {
        seen.push(match outcome {
            OpOutcome::Done(text) => Seen::Done(token, index, count, text.to_vec()),
            OpOutcome::NotApplied(_) => Seen::NotApplied(token, index),
            OpOutcome::Unknown => Seen::Unknown(token, index),
        });
    }
}

/// Answers the requests from index `first` on by text or an exception.
fn receive_answers(
    streams: &mut OpStreams,
    ms: u64,
    sending: u64,
    first: u16,
    answers: &[Result<&[u8], ExceptionKind>],
) -> Vec<Seen> {
    receive_answers_if(|_, _| true, streams, ms, sending, first, answers)
}

/// [`receive_answers`] by a node that has refused the records of some partitions.
fn receive_answers_if(
    counts: impl Fn(Partition, Term) -> bool,
    streams: &mut OpStreams,
    ms: u64,
    sending: u64,
    first: u16,
    answers: &[Result<&[u8], ExceptionKind>],
) -> Vec<Seen> {
    let mut writer = AnswersWriter::default();
    for (at, answer) in answers.iter().enumerate() {
        match answer {
            Ok(text) => writer.text(text),
            Err(kind) => writer.exception(first + at as u16, *kind),
        }
    }
    let (mut out, mut seen) = (Vec::new(), Vec::new());
    writer.finish(sending, first, 0, &mut out);
    let frame = cut(&out, usize::MAX).expect("it is right").expect("it is whole");
    let answers = Answers::decode(frame.kind, frame.body).expect("it is right");
    streams.on_answers(&answers, counts, now(ms), note(&mut seen));
    seen
}

#[test]
fn answers_are_cut_by_token() {
    let (mut streams, stream) = streams();
    for (token, index) in [(7, 0), (7, 1), (8, 0), (7, 2)] {
        submit(&mut streams, stream, token, index);
    }
    let out = send_new(&mut streams, stream);
    let frame = forward(&out);
    assert_eq!((frame.count(), frame.first, frame.done, frame.lines.len()), (4, 1, 1, 16));
    assert!(send_new(&mut streams, stream).is_empty(), "nothing is sent twice");
    let seen = receive_answers(&mut streams, 1, frame.sending, 1, &[Ok(b"b"), Ok(b"cc"), Ok(b"d")]);
    let expected = [(7, 1, 1, &b"b"[..]), (8, 0, 1, b"cc"), (7, 2, 1, b"d")];
    let expected =
        expected.map(|(token, at, count, text)| Seen::Done(token, at, count, text.to_vec()));
    assert_eq!(seen, expected);
    assert_eq!((streams.done(stream), streams.unanswered()), (1, 1));
    let seen = receive_answers(&mut streams, 1, frame.sending, 0, &[Ok(b"a"), Ok(b"again")]);
    assert_eq!(seen, [Seen::Done(7, 0, 1, b"a".to_vec())]);
    assert_eq!((streams.done(stream), streams.unanswered()), (5, 0));
}

#[test]
fn answer_to_an_older_sending_is_dropped() {
    let (mut streams, stream) = streams();
    submit(&mut streams, stream, 1, 0);
    submit(&mut streams, stream, 1, 1);
    let out = send_new(&mut streams, stream);
    let old = forward(&out).sending;
    streams.link_up(OWNER, now(1));
    let frames = send_again(&mut streams, 1, route(2, 1));
    let newer: Vec<_> = frames.iter().map(|(_, frame)| forward(frame)).collect();
    assert_eq!(newer.iter().map(|frame| frame.first).collect::<Vec<_>>(), [1, 2]);
    assert!(newer.iter().all(|frame| {
        frame.requests().all(|request| request.op_flags & op_flags::AGAIN != 0)
            && frame.stream.owner == OWNER
    }));
    assert_eq!(receive_answers(&mut streams, 2, old, 0, &[Ok(b"x"), Ok(b"y")]), []);
    let (sending, text) = (newer[1].sending, b"z".to_vec());
    assert_eq!(
        receive_answers(&mut streams, 2, sending, 0, &[Ok(b"z")]),
        [Seen::Done(1, 1, 1, text)]
    );
    assert_eq!(streams.done(stream), 1);
}

#[test]
fn refused_operation_goes_to_the_newer_owner() {
    let (mut streams, stream) = streams();
    submit(&mut streams, stream, 1, 0);
    let out = send_new(&mut streams, stream);
    let sending = forward(&out).sending;
    let refused = ExceptionKind::NotOwner(route(3, 2));
    assert_eq!(receive_answers(&mut streams, 1, sending, 0, &[Err(refused)]), []);
    let frames = send_again(&mut streams, 1, route(3, 2));
    assert_eq!((frames.len(), frames[0].0), (1, NodeId(3)));
    let frame = forward(&frames[0].1);
    assert_eq!((frame.first, frame.stream.owner), (1, OWNER), "it keeps its name");
    let refused = ExceptionKind::Refused(Refusal::Busy);
    let seen = receive_answers(&mut streams, 2, frame.sending, 0, &[Err(refused)]);
    assert_eq!(seen, [Seen::NotApplied(1, 0)], "each sending was refused");
}

#[test]
fn answer_whose_records_were_refused_does_not_count() {
    let (mut streams, stream) = streams();
    (0..3).for_each(|index| submit(&mut streams, stream, 1, index));
    let out = send_new(&mut streams, stream);
    let (sending, answers) = (forward(&out).sending, [Ok(&b"a"[..]), Ok(b"b"), Ok(b"c")]);
    let counts = |partition, term| partition != Partition(1) && term == Term(1);
    let seen = receive_answers_if(counts, &mut streams, 1, sending, 0, &answers);
    let expected = [Seen::Done(1, 0, 1, b"a".to_vec()), Seen::Done(1, 2, 1, b"c".to_vec())];
    assert_eq!(seen, expected);
    let frames = send_again(&mut streams, 20, route(2, 1));
    let [(OWNER, frame)] = &frames[..] else { panic!("one is sent again: {frames:?}") };
    let again = forward(frame);
    let request = again.requests().next().expect("it has one");
    assert_eq!((again.first, request.op_flags & op_flags::AGAIN), (2, op_flags::AGAIN));
    let seen = receive_answers(&mut streams, 20, again.sending, 0, &[Ok(b"b")]);
    assert_eq!(seen, [Seen::Done(1, 1, 1, b"b".to_vec())]);
}

#[test]
fn unknown_outcome_is_never_reported_as_refused() {
    let (mut streams, stream) = streams();
    submit(&mut streams, stream, 1, 0);
    let out = send_new(&mut streams, stream);
    let deposed = ExceptionKind::Deposed(None);
    assert_eq!(receive_answers(&mut streams, 1, forward(&out).sending, 0, &[Err(deposed)]), []);
    for ms in 1..10 {
        assert_eq!(
            send_again(&mut streams, ms, route(2, 1)),
            [],
            "it is tried again a moment later"
        );
    }
    let frames = send_again(&mut streams, 11, route(3, 2));
    let sending = forward(&frames[0].1).sending;
    let refused = ExceptionKind::Refused(Refusal::Busy);
    assert_eq!(receive_answers(&mut streams, 21, sending, 0, &[Err(refused)]), []);
    let mut seen = Vec::new();
    streams.tick(now(2000), |_| OwnerContact::default(), note(&mut seen));
    assert_eq!(seen, [Seen::Unknown(1, 0)]);
}

#[test]
fn nothing_is_given_up_while_its_link_makes_progress() {
    let (mut streams, stream) = streams();
    submit(&mut streams, stream, 1, 0);
    send_new(&mut streams, stream);
    let mut seen = Vec::new();
    let contact =
        |is_replaced_soon| move |_| OwnerContact { progress_ns: 4500 * MS, is_replaced_soon };
    streams.tick(now(5000), contact(false), note(&mut seen));
    streams.tick(now(7400), contact(true), note(&mut seen));
    assert_eq!(seen, []);
    streams.tick(now(5600), contact(false), note(&mut seen));
    assert_eq!(seen, [Seen::Unknown(1, 0)]);
    assert_eq!(streams.done(stream), 2);
}

#[test]
fn operation_with_more_time_is_sent_again_and_again() {
    let (mut streams, stream) = streams();
    let debt = NewOp { for_ns: 10_000 * MS, ..new_op(1, 0) };
    assert!(streams.submit(stream, &debt, b"line", now(0)));
    send_new(&mut streams, stream);
    let mut seen = Vec::new();
    let mut sent = Vec::new();
    for ms in (0..10_000).step_by(20) {
        streams.tick(now(ms), |_| OwnerContact::default(), note(&mut seen));
        for (_, frame) in send_again(&mut streams, ms, route(2, 1)) {
            assert_eq!(forward(&frame).first, 1, "it keeps its number");
            sent.push(ms);
        }
    }
    assert_eq!(sent, [3000, 6000, 9000]);
    assert_eq!(seen, []);
    streams.tick(now(10_000), |_| OwnerContact::default(), note(&mut seen));
    assert_eq!(seen, [Seen::Unknown(1, 0)]);
}

#[test]
fn opened_operation_is_sent_under_its_number() {
    let (mut streams, stream) = streams();
    let submitted = NewOp { partition: Partition(0), op_flags: 0, token: 9, index: 4, for_ns: 0 };
    let number = streams.number(stream, &submitted, now(0)).expect("there is room");
    let next = streams.number(stream, &submitted, now(0)).expect("there is room");
    assert_eq!((number, next), (1, 2));
    streams.answered(stream, next);
    assert_eq!(streams.done(stream), 1);
    assert!(streams.reopen(stream, number, b"line", now(1)));
    assert!(!streams.reopen(stream, next, b"line", now(1)), "it is answered");
    let frames = send_again(&mut streams, 1, route(3, 2));
    let frame = forward(&frames[0].1);
    assert_eq!((frame.first, frame.lines), (1, &b"line"[..]));
    let seen = receive_answers(&mut streams, 2, frame.sending, 0, &[Ok(b"8")]);
    assert_eq!(seen, [Seen::Done(9, 4, 1, b"8".to_vec())]);
    assert_eq!(streams.done(stream), 3);
}

#[test]
fn op_stream_has_bounds() {
    let (mut streams, stream) = streams();
    let submitted = NewOp { partition: Partition(0), op_flags: 0, token: 9, index: 4, for_ns: 0 };
    let long = vec![0; LINES_BYTES_MAX];
    assert!(streams.submit(stream, &submitted, &long, now(0)));
    assert!(!streams.submit(stream, &submitted, b"x", now(0)));
    for _ in 1..UNANSWERED_MAX {
        assert!(streams.number(stream, &submitted, now(0)).is_some());
    }
    assert!(streams.number(stream, &submitted, now(0)).is_none());
}

#[test]
fn unknown_outcome_stays_unknown_after_many_refusals() {
    let (mut streams, stream) = streams();
    let debt = NewOp { for_ns: 3_600_000 * MS, ..new_op(1, 0) };
    assert!(streams.submit(stream, &debt, b"line", now(0)));
    send_new(&mut streams, stream);
    // The answer to the first sending is lost with the link.
    streams.link_up(OWNER, now(1));
    let mut ms = 1;
    for refusals in 0..70_000 {
        let frames = send_again(&mut streams, ms, route(2, 1));
        let [(OWNER, frame)] = &frames[..] else { panic!("{refusals}: {frames:?}") };
        let refused = ExceptionKind::Refused(Refusal::Stopped);
        let seen = receive_answers(&mut streams, ms, forward(frame).sending, 0, &[Err(refused)]);
        assert_eq!(seen, [], "after {refusals} refusals");
        ms += 20;
    }
    let mut seen = Vec::new();
    streams.tick(now(3_600_000), |_| OwnerContact::default(), note(&mut seen));
    assert_eq!(seen, [Seen::Unknown(1, 0)]);
}
