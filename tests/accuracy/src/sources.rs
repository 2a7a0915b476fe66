//! Many keys at once, most of them far below the limit: the kind of traffic behind Cloudflare's
//! published figures.
//!
//! Here: two mixes of sources, and the estimates of a meter on them. Each source is a key of one
//! engine. The error depends on how many sources are near the limit, so one mix has some and the
//! other has none.

use crate::contender::Contender;
use crate::observed::Observed;
use crate::subject::Subject;
use crate::traffic::poisson;
use crate::truth::Trailing;
use kit::rng::Rng;

const HOUR_MS: u64 = 3_600_000;

/// The number of sources of `Zipf`, and the calls a minute of the busiest.
const ZIPF_SOURCES: u32 = 2_000;
const ZIPF_TOP_PER_MINUTE: f64 = 1_000.0;

/// In `Apart`: the quiet sources, the most calls a minute of one, and the floods.
const QUIET_SOURCES: u32 = 1_000;
const QUIET_PER_MINUTE: f64 = 20.0;
const FLOODS: u32 = 10;
const FLOOD_PER_MINUTE: f64 = 1_000.0;
const FLOOD_MS: u64 = 600_000;

/// A mix of sources that call for an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Rates by rank, so that some are near the limit.
    Zipf,
    /// Rates far below the limit, and some floods far above it.
    Apart,
}

/// Both mixes.
pub const MIXES: [Mix; 2] = [Mix::Zipf, Mix::Apart];

/// A call of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// Milliseconds from the origin.
    pub at_ms: u64,
    /// The source's index.
    pub source: u32,
}

impl Mix {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zipf => "some near the limit",
            Self::Apart => "none near the limit",
        }
    }

    /// A description of the mix, with its parameters.
    #[must_use]
    pub fn about(self) -> String {
        match self {
            Self::Zipf => format!(
                "{ZIPF_SOURCES} sources with Poisson arrivals; the n-th busiest makes \
                 {ZIPF_TOP_PER_MINUTE} / n calls a minute; an hour"
            ),
            Self::Apart => format!(
                "{QUIET_SOURCES} sources with Poisson arrivals of up to {QUIET_PER_MINUTE} calls a \
                 minute (evenly spread), and {FLOODS} that make {FLOOD_PER_MINUTE} a minute for ten \
                 minutes; an hour"
            ),
        }
    }

    /// Every call of the hour, in order.
    #[must_use]
    pub fn calls(self, seed: u64) -> Vec<Call> {
        let mut rng = Rng::new(seed);
        let mut calls = Vec::new();
        let mut add = |source, begin_ms, arrivals: Vec<u64>| {
            calls.extend(arrivals.iter().map(|at_ms| Call { at_ms: begin_ms + at_ms, source }));
        };
        match self {
            Self::Zipf => {
                for source in 0..ZIPF_SOURCES {
                    let per_minute = ZIPF_TOP_PER_MINUTE / f64::from(source + 1);
                    add(source, 0, poisson(&mut rng, per_minute, HOUR_MS));
                }
            }
            Self::Apart => {
                for source in 0..QUIET_SOURCES {
                    let share = f64::from(source + 1) / f64::from(QUIET_SOURCES);
                    add(source, 0, poisson(&mut rng, QUIET_PER_MINUTE * share, HOUR_MS));
                }
                for flood in 0..FLOODS {
                    let begin_ms = u64::from(rng.below((HOUR_MS - FLOOD_MS) as u32));
                    let arrivals = poisson(&mut rng, FLOOD_PER_MINUTE, FLOOD_MS);
                    add(QUIET_SOURCES + flood, begin_ms, arrivals);
                }
            }
        }
        calls.sort_unstable();
        calls
    }
}

/// Feeds all calls to the contender's meter; `None` if it has none.
#[must_use]
pub fn observe(contender: &Contender, calls: &[Call]) -> Option<Observed> {
    let mut meter = Subject::new(contender.meter()?);
    let sources = calls.iter().map(|call| call.source + 1).max().unwrap_or(0);
    let mut truths = vec![Trailing::default(); sources as usize];
    let mut observed = Observed::default();
    for call in calls {
        let estimate = meter.take(call.at_ms, &call.source.to_be_bytes()).used;
        observed.note(estimate, truths[call.source as usize].add(call.at_ms));
    }
    Some(observed)
}

#[cfg(test)]
mod tests {
    use super::{MIXES, observe};
    use crate::contender::named;

    #[test]
    fn keys_do_not_see_each_other() {
        for mix in MIXES {
            let mut calls = mix.calls(1);
            assert!(calls.is_sorted());
            calls.truncate(20_000);
            let observed = observe(named("log"), &calls).expect("a log has a meter");
            assert_eq!((observed.calls, observed.error_sum), (20_000, 0.0));
        }
    }
}
