//! The sums of a replay, which nodes of a cluster add, and the statistics over keys.
//!
//! Here: sums for each size of the sample, the share of denied attempts with its standard error,
//! the keys whose verdicts change. Not here: the replay (`replay`).
//!
//! The sample is one of keys, so a key is a cluster of requests and the denied share a ratio of two
//! sums over keys, `R = Σy / Σx`, with `x` requests and `y` denied ones of a key. Its variance is
//! about `(1 − f) n / (n − 1) · Σ(y − R x)² / (Σx)²` for `n` keys, a share `f` of all: W. G.
//! Cochran, Sampling Techniques, 3rd edition, 1977, chapter 6, ratio estimators. Nodes with other
//! sizes of the sample are strata, whose sums are weighted by `1 / f` as in the combined ratio
//! estimate of that chapter.

use serde::{Deserialize, Serialize};

use crate::observe::sample::RECORD_BITS;

/// Most keys in each list of keys whose verdicts change.
pub(crate) const TRY_KEYS_MAX: usize = 20;
/// With fewer keys the shares say little, and have no standard error.
pub(crate) const FEW_KEYS: u64 = 30;
/// Most bytes of a key that is shown.
const SHOWN_BYTES_MAX: usize = 1000;

/// The attempts on the keys that have one hash.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct KeyTally {
    pub(super) hash: u64,
    /// The number of the first of these keys.
    pub(super) key: u32,
    pub(super) requests: u64,
    pub(super) denied_now: u64,
    pub(super) denied_then: u64,
}

impl KeyTally {
    /// Adds an attempt of one of the two runs.
    pub(super) fn add(&mut self, is_trial: bool, denied: u64) {
        if is_trial {
            self.denied_then += denied;
        } else {
            self.requests += 1;
            self.denied_now += denied;
        }
    }
}

/// Sums of denied attempts over keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DenialSums {
    denied: u64,
    /// The sum of squares.
    squares: u128,
    /// The sum of products with the requests of the key.
    products: u128,
}

/// The sums over the keys of one size of the sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct SampleStratum {
    /// One key in `2^bits` is in the sample.
    bits: u32,
    keys: u64,
    requests: u64,
    /// The sum of the squares of a key's requests.
    squares: u128,
    now: DenialSums,
    then: DenialSums,
}

/// A key whose verdicts change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ChangedKey {
    /// Attempts that only one of the limits denies.
    denied: u64,
    /// The key as shown.
    key: String,
}

/// The counts of a trial. Those of several nodes add up by [`TryCounts::merge`]. At most 64 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TryCounts {
    /// The time that the recording covers, in milliseconds; of nodes with traffic the least.
    pub(crate) span_ms: u64,
    /// Whether the limit charges parents.
    pub(crate) has_parents: bool,
    /// Whether the new limit may count keys as one that are counted apart now, so that only some of
    /// them are in the sample.
    #[serde(default)]
    pub(crate) is_coarser: bool,
    strata: Vec<SampleStratum>,
    compared: u64,
    repeated: u64,
    newly_denied: Vec<ChangedKey>,
    newly_allowed: Vec<ChangedKey>,
}

/// An estimate of a share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ShareEstimate {
    /// From 0 to 1.
    pub(crate) share: f64,
    /// The standard error; `None` below [`FEW_KEYS`] keys.
    pub(crate) standard_error: Option<f64>,
}

impl DenialSums {
    fn add(&mut self, denied: u64, requests: u64) {
        self.denied = self.denied.saturating_add(denied);
        let product = |other: u64| u128::from(denied) * u128::from(other);
        self.squares = self.squares.saturating_add(product(denied));
        self.products = self.products.saturating_add(product(requests));
    }

    fn merge(&mut self, other: &Self) {
        self.denied = self.denied.saturating_add(other.denied);
        self.squares = self.squares.saturating_add(other.squares);
        self.products = self.products.saturating_add(other.products);
    }
}

impl SampleStratum {
    fn merge(&mut self, other: &Self) {
        self.keys = self.keys.saturating_add(other.keys);
        self.requests = self.requests.saturating_add(other.requests);
        self.squares = self.squares.saturating_add(other.squares);
        self.now.merge(&other.now);
        self.then.merge(&other.then);
    }
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
impl SampleStratum {
    /// All traffic is about this many times the recorded traffic.
    fn weight(&self) -> f64 {
        f64::from(self.bits).exp2()
    }

    /// Returns the variance of the weighted sum of `y − ratio · x` over the keys.
    fn variance(&self, denials: &DenialSums, ratio: f64) -> f64 {
        let keys = self.keys as f64;
        let sum = denials.denied as f64 - ratio * self.requests as f64;
        let squares = denials.squares as f64 - 2.0 * ratio * denials.products as f64
            + ratio * ratio * self.squares as f64;
        let spread = (squares - sum * sum / keys).max(0.0);
        let weight = self.weight();
        let finite = 1.0 - 1.0 / weight;
        weight * weight * finite * keys / (keys - 1.0).max(1.0) * spread
    }
}

impl TryCounts {
    /// Counts a recorded verdict, and whether the replay repeats it.
    pub(super) fn compare(&mut self, is_repeated: bool) {
        self.compared += 1;
        self.repeated += u64::from(is_repeated);
    }

    /// Adds the keys of a sample of one key in `2^bits`.
    pub(super) fn add_keys(&mut self, bits: u32, rows: &[KeyTally]) {
        let mut stratum = SampleStratum { bits, ..SampleStratum::default() };
        for row in rows {
            stratum.keys += 1;
            stratum.requests += row.requests;
            stratum.squares += u128::from(row.requests) * u128::from(row.requests);
            stratum.now.add(row.denied_now, row.requests);
            stratum.then.add(row.denied_then, row.requests);
        }
        if stratum.keys > 0 {
            self.add_stratum(&stratum);
        }
    }

    fn add_stratum(&mut self, stratum: &SampleStratum) {
        // A node records with one of these sizes; another one is no count of a node.
        if stratum.bits > RECORD_BITS {
            return;
        }
        match self.strata.iter_mut().find(|known| known.bits == stratum.bits) {
            Some(known) => known.merge(stratum),
            None => self.strata.push(*stratum),
        }
    }

    /// Names the keys whose verdicts change, those with the most changes first.
    pub(super) fn name_keys(&mut self, rows: &[KeyTally], shown: impl Fn(&KeyTally) -> String) {
        let named = |denied: fn(&KeyTally) -> u64, others: fn(&KeyTally) -> u64| {
            let changed = rows.iter().filter(|row| denied(row) > 0 && others(row) == 0);
            let mut changed: Vec<&KeyTally> = changed.collect();
            changed.sort_by_key(|row| (std::cmp::Reverse(denied(row)), row.hash));
            changed.truncate(TRY_KEYS_MAX);
            let named = changed.into_iter().map(|row| {
                let mut key = shown(row);
                key.truncate(key.floor_char_boundary(SHOWN_BYTES_MAX));
                ChangedKey { denied: denied(row), key }
            });
            named.collect()
        };
        self.newly_denied = named(|row| row.denied_then, |row| row.denied_now);
        self.newly_allowed = named(|row| row.denied_now, |row| row.denied_then);
    }

    /// Adds the counts of another node.
    pub(crate) fn merge(&mut self, other: Self) {
        if !other.strata.is_empty() {
            let is_first = self.strata.is_empty();
            self.span_ms = if is_first { other.span_ms } else { self.span_ms.min(other.span_ms) };
        }
        self.has_parents |= other.has_parents;
        self.is_coarser |= other.is_coarser;
        other.strata.iter().for_each(|stratum| self.add_stratum(stratum));
        self.compared = self.compared.saturating_add(other.compared);
        self.repeated = self.repeated.saturating_add(other.repeated);
        for (keys, more) in [
            (&mut self.newly_denied, other.newly_denied),
            (&mut self.newly_allowed, other.newly_allowed),
        ] {
            keys.extend(more);
            keys.sort_by(|one, next| (next.denied, &one.key).cmp(&(one.denied, &next.key)));
            keys.truncate(TRY_KEYS_MAX);
        }
    }

    /// Returns the number of keys.
    pub(crate) fn keys(&self) -> u64 {
        self.strata.iter().fold(0, |sum, stratum| sum.saturating_add(stratum.keys))
    }

    /// Returns the number of requests.
    pub(crate) fn requests(&self) -> u64 {
        self.strata.iter().fold(0, |sum, stratum| sum.saturating_add(stratum.requests))
    }

    /// Returns whether there are too few keys for a standard error.
    pub(crate) fn is_too_few(&self) -> bool {
        self.keys() < FEW_KEYS
    }

    /// Returns the keys that only the new limit denies, those with the most denials first.
    pub(crate) fn newly_denied(&self) -> Vec<String> {
        self.newly_denied.iter().map(|row| row.key.clone()).collect()
    }

    /// Returns the keys that only the present limit denies, likewise.
    pub(crate) fn newly_allowed(&self) -> Vec<String> {
        self.newly_allowed.iter().map(|row| row.key.clone()).collect()
    }

    /// Returns the denied share under the limits in force.
    pub(crate) fn share_now(&self) -> ShareEstimate {
        self.share(|stratum| &stratum.now)
    }

    /// Returns the denied share under the trial.
    pub(crate) fn share_then(&self) -> ShareEstimate {
        self.share(|stratum| &stratum.then)
    }
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
impl TryCounts {
    /// Returns the sum of the requests of all traffic, estimated.
    fn requests_in_all(&self) -> f64 {
        self.strata.iter().map(|stratum| stratum.weight() * stratum.requests as f64).sum()
    }

    /// Returns the factor from the recorded traffic to all traffic; 1 without any.
    pub(crate) fn scale(&self) -> f64 {
        match self.requests() {
            0 => 1.0,
            requests => self.requests_in_all() / requests as f64,
        }
    }

    /// Returns the share of recorded verdicts that the replay under the limits in force repeats; 1
    /// without any.
    pub(crate) fn fidelity(&self) -> f64 {
        match self.compared {
            0 => 1.0,
            compared => self.repeated as f64 / compared as f64,
        }
    }

    fn share(&self, of: fn(&SampleStratum) -> &DenialSums) -> ShareEstimate {
        let requests = self.requests_in_all();
        if requests <= 0.0 {
            return ShareEstimate { share: 0.0, standard_error: None };
        }
        let denied: f64 =
            self.strata.iter().map(|stratum| stratum.weight() * of(stratum).denied as f64).sum();
        let share = denied / requests;
        let variance: f64 =
            self.strata.iter().map(|stratum| stratum.variance(of(stratum), share)).sum();
        let standard_error = (!self.is_too_few()).then(|| variance.sqrt() / requests);
        ShareEstimate { share, standard_error }
    }
}

#[cfg(test)]
mod tests;
