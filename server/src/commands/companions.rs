//! Companions of a limited key: the figures of the key and its parents.
//!
//! Here: the look that a companion takes, and the reply made of it. Not here: the names of
//! companions (`server/limits`), the owners of keys in a cluster (`node`).

use engine::algorithms::Decision;
use engine::{Decider, TakeInfo, TakeParams, TakeResult};
use protocol::{ItemView, Operation, Outcome, SetMode, Value};
use tollgate_limits::{Companion, LimitMatch, LimitedKeyError};

use crate::commands::context::ExecContext;
use crate::commands::limit_op::LimitOp;
use crate::commands::limited_keys::milliseconds;
use crate::commands::multi_key::ChargeResult;
use crate::commands::scratch::Scratch;

/// The figures that companions show.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompanionFigures {
    /// The decision of the limit that refuses for longest, or of the one with the least left.
    decision: Decision,
    /// The least that any limit has left; 0 while the key is banned.
    left: u64,
    has_state: bool,
}

impl CompanionFigures {
    /// Returns the figures of a key without parents; `None`: there is no decision.
    fn of_one(result: TakeResult) -> Option<Self> {
        let TakeResult::Decided(facts) = result else { return None };
        let TakeInfo { decision, has_state, .. } = facts;
        Some(Self { decision, left: left(&facts), has_state })
    }

    /// Returns the figures of a key and its parents, of which `all` are the decisions.
    pub(crate) fn of_all(result: ChargeResult, all: &[TakeInfo]) -> Option<Self> {
        let figures = Self::of_one(result.all)?;
        let least = all.iter().filter(|facts| !facts.shadow).map(left).min();
        Some(Self { left: least.unwrap_or(figures.left), ..figures })
    }

    /// Returns the reply to a read of the companion; `text` is room for one that is no number.
    fn outcome(self, companion: Companion, unix_ms: u64, text: &mut Vec<u8>) -> Outcome<'_> {
        let Self { decision, left, has_state } = self;
        let reset_ms = milliseconds(decision.reset);
        let retry_ms = decision.retry.map_or(-1, |nanos| milliseconds(nanos).cast_signed());
        let number = match companion {
            Companion::Limit => decision.limit,
            Companion::Remaining => left,
            Companion::Reset => reset_ms,
            Companion::Expires if has_state => (unix_ms + reset_ms).div_ceil(1000),
            Companion::Expire if has_state => unix_ms + reset_ms,
            Companion::Expires | Companion::Expire => return Outcome::Miss,
            Companion::Retry | Companion::Info => {
                let words = match companion {
                    Companion::Retry => retry_ms.to_string(),
                    _ => format!("{} {left} {retry_ms} {reset_ms}", decision.limit),
                };
                text.extend_from_slice(words.as_bytes());
                return Outcome::Hit(ItemView { value: Value::Bytes(text), ..ItemView::default() });
            }
        };
        Outcome::Hit(ItemView { value: Value::Number(number), ..ItemView::default() })
    }
}

/// The units that a limit has left.
fn left(facts: &TakeInfo) -> u64 {
    let is_banned = facts.at == Some(Decider::BAN) && facts.refuses();
    if is_banned { 0 } else { facts.decision.left() }
}

/// Whether a companion shows the figures of the key's own limit alone, of its first policy: a
/// limiter library compares them with the answers of a plain `incr`.
fn is_of_first(companion: Companion) -> bool {
    matches!(companion, Companion::Limit | Companion::Expires | Companion::Expire)
}

/// Returns the reply to an operation that reads no companion. Companions that limiter libraries
/// also write accept writes without effect: a read always returns the live state.
fn unread(companion: Companion, operation: &Operation<'_>) -> Option<Outcome<'static>> {
    let of_a_library = matches!(companion, Companion::Expires | Companion::Expire);
    match operation {
        Operation::Get(_) | Operation::Inspect => None,
        Operation::Set(set) if of_a_library && matches!(set.mode, SetMode::Set | SetMode::Add) => {
            Some(Outcome::Stored(ItemView::default()))
        }
        Operation::Delete(_) if of_a_library => Some(Outcome::Deleted),
        Operation::Touch(_) if of_a_library => Some(Outcome::Touched),
        _ => Some(Outcome::NotAllowed),
    }
}

/// The peek of a companion, at the units that its key asks about.
fn look_of(companion: Companion, key: &[u8]) -> TakeParams {
    TakeParams {
        cost: Companion::units(key),
        peek: true,
        wait: Some(0),
        of_first: is_of_first(companion),
        ..TakeParams::default()
    }
}

/// Returns the look at a key and its parents for an operation on the companion `key`; `None`: the
/// operation needs the counted key alone, or none.
pub(crate) fn look_over_parents(
    found: &LimitMatch<'_>,
    key: &[u8],
    operation: &Operation<'_>,
) -> Option<LimitOp> {
    let companion = found.companion().filter(|one| found.has_parents() && !is_of_first(*one))?;
    unread(companion, operation).is_none().then(|| LimitOp::look(look_of(companion, key)))
}

impl ExecContext<'_> {
    /// Executes a command on a companion, which can be read; `hash` is that of the counted key. The
    /// parents are looked at too, except where this node owns the counted key alone.
    pub(crate) fn companion<'t>(
        &mut self,
        found: &LimitMatch<'_>,
        (companion, key): (Companion, &[u8]),
        operation: &Operation<'_>,
        hash: u64,
        text: &'t mut Vec<u8>,
    ) -> Result<Outcome<'t>, LimitedKeyError> {
        if let Some(outcome) = unread(companion, operation) {
            return Ok(outcome);
        }
        let look = look_of(companion, key);
        let figures = if found.has_parents() && !self.alone && !is_of_first(companion) {
            self.list_charges(found)?;
            let charge_ctx = self.charge_context();
            let Scratch { charges, charge_scratch, .. } = &mut *self.scratch;
            let looked = charges.locked(charge_ctx, |engines| {
                charges.take(charge_ctx, charge_scratch, engines, &look)
            });
            looked.and_then(|result| CompanionFigures::of_all(result, charge_scratch.facts()))
        } else {
            let look = TakeParams { cost: found.cost().capped(look.cost), ..look };
            let looked = self.shards().with_room(self.now, hash, |engine| {
                let policy_ref = Some(self.policy_of(found));
                Some(engine.take(self.now, hash, found.key(), policy_ref, &look))
            });
            looked.and_then(CompanionFigures::of_one)
        };
        Ok(figures.map_or(Outcome::Miss, |one| one.outcome(companion, self.now.unix_ms, text)))
    }

    /// Returns the reply to a read of the companion `found`, from the figures of all owners.
    pub(crate) fn companion_of_owners<'t>(
        &self,
        found: &LimitMatch<'_>,
        figures: Option<CompanionFigures>,
        text: &'t mut Vec<u8>,
    ) -> Outcome<'t> {
        let read = figures.zip(found.companion());
        read.map_or(Outcome::Miss, |(figures, companion)| {
            figures.outcome(companion, self.now.unix_ms, text)
        })
    }
}
