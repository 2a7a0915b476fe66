//! The verbs that call a limit: the policy of each space, and the verdict line.
//!
//! Here: the text of a policy, the grammar and the check of a verdict. Not here: requests and their
//! keys (`op`), the count of calls (`ledger`).

use crate::keys::Space;
use crate::reply::number;

/// The capacity of the policies that count calls exactly.
///
/// The bucket regains one unit a day and the windows are longer than a run, so after `n` calls `n`
/// units are used. The capacity is larger than the number of calls of a key in any cell.
const COUNTING_MAX: u64 = 100_000;
/// The bucket in requests, and in the limited key's limit of the generated file.
pub const COUNTING_BUCKET: &str = "bucket:1/1d,capacity=100000";
/// The capacity of the bucket that is always full again, the usual state of a key in practice.
const IDLE_MAX: u64 = 1000;
/// The capacity of the bucket with one unit.
const EMPTY_MAX: u64 = 1;

/// The text of the policy in a `take` request.
#[must_use]
pub const fn policy(space: Space) -> &'static str {
    match space {
        Space::Counter | Space::Value | Space::Bound => "-",
        Space::Bucket => COUNTING_BUCKET,
        Space::Window => "sliding:100000/1d",
        Space::Log => "log:100000/1d,entries=65536",
        Space::Idle => "bucket:1000/1s",
        Space::Empty => "bucket:1/1d",
    }
}

/// A verdict line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsedVerdict {
    /// `ALLOW`; otherwise `DENY`.
    pub allowed: bool,
    /// The capacity.
    pub limit: u64,
    /// Units left.
    pub remaining: u64,
    /// Milliseconds until the same request passes.
    pub retry_ms: u64,
    /// Milliseconds until the limit is full.
    pub reset_ms: u64,
}

impl ParsedVerdict {
    /// Parses a verdict line that ends after its four numbers.
    #[must_use]
    pub fn read(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|byte| *byte == b' ');
        let allowed = match words.next()? {
            b"ALLOW" => true,
            b"DENY" => false,
            _ => return None,
        };
        let mut next = || number(words.next()?);
        let verdict = Self {
            allowed,
            limit: next()?,
            remaining: next()?,
            retry_ms: next()?,
            reset_ms: next()?,
        };
        words.next().is_none().then_some(verdict)
    }

    /// The units used after a call in `space` that had to pass; `None` if the line cannot be right.
    #[must_use]
    pub fn used(&self, space: Space) -> Option<u64> {
        let most = match space {
            Space::Idle => IDLE_MAX,
            Space::Empty => EMPTY_MAX,
            _ => COUNTING_MAX,
        };
        let used = self.limit.checked_sub(self.remaining)?;
        let sound = self.allowed && self.limit == most && self.retry_ms == 0 && self.reset_ms > 0;
        (sound && used > 0).then_some(used)
    }

    /// Whether the line is the right reply of an empty bucket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let &Self { allowed, limit, remaining, retry_ms, reset_ms } = self;
        !allowed && (limit, remaining) == (EMPTY_MAX, 0) && retry_ms > 0 && retry_ms <= reset_ms
    }
}

#[cfg(test)]
mod tests {
    use super::{COUNTING_BUCKET, COUNTING_MAX, ParsedVerdict, policy};
    use crate::keys::Space;

    fn used(line: &[u8], space: Space) -> Option<u64> {
        ParsedVerdict::read(line)?.used(space)
    }

    #[test]
    fn a_call_that_passes_tells_its_number() {
        assert_eq!(used(b"ALLOW 100000 99999 0 86400000", Space::Bucket), Some(1));
        assert_eq!(used(b"ALLOW 100000 99990 0 5", Space::Bound), Some(10));
        assert_eq!(used(b"ALLOW 1000 999 0 1", Space::Idle), Some(1));
        for poor in [
            &b"ALLOW 100000 100000 0 86400000"[..],
            b"ALLOW 100000 100001 0 86400000",
            b"ALLOW 99999 99998 0 86400000",
            b"ALLOW 100000 99999 1 86400000",
            b"ALLOW 100000 99999 0 0",
            b"DENY 100000 99999 0 86400000",
            b"WAIT 100000 99999 0 86400000",
            b"ALLOW 100000 99999 0 86400000 cas=1",
            b"ALLOW 100000 99999 0",
            b"ALLOW 100000 99999 -1 7",
            b"100000",
        ] {
            assert_eq!(used(poor, Space::Bucket), None, "{}", poor.escape_ascii());
        }
    }

    #[test]
    fn an_empty_bucket_refuses() {
        let is_right =
            |line: &[u8]| ParsedVerdict::read(line).is_some_and(|verdict| verdict.is_empty());
        assert!(is_right(b"DENY 1 0 86400000 86400000"));
        assert!(!is_right(b"ALLOW 1 0 0 86400000"));
        assert!(!is_right(b"DENY 1 0 0 86400000"));
        assert!(!is_right(b"DENY 1 1 5 86400000"));
        assert!(!is_right(b"DENY 1 0 86400001 86400000"));
    }

    #[test]
    fn the_bound_bucket_is_the_written_one() {
        assert_eq!(policy(Space::Bucket), COUNTING_BUCKET);
        assert!(COUNTING_BUCKET.ends_with(&format!("capacity={COUNTING_MAX}")));
    }
}
