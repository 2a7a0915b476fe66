//! `stats detail`: what happens to keys, by the part of the key before the delimiter.
//!
//! Off unless asked for (`-D`, `stats detail on`), because it takes one lock a command.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::{Command, Operation, write_escaped_key};

/// Most prefixes kept; keys of further ones are not counted, so that hostile keys cost no memory.
const PREFIXES_MAX: usize = 10_000;

#[derive(Debug, Default, Clone, Copy)]
struct Uses {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// Uses by prefix.
#[derive(Debug)]
pub struct Prefixes {
    delimiter: u8,
    enabled: AtomicBool,
    uses: Mutex<HashMap<Vec<u8>, Uses>>,
}

impl Prefixes {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(delimiter: u8, enabled: bool) -> Self {
        let uses = Mutex::new(HashMap::new());
        Self { delimiter, enabled: AtomicBool::new(enabled), uses }
    }

    /// Whether commands are counted.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Begins or ends counting; what was counted stays.
    pub fn enable(&self, on: bool) {
        self.enabled.store(on, Ordering::Relaxed);
    }

    /// What stands before a key's prefix ends.
    #[must_use]
    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Forgets all counts.
    pub fn reset(&self) {
        self.uses.lock().clear();
    }

    /// Counts a command; keys without delimiter have no prefix.
    pub(crate) fn note(&self, command: &Command<'_>, hit: bool) {
        let key = command.key.as_bytes();
        let Some(end) = key.iter().position(|byte| *byte == self.delimiter) else { return };
        let mut all = self.uses.lock();
        if all.len() >= PREFIXES_MAX && !all.contains_key(&key[..end]) {
            return;
        }
        let uses = all.entry_ref(&key[..end]).or_default();
        match &command.operation {
            Operation::Get(_) => {
                uses.gets += 1;
                uses.hits += u64::from(hit);
            }
            Operation::Set(_) | Operation::TooLarge { .. } => uses.sets += 1,
            Operation::Delete(_) => uses.deletes += 1,
            Operation::Arithmetic(_)
            | Operation::Touch(_)
            | Operation::Inspect
            | Operation::Native(_) => {}
        }
    }

    /// Appends the answer of `stats detail dump`.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut rows: Vec<(Vec<u8>, Uses)> =
            self.uses.lock().iter().map(|(prefix, uses)| (prefix.clone(), *uses)).collect();
        rows.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        for (prefix, Uses { gets, hits, sets, deletes }) in rows {
            out.extend_from_slice(b"PREFIX ");
            write_escaped_key(out, &prefix);
            write!(out, " get {gets} hit {hits} set {sets} del {deletes}\r\n")
                .expect("writing to a Vec cannot fail");
        }
        out.extend_from_slice(b"END\r\n");
    }
}
