//! When calls come: seeded arrivals of one key.
//!
//! Here: patterns, as lists of whole milliseconds. Rates change linearly, so the logarithm is the
//! only function of the platform's library that they depend on. Not here: many keys (`sources`),
//! and callers that react to the replies (`adversary`).

use kit::rng::Rng;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

/// Calls a minute of `poisson`.
const POISSON_PER_MINUTE: f64 = 110.0;
/// Calls a second during a burst, the burst's length, and the mean pause.
const BURST_PER_SECOND: f64 = 5.0;
const BURST_MS: f64 = 20_000.0;
const PAUSE_MS: f64 = 40_000.0;
/// Calls a minute at the quietest and the busiest time of a day.
const NIGHT_PER_MINUTE: f64 = 10.0;
const NOON_PER_MINUTE: f64 = 190.0;
const DAY_MS: f64 = 24.0 * HOUR_MS as f64;

/// A pattern of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Independent calls at a steady rate above the limit, for six hours.
    Poisson,
    /// Bursts of one length with exponential pauses between them, for six hours.
    Bursts,
    /// A day, quiet at its ends and busy in its middle.
    Day,
}

/// All patterns, in the order of the tables.
pub const TRAFFICS: [Traffic; 3] = [Traffic::Poisson, Traffic::Bursts, Traffic::Day];

impl Traffic {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poisson => "Poisson",
            Self::Bursts => "bursts",
            Self::Day => "day",
        }
    }

    /// A description of the pattern, with its parameters.
    #[must_use]
    pub fn about(self) -> String {
        match self {
            Self::Poisson => format!("Poisson arrivals, {POISSON_PER_MINUTE} a minute, 6 hours"),
            Self::Bursts => format!(
                "bursts of {} s with Poisson arrivals, {BURST_PER_SECOND} a second; exponential pauses \
                 of {} s on average; 6 hours",
                BURST_MS / 1000.0,
                PAUSE_MS / 1000.0
            ),
            Self::Day => format!(
                "Poisson arrivals whose rate climbs from {NIGHT_PER_MINUTE} a minute to \
                 {NOON_PER_MINUTE} and falls again, in straight lines, over 24 hours"
            ),
        }
    }

    /// The arrivals in milliseconds from the origin, in order.
    #[must_use]
    pub fn arrivals(self, seed: u64) -> Vec<u64> {
        let mut rng = Rng::new(seed);
        match self {
            Self::Poisson => poisson(&mut rng, POISSON_PER_MINUTE, 6 * HOUR_MS),
            Self::Bursts => bursts(&mut rng, 6 * HOUR_MS),
            Self::Day => {
                let mut arrivals = poisson(&mut rng, NOON_PER_MINUTE, 24 * HOUR_MS);
                arrivals.retain(|at_ms| {
                    let noonness = 1.0 - (*at_ms as f64 / DAY_MS * 2.0 - 1.0).abs();
                    let rate = NIGHT_PER_MINUTE + (NOON_PER_MINUTE - NIGHT_PER_MINUTE) * noonness;
                    rng.unit() * NOON_PER_MINUTE < rate
                });
                arrivals
            }
        }
    }
}

/// Independent calls for `for_ms` milliseconds.
pub(super) fn poisson(rng: &mut Rng, per_minute: f64, for_ms: u64) -> Vec<u64> {
    let mut arrivals = Vec::new();
    let mut at_ms = 0.0;
    loop {
        at_ms += rng.gap(MINUTE_MS as f64 / per_minute);
        if at_ms >= for_ms as f64 {
            return arrivals;
        }
        arrivals.push(at_ms as u64);
    }
}

fn bursts(rng: &mut Rng, for_ms: u64) -> Vec<u64> {
    let gap_ms = 1000.0 / BURST_PER_SECOND;
    let mut arrivals = Vec::new();
    let mut start = 0.0;
    while start < for_ms as f64 {
        let end = (start + BURST_MS).min(for_ms as f64);
        let mut at_ms = start + rng.gap(gap_ms);
        while at_ms < end {
            arrivals.push(at_ms as u64);
            at_ms += rng.gap(gap_ms);
        }
        start += BURST_MS + rng.gap(PAUSE_MS);
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::{HOUR_MS, TRAFFICS, Traffic};

    #[test]
    fn a_seed_gives_one_traffic_in_order() {
        for traffic in TRAFFICS {
            let arrivals = traffic.arrivals(7);
            assert_eq!(arrivals, traffic.arrivals(7));
            assert_ne!(arrivals, traffic.arrivals(8));
            assert!(arrivals.is_sorted(), "{traffic:?}");
        }
    }

    #[test]
    fn rates_are_what_they_are_said_to_be() {
        let near = |arrivals: usize, expected: usize| arrivals.abs_diff(expected) < expected / 20;
        assert!(near(Traffic::Poisson.arrivals(1).len(), 110 * 360));
        // Five calls a second for a third of the time.
        assert!(near(Traffic::Bursts.arrivals(1).len(), 5 * 3600 * 6 / 3));
        let day = Traffic::Day.arrivals(1);
        assert!(near(day.len(), 100 * 1440));
        let noon = day.iter().filter(|at_ms| (11 * HOUR_MS..13 * HOUR_MS).contains(*at_ms)).count();
        assert!(near(noon, 120 * 183));
    }
}
