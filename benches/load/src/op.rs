//! The operations that a cell can send: the bytes of a request, and the check of its reply.
//!
//! Here: one variant, one arm in `write` and one in `judge` for each verb, in memcached's text, and
//! the table of cells. A new verb touches this file only. Not here: pairing replies with requests
//! (`exchange`), other protocols (`dialect`), the policies of `take` and its verdicts (`take`).

use crate::keys::{KEY_BYTES, Space, key, value};
use crate::ledger::Ledger;
use crate::reply::Reply;
use crate::spread::Spread;
use crate::take::{ParsedVerdict, policy};

/// The operation of all requests of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `incr <key> 1` of an existing counter, or of a limited key.
    Incr {
        /// Counters or limited keys.
        space: Space,
    },
    /// `take <key> 1 <policy>`, which must pass.
    Take {
        /// The space of the keys, which decides the policy.
        space: Space,
    },
    /// `take <key> 1 <policy>` of [`Space::Empty`], which must be refused.
    Denied,
    /// `get` of `keys` existing keys at once.
    Get {
        /// Counters or 32-byte values.
        space: Space,
        /// Keys in one request.
        keys: u32,
    },
    /// `set` of a 32-byte value, without expiry.
    Set,
    /// `mn`, the meta no-op: the cost of a request without work.
    Noop,
    /// `delete` of an existing key.
    Delete {
        /// The space of the keys.
        space: Space,
    },
    /// `set` of a counter to zero, or of a value to its version 0; to preload.
    Fill {
        /// The space to fill.
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
    /// The operation.
    pub op: Op,
    /// The choice of keys.
    pub spread: Spread,
}

const fn kind(name: &'static str, op: Op, spread: Spread) -> Kind {
    Kind { name, op, spread }
}

const fn get(space: Space, keys: u32) -> Op {
    Op::Get { space, keys }
}

const fn take(space: Space) -> Op {
    Op::Take { space }
}

const INCR: Op = Op::Incr { space: Space::Counter };

/// Every kind. The first [`DEFAULT_KINDS`] are run when none is named.
pub const KINDS: &[Kind] = &[
    kind("incr", INCR, Spread::Uniform),
    kind("incr-zipf", INCR, Spread::Zipf),
    kind("incr-hot", INCR, Spread::Hot),
    kind("get", get(Space::Counter, 1), Spread::Uniform),
    kind("set", Op::Set, Spread::Uniform),
    kind("get10", get(Space::Counter, 10), Spread::Uniform),
    kind("get100", get(Space::Counter, 100), Spread::Uniform),
    kind("get-value", get(Space::Value, 1), Spread::Uniform),
    kind("get-zipf", get(Space::Counter, 1), Spread::Zipf),
    kind("get-hot", get(Space::Counter, 1), Spread::Hot),
    kind("noop", Op::Noop, Spread::Hot),
    kind("take-bucket", take(Space::Bucket), Spread::Uniform),
    kind("take-window", take(Space::Window), Spread::Uniform),
    kind("take-log", take(Space::Log), Spread::Uniform),
    kind("take-idle", take(Space::Idle), Spread::Uniform),
    kind("take-refused", Op::Denied, Spread::Uniform),
    kind("take-hot", take(Space::Bucket), Spread::Hot),
    kind("incr-bound", Op::Incr { space: Space::Bound }, Spread::Uniform),
    kind("take-bound", take(Space::Bound), Spread::Uniform),
];

/// The number of [`KINDS`] that are run by default.
pub const DEFAULT_KINDS: usize = 7;

impl Op {
    /// The number of keys that one request names, and so of its ledger entries.
    #[must_use]
    pub const fn keys(self) -> u32 {
        match self {
            Self::Get { keys, .. } => keys,
            Self::Noop => 0,
            _ => 1,
        }
    }

    /// The space of the operation's keys; `None` for a request without keys.
    #[must_use]
    pub const fn space(self) -> Option<Space> {
        match self {
            Self::Incr { space }
            | Self::Take { space }
            | Self::Get { space, .. }
            | Self::Delete { space }
            | Self::Fill { space, .. } => Some(space),
            Self::Denied => Some(Space::Empty),
            Self::Set => Some(Space::Value),
            Self::Noop => None,
        }
    }

    /// Whether only Tollgate has this verb.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        let is_bound = matches!(self, Self::Incr { space: Space::Bound });
        is_bound || matches!(self, Self::Take { .. } | Self::Denied)
    }

    /// Whether a limits file must match the operation's keys.
    #[must_use]
    pub const fn needs_limits(self) -> bool {
        matches!(self.space(), Some(Space::Bound))
    }

    /// The operation that creates the keys of a space before the cells run.
    #[must_use]
    pub const fn filling(space: Space) -> Self {
        match space {
            Space::Counter | Space::Value => Self::Fill { space, exptime: 0 },
            Space::Bound => Self::Incr { space },
            _ => Self::Take { space },
        }
    }

    /// The space that the operation writes and that must be settled and read back, if any.
    #[must_use]
    pub const fn writes(self) -> Option<Space> {
        match self {
            Self::Incr { space } | Self::Take { space } if space.is_counted() => Some(space),
            Self::Set => Some(Space::Value),
            _ => None,
        }
    }

    /// Records a request for the key at `index`, about to be sent; returns the version that `set`
    /// writes.
    pub fn note(self, index: u32, ledger: &mut Ledger) -> u32 {
        match self {
            Self::Incr { space } | Self::Take { space } => ledger.incr_sent(space, index),
            Self::Set => return ledger.set_sent(index),
            _ => {}
        }
        0
    }

    /// Appends one request for the keys at `indices` to `out`; `set` writes `version`.
    pub fn write(
        self,
        out: &mut Vec<u8>,
        indices: impl Iterator<Item = u32> + Clone,
        version: u32,
    ) {
        let index = indices.clone().next().unwrap_or(0);
        match self {
            Self::Incr { space } => {
                let mut line = *b"incr 0123456789abcdef0123 1\r\n";
                line[5..5 + KEY_BYTES].copy_from_slice(&key(space, index));
                out.extend_from_slice(&line);
            }
            Self::Take { space } => write_take(out, space, index),
            Self::Denied => write_take(out, Space::Empty, index),
            Self::Get { space, .. } => {
                out.extend_from_slice(b"get");
                indices.for_each(|index| {
                    let mut word = *b" 0123456789abcdef0123";
                    word[1..].copy_from_slice(&key(space, index));
                    out.extend_from_slice(&word);
                });
                out.extend_from_slice(b"\r\n");
            }
            Self::Set => {
                write_set(out, Space::Value, index, b" 0 0 32\r\n", &value(index, version));
            }
            Self::Noop => out.extend_from_slice(b"mn\r\n"),
            Self::Delete { space } => {
                let mut line = *b"delete 0123456789abcdef0123\r\n";
                line[7..7 + KEY_BYTES].copy_from_slice(&key(space, index));
                out.extend_from_slice(&line);
            }
            Self::Fill { space, exptime } => {
                let mut digits = itoa::Buffer::new();
                let exptime = digits.format(exptime).as_bytes();
                if space == Space::Value {
                    let header = [b" 0 ", exptime, b" 32\r\n"].concat();
                    write_set(out, space, index, &header, &value(index, 0));
                } else {
                    let header = [b" 0 ", exptime, b" 1\r\n"].concat();
                    write_set(out, space, index, &header, b"0");
                }
            }
        }
    }

    /// Judges a reply. `named` are the indices of the request that are not yet answered.
    pub fn judge(
        self,
        reply: &Reply<'_>,
        mut named: impl ExactSizeIterator<Item = u32>,
        ledger: &mut Ledger,
    ) -> Verdict {
        let outstanding = named.len();
        let index = named.next();
        let (right, is_last) = match (self, reply) {
            (Self::Incr { space }, Reply::Number(number)) => {
                (index.is_some_and(|index| ledger.incr_answered(space, index, *number)), true)
            }
            (Self::Take { space }, Reply::Line(line)) => {
                let used = ParsedVerdict::read(line).and_then(|verdict| verdict.used(space));
                let right = index.zip(used);
                (right.is_some_and(|(index, used)| ledger.incr_answered(space, index, used)), true)
            }
            (Self::Denied, Reply::Line(line)) => {
                (ParsedVerdict::read(line).is_some_and(|verdict| verdict.is_empty()), true)
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
            (Self::Delete { .. }, Reply::Line(line)) => (*line == b"DELETED", true),
            _ => (false, true),
        };
        Verdict { right, is_last }
    }
}

/// The result of [`Op::judge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The reply passed its check.
    pub right: bool,
    /// The reply is the last of its request; otherwise it answered one of several keys.
    pub is_last: bool,
}

fn write_set(out: &mut Vec<u8>, space: Space, index: u32, header: &[u8], data: &[u8]) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(&key(space, index));
    out.extend_from_slice(header);
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

fn write_take(out: &mut Vec<u8>, space: Space, index: u32) {
    out.extend_from_slice(b"take ");
    out.extend_from_slice(&key(space, index));
    out.extend_from_slice(b" 1 ");
    out.extend_from_slice(policy(space).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Whether `data` is the value that a `get` of the key must return.
pub(crate) fn data_is_right(space: Space, index: u32, data: &[u8], ledger: &Ledger) -> bool {
    match space {
        Space::Value => value(index, ledger.version(index)).as_slice() == data,
        _ => itoa::Buffer::new().format(ledger.counter(space, index)).as_bytes() == data,
    }
}
