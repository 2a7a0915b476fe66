//! The words of the policy token: counts, durations, options.
//!
//! Here: the spelling of each word, and its bounds. Not here: which options an algorithm has
//! (`parse`).

use super::hints;
use super::parse::PolicyError;
use super::{
    COUNT_MAX, NamedZone, PERIOD_NANOS_MAX, Phase, Rate, SLICES_MAX, WARM_FACTOR, Warm, Zone,
};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000 * MICROSECOND;
const SECOND: u64 = 1_000 * MILLISECOND;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
pub(super) const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;

/// No slice is shorter than a nanosecond, however short the window.
const _: () = assert!(MICROSECOND >= SLICES_MAX as u64);

/// Longest calendar window: a century.
const YEARS_MAX: u64 = 100;

/// Largest cold factor of a warm-up.
const WARM_FACTOR_MAX: u32 = 1_000;

/// Greatest distance from Greenwich: the Line Islands.
const OFFSET_SECONDS_MAX: i32 = 14 * 3600;

const EXPECTED_COUNT: &str = "expected a count such as 100, 10k or 50Ki";
const EXPECTED_DURATION: &str = "expected a duration such as 250ms, 60s, 1h or d";
const EXPECTED_ZONE: &str = "expected an offset such as +09:00 or a zone such as Europe/Berlin";
pub(super) const TOO_SHORT: &str = "a duration here is at least 1us";
pub(super) const CALENDAR_ONLY: &str = "mo and y are for fixed: with align=calendar";

/// A duration as the token spells it.
#[derive(Clone, Copy)]
pub(super) enum DurationToken {
    Nanos(u64),
    Months(u32),
    Years(u32),
}

/// The value of an option, and the offset at which the option begins.
#[derive(Clone, Copy)]
pub(super) struct OptionValue<T> {
    pub(super) value: T,
    pub(super) at: usize,
}

pub(super) fn value_or<T>(given: Option<OptionValue<T>>, default: T) -> T {
    given.map_or(default, |given| given.value)
}

pub(super) fn fail<T>(at: usize, why: &'static str) -> Result<T, PolicyError> {
    Err(PolicyError { at, why })
}

/// The token and the position of the reader.
pub(super) struct Token<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
    /// The offset of the current option.
    pub(super) name_at: usize,
    pub(super) over: bool,
    pub(super) shadow: bool,
}

/// The options.
impl<'a> Token<'a> {
    /// Reads the name of the next option; `None` at the end.
    pub(super) fn option(&mut self) -> Result<Option<&'a [u8]>, PolicyError> {
        match self.peek() {
            None => return Ok(None),
            Some(b',') => self.at += 1,
            Some(_) => return fail(self.at, self.broken("expected a comma or the end")),
        }
        self.name_at = self.at;
        Ok(Some(self.letters()))
    }

    /// Reads the value of the current option with `read`.
    pub(super) fn once<T>(
        &mut self,
        given: &mut Option<OptionValue<T>>,
        read: impl FnOnce(&mut Self) -> Result<T, PolicyError>,
    ) -> Result<(), PolicyError> {
        if given.is_some() {
            return fail(self.name_at, "an option may be given once");
        }
        if self.peek() != Some(b'=') {
            return fail(self.at, "this option has a value, expected =");
        }
        self.at += 1;
        *given = Some(OptionValue { value: read(self)?, at: self.name_at });
        Ok(())
    }

    /// Checks that the current option has no value.
    pub(super) fn flag(&self, given: &mut bool) -> Result<(), PolicyError> {
        if *given {
            return fail(self.name_at, "an option may be given once");
        }
        if self.peek() == Some(b'=') {
            return fail(self.at, "this option has no value, expected a comma or the end");
        }
        *given = true;
        Ok(())
    }

    /// Reads an option that every algorithm has, or fails with the names of this algorithm's
    /// options.
    pub(super) fn common(
        &mut self,
        name: &[u8],
        expected: &'static str,
    ) -> Result<(), PolicyError> {
        let mut given = match name {
            b"over" => self.over,
            b"shadow" => self.shadow,
            _ => {
                let why = hints::option(self.text, name).unwrap_or(expected);
                return fail(self.name_at, why);
            }
        };
        self.flag(&mut given)?;
        self.over |= name == b"over";
        self.shadow |= name == b"shadow";
        Ok(())
    }
}

/// The words of the grammar.
impl<'a> Token<'a> {
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// The reason against the next byte: a better one than `expected`, if there is one.
    fn broken(&self, expected: &'static str) -> &'static str {
        hints::broken(self.text.get(self.at..).unwrap_or_default()).unwrap_or(expected)
    }

    pub(super) fn letters(&mut self) -> &'a [u8] {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic()).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Reads a run of digits; saturates at the bounds of 64 bits.
    pub(super) fn digits(&mut self) -> Option<u64> {
        let start = self.at;
        let mut value = 0_u64;
        while let Some(byte @ b'0'..=b'9') = self.peek() {
            value = value.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            self.at += 1;
        }
        (self.at > start).then_some(value)
    }

    pub(super) fn count(&mut self) -> Result<u64, PolicyError> {
        let start = self.at;
        let Some(digits) = self.digits() else { return fail(start, EXPECTED_COUNT) };
        let suffix_at = self.at;
        let unit = match self.letters() {
            b"" => 1,
            b"k" => 1_000,
            b"M" => 1_000_000,
            b"G" => 1_000_000_000,
            b"Ki" => 1 << 10,
            b"Mi" => 1 << 20,
            b"Gi" => 1 << 30,
            _ => return fail(suffix_at, "expected k, M, G, Ki, Mi, Gi or nothing behind a count"),
        };
        match digits.checked_mul(unit) {
            Some(count) if count <= COUNT_MAX => Ok(count),
            _ => fail(start, "a count is at most 9007199254740991"),
        }
    }

    pub(super) fn positive(&mut self) -> Result<u64, PolicyError> {
        let start = self.at;
        match self.count()? {
            0 => fail(start, "a count here is at least 1"),
            count => Ok(count),
        }
    }

    pub(super) fn slash(&mut self) -> Result<(), PolicyError> {
        if self.peek() != Some(b'/') {
            let why = self.broken("expected / and a duration, as in 100/60s");
            return fail(self.at, why);
        }
        self.at += 1;
        Ok(())
    }

    pub(super) fn rate(&mut self) -> Result<Rate, PolicyError> {
        let count = self.positive()?;
        self.slash()?;
        Ok(Rate { count, period: self.period()? })
    }

    /// Reads a duration with any unit; without digits the count is 1.
    pub(super) fn span(&mut self) -> Result<DurationToken, PolicyError> {
        let start = self.at;
        let count = self.digits().unwrap_or(1);
        let unit_at = self.at;
        let unit = match self.letters() {
            b"us" => MICROSECOND,
            b"ms" => MILLISECOND,
            b"s" => SECOND,
            b"m" => MINUTE,
            b"h" => HOUR,
            b"d" => DAY,
            b"w" => WEEK,
            b"mo" if count <= 12 * YEARS_MAX => return Ok(DurationToken::Months(count as u32)),
            b"y" if count <= YEARS_MAX => return Ok(DurationToken::Years(count as u32)),
            b"mo" | b"y" => return fail(start, "a window is at most 1200mo or 100y"),
            _ => {
                let why = hints::unit(self.text, unit_at).unwrap_or(EXPECTED_DURATION);
                return fail(unit_at, why);
            }
        };
        match count.checked_mul(unit) {
            Some(nanos) if nanos <= PERIOD_NANOS_MAX => Ok(DurationToken::Nanos(nanos)),
            _ => fail(start, "a duration is at most 366d"),
        }
    }

    pub(super) fn nanos(&mut self) -> Result<u64, PolicyError> {
        let start = self.at;
        match self.span()? {
            DurationToken::Nanos(nanos) => Ok(nanos),
            DurationToken::Months(_) | DurationToken::Years(_) => fail(start, CALENDAR_ONLY),
        }
    }

    pub(super) fn period(&mut self) -> Result<u64, PolicyError> {
        let start = self.at;
        match self.nanos()? {
            0 => fail(start, TOO_SHORT),
            nanos => Ok(nanos),
        }
    }

    /// `<duration>[:factor]`.
    pub(super) fn warm(&mut self) -> Result<Warm, PolicyError> {
        let duration = self.period()?;
        if self.peek() != Some(b':') {
            return Ok(Warm { duration, factor: WARM_FACTOR });
        }
        self.at += 1;
        let start = self.at;
        match self.digits().map(u32::try_from) {
            Some(Ok(factor @ 2..=WARM_FACTOR_MAX)) => Ok(Warm { duration, factor }),
            _ => fail(start, "a warm-up factor is 2 to 1000"),
        }
    }

    pub(super) fn slices(&mut self) -> Result<u8, PolicyError> {
        let start = self.at;
        match self.digits().map(u8::try_from) {
            Some(Ok(slices @ 1..=SLICES_MAX)) => Ok(slices),
            _ => fail(start, "slices are 1 to 120"),
        }
    }

    /// Reads `first` or `calendar`; true for `calendar`.
    pub(super) fn align(&mut self) -> Result<bool, PolicyError> {
        let start = self.at;
        match self.letters() {
            b"first" => Ok(false),
            b"calendar" => Ok(true),
            _ => fail(start, "expected first or calendar"),
        }
    }

    /// Reads an offset such as `+09:00`, or the name of a zone.
    pub(super) fn zone(&mut self) -> Result<Zone, PolicyError> {
        let start = self.at;
        let rest = self.text.get(start..).unwrap_or_default();
        if !rest.first().is_some_and(u8::is_ascii_alphabetic) {
            return self.offset().map(Zone::Offset);
        }
        let len = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
        let zone = str::from_utf8(&rest[..len]).ok().and_then(NamedZone::find);
        let Some(zone) = zone else { return fail(start, "there is no such time zone") };
        self.at += len;
        Ok(Zone::Named(zone))
    }

    /// Reads an offset such as `+09:00`; returns seconds.
    fn offset(&mut self) -> Result<i32, PolicyError> {
        let start = self.at;
        let Some([sign @ (b'+' | b'-'), digits @ ..]) = self.text.get(start..start + 6) else {
            return fail(start, EXPECTED_ZONE);
        };
        let &[h1 @ b'0'..=b'9', h2 @ b'0'..=b'9', b':', m1 @ b'0'..=b'5', m2 @ b'0'..=b'9'] =
            digits
        else {
            return fail(start, EXPECTED_ZONE);
        };
        self.at += 6;
        let two = |tens: u8, ones: u8| i32::from(tens - b'0') * 10 + i32::from(ones - b'0');
        let seconds = two(h1, h2) * 3600 + two(m1, m2) * 60;
        if seconds > OFFSET_SECONDS_MAX {
            return fail(start, "an offset is -14:00 to +14:00");
        }
        Ok(if *sign == b'-' { -seconds } else { seconds })
    }

    pub(super) fn phase(&mut self) -> Result<Phase, PolicyError> {
        if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(b"auto")) {
            self.at += 4;
            return Ok(Phase::Auto);
        }
        self.nanos().map(Phase::Nanos)
    }
}
