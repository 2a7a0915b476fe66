//! MD5 of several short keys at once (RFC 1321).
//!
//! Here: the first word of each digest; no other word decides the place of a key. The `md-5` crate
//! hashes keys above 55 bytes, and a key without others beside it.
//!
//! Each step of MD5 depends on the step before it, so one key leaves the processor idle. The steps
//! of several keys run side by side: of sixteen where vectors have eight words or more, of four
//! elsewhere. `fearless_simd` chooses the instructions when the program runs.

use fearless_simd::{Level, dispatch};

use super::ketama::hash;

/// The longest key: with its end mark and its length it fills one block of 64 bytes.
const KEY_BYTES_MAX: usize = 55;
/// Keys per call with vectors of eight words or more: two vectors side by side, and a whole batch
/// of a connection.
const KEYS_WIDE: usize = 16;
/// Keys per call with vectors of four words. With more keys the state does not fit into registers.
const KEYS_NARROW: usize = 4;

/// One word of each key.
type Lanes<const KEYS: usize> = [u32; KEYS];
/// The words of one block of each key.
type KeyBlock<const KEYS: usize> = [Lanes<KEYS>; 16];

/// RFC 1321: the whole part of 2^32 · |sin(i + 1)|.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// The initial state of a digest (RFC 1321).
const BEGIN: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Calls `each` with the first four bytes of each key's digest, read as a little-endian number, in
/// order.
pub(super) fn first_words(keys: &[&[u8]], each: impl FnMut(u32)) {
    match Level::new() {
        #[cfg(target_arch = "x86_64")]
        level @ (Level::Avx2(_) | Level::Avx512(_)) => {
            in_groups(keys, |block| first_words_wide(level, block), each);
        }
        _ => in_groups(keys, first_words_narrow, each),
    }
}

fn in_groups<const KEYS: usize>(
    keys: &[&[u8]],
    first_words: impl Fn(&KeyBlock<KEYS>) -> Lanes<KEYS>,
    mut each: impl FnMut(u32),
) {
    for group in keys.chunks(KEYS) {
        if let [key] = group {
            each(hash(key));
            continue;
        }
        let mut block = [[0; KEYS]; 16];
        for (stream, key) in group.iter().enumerate().filter(|(_, key)| is_short(key)) {
            write_key(&mut block, stream, key);
        }
        for (key, word) in group.iter().zip(first_words(&block)) {
            each(if is_short(key) { word } else { hash(key) });
        }
    }
}

fn is_short(key: &[u8]) -> bool {
    key.len() <= KEY_BYTES_MAX
}

/// Writes the key, its end mark and its length in bits.
fn write_key<const KEYS: usize>(block: &mut KeyBlock<KEYS>, stream: usize, key: &[u8]) {
    let (words, rest) = key.as_chunks::<4>();
    for (row, word) in block.iter_mut().zip(words) {
        row[stream] = u32::from_le_bytes(*word);
    }
    let end = rest.iter().rev().fold(0x80, |word, byte| word << 8 | u32::from(*byte));
    block[words.len()][stream] = end;
    block[14][stream] = key.len() as u32 * 8;
}

#[cfg(target_arch = "x86_64")]
fn first_words_wide(level: Level, block: &KeyBlock<KEYS_WIDE>) -> Lanes<KEYS_WIDE> {
    dispatch!(level, _simd => first_words_of(block))
}

// Inlined into its caller's loop, the function would get registers for only half of the state.
#[inline(never)]
fn first_words_narrow(block: &KeyBlock<KEYS_NARROW>) -> Lanes<KEYS_NARROW> {
    first_words_of(block)
}

// Inlined, like the functions below: only then it has its caller's instructions.
#[inline(always)]
#[expect(clippy::inline_always, reason = "as the comment says")]
fn first_words_of<const KEYS: usize>(block: &KeyBlock<KEYS>) -> Lanes<KEYS> {
    let begin = BEGIN.map(|word| [word; KEYS]);
    let state = round::<KEYS, 0, 7, 12, 17, 22>(begin, block, (0, 1), |x, y, z| z ^ (x & (y ^ z)));
    let state = round::<KEYS, 1, 5, 9, 14, 20>(state, block, (1, 5), |x, y, z| y ^ (z & (x ^ y)));
    let state = round::<KEYS, 2, 4, 11, 16, 23>(state, block, (5, 3), |x, y, z| x ^ y ^ z);
    let state = round::<KEYS, 3, 6, 10, 15, 21>(state, block, (0, 7), |x, y, z| y ^ (x | !z));
    state[0].map(|word| word.wrapping_add(BEGIN[0]))
}

/// Sixteen steps. They read the words of the block from `start` on, `stride` further each time.
#[inline(always)]
#[expect(clippy::inline_always, clippy::many_single_char_names, reason = "the names of RFC 1321")]
fn round<
    const KEYS: usize,
    const ROUND: usize,
    const S0: u32,
    const S1: u32,
    const S2: u32,
    const S3: u32,
>(
    [mut a, mut b, mut c, mut d]: [Lanes<KEYS>; 4],
    block: &KeyBlock<KEYS>,
    (start, stride): (usize, usize),
    f: impl Fn(u32, u32, u32) -> u32 + Copy,
) -> [Lanes<KEYS>; 4] {
    let at = |index: usize| (block[(start + stride * index) % 16], SINES[ROUND * 16 + index]);
    a = step::<KEYS, S0>(f, [a, b, c, d], at(0));
    d = step::<KEYS, S1>(f, [d, a, b, c], at(1));
    c = step::<KEYS, S2>(f, [c, d, a, b], at(2));
    b = step::<KEYS, S3>(f, [b, c, d, a], at(3));
    a = step::<KEYS, S0>(f, [a, b, c, d], at(4));
    d = step::<KEYS, S1>(f, [d, a, b, c], at(5));
    c = step::<KEYS, S2>(f, [c, d, a, b], at(6));
    b = step::<KEYS, S3>(f, [b, c, d, a], at(7));
    a = step::<KEYS, S0>(f, [a, b, c, d], at(8));
    d = step::<KEYS, S1>(f, [d, a, b, c], at(9));
    c = step::<KEYS, S2>(f, [c, d, a, b], at(10));
    b = step::<KEYS, S3>(f, [b, c, d, a], at(11));
    a = step::<KEYS, S0>(f, [a, b, c, d], at(12));
    d = step::<KEYS, S1>(f, [d, a, b, c], at(13));
    c = step::<KEYS, S2>(f, [c, d, a, b], at(14));
    b = step::<KEYS, S3>(f, [b, c, d, a], at(15));
    [a, b, c, d]
}

#[inline(always)]
#[expect(clippy::inline_always, clippy::many_single_char_names, reason = "as above")]
fn step<const KEYS: usize, const SHIFT: u32>(
    f: impl Fn(u32, u32, u32) -> u32,
    [a, b, c, d]: [Lanes<KEYS>; 4],
    (word, sine): (Lanes<KEYS>, u32),
) -> Lanes<KEYS> {
    let mut next = b;
    for stream in 0..KEYS {
        let sum = a[stream].wrapping_add(word[stream]).wrapping_add(sine);
        let sum = sum.wrapping_add(f(b[stream], c[stream], d[stream]));
        next[stream] = sum.rotate_left(SHIFT).wrapping_add(b[stream]);
    }
    next
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The words as each width computes them: the one of this processor, and the narrow one.
    fn of_each_width(keys: &[&[u8]]) -> [Vec<u32>; 2] {
        let mut words = [Vec::new(), Vec::new()];
        first_words(keys, |word| words[0].push(word));
        in_groups(keys, first_words_narrow, |word| words[1].push(word));
        words
    }

    #[test]
    fn keys_of_every_length_have_the_digest_of_the_crate() {
        let bytes: Vec<u8> =
            (0..2 * KEY_BYTES_MAX as u8).map(|byte| byte.wrapping_mul(37)).collect();
        for length in 0..=bytes.len() {
            let keys = [&bytes[..length], b"", &bytes[..KEY_BYTES_MAX], &bytes[length..]];
            for words in of_each_width(&keys) {
                assert_eq!(words, keys.map(hash), "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn digests_of_any_number_of_keys_are_those_of_the_crate(
            keys in prop::collection::vec(
                prop::collection::vec(any::<u8>(), 0..=KEY_BYTES_MAX + 2),
                0..=KEYS_WIDE * 2 + 1,
            ),
        ) {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let expected: Vec<u32> = keys.iter().map(|key| hash(key)).collect();
            for words in of_each_width(&keys) {
                prop_assert_eq!(&words, &expected);
            }
        }
    }
}
