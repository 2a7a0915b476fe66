//! Numbers, times and names as pages show them, and durations as people type them.

use std::fmt::{Display, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) use super::key_text::is_doubtful;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

const MS_PER_DAY: u64 = 86_400_000;

/// Returns the text as the value of a query parameter.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a text, or a dash if there is none. Templates pass fields by reference.
#[allow(clippy::ref_option)]
pub(super) fn dash(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("–")
}

/// Returns a time as [`time`] does, or a dash if there is none.
#[allow(clippy::ref_option)]
pub(super) fn time_or_dash(at_ms: &Option<u64>) -> String {
    at_ms.map_or_else(|| "–".to_owned(), time)
}

/// Returns a number and its unit, or a dash if there is none.
#[allow(clippy::ref_option)]
pub(super) fn or_dash(number: &Option<impl Display>, unit: &str) -> String {
    number.as_ref().map_or_else(|| "–".to_owned(), |number| format!("{number}{unit}"))
}

/// Returns a duration as [`span`] does, or a dash if there is none.
#[allow(clippy::ref_option)]
pub(super) fn span_or_dash(ms: &Option<u64>) -> String {
    ms.map_or_else(|| "–".to_owned(), span)
}

/// Returns a whole number with a comma between thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a rate: one decimal below 100, then whole.
pub(super) fn rate(number: f64) -> String {
    if number.is_nan() || number <= 0.0 {
        return "0".to_owned();
    }
    if number < 100.0 {
        return format!("{number:.1}");
    }
    // The cast saturates, and the sign is known.
    #[allow(clippy::cast_sign_loss)]
    count(number.round() as u64)
}

/// Returns a share from 0 to 1 as percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share.clamp(0.0, 1.0) * 100.0)
}

/// Returns the share of `part` in `whole` as percent; a dash if there is no whole.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    #[allow(clippy::cast_precision_loss)]
    percent(part as f64 / whole as f64)
}

/// Returns a size in the largest unit that it reaches.
pub(super) fn bytes(number: u64) -> String {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    #[allow(clippy::cast_precision_loss)]
    match units.iter().find(|(_, size)| number >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", number as f64 / *size as f64),
        None => format!("{number} B"),
    }
}

/// Returns microseconds in a unit that suits them.
pub(super) fn micros(us: u64) -> String {
    if us < 1000 {
        return format!("{us} µs");
    }
    #[allow(clippy::cast_precision_loss)]
    let ms = us as f64 / 1000.0;
    format!("{ms:.1} ms")
}

/// Returns a time span, in its two largest units.
pub(super) fn span(ms: u64) -> String {
    if ms < 1000 {
        return format!("{ms} ms");
    }
    let units = [("d", MS_PER_DAY), ("h", 3_600_000), ("min", 60_000), ("s", 1000)];
    let first = units.iter().position(|(_, size)| ms >= *size).unwrap_or(units.len() - 1);
    let (unit, size) = units[first];
    let mut text = format!("{} {unit}", ms / size);
    if let Some((unit, smaller)) = units.get(first + 1)
        && ms % size / smaller > 0
    {
        // Writing to a String cannot fail.
        let _ = write!(text, " {} {unit}", ms % size / smaller);
    }
    text
}

/// Returns a time as RFC 3339, in UTC and whole seconds.
pub(super) fn time(at_ms: u64) -> String {
    let (days, in_day) = (at_ms / MS_PER_DAY, at_ms % MS_PER_DAY / 1000);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the date of a day since the Unix epoch. Counts in eras of 400 years from 0000-03-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Returns the milliseconds of a duration such as `90s`, `10m`, `2h`, `7d` or `1w`; `None` if it is
/// none, zero, or above 366 days.
pub(super) fn duration_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit())?;
    let unit = match text[end..].trim() {
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => MS_PER_DAY,
        "w" => 7 * MS_PER_DAY,
        _ => return None,
    };
    let ms = text[..end].parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=366 * MS_PER_DAY).contains(&ms).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_groups_and_units() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(9_007_199_254_740_991), "9,007,199,254,740,991");
        for (number, text) in
            [(0.0, "0"), (f64::NAN, "0"), (-1.0, "0"), (12.34, "12.3"), (1234.5, "1,235")]
        {
            assert_eq!(rate(number), text);
        }
        assert_eq!(share(1, 0), "–");
        assert_eq!(share(1, 3), "33.3 %");
        assert_eq!([bytes(1023), bytes(1 << 20)], ["1023 B", "1.0 MiB"]);
        assert_eq!([micros(90), micros(1500)], ["90 µs", "1.5 ms"]);
        assert_eq!([span(5), span(60_000), span(90_061_000)], ["5 ms", "1 min", "1 d 1 h"]);
    }

    #[test]
    fn dates_follow_the_calendar() {
        for (at_s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_790_000_000, "2026-09-21T14:13:20Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(at_s * 1000), text);
        }
        // The largest number is no panic.
        assert!(!time(u64::MAX).is_empty());
    }

    #[test]
    fn durations_have_a_unit_and_a_bound() {
        for (text, ms) in [
            ("5s", Some(5000)),
            (" 10 min ", Some(600_000)),
            ("366d", Some(366 * MS_PER_DAY)),
            ("367d", None),
            ("0s", None),
            ("5", None),
            ("", None),
            ("s", None),
            ("-5s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615w", None),
        ] {
            assert_eq!(duration_ms(text), ms, "{text}");
        }
    }
}
