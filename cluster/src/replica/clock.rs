//! The time of a partition: it travels with the partition, not with the node.
//!
//! It never goes back and runs with the node's monotonic clock. A wall clock that is off by more than
//! [`DEAD_BAND_NS`] is followed, by at most one part in [`SLEW`]. So a wall clock that jumps, or a
//! takeover between hosts whose clocks differ, neither refills a bucket nor keeps it empty, and a wall
//! clock that is coarse or unsteady changes nothing at all.

use super::event::Now;

/// The correction takes one part in this many of the time that passes.
const SLEW: u64 = 1000;
/// The largest difference to the wall clock that is left alone. What is beyond is corrected to the end.
const DEAD_BAND_NS: u64 = 100_000_000;

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
    /// The wall clock was out of the band and is not reached yet.
    is_correcting: bool,
}

impl PartitionClock {
    /// The time of a partition that begins now.
    pub(crate) fn new(now: Now) -> Self {
        Self {
            pt_ns: now.wall_ns,
            mono_ns: now.mono_ns,
            odd_ns: 0,
            used_ns: 0,
            is_correcting: false,
        }
    }

    /// The time now.
    pub(crate) fn read(&mut self, now: Now) -> u64 {
        let elapsed = now.mono_ns.saturating_sub(self.mono_ns);
        self.mono_ns = self.mono_ns.max(now.mono_ns);
        let free = self.pt_ns.saturating_add(elapsed);
        let off = free.abs_diff(now.wall_ns);
        self.is_correcting |= off > DEAD_BAND_NS;
        self.pt_ns =
            if self.is_correcting { self.correct(free, elapsed, now.wall_ns) } else { free };
        self.pt_ns = self.pt_ns.max(self.used_ns);
        self.pt_ns
    }

    /// The time `free` brought nearer to the wall clock, by what `elapsed` allows.
    fn correct(&mut self, free: u64, elapsed: u64, wall_ns: u64) -> u64 {
        let off = free.abs_diff(wall_ns);
        let budget = self.odd_ns.saturating_add(elapsed);
        self.odd_ns = budget % SLEW;
        let step = (budget / SLEW).min(off).min(elapsed);
        if step == off {
            self.is_correcting = false;
            self.odd_ns = 0;
        }
        if wall_ns >= free { free.saturating_add(step) } else { free - step }
    }

    /// The latest time that this copy is sure of, without what has passed since.
    pub(crate) fn last(&self) -> u64 {
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
        // The new owner's wall clock is 92 s behind: time runs on, a thousandth slower.
        assert_eq!(clock.read(at(2 * SECOND, 9 * SECOND)), 101 * SECOND - SECOND / SLEW);
    }

    #[test]
    fn a_wall_clock_that_jumps_is_followed_slowly() {
        let mut clock = PartitionClock::new(at(0, 100 * SECOND));
        assert_eq!(clock.read(at(SECOND, 500 * SECOND)), 101 * SECOND + SECOND / SLEW);
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
        assert_eq!(last, 70_000 + 70);
    }

    #[test]
    fn a_coarse_and_jumpy_wall_clock_changes_nothing() {
        // Cut to 1, 4 and 15.6 ms, and up to 80 ms off either way, anew at each reading.
        for grain in [1_000_000, 4_000_000, 15_600_000] {
            let origin = 1_000 * SECOND;
            let mut clock = PartitionClock::new(at(0, origin));
            let mut chance = 1_u64;
            let mut mono = 0;
            for _ in 0..100_000 {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                mono += chance >> 44;
                let off = (chance >> 20) % 160_000_000;
                let wall = (origin + mono + off - 80_000_000) / grain * grain;
                assert_eq!(clock.read(at(mono, wall)), origin + mono);
            }
        }
    }

    #[test]
    fn a_correction_goes_on_to_its_end() {
        let mut clock = PartitionClock::new(at(0, 10 * SECOND));
        let wall = |mono: u64| 10 * SECOND + SECOND / 5 + mono;
        let mut mono = 0;
        // A fifth of a second takes 200 s of correction; the band is no place to stop in.
        while mono < 200 * SECOND {
            mono += SECOND / 4;
            let time = clock.read(at(mono, wall(mono)));
            assert_eq!(time, 10 * SECOND + mono + mono / SLEW);
        }
        assert_eq!(clock.read(at(mono, wall(mono))), wall(mono));
        mono += SECOND;
        assert_eq!(clock.read(at(mono, wall(mono) - SECOND / 20)), wall(mono));
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
