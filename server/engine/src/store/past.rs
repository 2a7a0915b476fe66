//! When an item that no command reads may be removed.

use super::item::Item;
use crate::time::{Nanos, Now};

/// Nanoseconds after its deadline for which an item of a cluster is kept, unless a command reads
/// it.
const BEHIND_NS: u64 = 5_000_000_000;

/// Whether an item is past its deadline: by `now`, or if it has a partition, by that partition's
/// time `own`, which may differ from `now`. A backup that takes over may see its partition's time
/// later than the former primary did, by the delay of a message, so an item with a partition must
/// be past its deadline for a while.
pub(super) fn is_past(item: Item<'_>, now: Now, own: Option<Now>) -> bool {
    match own {
        Some(own) => {
            let mono = Nanos(own.mono.0.saturating_sub(BEHIND_NS));
            item.deadline().is_past(Now { mono, ..own })
        }
        None => item.deadline().is_past(now),
    }
}
