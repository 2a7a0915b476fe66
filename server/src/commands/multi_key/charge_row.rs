//! One key of a charge set, as the commands see it.
//!
//! Not here: the set (`multi_key`).

use engine::TakeParams;
use protocol::Policy;
use tollgate_limits::ChargeCost;

/// A listed key, for charging it elsewhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargeRow<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    /// The index of its limit.
    pub(crate) limit: usize,
    /// Refused attempts are counted.
    pub(crate) counts_refused: bool,
    /// The limit counts holders (`concurrency:`).
    pub(crate) holds_by_itself: bool,
    /// Nanoseconds for which the cost is held, if the limit of its child says so.
    pub(crate) hold: Option<u64>,
    /// The index of the first key of the request that it is charged for.
    pub(crate) member: usize,
    /// A bit for each of them.
    pub(crate) members: u16,
    pub(crate) cost: ChargeCost,
    /// The limit only reports.
    pub(crate) shadow: bool,
    pub(crate) policy: &'a Policy,
}

impl ChargeRow<'_> {
    /// Returns whether the key is charged otherwise than with the cost of the request.
    pub(crate) fn has_rule(&self) -> bool {
        self.cost != ChargeCost::SAME || self.hold.is_some()
    }

    /// Returns the nanoseconds for which a take holds the cost of this key.
    pub(crate) fn hold_of(&self, take: &TakeParams) -> Option<u64> {
        hold_of((self.hold, self.holds_by_itself), self.cost, take)
    }

    /// Returns the hold that the verdict line names: its limit's index.
    pub(crate) fn named_hold(&self) -> Option<usize> {
        self.hold.map(|_| self.limit)
    }
}

/// The nanoseconds for which a take holds the cost of a key: those of its own rule, or those of the
/// request. A constant cost without a rule is spent at once, unless its limit counts holders.
pub(crate) fn hold_of(
    (own, holds_by_itself): (Option<u64>, bool),
    cost: ChargeCost,
    take: &TakeParams,
) -> Option<u64> {
    if take.debit {
        return None;
    }
    own.or(take.hold.filter(|_| holds_by_itself || cost.is_scaled()))
}
