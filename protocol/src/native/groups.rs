//! The pairs of a verdict line that a request asks for: the limit that decided (`info`), and the
//! figures of each key (`each`).
//!
//! Not here: the line and its other pairs (`lines`).

use crate::decimal::write_number;

/// The figures of one key of a `takem`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFigures {
    /// The limit.
    pub limit: u64,
    /// Units left; negative by the units used beyond the limit.
    pub remaining: i64,
    /// Milliseconds until the cost of the key passes; `None`, written as −1, for never.
    pub retry_ms: Option<u64>,
    /// Milliseconds until the limit is full again.
    pub reset_ms: u64,
}

/// The limit that decided on a request, or on one of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecidingLimit<'n> {
    /// Its name; `None` for a policy that the request wrote.
    pub name: Option<&'n str>,
    /// The period of its policy in milliseconds; 0 without one.
    pub period_ms: u64,
}

/// Adds the limit that decided to the verdict line that `out` contains from `start` on. Changes
/// nothing if there is no line: a quiet request has no reply.
pub fn name_decider(out: &mut Vec<u8>, start: usize, decider: &DecidingLimit<'_>) {
    in_line(out, start, |out| {
        if let Some(name) = decider.name {
            out.extend_from_slice(b" by=");
            out.extend_from_slice(name.as_bytes());
        }
        out.extend_from_slice(b" period=");
        write_number(out, decider.period_ms);
    });
}

/// Adds a group for each key to the verdict line that `out` contains from `start` on; a key without
/// a limit has none. Changes nothing if there is no line.
pub fn add_groups<'n>(
    out: &mut Vec<u8>,
    start: usize,
    groups: impl Iterator<Item = Option<(KeyFigures, Option<DecidingLimit<'n>>)>>,
) {
    in_line(out, start, |out| {
        for (index, group) in groups.enumerate() {
            out.extend_from_slice(if index == 0 { b" each=" } else { b";" });
            match group {
                Some((figures, decider)) => write_group(out, &figures, decider.as_ref()),
                None => out.push(b'-'),
            }
        }
    });
}

/// Runs `add` with the line end of the line taken away meanwhile.
fn in_line(out: &mut Vec<u8>, start: usize, add: impl FnOnce(&mut Vec<u8>)) {
    if out.len() > start && out.ends_with(b"\r\n") {
        out.truncate(out.len() - 2);
        add(out);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_group(out: &mut Vec<u8>, figures: &KeyFigures, decider: Option<&DecidingLimit<'_>>) {
    let KeyFigures { limit, remaining, retry_ms, reset_ms } = *figures;
    write_number(out, limit);
    out.push(b':');
    if remaining < 0 {
        out.push(b'-');
    }
    write_number(out, remaining.unsigned_abs());
    out.push(b':');
    match retry_ms {
        Some(ms) => write_number(out, ms),
        None => out.extend_from_slice(b"-1"),
    }
    out.push(b':');
    write_number(out, reset_ms);
    if let Some(decider) = decider {
        out.push(b':');
        write_number(out, decider.period_ms);
        out.push(b':');
        for byte in decider.name.unwrap_or_default().bytes() {
            match byte {
                b'%' => out.extend_from_slice(b"%25"),
                b';' => out.extend_from_slice(b"%3B"),
                byte => out.push(byte),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(limit: u64, remaining: i64, retry_ms: Option<u64>) -> KeyFigures {
        KeyFigures { limit, remaining, retry_ms, reset_ms: 60 }
    }

    #[test]
    fn pairs_stand_before_the_end_of_the_line() {
        let mut out = b"OK\r\nALLOW 5 4 0 60\r\n".to_vec();
        let start = 4;
        let decider = DecidingLimit { name: Some("a;b%c:d"), period_ms: 3_600_000 };
        name_decider(&mut out, start, &decider);
        let groups = [
            Some((figures(5, 4, Some(0)), Some(decider))),
            None,
            Some((figures(u64::MAX, i64::MIN, None), None)),
        ];
        add_groups(&mut out, start, groups.into_iter());
        let expected = "OK\r\nALLOW 5 4 0 60 by=a;b%c:d period=3600000 \
                        each=5:4:0:60:3600000:a%3Bb%25c:d;-;\
                        18446744073709551615:-9223372036854775808:-1:60\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn a_quiet_request_gets_no_pairs() {
        let mut out = b"OK\r\n".to_vec();
        name_decider(&mut out, 4, &DecidingLimit { name: None, period_ms: 1 });
        add_groups(&mut out, 4, [None].into_iter());
        assert_eq!(out, b"OK\r\n");
        let mut out = b"DENY 0 0 -1 0\r\n".to_vec();
        name_decider(&mut out, 0, &DecidingLimit { name: None, period_ms: 1 });
        assert_eq!(out, b"DENY 0 0 -1 0 period=1\r\n");
    }
}
