//! Tests of decoding for every arrival of the bytes: cut anywhere, followed by anything, or
//! garbage.
//!
//! Here: properties of all requests. Not here: the meaning of each line, which the transcripts of
//! the package `tests` check.

use proptest::prelude::*;
use tollgate_protocol::{
    Bounds, DecodeError, Decoded, Form, ProtocolError, Request, decode, likely_key,
};

/// Valid requests of every verb, with their possible flags and data blocks.
const REQUESTS: &[&str] = &[
    "get k\r\n",
    "get k\n",
    "get a b c \r\n",
    "gets k\r\n",
    "gat 10 a b\r\n",
    "gats -1 k\r\n",
    "set k 0 0 5\r\nhello\r\n",
    "set k 4294967295 -1 0 noreply\r\n\r\n",
    "add k 1 60 2\r\n\r\n\r\n",
    "replace k 1 60 1 \r\nx\r\n",
    "append k 0 0 3\r\na\nb\r\n",
    "prepend k 0 0 1\r\n\0\r\n",
    "cas k 0 0 1 18446744073709551615 noreply\r\nx\r\n",
    "incr k 18446744073709551615\r\n",
    "decr k 1 noreply\r\n",
    "delete k\r\n",
    "delete k 0 noreply\r\n",
    "touch k 2592001\r\n",
    "flush_all\r\n",
    "flush_all 10 noreply\r\n",
    "verbosity 1\r\n",
    "version\r\n",
    "stats\r\n",
    "stats \r\n",
    "stats settings\r\n",
    "stats items\n",
    "stats detail on\r\n",
    "stats cachedump 1 10\r\n",
    "stats cluster partitions all\r\n",
    "config get cluster\r\n",
    "cluster drain n3\r\n",
    "cluster set replicas 3 \n",
    "cache_memlimit 64\r\n",
    "shutdown graceful\r\n",
    "quit\r\n",
    "mn\r\n",
    "me k\r\n",
    "me aw== b\r\n",
    "mg k\r\n",
    "mg k v f c t s h l k q Oabc u E9 N30 R5 T60 C7\r\n",
    "mg aw== b v k\r\n",
    "ms k 5 T60 F7 c k Oabc q C1 E2 I MA N0\r\nhello\r\n",
    "ms k 0\r\n\r\n",
    "md k I T30 q x C4 E5\r\n",
    "ma k MD D5 N60 J10 T30 q t c v k Oxyz\r\n",
    "ma k D2 Psliding:100/60s,slices=6 v\r\n",
    "take u:42 1 bucket:100/60s,capacity=200\r\n",
    "take k 4 =login peek part wait=500ms cas id=a1 hold=2m noreply\r\n",
    "take k 0 - cas=7\n",
    "takem 1 a b c \r\n",
    "takem 2 a peek id=a1 noreply\r\n",
    "refund k 3\r\n",
    "settle k 17 3100\r\n",
    "renew k 17 30s noreply\r\n",
    "lease k app-1 100 - used=7 unused=3 weight=2 ttl=5s\r\n",
    "incrx k -1 250ms init=-9 max=5 min=-5 clamp ttl=touch signed cas=1 id=a1\r\n",
    "incrx k 1 60\r\n",
    "slide k 3 60s slices=6\r\n",
];

/// Returns the request at the front and its length.
fn whole(input: &[u8]) -> (Request<'_>, usize) {
    match decode(input, 0, Bounds::default()) {
        Ok(Decoded::Request { request, consumed }) => (request, consumed),
        other => panic!("{:?} is a request, not {other:?}", String::from_utf8_lossy(input)),
    }
}

#[test]
fn a_request_cut_anywhere_is_incomplete() {
    for wire in REQUESTS {
        let wire = wire.as_bytes();
        let (_, consumed) = whole(wire);
        assert_eq!(consumed, wire.len(), "{wire:?}");
        let mut scanned = 0;
        for cut in 0..wire.len() {
            match decode(&wire[..cut], 0, Bounds::default()) {
                Ok(Decoded::Incomplete { needed, .. }) => {
                    assert!(needed > cut && needed <= wire.len(), "{cut} of {wire:?}");
                }
                other => panic!("{cut} bytes of {wire:?}: {other:?}"),
            }
            // Continuing at `scanned` gives the same result.
            match decode(&wire[..cut], scanned, Bounds::default()) {
                Ok(Decoded::Incomplete { scanned: more, .. }) => scanned = more,
                other => panic!("{cut} bytes of {wire:?} after {scanned}: {other:?}"),
            }
        }
        let resumed = decode(wire, scanned, Bounds::default());
        assert_eq!(resumed, decode(wire, 0, Bounds::default()));
    }
}

#[test]
fn following_bytes_do_not_change_a_request() {
    for wire in REQUESTS {
        for follower in ["get x\r\n", "\r\n", "\0\u{80}", "set y 0 0 100\r\n"] {
            let input = [wire.as_bytes(), follower.as_bytes()].concat();
            assert_eq!(whole(&input), whole(wire.as_bytes()), "{wire:?} before {follower:?}");
        }
    }
}

#[test]
fn a_value_over_the_bound_is_refused_unread() {
    let bounds = Bounds { item_bytes_max: 1024 };
    let line = b"set k 0 0 1000\r\n";
    let Ok(Decoded::Request { consumed, .. }) = decode(line, 0, bounds) else {
        panic!("the line alone decides");
    };
    assert_eq!(consumed, line.len() + 1002);
    assert!(bounds.fits(1, 1024 - 60));
    assert!(!bounds.fits(1, 1024 - 59));
}

#[test]
fn lines_without_an_end_have_a_bound() {
    let refused = |input: &[u8]| match decode(input, 0, Bounds::default()) {
        Ok(Decoded::Incomplete { .. }) => None,
        Err(DecodeError { error, .. }) => Some(error),
        Ok(other) => panic!("no line end, and yet {other:?}"),
    };
    assert_eq!(refused(&[b'x'; 2048]), None);
    assert_eq!(refused(&[b'x'; 2049]), Some(ProtocolError::Close));
    let keys = [b"get ".to_vec(), vec![b'k'; (1 << 20) - 4]].concat();
    assert_eq!(refused(&keys), None);
    assert_eq!(refused(&[keys.as_slice(), b"k"].concat()), Some(ProtocolError::Close));
}

#[test]
fn the_likely_key_is_the_key() {
    assert_eq!(likely_key(b"incr hits 1\r\n"), Some(&b"hits"[..]));
    assert_eq!(likely_key(b"get a b c\r\n"), Some(&b"a"[..]));
    assert_eq!(likely_key(b"mg k\n"), Some(&b"k"[..]));
    for other in [&b""[..], b"version\r\n", b"get", b"get k", b" \r"] {
        // The result is irrelevant; the call must not panic.
        let _ = likely_key(other);
    }
}

/// Generates bytes close enough to a conversation to reach deep into the decoder.
fn near_requests() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(REQUESTS).prop_map(|wire| wire.as_bytes().to_vec()),
        2 => prop::sample::select(vec![
            "get", "set", "ms", "mg", "ma", "md", " ", "  ", "k", "0", "-1", "4294967296", "noreply",
            "\r\n", "\n", "\r", "\0", "Oabc", "b", "MZ", "I", "C", "18446744073709551616", "HTTP/1.1",
            "take", "takem", "refund", "settle", "renew", "lease", "incrx", "slide", "-", "=login",
            "bucket:1/s", "peek", "part", "cas", "cas=", "id=1", "wait=1s", "hold=", "60s", "mo",
            "init=", "max=5", "min=", "ttl=keep", "signed", "slices=9", "used=1", "P",
        ])
        .prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => Just(vec![b'k'; 251]),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_moves_on_and_stands(input in near_requests(), cut in any::<prop::sample::Index>()) {
        let bounds = Bounds { item_bytes_max: 4096 };
        let decoded = decode(&input, 0, bounds);
        match &decoded {
            Ok(Decoded::Incomplete { scanned, needed }) => {
                prop_assert!(*needed > input.len());
                prop_assert!(*scanned <= input.len());
                prop_assert!(*needed <= (1 << 20) + 4096 + 2);
            }
            Ok(Decoded::Request { request, consumed }) => {
                prop_assert!(*consumed > 0);
                if let Request::Command { command, form } = request {
                    prop_assert!((1..=250).contains(&command.key.as_bytes().len()));
                    if let Form::Meta { key_word, .. } = form {
                        prop_assert!(input.windows(key_word.len()).any(|word| word == *key_word));
                    }
                }
                if let Request::Retrieve { keys, .. } = request {
                    prop_assert!(keys.iter().count() > 0);
                }
                if let Request::TakeMany { many, .. } = request {
                    prop_assert!((1..=16).contains(&many.keys.iter().count()));
                }
                if *consumed <= input.len() {
                    prop_assert_eq!(&decode(&input[..*consumed], 0, bounds), &decoded);
                }
            }
            Err(refusal) => prop_assert!(refusal.consumed > 0),
        }
        // Every prefix is incomplete, or gives the same decision as the whole input.
        let front = &input[..cut.index(input.len() + 1)];
        match decode(front, 0, bounds) {
            Ok(Decoded::Incomplete { scanned, .. }) => {
                prop_assert_eq!(&decode(&input, scanned, bounds), &decoded);
            }
            decided => prop_assert_eq!(&decided, &decoded),
        }
    }
}
