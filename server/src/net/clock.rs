//! The only file that reads a clock.
//!
//! Here: the monotonic clock, which every deadline uses, and Unix time. Not here: the use of a time
//! (`engine`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Nanos, Now};

/// The origin lies this far before the start, so that no instant of the process is 0.
const ORIGIN_BEFORE_START_MS: u64 = 1000;

/// Unix time is corrected only when it is off by more than this. Two readings of the system's
/// clocks always differ a little, and a calendar window must not be left and entered again.
const CORRECTION_MIN_NS: u64 = 5_000_000;
/// The calendar of a cluster is corrected by at most 1/100 of the elapsed time.
const CALENDAR_SLEW: u64 = 100;
/// Readings further apart than this are not used: the process was suspended between them.
const READINGS_GAP_MAX_NS: u64 = 1_000_000;

/// The process's clock.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// The simulated host's clock, used instead of the system's.
    #[cfg(feature = "simulation")]
    simulated: Option<std::sync::Arc<crate::net::world::HostClock>>,
    /// Unix nanoseconds at the monotonic origin; [`Clock::follow_unix_time`] updates it.
    unix_at_origin_ns: AtomicU64,
    /// The same origin for [`Clock::calendar_ns`], and the monotonic time of its last correction.
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

    /// Reads the time; called once per batch of requests.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono = self.mono();
        Now { mono, unix_ms: self.unix_ns(mono) / 1_000_000 }
    }

    /// Returns the nanoseconds since 1970 at a monotonic instant.
    #[must_use]
    pub fn unix_ns(&self, mono: Nanos) -> u64 {
        self.unix_at_origin_ns.load(Ordering::Relaxed).saturating_add(mono.0)
    }

    /// Like [`Clock::unix_ns`], but corrected slowly: by at most 1/100 of the elapsed time. In a
    /// cluster, a step of a wall clock must not open calendar windows or end dates.
    #[must_use]
    pub fn calendar_ns(&self, mono: Nanos) -> u64 {
        self.calendar_at_origin_ns.load(Ordering::Relaxed).saturating_add(mono.0)
    }

    /// Reads the system's clock again, so that a corrected clock takes effect.
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

    /// Returns the whole seconds since the start.
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
