//! `incrx`: a counter with bounds and a ttl, changed in one step.
//!
//! Here: signed arithmetic within ±(2^53 − 1) on a plain item. Not here: limits, which such a
//! counter does not have (`take`).

use protocol::{COUNT_MAX, CasCondition, CountLine, IncrX, Outcome, Ttl, TtlMode, Value};

use crate::engine::Engine;
use crate::store::item::{Content, Item, ItemHeader};
use crate::time::{Deadline, Now};

const MOST: i64 = COUNT_MAX.cast_signed();

impl Engine {
    /// Applies `incrx` to the key of `hash`.
    pub fn incrx(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        incrx: &IncrX<'_>,
    ) -> Outcome<'static> {
        let at = self.at(now, hash, key);
        if at.slot.is_some_and(crate::store::arena::Slot::is_limit_state) {
            return Outcome::NotAllowed;
        }
        let item = at.slot.map(|slot| self.store.item(slot));
        let old = match item.map(signed_value) {
            Some(Some(value)) => value,
            Some(None) => return Outcome::NonNumeric,
            None => incrx.init.unwrap_or(0),
        };
        let header = item.map_or(ItemHeader::new(0, 0, Deadline::NEVER), Item::header);
        let shown_cas = (incrx.cas != CasCondition::None).then_some(header.cas);
        let unchanged = CountLine {
            exists: false,
            value: old,
            applied: 0,
            ttl_ms: header.deadline.left_ms(now),
            cas: shown_cas,
        };
        if let CasCondition::Compare(unique) = incrx.cas
            && unique != header.cas
        {
            return Outcome::Counted(CountLine { exists: true, ..unchanged });
        }
        let Some(new) = bounded(old, incrx) else { return Outcome::Counted(unchanged) };
        if new == old && item.is_some() {
            // Nothing is applied, so the ttl and the cas unique stay too.
            return Outcome::Counted(unchanged);
        }
        let deadline = match (incrx.ttl_mode, item.is_none()) {
            (TtlMode::Touch, _) | (_, true) => deadline(now, incrx.ttl),
            (TtlMode::Set, false) if header.deadline == Deadline::NEVER => deadline(now, incrx.ttl),
            (TtlMode::Set | TtlMode::Keep, false) => header.deadline,
        };
        let header = ItemHeader { cas: self.uniques.next(None), deadline, ..header };
        let text;
        let value = if let Ok(number) = u64::try_from(new) {
            Value::Number(number)
        } else {
            text = new.to_string();
            Value::Bytes(text.as_bytes())
        };
        let content = Content::Value(value);
        if self.store.write(at, header, content).is_err() {
            return Outcome::OutOfMemory;
        }
        Outcome::Counted(CountLine {
            exists: false,
            value: new,
            applied: new - old,
            ttl_ms: deadline.left_ms(now),
            cas: shown_cas.map(|_| header.cas),
        })
    }
}

fn deadline(now: Now, ttl: Ttl) -> Deadline {
    match ttl {
        Ttl::Exptime(exptime) => Deadline::resolve(now, exptime),
        Ttl::Nanos(nanos) => Deadline::after_ms(now, nanos.div_ceil(1_000_000)),
    }
}

/// The value of an item as a signed number; `None` for text, and beyond ±(2^53 − 1).
fn signed_value(item: Item<'_>) -> Option<i64> {
    let number = match item.value() {
        Value::Number(number) => i64::try_from(number).ok()?,
        Value::Bytes(bytes) => match bytes.strip_prefix(b"-") {
            Some(digits) => -i64::try_from(protocol::canonical_u64(digits)?).ok()?,
            None => i64::try_from(protocol::lenient_u64(bytes)?).ok()?,
        },
    };
    (-MOST..=MOST).contains(&number).then_some(number)
}

/// The new value; `None` if a bound forbids it. With `clamp` a counter stops at `max` and `min`.
/// Without `min` it always stops at 0, or with `signed` at the least valid number.
fn bounded(old: i64, incrx: &IncrX<'_>) -> Option<i64> {
    let floor = incrx.min.unwrap_or(if incrx.signed { -MOST } else { 0 });
    let ceiling = incrx.max.unwrap_or(MOST);
    let wanted = old + incrx.delta;
    if wanted > ceiling && incrx.delta >= 0 {
        // An increment never decreases the value: a value above the bound stays.
        return incrx.clamp.then_some(ceiling.max(old));
    }
    if wanted < floor && incrx.delta < 0 {
        let stops = incrx.clamp || incrx.min.is_none();
        return stops.then_some(floor.min(old));
    }
    Some(wanted)
}
