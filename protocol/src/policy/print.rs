//! The printer of the policy token.
//!
//! Here: the one canonical spelling of a policy: whole counts, the largest unit of time that
//! divides a duration, options in a fixed order and only if they differ from the default. Not here:
//! the parser (`parse`).

use std::fmt::{self, Display, Formatter};

use super::{
    Algorithm, CalendarUnit, HOLD_NANOS, Oldest, Phase, Policy, Rate, WARM_FACTOR, Warm, Window,
    Zone, list,
};

/// Prints the canonical spelling, which [`Policy::parse`] reads back, or for several
/// policies [`Policy::parse_list`]. The grammar has no unit below
/// a microsecond, so no parsed policy contains a part of one, and none is printed.
impl Display for Policy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.algorithm {
            Algorithm::Unlimited => return f.write_str("unlimited"),
            Algorithm::Block => return f.write_str("block"),
            Algorithm::Bucket { rate, capacity, init, debt, warm, interval } => {
                write!(f, "bucket:{rate}")?;
                count(f, "capacity", capacity, rate.count)?;
                count(f, "init", init, capacity)?;
                count(f, "debt", debt, 0)?;
                if let Some(Warm { duration, factor }) = warm {
                    write!(f, ",warm={}", Duration(duration))?;
                    if factor != WARM_FACTOR {
                        write!(f, ":{factor}")?;
                    }
                }
                flag(f, "interval", interval)?;
            }
            Algorithm::Gcra { rate, burst } => {
                write!(f, "gcra:{rate}")?;
                count(f, "burst", burst, rate.count.saturating_sub(1))?;
            }
            Algorithm::Leaky { rate, capacity, wait } => {
                write!(f, "leaky:{rate}")?;
                count(f, "capacity", capacity, rate.count)?;
                if let Some(wait) = wait {
                    write!(f, ",wait={}", Duration(wait))?;
                }
            }
            Algorithm::Fixed { count, window } => write!(f, "fixed:{count}/{window}")?,
            Algorithm::Sliding { rate, slices, oldest } => {
                write!(f, "sliding:{rate}")?;
                count(f, "slices", u64::from(slices), 1)?;
                flag(f, "strict", oldest == Oldest::Whole)?;
                flag(f, "flat", oldest == Oldest::Dropped)?;
            }
            Algorithm::Log { rate, entries } => {
                write!(f, "log:{rate}")?;
                count(f, "entries", entries, rate.count)?;
            }
            Algorithm::Concurrency { max, hold } => {
                write!(f, "concurrency:{max}")?;
                if hold != HOLD_NANOS {
                    write!(f, ",hold={}", Duration(hold))?;
                }
            }
            Algorithm::Several(_) => return list::print(self, f),
        }
        flag(f, "over", self.over)?;
        flag(f, "shadow", self.shadow)
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:#}", self.count, Duration(self.period))
    }
}

/// Prints the part behind the count and the slash, options included.
impl Display for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (unit, zone, phase) = match *self {
            Self::First(nanos) => return write!(f, "{:#}", Duration(nanos)),
            Self::Calendar { unit, zone, phase } => (unit, zone, phase),
        };
        match unit {
            CalendarUnit::Nanos(nanos) => write!(f, "{:#}", Duration(nanos))?,
            CalendarUnit::Months(1) => f.write_str("mo")?,
            CalendarUnit::Months(months) => write!(f, "{months}mo")?,
            CalendarUnit::Years(1) => f.write_str("y")?,
            CalendarUnit::Years(years) => write!(f, "{years}y")?,
        }
        f.write_str(",align=calendar")?;
        if zone != Zone::Offset(0) {
            write!(f, ",tz={zone}")?;
        }
        match phase {
            Phase::Nanos(0) => Ok(()),
            Phase::Nanos(nanos) => write!(f, ",phase={}", Duration(nanos)),
            Phase::Auto => f.write_str(",phase=auto"),
        }
    }
}

fn count(f: &mut Formatter<'_>, name: &str, value: u64, default: u64) -> fmt::Result {
    if value == default {
        return Ok(());
    }
    write!(f, ",{name}={value}")
}

fn flag(f: &mut Formatter<'_>, name: &str, given: bool) -> fmt::Result {
    if !given {
        return Ok(());
    }
    write!(f, ",{name}")
}

/// Returns a duration in the form in which a policy has it. Parts of a microsecond are left out.
#[must_use]
pub fn duration_text(nanos: u64) -> String {
    Duration(nanos).to_string()
}

/// Nanoseconds, printed in the largest unit that divides them; `{:#}` omits a count of one, as in
/// `10/s`.
pub(super) struct Duration(pub(super) u64);

impl Display for Duration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 6] = [
            (7 * 24 * 3_600_000_000, "w"),
            (24 * 3_600_000_000, "d"),
            (3_600_000_000, "h"),
            (60_000_000, "m"),
            (1_000_000, "s"),
            (1_000, "ms"),
        ];
        let micros = self.0 / 1_000;
        if micros == 0 {
            return f.write_str("0s");
        }
        let (unit, name) =
            UNITS.into_iter().find(|(unit, _)| micros.is_multiple_of(*unit)).unwrap_or((1, "us"));
        match micros / unit {
            1 if f.alternate() => f.write_str(name),
            units => write!(f, "{units}{name}"),
        }
    }
}
