//! What the engine answers, and its bytes.
//!
//! Here: outcomes, the parts of an item a client may see, and the choice between the two families
//! of answers. Not here: the words themselves (`classic`, `meta`), lines that concern no key
//! (`server`).

use crate::decimal::{digits, write_long_number, write_number};
use crate::key::write_key;
use crate::request::{Command, Form};
use crate::{classic, meta, native};

/// What a command on one key came to. Values are borrowed from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A retrieval found the item.
    Hit(ItemView<'a>),
    /// A retrieval found nothing and left an empty item (`mg` with `N`): answered like a hit.
    Vivified(ItemView<'a>),
    /// A retrieval found nothing.
    Miss,
    /// Stored; the item as it is now.
    Stored(ItemView<'a>),
    /// Counted; the item as it is now.
    Number(ItemView<'a>),
    /// Not counted: a limit is in the way. The number is what it would have come to, above the
    /// limit, which is how a plain client hears of it.
    Refused(ItemView<'a>),
    /// A command that has no meaning on a key that a limit holds.
    NotAllowed,
    /// The mode's condition does not hold, or an append would grow past the bound.
    NotStored,
    /// The item has another cas unique.
    Exists,
    /// There is no such item.
    NotFound,
    /// Deleted, marked stale, or emptied.
    Deleted,
    /// The exptime is set.
    Touched,
    /// `incr` or `decr` of something that is no number.
    NonNumeric,
    /// Over the item size bound.
    TooLarge,
    /// The memory cap is reached and nothing may be evicted.
    OutOfMemory,
    /// A decision of a limit: `take`, `takem`, `refund`.
    Verdict(VerdictLine),
    /// A hold is ended: `settle`.
    Settled {
        /// The limit.
        limit: u64,
        /// Units left; below 0 what is used beyond the limit.
        remaining: i64,
        /// Milliseconds until full again.
        reset_ms: u64,
    },
    /// A hold goes on for so many milliseconds: `renew`.
    Renewed(u64),
    /// Quota to spend locally: `lease`.
    Leased(LeaseLine),
    /// A bounded count: `incrx`.
    Counted(CountLine),
    /// The count of a window: `slide`.
    Slid(u64),
}

/// The first word of a verdict line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerdictWord {
    /// All of the cost was taken.
    Allow,
    /// Nothing was taken.
    Deny,
    /// All of the cost was taken, and the caller is to wait before going on.
    Wait,
    /// A part of the cost was taken.
    Part,
    /// Nothing was tried: the cas unique is another one.
    Exists,
}

/// A decision of a limit; the pairs are told where they apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictLine {
    /// How it was decided.
    pub word: VerdictWord,
    /// The limit.
    pub limit: u64,
    /// Units left; below 0 what is used beyond the limit.
    pub remaining: i64,
    /// Milliseconds to wait, rounded up; `None`, told as −1, for never.
    pub retry_ms: Option<u64>,
    /// Milliseconds until full again, rounded up.
    pub reset_ms: u64,
    /// The cas unique, where it was asked for.
    pub cas: Option<u64>,
    /// The hold that was made.
    pub lease: Option<u64>,
    /// Units taken, where that is only a part.
    pub granted: Option<u64>,
    /// Which key of a `takem` refused, from 0.
    pub at: Option<usize>,
    /// The policy only reports.
    pub shadow: bool,
    /// Decided without the owner of the key.
    pub degraded: bool,
}

impl VerdictLine {
    /// Whether more is told than the verdict and its four numbers.
    pub(crate) fn has_pairs(&self) -> bool {
        let Self { cas, lease, granted, at, shadow, degraded, .. } = *self;
        cas.is_some() || lease.is_some() || granted.is_some() || at.is_some() || shadow || degraded
    }
}

/// A grant of quota to spend locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLine {
    /// Units granted.
    pub granted: u64,
    /// Milliseconds they may be spent in.
    pub ttl_ms: u64,
    /// Milliseconds until the client should ask again.
    pub refresh_ms: u64,
    /// Units left to others.
    pub remaining: u64,
    /// The number of the lease.
    pub lease: u64,
    /// Units that the client may spend when nobody answers it any more.
    pub safe: u64,
}

/// What `incrx` came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountLine {
    /// Nothing was tried: the cas unique is another one. Told as `EXISTS` before the figures.
    pub exists: bool,
    /// The value after it.
    pub value: i64,
    /// How much of the delta was applied.
    pub applied: i64,
    /// Milliseconds left, rounded up; `None`, told as −1, for a counter that stays.
    pub ttl_ms: Option<u64>,
    /// The cas unique, where it was asked for.
    pub cas: Option<u64>,
}

impl Outcome<'static> {
    /// A count, for tests and examples.
    #[must_use]
    pub fn number(value: u64) -> Self {
        Self::Number(ItemView { value: Value::Number(value), ..ItemView::default() })
    }
}

/// An item's value: bytes, or a counter kept as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The bytes as stored.
    Bytes(&'a [u8]),
    /// A decimal without leading zeros.
    Number(u64),
}

impl Value<'_> {
    /// Length in bytes as a client sees it.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(number) => number.checked_ilog10().unwrap_or(0) as usize + 1,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the value as a client sees it.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Number(number) => write_number(out, *number),
        }
    }
}

/// The parts of an item that a client may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemView<'a> {
    /// The value.
    pub value: Value<'a>,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// The cas unique.
    pub cas: u64,
    /// Seconds left, rounded up; `None` for an item that stays.
    pub ttl_seconds: Option<u32>,
    /// The same before this command set a new exptime.
    pub former_ttl_seconds: Option<u32>,
    /// Seconds since the access before this one.
    pub idle_seconds: u32,
    /// It was fetched before.
    pub fetched: bool,
    /// Marked stale (answered as `X`).
    pub stale: bool,
    /// This client is to recache it (answered as `W`).
    pub won: bool,
    /// Another client is recaching it (answered as `Z`).
    pub already_won: bool,
    /// Its key was first given in base64.
    pub base64: bool,
    /// This command made it (`N`).
    pub is_new: bool,
    /// The client has this version already: answer without the value.
    pub value_unwanted: bool,
}

impl Default for ItemView<'_> {
    fn default() -> Self {
        Self {
            value: Value::Bytes(b""),
            client_flags: 0,
            cas: 0,
            ttl_seconds: None,
            former_ttl_seconds: None,
            idle_seconds: 0,
            fetched: false,
            stale: false,
            won: false,
            already_won: false,
            base64: false,
            is_new: false,
            value_unwanted: false,
        }
    }
}

/// Appends the answer to `command`, or nothing where `form` asks for silence.
pub fn encode(out: &mut Vec<u8>, command: &Command<'_>, form: &Form<'_>, outcome: &Outcome<'_>) {
    match form {
        Form::Text { quiet: true } | Form::Native { quiet: true } => {}
        Form::Text { quiet: false } => classic::encode(out, command, outcome),
        Form::Meta { .. } => meta::encode(out, command, form, outcome),
        Form::Native { quiet: false } => native::encode(out, command, outcome),
    }
}

/// Appends one `VALUE` block of a retrieval; the `END` after the last one is the caller's.
pub fn encode_hit(out: &mut Vec<u8>, key: &[u8], item: &ItemView<'_>, with_cas: bool) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    if let (Value::Number(number @ 0..1000), 0, false) = (item.value, item.client_flags, with_cas) {
        // What most counters are: pieces of a known length need no call to copy them.
        let digit = digits(number);
        return match number {
            0..10 => out.extend_from_slice(&[b' ', b'0', b' ', b'1', CR, LF, digit(1), CR, LF]),
            10..100 => out.extend_from_slice(&[
                b' ',
                b'0',
                b' ',
                b'2',
                CR,
                LF,
                digit(10),
                digit(1),
                CR,
                LF,
            ]),
            _ => out.extend_from_slice(&[
                b' ',
                b'0',
                b' ',
                b'3',
                CR,
                LF,
                digit(100),
                digit(10),
                digit(1),
                CR,
                LF,
            ]),
        };
    }
    out.push(b' ');
    write_number(out, u64::from(item.client_flags));
    out.push(b' ');
    write_number(out, item.value.len() as u64);
    if with_cas {
        out.push(b' ');
        write_number(out, item.cas);
    }
    out.extend_from_slice(b"\r\n");
    item.value.write(out);
    out.extend_from_slice(b"\r\n");
}

/// Appends the answer of `me`: the item's inner figures. `size_bytes` is what it takes in memory.
/// A key that came in base64 is written so.
pub fn encode_inspection(out: &mut Vec<u8>, key: &[u8], item: &ItemView<'_>, size_bytes: usize) {
    out.extend_from_slice(b"ME ");
    write_key(out, key, item.base64);
    out.extend_from_slice(b" exp=");
    match item.ttl_seconds {
        Some(seconds) => write_number(out, u64::from(seconds)),
        None => out.extend_from_slice(b"-1"),
    }
    out.extend_from_slice(b" la=");
    write_number(out, u64::from(item.idle_seconds));
    out.extend_from_slice(b" cas=");
    write_number(out, item.cas);
    out.extend_from_slice(if item.fetched { b" fetch=yes" } else { b" fetch=no" });
    out.extend_from_slice(b" cls=1 size=");
    write_number(out, size_bytes as u64);
    out.extend_from_slice(b"\r\n");
}

/// Appends the answer of `incr`: the count on a line of its own.
pub fn encode_number(out: &mut Vec<u8>, value: u64) {
    let digit = digits(value);
    match value {
        0..10 => out.extend_from_slice(&[digit(1), CR, LF]),
        10..100 => out.extend_from_slice(&[digit(10), digit(1), CR, LF]),
        100..1000 => out.extend_from_slice(&[digit(100), digit(10), digit(1), CR, LF]),
        _ => {
            write_long_number(out, value);
            out.extend_from_slice(b"\r\n");
        }
    }
}

const CR: u8 = b'\r';
const LF: u8 = b'\n';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_length_are_written() {
        let edges = [10_u64, 100, 1000, 10_000].map(|edge| [edge - 1, edge, edge + 1]);
        for value in edges.into_iter().flatten().chain([0, 5, 321, u64::MAX]) {
            let mut out = Vec::new();
            write_number(&mut out, value);
            encode_number(&mut out, value);
            assert_eq!(out, format!("{value}{value}\r\n").into_bytes());
            let item = ItemView { value: Value::Number(value), ..ItemView::default() };
            let mut out = Vec::new();
            encode_hit(&mut out, b"key", &item, false);
            let length = value.to_string().len();
            assert_eq!(out, format!("VALUE key 0 {length}\r\n{value}\r\n").into_bytes());
        }
    }
}
