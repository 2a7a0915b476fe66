//! The key of an item: 1 to 250 bytes without blank or line end.
//!
//! Here: the check, made once when a line is decoded, and the writing of keys. Not here: the hash
//! of a key (`engine`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::bounds::KEY_BYTES_MAX;

/// A key, borrowed from the read buffer; only a base64 key (meta flag `b`) owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key<'a>(Repr<'a>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Repr<'a> {
    Plain(&'a [u8]),
    Decoded(Box<[u8]>),
}

impl<'a> Key<'a> {
    /// Returns the key that a line contains; `None` if `word` is empty or longer than 250 bytes.
    ///
    /// The caller has split the line at blanks, so `word` contains neither blank nor line end.
    #[must_use]
    pub fn plain(word: &'a [u8]) -> Option<Self> {
        (1..=KEY_BYTES_MAX).contains(&word.len()).then_some(Self(Repr::Plain(word)))
    }

    /// Decodes a key from base64; `None` if it does not decode to 1 to 250 bytes.
    #[must_use]
    pub fn base64(word: &[u8]) -> Option<Key<'static>> {
        let bytes = STANDARD.decode(word).ok()?;
        (1..=KEY_BYTES_MAX)
            .contains(&bytes.len())
            .then(|| Key(Repr::Decoded(bytes.into_boxed_slice())))
    }

    /// The key's bytes; never empty, at most 250.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Plain(word) => word,
            Repr::Decoded(bytes) => bytes,
        }
    }
}

/// Appends `key` to a reply line: in base64 if `base64` is set or if the key contains a blank or
/// line end and would not stay one word. Returns true if it was written in base64.
pub(crate) fn write_key(out: &mut Vec<u8>, key: &[u8], base64: bool) -> bool {
    let base64 = base64 || !is_one_word(key);
    if base64 {
        out.extend_from_slice(STANDARD.encode(key).as_bytes());
    } else {
        out.extend_from_slice(key);
    }
    base64
}

const HEX_DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// Appends `key` to a line of a dump. A key that would not stay one word is written with `%` and
/// two hex digits for each blank, control byte and `%`, as in memcached's `metadump`.
pub fn write_escaped_key(out: &mut Vec<u8>, key: &[u8]) {
    if is_one_word(key) {
        return out.extend_from_slice(key);
    }
    for byte in key {
        match byte {
            0..=b' ' | b'%' | 0x7f => {
                let digit = |nibble: u8| HEX_DIGITS[usize::from(nibble & 15)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(*byte)]);
            }
            _ => out.push(*byte),
        }
    }
}

/// Whether `key` has neither blanks nor line ends. Most keys that arrive in base64 have none
/// either.
fn is_one_word(key: &[u8]) -> bool {
    key.iter().all(|byte| !matches!(byte, b' ' | b'\r' | b'\n'))
}
