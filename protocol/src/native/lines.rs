//! The lines that native verbs are answered with.
//!
//! Not here: which outcome has which line (`text_reply`).

use crate::backwards::Backwards;
use crate::decimal::write_number;
use crate::reply::{CountLine, LeaseLine, VerdictLine, VerdictWord};

/// The longest word, four numbers, the blanks before them, and the line end.
const VERDICT_FRONT_BYTES_MAX: usize = 6 + 4 * (1 + 20) + 2;

/// Appends a verdict line, the reply to `take` and `takem`.
pub fn encode_verdict(out: &mut Vec<u8>, line: &VerdictLine) {
    let VerdictLine { word, limit, remaining, retry_ms, reset_ms, .. } = *line;
    let has_pairs = line.has_pairs();
    encode_front(out, word, (limit, remaining), retry_ms, reset_ms, !has_pairs);
    if has_pairs {
        encode_pairs(out, line);
    }
}

/// [`encode_verdict`] for `DENY` without `key=value` pairs.
#[inline(never)]
pub fn encode_deny(
    out: &mut Vec<u8>,
    (limit, remaining): (u64, i64),
    retry_ms: Option<u64>,
    reset_ms: u64,
) {
    encode_front(out, VerdictWord::Deny, (limit, remaining), retry_ms, reset_ms, true);
}

/// [`encode_verdict`] for the commonest case: `ALLOW` without `key=value` pairs.
#[inline(never)]
pub fn encode_allow(out: &mut Vec<u8>, (limit, remaining): (u64, i64), reset_ms: u64) {
    encode_front(out, VerdictWord::Allow, (limit, remaining), Some(0), reset_ms, true);
}

/// Adds the limit that refused to the verdict line that `out` contains from `start` on. Changes
/// nothing unless that is a `DENY`: a quiet request has no reply.
pub fn name_refusal(out: &mut Vec<u8>, start: usize, limit: &str) {
    let is_denied = out.get(start..).is_some_and(|line| line.starts_with(b"DENY "));
    if is_denied && out.ends_with(b"\r\n") {
        out.truncate(out.len() - 2);
        for part in [" by=", limit, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

/// Adds a hold on a key of `limit` to the verdict line that `out` contains from `start` on. Changes
/// nothing if there is no line: a quiet request has no reply.
pub fn name_hold(out: &mut Vec<u8>, start: usize, limit: &str, id: u64) {
    if out.len() > start && out.ends_with(b"\r\n") {
        out.truncate(out.len() - 2);
        for part in [" hold=", limit, ":"] {
            out.extend_from_slice(part.as_bytes());
        }
        write_number(out, id);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends the verdict word and its four numbers, and the line end if `ends` is set. Inlined,
/// because most callers know the word.
#[inline(always)]
#[expect(clippy::inline_always, reason = "`encode_allow` is a tenth shorter for it")]
fn encode_front(
    out: &mut Vec<u8>,
    word: VerdictWord,
    (limit, remaining): (u64, i64),
    retry_ms: Option<u64>,
    reset_ms: u64,
    ends: bool,
) {
    let mut front = Backwards::<VERDICT_FRONT_BYTES_MAX>::new();
    if ends {
        front.bytes(b"\r\n");
    }
    front.blank_and_number(reset_ms);
    match retry_ms {
        Some(ms) => front.blank_and_number(ms),
        None => front.bytes(b" -1"),
    }
    front.blank_and_signed(remaining);
    front.blank_and_number(limit);
    match word {
        VerdictWord::Allow => front.bytes(b"ALLOW"),
        VerdictWord::Deny => front.bytes(b"DENY"),
        VerdictWord::Wait => front.bytes(b"WAIT"),
        VerdictWord::Part => front.bytes(b"PART"),
        VerdictWord::Exists => front.bytes(b"EXISTS"),
    }
    out.extend_from_slice(front.written());
}

#[cold]
fn encode_pairs(out: &mut Vec<u8>, line: &VerdictLine) {
    pair(out, b" cas=", line.cas);
    pair(out, b" lease=", line.lease);
    pair(out, b" granted=", line.granted);
    pair(out, b" at=", line.at.map(|at| at as u64));
    pair(out, b" shadow=", line.shadow.then_some(1));
    pair(out, b" degraded=", line.degraded.then_some(1));
    pair(out, b" ban=", line.ban.then_some(1));
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn encode_lease(out: &mut Vec<u8>, line: &LeaseLine) {
    out.extend_from_slice(b"LEASE");
    for figure in [line.granted, line.ttl_ms, line.refresh_ms, line.remaining] {
        number(out, figure);
    }
    pair(out, b" lease=", Some(line.lease));
    pair(out, b" safe=", Some(line.safe));
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn encode_count(out: &mut Vec<u8>, line: &CountLine) {
    if line.exists {
        out.extend_from_slice(b"EXISTS ");
    }
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(line.value).as_bytes());
    out.push(b' ');
    out.extend_from_slice(digits.format(line.applied).as_bytes());
    number_or_never(out, line.ttl_ms);
    pair(out, b" cas=", line.cas);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn number(out: &mut Vec<u8>, value: u64) {
    out.push(b' ');
    write_number(out, value);
}

fn number_or_never(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.extend_from_slice(b" -1"),
    }
}

fn pair(out: &mut Vec<u8>, name: &[u8], value: Option<u64>) {
    if let Some(value) = value {
        out.extend_from_slice(name);
        write_number(out, value);
    }
}
