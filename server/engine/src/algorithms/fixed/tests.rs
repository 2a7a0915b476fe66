//! Tests of fixed windows: known results, exact waits, and a list of attempts as twin.

use proptest::prelude::*;
use protocol::{CalendarUnit, Phase, Zone};

use super::*;
use crate::Nanos;
use crate::algorithms::Verdict;
use crate::algorithms::count::tests::{SECOND, TAKE, at, peek, take};

const MINUTE: u64 = 60 * SECOND;
const DAY_MS: u64 = 24 * 3600 * 1000;
const DAY: u64 = DAY_MS * NANOS_PER_MS;

fn first(count: u64, nanos: u64) -> Fixed {
    Fixed { count, window: Window::First(nanos) }
}

fn calendar(count: u64, unit: CalendarUnit) -> Fixed {
    Fixed {
        count,
        window: Window::Calendar { unit, zone: Zone::Offset(0), phase: Phase::Nanos(0) },
    }
}

fn placed(fixed: Fixed, offset: i32, phase: Phase) -> Fixed {
    let Window::Calendar { unit, .. } = fixed.window else { return fixed };
    Fixed { window: Window::Calendar { unit, zone: Zone::Offset(offset), phase }, ..fixed }
}

/// An instant on the wall clock.
fn unix(seconds: u64) -> Now {
    Now { mono: Nanos(5 * SECOND), unix_ms: seconds * 1000 }
}

/// The number of attempts out of a hundred that pass at once.
fn hundred(limit: &Fixed, state: &mut Vec<u8>, now: Now) -> usize {
    (0..100).filter(|_| limit.take(state, now, &take(1)).verdict == Verdict::Allow).count()
}

/// Uses up the limit at `begin`, and checks that the next attempt passes from `end` on, in Unix
/// seconds.
fn lasts(limit: Fixed, begin: u64, end: u64) {
    let mut state = Vec::new();
    limit.take(&mut state, unix(begin), &take(limit.count));
    let decision = limit.take(&mut state, unix(begin), &take(1));
    assert_eq!(decision.verdict, Verdict::Deny);
    assert_eq!(decision.retry, Some((end - begin) * SECOND), "{limit:?} from {begin}");
    assert_eq!(decision.reset, (end - begin) * SECOND);
    let early = Now { unix_ms: end * 1000 - 1, ..unix(0) };
    assert_eq!(limit.take(&mut state, early, &peek(1)).verdict, Verdict::Deny);
    assert_eq!(limit.take(&mut state, unix(end), &peek(1)).verdict, Verdict::Allow);
}

mod golden {
    use super::*;

    #[test]
    fn twice_the_limit_passes_around_a_minutes_end() {
        let limit = calendar(100, CalendarUnit::Nanos(MINUTE));
        let mut state = Vec::new();
        let ten_past = 7 * 3600 + 10 * 60;
        assert_eq!(hundred(&limit, &mut state, unix(ten_past - 1)), 100);
        assert_eq!(hundred(&limit, &mut state, unix(ten_past - 1)), 0);
        assert_eq!(hundred(&limit, &mut state, unix(ten_past)), 100);
        assert_eq!(hundred(&limit, &mut state, unix(ten_past)), 0);
    }

    #[test]
    fn a_window_is_opened_by_its_first_admitted_call() {
        let limit = first(100, MINUTE);
        let mut state = Vec::new();
        let refused = limit.take(&mut state, at(0), &take(101));
        assert_eq!((refused.verdict, refused.retry), (Verdict::Deny, None));
        limit.take(&mut state, at(0), &take(0));
        assert!(state.is_empty());
        assert_eq!(hundred(&limit, &mut state, at(59 * SECOND)), 100);
        assert_eq!(hundred(&limit, &mut state, at(60 * SECOND)), 0);
        assert_eq!(hundred(&limit, &mut state, at(119 * SECOND - 1)), 0);
        assert_eq!(hundred(&limit, &mut state, at(119 * SECOND)), 100);
    }
}

mod calendars {
    use super::*;

    #[test]
    fn a_window_of_a_clock_that_was_ahead_counts_now() {
        let limit = calendar(100, CalendarUnit::Nanos(DAY));
        let today = 20_000 * 86_400;
        for ahead in [86_400, 10 * 366 * 86_400] {
            let mut state = Vec::new();
            assert_eq!(hundred(&limit, &mut state, unix(today + ahead)), 100);
            // Back at the right day the limit is used up, but no longer than that day.
            assert_eq!(hundred(&limit, &mut state, unix(today + 3600)), 0);
            let refused = limit.take(&mut state, unix(today + 3600), &take(1));
            assert_eq!(refused.retry, Some(DAY - 3600 * SECOND));
            assert_eq!(hundred(&limit, &mut state, unix(today + 86_400)), 100);
            assert_eq!(hundred(&limit, &mut state, unix(today + 86_401)), 0);
        }
    }

    // 2024-02-01, 2024-03-01, 2023-02-01, 2023-03-01, 2024-01-01, 2025-01-01 at midnight UTC.
    const FEBRUARY_2024: u64 = 1_706_745_600;
    const MARCH_2024: u64 = 1_709_251_200;
    const FEBRUARY_2023: u64 = 1_675_209_600;
    const MARCH_2023: u64 = 1_677_628_800;
    const YEAR_2024: u64 = 1_704_067_200;
    const YEAR_2025: u64 = 1_735_689_600;

    #[test]
    fn february_has_29_days_in_leap_years_only() {
        let limit = calendar(5, CalendarUnit::Months(1));
        lasts(limit, FEBRUARY_2024, MARCH_2024);
        lasts(limit, MARCH_2024 - 1, MARCH_2024);
        lasts(limit, FEBRUARY_2023, MARCH_2023);
        // 2100-02-01 to 2100-03-01: not a leap year.
        lasts(limit, 4_105_123_200, 4_107_542_400);
        // 2000-02-01 to 2000-03-01: a leap year.
        lasts(limit, 949_363_200, 951_868_800);
    }

    #[test]
    fn years_and_quarters_are_counted_from_1970() {
        lasts(calendar(5, CalendarUnit::Years(1)), YEAR_2024, YEAR_2025);
        // 2024 is the 54th year: even years begin a window of two, here until 2026.
        lasts(calendar(5, CalendarUnit::Years(2)), YEAR_2025, 1_767_225_600);
        // From February the quarter lasts until April 1st.
        lasts(calendar(5, CalendarUnit::Months(3)), FEBRUARY_2024, 1_711_929_600);
    }

    #[test]
    fn a_week_begins_on_monday() {
        let limit = calendar(5, CalendarUnit::Nanos(7 * DAY));
        // Thursday 1970-01-01 and Monday 2024-01-01.
        lasts(limit, 0, 4 * 86_400);
        lasts(limit, YEAR_2024, YEAR_2024 + 7 * 86_400);
        lasts(limit, YEAR_2024 - 1, YEAR_2024);
    }

    #[test]
    fn a_day_begins_at_midnight_of_its_offset() {
        let day = calendar(5, CalendarUnit::Nanos(DAY));
        lasts(day, YEAR_2024, YEAR_2024 + 86_400);
        let tokyo = placed(day, 9 * 3600, Phase::Nanos(0));
        lasts(tokyo, YEAR_2024, YEAR_2024 + 15 * 3600);
        let new_york = placed(day, -5 * 3600, Phase::Nanos(0));
        lasts(new_york, YEAR_2024, YEAR_2024 + 5 * 3600);
        let month = placed(calendar(5, CalendarUnit::Months(1)), 9 * 3600, Phase::Nanos(0));
        lasts(month, FEBRUARY_2024, MARCH_2024 - 9 * 3600);
    }

    #[test]
    fn a_phase_moves_the_beginning() {
        let limit = calendar(5, CalendarUnit::Nanos(DAY));
        let noon = placed(limit, 0, Phase::Nanos(DAY / 2));
        lasts(noon, YEAR_2024, YEAR_2024 + 43_200);
        let month = placed(calendar(5, CalendarUnit::Months(1)), 0, Phase::Nanos(14 * DAY));
        lasts(month, FEBRUARY_2024, FEBRUARY_2024 + 14 * 86_400);
        lasts(month, MARCH_2024, MARCH_2024 + 14 * 86_400);
    }

    #[test]
    fn keys_begin_apart_by_their_hash() {
        let day = calendar(5, CalendarUnit::Nanos(DAY));
        let auto = placed(day, 0, Phase::Auto);
        for hash in [0, 1, DAY / 3, DAY - 1, u64::MAX] {
            let fixed = placed(day, 0, Phase::Nanos((hash >> 16 << 16) % DAY));
            let (mut one, mut other) = (Vec::new(), Vec::new());
            let attempt = Attempt { hash, ..take(1) };
            let now = unix(YEAR_2024 + 4711);
            assert_eq!(auto.take(&mut one, now, &attempt), fixed.take(&mut other, now, &attempt));
            assert_eq!(one, other);
        }
    }

    #[test]
    fn usage_set_without_a_hash_ends_with_the_keys_window() {
        let auto = placed(calendar(5, CalendarUnit::Nanos(DAY)), 0, Phase::Auto);
        let now = unix(YEAR_2024);
        let mut state = Vec::new();
        auto.set_used(&mut state, now, 4);
        assert_eq!(auto.used(&state, now), 4);
        auto.refund(&mut state, now, 1);
        assert_eq!(auto.used(&state, unix(YEAR_2024 + 86_399)), 3);
        assert_eq!(auto.used(&state, unix(YEAR_2024 + 86_402)), 0);
        // The key's day begins at eight; the low bits of a hash have no effect.
        let attempt = Attempt { hash: DAY / 3 + 4711, ..take(2) };
        let decision = auto.take(&mut state, unix(YEAR_2024 + 1), &attempt);
        assert_eq!((decision.used, decision.reset), (5, 28_799 * SECOND));
        let refused = auto.take(&mut state, unix(YEAR_2024 + 2), &attempt);
        assert_eq!((refused.verdict, refused.retry), (Verdict::Deny, Some(28_798 * SECOND)));
        assert_eq!(auto.used(&state, unix(YEAR_2024 + 28_800)), 0);
    }
}

mod traps {
    use super::*;

    #[test]
    fn a_wall_clock_that_is_corrected_reopens_nothing() {
        let limit = calendar(100, CalendarUnit::Nanos(MINUTE));
        let mut state = Vec::new();
        let at_ms = |unix_ms| Now { unix_ms, ..unix(0) };
        assert_eq!(hundred(&limit, &mut state, at_ms(60_500)), 100);
        for unix_ms in [60_000, 59_999, 59_000, 119_000] {
            assert_eq!(hundred(&limit, &mut state, at_ms(unix_ms)), 0);
        }
        assert_eq!(hundred(&limit, &mut state, at_ms(120_000)), 100);
        // Back by more than a second, the window is the minute before, in which the limit is used
        // up too.
        assert_eq!(hundred(&limit, &mut state, at_ms(118_999)), 0);
        assert_eq!(hundred(&limit, &mut state, at_ms(119_999)), 0);
        assert_eq!(hundred(&limit, &mut state, at_ms(120_000)), 100);
    }

    #[test]
    fn a_monotonic_clock_that_goes_back_stands_still() {
        let limit = first(100, MINUTE);
        let mut state = Vec::new();
        assert_eq!(hundred(&limit, &mut state, at(90 * SECOND)), 100);
        assert_eq!(hundred(&limit, &mut state, at(0)), 0);
        let retry = limit.take(&mut state, at(0), &take(1)).retry;
        assert_eq!(retry, Some(150 * SECOND));
        assert_eq!(hundred(&limit, &mut state, at(150 * SECOND)), 100);
    }

    #[test]
    fn refused_attempts_change_nothing_unless_they_count() {
        let limit = first(5, MINUTE);
        let mut state = Vec::new();
        limit.take(&mut state, at(0), &take(4));
        let kept = state.clone();
        assert!(!limit.take(&mut state, at(1), &take(2)).changed);
        assert!(!limit.take(&mut state, at(1), &peek(1)).changed);
        assert_eq!(state, kept);
        let over = Attempt { over: true, ..take(2) };
        let decision = limit.take(&mut state, at(1), &over);
        assert_eq!((decision.verdict, decision.used), (Verdict::Deny, 6));
        for _ in 0..3 {
            let over = Attempt { cost: COUNT_MAX, ..over };
            assert_eq!(limit.take(&mut state, at(1), &over).used, COUNT_MAX);
        }
    }

    #[test]
    fn a_part_is_all_that_is_left() {
        let limit = first(5, MINUTE);
        let mut state = Vec::new();
        limit.take(&mut state, at(0), &take(3));
        let attempt = Attempt { part: true, ..take(4) };
        let seen = limit.take(&mut state, at(SECOND), &Attempt { peek: true, ..attempt });
        let decision = limit.take(&mut state, at(SECOND), &attempt);
        assert_eq!((decision.verdict, decision.granted, decision.used), (Verdict::Part, 2, 5));
        assert_eq!(decision.retry, Some(59 * SECOND));
        assert_eq!((seen.verdict, seen.granted, seen.used), (Verdict::Part, 2, 3));
        let decision = limit.take(&mut state, at(SECOND), &attempt);
        assert_eq!((decision.verdict, decision.granted), (Verdict::Deny, 0));
    }

    #[test]
    fn a_window_emptied_is_a_window_never_opened() {
        let limit = first(5, MINUTE);
        let mut state = Vec::new();
        limit.take(&mut state, at(0), &take(3));
        limit.refund(&mut state, at(1), 7);
        assert!(state.is_empty());
        limit.set_used(&mut state, at(2), 9);
        assert_eq!(limit.used(&state, at(2)), 5);
        limit.set_used(&mut state, at(3), 0);
        assert!(state.is_empty());
    }

    #[test]
    fn a_new_window_length_holds_from_the_old_opening() {
        let mut state = Vec::new();
        let minute = first(5, MINUTE);
        minute.take(&mut state, at(0), &take(5));
        let hour = first(6, 60 * MINUTE);
        hour.adopt(&minute, &mut state, at(10 * SECOND));
        let decision = hour.take(&mut state, at(10 * SECOND), &take(2));
        assert_eq!(decision.retry, Some(60 * MINUTE - 10 * SECOND));
        assert_eq!(hour.take(&mut state, at(10 * SECOND), &take(1)).verdict, Verdict::Allow);
        minute.adopt(&hour, &mut state, at(MINUTE));
        assert_eq!(minute.used(&state, at(MINUTE)), 0);
        // A window that was over under the old length is not reopened by a longer one.
        let mut state = Vec::new();
        minute.take(&mut state, at(0), &take(5));
        hour.adopt(&minute, &mut state, at(MINUTE));
        assert!(state.is_empty());
    }

    #[test]
    fn a_change_of_alignment_keeps_the_count() {
        let one = first(5, MINUTE);
        let other = calendar(9, CalendarUnit::Nanos(60 * MINUTE));
        let mut state = Vec::new();
        let now = Now { mono: Nanos(7), unix_ms: 1800 * 1000 };
        one.take(&mut state, now, &take(5));
        other.adopt(&one, &mut state, now);
        let decision = other.take(&mut state, now, &take(1));
        assert_eq!((decision.used, decision.reset), (6, 30 * MINUTE));
        one.adopt(&other, &mut state, now);
        let decision = one.take(&mut state, now, &take(1));
        assert_eq!((decision.used, decision.retry), (6, Some(MINUTE)));
    }

    #[test]
    fn a_restored_window_goes_on_where_it_was() {
        let limit = first(5, MINUTE);
        let mut state = Vec::new();
        limit.take(&mut state, at(100 * SECOND), &take(5));
        Fixed::shift(&mut state, -i128::from(120 * SECOND));
        assert_eq!(limit.take(&mut state, at(0), &take(1)).retry, Some(40 * SECOND));
        let of_calendar = calendar(5, CalendarUnit::Nanos(MINUTE));
        let mut state = Vec::new();
        of_calendar.take(&mut state, unix(1), &take(5));
        let kept = state.clone();
        Fixed::shift(&mut state, 12345);
        assert_eq!(state, kept);
    }

    #[test]
    fn states_are_small() {
        let mut state = Vec::new();
        first(COUNT_MAX, MINUTE).take(&mut state, at(u64::MAX), &take(COUNT_MAX));
        assert_eq!(state.len(), 17);
    }
}

/// The beginnings of all calendar windows up to 2110 in local milliseconds, found by counting days.
fn beginnings(unit: CalendarUnit) -> Vec<i128> {
    let leap = |year: u32| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year == 2000);
    let mut months = Vec::new();
    // From 1960 on, so that offsets and phases reach before 1970.
    let mut day = -3653_i128;
    for year in 1960..2110 {
        let february = if leap(year) { 29 } else { 28 };
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            months.push(day * i128::from(DAY_MS));
            day += days;
        }
    }
    // 120 months lie before 1970: the first window begins at a multiple.
    let every = |step: usize| {
        let skip = 120 % step;
        months.iter().copied().skip(skip).step_by(step).collect()
    };
    match unit {
        CalendarUnit::Months(step) => every(step as usize),
        CalendarUnit::Years(step) => every(12 * step as usize),
        CalendarUnit::Nanos(_) => unreachable!("these are not counted in days"),
    }
}

fn any_unit() -> impl Strategy<Value = CalendarUnit> {
    prop_oneof![
        (1..=24_u32).prop_map(CalendarUnit::Months),
        (1..=10_u32).prop_map(CalendarUnit::Years),
    ]
}

proptest! {
    #[test]
    fn months_and_years_end_where_its_twin_counts(
        unit in any_unit(),
        offset in -50_400..=50_400_i32,
        phase in 0..40 * DAY_MS,
        unix_ms in 0..4_100_000_000_000_u64,
    ) {
        let local = i128::from(unix_ms) + i128::from(offset) * 1000 - i128::from(phase);
        let beginnings = beginnings(unit);
        let next = beginnings.partition_point(|begin| *begin <= local);
        let expected = beginnings[next] - i128::from(offset) * 1000 + i128::from(phase);
        let limit = placed(calendar(1, unit), offset, Phase::Nanos(phase * NANOS_PER_MS));
        let end = calendar::end_ms(&limit.window, unix_ms, None);
        prop_assert_eq!(end.map(i128::from), Some(expected));
        prop_assert!(end <= Some(calendar::latest_end_ms(&limit.window, unix_ms)));
    }

    #[test]
    fn decides_as_its_twin(
        count in 1..20_u64,
        length in prop_oneof![1..50_u64, Just(MINUTE), 1..=MINUTE],
        of_calendar in any::<bool>(),
        phase in prop_oneof![Just(Phase::Auto), (0..MINUTE).prop_map(Phase::Nanos)],
        hash in any::<u64>(),
        steps in prop::collection::vec(
            (0..1500_u64, 0..10_u64, any::<(bool, bool, bool)>(), 0..10_u8, any::<bool>()), 1..40),
    ) {
        // The calendar's clock ticks in milliseconds.
        let unit = if of_calendar { NANOS_PER_MS } else { 1 };
        let length = length.div_ceil(unit) * unit;
        let limit = if of_calendar {
            placed(calendar(count, CalendarUnit::Nanos(length)), 0, phase)
        } else {
            first(count, length)
        };
        let moved_by = match phase {
            Phase::Nanos(nanos) => nanos,
            Phase::Auto => (hash >> 16 << 16) % length,
        };
        // All attempts that count in the window, and the window: its beginning, or its number.
        let (mut calls, mut window) = (Vec::<u64>::new(), 0_u64);
        let begin = 100 * MINUTE;
        let mut now = begin;
        let time = |nanos: u64| Now { mono: Nanos(nanos), unix_ms: nanos / NANOS_PER_MS };
        let number = |nanos: u64| (nanos - moved_by) / length;
        let mut state = Vec::new();
        for (gap, cost, (part, over, looks), other, retries) in steps {
            now += (length * gap / 1000).div_ceil(unit) * unit;
            let over_now =
                if of_calendar { number(now) > window } else { now - window >= length };
            if over_now {
                calls.clear();
            }
            let used: u64 = calls.iter().sum();
            let seen = limit.take(&mut state.clone(), time(now), &Attempt { hash, ..peek(0) });
            prop_assert_eq!(seen.used, used);
            if other == 0 {
                limit.refund(&mut state, time(now), cost);
                calls = vec![used.saturating_sub(cost)];
                continue;
            }
            let attempt = Attempt { cost, part, over, peek: looks, hash, ..TAKE };
            let decision = limit.take(&mut state, time(now), &attempt);
            let room = count.saturating_sub(used);
            let expected = if used + cost <= count {
                (Verdict::Allow, cost)
            } else if part && room > 0 {
                (Verdict::Part, room)
            } else {
                (Verdict::Deny, 0)
            };
            prop_assert_eq!((decision.verdict, decision.granted), expected);
            let counted = match expected {
                _ if looks => 0,
                (Verdict::Deny, _) if over => cost,
                (_, granted) => granted,
            };
            if counted > 0 {
                if calls.iter().sum::<u64>() == 0 {
                    window = if of_calendar { number(now) } else { now };
                }
                calls.push(counted);
            }
            let used = calls.iter().sum::<u64>();
            prop_assert_eq!(decision.used, used);
            prop_assert_eq!(decision.reset == 0, used == 0);
            if decision.verdict == Verdict::Deny {
                prop_assert_eq!(decision.retry.is_none(), cost > count);
                if let Some(retry) = decision.retry {
                    let passes = |nanos: u64| {
                        let attempt = Attempt { peek: true, part: false, ..attempt };
                        let decision = limit.take(&mut state.clone(), time(nanos), &attempt);
                        decision.verdict == Verdict::Allow
                    };
                    prop_assert!(passes(now + retry));
                    prop_assert!(!passes(now + retry - 1));
                    prop_assert_eq!(retry, decision.reset);
                    if retries {
                        now += retry;
                    }
                }
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_decides_as_its_twin(
        count in 1..12_u64,
        unit in prop_oneof![
            (1..100_000_u64).prop_map(|ms| CalendarUnit::Nanos(ms * NANOS_PER_MS)),
            (1..3_u32).prop_map(CalendarUnit::Months),
            (1..3_u32).prop_map(CalendarUnit::Years),
        ],
        phase in prop_oneof![Just(Phase::Auto), (0..MINUTE).prop_map(Phase::Nanos)],
        hash in any::<u64>(),
        steps in prop::collection::vec(
            (-3000..3000_i64, 0..6_u64, any::<(bool, bool)>(), 0..8_u8), 1..60),
    ) {
        let limit = placed(calendar(count, unit), 0, phase);
        let length_ms = calendar::shortest_ms(&limit.window);
        // The twin identifies a window by its end, and keeps the units of the window written last.
        let end = |unix_ms| calendar::end_ms(&limit.window, unix_ms, Some(hash)).unwrap_or(0);
        let (mut kept, mut window) = (0_u64, 0_u64);
        let mut unix_ms = 1_700_000_000_000_u64;
        let mut state = Vec::new();
        for (gap, cost, (looks, over), other) in steps {
            // In thousandths of a window, up to three windows ahead or back; some gaps are ten
            // years.
            let gap_ms = match other {
                1 => gap * 105_192_000,
                2 => gap,
                _ => gap * length_ms.cast_signed() / 1000,
            };
            unix_ms = unix_ms.saturating_add_signed(gap_ms).clamp(1_000_000_000, 1 << 42);
            let now = Now { mono: Nanos(0), unix_ms };
            let is_over = kept == 0 || end(unix_ms) > window;
            let goes_on = end(unix_ms + length_ms.min(1000)) >= window;
            let present = if goes_on && !is_over { window } else { end(unix_ms) };
            let is_moved = !is_over && present < window;
            let used = if is_over { 0 } else { kept };
            if other == 0 && cost > 0 {
                limit.take(&mut state, now, &Attempt { over, hash, ..take(0) });
                limit.refund(&mut state, now, cost);
                (kept, window) = (used.saturating_sub(cost), present);
                continue;
            }
            let attempt = Attempt { peek: looks, over, hash, ..take(cost) };
            let decision = limit.take(&mut state, now, &attempt);
            let passes = used + cost <= count;
            prop_assert_eq!(decision.verdict == Verdict::Allow, passes);
            let charge = if !looks && (passes || over) { cost } else { 0 };
            let writes = charge > 0 || is_moved && !looks;
            prop_assert_eq!(decision.changed, writes);
            if writes {
                (kept, window) = (used + charge, present);
            }
            prop_assert_eq!(decision.used, used + charge);
            let left = (present - unix_ms) * NANOS_PER_MS;
            prop_assert_eq!(decision.reset, if used + charge == 0 { 0 } else { left });
            if !passes && cost <= count {
                prop_assert_eq!(decision.retry, Some(left));
            }
        }
    }

    #[test]
    fn nothing_panics_where_a_twin_could_not_follow(
        count in 1..=COUNT_MAX,
        unit in prop_oneof![
            any::<u64>().prop_map(CalendarUnit::Nanos),
            any::<u32>().prop_map(CalendarUnit::Months),
            any::<u32>().prop_map(CalendarUnit::Years),
        ],
        offset in any::<i32>(),
        phase in prop_oneof![Just(Phase::Auto), any::<u64>().prop_map(Phase::Nanos)],
        calls in prop::collection::vec(
            (any::<(u64, u64)>(), 0..=COUNT_MAX, any::<(bool, bool, bool)>(), any::<i128>()), 1..20),
        garbage in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let limit = placed(calendar(count, unit), offset, phase);
        let mut state = garbage;
        for ((mono, unix_ms), cost, (part, peek, over), by) in calls {
            let now = Now { mono: Nanos(mono), unix_ms };
            let other = first(count, mono);
            limit.take(&mut state, now, &Attempt { cost, part, peek, over, hash: unix_ms, ..TAKE });
            if over {
                other.adopt(&limit, &mut state, now);
                other.take(&mut state, now, &Attempt { cost, part, peek, over, ..TAKE });
                Fixed::shift(&mut state, by);
                other.take(&mut state, now, &Attempt { cost, part, peek, over, ..TAKE });
                limit.adopt(&other, &mut state, now);
            }
            if peek {
                limit.refund(&mut state, now, cost / 2);
                limit.set_used(&mut state, now, cost);
            }
        }
    }
}
