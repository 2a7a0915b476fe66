//! `stats detail`: counts commands by the part of the key before the delimiter.
//!
//! Off by default, because each counted command takes a lock; `-D` and `stats detail on` enable it.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::{Command, Operation, write_escaped_key};

/// Most prefixes counted. Keys of further ones are not counted, so that hostile keys cost no
/// memory.
const PREFIXES_MAX: usize = 10_000;

#[derive(Debug, Default, Clone, Copy)]
struct Uses {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// Counts of commands by prefix.
#[derive(Debug)]
pub struct Prefixes {
    delimiter: u8,
    enabled: AtomicBool,
    uses: Mutex<HashMap<Vec<u8>, Uses>>,
}

impl Prefixes {
    /// Creates an empty set of counts.
    #[must_use]
    pub fn new(delimiter: u8, enabled: bool) -> Self {
        let uses = Mutex::new(HashMap::new());
        Self { delimiter, enabled: AtomicBool::new(enabled), uses }
    }

    /// Returns whether commands are counted.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Starts or stops counting; existing counts stay.
    pub fn enable(&self, on: bool) {
        self.enabled.store(on, Ordering::Relaxed);
    }

    /// Returns the byte that ends a key's prefix.
    #[must_use]
    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    /// Removes all counts.
    pub fn reset(&self) {
        self.uses.lock().clear();
    }

    /// Counts a command; a key without the delimiter is not counted.
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

    /// Writes the reply to `stats detail dump`.
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
