//! Numbers as memcached parses them: strict words, and the lenient reading of a stored value.
//!
//! Here: parsing. Not here: arithmetic on the numbers (`engine`).

/// Parses an unsigned decimal made of digits alone. Leading zeros are valid, a sign is not.
#[must_use]
pub(crate) fn strict_u64(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    word.iter().try_fold(0_u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses a decimal with an optional minus sign, within 32 bits: the tokens of meta flags.
#[must_use]
pub(crate) fn strict_i32(word: &[u8]) -> Option<i32> {
    i32::try_from(signed(word)?).ok()
}

/// Parses an exptime as the storage verbs do with `strtol`: an optional sign, and a number past 32
/// bits loses its high part instead of being refused (measured on memcached).
#[must_use]
pub(crate) fn truncated_i32(word: &[u8]) -> Option<i32> {
    let word = word.strip_prefix(b"+").unwrap_or(word);
    signed(word).map(|value| value as i32)
}

/// Parses client flags as the storage verbs do with `strtoul`: an optional `+`, cut to 32 bits.
#[must_use]
pub(crate) fn truncated_u32(word: &[u8]) -> Option<u32> {
    let word = word.strip_prefix(b"+").unwrap_or(word);
    strict_u64(word).map(|value| value as u32)
}

/// Parses a decimal with an optional minus sign and an absolute value of at most `most`.
#[must_use]
pub(crate) fn bounded_i64(word: &[u8], most: u64) -> Option<i64> {
    signed(word).filter(|value| value.unsigned_abs() <= most)
}

fn signed(word: &[u8]) -> Option<i64> {
    match word.strip_prefix(b"-") {
        Some(digits) => 0_i64.checked_sub_unsigned(strict_u64(digits)?),
        None => i64::try_from(strict_u64(word)?).ok(),
    }
}

/// Parses `text` if it is exactly the printed form of a number: such a value may be stored as a
/// number, because printing it again returns the same bytes.
#[must_use]
pub fn canonical_u64(text: &[u8]) -> Option<u64> {
    match text {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] if text.len() <= 20 => strict_u64(text),
        _ => None,
    }
}

/// Parses the number that `incr` and `decr` see in a stored value. Like `strtoull`, it accepts
/// blanks and a `+` before the number, leading zeros, and anything after a following blank or NUL.
/// Text that begins with a blank and contains no number is 0: `strtoull` then points at that blank,
/// which memcached accepts as the end of a number (measured).
#[must_use]
pub fn lenient_u64(text: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let unsigned = &text[start..];
    let negative = unsigned.starts_with(b"-");
    let unsigned = unsigned.strip_prefix(b"-").or(unsigned.strip_prefix(b"+")).unwrap_or(unsigned);
    let digits = unsigned.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(unsigned.len());
    match unsigned.get(digits) {
        _ if digits == 0 => (start > 0).then_some(0),
        _ if negative => None,
        Some(byte) if !is_space(byte) && *byte != 0 => None,
        _ => strict_u64(&unsigned[..digits]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_strictly() {
        assert_eq!(strict_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(strict_u64(b"18446744073709551616"), None);
        assert_eq!(strict_u64(b"007"), Some(7));
        for bad in [&b""[..], b"+1", b"-1", b"1.5", b"x", b"1x", b" 1"] {
            assert_eq!(strict_u64(bad), None, "{bad:?}");
        }
        assert_eq!(strict_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(strict_i32(b"2147483648"), None);
    }

    #[test]
    fn the_exptime_of_a_store_is_cut_to_32_bits() {
        assert_eq!(truncated_i32(b"4294967296"), Some(0));
        assert_eq!(truncated_i32(b"2147483648"), Some(i32::MIN));
        assert_eq!(truncated_i32(b"-1"), Some(-1));
        assert_eq!(truncated_i32(b"1.5"), None);
        assert_eq!(truncated_u32(b"4294967296"), Some(0));
        assert_eq!(truncated_u32(b"+1"), Some(1));
        assert_eq!(truncated_u32(b"-1"), None);
    }

    #[test]
    fn only_printed_numbers_are_canonical() {
        assert_eq!(canonical_u64(b"0"), Some(0));
        assert_eq!(canonical_u64(b"18446744073709551615"), Some(u64::MAX));
        for other in [&b"00"[..], b"007", b"", b" 5", b"+5", b"18446744073709551616", b"5 "] {
            assert_eq!(canonical_u64(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_stored_value_is_read_as_strtoull_does() {
        for (text, number) in [
            (&b" 5"[..], 5),
            (b"+5", 5),
            (b"007", 7),
            (b"5\r\n6", 5),
            (b"5 ", 5),
            (b"5\0x", 5),
            (b"00000000000000000000001", 1),
            (b" ", 0),
            (b" x", 0),
            (b"\t+", 0),
        ] {
            assert_eq!(lenient_u64(text), Some(number), "{text:?}");
        }
        for bad in
            [&b"-5"[..], b"5x", b"5.0", b"1e3", b"0x10", b"", b"x", b" -5", b"18446744073709551616"]
        {
            assert_eq!(lenient_u64(bad), None, "{bad:?}");
        }
    }
}
