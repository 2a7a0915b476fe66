//! The keys of a copy: each state is the number of the step that made it, which determines its
//! whole history.

use std::collections::BTreeMap;

use bytes::Bytes;
use cluster::frames::{KeyState, op_flags};
use cluster::replica::{ApplyPosition, StateMachine};

use crate::journal::{Journal, Step};

/// Keys of each partition.
pub(super) const KEYS: u8 = 8;
/// Bytes of an operation's line.
pub(super) const LINE_BYTES: usize = 6;

/// The kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// A counter whose replies wait for the copies.
    Counter,
    /// A counter that is answered early.
    Early,
    /// An item that only some operations change.
    Item,
    /// An item that is sometimes evicted.
    Plain,
}

impl KeyKind {
    pub(super) fn of(key: u8) -> Self {
        [Self::Counter, Self::Early, Self::Item, Self::Plain][usize::from(key % 4)]
    }
}

/// The effect of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Changes the key.
    Add,
    /// Reads the key.
    Look,
    /// Changes the key if its history is even.
    Maybe,
}

/// Encodes an operation: its call, its effect, its key.
pub(super) fn encode(call: u32, verb: Verb, key: u8) -> [u8; LINE_BYTES] {
    let [a, b, c, d] = call.to_le_bytes();
    [a, b, c, d, verb as u8, key]
}

/// The flags of an operation in a `Forward`.
pub(super) fn flags_of(verb: Verb, key: u8) -> u8 {
    let read = if verb == Verb::Look { op_flags::READ } else { 0 };
    let owner = if KeyKind::of(key) == KeyKind::Early { op_flags::OWNER } else { 0 };
    read | owner
}

/// The reply to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// The key was changed.
    pub(super) changed: bool,
    /// The step that made the state; 0: none.
    pub(super) head: u32,
}

impl Answer {
    pub(super) fn encode(self) -> [u8; 5] {
        let [a, b, c, d] = self.head.to_le_bytes();
        [u8::from(self.changed), a, b, c, d]
    }

    /// A changed counter's result is its value alone.
    pub(super) fn of_value(value: u64) -> Self {
        Self { changed: true, head: value as u32 }
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let [changed, head @ ..] = *bytes.first_chunk::<5>().expect("an answer has five bytes");
        Self { changed: changed == 1, head: u32::from_le_bytes(head) }
    }
}

#[derive(Debug, Default)]
pub(super) struct Payload {
    keys: BTreeMap<u8, u32>,
}

/// The bytes of an item, of various lengths.
fn item(step: u32) -> Vec<u8> {
    let mut bytes = step.to_le_bytes().to_vec();
    bytes.resize(4 + step as usize % 30, 7);
    bytes
}

fn step_of(item: &[u8]) -> u32 {
    u32::from_le_bytes(*item.first_chunk().expect("an item has a step"))
}

/// The policy of an item: of three, each for some steps.
fn policy(step: u32) -> Vec<u8> {
    let place = step / 4 % 3;
    vec![b'a' + place as u8; 3 + 7 * place as usize]
}

/// Passes the key's new state, as in a record, to `each`.
pub(super) fn with_record<T>(key: u8, step: u32, each: impl FnOnce(&KeyState<'_>) -> T) -> T {
    match KeyKind::of(key) {
        KeyKind::Item => each(&KeyState::Limit { policy: &policy(step), state: &item(step) }),
        _ => with_state(key, step, each),
    }
}

/// Passes the key's state, as in a chunk, to `each`.
fn with_state<T>(key: u8, step: u32, each: impl FnOnce(&KeyState<'_>) -> T) -> T {
    match KeyKind::of(key) {
        KeyKind::Counter | KeyKind::Early => each(&KeyState::Counter(u64::from(step))),
        KeyKind::Item | KeyKind::Plain => each(&KeyState::Item(&item(step))),
    }
}

impl Payload {
    /// Executes an operation; returns the changed key's step, and the reply.
    pub(super) fn apply(
        &mut self,
        at: ApplyPosition,
        line: &[u8],
        journal: &mut Journal,
    ) -> (Option<(u8, u32)>, Answer) {
        let [a, b, c, d, verb, key] = *line.first_chunk().expect("a line has its length");
        let call = u32::from_le_bytes([a, b, c, d]);
        let head = self.head(key);
        let is_even = journal.step(head).depth.is_multiple_of(2);
        let changes = match verb {
            0 => true,
            1 => false,
            _ => is_even,
        };
        if !changes {
            return (None, Answer { changed: false, head });
        }
        let step = Step { call, term: at.term.0, pt_ns: at.pt_ns, ..Step::default() };
        let head = journal.add(head, step);
        self.keys.insert(key, head);
        (Some((key, head)), Answer { changed: true, head })
    }

    /// The step that made the state of a key.
    pub(super) fn head(&self, key: u8) -> u32 {
        self.keys.get(&key).copied().unwrap_or(0)
    }

    /// Evicts a plain item, if there is one.
    pub(super) fn evict(&mut self) -> Option<u8> {
        let key = self.keys.keys().copied().find(|key| KeyKind::of(*key) == KeyKind::Plain)?;
        self.keys.remove(&key);
        Some(key)
    }

    /// A digest: equal for equal keys and states.
    pub(super) fn digest(&self) -> u64 {
        self.keys.iter().fold(0, |sum: u64, (key, step)| {
            let mixed =
                (u64::from(*key) << 32 | u64::from(*step)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            sum.rotate_left(7) ^ mixed ^ (mixed >> 29)
        })
    }
}

impl StateMachine for Payload {
    fn install(&mut self, _: ApplyPosition, key: &[u8], state: &KeyState<'_>) {
        let key = key[0];
        match state {
            KeyState::Counter(step) => self.keys.insert(key, *step as u32),
            KeyState::Item(bytes) => self.keys.insert(key, step_of(bytes)),
            KeyState::Limit { policy: own, state } => {
                // Under another policy it is the state of no step.
                let step = Some(step_of(state)).filter(|step| policy(*step) == *own);
                self.keys.insert(key, step.unwrap_or(0))
            }
            KeyState::Deleted => self.keys.remove(&key),
            KeyState::Unchanged => None,
        };
    }

    fn export(
        &mut self,
        _: ApplyPosition,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        each: &mut dyn FnMut(&[u8], &KeyState<'_>),
    ) -> Option<Bytes> {
        let mut bytes = 0;
        for (&key, &step) in self.keys.range(cursor.map_or(0, |cursor| cursor[0])..) {
            if bytes > bytes_max {
                return Some(Bytes::copy_from_slice(&[key]));
            }
            with_state(key, step, |state| each(&[key], state));
            bytes += 20;
        }
        None
    }

    fn clear(&mut self) {
        self.keys.clear();
    }
}
