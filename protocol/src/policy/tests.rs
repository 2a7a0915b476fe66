//! Tests of the policy token: every option, every error with its position, and printing back.

use proptest::prelude::*;

use super::*;

const MICRO: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3600 * SECOND;

fn rate(count: u64, period: u64) -> Rate {
    Rate { count, period }
}

fn bucket(rate: Rate, capacity: u64) -> Algorithm {
    Algorithm::Bucket { rate, capacity, init: capacity, debt: 0, warm: None, interval: false }
}

/// Checks that `text` parses to `algorithm`, without `over` and `shadow`, and prints as
/// `canonical`.
fn reads(text: &str, algorithm: Algorithm, canonical: &str) {
    let policy = Policy { algorithm, over: false, shadow: false };
    assert_eq!(Policy::parse(text.as_bytes()), Ok(policy), "{text}");
    assert_eq!(policy.to_string(), canonical, "{text}");
    assert_eq!(Policy::parse(canonical.as_bytes()), Ok(policy), "{canonical}");
}

/// Checks that `text` is refused at the position of `^` in `mark`, with the error `why`.
fn refuses(text: &str, mark: &str, why: &str) {
    let at = mark.find('^').expect("a mark under the fault");
    let error = Policy::parse(text.as_bytes()).expect_err(text);
    assert_eq!((error.at, error.why), (at, why), "\n{text}\n{mark}");
}

#[test]
fn every_algorithm_has_its_defaults() {
    let minute = 60 * SECOND;
    let hundred = rate(100, minute);
    reads("unlimited", Algorithm::Unlimited, "unlimited");
    reads("block", Algorithm::Block, "block");
    reads("bucket:100/60s", bucket(hundred, 100), "bucket:100/m");
    reads("gcra:100/60s", Algorithm::Gcra { rate: hundred, burst: 99 }, "gcra:100/m");
    let leaky = Algorithm::Leaky { rate: hundred, capacity: 100, wait: None };
    reads("leaky:100/60s", leaky, "leaky:100/m");
    let fixed = Algorithm::Fixed { count: 100, window: Window::First(minute) };
    reads("fixed:100/60s", fixed, "fixed:100/m");
    let sliding = Algorithm::Sliding { rate: hundred, slices: 1, oldest: Oldest::Weighted };
    reads("sliding:100/60s", sliding, "sliding:100/m");
    reads("log:100/60s", Algorithm::Log { rate: hundred, entries: 100 }, "log:100/m");
    reads("concurrency:20", Algorithm::Concurrency { max: 20, hold: minute }, "concurrency:20");
}

#[test]
fn every_option_is_read() {
    let all = Algorithm::Bucket {
        rate: rate(4, SECOND),
        capacity: 10,
        init: 3,
        debt: 8,
        warm: Some(Warm { duration: 10 * SECOND, factor: 5 }),
        interval: true,
    };
    let canonical = "bucket:4/s,capacity=10,init=3,debt=8,warm=10s:5,interval";
    reads("bucket:4/s,interval,warm=10s:5,init=3,debt=8,capacity=10", all, canonical);
    let warm = Algorithm::Bucket {
        rate: rate(100, SECOND),
        capacity: 100,
        init: 0,
        debt: 0,
        warm: Some(Warm { duration: 10 * SECOND, factor: 3 }),
        interval: false,
    };
    reads("bucket:100/s,init=0,warm=10s", warm, "bucket:100/s,init=0,warm=10s");
    let gcra = Algorithm::Gcra { rate: rate(30, 60 * SECOND), burst: 15 };
    reads("gcra:30/60s,burst=15", gcra, "gcra:30/m,burst=15");
    let queue = Algorithm::Leaky { rate: rate(1, SECOND), capacity: 60, wait: Some(60 * SECOND) };
    reads("leaky:1/s,capacity=60,wait=60s", queue, "leaky:1/s,capacity=60,wait=1m");
    let pacer = Algorithm::Leaky { rate: rate(1, SECOND), capacity: 1, wait: Some(0) };
    reads("leaky:1/s,wait=0s", pacer, "leaky:1/s,wait=0s");
    let slices = |oldest| Algorithm::Sliding { rate: rate(300, 300 * SECOND), slices: 10, oldest };
    reads("sliding:300/5m,slices=10", slices(Oldest::Weighted), "sliding:300/5m,slices=10");
    reads(
        "sliding:300/5m,slices=10,flat",
        slices(Oldest::Dropped),
        "sliding:300/5m,slices=10,flat",
    );
    let strict = slices(Oldest::Whole);
    reads("sliding:300/5m,strict,slices=10", strict, "sliding:300/5m,slices=10,strict");
    let log = Algorithm::Log { rate: rate(5, SECOND), entries: 50 };
    reads("log:5/s,entries=50", log, "log:5/s,entries=50");
    let most = Algorithm::Log { rate: rate(65_536, SECOND), entries: 65_536 };
    reads("log:65536/s", most, "log:65536/s");
    let more = Algorithm::Log { rate: rate(1_000_000, SECOND), entries: 65_536 };
    reads("log:1M/s,entries=65536", more, "log:1000000/s,entries=65536");
    // More entries than the rate's count can use.
    let few = Algorithm::Log { rate: rate(5, SECOND), entries: 70_000 };
    reads("log:5/s,entries=70000", few, "log:5/s,entries=70000");
    let seats = Algorithm::Concurrency { max: 20, hold: 120 * SECOND };
    reads("concurrency:20,hold=2m", seats, "concurrency:20,hold=2m");
}

#[test]
fn windows_follow_the_calendar_when_asked() {
    let zoned = |unit, zone, phase| Algorithm::Fixed {
        count: 5,
        window: Window::Calendar { unit, zone, phase },
    };
    let calendar = |unit, offset, phase| zoned(unit, Zone::Offset(offset), phase);
    let berlin = Zone::Named(NamedZone::find("Europe/Berlin").unwrap());
    let month = zoned(CalendarUnit::Months(1), berlin, Phase::Nanos(14 * DAY));
    let canonical = "fixed:5/mo,align=calendar,tz=Europe/Berlin,phase=2w";
    reads("fixed:5/mo,phase=14d,tz=europe/berlin,align=calendar", month, canonical);
    let none = Phase::Nanos(0);
    let first = Algorithm::Fixed { count: 5, window: Window::First(DAY) };
    reads("fixed:5/d,align=first", first, "fixed:5/d");
    let day = calendar(CalendarUnit::Nanos(DAY), 9 * 3600, none);
    reads("fixed:5/d,tz=+09:00,align=calendar", day, "fixed:5/d,align=calendar,tz=+09:00");
    let month = calendar(CalendarUnit::Months(1), -12_600, Phase::Auto);
    let canonical = "fixed:5/mo,align=calendar,tz=-03:30,phase=auto";
    reads("fixed:5/1mo,align=calendar,phase=auto,tz=-03:30", month, canonical);
    let quarter = calendar(CalendarUnit::Months(3), 0, Phase::Nanos(14 * DAY));
    let canonical = "fixed:5/3mo,align=calendar,phase=2w";
    reads("fixed:5/3mo,align=calendar,phase=14d,tz=-00:00", quarter, canonical);
    let years = calendar(CalendarUnit::Years(2), 0, none);
    reads("fixed:5/2y,align=calendar,phase=0s", years, "fixed:5/2y,align=calendar");
    reads(
        "fixed:5/y,align=calendar",
        calendar(CalendarUnit::Years(1), 0, none),
        "fixed:5/y,align=calendar",
    );
}

#[test]
fn counts_and_durations_have_units() {
    for (count, units) in [
        ("1k", 1_000),
        ("2M", 2_000_000),
        ("3G", 3_000_000_000),
        ("4Ki", 4_096),
        ("5Mi", 5 << 20),
        ("6Gi", 6 << 30),
        ("007", 7),
        ("9007199254740991", COUNT_MAX),
    ] {
        let text = format!("bucket:{count}/m");
        reads(&text, bucket(rate(units, 60 * SECOND), units), &format!("bucket:{units}/m"));
    }
    for (period, nanos, canonical) in [
        ("1us", MICRO, "us"),
        ("us", MICRO, "us"),
        ("1500us", 1500 * MICRO, "1500us"),
        ("250ms", 250_000 * MICRO, "250ms"),
        ("1000ms", SECOND, "s"),
        ("7s", 7 * SECOND, "7s"),
        ("90s", 90 * SECOND, "90s"),
        ("h", 3600 * SECOND, "h"),
        ("36h", 36 * 3600 * SECOND, "36h"),
        ("168h", 7 * DAY, "w"),
        ("2w", 14 * DAY, "2w"),
        ("366d", PERIOD_NANOS_MAX, "366d"),
    ] {
        let text = format!("bucket:1/{period}");
        reads(&text, bucket(rate(1, nanos), 1), &format!("bucket:1/{canonical}"));
    }
}

#[test]
fn over_and_shadow_go_with_every_algorithm() {
    for text in [
        "bucket:1/s",
        "gcra:1/s",
        "leaky:1/s",
        "fixed:1/s",
        "sliding:1/s",
        "log:1/s",
        "concurrency:1",
    ] {
        for (options, over, shadow) in
            [(",over", true, false), (",shadow", false, true), (",over,shadow", true, true)]
        {
            let text = format!("{text}{options}");
            let policy = Policy::parse(text.as_bytes()).expect("a policy");
            assert_eq!((policy.over, policy.shadow), (over, shadow), "{text}");
            assert_eq!(policy.to_string(), text);
        }
    }
}

#[test]
fn a_fault_in_the_algorithm_or_rate_is_pointed_at() {
    let algorithm = "expected unlimited, block, or one of bucket: gcra: leaky: fixed: sliding: \
                     log: concurrency:";
    for text in ["", "tokens:1/s", ":1/s", "x"] {
        refuses(text, "^", algorithm);
    }
    let options = "unlimited and block have no options, expected the end";
    refuses("block,shadow", "     ^", options);
    refuses("unlimited,over", "         ^", options);
    let count = "expected a count such as 100, 10k or 50Ki";
    refuses("bucket:", "       ^", count);
    refuses("bucket:/s", "       ^", count);
    refuses("bucket:-1/s", "       ^", count);
    refuses("concurrency:x", "            ^", count);
    refuses("gcra:0/s", "     ^", "a count here is at least 1");
    refuses("concurrency:0", "            ^", "a count here is at least 1");
    let large = "a count is at most 9007199254740991";
    refuses("log:9007199254740992/s", "    ^", large);
    refuses("log:99999999999999999999999/s", "    ^", large);
    refuses("log:18446744073709551615Gi/s", "    ^", large);
    refuses("log:8388608Gi/s", "    ^", large);
    let suffix = "expected k, M, G, Ki, Mi, Gi or nothing behind a count";
    let entries = "a log of more than 65536 needs entries=, at most 65536";
    refuses("log:65537/s", "    ^", entries);
    refuses("log:1M/h,over", "    ^", entries);
    let most = "a log has at most 65536 entries";
    refuses("log:1M/h,entries=65537", "         ^", most);
    refuses("log:10K/s", "      ^", suffix);
    refuses("log:10kM/s", "      ^", suffix);
    let slash = "expected / and a duration, as in 100/60s";
    refuses("log:10", "      ^", slash);
    refuses("log:1;5/s", "     ^", slash);
    refuses("fixed:10,over", "        ^", slash);
    let duration = "expected a duration such as 250ms, 60s, 1h or d";
    refuses("log:10/", "       ^", duration);
    refuses("log:10/60", "         ^", duration);
    refuses("log:10/60x", "         ^", duration);
    refuses("log:10/60;s", "         ^", duration);
    refuses("log:10/0s", "       ^", "a duration here is at least 1us");
    refuses("fixed:10/0s", "         ^", "a duration here is at least 1us");
    refuses("fixed:10/0mo,align=calendar", "         ^", "a duration here is at least 1us");
    refuses("log:10/367d", "       ^", "a duration is at most 366d");
    refuses("log:10/99999999999999999999w", "       ^", "a duration is at most 366d");
    let calendar = "mo and y are for fixed: with align=calendar";
    refuses("bucket:10/mo", "          ^", calendar);
    refuses("sliding:10/2y", "           ^", calendar);
    refuses("fixed:10/mo", "         ^", calendar);
    refuses("fixed:10/y,align=first", "         ^", calendar);
    let century = "a window is at most 1200mo or 100y";
    refuses("fixed:10/1201mo,align=calendar", "         ^", century);
    refuses("fixed:10/101y,align=calendar", "         ^", century);
    let end = "expected a comma or the end";
    refuses("log:10/s;over", "        ^", end);
    refuses("concurrency:20/s", "              ^", end);
    let long = format!("bucket:{}1/s", "0".repeat(250));
    refuses(&long, &format!("{}^", " ".repeat(250)), "a policy has at most 250 bytes");
}

#[test]
fn a_fault_in_an_option_is_pointed_at() {
    let bucket = "expected capacity=, init=, debt=, warm=, interval, over or shadow";
    refuses("bucket:1/s,", "           ^", bucket);
    refuses("bucket:1/s,wait=1s", "           ^", bucket);
    refuses("bucket:1/s,Over", "           ^", bucket);
    refuses("bucket:1/s,,over", "           ^", bucket);
    refuses("gcra:1/s,debt=1", "         ^", "expected burst=, over or shadow");
    refuses("leaky:1/s,debt=1", "          ^", "expected capacity=, wait=, over or shadow");
    refuses("fixed:1/s,slices=1", "          ^", "expected align=, tz=, phase=, over or shadow");
    let sliding = "expected slices=, strict, flat, over or shadow";
    refuses("sliding:1/s,entries=1", "            ^", sliding);
    refuses("log:1/s,strict", "        ^", "expected entries=, over or shadow");
    refuses("concurrency:1,wait=1s", "              ^", "expected hold=, over or shadow");
    let once = "an option may be given once";
    refuses("bucket:1/s,debt=1,debt=1", "                  ^", once);
    refuses("bucket:1/s,interval,interval", "                    ^", once);
    refuses("bucket:1/s,over,over", "                ^", once);
    refuses("bucket:1/s,shadow,shadow", "                  ^", once);
    refuses("sliding:1/s,flat,flat", "                 ^", once);
    let value = "this option has a value, expected =";
    refuses("bucket:1/s,capacity", "                   ^", value);
    refuses("bucket:1/s,capacity,over", "                   ^", value);
    let flag = "this option has no value, expected a comma or the end";
    refuses("bucket:1/s,interval=1", "                   ^", flag);
    refuses("bucket:1/s,over=1", "               ^", flag);
    let count = "expected a count such as 100, 10k or 50Ki";
    refuses("bucket:1/s,capacity=", "                    ^", count);
    refuses("bucket:1/s,capacity=x", "                    ^", count);
    refuses("bucket:1/s,capacity=2,init=x", "                           ^", count);
    refuses("gcra:1/s,burst=-1", "               ^", count);
}

#[test]
fn parameters_keep_their_bounds() {
    refuses("bucket:1/s,capacity=0", "                    ^", "a count here is at least 1");
    refuses("leaky:1/s,capacity=0", "                   ^", "a count here is at least 1");
    refuses("log:1/s,entries=0", "                ^", "a count here is at least 1");
    refuses("bucket:1/s,init=2", "           ^", "init is at most the capacity");
    refuses("bucket:9/s,init=8,capacity=7", "           ^", "init is at most the capacity");
    let sum = "capacity and debt together are at most 9007199254740991";
    refuses("bucket:1/s,debt=9007199254740991", "           ^", sum);
    assert!(Policy::parse(b"bucket:1/s,debt=9007199254740990").is_ok());
    refuses("gcra:1/s,burst=9007199254740991", "         ^", "burst is at most 9007199254740990");
    let factor = "a warm-up factor is 2 to 1000";
    for text in ["bucket:1/s,warm=5s:1", "bucket:1/s,warm=5s:1001", "bucket:1/s,warm=5s:"] {
        refuses(text, "                   ^", factor);
    }
    refuses("bucket:1/s,warm=0s", "                ^", "a duration here is at least 1us");
    let warm = "a warm-up passes at most 4503599627370495 units";
    refuses("bucket:1G/us,warm=366d", "             ^", warm);
    let slices = "slices are 1 to 120";
    for text in ["sliding:1/s,slices=0", "sliding:1/s,slices=121", "sliding:1/s,slices=x"] {
        refuses(text, "                   ^", slices);
    }
    assert!(Policy::parse(b"sliding:1/us,slices=120").is_ok());
    let exclude = "strict and flat exclude each other";
    refuses("sliding:1/s,strict,flat", "                   ^", exclude);
    refuses("sliding:1/s,flat,over,strict", "                      ^", exclude);
    refuses("concurrency:1,hold=0s", "                   ^", "a duration here is at least 1us");
    let calendar = "mo and y are for fixed: with align=calendar";
    refuses("concurrency:1,hold=1mo", "                   ^", calendar);
    refuses("fixed:1/d,align=week", "                ^", "expected first or calendar");
    refuses("fixed:1/d,tz=+01:00", "          ^", "tz needs align=calendar");
    refuses(
        "fixed:1/d,align=first,phase=1h",
        "                      ^",
        "phase needs align=calendar",
    );
    let phase = "a phase is shorter than the window";
    refuses("fixed:1/d,align=calendar,phase=24h", "                         ^", phase);
    refuses("fixed:1/mo,align=calendar,phase=28d", "                          ^", phase);
    let offset = "expected an offset such as +09:00 or a zone such as Europe/Berlin";
    for tz in ["", "09:00", "+9:00", "+09:60", "+0900", "+09:0", "/UTC", "_"] {
        refuses(&format!("fixed:1/d,align=calendar,tz={tz}"), &format!("{:28}^", ""), offset);
    }
    for tz in ["Z", "Berlin", "Europe/", "Europe/Berlin/", "UTC+1", &"x".repeat(99), "Asia/é"] {
        let none = "there is no such time zone";
        refuses(&format!("fixed:1/d,align=calendar,tz={tz}"), &format!("{:28}^", ""), none);
    }
    let far = "an offset is -14:00 to +14:00";
    refuses("fixed:1/d,align=calendar,tz=-14:01", "                            ^", far);
    let end = "expected a comma or the end";
    refuses("fixed:1/d,align=calendar,tz=+09:000", &format!("{:34}^", ""), end);
    refuses("fixed:1/d,align=calendar,phase=autos", &format!("{:35}^", ""), end);
}

#[test]
fn an_error_has_position_and_correct_form() {
    let error = Policy::parse(b"bucket:100/60x").expect_err("there is no such unit");
    let text = "bad policy: expected a duration such as 250ms, 60s, 1h or d at 13";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_duration_stands_alone_where_a_verb_has_one() {
    assert_eq!(duration_nanos(b"250ms"), Some(250_000_000));
    assert_eq!(duration_nanos(b"m"), Some(60 * SECOND));
    assert_eq!(duration_nanos(b"0s"), Some(0));
    for other in [&b""[..], b"5", b"5x", b"5s ", b"5s,", b"1mo", b"y", b"-1s", b"367d"] {
        assert_eq!(duration_nanos(other), None, "{other:?}");
    }
}

fn counts() -> impl Strategy<Value = u64> {
    prop_oneof![1..200_u64, 1..=COUNT_MAX, Just(COUNT_MAX)]
}

fn nanos() -> impl Strategy<Value = u64> {
    let micros_max = PERIOD_NANOS_MAX / MICRO;
    prop_oneof![
        1..=micros_max,
        (1..400_u64, prop::sample::select(vec![1_000_u64, 1_000_000, 60_000_000, 3_600_000_000]))
            .prop_map(|(count, unit)| count * unit),
        (1..=366_u64).prop_map(|days| days * DAY / MICRO),
    ]
    .prop_map(|micros| micros * MICRO)
}

fn rates() -> impl Strategy<Value = Rate> {
    (counts(), nanos()).prop_map(|(count, period)| Rate { count, period })
}

fn buckets() -> impl Strategy<Value = Algorithm> {
    let numbers = (counts(), any::<[u64; 2]>());
    let warm = prop::option::of((nanos(), 2..=1000_u32));
    (rates(), numbers, warm, any::<bool>()).prop_map(
        |(rate, (capacity, [init, debt]), warm, interval)| Algorithm::Bucket {
            rate,
            capacity,
            init: init % (capacity + 1),
            debt: debt % (COUNT_MAX - capacity + 1),
            warm: warm.map(|(duration, factor)| Warm { duration, factor }).filter(|warm| {
                let passed =
                    u128::from(warm.duration) * u128::from(rate.count) / u128::from(rate.period);
                passed < 1 << 52
            }),
            interval,
        },
    )
}

fn zones() -> impl Strategy<Value = Zone> {
    const NAMES: [&str; 4] =
        ["UTC", "Europe/Berlin", "America/Argentina/ComodRivadavia", "Etc/GMT+12"];
    prop_oneof![
        (-840..=840_i32).prop_map(|minutes| Zone::Offset(minutes * 60)),
        prop::sample::select(&NAMES[..])
            .prop_map(|name| Zone::Named(NamedZone::find(name).expect("it is in the database"))),
    ]
}

fn windows() -> impl Strategy<Value = Window> {
    let calendar = prop_oneof![
        nanos().prop_map(|nanos| (CalendarUnit::Nanos(nanos), nanos)),
        (1..=1200_u32).prop_map(|n| (CalendarUnit::Months(n), u64::from(n) * 28 * DAY)),
        (1..=100_u32).prop_map(|n| (CalendarUnit::Years(n), u64::from(n) * 365 * DAY)),
    ];
    prop_oneof![
        nanos().prop_map(Window::First),
        (calendar, zones(), prop::option::of(any::<u64>())).prop_map(
            |((unit, length), zone, phase)| Window::Calendar {
                unit,
                zone,
                phase: phase.map_or(Phase::Auto, |phase| {
                    let micros = length.min(PERIOD_NANOS_MAX) / MICRO;
                    Phase::Nanos(phase % micros * MICRO)
                }),
            }
        ),
    ]
}

fn policies() -> impl Strategy<Value = Policy> {
    let oldest = prop::sample::select(vec![Oldest::Weighted, Oldest::Whole, Oldest::Dropped]);
    let algorithm =
        prop_oneof![
            buckets(),
            (rates(), 0..COUNT_MAX).prop_map(|(rate, burst)| Algorithm::Gcra { rate, burst }),
            (rates(), counts(), prop::option::of(nanos()))
                .prop_map(|(rate, capacity, wait)| Algorithm::Leaky { rate, capacity, wait }),
            (counts(), windows()).prop_map(|(count, window)| Algorithm::Fixed { count, window }),
            (rates(), 1..=SLICES_MAX, oldest)
                .prop_map(|(rate, slices, oldest)| Algorithm::Sliding { rate, slices, oldest }),
            (rates(), counts()).prop_map(|(rate, entries)| {
                let few = if rate.count > LOG_ENTRIES_MAX { LOG_ENTRIES_MAX } else { entries };
                Algorithm::Log { rate, entries: entries.min(few) }
            }),
            (counts(), nanos()).prop_map(|(max, hold)| Algorithm::Concurrency { max, hold }),
        ];
    let plain = prop::sample::select(vec![Algorithm::Unlimited, Algorithm::Block]);
    prop_oneof![
        1 => plain.prop_map(|algorithm| Policy { algorithm, over: false, shadow: false }),
        20 => (algorithm, any::<bool>(), any::<bool>())
            .prop_map(|(algorithm, over, shadow)| Policy { algorithm, over, shadow }),
    ]
}

/// Generates bytes close enough to a policy to reach deep into the parser.
fn near_policies() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "bucket:",
        "fixed:",
        "sliding:",
        "concurrency:",
        "100",
        "9007199254740992",
        "/",
        "60s",
        "7",
        "mo",
        "y",
        "d",
        ",",
        "capacity=",
        "warm=",
        ":",
        "align=calendar",
        "tz=",
        "+09:00",
        "phase=",
        "auto",
        "over",
        "strict",
        "flat",
        "k",
        "Gi",
        "0",
        " ",
        "\u{ff}",
        "-",
    ]);
    prop_oneof![
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes()),
        (policies(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(policy, at, byte)| {
            let mut text = policy.to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            text
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_printed_policy_reads_back(policy in policies()) {
        let text = policy.to_string();
        prop_assert_eq!(Policy::parse(text.as_bytes()), Ok(policy), "{}", text);
    }

    #[test]
    fn any_token_is_a_policy_or_has_a_fault_within(text in near_policies()) {
        match Policy::parse(&text) {
            Ok(policy) => {
                prop_assert_eq!(Policy::parse(policy.to_string().as_bytes()), Ok(policy));
            }
            Err(error) => prop_assert!(error.at <= text.len()),
        }
    }
}
