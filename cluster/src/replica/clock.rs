//! The time of a partition: it travels with the partition, not with the node.
//!
//! It never goes back and runs with its primary's monotonic clock, from the wall clock of the node
//! that it began on. Nothing corrects it, for whoever waits as long as a limit says must have waited
//! long enough. So neither a wall clock that jumps, is coarse or unsteady, nor a takeover between
//! hosts whose clocks differ refills a bucket or keeps it empty.

use super::event::Now;
use super::options::Options;

/// The time of a partition, in the form that a copy knows it in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PartitionTime {
    /// The copy holds no data yet, and knows no time.
    #[default]
    Unknown,
    /// At a backup: the last time that the primary sent, nanoseconds since 1970.
    Told(u64),
    /// At the primary: the time less the node's monotonic clock, nanoseconds; wraps.
    Ahead(u64),
}

/// The time of a partition as one copy knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartitionClock {
    /// The time at `mono_ns`, nanoseconds since 1970.
    pt_ns: u64,
    mono_ns: u64,
    /// The latest time that a record bears.
    used_ns: u64,
}

impl PartitionClock {
    /// The time of a partition that begins now.
    pub(crate) fn new(now: Now, options: &Options) -> Self {
        let pt_ns = now.wall_ns.clamp(options.begins_min_ns, options.begins_max_ns);
        Self { pt_ns, mono_ns: now.mono_ns, used_ns: 0 }
    }

    /// The time now.
    pub(crate) fn read(&mut self, now: Now) -> u64 {
        let elapsed = now.mono_ns.saturating_sub(self.mono_ns);
        self.mono_ns = self.mono_ns.max(now.mono_ns);
        self.pt_ns = self.pt_ns.saturating_add(elapsed).max(self.used_ns);
        self.pt_ns
    }

    /// The time less the node's monotonic clock, nanoseconds; wraps.
    pub(crate) fn ahead_ns(&self) -> u64 {
        self.pt_ns.wrapping_sub(self.mono_ns)
    }

    /// The latest time that this copy is sure of, without what has passed since.
    pub(crate) fn last(&self) -> u64 {
        self.pt_ns
    }

    /// A record bears this time: it will not be earlier again.
    pub(crate) fn used(&mut self, pt_ns: u64) {
        self.used_ns = self.used_ns.max(pt_ns);
    }

    /// Takes over a reading `pt_ns` that was computed elsewhere from [`ahead_ns`](Self::ahead_ns). A record bears it.
    pub(crate) fn was_read(&mut self, pt_ns: u64) {
        let elapsed = pt_ns.saturating_sub(self.pt_ns);
        self.pt_ns += elapsed;
        self.mono_ns += elapsed;
        self.used(pt_ns);
    }

    /// The primary's time was `pt_ns` when it said so; how long ago is not known, so from here on the
    /// estimate is late by the time the message took.
    ///
    /// It is taken over even if this copy thought that it was later: what was not used by any record
    /// was nobody's time. Else a partition that goes to and fro would gain what its messages took.
    pub(crate) fn observe(&mut self, now: Now, pt_ns: u64) {
        self.pt_ns = pt_ns.max(self.used_ns);
        self.mono_ns = self.mono_ns.max(now.mono_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(mono_ns: u64, wall_ns: u64) -> Now {
        Now { mono_ns, wall_ns }
    }

    fn begun(now: Now) -> PartitionClock {
        PartitionClock::new(now, &Options::default())
    }

    #[test]
    fn a_takeover_goes_on_from_the_last_known_time() {
        let mut clock = begun(at(0, 7 * SECOND));
        clock.observe(at(SECOND, 8 * SECOND), 100 * SECOND);
        assert_eq!(clock.read(at(2 * SECOND, 9 * SECOND)), 101 * SECOND);
    }

    #[test]
    fn no_reading_of_a_wall_clock_changes_the_time() {
        // Cut to 1, 4 and 15.6 ms; unsteady, days off and years off, anew at each reading.
        for (grain, most) in
            [(1_000_000, 160_000_000), (4_000_000, 1 << 47), (15_600_000, 300_000_000 * SECOND)]
        {
            let origin = 1_000_000_000 * SECOND;
            let mut clock = begun(at(0, origin));
            let (mut chance, mut mono) = (1_u64, 0);
            for _ in 0..10_000 {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                mono += chance >> 44;
                let wall = (origin + mono + chance % most - most / 2) / grain * grain;
                assert_eq!(clock.read(at(mono, wall)), origin + mono);
            }
        }
    }

    #[test]
    fn a_time_that_nobody_believes_is_not_begun_with() {
        let options = Options { begins_min_ns: 5, begins_max_ns: 9, ..Options::default() };
        for (wall_ns, begins) in [(0, 5), (7, 7), (u64::MAX, 9)] {
            let mut clock = PartitionClock::new(at(1, wall_ns), &options);
            assert_eq!(clock.read(at(3, wall_ns)), begins + 2);
        }
    }

    #[test]
    fn slow_thread_moves_the_clock_in_no_way() {
        let mut clock = begun(at(100, 7 * SECOND));
        let ahead_ns = clock.ahead_ns();
        assert_eq!(clock.read(at(500, 0)), 7 * SECOND + 400);
        assert_eq!(clock.read(at(200, 0)), 7 * SECOND + 400);
        assert_eq!(clock.ahead_ns(), ahead_ns);
        clock.was_read(7 * SECOND + 900);
        assert_eq!(clock.read(at(700, 0)), 7 * SECOND + 900);
        assert_eq!(clock.ahead_ns(), ahead_ns);
    }

    #[test]
    fn what_is_late_does_not_turn_time_back() {
        let mut clock = begun(at(0, 0));
        clock.observe(at(1, 1), 50 * SECOND);
        clock.used(50 * SECOND);
        clock.observe(at(2, 2), 40 * SECOND);
        assert!(clock.read(at(3, 3)) >= 50 * SECOND);
    }
}
