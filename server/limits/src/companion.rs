//! Companions: keys beside a limited key that show its numbers.
//!
//! Here: the names of companions, recognised by the end of a key, and sets of them. Not here: the
//! numbers (`engine`). `#limit` and the other names with `#` are Tollgate's own; limiter libraries
//! keep `/expires` and `_expire` beside a counter.

use protocol::COUNT_MAX;

/// Most digits of the units in a key such as `<key>#retry:5`.
const UNITS_DIGITS_MAX: usize = 16;

/// The number that a companion shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Companion {
    /// `<key>#limit`: the limit's maximum.
    Limit,
    /// `<key>#remaining`: units left.
    Remaining,
    /// `<key>#retry`: milliseconds until one unit is allowed; `<key>#retry:5`: until five are.
    Retry,
    /// `<key>#reset`: milliseconds until all units are available.
    Reset,
    /// `<key>#info`: all of these.
    Info,
    /// `<key>/expires`: end of the limit state, in Unix seconds.
    Expires,
    /// `<key>_expire`: end of the limit state, in Unix milliseconds.
    Expire,
}

impl Companion {
    /// Every companion, in the order of their bits.
    pub const ALL: [Self; 7] = [
        Self::Limit,
        Self::Remaining,
        Self::Retry,
        Self::Reset,
        Self::Info,
        Self::Expires,
        Self::Expire,
    ];

    /// The suffix of the companion's key, and its name in the limits file.
    #[must_use]
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Limit => "#limit",
            Self::Remaining => "#remaining",
            Self::Retry => "#retry",
            Self::Reset => "#reset",
            Self::Info => "#info",
            Self::Expires => "/expires",
            Self::Expire => "_expire",
        }
    }

    /// Splits a key into the limited key and the companion. `None` if the key ends with no suffix.
    #[inline]
    pub(super) fn split(key: &[u8]) -> Option<(&[u8], Self)> {
        let either = match key.last()? {
            b'0'..=b'9' => return split_units(key).map(|(base, _)| (base, Self::Retry)),
            b't' => [Self::Limit, Self::Reset],
            b'g' => [Self::Remaining; 2],
            b'y' => [Self::Retry; 2],
            b'o' => [Self::Info; 2],
            b's' => [Self::Expires; 2],
            b'e' => [Self::Expire; 2],
            _ => return None,
        };
        either.into_iter().find_map(|companion| {
            let base = key.strip_suffix(companion.suffix().as_bytes())?;
            (!base.is_empty()).then_some((base, companion))
        })
    }

    /// Returns the units that a companion's key asks about: 5 of `<key>#retry:5`, else one.
    #[must_use]
    pub fn units(key: &[u8]) -> u64 {
        split_units(key).map_or(1, |(_, units)| units)
    }
}

/// Splits a key such as `<key>#retry:5` into the limited key and the units, at most [`COUNT_MAX`].
fn split_units(key: &[u8]) -> Option<(&[u8], u64)> {
    let digits = key.iter().rev().take(UNITS_DIGITS_MAX);
    let digits = digits.take_while(|byte| byte.is_ascii_digit()).count();
    let (front, number) = key.split_at(key.len() - digits);
    let base = front.strip_suffix(b":")?.strip_suffix(Companion::Retry.suffix().as_bytes())?;
    let units = str::from_utf8(number).ok()?.parse().ok().filter(|units| *units <= COUNT_MAX)?;
    (!base.is_empty()).then_some((base, units))
}

/// A set of companions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Companions(u8);

impl Companions {
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains `companion`.
    #[must_use]
    pub fn has(self, companion: Companion) -> bool {
        self.0 & (1 << companion as u8) != 0
    }

    pub(super) fn with(self, companion: Companion) -> Self {
        Self(self.0 | 1 << companion as u8)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_companion_is_known_by_its_suffix() {
        for companion in Companion::ALL {
            let key = format!("a:b{}", companion.suffix());
            assert_eq!(Companion::split(key.as_bytes()), Some((b"a:b".as_slice(), companion)));
            assert_eq!(Companion::split(companion.suffix().as_bytes()), None);
            assert_eq!(Companion::split(&key.as_bytes()[..key.len() - 1]), None);
        }
        assert_eq!(Companion::split(b""), None);
    }

    #[test]
    fn retry_may_name_units() {
        for (key, units) in
            [("a#retry:5", 5), ("a#retry:0", 0), ("a#retry:9007199254740991", COUNT_MAX)]
        {
            assert_eq!(Companion::split(key.as_bytes()), Some((b"a".as_slice(), Companion::Retry)));
            assert_eq!(Companion::units(key.as_bytes()), units);
        }
        let no_units =
            ["a#retry", "a#retry:", "a#retry:-1", "a:5", "#retry:5", "a#retry:9007199254740992"];
        for key in no_units.into_iter().chain(["a#retry:00000000000000005", "a#limit:5"]) {
            assert_eq!(Companion::units(key.as_bytes()), 1, "{key}");
            let expected = (key == "a#retry").then_some((b"a".as_slice(), Companion::Retry));
            assert_eq!(Companion::split(key.as_bytes()), expected, "{key}");
        }
    }
}
