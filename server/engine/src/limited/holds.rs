//! What becomes of a hold after it is taken: it is settled, or renewed.
//!
//! Not here: taking one (`limited`), holds of `concurrency` (`limit/concurrency`).

use super::{Limited, is_state};
use crate::apply::Engine;
use crate::limit::{self, Ask};
use crate::policies::Rule;
use crate::time::Now;

impl Engine {
    /// Ends a hold: `actual` is what it came to; less is given back, more is taken, into debt if
    /// need be.
    pub fn settle(&mut self, now: Now, hash: u64, key: &[u8], lease: u64, actual: u64) -> Limited {
        let at = self.at(now, hash, key);
        if !is_state(at) {
            return Limited::NotFound;
        }
        let mut loaded = self.load(at, None);
        if limit::settle(&loaded.policy, &mut loaded.state, now, lease) {
            return self.keep_and_look(at, loaded);
        }
        let Some(place) = loaded.holds.iter().position(|hold| hold.lease == lease) else {
            self.put_away(loaded);
            return Limited::NotFound;
        };
        let hold = loaded.holds.swap_remove(place);
        if actual < hold.units {
            limit::put_back(&loaded.policy, &mut loaded.state, now, hold.units - actual);
        } else {
            // What was used is used: it is counted whether it would pass or not.
            let ask = Ask { cost: actual - hold.units, over: true, hash, ..Ask::default() };
            limit::take(&loaded.policy, &mut loaded.state, now, &ask);
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
        limit::take(&loaded.policy, &mut loaded.state, now, &ask);
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
        let known = if limit::renew(&loaded.policy, &mut loaded.state, now, lease, for_ns) {
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
