//! Finding the limit of a key, and the keys that are charged with it.
//!
//! Not here: the index of all patterns (`index`), one pattern (`pattern`), the result (`matched`).

use super::charge_cost::ChargeCost;
use super::companion::Companion;
use super::error::LimitedKeyError;
use super::matched::{LimitMatch, Parents};
use super::overrides::OverrideKeys;
use super::pattern::Captures;
use super::{Limit, Limits};

impl Limits {
    /// Finds the first limit in file order that matches `key`. `None`: the key is not limited, or
    /// exempt. A companion of a limited key is recognised before any limit that matches the
    /// companion's own text.
    ///
    /// `scratch` is cleared, and filled with the counted key if the limit defines one.
    ///
    /// # Errors
    ///
    /// The counted key would be empty or longer than 250 bytes.
    // Not `#[inline]`: with this code its callers become too large to be inlined themselves.
    pub fn find<'a>(
        &'a self,
        key: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<LimitMatch<'a>>, LimitedKeyError> {
        self.find_with::<true>(key, scratch)
    }

    /// [`Limits::find`] without overrides, which [`OverrideBatch`](super::OverrideBatch) adds.
    ///
    /// # Errors
    ///
    /// Those of [`Limits::find`].
    pub fn find_limit<'a>(
        &'a self,
        key: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<LimitMatch<'a>>, LimitedKeyError> {
        self.find_with::<false>(key, scratch)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "as `Limit::found`")]
    fn find_with<'a, const OVERRIDES: bool>(
        &'a self,
        key: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<LimitMatch<'a>>, LimitedKeyError> {
        if !self.companions.is_empty()
            && let Some((base, companion)) = Companion::split(key)
            && self.companions.has(companion)
            && let Some((limit, captures)) = self.lookup(base)
            && limit.companions.has(companion)
        {
            return limit.found::<OVERRIDES>(base, captures, Some(companion), scratch).map(Some);
        }
        match self.lookup(key) {
            Some((limit, captures)) => {
                limit.found::<OVERRIDES>(key, captures, None, scratch).map(Some)
            }
            None => Ok(None),
        }
    }

    /// The other limit that takes all keys of an override of `limit`, if there is one.
    pub(super) fn taken_by(&self, limit: &Limit, keys: OverrideKeys<'_>) -> Option<&Limit> {
        let (OverrideKeys::Exact(key), None) = (keys, &limit.key) else { return None };
        self.lookup(key.as_bytes())
            .map(|(other, _)| other)
            .filter(|other| other.index != limit.index)
    }

    /// Finds the first limit in file order that matches `key`, with its captures. An exempt key has
    /// none.
    #[inline]
    pub(super) fn lookup(&self, key: &[u8]) -> Option<(&Limit, Captures)> {
        // One comparison for bad lengths and for exemptions, which cost nothing where there are
        // none.
        if key.len().wrapping_sub(1) >= self.direct_bytes {
            return self.lookup_exempting(key);
        }
        self.lookup_any(key)
    }

    /// [`Limits::lookup`] of a key of 1 to 250 bytes without exemptions.
    #[inline]
    pub(super) fn lookup_any(&self, key: &[u8]) -> Option<(&Limit, Captures)> {
        let (mut best, mut captures) = (u32::MAX, Captures::default());
        self.index.candidates(key, |list| {
            for candidate in list.iter().take_while(|candidate| candidate.limit < best) {
                let mut trial = Captures::default();
                let pattern = || &self.limits[candidate.limit as usize].pattern;
                if candidate.matches(key, &mut trial, pattern) {
                    (best, captures) = (candidate.limit, trial);
                    return;
                }
            }
        });
        Some((self.limits.get(best as usize)?, captures))
    }

    /// Collects the keys that are charged together with a matched key: its parents and their
    /// parents, each once. A parent key without a limit is not charged.
    ///
    /// # Errors
    ///
    /// A parent's key is invalid, or there are more than [`PARENTS_MAX`](super::PARENTS_MAX)
    /// parents. `parents` is empty then.
    pub fn parents(
        &self,
        found: &LimitMatch<'_>,
        parents: &mut Parents,
    ) -> Result<(), LimitedKeyError> {
        parents.clear();
        let added = self.add_parents((found, found.cost()), found, parents);
        if added.is_err() {
            parents.clear();
        }
        added
    }

    /// Recursive. Each nested call follows a `push` that added a row, so the depth is at most
    /// [`PARENTS_MAX`](super::PARENTS_MAX).
    fn add_parents(
        &self,
        (of, cost): (&LimitMatch<'_>, ChargeCost),
        child: &LimitMatch<'_>,
        parents: &mut Parents,
    ) -> Result<(), LimitedKeyError> {
        for (template, rule) in of.limit.parents.iter().zip(&of.limit.charging.rules) {
            let (mut key, mut scratch) = (parents.buffer(), parents.buffer());
            let added = template.render(of.base, &of.captures, &mut key).and_then(|()| {
                let Some((limit, captures)) = self.lookup(&key) else { return Ok(()) };
                let parent = limit.found::<true>(&key, captures, None, &mut scratch)?;
                let is_child = parent.key == child.key && limit.index == child.limit.index;
                let cost = rule.cost_of(cost).weighted(parent.weight());
                if is_child || !parents.push(&parent, cost, rule.hold)? {
                    return Ok(());
                }
                self.add_parents((&parent, cost), child, parents)
            });
            parents.give_back([key, scratch]);
            added?;
        }
        Ok(())
    }
}
