//! A grid of instants at which periodic waits end, so that the tasks of a thread wake together.
//!
//! Here: the instants, and waits for them. Not here: waits that must end at different times on
//! different nodes, such as those before an election.

use std::convert::Infallible;
use std::mem;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

/// The instants of one process: the multiples of each period since the grid began.
///
/// A period should be a multiple of 64 ms. tokio's timer sorts the waits of the next 64 ms whenever
/// its clock reaches such a multiple, so a wait that ends there costs one wake-up and another two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WakeGrid {
    begin: Instant,
}

impl WakeGrid {
    /// Begins a grid now. The timer of a runtime that is built next rounds up to its own
    /// milliseconds, so the multiples of 64 ms are common to both.
    #[must_use]
    pub fn from_now() -> Self {
        Self { begin: Instant::now() }
    }

    /// Returns the first multiple of `period` that is later than `least` from now.
    #[must_use]
    pub fn next(&self, period: Duration, least: Duration) -> Instant {
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let period_ns = ns(period).max(1);
        let passed = ns(self.begin.elapsed() + least) / period_ns;
        self.begin + Duration::from_nanos(period_ns.saturating_mul(passed + 1))
    }

    /// Waits for the next multiple of `period`.
    pub async fn wait(&self, period: Duration) {
        sleep_until(self.next(period, Duration::ZERO)).await;
    }

    /// Ticks at the multiples of `period`. Those that pass unnoticed are left out.
    #[must_use]
    pub fn ticks(&self, period: Duration) -> Interval {
        let mut ticks = interval_at(self.next(period, Duration::ZERO), period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks
    }

    /// Waits, for ever, for the multiple of `period` behind the one that other tasks renew their
    /// waits for. Without this each renewed wait would be the first to end: tokio writes to its
    /// eventfd for each of those, and wakes once more.
    pub async fn lead(&self, period: Duration) -> Infallible {
        let first = self.next(period, Duration::ZERO);
        let (mut this, mut other) = (pin!(sleep_until(first)), pin!(sleep_until(first + period)));
        loop {
            this.as_mut().await;
            // A process that stood still leaves instants out.
            let behind = (other.deadline() + period).max(self.next(period, period));
            this.as_mut().reset(behind);
            mem::swap(&mut this, &mut other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::runtime::Builder;
    use tokio::time::{advance, sleep};

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The write calls of this thread so far.
    fn writes() -> u64 {
        let io = fs::read_to_string("/proc/thread-self/io").expect("Linux counts them");
        let count = io.lines().find_map(|line| line.strip_prefix("syscw: "));
        count.and_then(|count| count.parse().ok()).expect("a count")
    }

    /// The write calls of ten periods in which five tasks renew their waits.
    fn writes_of_ten_periods(is_led: bool) -> u64 {
        let grid = WakeGrid::from_now();
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            if is_led {
                tokio::spawn(async move { grid.lead(ms(64)).await });
            }
            for _ in 0..5 {
                tokio::spawn(async move {
                    loop {
                        grid.wait(ms(64)).await;
                    }
                });
            }
            sleep(ms(200)).await;
            let before = writes();
            sleep(ms(640)).await;
            writes() - before
        })
    }

    #[test]
    fn renewed_waits_write_to_no_eventfd_behind_one_that_leads() {
        // A thread that the machine lets wait for a period writes too, so one of several attempts
        // has to succeed.
        assert!((0..5).any(|_| writes_of_ten_periods(true) <= 5));
        assert!((0..5).any(|_| writes_of_ten_periods(false) >= 20), "what is to be avoided");
    }

    #[tokio::test(start_paused = true)]
    async fn next_is_a_multiple_after_the_least_wait() {
        let grid = WakeGrid::from_now();
        let next = |period, least| grid.next(ms(period), ms(least)) - grid.begin;
        assert_eq!([next(128, 0), next(256, 10), next(64, 64)], [ms(128), ms(256), ms(128)]);
        advance(ms(250)).await;
        assert_eq!([next(128, 0), next(256, 0), next(256, 10)], [ms(256), ms(256), ms(512)]);
        advance(ms(6)).await;
        assert_eq!([next(128, 0), next(256, 0)], [ms(384), ms(512)], "a multiple is passed");
    }

    #[tokio::test(start_paused = true)]
    async fn waits_of_several_periods_end_together() {
        let grid = WakeGrid::from_now();
        advance(ms(5)).await;
        grid.wait(ms(128)).await;
        assert_eq!(grid.begin.elapsed(), ms(128));
        grid.wait(ms(256)).await;
        assert_eq!(grid.begin.elapsed(), ms(256));
        let mut ticks = grid.ticks(ms(128));
        ticks.tick().await;
        assert_eq!(grid.begin.elapsed(), ms(384));
        advance(ms(300)).await;
        ticks.tick().await;
        ticks.tick().await;
        assert_eq!(
            grid.begin.elapsed(),
            ms(768),
            "the tick at 640 ms was late, and is not made up"
        );
    }
}
