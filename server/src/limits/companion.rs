//! Companions: keys beside a limited key that show its numbers.
//!
//! Here: the names of companions, recognised by the end of a key, and sets of them. Not here: the
//! numbers (`engine`). `#limit` and the other names with `#` are Tollgate's own; limiter libraries
//! keep `/expires` and `_expire` beside a counter.

/// The number that a companion shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Companion {
    /// `<key>#limit`: the limit's maximum.
    Limit,
    /// `<key>#remaining`: units left.
    Remaining,
    /// `<key>#retry`: milliseconds until one unit is allowed.
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
}
