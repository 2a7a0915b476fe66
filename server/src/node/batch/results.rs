//! The results of operations, as records and the dedup log keep them.
//!
//! Not here: the operations (`batch`), the log (`cluster::dedup_log`).

use cluster::dedup_log::{CopyGeneration, DedupLog};
use cluster::frames::RecordResult;

use super::BatchOp;
use crate::node::serving::Serving;

#[derive(Debug, Clone, Copy)]
pub(super) enum BatchOpResult {
    None,
    Number(u64),
    /// A range of bytes in the output.
    Text(u32, u32),
}

impl BatchOpResult {
    /// The result that is the reply `out[from..]`. The line of a number is kept as the number,
    /// which takes fewer steps than its bytes.
    #[inline]
    pub(super) fn of_reply(out: &[u8], from: u32) -> Self {
        let number = number_of(&out[from as usize..]);
        number.map_or(Self::Text(from, out.len() as u32), Self::Number)
    }

    /// The form in a record and in the log. `out` has the replies.
    #[inline]
    pub(super) fn in_record(self, out: &[u8]) -> RecordResult<'_> {
        match self {
            Self::None => RecordResult::None,
            Self::Number(number) => RecordResult::Number(number),
            Self::Text(from, to) => RecordResult::Bytes(&out[from as usize..to as usize]),
        }
    }
}

/// The number of a reply that is the line of a number.
fn number_of(reply: &[u8]) -> Option<u64> {
    let digits = reply.strip_suffix(b"\r\n")?;
    if !(1..20).contains(&digits.len()) || matches!(digits, [b'0', _, ..]) {
        return None;
    }
    digits.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

/// Adds results to the log of their stream.
pub(super) fn keep_results(
    log: &mut DedupLog,
    serving: &Serving<'_>,
    rows: &[BatchOp],
    out: &[u8],
) {
    for row in rows {
        let Some(name) = row.name else { continue };
        let life = serving.header(row.hash).generation();
        let copy = CopyGeneration {
            partition: serving.partition(row.hash),
            generation: life,
            term: row.at.term,
        };
        match row.result {
            // A result without a change holds only while this node is primary: with other copies, a
            // newer primary may decide otherwise.
            BatchOpResult::Text(from, to) if !row.is_changed && !row.set.is_empty() => {
                log.add_unchanged(name.number, copy, &out[from as usize..to as usize]);
            }
            result => log.add(name.number, copy, result.in_record(out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::encode_number;

    use super::*;

    #[test]
    fn line_of_a_number_comes_back_from_the_number() {
        let others: [&[u8]; 8] =
            [b"", b"\r\n", b"5", b"05\r\n", b"00\r\n", b"-5\r\n", b"5 \r\n", b"ALLOW 3 2 0 9\r\n"];
        for other in others {
            assert_eq!(number_of(other), None, "{other:?}");
        }
        assert_eq!(number_of(b"10000000000000000000\r\n"), None, "too long to be looked at");
        for number in [0, 1, 9, 10, 99, 1000, 123_456_789, 9_999_999_999_999_999_999] {
            let mut line = b"1\r\n".to_vec();
            let from = line.len() as u32;
            encode_number(&mut line, number);
            let result = BatchOpResult::of_reply(&line, from).in_record(&line);
            assert_eq!(result, RecordResult::Number(number));
        }
    }
}
