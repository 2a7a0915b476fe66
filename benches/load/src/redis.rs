//! The operations in RESP: the words of a request, and the check of its reply.
//!
//! Here: plain commands of Redis, limits as Lua scripts, the limiting commands of redis-cell and of
//! throttlecrab. Not here: the encoding of a word (`resp`), the commands that a server has
//! (`dialect`).
//!
//! A limit starts full and gets no unit back in the time of a run, so the n-th call of a key must
//! leave limit − n, as with our own verbs (`take`).

use crate::dialect::{Dialect, Request};
use crate::keys::{Space, key, value};
use crate::ledger::Ledger;
use crate::op::{Op, data_is_right};
use crate::resp::{Elements, Reply, write, write_head, write_word};

/// A script, loaded once and called by its digest.
#[derive(Debug)]
pub struct Script {
    /// Its text.
    pub source: &'static str,
    /// Its SHA-1, as `SCRIPT LOAD` returns it.
    pub digest: &'static str,
}

/// The scripts that a server of [`Dialect::Redis`] must load before the first request.
pub const SCRIPTS: [&Script; 2] = [&BUCKET, &WINDOW];

const BUCKET: Script = Script {
    source: include_str!("redis/bucket.lua"),
    digest: "606ebd9652e2399de47e55f32fb96385b79c127a",
};
const WINDOW: Script = Script {
    source: include_str!("redis/window.lua"),
    digest: "77dd4a6c3f5951910c602a816fa5bc328b19d97d",
};

/// The capacity of every limit.
const LIMIT: i64 = 100_000;
const LIMIT_WORD: &[u8] = b"100000";
/// redis-cell grants one unit more than the burst in its command.
const CELL_BURST_WORD: &[u8] = b"99999";
/// The time in which a unit comes back: an hour, longer than a run. Our own policies use a day;
/// with it a full limit would exceed 64 bits of nanoseconds since 1970.
const INTERVAL_SECONDS_WORD: &[u8] = b"3600";
const INTERVAL_MS_WORD: &[u8] = b"3600000";
/// Ten thousand days: windows are counted from 1970, and the next begins in 2052.
const WINDOW_MS_WORD: &[u8] = b"864000000000";

/// Appends one request for the keys at `indices`; `set` writes `version`.
pub fn write_request(
    request: Request,
    out: &mut Vec<u8>,
    indices: impl ExactSizeIterator<Item = u32> + Clone,
    version: u32,
) {
    let index = indices.clone().next().unwrap_or(0);
    match (request.op, request.dialect) {
        (Op::Incr { space }, _) => write(out, [b"INCR", &key(space, index)]),
        (Op::Take { space }, Dialect::RedisCell) => write(
            out,
            [b"CL.THROTTLE", &key(space, index), CELL_BURST_WORD, b"1", INTERVAL_SECONDS_WORD],
        ),
        (Op::Take { space }, Dialect::Throttlecrab) => {
            write(out, [b"THROTTLE", &key(space, index), LIMIT_WORD, b"1", INTERVAL_SECONDS_WORD]);
        }
        (Op::Take { space: Space::Window }, _) => {
            write_call(out, &WINDOW, Space::Window, index, WINDOW_MS_WORD);
        }
        (Op::Take { space }, _) => write_call(out, &BUCKET, space, index, INTERVAL_MS_WORD),
        (Op::Get { space, keys: 1 }, _) => write(out, [b"GET", &key(space, index)]),
        (Op::Get { space, .. }, _) => {
            write_head(out, 1 + indices.len());
            write_word(out, b"MGET");
            indices.for_each(|index| write_word(out, &key(space, index)));
        }
        (Op::Set, _) => {
            write(out, [b"SET", &key(Space::Value, index), &value(index, version)]);
        }
        (Op::Fill { space: Space::Value, .. }, _) => {
            write(out, [b"SET", &key(Space::Value, index), &value(index, 0)]);
        }
        (Op::Fill { space, exptime: 0 }, _) => write(out, [b"SET", &key(space, index), b"0"]),
        (Op::Fill { space, exptime }, _) => {
            let mut digits = itoa::Buffer::new();
            let seconds = digits.format(exptime).as_bytes();
            write(out, [b"SET", &key(space, index), b"0", b"EX", seconds]);
        }
        (Op::Delete { space }, _) => write(out, [b"DEL", &key(space, index)]),
        (Op::Noop | Op::Denied, _) => write(out, [b"PING"]),
    }
}

fn write_call(out: &mut Vec<u8>, script: &Script, space: Space, index: u32, time: &[u8]) {
    let digest = script.digest.as_bytes();
    write(out, [b"EVALSHA", digest, b"1", &key(space, index), LIMIT_WORD, time, b"1"]);
}

/// Whether `reply` is a right reply to the request for the keys at `named`.
pub fn is_right(
    request: Request,
    reply: &Reply<'_>,
    mut named: impl ExactSizeIterator<Item = u32>,
    ledger: &mut Ledger,
) -> bool {
    let count = named.len();
    let mut is_data = |space, reply: &Reply<'_>| {
        let Reply::Bulk(data) = reply else { return false };
        named.next().is_some_and(|index| data_is_right(space, index, data, ledger))
    };
    match (request.op, reply) {
        (Op::Get { space, keys: 1 }, reply) => is_data(space, reply),
        (Op::Get { space, .. }, Reply::Array(elements)) => {
            elements.len() == count && elements.clone().all(|element| is_data(space, &element))
        }
        (Op::Incr { space }, Reply::Integer(number)) => {
            is_counted(space, named.next(), *number, ledger)
        }
        (Op::Take { space }, Reply::Array(elements)) => used(request.dialect, elements.clone())
            .is_some_and(|used| is_counted(space, named.next(), used, ledger)),
        (Op::Set | Op::Fill { .. }, Reply::Simple(word)) => *word == b"OK",
        (Op::Delete { .. }, Reply::Integer(deleted)) => *deleted == 1,
        (Op::Noop, Reply::Simple(word)) => *word == b"PONG",
        _ => false,
    }
}

/// Records the number that counts the calls of a key; returns whether it can be right.
fn is_counted(space: Space, index: Option<u32>, number: i64, ledger: &mut Ledger) -> bool {
    let number = u64::try_from(number).ok();
    index.zip(number).is_some_and(|(index, number)| ledger.incr_answered(space, index, number))
}

/// The units used after a call that had to pass; `None` if the verdict cannot be right.
fn used(dialect: Dialect, elements: Elements<'_>) -> Option<i64> {
    let mut numbers = [0; 5];
    let count = elements.len();
    for (number, element) in numbers.iter_mut().zip(elements) {
        let Reply::Integer(value) = element else { return None };
        *number = value;
    }
    let remaining = match (dialect, numbers.get(..count)?) {
        // Refused, limit, remaining, seconds until the same passes (−1: at once), until full.
        (Dialect::RedisCell, [0, LIMIT, remaining, -1, 1..=i64::MAX])
        // Allowed, limit, remaining, seconds until full, until the same passes.
        | (Dialect::Throttlecrab, [1, LIMIT, remaining, 1..=i64::MAX, 0])
        // Allowed, remaining.
        | (Dialect::Redis, [1, remaining]) => *remaining,
        _ => return None,
    };
    (0..LIMIT).contains(&remaining).then_some(LIMIT - remaining)
}
