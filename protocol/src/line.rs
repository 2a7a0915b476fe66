//! One line of input, and the results of decoding it.
//!
//! Here: how many bytes each kind of fault consumes, and the arguments that several verbs share.
//! Not here: the search for the line's end (`decode`), the verbs (`classic`, `meta`, `native`).

use crate::bounds::Bounds;
use crate::error::ProtocolError;
use crate::number::{strict_i32, strict_u64};
use crate::request::{Exptime, Request};

/// The greatest valid length of a data block: `INT_MAX` less its CRLF, as in memcached.
const LENGTH_MAX: u64 = i32::MAX as u64 - 2;

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
        /// The number of bytes known to contain no line end; pass it to the next
        /// [`decode`](crate::decode()).
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

/// Parses an exptime; `None` if `word` is no number of seconds.
pub(crate) fn exptime(word: &[u8]) -> Option<Exptime> {
    strict_i32(word.strip_prefix(b"+").unwrap_or(word)).map(Exptime)
}

/// Parses the length of a data block; `None` if `word` is no valid length.
pub(crate) fn block_length(word: &[u8]) -> Option<usize> {
    let word = word.strip_prefix(b"+").unwrap_or(word);
    strict_u64(word).filter(|length| *length <= LENGTH_MAX).map(|length| length as usize)
}
