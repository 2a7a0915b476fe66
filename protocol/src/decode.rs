//! The entry to decoding: the front of a buffer becomes a request, a demand for more bytes, or a
//! refusal.
//!
//! Here: where a request ends, and how many bytes each kind of fault consumes. Not here: the verbs
//! themselves (`classic`, `meta`), the buffer (`server`).

use memchr::memchr;
use nom::IResult;
use nom::Parser as _;
use nom::bytes::complete::{take_while, take_while1};
use nom::sequence::preceded;

use crate::bounds::{Bounds, GET_LINE_BYTES_MAX, KEY_BYTES_MAX, LINE_BYTES_MAX};
use crate::error::ProtocolError;
use crate::request::Request;
use crate::{classic, meta};

/// Upper bound on the length in bytes of a verb that takes a key, its blank included.
const VERB_BYTES_MAX: usize = 16;

/// The result of decoding the front of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole request. `consumed` may reach past the buffer if a value is refused for its size;
    /// the caller then drops the rest as it arrives.
    Request {
        /// The request.
        request: Request<'a>,
        /// The number of bytes to drop before the next request.
        consumed: usize,
    },
    /// The request is incomplete.
    Incomplete {
        /// The number of bytes known to contain no line end; pass it to the next [`decode`].
        scanned: usize,
        /// The buffer length in bytes below which decoding again is pointless.
        needed: usize,
    },
}

/// A refused request: the error to send and how to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// The error that is sent to the client.
    pub error: ProtocolError,
    /// The number of bytes to drop; they may reach past the buffer, as in [`Decoded::Request`].
    pub consumed: usize,
    /// The request has `noreply`: send nothing.
    pub quiet: bool,
    /// Close the connection after the reply: a data block of unknown length follows.
    pub closes: bool,
}

/// One line of input and the bytes behind it.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    /// The line without its line end.
    pub(crate) text: &'a [u8],
    /// The buffer after the line end.
    pub(crate) after: &'a [u8],
    /// The length of the line in bytes, with its line end.
    pub(crate) bytes: usize,
    pub(crate) bounds: Bounds,
}

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

/// The data block behind a line.
pub(crate) enum Block<'a> {
    Whole(&'a [u8]),
    /// More bytes are needed; return this result.
    Incomplete(Decoded<'a>),
    /// The two bytes behind the block are not CRLF.
    Bad,
}

impl<'a> Line<'a> {
    /// Returns the block of `length` bytes behind this line.
    pub(crate) fn block(&self, length: usize) -> Block<'a> {
        let Some(block) = self.after.get(..length + 2) else {
            let needed = self.bytes + length + 2;
            return Block::Incomplete(Decoded::Incomplete { scanned: self.bytes - 1, needed });
        };
        match block.split_at(length) {
            (value, b"\r\n") => Block::Whole(value),
            _ => Block::Bad,
        }
    }

    /// Accepts the line as the whole request.
    #[expect(clippy::unnecessary_wraps, reason = "the last word of functions that may refuse")]
    pub(crate) fn done(&self, request: Request<'a>) -> Result<Decoded<'a>, DecodeError> {
        Ok(Decoded::Request { request, consumed: self.bytes })
    }

    /// Accepts the line and a block of `length` bytes as the request.
    #[expect(clippy::unnecessary_wraps, reason = "the last word of functions that may refuse")]
    pub(crate) fn done_with(
        &self,
        length: usize,
        request: Request<'a>,
    ) -> Result<Decoded<'a>, DecodeError> {
        Ok(Decoded::Request { request, consumed: self.bytes + length + 2 })
    }

    /// Refuses the line alone.
    pub(crate) fn refuse(&self, error: ProtocolError, quiet: bool) -> DecodeError {
        DecodeError { error, consumed: self.bytes, quiet, closes: false }
    }

    /// Refuses the line together with its block of `length` bytes.
    pub(crate) fn refuse_with(
        &self,
        length: usize,
        error: ProtocolError,
        quiet: bool,
    ) -> DecodeError {
        DecodeError { error, consumed: self.bytes + length + 2, quiet, closes: false }
    }
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

/// Parses the next word: leading blanks are skipped, any other byte belongs to the word.
pub(crate) fn word(input: &[u8]) -> IResult<&[u8], &[u8]> {
    preceded(take_while(|byte| byte == b' '), take_while1(|byte| byte != b' ')).parse(input)
}
