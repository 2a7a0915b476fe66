//! A change between limits of which at least one has several policies.
//!
//! Not here: what each policy keeps of its state (the other algorithms).

use protocol::Policy;

use super::{PARTS_MAX, Places, ban, push};
use crate::algorithms;
use crate::time::Now;

/// Converts a state if one of both policies is a list.
pub(in crate::algorithms) fn adopt(old: &Policy, new: &Policy, state: &mut Vec<u8>, now: Now) {
    let (before, after): (Vec<Policy>, Vec<Policy>) = (old.each().collect(), new.each().collect());
    let same = |one: &Policy, other: &Policy| one.algorithm == other.algorithm;
    let exact: Vec<Option<usize>> =
        after.iter().map(|new| before.iter().position(|old| same(old, new))).collect();
    let places = if old.is_list() {
        Places::of(state, before.len() + usize::from(old.ban().is_some()))
    } else {
        let mut places = Places([(0, 0); PARTS_MAX]);
        places.0[0] = (0, state.len());
        places
    };
    let (mut whole, mut part, mut is_idle) = (Vec::new(), Vec::new(), true);
    for (at, policy) in after.iter().enumerate() {
        // A policy at the same place, unless its state stays with the same policy elsewhere.
        let beside = || (at < before.len() && !exact.contains(&Some(at))).then_some(at);
        part.clear();
        if let Some(from) = exact[at].or_else(beside) {
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
