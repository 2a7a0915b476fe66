//! The outcomes of the engine, and their bytes.
//!
//! Here: outcomes, the parts of an item that a client may see, and the choice between the families
//! of replies. Not here: the texts themselves (`classic`, `meta`, `native`), lines that concern no
//! key (`server`).

use crate::decimal::{digits, write_long_number, write_number};
use crate::key::write_key;

/// The outcome of a command on one key. Values are borrowed from the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// A retrieval found the item.
    Hit(ItemView<'a>),
    /// A retrieval found nothing and left an empty item (`mg` with `N`): the reply is that of a
    /// hit.
    Vivified(ItemView<'a>),
    /// A retrieval found nothing.
    Miss,
    /// Stored; the item after the change.
    Stored(ItemView<'a>),
    /// Counted; the item after the change.
    Number(ItemView<'a>),
    /// Not counted: a limit refuses the increment. The number is the value that the increment would
    /// have reached, above the limit: a plain client recognises the refusal by it.
    Refused(ItemView<'a>),
    /// The command has no meaning on a limited key.
    NotAllowed,
    /// The mode's condition does not hold, or an append would grow past the bound.
    NotStored,
    /// The item has another cas unique.
    Exists,
    /// The item does not exist.
    NotFound,
    /// Deleted, marked stale, or emptied.
    Deleted,
    /// The exptime is set.
    Touched,
    /// `incr` or `decr` of a value that is not a number.
    NonNumeric,
    /// The value exceeds the bound on an item's size.
    TooLarge,
    /// The memory cap is reached and nothing may be evicted.
    OutOfMemory,
    /// A decision of a limit: `take`, `takem`, `refund`.
    Verdict(VerdictLine),
    /// A hold has ended: `settle`.
    Settled {
        /// The limit.
        limit: u64,
        /// Units left; negative by the units used beyond the limit.
        remaining: i64,
        /// Milliseconds until the limit is full again.
        reset_ms: u64,
    },
    /// A hold is extended; the milliseconds left to it: `renew`.
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
    /// All of the cost was taken, and the caller must wait before it continues.
    Wait,
    /// A part of the cost was taken.
    Part,
    /// Nothing was tried: the cas unique differs.
    Exists,
}

/// The decision of a limit; the optional fields become `key=value` pairs if they are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerdictLine {
    /// The verdict.
    pub word: VerdictWord,
    /// The limit.
    pub limit: u64,
    /// Units left; negative by the units used beyond the limit.
    pub remaining: i64,
    /// Milliseconds to wait, rounded up; `None`, written as −1, for never.
    pub retry_ms: Option<u64>,
    /// Milliseconds until the limit is full again, rounded up.
    pub reset_ms: u64,
    /// The cas unique, if the request asked for it.
    pub cas: Option<u64>,
    /// The number of the hold that was made.
    pub lease: Option<u64>,
    /// Units taken, if that is only a part.
    pub granted: Option<u64>,
    /// From 0: the index of the `takem` key that refused, or the position of the policy of a limit
    /// with several whose figures these are.
    pub at: Option<usize>,
    /// Whether the policy only reports.
    pub shadow: bool,
    /// Whether the decision was made without the owner of the key.
    pub degraded: bool,
    /// Whether the key is banned.
    pub ban: bool,
}

impl VerdictLine {
    /// Whether the line has `key=value` pairs beside the verdict and its four numbers.
    pub(crate) fn has_pairs(&self) -> bool {
        let Self { cas, lease, granted, at, shadow, degraded, ban, .. } = *self;
        let has_numbers = cas.is_some() || lease.is_some() || granted.is_some() || at.is_some();
        has_numbers || shadow || degraded || ban
    }
}

/// A grant of quota to spend locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseLine {
    /// Units granted.
    pub granted: u64,
    /// Milliseconds in which the client may spend them.
    pub ttl_ms: u64,
    /// Milliseconds after which the client should renew the lease.
    pub refresh_ms: u64,
    /// Units left for other clients.
    pub remaining: u64,
    /// The number of the lease.
    pub lease: u64,
    /// All units that the client may spend now, even if no further reply arrives.
    pub safe: u64,
}

/// The result of `incrx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountLine {
    /// Nothing was tried: the cas unique differs. Written as `EXISTS` before the numbers.
    pub exists: bool,
    /// The value after the command.
    pub value: i64,
    /// The part of the delta that was applied.
    pub applied: i64,
    /// Milliseconds left, rounded up; `None`, written as −1, for a counter without a deadline.
    pub ttl_ms: Option<u64>,
    /// The cas unique, if the request asked for it.
    pub cas: Option<u64>,
}

impl Outcome<'static> {
    /// Returns a count, for tests and examples.
    #[must_use]
    pub fn number(value: u64) -> Self {
        Self::Number(ItemView { value: Value::Number(value), ..ItemView::default() })
    }
}

/// An item's value: bytes, or a counter stored as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The bytes as stored.
    Bytes(&'a [u8]),
    /// A number, seen by clients as a decimal without leading zeros.
    Number(u64),
}

impl Value<'_> {
    /// The length in bytes that a client sees.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(number) => number.checked_ilog10().unwrap_or(0) as usize + 1,
        }
    }

    /// Whether the value has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes that a client sees.
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
    /// Seconds left, rounded up; `None` for an item without a deadline.
    pub ttl_seconds: Option<u32>,
    /// Seconds left before this command set a new exptime.
    pub former_ttl_seconds: Option<u32>,
    /// Seconds since the access before this one.
    pub idle_seconds: u32,
    /// Whether the item was fetched before.
    pub fetched: bool,
    /// Whether the item is marked stale (written as `X`).
    pub stale: bool,
    /// Whether this client should recache the item (written as `W`).
    pub won: bool,
    /// Whether another client is recaching the item (written as `Z`).
    pub already_won: bool,
    /// Whether the key of the item was first given in base64.
    pub base64: bool,
    /// Whether this command created the item (`N`).
    pub is_new: bool,
    /// Whether the client has this version already, so that the reply omits the value.
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

/// Appends one `VALUE` block of a retrieval; the caller appends the `END` after the last one.
pub fn encode_hit(out: &mut Vec<u8>, key: &[u8], item: &ItemView<'_>, with_cas: bool) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    if let (Value::Number(number @ 0..1000), 0, false) = (item.value, item.client_flags, with_cas) {
        // The commonest counters: pieces of a length known at compile time need no call to copy
        // them.
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

/// Appends the reply to `me`: the item's internal metadata. `size_bytes` is its size in memory. A
/// key that arrived in base64 is written in base64.
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

/// Appends the reply to `incr`: the count on a line of its own.
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
