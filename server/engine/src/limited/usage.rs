//! Usage that is given back, or set, whatever made it.
//!
//! Not here: holds (`holds`), the arithmetic (`limit`).

use super::{Limited, is_state};
use crate::apply::Engine;
use crate::limit::{self, Ask};
use crate::policies::Rule;
use crate::time::Now;

/// Usage as a caller sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetUsed {
    /// Units; more than the limit counts as the limit.
    pub used: u64,
    /// The client's 32 bits, kept beside the state.
    pub client_flags: u32,
    /// Only if the state has this cas unique.
    pub compare_cas: Option<u64>,
}

impl Engine {
    /// Gives `units` back.
    pub fn put_back(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Option<Rule<'_>>,
        units: u64,
    ) -> Limited {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return Limited::NotFound;
        }
        let mut loaded = self.load(at, rule);
        self.put_back_units(&mut loaded, now, units);
        self.keep_and_look(at, loaded)
    }

    /// Makes usage what the caller says. `compare_cas` as for a take.
    pub fn set_used(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Option<Rule<'_>>,
        set: &SetUsed,
    ) -> Limited {
        let at = self.at(now, hash, key);
        if rule.is_none() && !is_state(at) {
            return Limited::NotFound;
        }
        let mut loaded = self.load(at, rule);
        if let Some(unique) = set.compare_cas {
            if loaded.slot.is_none() {
                self.put_away(loaded);
                return Limited::NotFound;
            }
            if unique != loaded.figures.cas {
                let decision = self.look_at(&mut loaded, now, Ask { hash, ..Ask::default() });
                return Limited::Exists(self.facts(loaded, decision, false));
            }
        }
        loaded.set = None;
        limit::set_used(&loaded.policy, &mut loaded.state, now, set.used);
        loaded.figures.client_flags = set.client_flags;
        self.keep_and_look(at, loaded)
    }
}
