//! The correct form of a word that the policy token does not have, for words that people write.
//!
//! Here: words of other rate limiters, long names of units, fractions, blanks, near misses. Not
//! here: the grammar (`parse`, `token`). The texts are constant, so an error allocates nothing.

use crate::near::is_near;

/// The reason against a fraction.
const WHOLE: &str = "whole numbers only: 1.5 a second is 3/2s";
/// The reason against a blank.
const NO_BLANKS: &str = "a policy has no blanks";

/// Names of units that people write, and the reason that names the right one.
const UNITS: [(&[&[u8]], &str); 8] = [
    (&[b"msec", b"msecs", b"millis"], "a millisecond is ms, as in 5/250ms"),
    (&[b"sec", b"secs", b"second", b"seconds"], "a second is s, as in 5/s"),
    (&[b"min", b"mins", b"minute", b"minutes"], "a minute is m, as in 5/m"),
    (&[b"hr", b"hrs", b"hour", b"hours"], "an hour is h, as in 5/h"),
    (&[b"day", b"days"], "a day is d, as in 5/d"),
    (&[b"wk", b"week", b"weeks"], "a week is w, as in 5/w"),
    (&[b"mon", b"month", b"months"], "a month is mo, as in fixed:5/mo,align=calendar"),
    (&[b"yr", b"year", b"years"], "a year is y, as in fixed:5/y,align=calendar"),
];

/// The algorithms, and the reason that names each.
const ALGORITHMS: [(&[u8], &str); 9] = [
    (b"bucket", "expected bucket:, as in bucket:100/60s"),
    (b"gcra", "expected gcra:, as in gcra:100/60s"),
    (b"leaky", "expected leaky:, as in leaky:100/60s"),
    (b"fixed", "expected fixed:, as in fixed:100/60s"),
    (b"sliding", "expected sliding:, as in sliding:100/60s"),
    (b"log", "expected log:, as in log:100/60s"),
    (b"concurrency", "expected concurrency:, as in concurrency:20"),
    (b"unlimited", "expected unlimited"),
    (b"block", "expected block"),
];

/// Words for an algorithm that other rate limiters have, and the reason that names ours.
const OTHER_ALGORITHMS: [(&[u8], &str); 8] = [
    (b"token", "a token bucket is bucket:, as in bucket:100/60s"),
    (b"window", "a window is fixed: or sliding:, as in sliding:100/60s"),
    (b"concurrent", "holders at once are concurrency:, as in concurrency:20"),
    (b"allow", "to let everything pass, write unlimited"),
    (b"none", "to let everything pass, write unlimited"),
    (b"unlimit", "to let everything pass, write unlimited"),
    (b"deny", "to refuse everything, write block"),
    (b"reject", "to refuse everything, write block"),
];

/// The reason against a token whose algorithm is unknown; `None`: there is no better one.
pub(super) fn algorithm(text: &[u8]) -> Option<&'static str> {
    let first = text.first()?;
    if first.is_ascii_digit() {
        return Some("expected an algorithm before the rate, as in bucket:100/60s");
    }
    if *first == b' ' {
        return Some(NO_BLANKS);
    }
    let end = text.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let other = OTHER_ALGORITHMS.iter().find(|(known, _)| word.eq_ignore_ascii_case(known));
    let near = || ALGORITHMS.iter().find(|(known, _)| is_near(word, known));
    // `bucket` without a rate, or `fixed_window`.
    let known = ALGORITHMS.iter().find(|(known, _)| !rest.is_empty() && word == *known);
    other.or(known).or_else(near).map(|(_, reason)| *reason)
}

/// The reason against a unit at `at`; `None`: there is no better one.
pub(super) fn unit(text: &[u8], at: usize) -> Option<&'static str> {
    let rest = text.get(at..)?;
    let blanks = rest.iter().take_while(|byte| **byte == b' ').count();
    let word = &rest[blanks..];
    let end = word.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(word.len());
    let word = &word[..end];
    let is_known = |known: &&[u8]| word.eq_ignore_ascii_case(known);
    let found = UNITS.iter().find(|(words, _)| words.iter().any(is_known));
    found.map(|(_, reason)| *reason).or_else(|| broken(rest))
}

/// The reason against a byte that ends a number too early; `None`: there is no better one.
pub(super) fn broken(rest: &[u8]) -> Option<&'static str> {
    match rest.first()? {
        b'.' => Some(WHOLE),
        b' ' => Some(NO_BLANKS),
        _ => None,
    }
}

/// The reason against an option that the algorithm does not have; `None`: there is no better one.
pub(super) fn option(token: &[u8], name: &[u8]) -> Option<&'static str> {
    let is_burst = matches!(name, b"burst" | b"max" | b"size" | b"capacity");
    let has = |algorithm: &[u8]| token.starts_with(algorithm);
    match name {
        _ if is_burst && (has(b"bucket:") || has(b"leaky:")) => {
            Some("the size of a bucket is capacity=")
        }
        _ if is_burst && has(b"gcra:") => Some("gcra: has burst=, which is its size less one"),
        _ if is_burst => {
            Some("a burst is for bucket:, gcra: and leaky:, as in bucket:100/60s,capacity=200")
        }
        b"timezone" | b"zone" => Some("a time zone is tz="),
        b"" if token.contains(&b' ') => Some(NO_BLANKS),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;

    #[test]
    fn words_that_people_write_get_the_right_one() {
        for (text, why, at) in [
            ("bucket:5/min", "a minute is m, as in 5/m", 9),
            ("bucket:5/1 minute", "a minute is m, as in 5/m", 10),
            ("bucket:5/hours", "an hour is h, as in 5/h", 9),
            ("bucket:5/2days", "a day is d, as in 5/d", 10),
            ("fixed:5/month", "a month is mo, as in fixed:5/mo,align=calendar", 8),
            ("bucket:1.5/s", "whole numbers only: 1.5 a second is 3/2s", 8),
            ("bucket:5/1.5s", "whole numbers only: 1.5 a second is 3/2s", 10),
            ("bucket:5/s,capacity=1.5", "whole numbers only: 1.5 a second is 3/2s", 21),
            ("bucket:5 /s", "a policy has no blanks", 8),
            ("bucket:5/s, capacity=2", "a policy has no blanks", 11),
            ("bucket:5/s,burst=9", "the size of a bucket is capacity=", 11),
            ("leaky:5/s,burst=9", "the size of a bucket is capacity=", 10),
            ("gcra:5/s,capacity=9", "gcra: has burst=, which is its size less one", 9),
            (
                "sliding:5/s,burst=9",
                "a burst is for bucket:, gcra: and leaky:, as in bucket:100/60s,capacity=200",
                12,
            ),
            ("fixed:5/d,timezone=UTC", "a time zone is tz=", 10),
            ("buket:5/s", "expected bucket:, as in bucket:100/60s", 0),
            ("Bucket:5/s", "expected bucket:, as in bucket:100/60s", 0),
            ("slidng:5/s", "expected sliding:, as in sliding:100/60s", 0),
            ("fixed_window:5/s", "expected fixed:, as in fixed:100/60s", 0),
            ("token_bucket:5/s", "a token bucket is bucket:, as in bucket:100/60s", 0),
            ("5/s", "expected an algorithm before the rate, as in bucket:100/60s", 0),
            ("deny", "to refuse everything, write block", 0),
            ("blocked", "expected block", 0),
        ] {
            let error = Policy::parse(text.as_bytes()).expect_err(text);
            assert_eq!((error.why, error.at), (why, at), "{text}");
        }
    }
}
