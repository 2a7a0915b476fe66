//! The place of a removed limit that comes back.
//!
//! Not here: the change that brings it back (`super`).

use tollgate_limits::map_text::{self, EXEMPT, LimitText, OrderedLimit};

use super::super::book::Book;

/// Returns the limit that `text`, which was removed, goes before; `None`: it goes to the end. Its
/// former place is best. If that is unknown, or all limits do not agree then, it goes to the end,
/// or before the first limit that would keep all keys from it.
pub(super) fn place_again(book: &Book, text: &LimitText) -> Option<String> {
    if text.name == EXEMPT {
        return None;
    }
    let entries = book.entries();
    let agree = |front: &[OrderedLimit], behind: &[OrderedLimit]| {
        let own = [OrderedLimit::new(text.clone())];
        map_text::limits_beside_exemptions(&[front, &own, behind].concat()).is_ok()
    };
    let all_agree = |at: &usize| agree(&entries[..*at], &entries[*at..]);
    // A limit that has taken the freed number since goes behind it.
    let is_before =
        |entry: &OrderedLimit, order| entry.text.name == EXEMPT || entry.order < Some(order);
    let former = book
        .place_of_removed(&text.name)
        .map(|order| entries.partition_point(|entry| is_before(entry, order)));
    let last_reached = || {
        let first = usize::from(entries.first().is_some_and(|entry| entry.text.name == EXEMPT));
        let places: Vec<usize> = (first..entries.len()).collect();
        let count = places.partition_point(|at| agree(&entries[..*at], &[]));
        places.get(count.checked_sub(1)?).copied()
    };
    let at = former
        .filter(all_agree)
        .or_else(|| Some(entries.len()).filter(all_agree))
        .or_else(|| last_reached().filter(all_agree))
        .or(former)?;
    entries.get(at).map(|entry| entry.text.name.clone())
}

/// Gives a limit that came back the number of its former place, if its neighbours allow that: a new
/// number might be that of another removed limit.
pub(super) fn give_former_number(book: &Book, entries: &mut [OrderedLimit], name: &str) {
    let Some(at) = entries.iter().position(|entry| entry.text.name == name) else { return };
    let former = book.place_of_removed(name);
    let order_of = |at: usize| entries.get(at).filter(|entry| entry.text.name != EXEMPT)?.order;
    let is_behind = at.checked_sub(1).and_then(order_of).is_none_or(|order| Some(order) < former);
    if is_behind && order_of(at + 1).is_none_or(|order| former < Some(order)) {
        entries[at].order = former;
    }
}
