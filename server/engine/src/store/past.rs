//! When an item that nobody asks for may go.

use crate::item::Item;
use crate::time::{Nanos, Now};

/// In a cluster items are removed this long after their deadline by whoever did not ask for them.
const BEHIND_NS: u64 = 5_000_000_000;

/// Whether an item is past its deadline: by `now`, and where it has a partition, whose time `now` need
/// not be, by that one's `own`. A copy that takes over may know its partition's time later than the
/// one before it, by what a message took, so there it has to be past for a while.
pub(super) fn is_past(item: Item<'_>, now: Now, own: Option<Now>) -> bool {
    match own {
        Some(own) => {
            let mono = Nanos(own.mono.0.saturating_sub(BEHIND_NS));
            item.deadline().is_past(Now { mono, ..own })
        }
        None => item.deadline().is_past(now),
    }
}
