//! Companions: keys beside a bound key from which its figures are read.
//!
//! `#limit` and its kin are ours; `/expires` and `_expire` are what limiter libraries keep beside a
//! counter. A companion is known by the end of its key. Not here: the figures (`engine`).

/// Which figure a companion shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Companion {
    /// `<key>#limit`: the most.
    Limit,
    /// `<key>#remaining`: what is left.
    Remaining,
    /// `<key>#retry`: milliseconds until one unit passes.
    Retry,
    /// `<key>#reset`: milliseconds until all is back.
    Reset,
    /// `<key>#info`: all of them.
    Info,
    /// `<key>/expires`: when the state ends, in Unix seconds.
    Expires,
    /// `<key>_expire`: when the state ends, in Unix milliseconds.
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

    /// What its key ends with, which is also its name in the limits file.
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

    /// The companion that a key may be, and the key that it would be beside.
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
    /// Whether none is on.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this one is on.
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
