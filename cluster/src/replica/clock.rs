//! The time of a partition: it travels with the partition, not with the node.
//!
//! It never goes back, runs with the node's monotonic clock, and slews to the node's wall clock by at
//! most a hundredth. So a wall clock that jumps, or a takeover between hosts whose clocks differ,
//! neither refills a bucket nor keeps it empty.

use super::event::Now;

/// One part in so many is how fast the time may be corrected.
const SLEW: u64 = 100;

/// The time of a partition as one copy knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartitionClock {
    /// The time at `mono_ns`, nanoseconds since 1970.
    pt_ns: u64,
    mono_ns: u64,
    /// Elapsed nanoseconds that were too few to correct by one.
    odd_ns: u64,
    /// The latest time that a record bears.
    used_ns: u64,
}

impl PartitionClock {
    /// The time of a partition that begins now.
    pub(crate) fn new(now: Now) -> Self {
        Self { pt_ns: now.wall_ns, mono_ns: now.mono_ns, odd_ns: 0, used_ns: 0 }
    }

    /// The time now.
    pub(crate) fn read(&mut self, now: Now) -> u64 {
        let elapsed = now.mono_ns.saturating_sub(self.mono_ns);
        self.mono_ns = self.mono_ns.max(now.mono_ns);
        let free = self.pt_ns.saturating_add(elapsed);
        let budget = self.odd_ns.saturating_add(elapsed);
        self.odd_ns = budget % SLEW;
        let step = (budget / SLEW).min(free.abs_diff(now.wall_ns)).min(elapsed);
        let slewed = if now.wall_ns >= free { free.saturating_add(step) } else { free - step };
        self.pt_ns = slewed.max(self.used_ns);
        self.pt_ns
    }

    /// A record bears this time: it will not be earlier again.
    pub(crate) fn used(&mut self, pt_ns: u64) {
        self.used_ns = self.used_ns.max(pt_ns);
    }

    /// The primary's time was `pt_ns` when it said so; how long ago is not known, so from here on the
    /// estimate is late by the time the message took.
    ///
    /// It is taken over even if this copy thought that it was later: what was not used by any record
    /// was nobody's time. Else a partition that goes to and fro would gain what its messages took.
    pub(crate) fn observe(&mut self, now: Now, pt_ns: u64) {
        self.pt_ns = pt_ns.max(self.used_ns);
        self.mono_ns = self.mono_ns.max(now.mono_ns);
        self.odd_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(mono_ns: u64, wall_ns: u64) -> Now {
        Now { mono_ns, wall_ns }
    }

    #[test]
    fn a_takeover_goes_on_from_the_last_known_time() {
        let mut clock = PartitionClock::new(at(0, 7 * SECOND));
        clock.observe(at(SECOND, 8 * SECOND), 100 * SECOND);
        // The new owner's wall clock is 92 s behind: time runs on, a hundredth slower.
        assert_eq!(clock.read(at(2 * SECOND, 9 * SECOND)), 101 * SECOND - SECOND / 100);
    }

    #[test]
    fn a_wall_clock_that_jumps_is_followed_slowly() {
        let mut clock = PartitionClock::new(at(0, 100 * SECOND));
        assert_eq!(clock.read(at(SECOND, 500 * SECOND)), 101 * SECOND + SECOND / 100);
        assert_eq!(clock.read(at(2 * SECOND, 0)), 102 * SECOND);
        assert_eq!(clock.read(at(2 * SECOND, 900 * SECOND)), 102 * SECOND);
    }

    #[test]
    fn many_short_steps_slew_as_much_as_a_long_one() {
        let mut clock = PartitionClock::new(at(0, 0));
        let mut last = 0;
        for step in 1..=10_000 {
            let time = clock.read(at(step * 7, 90 * SECOND));
            assert!(time >= last);
            last = time;
        }
        assert_eq!(last, 70_000 + 700);
    }

    #[test]
    fn what_is_late_does_not_turn_time_back() {
        let mut clock = PartitionClock::new(at(0, 0));
        clock.observe(at(1, 1), 50 * SECOND);
        clock.used(50 * SECOND);
        clock.observe(at(2, 2), 40 * SECOND);
        assert!(clock.read(at(3, 3)) >= 50 * SECOND);
    }
}
