//! The parser of the policy token.
//!
//! Here: the algorithms, the options of each, and how they bound each other. An error reports its
//! position and the correct form. Nothing is allocated. Not here: the types (`policy`), single
//! words (`token`), the printer (`print`).

use super::hints;
use super::token::{
    CALENDAR_ONLY, DAY, DurationToken, OptionValue, TOO_SHORT, Token, fail, value_or,
};
use super::{
    Algorithm, COUNT_MAX, CalendarUnit, HOLD_NANOS, LOG_ENTRIES_MAX, Oldest, Phase, Policy, Rate,
    Warm, Window, Zone,
};
use crate::bounds::POLICY_BYTES_MAX;

const EXPECTED_ALGORITHM: &str = "expected unlimited, block, or one of bucket: gcra: leaky: fixed: \
                                  sliding: log: concurrency:";

/// The reason why a token is not a valid policy. `Display` gives the position and the correct form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bad policy: {why} at {at}")]
pub struct PolicyError {
    /// Offset in the token, in bytes; the token's length if something is missing at its end.
    pub at: usize,
    /// The fault, or the correct form.
    pub why: &'static str,
}

impl Policy {
    /// Parses the policy in `text`.
    ///
    /// ```
    /// use tollgate_protocol::Policy;
    ///
    /// let policy = Policy::parse(b"bucket:100/60s,capacity=200").expect("a policy");
    /// assert_eq!(policy.to_string(), "bucket:100/m,capacity=200");
    /// let error = Policy::parse(b"bucket:100/60x").expect_err("there is no unit x");
    /// assert_eq!(error.at, 13);
    /// ```
    ///
    /// # Errors
    ///
    /// A [`PolicyError`] at the first fault; if two parts contradict each other, at one of them.
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        if text.len() > POLICY_BYTES_MAX {
            return Err(PolicyError {
                at: POLICY_BYTES_MAX,
                why: "a policy has at most 250 bytes",
            });
        }
        let name = text.iter().position(|byte| !byte.is_ascii_lowercase()).unwrap_or(text.len());
        let (name, rest) = text.split_at(name);
        let mut token = Token { text, at: name.len() + 1, name_at: 0, over: false, shadow: false };
        let algorithm = match (name, rest.first()) {
            (b"unlimited", None) => Algorithm::Unlimited,
            (b"block", None) => Algorithm::Block,
            (b"unlimited" | b"block", Some(b',')) => {
                let why = "unlimited and block have no options, expected the end";
                return Err(PolicyError { at: name.len(), why });
            }
            (b"bucket", Some(b':')) => token.bucket()?,
            (b"sliding", Some(b':')) => token.sliding()?,
            (b"fixed", Some(b':')) => token.fixed()?,
            (b"gcra", Some(b':')) => token.gcra()?,
            (b"leaky", Some(b':')) => token.leaky()?,
            (b"log", Some(b':')) => token.log()?,
            (b"concurrency", Some(b':')) => token.concurrency()?,
            _ => {
                let why = hints::algorithm(text).unwrap_or(EXPECTED_ALGORITHM);
                return Err(PolicyError { at: 0, why });
            }
        };
        Ok(Self { algorithm, over: token.over, shadow: token.shadow })
    }
}

/// Parses a duration that stands alone, 0 included, into nanoseconds; `None` for an invalid one,
/// for `mo` and `y`, and for anything above [`PERIOD_NANOS_MAX`](super::PERIOD_NANOS_MAX).
#[must_use]
pub fn duration_nanos(word: &[u8]) -> Option<u64> {
    let mut token = Token { text: word, at: 0, name_at: 0, over: false, shadow: false };
    let nanos = token.nanos().ok()?;
    (token.at == word.len()).then_some(nanos)
}

/// The algorithms: each method parses from behind the colon to the end.
impl Token<'_> {
    fn bucket(&mut self) -> Result<Algorithm, PolicyError> {
        let rate = self.rate()?;
        let (mut capacity, mut init, mut debt, mut warm) = (None, None, None, None);
        let mut interval = false;
        while let Some(name) = self.option()? {
            match name {
                b"capacity" => self.once(&mut capacity, Self::positive)?,
                b"init" => self.once(&mut init, Self::count)?,
                b"debt" => self.once(&mut debt, Self::count)?,
                b"warm" => self.once(&mut warm, Self::warm)?,
                b"interval" => self.flag(&mut interval)?,
                _ => self.common(
                    name,
                    "expected capacity=, init=, debt=, warm=, interval, over or shadow",
                )?,
            }
        }
        let full = value_or(capacity, rate.count);
        if let Some(init) = init.filter(|init| init.value > full) {
            return fail(init.at, "init is at most the capacity");
        }
        if let Some(debt) = debt.filter(|debt| debt.value > COUNT_MAX - full) {
            return fail(debt.at, "capacity and debt together are at most 9007199254740991");
        }
        if let Some(warm) = warm.filter(|warm| !warm.value.fits(rate)) {
            return fail(warm.at, "a warm-up passes at most 4503599627370495 units");
        }
        Ok(Algorithm::Bucket {
            rate,
            capacity: full,
            init: value_or(init, full),
            debt: value_or(debt, 0),
            warm: warm.map(|warm| warm.value),
            interval,
        })
    }

    fn gcra(&mut self) -> Result<Algorithm, PolicyError> {
        let rate = self.rate()?;
        let mut burst = None;
        while let Some(name) = self.option()? {
            match name {
                b"burst" => self.once(&mut burst, Self::count)?,
                _ => self.common(name, "expected burst=, over or shadow")?,
            }
        }
        if let Some(burst) = burst.filter(|burst| burst.value == COUNT_MAX) {
            return fail(burst.at, "burst is at most 9007199254740990");
        }
        Ok(Algorithm::Gcra { rate, burst: value_or(burst, rate.count - 1) })
    }

    fn leaky(&mut self) -> Result<Algorithm, PolicyError> {
        let rate = self.rate()?;
        let (mut capacity, mut wait) = (None, None);
        while let Some(name) = self.option()? {
            match name {
                b"capacity" => self.once(&mut capacity, Self::positive)?,
                b"wait" => self.once(&mut wait, Self::nanos)?,
                _ => self.common(name, "expected capacity=, wait=, over or shadow")?,
            }
        }
        let capacity = value_or(capacity, rate.count);
        Ok(Algorithm::Leaky { rate, capacity, wait: wait.map(|wait| wait.value) })
    }

    fn fixed(&mut self) -> Result<Algorithm, PolicyError> {
        let count = self.positive()?;
        self.slash()?;
        let span_at = self.at;
        let span = self.span()?;
        if let DurationToken::Nanos(0) | DurationToken::Months(0) | DurationToken::Years(0) = span {
            return fail(span_at, TOO_SHORT);
        }
        let (mut calendar, mut tz, mut phase) = (None, None, None);
        while let Some(name) = self.option()? {
            match name {
                b"align" => self.once(&mut calendar, Self::align)?,
                b"tz" => self.once(&mut tz, Self::zone)?,
                b"phase" => self.once(&mut phase, Self::phase)?,
                _ => self.common(name, "expected align=, tz=, phase=, over or shadow")?,
            }
        }
        // The shortest length of such a window, which the phase must stay below.
        let (unit, shortest) = match span {
            DurationToken::Nanos(nanos) => (CalendarUnit::Nanos(nanos), nanos),
            DurationToken::Months(months) => {
                (CalendarUnit::Months(months), u64::from(months) * 28 * DAY)
            }
            DurationToken::Years(years) => {
                (CalendarUnit::Years(years), u64::from(years) * 365 * DAY)
            }
        };
        if !value_or(calendar, false) {
            if let Some(OptionValue { at, .. }) = tz {
                return fail(at, "tz needs align=calendar");
            }
            if let Some(OptionValue { at, .. }) = phase {
                return fail(at, "phase needs align=calendar");
            }
            let DurationToken::Nanos(nanos) = span else { return fail(span_at, CALENDAR_ONLY) };
            return Ok(Algorithm::Fixed { count, window: Window::First(nanos) });
        }
        if let Some(OptionValue { value: Phase::Nanos(nanos), at }) = phase
            && nanos >= shortest
        {
            return fail(at, "a phase is shorter than the window");
        }
        let (zone, phase) = (value_or(tz, Zone::Offset(0)), value_or(phase, Phase::Nanos(0)));
        Ok(Algorithm::Fixed { count, window: Window::Calendar { unit, zone, phase } })
    }

    fn sliding(&mut self) -> Result<Algorithm, PolicyError> {
        let rate = self.rate()?;
        let (mut slices, mut strict, mut flat) = (None, false, false);
        while let Some(name) = self.option()? {
            match name {
                b"slices" => self.once(&mut slices, Self::slices)?,
                b"strict" => self.flag(&mut strict)?,
                b"flat" => self.flag(&mut flat)?,
                _ => self.common(name, "expected slices=, strict, flat, over or shadow")?,
            }
            if strict && flat {
                return fail(self.name_at, "strict and flat exclude each other");
            }
        }
        let oldest = match (strict, flat) {
            (true, _) => Oldest::Whole,
            (_, true) => Oldest::Dropped,
            _ => Oldest::Weighted,
        };
        Ok(Algorithm::Sliding { rate, slices: value_or(slices, 1), oldest })
    }

    fn log(&mut self) -> Result<Algorithm, PolicyError> {
        let count_at = self.at;
        let rate = self.rate()?;
        let mut entries = None;
        while let Some(name) = self.option()? {
            match name {
                b"entries" => self.once(&mut entries, Self::positive)?,
                _ => self.common(name, "expected entries=, over or shadow")?,
            }
        }
        match entries {
            Some(OptionValue { value, at }) if value.min(rate.count) > LOG_ENTRIES_MAX => {
                return fail(at, "a log has at most 65536 entries");
            }
            None if rate.count > LOG_ENTRIES_MAX => {
                return fail(count_at, "a log of more than 65536 needs entries=, at most 65536");
            }
            _ => {}
        }
        Ok(Algorithm::Log { rate, entries: value_or(entries, rate.count) })
    }

    fn concurrency(&mut self) -> Result<Algorithm, PolicyError> {
        let max = self.positive()?;
        let mut hold = None;
        while let Some(name) = self.option()? {
            match name {
                b"hold" => self.once(&mut hold, Self::period)?,
                _ => self.common(name, "expected hold=, over or shadow")?,
            }
        }
        Ok(Algorithm::Concurrency { max, hold: value_or(hold, HOLD_NANOS) })
    }
}

impl Warm {
    /// Whether all figures of the warm-up stay within [`COUNT_MAX`]. The largest is the number of
    /// tokens of a cold bucket: `d/(f−1) + 2d/(f+1)`, below `2d`, where `d` units pass during the
    /// warm-up at the full rate.
    fn fits(&self, rate: Rate) -> bool {
        let passed = u128::from(self.duration) * u128::from(rate.count) / u128::from(rate.period);
        passed <= u128::from(COUNT_MAX / 2)
    }
}
