//! What becomes of a hold after it is taken: it is settled, or renewed.
//!
//! Not here: taking one (`limited`), holds of `concurrency` (`limit/concurrency`).

use super::{HOLDS_MAX, Hold, Limited, is_state};
use crate::apply::Engine;
use crate::limit::Ask;
use crate::policies::Rule;
use crate::store::Full;
use crate::time::Now;

/// A hold that somebody else gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenHold {
    /// Its name.
    pub lease: u64,
    /// What it holds.
    pub units: u64,
    /// Nanoseconds after which it ends by itself.
    pub for_ns: u64,
}

impl Engine {
    /// Ends a hold: `actual` is what it came to; less is given back, more is taken, into debt if
    /// need be.
    pub fn settle(&mut self, now: Now, hash: u64, key: &[u8], lease: u64, actual: u64) -> Limited {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return Limited::NotFound;
        }
        let mut loaded = self.load(at, None);
        if self.settle_hold(&mut loaded, now, lease) {
            return self.keep_and_look(at, loaded);
        }
        let Some(place) = loaded.holds.iter().position(|hold| hold.lease == lease) else {
            self.put_away(loaded);
            return Limited::NotFound;
        };
        let hold = loaded.holds.swap_remove(place);
        if actual < hold.units {
            self.put_back_units(&mut loaded, now, hold.units - actual);
        } else {
            // What was used is used: it is counted whether it would pass or not.
            let ask = Ask { cost: actual - hold.units, over: true, hash, ..Ask::default() };
            self.decide(&mut loaded, now, &ask);
        }
        self.keep_and_look(at, loaded)
    }

    /// Counts units that were used without asking, whether they would pass or not: into debt if need
    /// be.
    pub fn charge(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Rule<'_>,
        units: u64,
    ) -> Limited {
        let at = self.at(now, hash, key);
        let mut loaded = self.load(at, Some(rule));
        let ask = Ask { cost: units, over: true, hash, ..Ask::default() };
        self.decide(&mut loaded, now, &ask);
        self.keep_and_look(at, loaded)
    }

    /// Counts a hold that was given without asking, whether it would pass or not. A hold of this lease
    /// that is here already lasts as long, and is not counted twice.
    pub fn charge_hold(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Rule<'_>,
        hold: &GivenHold,
    ) -> Limited {
        let GivenHold { lease, units, for_ns } = *hold;
        let renewed = self.renew(now, hash, key, lease, for_ns);
        if renewed != Limited::NotFound {
            return renewed;
        }
        let at = self.at(now, hash, key);
        let at = match self.room_to_hold(at) {
            Ok(at) => at,
            Err(Full) => return Limited::Full,
        };
        let mut loaded = self.load(at, Some(rule));
        if !self.give_hold(&mut loaded, now, hold) {
            let ask = Ask { cost: units, over: true, hash, ..Ask::default() };
            self.decide(&mut loaded, now, &ask);
            if loaded.holds.len() < HOLDS_MAX {
                let end = now.mono.0.saturating_add(for_ns);
                loaded.holds.push(Hold { lease, units, end });
            }
        }
        self.keep_and_look(at, loaded)
    }

    /// Lets a hold last `for_ns` nanoseconds from now; the answer is whether there is such a hold.
    pub fn renew(&mut self, now: Now, hash: u64, key: &[u8], lease: u64, for_ns: u64) -> Limited {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return Limited::NotFound;
        }
        let mut loaded = self.load(at, None);
        let end = now.mono.0.saturating_add(for_ns);
        let known = if self.renew_hold(&mut loaded, now, lease, for_ns) {
            true
        } else if let Some(hold) = loaded.holds.iter_mut().find(|hold| hold.lease == lease) {
            hold.end = end;
            true
        } else {
            false
        };
        if !known {
            self.put_away(loaded);
            return Limited::NotFound;
        }
        self.keep_and_look(at, loaded)
    }
}
