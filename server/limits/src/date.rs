//! Times as text: RFC 3339 to milliseconds since the Unix epoch, and back.
//!
//! Not here: clocks (`net::clock`).

use toml::value::{Datetime, Offset};

/// The last millisecond of the year 9999: later times have no RFC 3339 text.
pub(crate) const UNIX_MS_MAX: u64 = 253_402_300_799_999;

const DAY_SECONDS: i64 = 86_400;

/// Days from the Unix epoch to a date of the Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let before = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    before + day_of_year - 719_468
}

/// Returns the milliseconds since the Unix epoch of a date and time with an offset. `None` for any
/// other text, and for times before the epoch.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let Datetime { date, time, offset } = text.parse().ok()?;
    let (date, time) = (date?, time?);
    let offset_minutes = match offset? {
        Offset::Z => 0,
        Offset::Custom { minutes } => i64::from(minutes),
    };
    let days = days_of(date.year.into(), date.month.into(), date.day.into());
    let second = time.second.unwrap_or(0).min(59);
    let minutes = i64::from(time.hour) * 60 + i64::from(time.minute) - offset_minutes;
    let seconds = days * DAY_SECONDS + minutes * 60 + i64::from(second);
    let ms = seconds * 1000 + i64::from(time.nanosecond.unwrap_or(0) / 1_000_000);
    u64::try_from(ms).ok().filter(|ms| *ms <= UNIX_MS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_its_offset_is_milliseconds() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("2000-02-29T12:30:15.250Z", Some(951_827_415_250)),
            ("2026-12-01T00:00:00Z", Some(1_796_083_200_000)),
            ("2026-12-01 00:00:00-05:30", Some(1_796_103_000_000)),
            ("9999-12-31T23:59:59.999Z", Some(UNIX_MS_MAX)),
            ("1969-12-31T23:59:59Z", None),
            ("2026-12-01T00:00:00", None),
            ("2026-12-01", None),
            ("2026-02-30T00:00:00Z", None),
            ("tomorrow", None),
            ("", None),
        ] {
            assert_eq!(parse_rfc3339(text), expected, "{text}");
        }
    }

    #[test]
    fn days_follow_one_another() {
        let lens = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut next = days_of(1970, 1, 1);
        assert_eq!(next, 0);
        for year in 1970..2410 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for (month, len) in (1..).zip(lens) {
                for day in 1..=len + i64::from(month == 2 && is_leap) {
                    assert_eq!(days_of(year, month, day), next);
                    next += 1;
                }
            }
        }
    }
}
