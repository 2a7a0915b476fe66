//! Parses one reply at the front of a buffer, or finds that its end has not arrived.
//!
//! Here: the grammar of replies in memcached's text. Not here: whether a reply is right (`op`).
//! Source: memcached, `doc/protocol.txt`.

use memchr::memchr;

/// Longer values are malformed: otherwise a wrong length would be awaited in vain.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// A line that reaches this length without an end is taken as it is.
const LINE_BYTES_MAX: usize = 2048;

/// One part of the replies: a `get` has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A line that is only a decimal number, without leading zeros.
    Number(u64),
    /// An item of `get`.
    Value {
        /// The key as the server wrote it.
        key: &'a [u8],
        /// The client flags, undecoded.
        flags: &'a [u8],
        /// The item's bytes.
        data: &'a [u8],
    },
    /// Any other line, without its end: `STORED`, `END`, `SERVER_ERROR ...`.
    Line(&'a [u8]),
    /// Outside this grammar. It counts as one reply, so that parsing continues with the next.
    Malformed(&'a [u8]),
}

/// The first reply in `bytes` and its length, or `None` while its end has not arrived.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Reply<'_>, usize)> {
    let Some(end) = memchr(b'\n', bytes) else {
        let hopeless = bytes.len() > LINE_BYTES_MAX;
        return hopeless.then_some((Reply::Malformed(bytes), bytes.len()));
    };
    let used = end + 1;
    let Some((line, b'\r')) = bytes[..end].split_last().map(|(last, line)| (line, *last)) else {
        return Some((Reply::Malformed(&bytes[..end]), used));
    };
    if let Some(number) = number(line) {
        return Some((Reply::Number(number), used));
    }
    let Some(header) = line.strip_prefix(b"VALUE ") else {
        return Some((Reply::Line(line), used));
    };
    let Some((key, flags, length)) = value_header(header) else {
        return Some((Reply::Malformed(line), used));
    };
    let block = bytes.get(used..used + length + 2)?;
    let (data, tail) = block.split_at(length);
    if tail != b"\r\n" {
        return Some((Reply::Malformed(line), used + length + 2));
    }
    Some((Reply::Value { key, flags, data }, used + length + 2))
}

/// `<key> <flags> <bytes>`, or `<key> <flags> <bytes> <cas unique>`, the reply to `gets`.
fn value_header(header: &[u8]) -> Option<(&[u8], &[u8], usize)> {
    let mut words = header.splitn(3, |&b| b == b' ');
    let key = words.next()?;
    let flags = words.next()?;
    let rest = words.next()?;
    let length = rest.split(|&b| b == b' ').next()?;
    let length = usize::try_from(number(length)?).ok().filter(|&n| n <= VALUE_BYTES_MAX)?;
    Some((key, flags, length))
}

/// A decimal number as servers write it: digits only, no leading zero, at most 64 bits.
pub(crate) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 20 || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    let mut number = 0u64;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::{Reply, parse};

    const EVERY: &[(&[u8], Reply<'static>)] = &[
        (b"0\r\n", Reply::Number(0)),
        (b"18446744073709551615\r\n", Reply::Number(u64::MAX)),
        (b"STORED\r\n", Reply::Line(b"STORED")),
        (b"END\r\n", Reply::Line(b"END")),
        (b"\r\n", Reply::Line(b"")),
        (b"MN\r\n", Reply::Line(b"MN")),
        (b"SERVER_ERROR out of memory\r\n", Reply::Line(b"SERVER_ERROR out of memory")),
        (b"VALUE k 0 2\r\n42\r\n", Reply::Value { key: b"k", flags: b"0", data: b"42" }),
        (b"VALUE k 7 0\r\n\r\n", Reply::Value { key: b"k", flags: b"7", data: b"" }),
        (b"VALUE k 0 2 99\r\n\r\n\r\n", Reply::Value { key: b"k", flags: b"0", data: b"\r\n" }),
        (b"007\r\n", Reply::Line(b"007")),
        (b"18446744073709551616\r\n", Reply::Line(b"18446744073709551616")),
        (b"12\n", Reply::Malformed(b"12")),
        (b"VALUE k 0 x\r\n", Reply::Malformed(b"VALUE k 0 x")),
        (b"VALUE k 0 1\r\n42\r\n", Reply::Malformed(b"VALUE k 0 1")),
    ];

    #[test]
    fn every_reply_is_read_and_no_part_of_one_is() {
        for &(wire, expected) in EVERY {
            // A value whose block does not end at its length is malformed before its last byte.
            let shortest =
                if wire.starts_with(b"VALUE k 0 1\r") { wire.len() - 1 } else { wire.len() };
            for cut in 0..shortest {
                assert_eq!(parse(&wire[..cut]), None, "{:?}", wire[..cut].escape_ascii());
            }
            let more = [wire, b"END\r\n"].concat();
            assert_eq!(parse(&more), Some((expected, shortest)), "{:?}", wire.escape_ascii());
        }
    }

    #[test]
    fn a_stream_cut_anywhere_gives_the_same_replies() {
        let wire: Vec<u8> = EVERY[..10].iter().flat_map(|(wire, _)| *wire).copied().collect();
        for cut in 0..=wire.len() {
            let mut replies = 0;
            let mut at = 0;
            while let Some((reply, used)) = parse(&wire[at..cut]) {
                assert_eq!(reply, EVERY[replies].1);
                (replies, at) = (replies + 1, at + used);
            }
            while let Some((reply, used)) = parse(&wire[at..]) {
                assert_eq!(reply, EVERY[replies].1);
                (replies, at) = (replies + 1, at + used);
            }
            assert_eq!((replies, at), (10, wire.len()), "cut at {cut}");
        }
    }

    #[test]
    fn endless_lines_and_absurd_lengths_are_malformed() {
        assert!(matches!(parse(&[b'x'; 5000]), Some((Reply::Malformed(_), 5000))));
        assert!(matches!(parse(b"VALUE k 0 99999999999\r\n"), Some((Reply::Malformed(_), _))));
    }
}
