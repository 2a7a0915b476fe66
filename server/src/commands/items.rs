//! The classic and meta verbs on a key: from a decoded request to its reply.
//!
//! Not here: limited keys (`limited_keys`), the native verbs (`native`), commands without a key
//! (`admin`).

use engine::Engine;
use protocol::{Command, Form, Operation, Outcome, SetMode, encode, encode_hit, encode_inspection};
use tollgate_limits::LimitMatch;

use crate::commands::context::ExecContext;
use crate::commands::fast::LOCKED_VALUE_BYTES_MAX;
use crate::commands::limited_keys::{inline_policy, write_error};
use crate::commands::lookup::KeyLookup;
use crate::probe::SampledVerb;

impl ExecContext<'_> {
    /// Writes the reply to a retrieval of one key, without `END`.
    pub(crate) fn retrieve_one(
        &mut self,
        command: &Command<'_>,
        lookup: &KeyLookup<'_>,
        with_cas: bool,
        out: &mut Vec<u8>,
    ) {
        match &lookup.key_limit {
            Ok(None) => self.retrieve(command, lookup.hash, with_cas, out),
            Ok(Some(found)) => self.limited_retrieve(found, command, lookup.hash, with_cas, out),
            // A key that its limit cannot count has no usage.
            Err(_) => {}
        }
    }

    pub(crate) fn one_key(
        &mut self,
        command: &Command<'_>,
        form: &Form<'_>,
        key: &KeyLookup<'_>,
        out: &mut Vec<u8>,
    ) {
        let hash = key.hash;
        let found = match &key.key_limit {
            Ok(found) => found.as_ref(),
            Err(error) => return write_error(&error.to_string(), form, out),
        };
        if let Operation::Native(native) = &command.operation {
            return self.native(command, native, form, hash, found, out);
        }
        if let Some(token) = inline_policy(&command.operation, form)
            && found.is_none_or(|found| found.companion().is_none())
        {
            let counted = found.map_or(command.key.as_bytes(), LimitMatch::key);
            return self.inline_policy_command(token, counted, command, form, hash, out);
        }
        match found {
            None => self.command(command, form, hash, out),
            Some(found) => self.limited_command(found, command, form, hash, out),
        }
    }

    fn command(&self, command: &Command<'_>, form: &Form<'_>, hash: u64, out: &mut Vec<u8>) {
        self.shards().apply(self.now, hash, command, |outcome| {
            self.answer_command(command, form, &outcome, out);
        });
        self.record_command(command, form, hash);
    }

    /// Records an `incr` or `ma` that no limit binds, and nothing else.
    #[inline]
    fn record_command(&self, command: &Command<'_>, form: &Form<'_>, hash: u64) {
        if let Operation::Arithmetic(arithmetic) = &command.operation
            && !arithmetic.decrement
            && self.counters.probe.records(hash)
        {
            let meta = matches!(form, Form::Meta { .. });
            let verb = if meta { SampledVerb::MetaArithmetic } else { SampledVerb::Incr };
            self.record_plain((hash, command.key.as_bytes()), verb, arithmetic.delta);
        }
    }

    /// Like `one_key`, for a key without a limit whose shard is locked, and a command that does not
    /// [need its own lock](needs_own_lock). Returns false, without a reply, if the store is full:
    /// the caller must make room in other shards.
    pub(crate) fn command_at(
        &self,
        engine: &mut Engine,
        command: &Command<'_>,
        form: &Form<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        match engine.apply(self.now, hash, command) {
            Outcome::OutOfMemory => false,
            outcome => {
                self.answer_command(command, form, &outcome, out);
                self.record_command(command, form, hash);
                true
            }
        }
    }

    fn answer_command(
        &self,
        command: &Command<'_>,
        form: &Form<'_>,
        outcome: &Outcome<'_>,
        out: &mut Vec<u8>,
    ) {
        let meta = matches!(form, Form::Meta { .. });
        self.counters.cmd_meta.add(u64::from(meta));
        self.note(command, outcome, meta);
        encode_outcome(out, command, form, outcome);
    }

    fn retrieve(&self, command: &Command<'_>, hash: u64, with_cas: bool, out: &mut Vec<u8>) {
        self.shards().apply(self.now, hash, command, |outcome| {
            self.note(command, &outcome, false);
            if let Outcome::Hit(item) = &outcome {
                encode_hit(out, command.key.as_bytes(), item, with_cas);
            }
        });
    }

    /// Counts a command as memcached's `stats` does (`docs/reference/stats.md`).
    pub(crate) fn note(&self, command: &Command<'_>, outcome: &Outcome<'_>, meta: bool) {
        let counters = self.counters;
        let hit = !matches!(outcome, Outcome::Miss | Outcome::Vivified(_) | Outcome::NotFound);
        let vivified = matches!(outcome, Outcome::Vivified(_));
        match &command.operation {
            // A miss of `mg` with `T` counts as a miss of `mg`, as in memcached.
            Operation::Get(get) if get.touch.is_some() && (hit || !meta) => {
                counters.cmd_touch.add(1);
                if hit { &counters.touch_hits } else { &counters.touch_misses }.add(1);
            }
            Operation::Get(_) => {
                counters.cmd_get.add(1);
                // An item created by `N` counts as found, as in memcached.
                counters.total_items.add(u64::from(vivified));
                if hit || vivified { &counters.get_hits } else { &counters.get_misses }.add(1);
            }
            Operation::Arithmetic(arithmetic) => match (outcome, arithmetic.decrement) {
                (Outcome::Number(_) | Outcome::Refused(_) | Outcome::NotStored, false) => {
                    counters.incr_hits.add(1);
                }
                (Outcome::Number(_), true) => counters.decr_hits.add(1),
                (Outcome::NotFound, false) => counters.incr_misses.add(1),
                (Outcome::NotFound, true) => counters.decr_misses.add(1),
                _ => {}
            },
            Operation::Set(set) => {
                counters.cmd_set.add(1);
                match outcome {
                    Outcome::Stored(_) => counters.total_items.add(1),
                    Outcome::OutOfMemory => counters.store_no_memory.add(1),
                    _ => {}
                }
                if set.compare_cas.is_some() {
                    match outcome {
                        Outcome::Stored(_) => counters.cas_hits.add(1),
                        Outcome::Exists => counters.cas_badval.add(1),
                        Outcome::NotFound => counters.cas_misses.add(1),
                        _ => {}
                    }
                }
            }
            Operation::Delete(delete) => match outcome {
                // The item stays in the store.
                Outcome::Deleted if delete.stale || delete.drop_value => {}
                Outcome::Deleted => counters.delete_hits.add(1),
                _ => counters.delete_misses.add(1),
            },
            Operation::Touch(_) => {
                counters.cmd_touch.add(1);
                if hit { &counters.touch_hits } else { &counters.touch_misses }.add(1);
            }
            Operation::TooLarge { .. } => counters.store_too_large.add(1),
            Operation::Inspect | Operation::Native(_) => {}
        }
        self.service.note_prefix(command, hit);
    }
}

/// Returns whether a command must not be applied while other shards are locked, because it takes
/// more than one step or copies a value of any length.
#[inline]
pub(crate) fn needs_own_lock(command: &Command<'_>, form: &Form<'_>) -> bool {
    match &command.operation {
        Operation::Native(_) => true,
        Operation::Set(set) => {
            let is_joined = matches!(set.mode, SetMode::Append | SetMode::Prepend);
            is_joined || set.value.len() > LOCKED_VALUE_BYTES_MAX
        }
        operation => inline_policy(operation, form).is_some(),
    }
}

/// Writes the reply for an outcome; `me` has its own format.
pub(crate) fn encode_outcome(
    out: &mut Vec<u8>,
    command: &Command<'_>,
    form: &Form<'_>,
    outcome: &Outcome<'_>,
) {
    match (&command.operation, outcome) {
        (Operation::Inspect, Outcome::Hit(item)) => {
            let key = command.key.as_bytes();
            let bytes = key.len() + item.value.len() + protocol::ITEM_OVERHEAD_BYTES;
            encode_inspection(out, key, item, bytes);
        }
        _ => encode(out, command, form, outcome),
    }
}

pub(crate) fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}
