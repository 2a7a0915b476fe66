//! The only file that reads a clock.
//!
//! Here: the monotonic clock every deadline counts on, and Unix time beside it. Not here: what is
//! done with a time (`engine`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Nanos, Now};

/// The origin lies this far before the start, so that no instant of the process is 0.
const ORIGIN_BEFORE_START_MS: u64 = 1000;

/// Unix time is corrected when it is off by more than this: two readings of the system's clocks differ by
/// chance alone, and a window of the calendar must not be left and entered again.
const CORRECTION_MIN_NS: u64 = 5_000_000;
/// One part in so many of the time that passes is how fast the calendar of a cluster is corrected.
const CALENDAR_SLEW: u64 = 100;
/// Readings that lie further apart say nothing: the process did not run in between.
const READINGS_GAP_MAX_NS: u64 = 1_000_000;

/// The process's clock.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// What time it is instead, in a simulated world.
    #[cfg(feature = "simulation")]
    simulated: Option<std::sync::Arc<crate::net::world::HostClock>>,
    /// Unix nanoseconds at the monotonic origin: renewed by [`Clock::follow_unix_time`].
    unix_at_origin_ns: AtomicU64,
    /// The same as [`Clock::calendar_ns`] has it, and when that was corrected last.
    calendar_at_origin_ns: AtomicU64,
    corrected_ns: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        let clock = Self {
            start: Instant::now(),
            #[cfg(feature = "simulation")]
            simulated: crate::net::world::clock(),
            unix_at_origin_ns: AtomicU64::new(0),
            calendar_at_origin_ns: AtomicU64::new(0),
            corrected_ns: AtomicU64::new(0),
        };
        clock.follow_unix_time();
        let unix_ns = clock.unix_at_origin_ns.load(Ordering::Relaxed);
        clock.calendar_at_origin_ns.store(unix_ns, Ordering::Relaxed);
        clock
    }

    /// The time; read once per batch of requests.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono = self.mono();
        Now { mono, unix_ms: self.unix_ns(mono) / 1_000_000 }
    }

    /// Nanoseconds since 1970 at a monotonic instant.
    #[must_use]
    pub fn unix_ns(&self, mono: Nanos) -> u64 {
        self.unix_at_origin_ns.load(Ordering::Relaxed).saturating_add(mono.0)
    }

    /// Likewise, where a clock that is set anew is followed by a hundredth of the time that passes: in a
    /// cluster no step of a wall clock opens windows of the calendar or ends dates.
    #[must_use]
    pub fn calendar_ns(&self, mono: Nanos) -> u64 {
        self.calendar_at_origin_ns.load(Ordering::Relaxed).saturating_add(mono.0)
    }

    /// Takes over what the system's clock says, so that a corrected clock is noticed.
    pub fn follow_unix_time(&self) {
        let first_ns = self.mono().0;
        let unix_ns = self.unix().as_nanos() as u64;
        let apart_ns = self.mono().0 - first_ns;
        let origin_ns = unix_ns.saturating_sub(first_ns + apart_ns / 2);
        let before_ns = self.unix_at_origin_ns.load(Ordering::Relaxed);
        let is_sure = apart_ns <= READINGS_GAP_MAX_NS || before_ns == 0;
        if is_sure && origin_ns.abs_diff(before_ns) > CORRECTION_MIN_NS {
            self.unix_at_origin_ns.store(origin_ns, Ordering::Relaxed);
        }
        self.correct_calendar();
    }

    fn correct_calendar(&self) {
        let now_ns = self.mono().0;
        let passed_ns = now_ns - self.corrected_ns.swap(now_ns, Ordering::Relaxed).min(now_ns);
        let right_ns = self.unix_at_origin_ns.load(Ordering::Relaxed);
        let calendar_ns = self.calendar_at_origin_ns.load(Ordering::Relaxed);
        let step_ns = (passed_ns / CALENDAR_SLEW).min(calendar_ns.abs_diff(right_ns));
        let corrected_ns = if right_ns > calendar_ns {
            calendar_ns.saturating_add(step_ns)
        } else {
            calendar_ns - step_ns
        };
        self.calendar_at_origin_ns.store(corrected_ns, Ordering::Relaxed);
    }

    fn mono(&self) -> Nanos {
        Nanos(self.elapsed().as_nanos() as u64 + ORIGIN_BEFORE_START_MS * 1_000_000)
    }

    /// Whole seconds since the start.
    #[must_use]
    pub fn uptime_seconds(&self) -> u64 {
        self.elapsed().as_secs()
    }

    fn elapsed(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if let Some(clock) = &self.simulated {
            return clock.elapsed();
        }
        self.start.elapsed()
    }

    #[cfg_attr(
        not(feature = "simulation"),
        expect(clippy::unused_self, reason = "only a simulated clock has it")
    )]
    fn unix(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if let Some(clock) = &self.simulated {
            return clock.unix();
        }
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
