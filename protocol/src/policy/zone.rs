//! The time zone of a calendar window: an offset, or a zone by its IANA name.
//!
//! Here: names, and the changes of a zone's offset between 1900 and 2200. Not here: windows
//! (`engine`). Source of the rules: the IANA time zone database that `jiff` contains, so all
//! machines agree whatever is installed on them.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, PoisonError, RwLock};

use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;

/// The first second of 1900: earlier changes of an offset are left out.
const FIRST_SECOND: i64 = -2_208_988_800;
/// The first second of 2200: the offset stays from then on.
const END_SECOND: i64 = 7_258_118_400;
/// Longest name of a zone, in bytes; the longest in the database has 32.
pub(super) const ZONE_BYTES_MAX: usize = 40;

/// The zone of a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Zone {
    /// Seconds east of Greenwich, at most 14 hours.
    Offset(i32),
    /// A zone whose offset may change.
    Named(NamedZone),
}

/// A zone of the IANA database. Equal names are one value.
#[derive(Debug, Clone, Copy)]
pub struct NamedZone(&'static ZoneRules);

/// The rules of a zone.
#[derive(Debug)]
struct ZoneRules {
    name: String,
    /// The offset before the first change, in seconds.
    first_offset: i32,
    changes: Box<[OffsetChange]>,
    /// The most seconds by which the clock leaps ahead at a change.
    gap_seconds: u32,
    /// The most seconds by which the clock goes back at a change.
    fold_seconds: u32,
}

/// A change of a zone's offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffsetChange {
    /// The Unix time in seconds.
    pub at: i64,
    /// The offset from then on, in seconds east of Greenwich.
    pub offset: i32,
}

/// The zones that policies of this process have named. There are fewer than 700 names.
static ZONES: LazyLock<RwLock<HashMap<String, NamedZone>>> = LazyLock::new(RwLock::default);

impl NamedZone {
    /// Finds a zone by its name, whose letters may be of either case. `None`: the database has no
    /// such zone.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        if name.len() > ZONE_BYTES_MAX {
            return None;
        }
        if let Some(zone) = ZONES.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Some(*zone);
        }
        let found = TimeZoneDatabase::bundled().get(name).ok()?;
        let name = found.iana_name()?.to_owned();
        let mut zones = ZONES.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = zones.get(&name) {
            return Some(*zone);
        }
        let first = Timestamp::from_second(FIRST_SECOND).ok()?;
        let first_offset = found.to_offset(first).seconds();
        let changes: Box<[OffsetChange]> = found
            .following(first)
            .map(|change| OffsetChange {
                at: change.timestamp().as_second(),
                offset: change.offset().seconds(),
            })
            .take_while(|change| change.at < END_SECOND)
            .collect();
        let befores = std::iter::once(first_offset).chain(changes.iter().map(|c| c.offset));
        let steps = || befores.clone().zip(&changes).map(|(before, c)| c.offset - before);
        let gap_seconds = steps().max().unwrap_or(0).max(0).unsigned_abs();
        let fold_seconds = steps().min().unwrap_or(0).min(0).unsigned_abs();
        // Never freed: policies are compared and copied as plain values.
        let rules = Box::leak(Box::new(ZoneRules {
            name: name.clone(),
            first_offset,
            changes,
            gap_seconds,
            fold_seconds,
        }));
        zones.insert(name, Self(rules));
        Some(Self(rules))
    }

    /// The name as the database spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        &self.0.name
    }

    /// The changes of the offset, oldest first.
    #[must_use]
    pub fn changes(self) -> &'static [OffsetChange] {
        &self.0.changes
    }

    /// The offset before the change with this index, in seconds east of Greenwich.
    #[must_use]
    pub fn offset_before(self, index: usize) -> i32 {
        let before = index.checked_sub(1).and_then(|before| self.0.changes.get(before));
        before.map_or(self.0.first_offset, |change| change.offset)
    }

    /// The most seconds by which the zone's clock leaps ahead at a change.
    #[must_use]
    pub fn gap_seconds(self) -> u32 {
        self.0.gap_seconds
    }

    /// The most seconds by which the zone's clock goes back at a change.
    #[must_use]
    pub fn fold_seconds(self) -> u32 {
        self.0.fold_seconds
    }
}

impl PartialEq for NamedZone {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for NamedZone {}

impl Hash for NamedZone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

impl Display for Zone {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset(offset) => {
                let sign = if *offset < 0 { '-' } else { '+' };
                let minutes = offset.unsigned_abs() / 60;
                write!(f, "{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
            Self::Named(zone) => f.write_str(zone.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_are_one_value() {
        let zone = NamedZone::find("Europe/Berlin").unwrap();
        assert_eq!(NamedZone::find("europe/BERLIN"), Some(zone));
        assert_eq!(zone.name(), "Europe/Berlin");
        assert_ne!(NamedZone::find("Europe/Paris"), Some(zone));
        for name in ["", "Berlin", "Europe/", "../UTC", "Z", &"x".repeat(ZONE_BYTES_MAX + 1)] {
            assert_eq!(NamedZone::find(name), None, "{name}");
        }
    }

    #[test]
    fn changes_are_those_of_the_database() {
        let berlin = NamedZone::find("Europe/Berlin").unwrap();
        // 2026-03-29 01:00 and 2026-10-25 01:00 UTC.
        let (spring, autumn) = (1_774_746_000, 1_792_890_000);
        let at = |second| berlin.changes().iter().position(|change| change.at == second).unwrap();
        assert_eq!(berlin.changes()[at(spring)].offset, 7200);
        assert_eq!(berlin.offset_before(at(spring)), 3600);
        assert_eq!(berlin.changes()[at(autumn)].offset, 3600);
        assert_eq!(berlin.gap_seconds(), 3600);
        let apia = NamedZone::find("Pacific/Apia").unwrap();
        assert_eq!(apia.gap_seconds(), 24 * 3600, "it left out a day in 2011");
        let utc = NamedZone::find("UTC").unwrap();
        assert_eq!((utc.changes(), utc.offset_before(0)), (&[][..], 0));
    }

    #[test]
    fn every_name_of_the_database_fits() {
        let mut count = 0;
        for name in TimeZoneDatabase::bundled().available() {
            let zone = NamedZone::find(name.as_str()).expect("it is in the database");
            assert!(zone.name().len() <= ZONE_BYTES_MAX, "{}", zone.name());
            assert!(zone.changes().is_sorted_by_key(|change| change.at));
            assert!(zone.changes().len() < 1000 && zone.fold_seconds() <= 24 * 3600);
            count += 1;
        }
        assert!((400..700).contains(&count), "{count}");
    }
}
