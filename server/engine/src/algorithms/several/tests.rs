//! Several policies against a slow twin: each policy with a state of its own, every charge tried on
//! copies first. The twins of the single policies are beside their algorithms.

use proptest::prelude::*;

use super::*;

/// Policies that a list may have. None has a debt or a wait of its own, which a part ignores.
const POLICIES: [&str; 10] = [
    "fixed:3/1s",
    "fixed:9/1m,align=calendar,tz=Asia/Shanghai",
    "fixed:20/1h,align=calendar,phase=auto",
    "sliding:5/2s",
    "sliding:12/10s,slices=4",
    "log:6/3s",
    "bucket:4/1s,capacity=6",
    "bucket:7/3s,init=2",
    "gcra:5/1s,burst=3",
    "leaky:6/2s",
];

/// Each policy with its own state.
#[derive(Clone)]
struct SeveralTwin(Vec<(Policy, Vec<u8>)>);

impl SeveralTwin {
    /// Takes from all or from none; returns the single decisions if all allow.
    fn charge(&mut self, now: Now, attempt: &Attempt) -> Option<Vec<Decision>> {
        let mut trial = self.clone();
        let decisions: Vec<Decision> = trial
            .0
            .iter_mut()
            .map(|(policy, state)| crate::algorithms::take(policy, state, now, attempt))
            .collect();
        if decisions.iter().any(|one| one.verdict == Verdict::Deny) {
            return None;
        }
        *self = trial;
        Some(decisions)
    }

    fn look(&self, now: Now, attempt: &Attempt) -> Vec<Decision> {
        let peek = Attempt { peek: true, part: false, ..*attempt };
        let look = |(policy, state): &(Policy, Vec<u8>)| {
            crate::algorithms::take(policy, &mut state.clone(), now, &peek)
        };
        self.0.iter().map(look).collect()
    }

    /// The longest time until each policy lets the cost pass.
    fn retry(&self, now: Now, attempt: &Attempt) -> Option<u64> {
        let looks = self.look(now, attempt);
        let longest = looks.iter().map(|one| one.retry.unwrap_or(u64::MAX)).max();
        longest.filter(|retry| *retry < u64::MAX)
    }

    /// Lets each bucket that has no state begin to fill, as any attempt does.
    fn begin(&mut self, now: Now, attempt: &Attempt) {
        for (policy, state) in &mut self.0 {
            if state.is_empty() && crate::algorithms::begins_unfilled(policy) && !attempt.peek {
                let nothing = Attempt { cost: 0, ..Attempt::default() };
                crate::algorithms::take(policy, state, now, &nothing);
            }
        }
    }

    /// Counts a refused attempt if those count; returns the time until the cost passes.
    fn count_refused(&mut self, now: Now, attempt: &Attempt) -> Option<u64> {
        if attempt.over && !attempt.peek {
            let whole = Attempt { part: false, ..*attempt };
            for (policy, state) in &mut self.0 {
                crate::algorithms::take(policy, state, now, &whole);
            }
        }
        self.retry(now, attempt)
    }

    /// Takes, and checks a decision against the expected one.
    fn check(&mut self, now: Now, attempt: &Attempt, decided: &SeveralDecision) {
        let before = self.clone();
        let whole = Attempt { part: false, peek: false, ..*attempt };
        let charged = self.charge(now, &whole).map(|decisions| (attempt.cost, decisions));
        let fewer = || (1..attempt.cost).rev().filter(|_| attempt.part);
        let charged = charged.or_else(|| {
            fewer().find_map(|cost| Some((cost, self.charge(now, &Attempt { cost, ..whole })?)))
        });
        let SeveralDecision { decision, at, reset, first, .. } = *decided;
        let Some((granted, _)) = charged else {
            if attempt.over {
                for (policy, state) in &mut self.0 {
                    crate::algorithms::take(policy, state, now, &whole);
                }
            }
            self.begin(now, attempt);
            let shown = if attempt.peek { &before } else { &*self };
            let looks = shown.look(now, attempt);
            assert_eq!((decision.verdict, decision.granted), (Verdict::Deny, 0));
            assert_eq!(decision.retry, shown.retry(now, attempt));
            assert_eq!(decision.retry, looks[at].retry, "that of the policy at its place");
            assert_eq!((decision.used, decision.limit), (looks[at].used, looks[at].limit));
            assert_eq!(first.used, looks[0].used);
            if attempt.peek {
                *self = before;
            }
            return;
        };
        let rest = Attempt { cost: attempt.cost - granted, ..*attempt };
        let retry = if granted < attempt.cost { self.retry(now, &rest) } else { Some(0) };
        let verdict = if granted < attempt.cost { Verdict::Part } else { Verdict::Allow };
        assert_eq!((decision.verdict, decision.granted), (verdict, granted));
        assert_eq!(decision.retry, retry);
        if attempt.peek {
            *self = before;
        }
        let looks = self.look(now, &Attempt { cost: 0, ..*attempt });
        let least = looks.iter().map(|one| one.remaining).min();
        assert_eq!(Some(decision.remaining), least, "that of the tightest policy");
        assert_eq!(at, looks.iter().position(|one| Some(one.remaining) == least).unwrap_or(99));
        assert_eq!((decision.used, reset), (looks[at].used, looks[at].reset));
        assert_eq!((first.used, first.limit), (looks[0].used, looks[0].limit));
        assert_eq!(Some(decision.reset), looks.iter().map(|one| one.reset).max());
    }
}

fn list(texts: &[&str]) -> Policy {
    let policies: Vec<Policy> =
        texts.iter().map(|text| Policy::parse(text.as_bytes()).expect(text)).collect();
    Policy::several(&policies).expect("policies that go together")
}

fn decide(policy: &Policy, state: &mut Vec<u8>, now: Now, attempt: &Attempt) -> SeveralDecision {
    let protocol::Algorithm::Several(list) = policy.algorithm else { panic!("a list") };
    let mut scratch = SeveralScratch::default();
    let decided = take_several(list, state, now, attempt, &mut scratch);
    assert!(is_state_of_several(list, state));
    decided
}

proptest! {
    #[test]
    fn decision_is_that_of_the_twin(
        picked in prop::sample::subsequence((0..POLICIES.len()).collect::<Vec<_>>(), 2..=8),
        other in prop::sample::subsequence((0..POLICIES.len()).collect::<Vec<_>>(), 2..=8),
        over: bool,
        steps in prop::collection::vec(
            (0_u64..3000, 0_u64..9, 0_u8..12, any::<[bool; 2]>()), 1..60,
        ),
    ) {
        let texts: Vec<&str> = picked.iter().map(|at| POLICIES[*at]).collect();
        let policy = list(&texts);
        let mut twin = SeveralTwin(policy.each().map(|one| (one, Vec::new())).collect());
        let mut state = Vec::new();
        let mut ms = 1_700_000_000_000;
        for (gap, cost, act, [part, peek]) in steps {
            ms += if act == 11 { gap * 1000 } else { gap };
            let now = Now::at_ms(ms);
            match act {
                0 => {
                    crate::algorithms::refund(&policy, &mut state, now, cost);
                    for (policy, state) in &mut twin.0 {
                        crate::algorithms::refund(policy, state, now, cost);
                    }
                }
                1 => {
                    crate::algorithms::set_used(&policy, &mut state, now, cost);
                    for (policy, state) in &mut twin.0 {
                        crate::algorithms::set_used(policy, state, now, cost);
                    }
                }
                2 => {
                    // To another list and back: what both lists have keeps its state.
                    let next = list(&other.iter().map(|at| POLICIES[*at]).collect::<Vec<_>>());
                    let mut moved = state.clone();
                    adopt(&policy, &next, &mut moved, now);
                    for (at, one) in next.each().enumerate() {
                        let of_twin = twin.0.iter().find(|(policy, _)| *policy == one);
                        if let (Some((_, own)), false) = (of_twin, moved.is_empty()) {
                            let mut part = Vec::new();
                            Places::of(&moved, next.each().len()).copy(&moved, at, &mut part);
                            prop_assert_eq!(&part, own);
                        }
                    }
                }
                _ => {
                    let attempt = Attempt { cost, part, peek, over, hash: 77, ..Attempt::default() };
                    let before = state.clone();
                    let decided = decide(&policy, &mut state, now, &attempt);
                    prop_assert!(!peek || state == before);
                    twin.check(now, &attempt, &decided);
                }
            }
            let places = Places::of(&state, twin.0.len());
            for (at, (policy, own)) in twin.0.iter().enumerate() {
                let mut part = Vec::new();
                places.copy(&state, at, &mut part);
                let look = |state: &mut Vec<u8>| {
                    let attempt = Attempt { peek: true, hash: 77, ..Attempt::default() };
                    crate::algorithms::take(policy, state, now, &attempt)
                };
                prop_assert_eq!(look(&mut part), look(&mut own.clone()));
            }
        }
    }

    #[test]
    fn any_bytes_are_a_state_or_count_as_none(bytes: Vec<u8>, cost in 0_u64..5) {
        let policy = list(&POLICIES[..4]);
        let protocol::Algorithm::Several(of) = policy.algorithm else { panic!("a list") };
        let mut state = bytes.clone();
        let attempt = Attempt { cost, ..Attempt::default() };
        take_several(of, &mut state, Now::at_ms(9), &attempt, &mut SeveralScratch::default());
        prop_assert!(state == bytes || is_state_of_several(of, &state));
    }
}

#[test]
fn refusal_by_any_policy_takes_nothing() {
    let policy = list(&["fixed:1/1m", "fixed:3/1h", "sliding:100/30d"]);
    let (mut state, mut passed) = (Vec::new(), 0);
    for minute in 0..90 {
        for second in [0, 30] {
            let now = Now::at_ms((minute * 60 + second) * 1000 + 1_000_000);
            let attempt = Attempt { cost: 1, ..Attempt::default() };
            let decided = decide(&policy, &mut state, now, &attempt);
            passed += u64::from(decided.decision.verdict == Verdict::Allow);
            let at = match (minute, second) {
                (0..2 | 60..62, 30) => 0,
                (2 | 62, 30) | (3..60 | 63.., _) => 1,
                _ => continue,
            };
            assert_eq!((decided.at, decided.decision.verdict), (at, Verdict::Deny), "{minute}");
        }
    }
    assert_eq!(passed, 6);
    let now = Now::at_ms(91 * 60_000 + 1_000_000);
    let look = Attempt { peek: true, ..Attempt::default() };
    let last = |at: usize| list(&["sliding:100/30d", "fixed:1/1m"]).each().nth(at);
    let mut moved = state.clone();
    adopt(&policy, &last(0).expect("a policy"), &mut moved, now);
    assert_eq!(
        crate::algorithms::take(&last(0).expect("a policy"), &mut moved, now, &look).used,
        6
    );
    // And back: the window of months keeps its count, the others begin anew.
    let whole = list(&["fixed:1/1m", "sliding:100/30d"]);
    adopt(&last(0).expect("a policy"), &whole, &mut moved, now);
    let decided = decide(&whole, &mut moved, now, &look);
    assert_eq!((decided.first.used, decided.at), (0, 0));
    assert_eq!(decide(&whole, &mut moved, now, &Attempt { cost: 1, ..look }).first.limit, 1);
}

#[test]
fn state_moves_with_the_clock() {
    let policy = list(&["fixed:5/1m", "bucket:5/1m", "log:5/1m"]);
    let (mut state, now) = (Vec::new(), Now::at_ms(50_000));
    decide(&policy, &mut state, now, &Attempt { cost: 4, ..Attempt::default() });
    let look = Attempt { cost: 2, peek: true, ..Attempt::default() };
    let before = decide(&policy, &mut state, now, &look);
    crate::algorithms::shift(&policy, &mut state, 7_000_000_000);
    let later = Now { mono: crate::Nanos(now.mono.0 + 7_000_000_000), ..now };
    assert_eq!(decide(&policy, &mut state, later, &look), before);
}

#[test]
fn broken_states_are_told_apart() {
    let policy = list(&["fixed:5/1m", "log:5/1m"]);
    let protocol::Algorithm::Several(of) = policy.algorithm else { panic!("a list") };
    let mut state = Vec::new();
    for _ in 0..3 {
        decide(&policy, &mut state, Now::at_ms(5), &Attempt { cost: 1, ..Attempt::default() });
    }
    assert!(is_state_of_several(of, &state) && is_state_of_several(of, b""));
    for cut in 1..state.len() {
        assert!(!is_state_of_several(of, &state[..cut]), "{cut}");
    }
    state.push(0);
    assert!(!is_state_of_several(of, &state), "a byte too many");
    assert!(!is_state_of_several(of, &[0xFF; 40]), "a length without end");
}

/// A ban as lists of instants.
struct BanTwin {
    ban: Ban,
    refusals: Vec<u64>,
    bans: u8,
    end: u64,
    from: u64,
}

impl BanTwin {
    fn is_banned(&self, now: u64) -> bool {
        now < self.end
    }

    /// Counts a refusal of a key without a ban; true: it begins one.
    fn refuse(&mut self, now: u64) -> bool {
        if now >= self.from.saturating_add(self.ban.longest) {
            self.bans = 0;
        }
        self.refusals.retain(|at| now - at < self.ban.within);
        self.refusals.push(now);
        if self.refusals.len() as u64 >= self.ban.refusals {
            self.refusals.clear();
            self.end = now + self.ban.length(self.bans);
            self.from = self.end;
            self.bans += 1;
            return true;
        }
        if self.bans > 0 {
            self.from = self.from.max(now);
        }
        false
    }
}

proptest! {
    #[test]
    fn ban_is_that_of_the_twin(
        refusals in 1_u64..5,
        times in (1_u64..40, 1_u64..60, 0_u64..200),
        count in 1_usize..3,
        over: bool,
        steps in prop::collection::vec((0_u64..40, 0_u64..4, 0_u8..40, any::<[bool; 2]>()), 1..120),
    ) {
        let second = 1_000_000_000;
        let (within, first, more) = times;
        let ban = Ban {
            refusals,
            within: within * second,
            first: first * second,
            longest: (first + more) * second,
        };
        let plain = list(&["fixed:3/10s", "bucket:4/5s,capacity=6"][..count]);
        let policy = plain.with_ban(Some(ban)).expect("they go together");
        let mut twin = SeveralTwin(policy.each().map(|one| (one, Vec::new())).collect());
        let mut of_ban = BanTwin { ban, refusals: Vec::new(), bans: 0, end: 0, from: 0 };
        let (mut state, mut ms) = (Vec::new(), 1_700_000_000_000);
        for (gap, cost, act, [part, peek]) in steps {
            ms += if act == 0 { gap * 20_000 } else { gap * 250 };
            let now = Now::at_ms(ms);
            let attempt = Attempt { cost, part, peek, over, hash: 77, ..Attempt::default() };
            let was_banned = of_ban.is_banned(now.mono.0);
            if was_banned {
                let decided = decide(&policy, &mut state, now, &attempt);
                let own = twin.count_refused(now, &attempt);
                let left = of_ban.end - now.mono.0;
                prop_assert_eq!((decided.decision.verdict, decided.banned), (Verdict::Deny, true));
                prop_assert_eq!(decided.decision.granted, 0);
                prop_assert_eq!(decided.decision.retry, own.map(|own| own.max(left)));
                continue;
            }
            let mut decided = decide(&policy, &mut state, now, &attempt);
            let begins = decided.decision.verdict == Verdict::Deny && !peek && cost > 0
                && of_ban.refuse(now.mono.0);
            prop_assert_eq!(decided.banned, begins);
            if begins {
                // The end of the ban, or later if the policies refuse for longer.
                let own = twin.clone().count_refused(now, &attempt);
                let left = of_ban.end - now.mono.0;
                prop_assert_eq!(decided.decision.retry, own.map(|own| own.max(left)));
                decided.decision.retry = own;
            }
            if decided.decision.verdict == Verdict::Deny {
                twin.check(now, &attempt, &decided);
            } else {
                // The state of the ban may last longer than those of the policies.
                let of_policies = decided.decision;
                let look = |(policy, state): &(Policy, Vec<u8>)| {
                    let peek = Attempt { peek: true, hash: 77, ..Attempt::default() };
                    crate::algorithms::take(policy, &mut state.clone(), now, &peek).reset
                };
                let mut trial = twin.clone();
                let granted = Attempt { cost: of_policies.granted, part: false, peek: false, ..attempt };
                if !peek {
                    trial.charge(now, &granted);
                }
                let longest = trial.0.iter().map(look).max().unwrap_or(0);
                prop_assert!(of_policies.reset >= longest);
                decided.decision.reset = longest;
                twin.check(now, &attempt, &decided);
            }
        }
    }
}

#[test]
fn ban_doubles_and_is_forgotten() {
    let ban = Ban::new(2, "10s", "1m", Some("3m")).expect("a ban");
    let policy = list(&["fixed:1/1h"]).with_ban(Some(ban)).expect("they go together");
    let take = Attempt { cost: 1, ..Attempt::default() };
    let (mut state, mut second) = (Vec::new(), 1_000);
    let mut step = |state: &mut Vec<u8>, gap: u64| {
        second += gap;
        let decided = decide(&policy, state, Now::at_ms(second * 1000), &take);
        (
            decided.decision.verdict,
            decided.banned,
            decided.decision.retry.map(|ns| ns / 1_000_000_000),
        )
    };
    assert_eq!(step(&mut state, 0), (Verdict::Allow, false, Some(0)));
    let plain = state.len();
    assert!(plain < 16, "a key that was not refused has no state of a ban: {plain}");
    assert_eq!(step(&mut state, 0), (Verdict::Deny, false, Some(3600)));
    // The window refuses for longer than the ban.
    assert_eq!(step(&mut state, 9), (Verdict::Deny, true, Some(3591)));
    assert_eq!(step(&mut state, 59), (Verdict::Deny, true, Some(3532)));
    assert_eq!(step(&mut state, 1), (Verdict::Deny, false, Some(3531)));
    assert_eq!(step(&mut state, 3531), (Verdict::Allow, false, Some(0)));
    assert_eq!(step(&mut state, 0), (Verdict::Deny, false, Some(3600)));
    assert_eq!(step(&mut state, 0), (Verdict::Deny, true, Some(3600)));
    // The second ban within the longest one's time is twice as long.
    assert_eq!(step(&mut state, 60), (Verdict::Deny, false, Some(3540)));
    assert_eq!(step(&mut state, 0), (Verdict::Deny, true, Some(3540)));
    assert_eq!(step(&mut state, 119), (Verdict::Deny, true, Some(3421)));
    assert_eq!(step(&mut state, 1), (Verdict::Deny, false, Some(3420)));
    let reset =
        decide(&policy, &mut state, Now::at_ms(second * 1000), &Attempt { peek: true, ..take });
    assert!(!reset.banned);
}
