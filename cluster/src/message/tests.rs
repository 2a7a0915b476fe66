//! Control frames: round trips, frames cut at every byte, and garbage.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::handshake::{DATA_LINKS_MAX, DataLinkId, NONCE_BYTES, Side, common_version, data_links};
use super::query::QUERY_BYTES_MAX;
use super::tunnel::{TunnelEnd, TunnelEvent, TunnelFrame};
use super::*;
use crate::id::{Incarnation, NodeId};
/// Numbers of all lengths, and the greatest.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, any::<u64>(), Just(u64::MAX)]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![0..300_u32, any::<u32>(), Just(u32::MAX)]
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn hello() -> impl Strategy<Value = Hello> {
    let versions = (any::<u16>(), any::<u16>());
    let data_link = option::of((0..DATA_LINKS_MAX, 1..=u64::MAX));
    let links = (any::<u16>(), data_link);
    let names = (any::<u128>(), small(), number(), any::<u16>());
    (versions, names, links, any::<[u8; NONCE_BYTES]>(), bytes()).prop_map(
        |((low, high), (cluster, node, incarnation, core), (workers, link), nonce, more)| Hello {
            version_min: low,
            version_max: high,
            cluster,
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            core,
            nonce,
            workers,
            data_link: link.map(|(index, number)| DataLinkId { index, number }),
            more,
        },
    )
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        5 => plain_frame(),
        1 => (small(), small(), plain_frame().prop_filter("no greeting", Frame::may_be_relayed))
            .prop_map(|(from, to, frame)| {
                Frame::Relay { from: NodeId(from), to: NodeId(to), frame: Box::new(frame) }
            }),
    ]
}

fn tunnel() -> impl Strategy<Value = TunnelFrame> {
    let end = || {
        (number(), any::<u16>())
            .prop_map(|(life, workers)| TunnelEnd { incarnation: Incarnation(life), workers })
    };
    let event = prop_oneof![
        end().prop_map(TunnelEvent::Open),
        end().prop_map(TunnelEvent::Opened),
        (number(), number(), bytes()).prop_map(|(at, taken, bytes)| TunnelEvent::Bytes {
            at,
            taken,
            bytes
        }),
        Just(TunnelEvent::End),
    ];
    (0..DATA_LINKS_MAX, 1..=u64::MAX, event)
        .prop_map(|(index, number, event)| TunnelFrame { id: DataLinkId { index, number }, event })
}

fn query() -> impl Strategy<Value = QueryFrame> {
    (number(), bytes()).prop_map(|(id, body)| QueryFrame { id, body })
}

fn plain_frame() -> impl Strategy<Value = Frame> {
    let call = || {
        (number(), number(), bytes()).prop_map(|(id, wall_ns, rpc)| ControlCall {
            id,
            wall_ns,
            rpc,
        })
    };
    prop_oneof![
        hello().prop_map(Frame::Hello),
        any::<[u8; 32]>().prop_map(|proof| Frame::Proof(Proof(proof))),
        (0..8_u8).prop_map(|byte| Frame::Farewell(CloseReason::of_byte(byte).expect("eight"))),
        call().prop_map(Frame::Call),
        call().prop_map(Frame::Answer),
        number().prop_map(Frame::Ping),
        number().prop_map(Frame::Pong),
        tunnel().prop_map(Frame::Tunnel),
        query().prop_map(Frame::Query),
        query().prop_map(Frame::QueryReply),
    ]
}

#[test]
fn relay_within_a_relay_is_refused() {
    let relay = |frame| Frame::Relay { from: NodeId(1), to: NodeId(2), frame: Box::new(frame) };
    let mut wire = BytesMut::new();
    let reason = Frame::Farewell(CloseReason::of_byte(0).expect("there is one"));
    for frame in [relay(Frame::Ping(7)), reason] {
        let fault = relay(frame).encode(FrameBounds::default(), &mut wire);
        assert_eq!(fault, Err(MessageError::Range("relayed frame")));
        assert!(wire.is_empty());
    }
    let wire = [4, 0, 0, 0, RELAY, 1, 2, RELAY];
    assert_eq!(decoded(&wire), Err(MessageError::Range("relayed frame")));
}

#[test]
fn query_is_bounded_at_both_ends() {
    let query = |bytes| Frame::Query(QueryFrame { id: 1, body: vec![7; bytes].into() });
    let longest = encoded(&query(QUERY_BYTES_MAX));
    assert_eq!(decoded(&longest), Ok(DecodedFrame::Frame(query(QUERY_BYTES_MAX))));
    let mut wire = BytesMut::new();
    let fault = query(QUERY_BYTES_MAX + 1).encode(FrameBounds::default(), &mut wire);
    assert_eq!((fault, wire.len()), (Err(MessageError::Range("query")), 0));
    // The longest body and a byte more: 65537 as a varint has three bytes, as 65536 has.
    let mut longer = longest;
    longer.extend_from_slice(&[7]);
    let length = (longer.len() - 4) as u32;
    longer[..4].copy_from_slice(&length.to_le_bytes());
    longer[6] += 1;
    assert_eq!(decoded(&longer), Err(MessageError::Range("query")));
}

#[test]
fn queries_need_a_link_of_version_two() {
    let query = || Frame::Query(QueryFrame { id: 1, body: Bytes::new() });
    let reply = Frame::QueryReply(QueryFrame { id: 1, body: Bytes::new() });
    let relayed = Frame::Relay { from: NodeId(1), to: NodeId(2), frame: Box::new(query()) };
    for frame in [query(), reply, relayed] {
        assert_eq!(frame.version_min(), 2, "{frame:?}");
    }
    for frame in [a_call(), Frame::Ping(1)] {
        assert_eq!(frame.version_min(), 1, "{frame:?}");
    }
    assert!((VERSION_MIN..=VERSION_MAX).contains(&2));
}

fn encoded(frame: &Frame) -> BytesMut {
    let mut wire = BytesMut::new();
    frame.encode(FrameBounds::default(), &mut wire).expect("it is within bounds");
    wire
}

fn decoded(wire: &[u8]) -> Result<DecodedFrame, MessageError> {
    decode(&mut BytesMut::from(wire), FrameBounds::default())
}

fn a_call() -> Frame {
    Frame::Call(ControlCall {
        id: 300,
        wall_ns: 5,
        rpc: Bytes::from_static(b"a request of the controller"),
    })
}

#[test]
fn frame_that_is_too_long_is_neither_sent_nor_awaited() {
    let bounds = FrameBounds { frame_bytes_max: 30 };
    let mut wire = BytesMut::from(&b"before"[..]);
    assert_eq!(a_call().encode(bounds, &mut wire), Err(MessageError::Length(32)));
    assert_eq!(&wire[..], b"before");
    let front = &encoded(&a_call())[..4];
    let decoded = decode(&mut BytesMut::from(front), bounds);
    assert_eq!(decoded, Err(MessageError::Length(32)));
    let mut nothing = BytesMut::from(&[0; 4][..]);
    assert_eq!(decode(&mut nothing, bounds), Err(MessageError::Length(0)));
}

#[test]
fn a_number_is_written_in_one_way() {
    let ping =
        |number: &[u8]| decoded(&[&[number.len() as u8 + 1, 0, 0, 0, PING][..], number].concat());
    assert!(ping(&[5]).is_ok());
    assert_eq!(ping(&[0x85, 0]), Err(MessageError::Range("number")));
    let overlong = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
    assert_eq!(ping(&overlong), Err(MessageError::Range("number")));
    let relay = [6, 0, 0, 0, RELAY, 0xff, 0xff, 0xff, 0xff, 0x1f];
    assert_eq!(decoded(&relay), Err(MessageError::Range("number")), "a node has 32 bits");
    assert_eq!(decoded(&[1, 0, 0, 0, 99]), Err(MessageError::Type(99)));
    assert_eq!(decoded(&[3, 0, 0, 0, FAREWELL, 0, 0]), Err(MessageError::Long(1)));
}

fn hello_of(node: u32, nonce: u8, versions: std::ops::RangeInclusive<u16>) -> Hello {
    Hello {
        version_min: *versions.start(),
        version_max: *versions.end(),
        cluster: 9,
        node: NodeId(node),
        incarnation: Incarnation(1),
        core: 0,
        nonce: [nonce; NONCE_BYTES],
        workers: 0,
        data_link: None,
        more: Bytes::new(),
    }
}

#[test]
fn two_nodes_agree_on_the_newest_common_version() {
    let old = hello_of(1, 1, 1..=3);
    let new = hello_of(2, 2, 2..=5);
    assert_eq!((old.agree(&new), new.agree(&old)), (Ok(3), Ok(3)));
    assert_eq!(old.agree(&hello_of(2, 2, 4..=5)), Err(CloseReason::NoVersion));
    assert_eq!(common_version(&(2..=2), &(1..=1)), None);
    assert_eq!(common_version(&(1..=9), &(4..=5)), Some(5));
    assert_eq!(old.agree(&hello_of(1, 2, 1..=3)), Err(CloseReason::Myself));
    assert_eq!(old.agree(&hello_of(2, 1, 1..=3)), Err(CloseReason::Myself));
    let other = Hello { cluster: 8, ..new.clone() };
    assert_eq!(old.agree(&other), Err(CloseReason::OtherCluster));
    let newcomer = Hello { cluster: 0, node: NodeId(0), ..new };
    assert_eq!(old.agree(&newcomer), Ok(3));
    assert_eq!(newcomer.agree(&Hello { nonce: [7; NONCE_BYTES], ..newcomer.clone() }), Ok(5));
}

#[test]
fn a_proof_is_of_this_key_this_side_and_these_hellos() {
    let connecting = frame_bytes(&encoded(&Frame::Hello(hello_of(1, 1, 1..=3)))).expect("whole");
    let accepting = frame_bytes(&encoded(&Frame::Hello(hello_of(2, 2, 1..=3)))).expect("whole");
    let proof = Proof::new(b"key", Side::Connecting, &connecting, &accepting);
    assert!(proof.is_by(b"key", Side::Connecting, &connecting, &accepting));
    assert!(!proof.is_by(b"kez", Side::Connecting, &connecting, &accepting));
    assert!(!proof.is_by(b"key", Side::Accepting, &connecting, &accepting));
    assert!(!proof.is_by(b"key", Side::Connecting, &accepting, &connecting));
    let downgraded = frame_bytes(&encoded(&Frame::Hello(hello_of(2, 2, 1..=2)))).expect("whole");
    assert!(!proof.is_by(b"key", Side::Connecting, &connecting, &downgraded));
}

#[test]
fn unauthenticated_frames_are_short() {
    let hello = encoded(&Frame::Hello(hello_of(1, 1, 1..=3)));
    assert!(hello.len() < HELLO_BYTES_MAX);
    let mut front = BytesMut::from(&[0, 4, 0, 0][..]);
    assert_eq!(decode(&mut front, FrameBounds::unauthenticated()), Err(MessageError::Length(1024)));
}

proptest! {
    #[test]
    fn every_frame_comes_back(frame in frame()) {
        let mut wire = encoded(&frame);
        wire.extend_from_slice(b"next");
        let decoded = decode(&mut wire, FrameBounds::default());
        prop_assert_eq!(decoded, Ok(DecodedFrame::Frame(frame)));
        prop_assert_eq!(&wire[..], b"next");
    }

    #[test]
    fn a_cut_frame_is_waited_for(frame in frame()) {
        let wire = encoded(&frame);
        for cut in 0..wire.len() {
            let mut front = BytesMut::from(&wire[..cut]);
            let needed = if cut < 4 { HEADER_BYTES } else { wire.len() };
            let decoded = decode(&mut front, FrameBounds::default());
            prop_assert_eq!(decoded, Ok(DecodedFrame::Incomplete { needed }));
            prop_assert_eq!(&front[..], &wire[..cut], "what is not whole stays");
        }
    }

    #[test]
    fn a_shortened_frame_is_refused_or_another(frame in frame(), cut in any::<prop::sample::Index>()) {
        let wire = encoded(&frame);
        let mut body = wire[4..4 + cut.index(wire.len() - 4).max(1)].to_vec();
        let mut short = (body.len() as u32).to_le_bytes().to_vec();
        short.append(&mut body);
        // Only a hello has a trailing field of any length.
        if let Ok(DecodedFrame::Frame(other)) = decoded(&short) {
            prop_assert!(matches!(other, Frame::Hello(_)));
        }
    }

    #[test]
    fn garbage_is_refused_or_encodes_to_itself(kind in 0..18_u8, body in vec(any::<u8>(), 0..100)) {
        let mut wire = (body.len() as u32 + 1).to_le_bytes().to_vec();
        wire.push(kind);
        wire.extend(body);
        if let Ok(DecodedFrame::Frame(frame)) = decoded(&wire) {
            prop_assert_eq!(&encoded(&frame)[..], &wire[..]);
        }
    }
}

#[test]
fn data_link_names_are_bounded_and_counted() {
    let with = |index, number| {
        let data_link = Some(DataLinkId { index, number });
        encoded(&Frame::Hello(Hello { workers: 2, data_link, ..hello_of(1, 2, 1..=1) }))
    };
    assert!(matches!(decoded(&with(15, 1)), Ok(DecodedFrame::Frame(_))));
    for (index, number) in [(16, 1), (1, 0)] {
        assert_eq!(decoded(&with(index, number)), Err(MessageError::Range("data link")));
    }
    let counts = [(0, 2), (2, 0), (1, 1), (1, 4), (40, 2)].map(|(a, b)| data_links(a, b));
    assert_eq!(counts, [0, 0, 1, 4, 16]);
}
