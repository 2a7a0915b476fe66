//! The fast path of decoding: reads the commonest lines in one pass, with the same result as
//! [`decode`](crate::decode()).
//!
//! Here: `get` of one key, `incr`, `decr`, `set` and `take` under an inline or the configured
//! policy, each without options, in the spelling that clients use. Not here: any other line and any
//! fault, which are left to [`decode`](crate::decode()).

#![expect(
    clippy::inline_always,
    reason = "a fifth of an `incr` is reading it: each call is a tenth of that"
)]

use std::hint::cold_path;

use crate::bounds::{Bounds, KEY_BYTES_MAX};
use crate::key::Key;
use crate::policy::COUNT_MAX;
use crate::request::{
    Arithmetic, CasCondition, Command, Exptime, Form, Keys, Native, Operation, PolicyArg, Request,
    Set, SetMode, Take,
};

/// One of the commonest requests. Every key is valid.
///
/// The enum consists of whole 64-bit words, so that the compiler keeps it in registers until it is
/// stored: a value written in parts and then read as a whole stalls the processor, and a batch
/// holds many of these values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum FastRequest<'a> {
    /// `get <key>`.
    Get {
        /// The only key.
        key: &'a [u8],
    },
    /// `incr <key> <delta>`, `decr <key> <delta>`.
    Count {
        /// The key of the counter.
        key: &'a [u8],
        /// The amount to add or subtract.
        delta: u64,
        /// Whether to subtract.
        decrement: bool,
    },
    /// `set <key> <flags> <exptime> <length>` and its block.
    Set {
        /// The key of the item.
        key: &'a [u8],
        /// The client's 32 bits.
        client_flags: u32,
        /// The exptime as the client wrote it.
        exptime: Exptime,
        /// The value; its length is within the bounds.
        value: &'a [u8],
    },
    /// `take <key> <cost> <policy>`.
    Take {
        /// The limited key.
        key: &'a [u8],
        /// The cost in units, 0 to [`COUNT_MAX`].
        cost: u64,
        /// [`CONFIGURED_POLICY`], or an unparsed policy token.
        policy: &'a [u8],
    },
}

/// The policy argument that stands for the policy of the limit that matches the key.
pub const CONFIGURED_POLICY: &[u8] = b"-";

impl<'a> FastRequest<'a> {
    /// Returns the key of the request.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        let (Self::Get { key }
        | Self::Count { key, .. }
        | Self::Set { key, .. }
        | Self::Take { key, .. }) = self;
        key
    }

    /// Returns the [`Request`] that [`decode`](crate::decode()) returns for the same line.
    ///
    /// # Panics
    ///
    /// If the key is invalid, which no result of [`decode_fast`] has.
    #[must_use]
    pub fn request(&self) -> Request<'a> {
        let key = Key::plain(self.key()).expect("a key was read");
        let (operation, form) = match *self {
            Self::Get { key } => {
                let keys = Keys::new(key).expect("a key was read");
                return Request::Retrieve { keys, with_cas: false, touch: None };
            }
            Self::Count { delta, decrement, .. } => (
                Operation::Arithmetic(Arithmetic::plain(delta, decrement)),
                Form::Text { quiet: false },
            ),
            Self::Set { client_flags, exptime, value, .. } => (
                Operation::Set(Set::plain(SetMode::Set, client_flags, exptime, value)),
                Form::Text { quiet: false },
            ),
            Self::Take { cost, policy, .. } => {
                let policy = match policy {
                    CONFIGURED_POLICY => PolicyArg::Configured,
                    token => PolicyArg::Inline(token),
                };
                let take = Take {
                    cost,
                    policy,
                    peek: false,
                    part: false,
                    wait: None,
                    cas: CasCondition::None,
                    id: None,
                    hold: None,
                    debit: false,
                    info: false,
                };
                (Operation::Native(Native::Take(take)), Form::Native { quiet: false })
            }
        };
        Request::Command { command: Command { key, operation }, form }
    }
}

const INCR: u32 = u32::from_le_bytes(*b"incr");
const DECR: u32 = u32::from_le_bytes(*b"decr");
const TAKE: u32 = u32::from_le_bytes(*b"take");
const GET: u32 = u32::from_le_bytes(*b"get ");
const SET: u32 = u32::from_le_bytes(*b"set ");

/// Decodes the request at the front of `input` and returns it with its length in bytes; `None` if
/// it is incomplete, faulty or not one of the commonest.
#[inline(always)]
#[must_use]
pub fn decode_fast(input: &[u8], bounds: Bounds) -> Option<(FastRequest<'_>, usize)> {
    let (verb, rest) = input.split_first_chunk::<4>()?;
    let mut rest = Scanner(rest);
    // One comparison of the whole verb instead of one per letter.
    let verb = u32::from_le_bytes(*verb);
    let fast = match verb {
        INCR | DECR => {
            rest.blank()?;
            let (key, delta) = (rest.word()?, rest.number()?);
            FastRequest::Count { key, delta, decrement: verb == DECR }
        }
        GET => FastRequest::Get { key: rest.word()? },
        TAKE => {
            rest.blank()?;
            let (key, cost) = (rest.word()?, rest.number()?);
            rest.blank()?;
            let policy = rest.word()?;
            let is_one = match policy {
                CONFIGURED_POLICY => true,
                [b'-' | b'=', ..] | b"noreply" => false,
                _ => true,
            };
            if cost > COUNT_MAX || !is_one {
                return None;
            }
            FastRequest::Take { key, cost, policy }
        }
        SET => {
            let (key, client_flags) = (rest.word()?, u32::try_from(rest.number()?).ok()?);
            let exptime = Exptime(i32::try_from(rest.number()?).ok()?);
            let length = usize::try_from(rest.number()?).ok()?;
            rest.end()?;
            if !bounds.fits(key.len(), length) {
                return None;
            }
            let (value, after) = rest.0.split_at_checked(length)?;
            rest.0 = after;
            FastRequest::Set { key, client_flags, exptime, value }
        }
        _ => return None,
    };
    rest.end()?;
    Some((fast, input.len() - rest.0.len()))
}

/// Most digits of a number: 20 digits could exceed 64 bits.
const DIGITS_MAX: usize = 19;

/// The bytes that are not read yet.
struct Scanner<'a>(&'a [u8]);

impl<'a> Scanner<'a> {
    #[inline(always)]
    fn blank(&mut self) -> Option<()> {
        let Some(rest) = self.0.strip_prefix(b" ") else {
            cold_path();
            return None;
        };
        self.0 = rest;
        Some(())
    }

    #[inline(always)]
    fn end(&mut self) -> Option<()> {
        let Some(rest) = self.0.strip_prefix(b"\r\n") else {
            cold_path();
            return None;
        };
        self.0 = rest;
        Some(())
    }

    /// Reads a word of 1 to 250 bytes above the blank: every such word is a valid key.
    #[inline(always)]
    fn word(&mut self) -> Option<&'a [u8]> {
        let end = word_end(&self.0[..self.0.len().min(KEY_BYTES_MAX + 1)]);
        let Some(end @ 1..) = end else {
            cold_path();
            return None;
        };
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        Some(word)
    }

    /// Reads a blank and an unsigned number.
    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        // Most numbers have one digit.
        match self.0 {
            [b' ', digit @ b'0'..=b'9', b' ' | b'\r', ..] => {
                self.0 = &self.0[2..];
                Some(u64::from(digit - b'0'))
            }
            _ => self.any_number(),
        }
    }

    fn any_number(&mut self) -> Option<u64> {
        self.blank()?;
        let mut value = 0_u64;
        let mut digits = 0;
        for byte in self.0 {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            digits += 1;
            if digits > DIGITS_MAX {
                return None;
            }
            value = value * 10 + u64::from(digit);
        }
        self.0 = &self.0[digits..];
        (digits > 0).then_some(value)
    }
}

/// The index of the first byte that is not above the blank.
#[inline(always)]
fn word_end(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let (eights, rest) = bytes.as_chunks::<8>();
    for (number, eight) in eights.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        // Sets the top bit of each byte below 0x21. A borrow can set a wrong bit, but only behind
        // such a byte.
        let low = word.wrapping_sub(ONES * 0x21) & !word & (ONES << 7);
        if low != 0 {
            return Some(number * 8 + low.trailing_zeros() as usize / 8);
        }
    }
    let end = rest.iter().position(|byte| *byte <= b' ')?;
    Some(eights.len() * 8 + end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Decoded, decode};

    /// Checks that a line which `decode_fast` accepts decodes to the same request in `decode`.
    fn assert_same(input: &[u8], bounds: Bounds) -> bool {
        let Some((fast, consumed)) = decode_fast(input, bounds) else { return false };
        let shown = input.escape_ascii().to_string();
        let Ok(Decoded::Request { request, consumed: bytes }) = decode(input, 0, bounds) else {
            panic!("{shown}");
        };
        assert_eq!(consumed, bytes, "{shown}");
        match (fast.request(), request) {
            // The `words` of a retrieval begin with its blanks, so only the keys are compared.
            (
                Request::Retrieve { keys, with_cas: false, touch: None },
                Request::Retrieve { keys: words, with_cas: false, touch: None },
            ) => assert_eq!(keys.only(), words.only(), "{shown}"),
            (quick, request) => assert_eq!(quick, request, "{shown}"),
        }
        true
    }

    #[test]
    fn common_lines_take_the_fast_path() {
        let long = "k".repeat(250);
        for line in [
            "get k\r\n".to_owned(),
            "get user:000000000000001\r\nget k".to_owned(),
            "incr k 1\r\n".to_owned(),
            "decr user:1 9999999999999999999\r\n".to_owned(),
            format!("incr {long} 007\r\n"),
            "set k 4294967295 2147483647 5\r\nhe\r\no\r\n".to_owned(),
            "set k 0 0 0\r\n\r\n".to_owned(),
            "take user:1 9007199254740991 bucket:5/s\r\n".to_owned(),
            "take user:1 2 -\r\n".to_owned(),
        ] {
            assert!(assert_same(line.as_bytes(), Bounds::default()), "{line}");
        }
    }

    #[test]
    fn other_lines_are_left_to_decode() {
        let long = "k".repeat(251);
        for line in [
            "get k l\r\n".to_owned(),
            "get  k\r\n".to_owned(),
            "get k\n".to_owned(),
            "get k\r".to_owned(),
            "get \r\n".to_owned(),
            "gets k\r\n".to_owned(),
            " get k\r\n".to_owned(),
            "incr k 1 noreply\r\n".to_owned(),
            "incr k\r\n".to_owned(),
            "incr k -1\r\n".to_owned(),
            "incr k 1x\r\n".to_owned(),
            "incr k 18446744073709551615\r\n".to_owned(),
            "incr a\tb 1\r\n".to_owned(),
            format!("incr {long} 1\r\n"),
            "set k 0 0 2\r\nabc\r\n".to_owned(),
            "set k 0 0 2\r\nab".to_owned(),
            "set k 0 -1 1\r\na\r\n".to_owned(),
            "set k 0 0 9999999999\r\na\r\n".to_owned(),
            "take k 1 -1\r\n".to_owned(),
            "take k 1 =login\r\n".to_owned(),
            "take k 1 noreply\r\n".to_owned(),
            "take k 9007199254740992 bucket:5/s\r\n".to_owned(),
            "take k 1 bucket:5/s peek\r\n".to_owned(),
        ] {
            assert_eq!(decode_fast(line.as_bytes(), Bounds::default()), None, "{line}");
        }
    }

    /// Lines that `decode_fast` accepts, or would accept but for a byte or two.
    fn nearly_fast() -> impl Strategy<Value = Vec<u8>> {
        let verb = prop::sample::select(vec!["get", "gets", "incr", "decr", "set", "take", "mg"]);
        let key = prop_oneof!["[a-z:]{0,30}", "[!-~]{240,255}", "[\\x00-\\x7f]{1,9}"];
        let number = prop_oneof!["[0-9]{0,3}", "[0-9]{17,21}", Just("4294967296".to_owned())];
        let words =
            prop::collection::vec(prop_oneof![3 => number, 1 => Just("-".to_owned())], 0..4);
        let end = prop::sample::select(vec!["\r\n", "\n", "\r", " \r\n", "\r\nabc\r\n", ""]);
        (verb, key, words, end, any::<[(u16, u8); 2]>(), any::<bool>()).prop_map(
            |(verb, key, words, end, changes, is_changed)| {
                let mut line = format!("{verb} {key} {}", words.join(" ")).trim_end().to_owned();
                line.push_str(end);
                let mut line = line.into_bytes();
                for (place, byte) in changes.into_iter().filter(|_| is_changed) {
                    let place = usize::from(place) % line.len();
                    line[place] = byte;
                }
                line
            },
        )
    }

    proptest! {
        #[test]
        fn fast_requests_equal_those_of_decode(line in nearly_fast(), more in any::<[u8; 3]>()) {
            let bounds = Bounds::default();
            assert_same(&line, bounds);
            let followed = [&line[..], &more].concat();
            assert_same(&followed, bounds);
        }

        #[test]
        fn the_end_of_a_word_is_found(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let expected = bytes.iter().position(|byte| *byte <= b' ');
            prop_assert_eq!(word_end(&bytes), expected);
        }
    }
}
