//! A change between limits of which at least one has several policies.
//!
//! Not here: what each policy keeps of its state (the other algorithms).

use protocol::{LIST_POLICIES_MAX, Policy};

use super::{PARTS_MAX, Places, ban, push};
use crate::algorithms;
use crate::time::Now;

/// For each policy of `new` the position of the policy of `old` whose state it takes over: the same
/// one, else the one at its place, unless the same one as that stands elsewhere.
pub(crate) fn counterparts(old: &Policy, new: &Policy) -> [Option<usize>; LIST_POLICIES_MAX] {
    let mut from = [None; LIST_POLICIES_MAX];
    for (from, new) in from.iter_mut().zip(new.each()) {
        *from = old.each().position(|old| old.algorithm == new.algorithm);
    }
    let exact = from;
    for (at, from) in from.iter_mut().enumerate().take(new.each().count()) {
        let is_free = at < old.each().count() && !exact.contains(&Some(at));
        *from = from.or(is_free.then_some(at));
    }
    from
}

/// Converts a state if one of both policies is a list.
pub(in crate::algorithms) fn adopt(old: &Policy, new: &Policy, state: &mut Vec<u8>, now: Now) {
    let (before, after): (Vec<Policy>, Vec<Policy>) = (old.each().collect(), new.each().collect());
    let counterparts = counterparts(old, new);
    let places = if old.is_list() {
        Places::of(state, before.len() + usize::from(old.ban().is_some()))
    } else {
        let mut places = Places([(0, 0); PARTS_MAX]);
        places.0[0] = (0, state.len());
        places
    };
    let (mut whole, mut part, mut is_idle) = (Vec::new(), Vec::new(), true);
    for (at, policy) in after.iter().enumerate() {
        part.clear();
        if let Some(from) = counterparts[at] {
            places.copy(state, from, &mut part);
            algorithms::adopt(&before[from], policy, &mut part, now);
        }
        is_idle &= part.is_empty();
        if new.is_list() {
            push(&part, &mut whole);
        } else {
            whole.extend_from_slice(&part);
        }
    }
    if let Some(new) = new.ban() {
        part.clear();
        if let Some(old) = old.ban() {
            places.copy(state, before.len(), &mut part);
            ban::adopt(old, new, &mut part, now);
        }
        is_idle &= part.is_empty();
        push(&part, &mut whole);
    }
    state.clear();
    if !is_idle {
        state.extend_from_slice(&whole);
    }
}
