//! The commonest lines, read in one pass: what [`decode`](crate::decode()) says of them, for a third of
//! what it costs.
//!
//! Here: `get` of one key, `incr`, `decr`, `set` and `take` under a written policy or that of the key, each without
//! options, in the spelling that clients use. Not here: anything else, and any fault: that is
//! [`decode`](crate::decode())'s to read.

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

/// One of the commonest requests. All keys are valid ones.
///
/// It is made of whole words, so that it is kept in registers until it is stored: a batch has many, and what is
/// written in pieces and read at once as a whole is waited for.
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
        /// The counter.
        key: &'a [u8],
        /// Up or down by so much.
        delta: u64,
        /// Down.
        decrement: bool,
    },
    /// `set <key> <flags> <exptime> <length>` and its block.
    Set {
        /// The item.
        key: &'a [u8],
        /// The client's 32 bits.
        client_flags: u32,
        /// As written.
        exptime: Exptime,
        /// No longer than an item may be.
        value: &'a [u8],
    },
    /// `take <key> <cost> <policy>`.
    Take {
        /// The limited key.
        key: &'a [u8],
        /// Units, 0 to [`COUNT_MAX`].
        cost: u64,
        /// [`CONFIGURED_POLICY`], or a policy token, not parsed.
        policy: &'a [u8],
    },
}

/// The policy of the limit that the key is bound to.
pub const CONFIGURED_POLICY: &[u8] = b"-";

impl<'a> FastRequest<'a> {
    /// The key it is about.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        let (Self::Get { key }
        | Self::Count { key, .. }
        | Self::Set { key, .. }
        | Self::Take { key, .. }) = self;
        key
    }

    /// What [`decode`](crate::decode()) makes of the same line.
    ///
    /// # Panics
    ///
    /// If the key is not a valid one, which no [`decode_fast`] tells.
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

/// Reads the request at the front of `input` and tells how long it is; `None` if it is not whole, not
/// one of the commonest, or faulty.
#[inline(always)]
#[must_use]
pub fn decode_fast(input: &[u8], bounds: Bounds) -> Option<(FastRequest<'_>, usize)> {
    let (verb, rest) = input.split_first_chunk::<4>()?;
    let mut rest = Scanner(rest);
    // Compared whole, not letter by letter.
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

/// More digits could be more than 64 bits.
const DIGITS_MAX: usize = 19;

/// What is not read yet.
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

    /// A word of 1 to 250 bytes above the blank: no more than a key may have, and any such word is one.
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

    /// A blank and a number of digits alone.
    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        // Most have one digit.
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

/// Where the first byte is that is no higher than a blank.
#[inline(always)]
fn word_end(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let (eights, rest) = bytes.as_chunks::<8>();
    for (number, eight) in eights.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        // The top bit of each byte below 0x21. A borrow can set it wrongly, but only behind such a byte.
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

    /// What is quick is what `decode` reads.
    fn assert_same(input: &[u8], bounds: Bounds) -> bool {
        let Some((fast, consumed)) = decode_fast(input, bounds) else { return false };
        let told = input.escape_ascii().to_string();
        let Ok(Decoded::Request { request, consumed: bytes }) = decode(input, 0, bounds) else {
            panic!("{told}");
        };
        assert_eq!(consumed, bytes, "{told}");
        match (fast.request(), request) {
            // The words of a retrieval begin with its blanks.
            (
                Request::Retrieve { keys, with_cas: false, touch: None },
                Request::Retrieve { keys: words, with_cas: false, touch: None },
            ) => assert_eq!(keys.only(), words.only(), "{told}"),
            (quick, request) => assert_eq!(quick, request, "{told}"),
        }
        true
    }

    #[test]
    fn what_clients_send_is_quick() {
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
    fn all_else_is_left_alone() {
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

    /// Lines that are quick, or would be but for a byte or two.
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
        fn what_is_quick_is_what_decode_reads(line in nearly_fast(), more in any::<[u8; 3]>()) {
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
