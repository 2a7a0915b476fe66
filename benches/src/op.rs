//! The operations a cell can send: the request's bytes, and what makes its reply right.
//!
//! Here: one variant, one arm in `write` and one in `judge` for each verb, and the table of cells.
//! A new verb touches this file only. Not here: pairing replies with requests (`exchange`).

use std::collections::VecDeque;

use crate::keys::{KEY_BYTES, Space, key, value};
use crate::ledger::Ledger;
use crate::reply::Reply;
use crate::spread::Spread;

/// What every request of a cell asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `incr <key> 1` of an existing counter.
    Incr,
    /// `get` of this many existing keys at once.
    Get {
        /// Counters or 32-byte values.
        space: Space,
        /// Keys in one request.
        keys: u32,
    },
    /// `set` of a 32-byte value, without expiry.
    Set,
    /// `mn`, the meta no-op: what a request costs that does nothing.
    Noop,
    /// `set` of a counter to zero, or of a value to its version 0; to preload.
    Fill {
        /// What is filled.
        space: Space,
        /// Seconds to live; zero for ever.
        exptime: u32,
    },
}

/// A kind of cell, as named on the command line and in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The name.
    pub name: &'static str,
    /// What is asked.
    pub op: Op,
    /// Of which keys.
    pub spread: Spread,
}

const fn kind(name: &'static str, op: Op, spread: Spread) -> Kind {
    Kind { name, op, spread }
}

const fn get(space: Space, keys: u32) -> Op {
    Op::Get { space, keys }
}

/// Every kind there is. The first [`DEFAULT_KINDS`] are run when none is named.
pub const KINDS: &[Kind] = &[
    kind("incr", Op::Incr, Spread::Uniform),
    kind("incr-zipf", Op::Incr, Spread::Zipf),
    kind("incr-hot", Op::Incr, Spread::Hot),
    kind("get", get(Space::Counter, 1), Spread::Uniform),
    kind("set", Op::Set, Spread::Uniform),
    kind("get10", get(Space::Counter, 10), Spread::Uniform),
    kind("get100", get(Space::Counter, 100), Spread::Uniform),
    kind("get-value", get(Space::Value, 1), Spread::Uniform),
    kind("get-zipf", get(Space::Counter, 1), Spread::Zipf),
    kind("get-hot", get(Space::Counter, 1), Spread::Hot),
    kind("noop", Op::Noop, Spread::Hot),
];

/// How many of [`KINDS`] are run unasked.
pub const DEFAULT_KINDS: usize = 7;

impl Op {
    /// Keys, and so ledger entries, that one request names.
    #[must_use]
    pub const fn keys(self) -> u32 {
        match self {
            Self::Get { keys, .. } => keys,
            Self::Incr | Self::Set | Self::Fill { .. } => 1,
            Self::Noop => 0,
        }
    }

    /// Whether the 32-byte values must be there before.
    #[must_use]
    pub const fn needs_values(self) -> bool {
        matches!(self, Self::Set | Self::Get { space: Space::Value, .. })
    }

    /// Whether a cell of it must be settled and read back.
    #[must_use]
    pub const fn writes(self) -> Option<Space> {
        match self {
            Self::Incr => Some(Space::Counter),
            Self::Set => Some(Space::Value),
            Self::Get { .. } | Self::Noop | Self::Fill { .. } => None,
        }
    }

    /// Appends one request to `out` and the indices it names to `named`.
    pub fn write(
        self,
        out: &mut Vec<u8>,
        named: &mut VecDeque<u32>,
        ledger: &mut Ledger,
        mut pick: impl FnMut() -> u32,
    ) {
        let first = named.len();
        named.extend((0..self.keys()).map(|_| pick()));
        let index = named.get(first).copied().unwrap_or(0);
        match self {
            Self::Incr => {
                ledger.incr_sent(index);
                let mut line = *b"incr 0123456789abcdef0123 1\r\n";
                line[5..5 + KEY_BYTES].copy_from_slice(&key(Space::Counter, index));
                out.extend_from_slice(&line);
            }
            Self::Get { space, .. } => {
                out.extend_from_slice(b"get");
                for &index in named.range(first..) {
                    let mut word = *b" 0123456789abcdef0123";
                    word[1..].copy_from_slice(&key(space, index));
                    out.extend_from_slice(&word);
                }
                out.extend_from_slice(b"\r\n");
            }
            Self::Set => {
                let version = ledger.set_sent(index);
                write_set(out, Space::Value, index, b" 0 0 32\r\n", &value(index, version));
            }
            Self::Noop => out.extend_from_slice(b"mn\r\n"),
            Self::Fill { space, exptime } => {
                let mut digits = itoa::Buffer::new();
                let exptime = digits.format(exptime).as_bytes();
                match space {
                    Space::Counter => {
                        let header = [b" 0 ", exptime, b" 1\r\n"].concat();
                        write_set(out, space, index, &header, b"0");
                    }
                    Space::Value => {
                        let header = [b" 0 ", exptime, b" 32\r\n"].concat();
                        write_set(out, space, index, &header, &value(index, 0));
                    }
                }
            }
        }
    }

    /// Judges a reply. `named` are the indices of the request that are not answered yet.
    pub fn judge(
        self,
        reply: &Reply<'_>,
        mut named: impl ExactSizeIterator<Item = u32>,
        ledger: &mut Ledger,
    ) -> Verdict {
        let outstanding = named.len();
        let index = named.next();
        let (right, is_last) = match (self, reply) {
            (Self::Incr, Reply::Number(number)) => {
                (index.is_some_and(|index| ledger.incr_answered(index, *number)), true)
            }
            (Self::Get { space, .. }, Reply::Value { key: name, flags, data }) => {
                let right = index.is_some_and(|index| {
                    *name == key(space, index).as_slice()
                        && *flags == b"0"
                        && data_is_right(space, index, data, ledger)
                });
                (right, false)
            }
            (Self::Get { .. }, Reply::Line(line)) => (*line == b"END" && outstanding == 0, true),
            (Self::Set | Self::Fill { .. }, Reply::Line(line)) => (*line == b"STORED", true),
            (Self::Noop, Reply::Line(line)) => (*line == b"MN", true),
            (Self::Get { .. }, Reply::Malformed(_) | Reply::Number(_))
            | (Self::Incr | Self::Set | Self::Fill { .. } | Self::Noop, _) => (false, true),
        };
        Verdict { right, is_last }
    }
}

/// What [`Op::judge`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The reply is what it must be.
    pub right: bool,
    /// It is the last of its request's; otherwise it answered one key of several.
    pub is_last: bool,
}

fn write_set(out: &mut Vec<u8>, space: Space, index: u32, header: &[u8], data: &[u8]) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(&key(space, index));
    out.extend_from_slice(header);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

fn data_is_right(space: Space, index: u32, data: &[u8], ledger: &Ledger) -> bool {
    match space {
        Space::Counter => itoa::Buffer::new().format(ledger.counter(index)).as_bytes() == data,
        Space::Value => value(index, ledger.version(index)).as_slice() == data,
    }
}
