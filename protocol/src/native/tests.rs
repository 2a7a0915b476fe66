//! Tests of the native verbs, line by line: options, errors, replies.

use super::lines::encode_verdict;
use super::*;
use crate::bounds::Bounds;
use crate::decode::decode as decode_front;
use crate::policy::COUNT_MAX;
use crate::reply::{CountLine, LeaseLine, Outcome, VerdictLine, VerdictWord};
use crate::request::{Exptime, PolicyArg};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

fn request(line: &str) -> Request<'_> {
    match decode_front(line.as_bytes(), 0, Bounds::default()) {
        Ok(Decoded::Request { request, consumed }) if consumed == line.len() => request,
        other => panic!("{line:?} is a request, not {other:?}"),
    }
}

/// Returns the verb and whether its reply is suppressed.
fn native(line: &str) -> (Native<'_>, bool) {
    match request(line) {
        Request::Command {
            command: Command { operation: Operation::Native(native), .. },
            form: Form::Native { quiet },
        } => (native, quiet),
        other => panic!("{line:?} is a native verb, not {other:?}"),
    }
}

fn take(cost: u64, policy: PolicyArg<'_>) -> Take<'_> {
    let (wait, id, hold) = (None, None, None);
    let cas = CasCondition::None;
    Take { cost, policy, peek: false, part: false, wait, cas, id, hold, debit: false, info: false }
}

fn refused(line: &str, says: &str) {
    for (line, quiet) in [(format!("{line}\r\n"), false), (format!("{line} noreply\r\n"), true)] {
        match decode_front(line.as_bytes(), 0, Bounds::default()) {
            Err(refusal) => {
                assert_eq!(refusal.error.to_string(), says, "{line:?}");
                assert_eq!((refusal.consumed, refusal.quiet), (line.len(), quiet), "{line:?}");
            }
            Ok(other) => panic!("{line:?} is refused, not {other:?}"),
        }
    }
}

#[test]
fn take_has_a_policy_and_options() {
    let written = PolicyArg::Inline(b"bucket:100/60s,capacity=200");
    let plain = take(1, written);
    let line = "take u:42 1 bucket:100/60s,capacity=200\r\n";
    assert_eq!(native(line), (Native::Take(plain), false));
    let Request::Command { command, .. } = request(line) else { panic!("one key") };
    assert_eq!(command.key.as_bytes(), b"u:42");
    let whole = Take {
        peek: true,
        part: true,
        wait: Some(0),
        cas: CasCondition::Compare(7),
        id: Some(b"a=b"),
        hold: Some(120 * SECOND),
        ..take(COUNT_MAX, PolicyArg::Named(b"login"))
    };
    let line = "take k 9007199254740991 =login peek part wait=0s cas=7 id=a=b hold=2m noreply\r\n";
    assert_eq!(native(line), (Native::Take(whole), true));
    let bound = Take { cas: CasCondition::Show, ..take(0, PolicyArg::Configured) };
    assert_eq!(native("take  k 0  -  cas \n"), (Native::Take(bound), false));
    let debit = Take { debit: true, id: Some(b"x"), ..take(9, PolicyArg::Configured) };
    assert_eq!(native("take k 9 - debit id=x\r\n"), (Native::Take(debit), false));
    // The policy is not parsed here, and `noreply` is an option only at the end.
    let odd = take(1, PolicyArg::Inline(b"noreply"));
    assert_eq!(native("take noreply 1 noreply noreply\r\n"), (Native::Take(odd), true));
}

#[test]
fn takem_takes_keys_and_then_options() {
    let parts = |line| match request(line) {
        Request::TakeMany { many: TakeMany { costs, keys, peek, wait, id, .. }, quiet } => {
            assert_eq!(wait.is_some(), line.contains(" wait="), "{line}");
            let cost = costs.only().expect("one cost");
            let keys: Vec<String> = keys
                .iter()
                .map(|(key, _)| String::from_utf8_lossy(key.as_bytes()).into_owned())
                .collect();
            (cost, keys.join(" "), peek, id.map(<[u8]>::to_vec), quiet)
        }
        other => panic!("takem, not {other:?}"),
    };
    assert_eq!(parts("takem 3 a b c\r\n"), (3, "a b c".into(), false, None, false));
    let all = (0, "a".into(), true, Some(b"x".to_vec()), true);
    assert_eq!(parts("takem 0 a id=x peek noreply\r\n"), all);
    // The first key is a key, even if it is spelt like an option.
    assert_eq!(parts("takem 1 peek peek\r\n"), (1, "peek".into(), true, None, false));
    let most = format!("takem 1{}\r\n", " k".repeat(16));
    assert_eq!(parts(&most).1.len(), 31);
    refused(&format!("takem 1{}", " k".repeat(17)), "CLIENT_ERROR takem: at most 16 keys");
    let missing = "CLIENT_ERROR takem: missing argument, the line is takem <cost>[,<cost>...] <key> <key> ...";
    refused("takem", missing);
    refused("takem 1", missing);
    let options = "CLIENT_ERROR takem: unknown or repeated option, there are peek \
                   wait=<duration> id=<token> each info";
    refused("takem 1 a peek b", options);
    refused("takem 1 a id=1 id=1", options);
    for word in ["each", "info"] {
        refused(&format!("takem 1 a {word} b"), options);
        refused(&format!("takem 1 a {word} {word}"), options);
    }
    // An option of `take` is not a key either.
    assert_eq!(parts("takem 1 a b wait=0 peek\r\n"), (1, "a b".into(), true, None, false));
    refused("takem 1 a wait=1s wait=1s", options);
    for word in ["hold=5s", "cas=1", "cas", "part"] {
        refused(&format!("takem 1 a {word}"), options);
        refused(&format!("takem 1 a b {word} peek"), options);
    }
    assert_eq!(parts("takem 1 hold=5s a\r\n"), (1, "hold=5s a".into(), false, None, false));
    refused("takem 1 a id=", "CLIENT_ERROR takem: id must be 1 to 64 bytes");
    let long = format!("takem 1 a {}", "k".repeat(251));
    refused(&long, "CLIENT_ERROR takem: key must be 1 to 250 bytes");
    let cost = "CLIENT_ERROR takem: cost must be a number from 0 to 9007199254740991";
    refused("takem a b", cost);
}

#[test]
fn each_and_info_end_the_keys_unless_they_are_the_first() {
    let parts = |line| match request(line) {
        Request::TakeMany { many: TakeMany { keys, each, info, peek, .. }, .. } => {
            let first = keys.first().unwrap_or_default().to_vec();
            (first, keys.iter().count(), each, info, peek)
        }
        other => panic!("takem, not {other:?}"),
    };
    assert_eq!(parts("takem 1 a b each\r\n"), (b"a".to_vec(), 2, true, false, false));
    assert_eq!(parts("takem 1 a info peek each\r\n"), (b"a".to_vec(), 1, true, true, true));
    assert_eq!(parts("takem 1 each info\r\n"), (b"each".to_vec(), 1, false, true, false));
    assert_eq!(parts("takem 1 info each\r\n"), (b"info".to_vec(), 1, true, false, false));
    assert_eq!(parts("takem 1 eachb b\r\n"), (b"eachb".to_vec(), 2, false, false, false));
    let info = Take { info: true, peek: true, ..take(9, PolicyArg::Configured) };
    assert_eq!(native("take k 9 - info peek\r\n"), (Native::Take(info), false));
    assert_eq!(native("take info 9 - info peek\r\n"), (Native::Take(info), false));
    let options = "CLIENT_ERROR take: unknown or repeated option, there are peek part \
                   wait=<duration> cas[=<n>] id=<token> hold=<duration> debit info";
    for line in ["take k 1 - info info", "take k 1 - info=1", "take k 1 - each"] {
        refused(line, options);
    }
}

#[test]
fn takem_takes_a_cost_for_each_key() {
    let costs = |line, keys| match request(line) {
        Request::TakeMany { many: TakeMany { costs, .. }, .. } => {
            (costs.only(), costs.iter().take(keys).collect::<Vec<_>>(), costs.total(keys))
        }
        other => panic!("takem, not {other:?}"),
    };
    assert_eq!(costs("takem 1,1500,0 a b c\r\n", 3), (None, vec![1, 1500, 0], 1501));
    assert_eq!(costs("takem 2,3 a b peek\r\n", 2), (None, vec![2, 3], 5));
    assert_eq!(costs("takem 4 a b\r\n", 2), (Some(4), vec![4, 4], 8));
    let most = format!("takem {COUNT_MAX},{COUNT_MAX} a b\r\n");
    assert_eq!(costs(&most, 2), (None, vec![COUNT_MAX; 2], COUNT_MAX));
    let number = "CLIENT_ERROR takem: give one cost for all keys, or one for each";
    for line in ["takem 1,2 a", "takem 1,2 a b c", "takem 1,2,3 a b peek", "takem 1,2 a id=x"] {
        refused(line, number);
    }
    let wrong = "CLIENT_ERROR takem: costs must be numbers from 0 to 9007199254740991 between \
                 commas";
    for word in ["1,", ",1", ",", "1,,2", "1,x", "1,-1", "9007199254740992,1"] {
        refused(&format!("takem {word} a b"), wrong);
    }
}

#[test]
fn holds_are_given_back_settled_and_renewed() {
    assert_eq!(native("refund k 5\r\n"), (Native::Refund(5), false));
    let settle = Native::Settle { lease: 17, actual: 3100 };
    assert_eq!(native("settle t:1 17 3100\r\n"), (settle, false));
    let renew = Native::Renew { lease: u64::MAX, for_ns: 30 * SECOND };
    assert_eq!(native("renew k 18446744073709551615 30s noreply\r\n"), (renew, true));
}

#[test]
fn lease_has_defaults() {
    let plain = Lease {
        client: b"app-1",
        want: 100,
        policy: PolicyArg::Configured,
        used: 0,
        unused: 0,
        weight: 1,
        ttl: None,
    };
    assert_eq!(native("lease k app-1 100 -\r\n"), (Native::Lease(plain), false));
    let (used, unused, weight, ttl) = (7, 3, 10, Some(5 * SECOND));
    let whole = Lease { used, unused, weight, ttl, ..plain };
    let line = "lease k app-1 100 - ttl=5s weight=10 unused=3 used=7\r\n";
    assert_eq!(native(line), (Native::Lease(whole), false));
}

#[test]
fn incrx_has_bounds_and_a_ttl() {
    let plain = IncrX {
        delta: 1,
        ttl: Ttl::Exptime(Exptime(60)),
        ttl_mode: TtlMode::Set,
        init: None,
        max: None,
        min: None,
        clamp: false,
        signed: false,
        cas: CasCondition::None,
        id: None,
    };
    assert_eq!(native("incrx hits 1 60\r\n"), (Native::IncrX(plain), false));
    let whole = IncrX {
        delta: -9_007_199_254_740_991,
        ttl: Ttl::Nanos(250 * MILLISECOND),
        ttl_mode: TtlMode::Touch,
        init: Some(-10),
        max: Some(5),
        min: Some(-5),
        clamp: true,
        signed: true,
        cas: CasCondition::Compare(0),
        id: Some(b"x"),
    };
    let line = "incrx k -9007199254740991 250ms init=-10 max=5 min=-5 clamp ttl=touch signed \
                cas=0 id=x noreply\r\n";
    assert_eq!(native(line), (Native::IncrX(whole), true));
    let keep = IncrX { ttl: Ttl::Exptime(Exptime(-1)), ttl_mode: TtlMode::Keep, ..plain };
    assert_eq!(native("incrx k 1 -1 ttl=keep\r\n"), (Native::IncrX(keep), false));
    assert_eq!(native("incrx k 1 60 ttl=set\r\n"), (Native::IncrX(plain), false));
}

#[test]
fn slide_has_a_window() {
    let slide = Slide { units: 0, window: 60 * SECOND, slices: 1 };
    assert_eq!(native("slide k 0 60s\r\n"), (Native::Slide(slide), false));
    let slide = Slide { units: 3, window: 60 * SECOND, slices: 120 };
    assert_eq!(native("slide k 3 m slices=120\r\n"), (Native::Slide(slide), false));
}

#[test]
fn a_bad_line_gets_its_error() {
    let missing = |verb, line| {
        format!("CLIENT_ERROR {verb}: missing argument, the line is {verb} <key> {line}")
    };
    for (verb, line, count) in [
        ("take", "<cost> <policy>|=<limit>|-", 3),
        ("refund", "<n>", 2),
        ("settle", "<lease> <actual>", 3),
        ("renew", "<lease> <duration>", 3),
        ("lease", "<client> <want> <policy>|=<limit>|-", 4),
        ("incrx", "<delta> <ttl>", 3),
        ("slide", "<n> <window>", 3),
    ] {
        for given in 0..count {
            let arguments = " 1".repeat(given);
            refused(&format!("{verb}{arguments}"), &missing(verb, line));
        }
        let key = format!("{verb} {}", "k".repeat(251));
        refused(&key, &format!("CLIENT_ERROR {verb}: key must be 1 to 250 bytes"));
    }
    for (line, says) in [
        ("take k x -", "take: cost must be a number from 0 to 9007199254740991"),
        ("take k -1 -", "take: cost must be a number from 0 to 9007199254740991"),
        ("take k 9007199254740992 -", "take: cost must be a number from 0 to 9007199254740991"),
        ("take k 1 =", "take: a limit is named as in =login"),
        ("take k 1 - wait=1", "take: wait must be 0 or a duration such as 500ms, at most 366d"),
        ("take k 1 - hold=0s", "take: hold must be a duration such as 30s, at most 366d"),
        ("take k 1 - cas=", "take: cas must be an unsigned 64-bit number"),
        ("take k 1 - cas=-1", "take: cas must be an unsigned 64-bit number"),
        ("take k 1 - id=", "take: id must be 1 to 64 bytes"),
        ("refund k -1", "refund: n must be a number from 0 to 9007199254740991"),
        ("refund k 1 2", "refund: too many arguments, the line is refund <key> <n>"),
        ("settle k x 0", "settle: lease must be an unsigned 64-bit number"),
        ("settle k 1 x", "settle: actual must be a number from 0 to 9007199254740991"),
        ("settle k 1 0 0", "settle: too many arguments, the line is settle <key> <lease> <actual>"),
        ("renew k 1 0s", "renew: the third argument must be a duration such as 30s"),
        ("renew k 1 1s x", "renew: too many arguments, the line is renew <key> <lease> <duration>"),
        ("lease k c x -", "lease: want must be a number from 0 to 9007199254740991"),
        ("lease k c 1 - used=x", "lease: used must be 0 to 9007199254740991"),
        ("lease k c 1 - unused=", "lease: unused must be 0 to 9007199254740991"),
        ("lease k c 1 - weight=0", "lease: weight must be a number from 1 to 4294967295"),
        ("lease k c 1 - ttl=5", "lease: ttl must be a duration such as 30s, at most 366d"),
        (
            "incrx k 9007199254740992 0",
            "incrx: delta must be a number from -9007199254740991 to 9007199254740991",
        ),
        ("incrx k 1 1mo", "incrx: ttl must be seconds or a duration such as 250ms"),
        ("incrx k 1 0 ttl=1", "incrx: ttl= must be set, touch or keep"),
        (
            "incrx k 1 0 max=9007199254740992",
            "incrx: init, max and min must be numbers from -9007199254740991 to 9007199254740991",
        ),
        ("incrx k 1 0 min=-1", "incrx: init, max and min below 0 need signed"),
        ("incrx k 1 0 min=2 max=1", "incrx: max is below min"),
        ("slide k 1 60", "slide: window must be a duration such as 60s, at most 366d"),
        ("slide k 1 60s slices=0", "slide: slices must be a number from 1 to 120"),
        ("slide k 1 60s slices=121", "slide: slices must be a number from 1 to 120"),
    ] {
        refused(line, &format!("CLIENT_ERROR {says}"));
    }
    let long = "x".repeat(65);
    refused(&format!("take k 1 - id={long}"), "CLIENT_ERROR take: id must be 1 to 64 bytes");
    let long = "c".repeat(251);
    let says = "CLIENT_ERROR lease: client must be 1 to 250 bytes";
    refused(&format!("lease k {long} 1 -"), says);
}

#[test]
fn an_option_that_is_none_or_comes_twice_is_refused() {
    for (verb, start, options) in [
        ("take", "take k 1 -", TAKE.options),
        ("lease", "lease k c 1 -", LEASE.options),
        ("incrx", "incrx k 1 60", INCRX.options),
        ("slide", "slide k 1 60s", SLIDE.options),
    ] {
        let says = format!("CLIENT_ERROR {verb}: {options}");
        for option in ["x", "=", "=1", "PEEK", "peek=", "noreply x", "wait", "slices", "ttl"] {
            refused(&format!("{start} {option}"), &says);
        }
    }
    for (verb, start, given, options) in [
        ("take", "take k 1 -", "peek part cas id=1 wait=1s hold=1s", TAKE.options),
        ("lease", "lease k c 1 -", "used=1 unused=1 weight=1 ttl=1s", LEASE.options),
        ("incrx", "incrx k 1 0", "init=1 max=1 min=1 clamp signed cas id=1 ttl=set", INCRX.options),
        ("slide", "slide k 1 60s", "slices=2", SLIDE.options),
    ] {
        for option in given.split(' ') {
            let says = format!("CLIENT_ERROR {verb}: {options}");
            refused(&format!("{start} {option} {option}"), &says);
        }
    }
}

#[test]
fn a_policy_comes_with_meta_commands_too() {
    let policy = |line| match request(line) {
        Request::Command { form: Form::Meta { policy, .. }, .. } => policy,
        other => panic!("a meta command, not {other:?}"),
    };
    let line = "ma k D2 Psliding:100/60s,slices=6 v\r\n";
    assert_eq!(policy(line), Some(&b"sliding:100/60s,slices=6"[..]));
    assert_eq!(policy("mg k v P=login\r\n"), Some(&b"=login"[..]));
    assert_eq!(policy("mg k v P\r\n"), None);
    assert_eq!(policy("mg k v\r\n"), None);
    assert_eq!(policy("me k\r\n"), None);
}

/// Returns the encoded reply of `outcome`.
fn reply_text(outcome: &Outcome<'_>) -> String {
    let (line, mut out) = ("take k 1 -\r\n", Vec::new());
    let Request::Command { command, form } = request(line) else { panic!("one key") };
    crate::encode(&mut out, &command, &form, outcome);
    let mut silent = Vec::new();
    crate::encode(&mut silent, &command, &Form::Native { quiet: true }, outcome);
    assert!(silent.is_empty(), "noreply silences everything");
    String::from_utf8(out).expect("answers are ASCII")
}

fn verdict(
    word: VerdictWord,
    (limit, remaining): (u64, i64),
    retry_ms: Option<u64>,
    reset_ms: u64,
) -> VerdictLine {
    VerdictLine {
        word,
        limit,
        remaining,
        retry_ms,
        reset_ms,
        cas: None,
        lease: None,
        granted: None,
        at: None,
        shadow: false,
        degraded: false,
        ban: false,
    }
}

#[test]
fn verdicts_are_written_as_designed() {
    use VerdictWord::{Allow, Deny, Exists, Part, Wait};
    let allow = verdict(Allow, (200, 199), Some(0), 600);
    let with_cas = |line, cas| VerdictLine { cas: Some(cas), ..line };
    for (line, text) in [
        (allow, "ALLOW 200 199 0 600"),
        (verdict(Deny, (200, 199), None, 600), "DENY 200 199 -1 600"),
        (
            VerdictLine { granted: Some(199), ..verdict(Part, (200, 0), Some(30_600), 120_000) },
            "PART 200 0 30600 120000 granted=199",
        ),
        (verdict(Allow, (16, 15), Some(0), 2000), "ALLOW 16 15 0 2000"),
        (verdict(Deny, (4, -8), Some(2000), 3000), "DENY 4 -8 2000 3000"),
        (verdict(Wait, (60, 57), Some(2000), 3000), "WAIT 60 57 2000 3000"),
        (with_cas(verdict(Allow, (100, 100), Some(0), 0), 7), "ALLOW 100 100 0 0 cas=7"),
        (with_cas(verdict(Exists, (100, 97), Some(0), 1800), 8), "EXISTS 100 97 0 1800 cas=8"),
        (VerdictLine { lease: Some(17), ..allow }, "ALLOW 200 199 0 600 lease=17"),
        (
            VerdictLine { at: Some(2), ..verdict(Deny, (200, 0), Some(600), 120_000) },
            "DENY 200 0 600 120000 at=2",
        ),
        (
            VerdictLine {
                cas: Some(u64::MAX),
                lease: Some(1),
                granted: Some(2),
                at: Some(0),
                shadow: true,
                degraded: true,
                ban: false,
                ..allow
            },
            "ALLOW 200 199 0 600 cas=18446744073709551615 lease=1 granted=2 at=0 shadow=1 \
             degraded=1",
        ),
    ] {
        assert_eq!(reply_text(&Outcome::Verdict(line)), format!("{text}\r\n"));
        let mut out = Vec::new();
        encode_verdict(&mut out, &line);
        assert_eq!(out, format!("{text}\r\n").as_bytes());
    }
}

#[test]
fn other_replies_are_written_as_designed() {
    let count = CountLine { exists: false, value: 1, applied: 1, ttl_ms: Some(60_000), cas: None };
    let never = CountLine { value: -5, applied: -7, ttl_ms: None, cas: Some(3), ..count };
    let grant = LeaseLine {
        granted: 50,
        ttl_ms: 10_000,
        refresh_ms: 5000,
        remaining: 70,
        lease: 4,
        safe: 6,
    };
    for (outcome, text) in [
        (Outcome::Counted(count), "1 1 60000"),
        (Outcome::Counted(CountLine { value: 2, applied: 0, ..count }), "2 0 60000"),
        (Outcome::Counted(never), "-5 -7 -1 cas=3"),
        (Outcome::Counted(CountLine { exists: true, ..never }), "EXISTS -5 -7 -1 cas=3"),
        (Outcome::Settled { limit: 10, remaining: 9, reset_ms: 60 }, "SETTLED 10 9 0 60"),
        (Outcome::Settled { limit: 10, remaining: -9, reset_ms: 60 }, "SETTLED 10 -9 0 60"),
        (Outcome::Renewed(30_000), "RENEWED 30000"),
        (Outcome::Leased(grant), "LEASE 50 10000 5000 70 lease=4 safe=6"),
        (Outcome::Slid(78), "78"),
        (Outcome::NotFound, "NOT_FOUND"),
        (Outcome::NonNumeric, "CLIENT_ERROR cannot increment or decrement non-numeric value"),
        (Outcome::OutOfMemory, "SERVER_ERROR out of memory storing object"),
    ] {
        assert_eq!(reply_text(&outcome), format!("{text}\r\n"));
    }
}
