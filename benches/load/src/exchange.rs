//! The outstanding requests of one connection, and the check of every reply.
//!
//! Here: the requests with their times, and the tally of right and wrong replies. Not here: the
//! socket (`connection`), so that a test can feed bytes; the check of a reply (`wire`).

use std::collections::VecDeque;

use hdrhistogram::Histogram;

use crate::dialect::Request;
use crate::disturbance::Sifted;
use crate::latency::latencies;
use crate::ledger::Ledger;
use crate::resp::{self, Reply};

/// Wrong replies that are kept as samples; further ones are only counted.
const SAMPLES_MAX: usize = 5;

/// The replies of a cell.
#[derive(Debug)]
pub struct Tally {
    /// Requests answered, rightly or wrongly.
    pub replies: u64,
    /// Replies that failed their check.
    pub wrong: u64,
    /// The first few wrong replies.
    pub samples: Vec<String>,
    /// Nanoseconds from sending a request (open loop: from its due time) to its last reply.
    pub latency: Histogram<u64>,
    /// The latencies of a watched open loop, without the disturbed ones.
    pub sifted: Option<Sifted>,
}

impl Default for Tally {
    fn default() -> Self {
        Self { replies: 0, wrong: 0, samples: Vec::new(), latency: latencies(), sifted: None }
    }
}

impl Tally {
    /// Counts a wrong reply; `describe` is called only while samples are wanted.
    pub fn wrong(&mut self, describe: impl FnOnce() -> String) {
        self.wrong += 1;
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(describe());
        }
    }

    /// Counts a reply with its `latency` in nanoseconds.
    fn replied(&mut self, latency: u64) {
        self.replies += 1;
        self.latency.saturating_record(latency);
        if let Some(sifted) = &mut self.sifted {
            sifted.recent.push(latency);
        }
    }

    /// Adds another thread's tally.
    pub fn add(&mut self, other: Self) {
        self.replies += other.replies;
        self.wrong += other.wrong;
        self.samples.extend(other.samples);
        self.samples.truncate(SAMPLES_MAX);
        self.latency.add(other.latency).expect("all tallies have the same bounds");
        if let Some(Sifted { undisturbed, .. }) = other.sifted {
            let own = &mut self.sifted.get_or_insert_default().undisturbed;
            own.add(undisturbed).expect("all tallies have the same bounds");
        }
    }
}

/// The outstanding requests of one connection, in the order sent.
#[derive(Debug)]
pub struct Exchange {
    request: Request,
    /// The send or due time of each, in nanoseconds of the worker's clock.
    sent_at: VecDeque<u64>,
    /// The indices that the requests name; of the first request, only the unanswered ones.
    named: VecDeque<u32>,
    /// The number of entries in `named` that belong to the first request.
    left: usize,
    /// Requests written so far.
    written: u64,
    /// Requests answered so far.
    answered: u64,
    /// For each unanswered `WAIT`, the number of requests written before it.
    waits: VecDeque<u64>,
}

impl Exchange {
    /// An exchange without outstanding requests.
    #[must_use]
    pub fn new(request: Request) -> Self {
        let left = request.op.keys() as usize;
        let (sent_at, named, waits) = Default::default();
        Self { request, sent_at, named, left, written: 0, answered: 0, waits }
    }

    /// The number of requests that are not fully answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.sent_at.len()
    }

    /// Appends one request to `out`, with send time `at`.
    pub fn issue(
        &mut self,
        at: u64,
        out: &mut Vec<u8>,
        ledger: &mut Ledger,
        pick: impl FnMut() -> u32,
    ) {
        self.request.write(out, &mut self.named, ledger, pick);
        self.sent_at.push_back(at);
        self.written += 1;
    }

    /// Appends the `WAIT` that ends a burst, if the dialect has one.
    pub fn end_burst(&mut self, out: &mut Vec<u8>) {
        if self.request.dialect.waits() {
            resp::write(out, [b"WAIT", b"1", b"0"]);
            self.waits.push_back(self.written);
        }
    }

    /// Checks all whole replies at the front of `bytes`, read at `now`; returns their length.
    pub fn accept(
        &mut self,
        bytes: &[u8],
        now: u64,
        ledger: &mut Ledger,
        tally: &mut Tally,
    ) -> usize {
        let mut at = 0;
        loop {
            if self.waits.front() == Some(&self.answered) {
                let Some((reply, used)) = resp::parse(&bytes[at..]) else { return at };
                if !matches!(reply, Reply::Integer(1..)) {
                    tally.wrong(|| format!("no replica: {}", show(&bytes[at..at + used])));
                }
                self.waits.pop_front();
                at += used;
                continue;
            }
            // Empty when an unrequested reply arrives.
            let named = self.named.range(..self.left.min(self.named.len())).copied();
            let Some((verdict, used)) = self.request.judge(&bytes[at..], named, ledger) else {
                return at;
            };
            at += used;
            let Some(&sent_at) = self.sent_at.front() else {
                tally.wrong(|| format!("nobody asked for {}", show(&bytes[at - used..at])));
                continue;
            };
            if !verdict.right {
                tally.wrong(|| {
                    let key = self.named.front().filter(|_| self.left > 0);
                    format!("{:?} of {key:?}: {}", self.request.op, show(&bytes[at - used..at]))
                });
            }
            if verdict.is_last {
                self.named.drain(..self.left);
                self.left = self.request.op.keys() as usize;
                self.sent_at.pop_front();
                self.answered += 1;
                tally.replied(now.saturating_sub(sent_at));
            } else if self.left > 0 {
                self.named.pop_front();
                self.left -= 1;
            }
        }
    }
}

fn show(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(80)];
    format!("\"{}\"", shown.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::{Exchange, Tally};
    use crate::dialect::{Dialect, Request};
    use crate::keys::{Space, key, value};
    use crate::ledger::Books;
    use crate::op::Op;

    const INCR: Op = Op::Incr { space: Space::Counter };

    fn check(op: Op, requests: u32, wire: &[u8], replies: u64, wrong: u64) {
        check_in(Dialect::Tollgate, op, requests, wire, replies, wrong);
    }

    /// Sends requests for keys 0, 1, 2... and feeds `wire`, whole and cut at every byte.
    fn check_in(dialect: Dialect, op: Op, requests: u32, wire: &[u8], replies: u64, wrong: u64) {
        for cut in 0..=wire.len() {
            let mut books = Books::new(100, 1, &[Space::Counter, Space::Bucket, Space::Window]);
            let ledger = &mut books.ledgers[0];
            let mut exchange = Exchange::new(Request { op, dialect });
            let (mut out, mut tally, mut next) = (Vec::new(), Tally::default(), 0..);
            for _ in 0..requests {
                exchange.issue(1_000, &mut out, ledger, || next.next().unwrap_or(0));
            }
            let used = exchange.accept(&wire[..cut], 3_000, ledger, &mut tally);
            assert_eq!(
                used + exchange.accept(&wire[used..], 5_000, ledger, &mut tally),
                wire.len()
            );
            let shown = (op, wire.escape_ascii().to_string(), cut, &tally.samples);
            assert_eq!((tally.replies, tally.wrong), (replies, wrong), "{shown:?}");
            assert_eq!(exchange.outstanding() as u64, u64::from(requests) - replies);
            assert_eq!(tally.latency.len(), replies);
        }
    }

    fn items(space: Space, of: impl IntoIterator<Item = (u32, Vec<u8>)>) -> Vec<u8> {
        let mut wire = Vec::new();
        for (index, data) in of {
            wire.extend_from_slice(b"VALUE ");
            wire.extend_from_slice(&key(space, index));
            wire.extend_from_slice(format!(" 0 {}\r\n", data.len()).as_bytes());
            wire.extend_from_slice(&data);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"END\r\n");
        wire
    }

    #[test]
    fn numbers_answer_increments() {
        check(INCR, 2, b"1\r\n1\r\n", 2, 0);
        check(INCR, 2, b"1\r\n2\r\n", 2, 1);
        check(INCR, 2, b"NOT_FOUND\r\n1\r\n", 2, 1);
        check(INCR, 2, b"SERVER_ERROR out of memory\r\n0\r\n", 2, 2);
        check(INCR, 2, b"1\r\n", 1, 0);
        check(INCR, 1, b"1\r\n1\r\n", 1, 1);
    }

    #[test]
    fn verdicts_answer_takes() {
        let take = Op::Take { space: Space::Bucket };
        let allow = "ALLOW 100000 99999 0 86400000\r\n";
        check(take, 2, [allow, allow].concat().as_bytes(), 2, 0);
        check(take, 2, [allow, "DENY 100000 0 5 5\r\n"].concat().as_bytes(), 2, 1);
        check(take, 2, [allow, "ALLOW 100000 99998 0 5\r\n"].concat().as_bytes(), 2, 1);
        check(take, 2, [allow, "1\r\n"].concat().as_bytes(), 2, 1);
        check(Op::Denied, 2, b"DENY 1 0 5 5\r\nALLOW 1 0 0 5\r\n", 2, 1);
    }

    #[test]
    fn items_must_be_the_ones_asked_for() {
        let zero = |index| (index, b"0".to_vec());
        let get = |keys| Op::Get { space: Space::Counter, keys };
        check(get(1), 1, &items(Space::Counter, [zero(0)]), 1, 0);
        check(get(1), 1, &items(Space::Counter, []), 1, 1);
        check(get(1), 1, &items(Space::Counter, [zero(1)]), 1, 1);
        check(get(1), 1, &items(Space::Counter, [(0, b"1".to_vec())]), 1, 1);
        check(get(1), 1, &items(Space::Counter, [(0, b"0 ".to_vec())]), 1, 1);
        check(get(1), 1, &items(Space::Counter, [zero(0), zero(1)]), 1, 1);
        check(get(3), 1, &items(Space::Counter, [zero(0), zero(1), zero(2)]), 1, 0);
        check(get(3), 1, &items(Space::Counter, [zero(0), zero(2)]), 1, 2);
        check(get(3), 2, b"SERVER_ERROR out of memory writing get response\r\n", 1, 1);
        let two = [items(Space::Counter, [zero(0)]), items(Space::Counter, [zero(1)])].concat();
        check(get(1), 2, &two, 2, 0);
    }

    #[test]
    fn values_must_have_the_bytes_of_their_version() {
        let get = Op::Get { space: Space::Value, keys: 1 };
        check(get, 1, &items(Space::Value, [(0, value(0, 0).to_vec())]), 1, 0);
        check(get, 1, &items(Space::Value, [(0, value(0, 1).to_vec())]), 1, 1);
        check(get, 1, &items(Space::Value, [(0, value(1, 0).to_vec())]), 1, 1);
    }

    #[test]
    fn stores_and_no_ops_are_answered_by_their_word() {
        check(Op::Set, 2, b"STORED\r\nNOT_STORED\r\n", 2, 1);
        check(Op::Noop, 2, b"MN\r\nERROR\r\n", 2, 1);
        check(Op::Fill { space: Space::Counter, exptime: 9 }, 1, b"STORED\r\n", 1, 0);
    }

    /// The bytes of one request for key 4, or for the number of keys that the operation names.
    fn written(dialect: Dialect, op: Op) -> String {
        let (mut out, mut books) =
            (Vec::new(), Books::new(5, 1, &[Space::Counter, Space::Bucket, Space::Window]));
        let request = Request { op, dialect };
        Exchange::new(request).issue(0, &mut out, &mut books.ledgers[0], || 4);
        String::from_utf8(out).unwrap_or_default()
    }

    fn name(space: Space) -> String {
        String::from_utf8_lossy(&key(space, 4)).into_owned()
    }

    #[test]
    fn requests_are_written_as_the_protocol_wants_them() {
        let wire = |op| written(Dialect::Tollgate, op);
        let (counter, stored) = (name(Space::Counter), name(Space::Value));
        let bytes = String::from_utf8_lossy(&value(4, 0)).into_owned();
        assert_eq!(wire(INCR), format!("incr {counter} 1\r\n"));
        let get = Op::Get { space: Space::Counter, keys: 2 };
        assert_eq!(wire(get), format!("get {counter} {counter}\r\n"));
        assert_eq!(wire(Op::Set), format!("set {stored} 0 0 32\r\n{bytes}\r\n"));
        let fill = Op::Fill { space: Space::Counter, exptime: 3600 };
        assert_eq!(wire(fill), format!("set {counter} 0 3600 1\r\n0\r\n"));
        assert_eq!(wire(Op::Noop), "mn\r\n");
    }

    #[test]
    fn redis_is_asked_in_its_own_words() {
        let words = |dialect, op| {
            let wire = written(dialect, op);
            let words = wire.split("\r\n").filter(|word| !word.is_empty());
            words.filter(|word| !word.starts_with(['*', '$'])).collect::<Vec<_>>().join(" ")
        };
        let (counter, bucket) = (name(Space::Counter), name(Space::Bucket));
        let (incr, take) = (INCR, Op::Take { space: Space::Bucket });
        assert_eq!(
            written(Dialect::Redis, incr),
            format!("*2\r\n$4\r\nINCR\r\n$20\r\n{counter}\r\n")
        );
        assert_eq!(words(Dialect::RedisCell, take), format!("CL.THROTTLE {bucket} 99999 1 3600"));
        assert_eq!(words(Dialect::Throttlecrab, take), format!("THROTTLE {bucket} 100000 1 3600"));
        let scripted = words(Dialect::Redis, take);
        assert!(scripted.starts_with("EVALSHA "), "{scripted}");
        assert!(scripted.ends_with(&format!(" 1 {bucket} 100000 3600000 1")), "{scripted}");
        let get = Op::Get { space: Space::Counter, keys: 2 };
        assert_eq!(words(Dialect::Redis, get), format!("MGET {counter} {counter}"));
    }

    #[test]
    fn redis_answers_count_too() {
        let get = |keys| Op::Get { space: Space::Counter, keys };
        let check = |op, requests, wire: &str, replies, wrong| {
            check_in(Dialect::Redis, op, requests, wire.as_bytes(), replies, wrong);
        };
        check(INCR, 2, ":1\r\n:1\r\n", 2, 0);
        check(INCR, 2, ":2\r\n:0\r\n", 2, 2);
        check(INCR, 2, "-ERR no\r\n:-1\r\n", 2, 2);
        check(INCR, 1, ":1\r\n:1\r\n", 1, 1);
        check(get(1), 1, "$1\r\n0\r\n", 1, 0);
        check(get(1), 2, "$1\r\n1\r\n$-1\r\n", 2, 2);
        check(get(3), 1, "*3\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n0\r\n", 1, 0);
        check(get(3), 1, "*3\r\n$1\r\n0\r\n$-1\r\n$1\r\n0\r\n", 1, 1);
        check(get(3), 1, "*2\r\n$1\r\n0\r\n$1\r\n0\r\n", 1, 1);
        check(Op::Set, 2, "+OK\r\n$-1\r\n", 2, 1);
    }

    #[test]
    fn burst_that_waits_ends_with_the_word_of_a_replica() {
        for (word, wrong) in [(":1", 0), (":2", 0), (":0", 1), ("-ERR", 1)] {
            let mut books = Books::new(5, 1, &[Space::Counter]);
            let ledger = &mut books.ledgers[0];
            let request = Request { op: INCR, dialect: Dialect::RedisWait };
            let (mut exchange, mut out) = (Exchange::new(request), Vec::new());
            let mut tally = Tally::default();
            for keys in [[0, 1], [2, 3]] {
                for key in keys {
                    exchange.issue(0, &mut out, ledger, || key);
                }
                exchange.end_burst(&mut out);
            }
            assert_eq!(String::from_utf8_lossy(&out).matches("WAIT").count(), 2);
            let wire = format!(":1\r\n:1\r\n{word}\r\n:1\r\n:1\r\n:1\r\n");
            assert_eq!(exchange.accept(wire.as_bytes(), 1, ledger, &mut tally), wire.len());
            assert_eq!((tally.replies, tally.wrong), (4, wrong), "{word}");
        }
    }

    #[test]
    fn every_limiter_tells_how_many_passed() {
        let check = |dialect, wire: &[&str], wrong| {
            let take = Op::Take { space: Space::Bucket };
            let replies: Vec<String> = wire
                .iter()
                .map(|numbers| {
                    let words: Vec<&str> = numbers.split(' ').collect();
                    format!("*{}\r\n:{}\r\n", words.len(), words.join("\r\n:"))
                })
                .collect();
            let count = wire.len() as u32;
            check_in(dialect, take, count, replies.concat().as_bytes(), count.into(), wrong);
        };
        let (redis, cell, crab) = (Dialect::Redis, Dialect::RedisCell, Dialect::Throttlecrab);
        check(redis, &["1 99999", "1 99999"], 0);
        check(redis, &["0 99999", "1 99998", "1 100000", "1", "1 99999 0"], 5);
        check(cell, &["0 100000 99999 -1 3600"], 0);
        check(
            cell,
            &["1 100000 99999 -1 3600", "0 99999 99998 -1 3600", "0 100000 99999 1 3600"],
            3,
        );
        check(crab, &["1 100000 99999 3600 0"], 0);
        check(
            crab,
            &["0 100000 99999 3600 0", "1 100000 99998 3600 0", "1 100000 99999 3600 1"],
            3,
        );
    }
}
