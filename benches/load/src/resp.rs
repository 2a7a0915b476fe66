//! RESP, the protocol of Redis: encodes a request from words, parses one reply at the front of a
//! buffer.
//!
//! Here: the grammar of version 2, as far as the replies to counting and limiting commands use it.
//! Not here: the words, and whether a reply is right (`redis`). Source: Redis, "Redis serialization
//! protocol specification".

use memchr::memchr;

/// Longer strings are malformed: otherwise a wrong length would be awaited in vain.
const BULK_BYTES_MAX: usize = 1 << 20;
/// Longer arrays are malformed, for the same reason.
const ELEMENTS_MAX: usize = 10_000;
/// A line that reaches this length without an end is taken as it is.
const LINE_BYTES_MAX: usize = 2048;

/// One whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `:1`
    Integer(i64),
    /// `+OK`
    Simple(&'a [u8]),
    /// A string with its length.
    Bulk(&'a [u8]),
    /// The reply to a `GET` of a missing key.
    Null,
    /// Several replies, none of them an array.
    Array(Elements<'a>),
    /// `-ERR ...`, or outside this grammar. It counts as one reply, so that parsing continues with
    /// the next.
    Error(&'a [u8]),
}

/// The encoded elements of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements<'a> {
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (element, used) = parse(self.bytes)?;
        self.bytes = &self.bytes[used..];
        Some(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Elements<'_> {}

/// Appends a request of these words.
pub fn write<const N: usize>(out: &mut Vec<u8>, words: [&[u8]; N]) {
    write_head(out, N);
    for word in words {
        write_word(out, word);
    }
}

/// Appends the head of a request of `words` words, each of which [`write_word`] must append.
pub fn write_head(out: &mut Vec<u8>, words: usize) {
    write_number(out, b'*', words);
}

/// Appends a word of a request.
pub fn write_word(out: &mut Vec<u8>, word: &[u8]) {
    write_number(out, b'$', word.len());
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}

fn write_number(out: &mut Vec<u8>, sign: u8, number: usize) {
    out.push(sign);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The first reply in `bytes` and its length, or `None` while its end has not arrived.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Reply<'_>, usize)> {
    let Some(end) = memchr(b'\n', bytes) else {
        let hopeless = bytes.len() > LINE_BYTES_MAX;
        return hopeless.then_some((Reply::Error(bytes), bytes.len()));
    };
    let used = end + 1;
    let malformed = Some((Reply::Error(&bytes[..end]), used));
    let (Some((&sign, line)), b'\r') = (bytes[..end].split_first(), bytes[end.saturating_sub(1)])
    else {
        return malformed;
    };
    let line = &line[..line.len().saturating_sub(1)];
    let length = |most| number(line).and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= most);
    match sign {
        b'+' => Some((Reply::Simple(line), used)),
        b'-' => Some((Reply::Error(line), used)),
        b':' => number(line).map_or(malformed, |number| Some((Reply::Integer(number), used))),
        b'$' if line == b"-1" => Some((Reply::Null, used)),
        b'$' => {
            let Some(length) = length(BULK_BYTES_MAX) else { return malformed };
            let (data, tail) = bytes.get(used..used + length + 2)?.split_at(length);
            if tail != b"\r\n" {
                return Some((Reply::Error(data), used + length + 2));
            }
            Some((Reply::Bulk(data), used + length + 2))
        }
        b'*' => {
            let Some(elements) = length(ELEMENTS_MAX) else { return malformed };
            array(&bytes[used..], elements).map(|(array, length)| (array, used + length))
        }
        _ => malformed,
    }
}

/// An array of `elements` elements at the front of `bytes`, and its length.
fn array(bytes: &[u8], elements: usize) -> Option<(Reply<'_>, usize)> {
    let mut at = 0;
    for _ in 0..elements {
        // Nested arrays are refused first, so that the input cannot make this function recurse.
        if bytes.get(at)? == &b'*' {
            return Some((Reply::Error(&bytes[..at]), at + 1));
        }
        at += parse(&bytes[at..])?.1;
    }
    Some((Reply::Array(Elements { left: elements, bytes: &bytes[..at] }), at))
}

/// A decimal number as servers write it: with a sign only if negative.
fn number(digits: &[u8]) -> Option<i64> {
    if digits.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Reply, parse, write};

    const EVERY: &[(&[u8], Reply<'static>)] = &[
        (b":0\r\n", Reply::Integer(0)),
        (b":-1\r\n", Reply::Integer(-1)),
        (b":9223372036854775807\r\n", Reply::Integer(i64::MAX)),
        (b"+OK\r\n", Reply::Simple(b"OK")),
        (b"$2\r\n42\r\n", Reply::Bulk(b"42")),
        (b"$0\r\n\r\n", Reply::Bulk(b"")),
        (b"$2\r\n\r\n\r\n", Reply::Bulk(b"\r\n")),
        (b"$-1\r\n", Reply::Null),
        (b"-ERR unknown command\r\n", Reply::Error(b"ERR unknown command")),
        (b":9223372036854775808\r\n", Reply::Error(b":9223372036854775808\r")),
        (b":+1\r\n", Reply::Error(b":+1\r")),
        (b"1\r\n", Reply::Error(b"1\r")),
        (b"\r\n", Reply::Error(b"\r")),
        (b"\n", Reply::Error(b"")),
        (b":1\n", Reply::Error(b":1")),
        (b"$x\r\n", Reply::Error(b"$x\r")),
        (b"$99999999999\r\n", Reply::Error(b"$99999999999\r")),
    ];

    #[test]
    fn every_reply_is_read_and_no_part_of_one_is() {
        for (wire, expected) in EVERY {
            for cut in 0..wire.len() {
                assert_eq!(parse(&wire[..cut]), None, "{:?}", wire[..cut].escape_ascii());
            }
            let more = [*wire, b"+OK\r\n"].concat();
            assert_eq!(
                parse(&more),
                Some((expected.clone(), wire.len())),
                "{:?}",
                wire.escape_ascii()
            );
        }
    }

    #[test]
    fn an_array_has_its_elements_and_no_other() {
        let wire = b"*3\r\n:1\r\n$-1\r\n$2\r\n42\r\n:7\r\n";
        let end = wire.len() - b":7\r\n".len();
        assert!((0..end).all(|cut| parse(&wire[..cut]).is_none()));
        let Some((Reply::Array(elements), used)) = parse(wire) else { panic!("not an array") };
        let elements: Vec<_> = elements.collect();
        assert_eq!(elements, [Reply::Integer(1), Reply::Null, Reply::Bulk(b"42")]);
        assert_eq!(used, end);
        let Some((Reply::Array(mut none), 4)) = parse(b"*0\r\n") else { panic!("not an array") };
        assert_eq!(none.next(), None);
    }

    #[test]
    fn nested_arrays_and_endless_lines_are_malformed() {
        assert!(matches!(parse(b"*1\r\n*1\r\n:1\r\n"), Some((Reply::Error(_), _))));
        assert!(matches!(parse(b"*99999999\r\n"), Some((Reply::Error(_), _))));
        assert!(matches!(parse(&[b'x'; 5000]), Some((Reply::Error(_), 5000))));
    }

    #[test]
    fn a_request_is_its_words_with_their_lengths() {
        let mut out = Vec::new();
        write(&mut out, [b"GET", b"key:1234567890"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$14\r\nkey:1234567890\r\n");
    }
}
