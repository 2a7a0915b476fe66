//! A ban: a key that is refused too often is refused for a while, whatever it has left.
//!
//! Here: the parameters, their bounds and their text. Not here: counting refusals (`engine`), the
//! table in a limits file (`server`).

use std::fmt::{self, Display, Formatter};

use super::print::Duration;
use super::{PERIOD_NANOS_MAX, duration_nanos};
use crate::number::canonical_u64;

/// Most refusals that a ban may need: each is an entry of the state.
pub const BAN_REFUSALS_MAX: u64 = 1_000;

/// The ban of a limit. All times are nanoseconds, 1 us to [`PERIOD_NANOS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ban {
    /// Refusals that begin a ban, 1 to [`BAN_REFUSALS_MAX`].
    pub refusals: u64,
    /// The time in which they happen.
    pub within: u64,
    /// The length of the first ban. Each further one is twice as long.
    pub first: u64,
    /// The length of the longest ban, at least `first`. Bans are forgotten when the key is not
    /// refused for that long.
    pub longest: u64,
}

/// The reason why parameters make no ban.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BanError {
    /// The number of refusals.
    #[error("a ban needs 1 to {BAN_REFUSALS_MAX} refusals")]
    Refusals,
    /// A time, by its name.
    #[error("`{0}` of a ban is a duration from 1us to 366d, such as 10m")]
    Time(&'static str),
    /// The longest ban is shorter than the first.
    #[error("`max` of a ban is at least its `for`")]
    Longest,
    /// A text of another form.
    #[error("expected ban=<refusals>/<within>,for=<duration>,max=<duration>")]
    Form,
}

impl Ban {
    /// Makes a ban from the texts of its durations: `within`, `for` and `max`, which is `for` if it
    /// is not given.
    ///
    /// # Errors
    ///
    /// A parameter is out of its bounds.
    pub fn new(
        refusals: u64,
        within: &str,
        first: &str,
        longest: Option<&str>,
    ) -> Result<Self, BanError> {
        let time = |name, text: &str| {
            let nanos = duration_nanos(text.as_bytes());
            nanos.filter(|nanos| (1..=PERIOD_NANOS_MAX).contains(nanos)).ok_or(BanError::Time(name))
        };
        if !(1..=BAN_REFUSALS_MAX).contains(&refusals) {
            return Err(BanError::Refusals);
        }
        let (within, first) = (time("within", within)?, time("for", first)?);
        let longest = longest.map_or(Ok(first), |text| time("max", text))?;
        if longest < first {
            return Err(BanError::Longest);
        }
        Ok(Self { refusals, within, first, longest })
    }

    /// Parses the text that [`Display`] prints, without `ban=`.
    pub(super) fn parse(text: &str) -> Result<Self, BanError> {
        let mut parts = text.split(',');
        let mut part = || parts.next().ok_or(BanError::Form);
        let (rate, first, longest) = (part()?, part()?, part()?);
        let (refusals, within) = rate.split_once('/').ok_or(BanError::Form)?;
        let first = first.strip_prefix("for=").ok_or(BanError::Form)?;
        let longest = longest.strip_prefix("max=").ok_or(BanError::Form)?;
        let refusals = canonical_u64(refusals.as_bytes()).ok_or(BanError::Form)?;
        if parts.next().is_some() {
            return Err(BanError::Form);
        }
        Self::new(refusals, within, first, Some(longest))
    }

    /// The texts of `within`, `for` and `max`.
    #[must_use]
    pub fn durations(&self) -> [String; 3] {
        [self.within, self.first, self.longest].map(|nanos| Duration(nanos).to_string())
    }

    /// The length in nanoseconds of a ban after `before` others.
    #[must_use]
    pub fn length(&self, before: u8) -> u64 {
        let factor = 1_u64.checked_shl(before.into()).unwrap_or(u64::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

impl Display for Ban {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [within, first, longest] = self.durations();
        write!(f, "ban={}/{within},for={first},max={longest}", self.refusals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn ban_is_printed_and_parsed_again() {
        let ban = Ban::new(20, "10m", "1h", Some("24h")).expect("a ban");
        assert_eq!(ban.to_string(), "ban=20/10m,for=1h,max=1d");
        assert_eq!(Ban::parse("20/10m,for=1h,max=1d"), Ok(ban));
        let same = Ban::new(1, "366d", "1us", None).expect("a ban");
        assert_eq!(same.longest, 1_000);
        assert_eq!(Ban::parse(same.to_string().strip_prefix("ban=").expect("it")), Ok(same));
        for text in
            ["", "20", "20/10m", "20/10m,for=1h", "20/10m,max=1h,for=1h", "x/1m,for=1h,max=1h"]
        {
            assert_eq!(Ban::parse(text), Err(BanError::Form), "{text}");
        }
        assert_eq!(Ban::parse("20/10m,for=1h,max=1d,x"), Err(BanError::Form));
    }

    #[test]
    fn parameters_have_bounds() {
        assert_eq!(Ban::new(0, "1m", "1m", None), Err(BanError::Refusals));
        assert!(Ban::new(BAN_REFUSALS_MAX, "1m", "1m", None).is_ok());
        assert_eq!(Ban::new(BAN_REFUSALS_MAX + 1, "1m", "1m", None), Err(BanError::Refusals));
        assert_eq!(Ban::new(1, "0s", "1m", None), Err(BanError::Time("within")));
        assert_eq!(Ban::new(1, "1m", "367d", None), Err(BanError::Time("for")));
        assert_eq!(Ban::new(1, "1m", "1m", Some("1mo")), Err(BanError::Time("max")));
        assert_eq!(Ban::new(1, "1m", "1h", Some("59m")), Err(BanError::Longest));
    }

    #[test]
    fn ban_doubles_up_to_the_longest() {
        let ban = Ban::new(3, "1m", "1m", Some("5m")).expect("a ban");
        let lengths = [0, 1, 2, 3, 63, 64, 255].map(|before| ban.length(before) / SECOND);
        assert_eq!(lengths, [60, 120, 240, 300, 300, 300, 300]);
    }
}
