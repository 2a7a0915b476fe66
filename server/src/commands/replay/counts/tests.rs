//! Tests of the statistics: exact shares, the standard error against true shares, the bounds.

use super::*;

/// A generator of random numbers that is the same everywhere.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn tally(hash: u64, requests: u64, denied_now: u64, denied_then: u64) -> KeyTally {
    KeyTally { hash, key: hash as u32, requests, denied_now, denied_then }
}

fn counted(bits: u32, rows: &[KeyTally]) -> TryCounts {
    let mut counts = TryCounts::default();
    counts.add_keys(bits, rows);
    counts.name_keys(rows, |row| format!("key:{}", row.hash));
    counts
}

/// Returns a key with up to a hundred requests, of which a share of its own is denied.
fn any_key(draws: &mut Draws, hash: u64) -> KeyTally {
    let requests = 1 + draws.below(10) * draws.below(10);
    let percent = [0, 0, 10, 50][draws.below(4) as usize];
    let denied = requests * percent / 100;
    tally(hash, requests, denied / 2, denied)
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn true_share(rows: &[KeyTally]) -> f64 {
    let denied: u64 = rows.iter().map(|row| row.denied_then).sum();
    denied as f64 / rows.iter().map(|row| row.requests).sum::<u64>() as f64
}

#[test]
fn shares_are_those_of_the_sums() {
    let rows: Vec<KeyTally> = (0..40).map(|hash| tally(hash, 10, 0, hash % 2 * 5)).collect();
    let counts = counted(6, &rows);
    assert_eq!((counts.keys(), counts.requests(), counts.is_too_few()), (40, 400, false));
    assert!((counts.scale() - 64.0).abs() < 1e-9);
    assert_eq!(counts.share_now(), ShareEstimate { share: 0.0, standard_error: Some(0.0) });
    let then = counts.share_then();
    assert!((then.share - 0.25).abs() < 1e-12);
    // Each y differs by 2.5 from R x: sqrt(63/64 · 40/39 · 40 · 2.5²) / 400.
    let wanted = (63.0_f64 / 64.0 * 40.0 / 39.0 * 250.0).sqrt() / 400.0;
    let error = then.standard_error.expect("there are 40 keys");
    assert!((error - wanted).abs() < 1e-12, "{error} {wanted}");
}

#[test]
fn few_keys_have_no_standard_error() {
    let rows: Vec<KeyTally> = (0..29).map(|hash| tally(hash, 1, 0, 1)).collect();
    let counts = counted(6, &rows);
    assert!(counts.is_too_few());
    assert_eq!(counts.share_then(), ShareEstimate { share: 1.0, standard_error: None });
    let none = TryCounts::default();
    assert!(none.is_too_few());
    assert_eq!(none.share_now(), ShareEstimate { share: 0.0, standard_error: None });
    assert!((none.scale() - 1.0).abs() < 1e-12 && (none.fidelity() - 1.0).abs() < 1e-12);
}

/// Returns the number of populations of a thousand whose true share is within 1.96 standard errors
/// of the estimate, which `sampled` makes of all keys.
fn covered(seed: u64, sampled: impl Fn(&mut Draws, &[KeyTally]) -> TryCounts) -> u32 {
    let mut draws = Draws(seed);
    let mut covered = 0;
    for _ in 0..1000 {
        let all: Vec<KeyTally> = (0..8000).map(|hash| any_key(&mut draws, hash)).collect();
        let then = sampled(&mut draws, &all).share_then();
        let error = then.standard_error.expect("there are enough keys");
        covered += u32::from((then.share - true_share(&all)).abs() <= 1.96 * error);
    }
    covered
}

#[test]
fn standard_error_covers_the_true_share() {
    let covered = covered(7, |draws, all| {
        let some: Vec<KeyTally> =
            all.iter().filter(|_| draws.next().is_multiple_of(64)).copied().collect();
        counted(6, &some)
    });
    assert!((920..=975).contains(&covered), "{covered} of 1000");
}

#[test]
fn standard_error_of_two_samples_covers_the_true_share() {
    let covered = covered(8, |draws, all| {
        let (one, other) = all.split_at(all.len() / 2);
        let mut some = |rows: &[KeyTally], end: u64| -> Vec<KeyTally> {
            rows.iter().filter(|_| draws.below(end) == 0).copied().collect()
        };
        let mut counts = counted(5, &some(one, 32));
        counts.merge(counted(6, &some(other, 64)));
        counts
    });
    assert!((915..=975).contains(&covered), "{covered} of 1000");
}

#[test]
fn counts_of_nodes_add_up() {
    let mut draws = Draws(9);
    let rows: Vec<KeyTally> = (0..500).map(|hash| any_key(&mut draws, hash)).collect();
    let mut whole = counted(6, &rows);
    whole.span_ms = 5;
    let mut sum = TryCounts::default();
    for (part, span_ms) in rows.chunks(100).zip([9, 5, 7, 8, 6]) {
        let mut counts = counted(6, part);
        counts.span_ms = span_ms;
        counts.compare(span_ms > 5);
        sum.merge(counts);
    }
    assert!((sum.fidelity() - 0.8).abs() < 1e-12);
    (whole.compared, whole.repeated) = (5, 4);
    let sort = |keys: &mut Vec<ChangedKey>| {
        keys.sort_by(|one, next| (next.denied, &one.key).cmp(&(one.denied, &next.key)));
    };
    sum.merge(TryCounts::default());
    assert_eq!(sum.strata, whole.strata);
    assert_eq!((sum.span_ms, sum.compared, sum.repeated), (5, 5, 4));
    let denials = |keys: &[ChangedKey]| keys.iter().map(|row| row.denied).collect::<Vec<_>>();
    sort(&mut whole.newly_denied);
    assert_eq!(denials(&sum.newly_denied), denials(&whole.newly_denied));
    assert!(sum.newly_denied.len() <= TRY_KEYS_MAX && sum.newly_allowed.is_empty());
}

#[test]
fn changed_keys_are_those_with_the_most_denials() {
    let rows: Vec<KeyTally> = (0..100)
        .map(|hash| tally(hash, 200, hash % 2 * hash, (1 - hash % 2) * hash))
        .chain([tally(900, 200, 9, 100)])
        .collect();
    let counts = counted(6, &rows);
    let wanted = |first: u64| -> Vec<String> {
        (0..TRY_KEYS_MAX as u64).map(|place| format!("key:{}", first - 2 * place)).collect()
    };
    assert_eq!(counts.newly_denied(), wanted(98));
    assert_eq!(counts.newly_allowed(), wanted(99));
}

#[test]
fn counts_fit_a_frame_at_their_bounds() {
    let mut counts = TryCounts::default();
    for bits in 0..=40 {
        let mut stratum =
            SampleStratum { bits, keys: u64::MAX, requests: u64::MAX, ..SampleStratum::default() };
        let sums = DenialSums { denied: u64::MAX, squares: u128::MAX, products: u128::MAX };
        (stratum.squares, stratum.now, stratum.then) = (u128::MAX, sums, sums);
        let other = TryCounts { strata: vec![stratum], ..TryCounts::default() };
        counts.merge(other.clone());
        counts.merge(other);
    }
    assert_eq!(counts.strata.len(), 17, "a size that no node has is left out");
    let rows: Vec<KeyTally> = (0..200).map(|hash| tally(hash, 9, hash % 2, 1 - hash % 2)).collect();
    counts.name_keys(&rows, |_| "\u{fffd}".repeat(400));
    let bytes = serde_json::to_vec(&counts).expect("plain data");
    assert!(bytes.len() < 64 << 10, "{}", bytes.len());
    let read: TryCounts = serde_json::from_slice(&bytes).expect("what was written");
    assert_eq!(read, counts);
    let share = counts.share_then();
    assert!(share.share.is_finite() && share.standard_error.is_some_and(f64::is_finite));
}
