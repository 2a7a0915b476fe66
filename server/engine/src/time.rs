//! Time in the engine: always an argument, never a clock.
//!
//! Here: the two clocks of a command, deadlines, and memcached's rule for exptimes. Not here:
//! reading a clock (`server/src/net/clock.rs`).

use protocol::Exptime;

/// Nanoseconds since an origin before the process began; never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Whole milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// The time of a batch of commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time, for every deadline.
    pub mono: Nanos,
    /// Milliseconds since 1970, only to resolve an absolute exptime.
    pub unix_ms: u64,
}

impl Now {
    /// Returns a time for tests: `mono_ms` after the origin, which is 2023-11-14T22:13:20Z.
    #[must_use]
    pub fn at_ms(mono_ms: u64) -> Self {
        Self { mono: Nanos(mono_ms * 1_000_000), unix_ms: 1_700_000_000_000 + mono_ms }
    }
}

/// The instant at which an item ends, in milliseconds on the monotonic clock; 0 is never.
///
/// Forty bits, because each item stores one: 34 years from the start of the process. Later
/// deadlines are cut to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline(u64);

/// Greatest exptime that counts from now; a greater one is a Unix time. memcached,
/// `doc/protocol.txt`, Expiration times.
const RELATIVE_SECONDS_MAX: i32 = 60 * 60 * 24 * 30;

impl Deadline {
    /// Length of [`Deadline::to_bytes`].
    pub(crate) const BYTES: usize = 5;
    pub(crate) const NEVER: Self = Self(0);
    /// The last instant that forty bits hold.
    pub(crate) const LAST: Self = Self(Self::MAX);
    const MAX: u64 = (1 << 40) - 1;

    /// Returns the deadline of an item stored at `now` with `exptime`.
    pub(crate) fn resolve(now: Now, exptime: Exptime) -> Self {
        let mono_ms = now.mono.millis();
        match exptime.0 {
            0 => Self::NEVER,
            seconds @ 1..=RELATIVE_SECONDS_MAX => Self::at(mono_ms.saturating_add(to_ms(seconds))),
            absolute @ 1.. => {
                let left_ms = to_ms(absolute).saturating_sub(now.unix_ms);
                Self::at(mono_ms.saturating_add(left_ms))
            }
            ..0 => Self::at(mono_ms),
        }
    }

    /// Returns the deadline `left_ms` milliseconds after `now`.
    pub(crate) fn after_ms(now: Now, left_ms: u64) -> Self {
        Self::at(now.mono.millis().saturating_add(left_ms))
    }

    /// Returns the first deadline that is not before an instant on the monotonic clock.
    pub(crate) fn not_before(instant: Nanos) -> Self {
        Self::at(instant.0.div_ceil(1_000_000))
    }

    fn at(mono_ms: u64) -> Self {
        Self(mono_ms.clamp(1, Self::MAX))
    }

    pub(crate) fn is_past(self, now: Now) -> bool {
        self.0 != 0 && now.mono.millis() >= self.0
    }

    /// Milliseconds left; `None` for never.
    pub(crate) fn left_ms(self, now: Now) -> Option<u64> {
        (self.0 != 0).then(|| self.0.saturating_sub(now.mono.millis()))
    }

    /// Seconds left, rounded up; `None` for never.
    pub(crate) fn left_seconds(self, now: Now) -> Option<u32> {
        self.left_ms(now).map(|left| left.div_ceil(1000) as u32)
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let mut wide = [0; 8];
        wide[..Self::BYTES].copy_from_slice(&bytes);
        Self(u64::from_le_bytes(wide))
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(&self.0.to_le_bytes()[..Self::BYTES]);
        bytes
    }
}

fn to_ms(seconds: i32) -> u64 {
    u64::from(seconds.unsigned_abs()) * 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exptimes_follow_memcached() {
        let now = Now::at_ms(5_000);
        let left = |exptime| Deadline::resolve(now, Exptime(exptime)).left_ms(now);
        assert_eq!(left(0), None);
        assert_eq!(left(1), Some(1000));
        assert_eq!(left(RELATIVE_SECONDS_MAX), Some(2_592_000_000));
        // 2,592,001 is a Unix time in January 1970.
        assert_eq!(left(RELATIVE_SECONDS_MAX + 1), Some(0));
        assert_eq!(left(1_700_000_015), Some(10_000));
        assert_eq!(left(-1), Some(0));
        assert_eq!(left(i32::MIN), Some(0));
        assert!(Deadline::resolve(now, Exptime(-1)).is_past(now));
        assert!(Deadline::resolve(now, Exptime(i32::MIN)).is_past(now));
    }

    #[test]
    fn an_item_lives_exactly_its_seconds() {
        let deadline = Deadline::resolve(Now::at_ms(10), Exptime(2));
        assert!(!deadline.is_past(Now::at_ms(2009)));
        assert!(deadline.is_past(Now::at_ms(2010)));
        assert_eq!(deadline.left_seconds(Now::at_ms(10)), Some(2));
        assert_eq!(deadline.left_seconds(Now::at_ms(11)), Some(2));
        assert_eq!(deadline.left_seconds(Now::at_ms(1010)), Some(1));
    }

    #[test]
    fn forty_bits_hold_every_deadline() {
        let far = Deadline::after_ms(Now::at_ms(1), u64::MAX);
        assert_eq!(Deadline::from_bytes(far.to_bytes()), far);
        assert!(!far.is_past(Now::at_ms(1 << 39)));
    }
}
