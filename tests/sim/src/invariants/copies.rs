//! At rest all copies of a partition are equal.

use super::Case;
use tollgate::simulation::{self, Role};

/// The most that a partition's time may be ahead of the world's, because clocks are. Items that
/// have expired in that time are not copied any more, and may still exist in an older copy.
const AHEAD_MS: u64 = 5_000;

pub(super) fn check(case: &Case<'_>, found: &mut Vec<String>) {
    let sights = &case.evidence.sights;
    let partitions = sights.iter().map(|(_, sight)| sight.replicas.len()).max().unwrap_or(0);
    for partition in 0..partitions {
        let mut first = None;
        for (address, sight) in sights {
            let Some(copy) = sight.replicas.get(partition) else { continue };
            if !matches!(copy.role, Role::Primary | Role::Backup) {
                continue;
            }
            let number = u16::try_from(partition).unwrap_or(u16::MAX);
            let soon_ms = case.evidence.unix_ms + AHEAD_MS;
            let items = simulation::items(*address, number, soon_ms);
            let Some((other, position, kept)) = &first else {
                first = Some((*address, copy.position, items));
                continue;
            };
            if *position != copy.position {
                found.push(format!(
                    "p{partition}: {other} is at {position:?}, {address} at {:?}",
                    copy.position
                ));
            }
            for key in kept.keys().chain(items.keys()) {
                if kept.get(key) != items.get(key) {
                    found.push(format!(
                        "p{partition}: {} differs on {other} and {address}: {:?} {:?}",
                        String::from_utf8_lossy(key),
                        kept.get(key),
                        items.get(key)
                    ));
                    break;
                }
            }
        }
    }
}
