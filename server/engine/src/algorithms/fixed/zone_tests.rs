//! Tests of windows in named zones: every change of five zones from 1970 to 2100, beside the civil
//! calendar of `jiff` and beside a clock that is read minute by minute.

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use protocol::{CalendarUnit, NamedZone, Phase, Window, Zone};

use super::calendar::{end_ms, latest_end_ms, shortest_ms};
use super::*;
use crate::Nanos;
use crate::algorithms::Verdict;
use crate::algorithms::count::tests::{TAKE, take};

const MINUTE: u64 = 60 * 1_000_000_000;
const DAY: u64 = 24 * 60 * MINUTE;

/// Berlin changes by an hour at night, Lord Howe by half an hour, St. John's went back at one
/// minute past midnight, Asunción at midnight, and Apia left out a day.
const ZONES: [&str; 5] = [
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "America/Asuncion",
    "Pacific/Apia",
];

fn zone(name: &str) -> (NamedZone, TimeZone) {
    let ours = NamedZone::find(name).expect("it is in the database");
    (ours, TimeZoneDatabase::bundled().get(name).expect("it is in the database"))
}

fn window(unit: CalendarUnit, zone: NamedZone) -> Window {
    Window::Calendar { unit, zone: Zone::Named(zone), phase: Phase::Nanos(0) }
}

/// The changes of a zone from 1970 to 2100, in seconds.
fn changes(zone: NamedZone) -> impl Iterator<Item = i64> {
    let changes = zone.changes().iter().map(|change| change.at);
    changes.filter(|at| (0..4_102_444_800).contains(at))
}

/// The first instant of a day, in seconds.
fn start_of(date: Date, zone: &TimeZone) -> i64 {
    let day = date.to_zoned_datetime(zone.clone()).and_then(|begin| begin.start_of_day());
    day.expect("a day begins").timestamp().as_second()
}

/// The latest day that has begun at `at`.
fn day_at(at: i64, zone: &TimeZone) -> Date {
    let mut date = Timestamp::from_second(at).unwrap().to_zoned_datetime(zone.clone()).date();
    while start_of(date.tomorrow().unwrap(), zone) <= at {
        date = date.tomorrow().unwrap();
    }
    date
}

/// The first day of the window after the one with `date`.
fn next_window(unit: CalendarUnit, date: Date) -> Date {
    let months_later = |step: i16| {
        let months = (date.year() - 1970) * 12 + i16::from(date.month()) - 1;
        let next = (months.div_euclid(step) + 1) * step;
        Date::new(1970 + next.div_euclid(12), next.rem_euclid(12) as i8 + 1, 1).unwrap()
    };
    match unit {
        CalendarUnit::Nanos(DAY) => date.tomorrow().unwrap(),
        CalendarUnit::Nanos(_) => {
            let since_monday = date.weekday().since(Weekday::Monday);
            date.checked_add((7 - i64::from(since_monday)).days()).unwrap()
        }
        CalendarUnit::Months(months) => months_later(months as i16),
        CalendarUnit::Years(years) => months_later(12 * years as i16),
    }
}

#[test]
fn days_weeks_months_and_years_begin_as_in_the_civil_calendar() {
    let units = [
        CalendarUnit::Nanos(DAY),
        CalendarUnit::Nanos(7 * DAY),
        CalendarUnit::Months(1),
        CalendarUnit::Months(3),
        CalendarUnit::Years(1),
    ];
    let mut probes = 0;
    for name in ZONES {
        let (ours, theirs) = zone(name);
        for change in changes(ours) {
            // Before, at and after the change, and at and around the midnights beside it.
            let day = day_at(change, &theirs);
            let midnights = [day, day.tomorrow().unwrap()].map(|day| start_of(day, &theirs));
            let instants = midnights.into_iter().chain([change]);
            let near = [-90_000, -5400, -3600, -1, 0, 1, 1800, 3599, 3600, 7200, 90_000];
            for at in instants.flat_map(|instant| near.map(|by| instant + by)) {
                let Ok(unix_ms) = u64::try_from(at * 1000) else { continue };
                let date = day_at(at, &theirs);
                for unit in units {
                    let expected = start_of(next_window(unit, date), &theirs) * 1000;
                    let window = window(unit, ours);
                    let end = end_ms(&window, unix_ms, None);
                    assert_eq!(end, u64::try_from(expected).ok(), "{name}, {unit:?} at {at}");
                    assert!(end <= Some(latest_end_ms(&window, unix_ms)));
                    probes += 1;
                }
            }
        }
    }
    assert!(probes > 100_000, "{probes}");
}

#[test]
fn no_window_is_shorter_than_the_bound() {
    for name in ZONES {
        let (ours, theirs) = zone(name);
        let window = window(CalendarUnit::Nanos(DAY), ours);
        for change in changes(ours) {
            let day = day_at(change, &theirs);
            let begin = start_of(day, &theirs);
            if let Ok(begin_ms) = u64::try_from(begin * 1000) {
                let end = end_ms(&window, begin_ms, None).unwrap();
                assert!(end - begin_ms >= shortest_ms(&window), "{name}, {day}");
            }
        }
    }
}

#[test]
fn a_day_of_25_hours_has_one_limit() {
    let (berlin, _) = zone("Europe/Berlin");
    let limit = Fixed { count: 10, window: window(CalendarUnit::Nanos(DAY), berlin) };
    // 2026-10-25 00:00 in Berlin is 22:00 UTC on the day before.
    let midnight = 1_792_879_200;
    let mut state = Vec::new();
    for hour in 0..25 {
        let now = Now { mono: Nanos(0), unix_ms: (midnight + hour * 3600) * 1000 };
        let decision = limit.take(&mut state, now, &take(1));
        let passes = if hour < 10 { Verdict::Allow } else { Verdict::Deny };
        assert_eq!(decision.verdict, passes, "hour {hour}");
        assert_eq!(decision.reset, (25 - hour) * 3600 * 1_000_000_000, "hour {hour}");
    }
    let next = Now { mono: Nanos(0), unix_ms: (midnight + 25 * 3600) * 1000 };
    assert_eq!(limit.take(&mut state, next, &take(1)).verdict, Verdict::Allow);
}

/// The furthest that the zone's clock has shown up to `at`, in seconds of local time.
fn shown(at: i64, zone: &TimeZone) -> i64 {
    let reading = |at: i64| {
        let offset = zone.to_offset(Timestamp::from_second(at).unwrap()).seconds();
        at + i64::from(offset)
    };
    // A minute ago the clock showed up to a second before its next minute.
    let before = (0..27 * 60).map(|minutes| at - at.rem_euclid(60) - minutes * 60 - 1);
    before.map(reading).fold(reading(at), i64::max)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn windows_of_any_length_end_when_the_clock_first_shows_their_end(
        name in prop::sample::select(&ZONES[..]),
        change in any::<prop::sample::Index>(),
        minutes in -400..400_i64,
        unit_minutes in prop::sample::select(vec![15_u32, 30, 60, 90, 360, 720, 1440]),
    ) {
        let (ours, theirs) = zone(name);
        let all: Vec<i64> = changes(ours).collect();
        let at = all[change.index(all.len())] + minutes * 60;
        let unit = i64::from(unit_minutes) * 60;
        let label = |at| shown(at, &theirs).div_euclid(unit);
        let now = label(at);
        // Changes of these zones are at whole minutes.
        // A window lasts two days at most.
        let end = (1..3000).map(|minute| at + minute * 60).find(|later| label(*later) > now);
        let ms = |second: i64| second.cast_unsigned() * 1000;
        let unit = CalendarUnit::Nanos(u64::from(unit_minutes) * MINUTE);
        let found = end_ms(&window(unit, ours), ms(at), None);
        prop_assert_eq!(found, end.map(ms), "{} at {}", name, at);
    }

    #[test]
    fn nothing_panics_at_any_time(
        name in prop::sample::select(&ZONES[..]),
        unit in prop_oneof![
            any::<u64>().prop_map(CalendarUnit::Nanos),
            any::<u32>().prop_map(CalendarUnit::Months),
            any::<u32>().prop_map(CalendarUnit::Years),
        ],
        phase in prop_oneof![Just(Phase::Auto), any::<u64>().prop_map(Phase::Nanos)],
        unix_ms in any::<u64>(),
        hash in any::<u64>(),
    ) {
        let window = Window::Calendar { unit, zone: Zone::Named(zone(name).0), phase };
        let limit = Fixed { count: 3, window };
        let mut state = Vec::new();
        let now = Now { mono: Nanos(0), unix_ms };
        limit.take(&mut state, now, &Attempt { cost: 1, hash, ..TAKE });
        prop_assert!(end_ms(&window, unix_ms, Some(hash)) > Some(unix_ms) || unix_ms > 1 << 62);
    }
}
