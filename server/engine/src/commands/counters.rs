//! Counters: the effect of `incr`, `decr` and `ma` on a plain item.
//!
//! Here: memcached's rules. Not here: `incrx` (`incrx`), the same commands on a limited key
//! (`limited_keys`), the fast path (`fast`).

use protocol::{Arithmetic, ItemView, Outcome, Value, lenient_u64};

use super::fast;
use super::items::view_without_value;
use crate::engine::Engine;
use crate::store::Located;
use crate::store::item::{ItemFlag, ItemHeader};
use crate::time::Deadline;

impl Engine {
    pub(super) fn count(&mut self, at: Located<'_>, arithmetic: &Arithmetic) -> Outcome<'_> {
        let Some(slot) = at.slot else {
            let Some(exptime) = arithmetic.vivify else { return Outcome::NotFound };
            let cas = self.uniques.next(arithmetic.new_cas);
            let header = ItemHeader::new(cas, 0, Deadline::resolve(at.now, exptime))
                .mark(ItemFlag::BASE64, arithmetic.base64);
            let written = self.write(at, header, Value::Number(arithmetic.initial));
            return counted(written, |item| ItemView { is_new: true, ..item });
        };
        let mut item = self.store.item_mut(slot);
        let former_cas = item.as_item().cas();
        if arithmetic.compare_cas.is_some_and(|unique| unique != former_cas) {
            return Outcome::Exists;
        }
        let number = match item.as_item().value() {
            Value::Number(number) => number,
            Value::Bytes(bytes) => match lenient_u64(bytes) {
                Some(number) => number,
                None => return Outcome::NonNumeric,
            },
        };
        let number = fast::counted(number, arithmetic.delta, arithmetic.decrement);
        let cas = self.uniques.next(arithmetic.new_cas);
        let former_ttl_seconds = item.as_item().deadline().left_seconds(at.now);
        let deadline = arithmetic.exptime.map(|exptime| Deadline::resolve(at.now, exptime));
        if item.set_number(number) {
            item.set_cas(cas);
            if let Some(deadline) = deadline {
                item.set_deadline(deadline);
            }
            item.touch(at.now);
            let value = Value::Number(number);
            let view = view_without_value(item.as_item(), at.now);
            self.store.note_cas(former_cas, cas);
            return Outcome::Number(ItemView { value, former_ttl_seconds, ..view });
        }
        // A number in text, or a count that outgrows 32 bits, needs another layout.
        let mut header = item.as_item().header();
        header.cas = cas;
        header.deadline = deadline.unwrap_or(header.deadline);
        let written = self.write(at, header, Value::Number(number));
        counted(written, |item| ItemView { former_ttl_seconds, ..item })
    }
}

fn counted<'a>(
    outcome: Outcome<'a>,
    adjust: impl FnOnce(ItemView<'a>) -> ItemView<'a>,
) -> Outcome<'a> {
    match outcome {
        Outcome::Stored(item) => Outcome::Number(adjust(item)),
        refused => refused,
    }
}
