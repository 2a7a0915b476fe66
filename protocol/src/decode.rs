//! The front of a buffer → a request, or the wish for more bytes, or a refusal.
//!
//! Here: where a request ends, and what each kind of fault costs. Not here: the verbs themselves
//! (`classic`, `meta`), the buffer (`server`).

use memchr::memchr;
use nom::IResult;
use nom::Parser as _;
use nom::bytes::complete::{take_while, take_while1};
use nom::sequence::preceded;

use crate::bounds::{Bounds, GET_LINE_BYTES_MAX, KEY_BYTES_MAX, LINE_BYTES_MAX};
use crate::error::ProtocolError;
use crate::request::Request;
use crate::{classic, meta};

/// No verb with a key is longer, its blank included.
const VERB_BYTES_MAX: usize = 16;

/// What the front of a buffer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// A whole request. `consumed` bytes belong to it; they may reach past the buffer when a
    /// value is refused for its size: the rest is dropped as it comes.
    Request {
        /// The request.
        request: Request<'a>,
        /// How many bytes to drop before the next one.
        consumed: usize,
    },
    /// Not all here yet.
    Incomplete {
        /// So many bytes hold no line end that counts; pass it to the next [`decode`].
        scanned: usize,
        /// Decoding again is of no use before the buffer holds this many bytes.
        needed: usize,
    },
}

/// A refused request: what to answer and how to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// What the client hears.
    pub error: ProtocolError,
    /// How many bytes to drop; they may reach past the buffer, as in [`Decoded::Request`].
    pub consumed: usize,
    /// `noreply` was asked: say nothing.
    pub quiet: bool,
    /// Hang up after the answer: a data block follows and nothing tells where it ends.
    pub closes: bool,
}

/// One line of input and what follows it.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    /// Without line end.
    pub(crate) text: &'a [u8],
    /// The buffer after the line end.
    pub(crate) after: &'a [u8],
    /// With line end.
    pub(crate) bytes: usize,
    pub(crate) bounds: Bounds,
}

/// Decodes the request at the front of `input`.
///
/// `scanned` is 0, or what the last [`Decoded::Incomplete`] for this very front said.
///
/// # Errors
///
/// A [`DecodeError`] for bytes that are no request: the connection goes on after `consumed` bytes,
/// except for [`ProtocolError::Close`].
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

/// A line whose end has not come: memcached waits for 2048 bytes, and longer only for keys.
fn unfinished(input: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    let many_keys = input.starts_with(b"get ") || input.starts_with(b"gets ");
    let most = if many_keys { GET_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
    if input.len() > most {
        let error = ProtocolError::Close;
        return Err(DecodeError { error, consumed: input.len(), quiet: true, closes: true });
    }
    Ok(Decoded::Incomplete { scanned: input.len(), needed: input.len() + 1 })
}

/// A data block behind a line.
pub(crate) enum Block<'a> {
    Whole(&'a [u8]),
    /// Answer with this: more bytes are needed.
    Incomplete(Decoded<'a>),
    /// The two bytes behind it are not CRLF.
    Bad,
}

impl<'a> Line<'a> {
    /// The block of `length` bytes behind this line.
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

    /// The line is the whole request.
    #[expect(clippy::unnecessary_wraps, reason = "the last word of functions that may refuse")]
    pub(crate) fn done(&self, request: Request<'a>) -> Result<Decoded<'a>, DecodeError> {
        Ok(Decoded::Request { request, consumed: self.bytes })
    }

    /// The line and a block of `length` bytes are the request.
    #[expect(clippy::unnecessary_wraps, reason = "the last word of functions that may refuse")]
    pub(crate) fn done_with(
        &self,
        length: usize,
        request: Request<'a>,
    ) -> Result<Decoded<'a>, DecodeError> {
        Ok(Decoded::Request { request, consumed: self.bytes + length + 2 })
    }

    /// The line is refused and nothing else.
    pub(crate) fn refuse(&self, error: ProtocolError, quiet: bool) -> DecodeError {
        DecodeError { error, consumed: self.bytes, quiet, closes: false }
    }

    /// The line is refused together with its block of `length` bytes.
    pub(crate) fn refuse_with(
        &self,
        length: usize,
        error: ProtocolError,
        quiet: bool,
    ) -> DecodeError {
        DecodeError { error, consumed: self.bytes + length + 2, quiet, closes: false }
    }
}

/// The key that the request at the front of `input` is likely about: its second word. A hint for
/// what memory to fetch, no more; the request may be cut short or be no request at all.
#[must_use]
pub fn likely_key(input: &[u8]) -> Option<&[u8]> {
    let start = memchr(b' ', &input[..input.len().min(VERB_BYTES_MAX)])? + 1;
    let key = &input[start..input.len().min(start + KEY_BYTES_MAX + 1)];
    let end = key.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'))?;
    Some(&key[..end])
}

/// The next word: blanks are skipped, any other byte belongs to it.
pub(crate) fn word(input: &[u8]) -> IResult<&[u8], &[u8]> {
    preceded(take_while(|byte| byte == b' '), take_while1(|byte| byte != b' ')).parse(input)
}
