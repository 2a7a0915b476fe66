//! The entry to decoding: the front of a buffer becomes a request, a demand for more bytes, or a
//! refusal.
//!
//! Here: where a request ends. Not here: the verbs themselves (`classic`, `meta`), the bytes that
//! each kind of fault consumes (`line`), the buffer (`server`).

use memchr::memchr;

use crate::bounds::{Bounds, GET_LINE_BYTES_MAX, KEY_BYTES_MAX, LINE_BYTES_MAX};
use crate::error::ProtocolError;
use crate::line::{DecodeError, Decoded, Line};
use crate::text::word;
use crate::{classic, meta};

/// Upper bound on the length in bytes of a verb that takes a key, its blank included.
const VERB_BYTES_MAX: usize = 16;

/// Decodes the request at the front of `input`.
///
/// `scanned` is 0, or the value that the last [`Decoded::Incomplete`] for the same front returned.
///
/// # Errors
///
/// A [`DecodeError`] if the bytes are no valid request: the connection continues after `consumed`
/// bytes, except for [`ProtocolError::Close`] and where `closes` is set.
pub fn decode(input: &[u8], scanned: usize, bounds: Bounds) -> Result<Decoded<'_>, DecodeError> {
    let Some(at) = memchr(b'\n', &input[scanned.min(input.len())..]) else {
        return unfinished(input);
    };
    let end = scanned.min(input.len()) + at;
    let text = &input[..end];
    let line = Line {
        text: text.strip_suffix(b"\r").unwrap_or(text),
        after: &input[end + 1..],
        bytes: end + 1,
        bounds,
    };
    let (rest, verb) = word(line.text).unwrap_or((b"", b""));
    match verb {
        [b'm', b'g' | b's' | b'd' | b'a' | b'n' | b'e'] if line.text[0] == b'm' => {
            meta::decode(line, verb[1], rest)
        }
        _ => classic::decode(line, verb, rest),
    }
}

/// Handles a line without its end: memcached waits for up to 2048 bytes, and for more only if the
/// line lists keys.
fn unfinished(input: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    let many_keys = input.starts_with(b"get ") || input.starts_with(b"gets ");
    let most = if many_keys { GET_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
    if input.len() > most {
        let error = ProtocolError::Close;
        return Err(DecodeError { error, consumed: input.len(), quiet: true, closes: true });
    }
    Ok(Decoded::Incomplete { scanned: input.len(), needed: input.len() + 1 })
}

/// Returns the probable key of the request at the front of `input`: its second word. The result is
/// only a hint for prefetching memory; the request may be incomplete or invalid.
#[must_use]
pub fn likely_key(input: &[u8]) -> Option<&[u8]> {
    let start = memchr(b' ', &input[..input.len().min(VERB_BYTES_MAX)])? + 1;
    let key = &input[start..input.len().min(start + KEY_BYTES_MAX + 1)];
    let end = key.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'))?;
    Some(&key[..end])
}
