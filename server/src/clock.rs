//! The only file that reads a clock.
//!
//! Here: the monotonic clock every deadline counts on, and Unix time beside it. Not here: what is
//! done with a time (`engine`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Nanos, Now};

/// The origin lies this far before the start, so that no instant of the process is 0.
const ORIGIN_BEFORE_START_MS: u64 = 1000;

/// The process's clock.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// What time it is instead, in a simulated world.
    #[cfg(feature = "simulation")]
    simulated: Option<std::sync::Arc<crate::simulation::HostClock>>,
    /// Unix milliseconds at the monotonic origin: renewed by [`Clock::follow_unix_time`].
    unix_at_origin_ms: AtomicU64,
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
            simulated: crate::simulation::clock(),
            unix_at_origin_ms: AtomicU64::new(0),
        };
        clock.follow_unix_time();
        clock
    }

    /// The time; read once per batch of requests.
    #[must_use]
    pub fn now(&self) -> Now {
        let mono = Nanos(self.elapsed().as_nanos() as u64 + ORIGIN_BEFORE_START_MS * 1_000_000);
        let unix_ms = self.unix_at_origin_ms.load(Ordering::Relaxed) + mono.millis();
        Now { mono, unix_ms }
    }

    /// Takes over what the system's clock says, so that a corrected clock is noticed.
    pub fn follow_unix_time(&self) {
        let unix = self.unix();
        let mono_ms = self.elapsed().as_millis() as u64 + ORIGIN_BEFORE_START_MS;
        let origin_ms = (unix.as_millis() as u64).saturating_sub(mono_ms);
        self.unix_at_origin_ms.store(origin_ms, Ordering::Relaxed);
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
