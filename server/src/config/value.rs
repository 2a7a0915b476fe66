//! Parsers of single values.
//!
//! Here: numbers, sizes, masks, paths and switches, each trimmed of blanks and bounded. Not here:
//! addresses to listen on (`listen`), `-o` lists (`extended`), rules that need two values
//! (`resolve`). An error text names the expected value; clap adds the flag and the value.

use std::ops::RangeInclusive;
use std::path::PathBuf;

const KIBI: u64 = 1 << 10;
const MEBI: u64 = 1 << 20;
const GIBI: u64 = 1 << 30;
/// Least memory of the flight recorder, in bytes.
const RECORDER_BYTES_MIN: u64 = 64 << 10;

/// Parses a whole number within `range`.
pub(super) fn number<T>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<u64>,
{
    move |text| {
        let (low, high) = (range.start(), range.end());
        let expected = || format!("expected a whole number from {low} to {high}");
        let number: u64 = text.trim().parse().map_err(|_| expected())?;
        if !range.contains(&number) {
            return Err(expected());
        }
        T::try_from(number).map_err(|_| expected())
    }
}

/// Parses a TCP port of `-p`: 0 turns TCP off, -1 asks for any free port.
pub(super) fn port(text: &str) -> Result<i32, String> {
    let expected = "expected a port from 0 (no TCP) to 65535, or -1 for any free one";
    let port: i32 = text.trim().parse().map_err(|_| expected)?;
    if (-1..=65535).contains(&port) { Ok(port) } else { Err(expected.to_owned()) }
}

/// Parses the UDP port of `-U`. Only 0, "off", is accepted.
pub(super) fn udp_port(text: &str) -> Result<u16, String> {
    match text.trim().parse() {
        Ok(0) => Ok(0),
        // Ignoring it would hide a missing listener that the operator relies on.
        Ok(_) => Err("UDP not supported; leave -U out or write -U 0".to_owned()),
        Err(_) => Err("expected 0; UDP not supported".to_owned()),
    }
}

/// Parses a number of bytes, or one with `k`, `m` or `g`.
fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, unit) = match text.bytes().last().map(|last| last.to_ascii_lowercase()) {
        Some(b'k') => (&text[..text.len() - 1], KIBI),
        Some(b'm') => (&text[..text.len() - 1], MEBI),
        Some(b'g') => (&text[..text.len() - 1], GIBI),
        _ => (text, 1),
    };
    let count: u64 =
        digits.parse().map_err(|_| "expected bytes, or a number with k, m or g behind it")?;
    Ok(count.saturating_mul(unit))
}

/// Parses a size in bytes, or with `k`, `m` or `g`. Source of bounds and texts: memcached, `-I`.
pub(super) fn item_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        ..KIBI => Err("Item max size cannot be less than 1024 bytes.".to_owned()),
        bytes @ KIBI..=GIBI => {
            usize::try_from(bytes).map_err(|_| "more than this machine can address".to_owned())
        }
        _ => Err("Cannot set item size limit higher than a gigabyte.".to_owned()),
    }
}

/// Parses the memory of the flight recorder: 0, or from 64 KiB to 1 GiB.
pub(super) fn recorder_bytes(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        bytes @ (0 | RECORDER_BYTES_MIN..=GIBI) => {
            usize::try_from(bytes).map_err(|_| "more than this machine can address".to_owned())
        }
        _ => Err("expected 0 or a size from 64k to 1g".to_owned()),
    }
}

/// Parses a file mode in octal: `700`, `0770`.
pub(super) fn mask(text: &str) -> Result<u32, String> {
    let expected = "expected an octal file mode from 0 to 777";
    let mask = u32::from_str_radix(text.trim(), 8).map_err(|_| expected)?;
    if mask <= 0o777 { Ok(mask) } else { Err(expected.to_owned()) }
}

/// Parses the byte of `-D`. Blanks and control bytes are refused: no key contains them.
pub(super) fn delimiter(text: &str) -> Result<u8, String> {
    match text.trim().as_bytes() {
        [byte] if byte.is_ascii_graphic() => Ok(*byte),
        [] => Err("No delimiter specified".to_owned()),
        _ => Err("expected one visible ASCII character".to_owned()),
    }
}

/// Parses a number above one, for memcached's `-f`.
pub(super) fn growth_factor(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(factor) if factor > 1.0 && factor.is_finite() => Ok(factor),
        _ => Err("Factor must be greater than 1".to_owned()),
    }
}

/// Parses a file name. An empty one comes from a template that was not filled in, and is refused.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    word(text).map(PathBuf::from)
}

/// Accepts a text that is not empty.
pub(super) fn word(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected a value, found nothing".to_owned()),
        word => Ok(word.to_owned()),
    }
}

/// Accepts one host name, without a port.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let name = text.trim();
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_of_name) {
        return Err("expected one host name such as limits.example.com, without a port".to_owned());
    }
    Ok(name.to_owned())
}

/// Parses yes or no, in the spellings of environment files.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// The value of one `-v` or `--verbose[=LEVEL]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verbosity {
    /// The levels that it adds.
    pub(super) steps: u8,
    /// A word that is no level, for a warning.
    pub(super) unknown: Option<String>,
}

/// Parses a level: two for `2` and `vv`. Any other word adds one, as in memcached.
pub(super) fn verbosity(text: &str) -> Result<Verbosity, String> {
    let text = word(text)?;
    let (steps, is_known) = match text.parse::<u8>() {
        Ok(steps) => (steps, true),
        Err(_) if text.bytes().all(|byte| byte == b'v') => {
            (u8::try_from(text.len()).unwrap_or(3), true)
        }
        Err(_) => (1, switch(&text) == Ok(true)),
    };
    Ok(Verbosity { steps: steps.min(3), unknown: (!is_known).then_some(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_trimmed_and_bounded_at_both_ends() {
        let threads = number::<usize>(1..=1024);
        assert_eq!(threads(" 1 "), Ok(1));
        assert_eq!(threads("1024"), Ok(1024));
        for refused in ["0", "1025", "-1", "", " ", "4.0", "4m", "0x4", "99999999999999999999"] {
            assert!(threads(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_host_name_is_one_name() {
        for name in ["tollgate", "limits-1.example.com", "my_host", " a ", "xn--bcher-kva.example"]
        {
            assert_eq!(host_name(name), Ok(name.trim().to_owned()));
        }
        for refused in ["", " ", "a,b", "a b", "a:443", "http://a", "[::1]", "b\u{fc}cher", "*.a"] {
            assert!(host_name(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_port_may_be_off_or_any_but_not_out_of_range() {
        assert_eq!(port("0"), Ok(0));
        assert_eq!(port("-1"), Ok(-1));
        assert_eq!(port(" 65535"), Ok(65535));
        for refused in ["-2", "65536", "", "http", "11211tcp"] {
            assert!(port(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn an_item_size_has_memcacheds_bounds() {
        assert_eq!(item_bytes("1k"), Ok(1024));
        assert_eq!(item_bytes("1024"), Ok(1024));
        assert_eq!(item_bytes(" 5m "), Ok(5 << 20));
        assert_eq!(item_bytes("1024M"), Ok(1 << 30));
        assert_eq!(item_bytes("1g"), Ok(1 << 30));
        for refused in ["1023", "0", "1025m", "2g", "m", "", "1.5m", "5mb", "-1k", "5é"] {
            assert!(item_bytes(refused).is_err(), "{refused}");
        }
        assert!(item_bytes("99999999999999999g").is_err());
    }

    #[test]
    fn recorder_has_no_memory_or_a_sensible_size() {
        assert_eq!(recorder_bytes("0"), Ok(0));
        assert_eq!(recorder_bytes("64k"), Ok(64 << 10));
        assert_eq!(recorder_bytes("8M"), Ok(8 << 20));
        assert_eq!(recorder_bytes("1g"), Ok(1 << 30));
        for refused in ["1", "63k", "1025m", "-1", "", "off"] {
            assert!(recorder_bytes(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_mask_is_octal_and_holds_no_more_than_permissions() {
        assert_eq!(mask("700"), Ok(0o700));
        assert_eq!(mask("0777"), Ok(0o777));
        for refused in ["1000", "999", "-1", "", "rwx"] {
            assert!(mask(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_delimiter_is_one_byte_that_a_key_can_hold() {
        assert_eq!(delimiter("/"), Ok(b'/'));
        for refused in ["", " ", "ab", "é", "\u{7f}"] {
            assert!(delimiter(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn verbosity_counts_steps_however_they_are_written() {
        let steps = |text| verbosity(text).expect("every word is taken").steps;
        assert_eq!(
            [steps("1"), steps("v"), steps("vv"), steps("2"), steps("9"), steps("very")],
            [1, 1, 2, 2, 3, 1]
        );
        assert_eq!([steps("0"), steps("vvvvv")], [0, 3]);
        assert!(verbosity(" ").is_err());
        let unknown = |text| verbosity(text).expect("every word is taken").unknown;
        for text in ["0", "2", "9", "v", "vvvvv", "yes", "true", "on"] {
            assert_eq!(unknown(text), None, "{text}");
        }
        for text in ["debug", "trace", "bogus", "no"] {
            assert_eq!(unknown(text).as_deref(), Some(text));
        }
    }
}
