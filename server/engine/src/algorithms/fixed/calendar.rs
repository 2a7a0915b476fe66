//! Calendar windows: the end of the window around an instant.
//!
//! Here: whole multiples of nanoseconds, months and years, seen from a zone and shifted by a phase.
//! Not here: the counts of windows (`fixed`), the zones (`protocol`). Source of the conversion of
//! days: the proleptic Gregorian calendar, in eras of 400 years that begin on March 1st.
//!
//! A window begins when the zone's clock first shows its beginning or a later time. A day in which
//! the clock goes back has 25 hours then, and one in which it leaps ahead 23. A clock that goes
//! back into a window that was over does not open it again.

use protocol::{CalendarUnit, NamedZone, Phase, Window, Zone};

const NANOS_PER_MS: i128 = 1_000_000;
const NANOS_PER_SECOND: i128 = 1_000_000_000;
const NANOS_PER_DAY: i128 = 24 * 3600 * NANOS_PER_SECOND;
const NANOS_PER_WEEK: i128 = 7 * NANOS_PER_DAY;
/// From the Monday before the Unix epoch, a Thursday, to the epoch.
const MONDAY_TO_EPOCH: i128 = 3 * NANOS_PER_DAY;
const DAYS_PER_ERA: i128 = 146_097;
/// From March 1st of the year 0 to the Unix epoch.
const DAYS_TO_EPOCH: i128 = 719_468;
const EPOCH_YEAR: i128 = 1970;

/// The low bits of a hash encode the node's placement of the key (`hasher`). The phase ignores
/// them, because all nodes must agree on it.
const LAYOUT_BITS: u32 = 16;

/// The end of the window around `unix_ms`, in milliseconds since 1970, rounded up: the first clock
/// reading that is not inside. `None` if it depends on a hash that is not given.
pub(super) fn end_ms(window: &Window, unix_ms: u64, hash: Option<u64>) -> Option<u64> {
    let Window::Calendar { unit, zone, phase } = *window else {
        return Some(unix_ms);
    };
    let phase = match phase {
        Phase::Nanos(nanos) => i128::from(nanos),
        Phase::Auto => i128::from(hash? >> LAYOUT_BITS << LAYOUT_BITS) % shortest(unit),
    };
    let unix = i128::from(unix_ms) * NANOS_PER_MS;
    let end = match zone {
        Zone::Offset(offset) => {
            let shift = i128::from(offset) * NANOS_PER_SECOND - phase;
            local_end(unit, unix + shift) - shift
        }
        Zone::Named(zone) => zoned_end(unit, zone, phase, unix),
    };
    let end_ms = -(-end).div_euclid(NANOS_PER_MS);
    Some(u64::try_from(end_ms).unwrap_or(u64::MAX))
}

/// The length in whole milliseconds that every window reaches.
pub(super) fn shortest_ms(window: &Window) -> u64 {
    match *window {
        Window::Calendar { unit, zone, .. } => {
            let gap = match zone {
                Zone::Offset(_) => 0,
                Zone::Named(zone) => i128::from(zone.gap_seconds()) * NANOS_PER_SECOND,
            };
            let shortest = (shortest(unit) - gap).max(0);
            u64::try_from(shortest / NANOS_PER_MS).unwrap_or(u64::MAX)
        }
        Window::First(_) => u64::MAX,
    }
}

/// The latest end in milliseconds of any window around `unix_ms`, whatever its phase.
pub(super) fn latest_end_ms(window: &Window, unix_ms: u64) -> u64 {
    let Window::Calendar { unit, zone, .. } = *window else {
        return unix_ms;
    };
    let fold = match zone {
        Zone::Offset(_) => 0,
        Zone::Named(zone) => i128::from(zone.fold_seconds()) * NANOS_PER_SECOND,
    };
    let longest = match unit {
        CalendarUnit::Nanos(nanos) => i128::from(nanos),
        CalendarUnit::Months(months) => i128::from(months) * 31 * NANOS_PER_DAY,
        CalendarUnit::Years(years) => i128::from(years) * 366 * NANOS_PER_DAY,
    };
    let end_ms = i128::from(unix_ms) + (longest + fold) / NANOS_PER_MS + 1;
    u64::try_from(end_ms).unwrap_or(u64::MAX)
}

/// The length in nanoseconds that every window of the unit reaches.
fn shortest(unit: CalendarUnit) -> i128 {
    let nanos = match unit {
        CalendarUnit::Nanos(nanos) => i128::from(nanos),
        CalendarUnit::Months(months) => i128::from(months) * 28 * NANOS_PER_DAY,
        CalendarUnit::Years(years) => i128::from(years) * 365 * NANOS_PER_DAY,
    };
    nanos.max(1)
}

/// The end of the window around `now` in a zone, both in nanoseconds since 1970.
fn zoned_end(unit: CalendarUnit, zone: NamedZone, phase: i128, now: i128) -> i128 {
    let changes = zone.changes();
    let next = changes.partition_point(|change| nanos(change.at) <= now);
    let local = |at: i128, change: usize| at + nanos(zone.offset_before(change).into());
    // The furthest that the clock has shown: it may have gone back since.
    let folds = nanos(i64::from(zone.fold_seconds()));
    let recent = changes[..next].iter().enumerate().rev();
    let shown = recent
        .take_while(|(_, change)| nanos(change.at) + folds > now)
        .map(|(index, change)| local(nanos(change.at), index) - 1)
        .fold(local(now, next), i128::max);
    let end = local_end(unit, shown - phase) + phase;
    for (index, change) in changes.iter().enumerate().skip(next) {
        let at = nanos(change.at);
        let reached = end - nanos(zone.offset_before(index).into());
        if reached < at {
            return reached;
        }
        if local(at, index + 1) >= end {
            return at;
        }
    }
    end - nanos(zone.offset_before(changes.len()).into())
}

fn nanos(seconds: i64) -> i128 {
    i128::from(seconds) * NANOS_PER_SECOND
}

/// The end of the window around `local`, both in nanoseconds since 1970, offset and phase already
/// applied.
fn local_end(unit: CalendarUnit, local: i128) -> i128 {
    match unit {
        CalendarUnit::Nanos(nanos) => {
            let nanos = i128::from(nanos).max(1);
            let origin = if nanos % NANOS_PER_WEEK == 0 { -MONDAY_TO_EPOCH } else { 0 };
            local + nanos - (local - origin).rem_euclid(nanos)
        }
        CalendarUnit::Months(months) => month_start(next_multiple(month_of(local), months)),
        CalendarUnit::Years(years) => {
            month_start(12 * next_multiple(month_of(local).div_euclid(12), years))
        }
    }
}

/// The first multiple of `step` after `number`.
fn next_multiple(number: i128, step: u32) -> i128 {
    let step = i128::from(step).max(1);
    (number.div_euclid(step) + 1) * step
}

/// The month of an instant, counted from January 1970.
fn month_of(local: i128) -> i128 {
    let days = local.div_euclid(NANOS_PER_DAY) + DAYS_TO_EPOCH;
    let era = days.div_euclid(DAYS_PER_ERA);
    let day_of_era = days.rem_euclid(DAYS_PER_ERA);
    // Days lost to leap days every 4 years, less those every 100, plus that of the 400th.
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // From March on, five months have 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    (era * 400 + year_of_era - EPOCH_YEAR) * 12 + month_from_march + 2
}

/// The start of a month, counted from January 1970, in nanoseconds.
fn month_start(month: i128) -> i128 {
    let from_march = month - 2;
    let year = from_march.div_euclid(12) + EPOCH_YEAR;
    let month_from_march = from_march.rem_euclid(12);
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month_from_march + 2) / 5;
    let day_of_era = 365 * year_of_era + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * DAYS_PER_ERA + day_of_era - DAYS_TO_EPOCH) * NANOS_PER_DAY
}
