//! The checks of `lib.rs` on random conversations: the short form of the fuzz targets.

use proptest::prelude::*;
use tests::{check_conversation, check_decoding};

/// Words and lines that pass deep into the server, mixed with random bytes.
fn conversations() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "get a b c\r\n",
        "gets a\r\n",
        "gat 1 a b\r\n",
        "set a 0 0 1\r\n5\r\n",
        "set b 7 100 3 noreply\r\nabc\r\n",
        "set a 0 0 4000000\r\n",
        "add c 0 -1 2\r\n10\r\n",
        "append a 0 0 2\r\n99\r\n",
        "cas a 0 0 1 17\r\n6\r\n",
        "incr a 18446744073709551615\r\n",
        "decr a 3\r\n",
        "delete a 0\r\n",
        "touch b 0\r\n",
        "flush_all 1\r\n",
        "stats\r\n",
        "stats detail on\r\n",
        "stats detail dump\r\n",
        "stats cachedump 1 0\r\n",
        "cache_memlimit 8\r\n",
        "mg a v k c t f s h l N10 R30\r\n",
        "mg YQ== b k v Oabc\r\n",
        "ms a 3 C1 I T5\r\n123\r\n",
        "ms n 2 MA N0 q\r\n77\r\n",
        "md a I T1 q\r\n",
        "md a x\r\n",
        "ma a N0 J5 D7 v t c\r\n",
        "ma n MD D100 v q\r\n",
        "me a\r\n",
        "mn\r\n",
        "verbosity 0\r\n",
        "shutdown\r\n",
        "GET / HTTP/1.1\r\n",
        "quit\r\n",
    ])
    .prop_map(|line| line.as_bytes().to_vec());
    let word = prop::sample::select(vec![
        "set",
        "ms",
        "mg",
        " ",
        " a",
        " 0",
        " -1",
        " 10",
        " noreply",
        "\r\n",
        "\n",
        "\r",
        "\0",
        " k",
        " b",
        " O",
        " MZ",
        " T",
        " C",
        " E18446744073709551616",
    ])
    .prop_map(|word| word.as_bytes().to_vec());
    let piece = prop_oneof![
        8 => line,
        3 => word,
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1..3000_usize).prop_map(|count| vec![b'x'; count]),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn decoding_always_moves_on(wire in conversations()) {
        check_decoding(&wire);
    }

    #[test]
    fn answers_do_not_depend_on_how_bytes_arrive(seed in any::<u64>(), wire in conversations()) {
        check_conversation(seed, &wire);
    }
}
