//! Periods whose ends share wake-ups.
//!
//! Here: waits that end at common moments of the process. Not here: the periods, and waits for a
//! deadline.
//!
//! A wake-up of an idle node costs more than most of its periodic work. tokio's timers lie in a
//! wheel: a longer wait takes a wake-up more, unless it ends at a multiple of 64 ms since the
//! runtime's start. So periods end at multiples of a power of two of steps since then.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The distance of the moments at which the shortest periods end, in tokio's slots of 64 ms.
const STEP: Duration = Duration::from_millis(64);

/// The start of the process's runtime.
static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// Lets periods end at common moments. Call it just before the process's runtime is built; in a
/// process that does not call it, as in simulations, periods end for themselves.
pub fn align() {
    let _ = ORIGIN.set(Instant::now());
}

/// Waits for about `period`: at most 32 ms longer, and less if a common moment comes
/// before. Calls in a row end once in each unit, the greatest power of two of steps that is at most
/// `period` and half a step. A period below a step ends for itself.
pub async fn pause(period: Duration) {
    sleep_until(due(period)).await;
}

/// The end of a period that begins now.
fn due(period: Duration) -> Instant {
    let now = Instant::now();
    match ORIGIN.get() {
        Some(&origin) if period >= STEP => origin + end(now - origin, period),
        _ => now + period,
    }
}

/// The end of a period that begins at `now`, both since the origin.
fn end(now: Duration, period: Duration) -> Duration {
    let step_ns = STEP.as_nanos() as u64;
    let (now_ns, period_ns) = (now.as_nanos() as u64, period.as_nanos() as u64);
    let latest_ns = period_ns.saturating_add(step_ns / 2);
    let unit_ns = step_ns << (latest_ns / step_ns).max(1).ilog2();
    let end_ns = now_ns.saturating_add(latest_ns) / unit_ns * unit_ns;
    Duration::from_nanos(end_ns)
}

/// A period that begins anew whenever it ends. The first ends at once.
#[derive(Debug)]
pub struct Ticks {
    period: Duration,
    next: Instant,
}

impl Ticks {
    /// Ticks about once in each `period`; see [`pause`].
    #[must_use]
    pub fn new(period: Duration) -> Self {
        Self { period, next: Instant::now() }
    }

    /// Waits for the end of the present period. Dropping the future loses nothing.
    pub async fn tick(&mut self) {
        sleep_until(self.next).await;
        self.next = due(self.period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn periods_end_at_common_moments() {
        // The first of each repeats with a period of its own.
        for (period, unit) in [(64, 64), (100, 128), (200, 128), (250, 256), (1000, 1024)] {
            let mut at = Duration::ZERO;
            for round in 1..100 {
                at = end(at + Duration::from_micros(round % 7), ms(period));
                assert_eq!(at, ms(unit * round), "{period}");
            }
        }
    }

    #[test]
    fn period_is_never_much_longer_and_always_ends_later() {
        for period in [64, 95, 96, 100, 200, 250, 300, 1000, 5000] {
            for now in (0..70_000).map(|now| Duration::from_micros(now * 97)) {
                let end = end(now, ms(period));
                assert!(end > now && end <= now + ms(period) + STEP / 2, "{period} {now:?}");
                assert_eq!(end.as_millis() % 64, 0);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn simulated_periods_end_for_themselves() {
        let begun = Instant::now();
        let mut ticks = Ticks::new(ms(100));
        ticks.tick().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        ticks.tick().await;
        pause(ms(7)).await;
        assert_eq!(begun.elapsed(), ms(107));
    }
}
