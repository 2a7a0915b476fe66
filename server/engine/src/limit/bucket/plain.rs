//! The short way of a bucket without options but debt, whose ticks fit 64 bits: most are so. All else,
//! and what is meant, is with the bucket itself (`bucket`).

use std::hint::cold_path;

use protocol::{Algorithm, Policy, Rate};

use crate::limit::{Ask, Decision, Verdict, tat};
use crate::time::Now;

/// A bucket of which the TAT is all there is.
#[derive(Debug, Clone, Copy)]
pub(in crate::limit) struct Plain {
    rate: Rate,
    capacity: u64,
    debt: u64,
}

impl Plain {
    /// The parameters of a policy that is one.
    #[inline]
    pub(in crate::limit) fn of(policy: &Policy) -> Option<Self> {
        match policy.algorithm {
            Algorithm::Bucket { rate, capacity, init, debt, warm: None, interval: false }
                if init >= capacity =>
            {
                Some(Self { rate, capacity, debt })
            }
            _ => None,
        }
    }

    /// As the bucket's own take. `None`, and nothing is changed, where it is not for 64 bits, or the clock
    /// has gone back.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "see `limit::take`")]
    pub(in crate::limit) fn take(
        self,
        state: &mut Vec<u8>,
        now: Now,
        ask: &Ask,
    ) -> Option<Decision> {
        let Rate { count, period } = self.rate;
        let clock = count.checked_mul(now.mono.0)?;
        let full = self.capacity.checked_mul(period)?;
        let most = full.checked_add(self.debt.checked_mul(period)?)?;
        let cost = ask.cost.checked_mul(period)?;
        let mut owed = most;
        if ask.over {
            cold_path();
            owed = owed.max(full.checked_mul(2)?);
        }
        let full_at = match <[u8; 8]>::try_from(state.as_slice()) {
            Ok(short) => u64::from_le_bytes(short),
            Err(_) if state.is_empty() => clock,
            Err(_) => return None,
        };
        // What is missing to a full bucket, in ticks.
        let before = full_at.saturating_sub(clock);
        if before > owed {
            cold_path();
            return None;
        }
        let room = |cost: u64| most.checked_sub(cost).map(|room| room.min(full));
        let retry = |missing: u64, cost: u64| {
            room(cost).map(|room| missing.saturating_sub(room).div_ceil(count))
        };

        let mut verdict = Verdict::Allow;
        let (mut granted, mut after) = (ask.cost, before.wrapping_add(cost));
        if room(cost).is_none_or(|room| before > room) {
            granted =
                if ask.part { self.capacity.saturating_sub(before.div_ceil(period)) } else { 0 };
            after = before + granted * period;
            verdict = Verdict::Part;
            if granted == 0 {
                verdict = Verdict::Deny;
                if ask.over {
                    after = before.max(before.saturating_add(cost).min(2 * full));
                }
            }
        }
        let told = if ask.peek { before } else { after };
        let changed = told != before;
        if changed {
            tat::encode(clock.checked_add(after)?.into(), state);
        }
        let used = told.div_ceil(period);
        Some(Decision {
            verdict,
            limit: self.capacity,
            remaining: self.capacity.saturating_sub(used),
            used,
            granted,
            retry: match verdict {
                Verdict::Deny => retry(told, cost),
                Verdict::Part => retry(after, cost - granted * period),
                _ => Some(0),
            },
            reset: told.div_ceil(count),
            changed,
            lease: None,
        })
    }
}
