//! The decisions of each limit over the last hour and the last two days.
//!
//! Here: minutes and hours of one limit, and the table of limits. Not here: the counting of
//! decisions (`limits`), their sum over workers.

use hashbrown::HashMap;
use tollgate_http::SeriesPoint;

use crate::limits::LimitTotals;

/// Minutes that are kept.
pub(crate) const MINUTES: usize = 60;
/// Hours that are kept.
pub(crate) const HOURS: usize = 48;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

/// Bytes of allowed, denied and shadow denied attempts, and of units.
const MINUTE_WIDTHS: [usize; 4] = [4, 4, 4, 6];
const HOUR_WIDTHS: [usize; 4] = [5, 5, 5, 6];
const MINUTE_BYTES: usize = 18;
const HOUR_BYTES: usize = 21;

/// Figures of a minute or an hour: allowed, denied, shadow denied, units.
type Figures = [u64; 4];

/// Packs figures into bytes. A figure that its width does not hold becomes the greatest that does.
fn pack<const N: usize>(figures: Figures, widths: [usize; 4]) -> [u8; N] {
    let mut bytes = [0; N];
    let mut from = 0;
    for (figure, width) in figures.into_iter().zip(widths) {
        let figure = figure.min((1 << (8 * width)) - 1);
        bytes[from..from + width].copy_from_slice(&figure.to_le_bytes()[..width]);
        from += width;
    }
    bytes
}

fn unpack<const N: usize>(bytes: &[u8; N], widths: [usize; 4]) -> Figures {
    let mut from = 0;
    widths.map(|width| {
        let mut figure = [0; 8];
        figure[..width].copy_from_slice(&bytes[from..from + width]);
        from += width;
        u64::from_le_bytes(figure)
    })
}

fn add(to: Figures, more: Figures) -> Figures {
    std::array::from_fn(|index| to[index].saturating_add(more[index]))
}

fn point(at_ms: u64, [allowed, denied, shadow_denied, units]: Figures) -> SeriesPoint {
    SeriesPoint { at_ms, allowed, denied, shadow_denied, units }
}

/// The minutes and hours of one limit.
#[derive(Debug)]
struct LimitSeries {
    minutes: [[u8; MINUTE_BYTES]; MINUTES],
    hours: [[u8; HOUR_BYTES]; HOURS],
    /// The last minute written, since the Unix epoch.
    minute: u64,
}

impl LimitSeries {
    fn new(minute: u64) -> Self {
        Self { minutes: [[0; MINUTE_BYTES]; MINUTES], hours: [[0; HOUR_BYTES]; HOURS], minute }
    }

    /// Makes `minute` the last one written, and zeroes the minutes and hours between the two. When
    /// the wall clock was set back, these are the later ones.
    fn move_to(&mut self, minute: u64) {
        let (first, last) = (self.minute.min(minute), self.minute.max(minute));
        for zeroed in first + 1..=last.min(first + MINUTES as u64) {
            self.minutes[zeroed as usize % MINUTES] = [0; MINUTE_BYTES];
        }
        let (first, last) = (first / 60, last / 60);
        for zeroed in first + 1..=last.min(first + HOURS as u64) {
            self.hours[zeroed as usize % HOURS] = [0; HOUR_BYTES];
        }
        self.minute = minute;
    }

    /// Adds to the minute, or to the one after it if that was written last: a clock that is
    /// corrected by seconds may go back over the end of a minute.
    fn add(&mut self, minute: u64, figures: Figures) {
        if self.minute != minute + 1 {
            self.move_to(minute);
        }
        let bytes = &mut self.minutes[self.minute as usize % MINUTES];
        *bytes = pack(add(unpack(bytes, MINUTE_WIDTHS), figures), MINUTE_WIDTHS);
        let bytes = &mut self.hours[(self.minute / 60) as usize % HOURS];
        *bytes = pack(add(unpack(bytes, HOUR_WIDTHS), figures), HOUR_WIDTHS);
    }

    fn minute_at(&self, minute: u64) -> Figures {
        match self.minute.checked_sub(minute) {
            Some(age) if age < MINUTES as u64 => {
                unpack(&self.minutes[minute as usize % MINUTES], MINUTE_WIDTHS)
            }
            _ => [0; 4],
        }
    }

    fn hour_at(&self, hour: u64) -> Figures {
        match (self.minute / 60).checked_sub(hour) {
            Some(age) if age < HOURS as u64 => {
                unpack(&self.hours[hour as usize % HOURS], HOUR_WIDTHS)
            }
            _ => [0; 4],
        }
    }
}

/// A limit with the sums at the last look.
#[derive(Debug, Default)]
struct SeriesRow {
    last: LimitTotals,
    /// Absent before the first decision.
    series: Option<Box<LimitSeries>>,
    /// The look at which the limit was last in force.
    look: u64,
}

/// The series of all limits in force, by the engine's number of each.
#[derive(Debug, Default)]
pub(crate) struct SeriesTable {
    rows: HashMap<u32, SeriesRow>,
    look: u64,
}

/// Decisions of all limits since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DecisionDeltas {
    /// Attempts that passed, shadow denials included.
    pub(crate) allowed: u64,
    /// Attempts that were denied.
    pub(crate) denied: u64,
}

impl SeriesTable {
    /// Takes the sums of all limits in force at `unix_ms`, and returns the decisions since the last
    /// look. The series of a limit that is not among them is dropped.
    pub(crate) fn look(
        &mut self,
        unix_ms: u64,
        limits: impl Iterator<Item = (u32, LimitTotals)>,
    ) -> DecisionDeltas {
        self.look += 1;
        let mut deltas = DecisionDeltas::default();
        let mut seen = 0;
        for (number, totals) in limits {
            seen += 1;
            let row = self.rows.entry(number).or_default();
            row.look = self.look;
            // After `stats reset` a sum is smaller than before, and all of it is new.
            let since = |now: u64, last: u64| if now >= last { now - last } else { now };
            let (last, now) = (std::mem::replace(&mut row.last, totals), totals);
            let shadow_denied = since(now.shadow_denied, last.shadow_denied);
            let allowed = since(now.allowed, last.allowed);
            let denied = since(now.denied, last.denied);
            if allowed + denied + shadow_denied == 0 {
                continue;
            }
            deltas.allowed += allowed + shadow_denied;
            deltas.denied += denied;
            let minute = unix_ms / MINUTE_MS;
            let figures = [allowed, denied, shadow_denied, since(now.units, last.units)];
            row.series
                .get_or_insert_with(|| Box::new(LimitSeries::new(minute)))
                .add(minute, figures);
        }
        if seen < self.rows.len() {
            let look = self.look;
            self.rows.retain(|_, row| row.look == look);
        }
        deltas
    }

    /// Returns the last `minutes` minutes of a limit up to `unix_ms`, oldest first; hours, if
    /// `minutes` is more than an hour.
    pub(crate) fn points(&self, number: u32, unix_ms: u64, minutes: u64) -> Vec<SeriesPoint> {
        let series = self.rows.get(&number).and_then(|row| row.series.as_deref());
        let no_figures = [0; 4];
        if minutes <= MINUTES as u64 {
            let last = unix_ms / MINUTE_MS;
            let points = ((last + 1).saturating_sub(minutes.max(1))..=last).map(|minute| {
                let figures = series.map_or(no_figures, |series| series.minute_at(minute));
                point(minute * MINUTE_MS, figures)
            });
            return points.collect();
        }
        let last = unix_ms / HOUR_MS;
        let hours = minutes.div_ceil(60).min(HOURS as u64);
        let points = ((last + 1).saturating_sub(hours)..=last).map(|hour| {
            let figures = series.map_or(no_figures, |series| series.hour_at(hour));
            point(hour * HOUR_MS, figures)
        });
        points.collect()
    }
}

/// Returns the figures of the 60 s up to `unix_ms`, of the minutes up to the present one: all of
/// the present minute, and the part of the one before that lies within the 60 s, rounded.
pub(crate) fn last_minute(minutes: &[SeriesPoint], unix_ms: u64) -> SeriesPoint {
    let inside_ms = MINUTE_MS - unix_ms % MINUTE_MS;
    let (present, before) = match minutes {
        [.., before, present] => (*present, *before),
        [present] => (*present, SeriesPoint::default()),
        [] => (SeriesPoint::default(), SeriesPoint::default()),
    };
    // A figure of a minute has at most 48 bits, and the product 64.
    let sum = |present: u64, before: u64| {
        present.saturating_add((before.saturating_mul(inside_ms) + MINUTE_MS / 2) / MINUTE_MS)
    };
    SeriesPoint {
        at_ms: unix_ms.saturating_sub(MINUTE_MS),
        allowed: sum(present.allowed, before.allowed),
        denied: sum(present.denied, before.denied),
        shadow_denied: sum(present.shadow_denied, before.shadow_denied),
        units: sum(present.units, before.units),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn totals(allowed: u64, denied: u64, shadow_denied: u64, units: u64) -> LimitTotals {
        LimitTotals { allowed, denied, shadow_denied, units, near: 0 }
    }

    #[test]
    fn series_of_a_limit_is_small() {
        assert_eq!(size_of::<LimitSeries>(), 2096);
        assert_eq!(MINUTE_WIDTHS.iter().sum::<usize>(), MINUTE_BYTES);
        assert_eq!(HOUR_WIDTHS.iter().sum::<usize>(), HOUR_BYTES);
    }

    #[test]
    fn figures_saturate_at_their_width() {
        let most = [u64::MAX; 4];
        let minute: [u8; MINUTE_BYTES] = pack(most, MINUTE_WIDTHS);
        let wide = (1 << 32) - 1;
        assert_eq!(unpack(&minute, MINUTE_WIDTHS), [wide, wide, wide, (1 << 48) - 1]);
        let some = [1, 1 << 32, 3, 1 << 40];
        let hour: [u8; HOUR_BYTES] = pack(some, HOUR_WIDTHS);
        assert_eq!(unpack(&hour, HOUR_WIDTHS), some);
    }

    /// A pause of the clock, in milliseconds; seldom it is set back.
    fn pause_ms() -> impl Strategy<Value = i64> {
        prop_oneof![
            9 => 0_i64..9_000_000,
            1 => -200_000_i64..0,
            1 => -200_000_000_i64..0,
        ]
    }

    proptest! {
        #[test]
        fn series_equals_its_twin(
            steps in proptest::collection::vec((pause_ms(), 0_u64..100, 0_u64..100), 1..200)
        ) {
            let mut table = SeriesTable::default();
            let (mut unix_ms, mut sums) = (1_700_000_000_000, totals(0, 0, 0, 0));
            let mut minutes: BTreeMap<u64, u64> = BTreeMap::new();
            let mut hours: BTreeMap<u64, u64> = BTreeMap::new();
            let mut last = 0;
            table.look(unix_ms, [(1, sums)].into_iter());
            for (pause_ms, allowed, denied) in steps {
                unix_ms = unix_ms.saturating_add_signed(pause_ms);
                sums.allowed += allowed;
                sums.denied += denied;
                sums.units += 2 * allowed;
                let deltas = table.look(unix_ms, [(1, sums)].into_iter());
                prop_assert_eq!(deltas, DecisionDeltas { allowed, denied });
                if allowed + denied > 0 {
                    let mut minute = unix_ms / MINUTE_MS;
                    if minute + 1 < last {
                        // What the later ones have taken the place of does not come back.
                        minutes.retain(|at, _| *at <= minute && *at + 60 > last);
                        hours.retain(|at, _| *at <= minute / 60 && *at + 48 > last / 60);
                    } else {
                        minute = minute.max(last);
                    }
                    last = minute;
                    *minutes.entry(minute).or_default() += allowed;
                    *hours.entry(minute / 60).or_default() += allowed;
                }
                let points = table.points(1, unix_ms, 60);
                prop_assert_eq!(points.len(), 60);
                for point in points {
                    let minute = point.at_ms / MINUTE_MS;
                    // A minute that is an hour older than the last one written is gone.
                    let kept = if minute + 60 > last { minutes.get(&minute) } else { None };
                    let expected = kept.copied().unwrap_or(0);
                    prop_assert_eq!((point.allowed, point.units), (expected, 2 * expected));
                }
                let points = table.points(1, unix_ms, 2880);
                prop_assert_eq!(points.len(), 48);
                for point in points {
                    let hour = point.at_ms / HOUR_MS;
                    let kept = if hour + 48 > last / 60 { hours.get(&hour) } else { None };
                    prop_assert_eq!(point.allowed, kept.copied().unwrap_or(0));
                }
            }
        }
    }

    #[test]
    fn last_minute_reaches_into_the_one_before() {
        let mut table = SeriesTable::default();
        let start_ms = 1_700_000_040_000;
        assert_eq!(start_ms % MINUTE_MS, 0);
        table.look(start_ms, [(1, totals(0, 0, 0, 0))].into_iter());
        table.look(start_ms + 30_000, [(1, totals(6000, 600, 60, 12_000))].into_iter());
        table.look(start_ms + MINUTE_MS, [(1, totals(6000, 600, 60, 12_000))].into_iter());
        for (after_ms, expected) in [
            (30_000, [6000, 600, 60, 12_000]),
            (59_999, [6000, 600, 60, 12_000]),
            (MINUTE_MS + 500, [5950, 595, 60, 11_900]),
            (MINUTE_MS + 30_000, [3000, 300, 30, 6000]),
            (MINUTE_MS + 59_999, [0, 0, 0, 0]),
            (2 * MINUTE_MS, [0, 0, 0, 0]),
        ] {
            let unix_ms = start_ms + after_ms;
            let last = last_minute(&table.points(1, unix_ms, 60), unix_ms);
            let figures = [last.allowed, last.denied, last.shadow_denied, last.units];
            assert_eq!((last.at_ms, figures), (unix_ms - MINUTE_MS, expected), "{after_ms}");
        }
        table.look(start_ms + MINUTE_MS + 400, [(1, totals(6100, 600, 60, 12_100))].into_iter());
        let unix_ms = start_ms + MINUTE_MS + 500;
        assert_eq!(last_minute(&table.points(1, unix_ms, 60), unix_ms).allowed, 6050);
        let most = [SeriesPoint { units: (1 << 48) - 1, ..SeriesPoint::default() }; 2];
        assert_eq!(last_minute(&most, start_ms).units, 2 * ((1 << 48) - 1));
    }

    #[test]
    fn reset_and_removal_are_followed() {
        let mut table = SeriesTable::default();
        let unix_ms = 1_700_000_000_000;
        let sums = [(1, totals(5, 1, 2, 9)), (2, totals(1, 0, 0, 1)), (3, totals(0, 0, 4, 4))];
        let deltas = table.look(unix_ms, sums.into_iter());
        assert_eq!(deltas, DecisionDeltas { allowed: 12, denied: 1 }, "a shadow's denial passes");
        let point = table.points(1, unix_ms, 1)[0];
        assert_eq!((point.allowed, point.denied, point.shadow_denied), (5, 1, 2));
        assert_eq!(table.points(3, unix_ms, 1)[0].shadow_denied, 4);
        let deltas = table.look(unix_ms, [(1, totals(2, 0, 0, 2))].into_iter());
        assert_eq!(deltas, DecisionDeltas { allowed: 2, denied: 0 });
        assert_eq!(table.rows.len(), 1);
        assert_eq!(table.points(2, unix_ms, 1)[0].allowed, 0);
    }
}
