//! The engine as the machine of a replica: counters, limits and plain items, under partition time.
//!
//! Here: operations, states and answers as bytes. Not here: whether answers are right (`check`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use cluster::Term;
use cluster::replica::{At, Bug, Effect, Machine};
use engine::{
    Budget, Engine, IdCopy, IdCursor, IdHash, IdPartition, Ids, KeyChange, KeyHasher, LeaseAsk,
    Leased, LimitRecord, Limited, Nanos, Now, Options, Record, RepeatedAnswer, Rule, Take,
};
use protocol::{
    Algorithm, Arithmetic, Command, CountLine, Delete, Exptime, Key, Oldest, Operation, Outcome,
    Policy, Rate, Set, SetMode, Value,
};

use crate::journal::{Journal, Step};

/// What a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sort {
    /// A counter, answered when it is safe.
    Counter,
    /// A counter, answered early.
    Early,
    /// A token bucket.
    Bucket,
    /// A two-window count.
    Windows,
    /// A token bucket with holds.
    Holds,
    /// A token bucket, answered early.
    EarlyBucket,
    /// A plain item that comes and goes.
    Plain,
    /// A token bucket of which nodes lease quota.
    Leases,
    /// A token bucket whose takes have ids, and are repeated.
    Ids,
}

/// Every sort there is; a key's number is its place here plus a multiple of their count.
pub(crate) const SORTS: [Sort; 9] = [
    Sort::Counter,
    Sort::Early,
    Sort::Bucket,
    Sort::Windows,
    Sort::Holds,
    Sort::EarlyBucket,
    Sort::Plain,
    Sort::Leases,
    Sort::Ids,
];

/// Tokens a bucket holds.
pub(crate) const CAPACITY: u64 = 20;
/// Tokens it gets in a second.
pub(crate) const REFILL: u64 = 40;
/// Units in a window of the two-window count.
pub(crate) const WINDOW_UNITS: u64 = 15;
/// Its length.
pub(crate) const WINDOW_NS: u64 = 1_000_000_000;
/// How long a hold lasts: longer than a run.
const HOLD_NS: u64 = 600_000_000_000;
/// How long a lease of quota holds: longer than a takeover, shorter than a run.
const LEASE_NS: u64 = 5_000_000_000;

impl Sort {
    /// The sort of a key.
    pub(crate) fn of(key: u8) -> Self {
        SORTS[usize::from(key) % SORTS.len()]
    }

    /// Whether it is answered before it is safe.
    pub(crate) fn is_early(self) -> bool {
        matches!(self, Self::Early | Self::EarlyBucket)
    }

    fn policy(self) -> Policy {
        let algorithm = match self {
            Self::Windows => Algorithm::Sliding {
                rate: Rate { count: WINDOW_UNITS, period: WINDOW_NS },
                slices: 1,
                oldest: Oldest::Weighted,
            },
            _ => Algorithm::Bucket {
                rate: Rate { count: REFILL, period: 1_000_000_000 },
                capacity: CAPACITY,
                init: CAPACITY,
                debt: 0,
                warm: None,
                interval: false,
            },
        };
        Policy { algorithm, over: false, shadow: false }
    }
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Adds one to a counter.
    Add,
    /// Reads.
    Look,
    /// Takes units.
    Take(u64),
    /// Takes units under an id: once, however often it is asked.
    Once(u64, u32),
    /// Takes units and holds them.
    Hold(u64),
    /// Settles a hold: the lease, and what it came to.
    Settle(u64, u64),
    /// Leases quota: who asks and what it spent of what it has, and what it wants.
    Lease(Borrower, u64),
    /// Stores so many bytes.
    Put(u64),
    /// Removes.
    Delete,
}

/// Who leases quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Borrower {
    /// Which client.
    pub(crate) client: u32,
    /// Units it says it spent of what it has.
    pub(crate) used: u32,
}

/// An operation on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deed {
    /// Its number in the run.
    pub(crate) call: u32,
    /// The key.
    pub(crate) key: u8,
    /// What to do.
    pub(crate) verb: Verb,
}

/// What an operation came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The last step of the key's history when it was done; its own, if it changed something.
    pub(crate) head: u32,
    /// It changed something.
    pub(crate) changed: bool,
    /// A counter's value; units granted or left.
    pub(crate) value: u64,
    /// The lease of a hold.
    pub(crate) lease: u64,
}

impl Deed {
    /// As bytes.
    pub(crate) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(22);
        out.put_u32(self.call);
        out.put_u8(self.key);
        let (verb, first, second) = match self.verb {
            Verb::Add => (0, 0, 0),
            Verb::Look => (1, 0, 0),
            Verb::Take(cost) => (2, cost, 0),
            Verb::Hold(cost) => (3, cost, 0),
            Verb::Settle(lease, actual) => (4, lease, actual),
            Verb::Put(bytes) => (5, bytes, 0),
            Verb::Delete => (6, 0, 0),
            Verb::Lease(Borrower { client, used }, want) => {
                (7, u64::from(client) << 32 | u64::from(used), want)
            }
            Verb::Once(cost, id) => (8, cost, id.into()),
        };
        out.put_u8(verb);
        out.put_u64(first);
        out.put_u64(second);
        out.into()
    }

    fn decode(mut bytes: &[u8]) -> Self {
        let (call, key, verb) = (bytes.get_u32(), bytes.get_u8(), bytes.get_u8());
        let (first, second) = (bytes.get_u64(), bytes.get_u64());
        let verb = match verb {
            0 => Verb::Add,
            1 => Verb::Look,
            2 => Verb::Take(first),
            3 => Verb::Hold(first),
            4 => Verb::Settle(first, second),
            5 => Verb::Put(first),
            7 => Verb::Lease(Borrower { client: (first >> 32) as u32, used: first as u32 }, second),
            8 => Verb::Once(first, second as u32),
            _ => Verb::Delete,
        };
        Self { call, key, verb }
    }
}

impl Answer {
    fn encode(self) -> [u8; 21] {
        let mut out = [0; 21];
        let mut rest = &mut out[..];
        rest.put_u32(self.head);
        rest.put_u8(u8::from(self.changed));
        rest.put_u64(self.value);
        rest.put_u64(self.lease);
        out
    }

    /// From bytes.
    pub(crate) fn decode(mut bytes: &[u8]) -> Self {
        Self {
            head: bytes.get_u32(),
            changed: bytes.get_u8() != 0,
            value: bytes.get_u64(),
            lease: bytes.get_u64(),
        }
    }
}

/// One copy's keys.
pub(crate) struct Payload {
    engine: Engine,
    hasher: KeyHasher,
    heads: BTreeMap<u8, u32>,
    ids: Ids,
    /// Sum of the hashes in `ids`.
    ids_sum: u64,
    journal: Rc<RefCell<Journal>>,
    term: Term,
    bug: Option<Bug>,
}

fn name(key: u8) -> [u8; 4] {
    [b'k', b'0' + key / 100, b'0' + key / 10 % 10, b'0' + key % 10]
}

fn number(name: &[u8]) -> u8 {
    name[1..].iter().fold(0, |number, digit| number * 10 + (digit - b'0'))
}

fn now(pt_ns: u64) -> Now {
    Now { mono: Nanos(pt_ns), unix_ms: pt_ns / 1_000_000 }
}

/// The time for ids, which goes so slowly that none is over within a run.
fn ids_now(pt_ns: u64) -> Now {
    now(pt_ns / 1000)
}

/// Ids are copied under a name that is no key's.
const IDS_NAME: &[u8] = b"ids";

const MEMORY_BYTES: usize = 64 << 20;

impl Payload {
    /// No keys.
    pub(crate) fn new(journal: Rc<RefCell<Journal>>, bug: Option<Bug>) -> Self {
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let budget = Arc::new(Budget::new(MEMORY_BYTES));
        let engine = Engine::new(hasher.clone(), budget, Options::default());
        let (heads, ids) = (BTreeMap::new(), Ids::default());
        Self { engine, hasher, heads, ids, ids_sum: 0, journal, term: Term(0), bug }
    }

    /// What an id on a key was answered before.
    fn recalled(&self, pt_ns: u64, hash: IdHash) -> Option<u64> {
        match self.ids.find(ids_now(pt_ns), IdPartition::default(), hash, |_| true)? {
            RepeatedAnswer::Counted(line) => Some(line.value.cast_unsigned()),
            RepeatedAnswer::Verdict(_) => None,
        }
    }

    fn put_id(&mut self, pt_ns: u64, copy: &IdCopy) {
        if self.recalled(pt_ns, copy.hash).is_none() {
            self.ids.keep(0, IdPartition::default(), copy, MEMORY_BYTES);
            self.ids_sum = self.ids_sum.wrapping_add(copy.hash.0 as u64);
        }
    }

    /// All ids with their answers, in the order of their hashes.
    pub(crate) fn all_ids(&self, pt_ns: u64) -> Vec<(IdHash, Option<u64>)> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let now = ids_now(pt_ns);
            let partition = IdPartition::default();
            after = self.ids.export(now, partition, after, 100, |copy| all.push(copy.hash));
            if after.is_none() {
                break;
            }
        }
        all.sort_unstable();
        all.into_iter().map(|hash| (hash, self.recalled(pt_ns, hash))).collect()
    }

    /// The last step of a key's history; 0: it has none.
    pub(crate) fn head(&self, key: u8) -> u32 {
        self.heads.get(&key).copied().unwrap_or(0)
    }

    /// The name of a key of which nothing is checked but that copies agree.
    pub(crate) fn plain_name() -> [u8; 4] {
        name(SORTS.iter().position(|sort| *sort == Sort::Plain).unwrap_or(0) as u8)
    }

    /// The last steps of all keys in one number.
    pub(crate) fn digest(&self) -> u64 {
        self.heads.iter().fold(self.ids_sum, |digest, (key, head)| {
            let mixed = digest ^ (u64::from(*key) << 32) ^ u64::from(*head);
            (mixed ^ (mixed >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        })
    }

    /// What the deed does, without the journal: value, lease, and whether something changed. `named`
    /// is the lease of a hold: after a takeover a clock alone would give one again.
    pub(crate) fn perform(
        &mut self,
        pt_ns: u64,
        deed: Deed,
        named: Option<u64>,
    ) -> (u64, u64, bool) {
        let (now, sort, key) = (now(pt_ns), Sort::of(deed.key), name(deed.key));
        let hash = self.hasher.hash(&key);
        let policy = sort.policy();
        let mut take = Take::default();
        match deed.verb {
            Verb::Add | Verb::Put(_) | Verb::Delete => self.plain(now, hash, &key, deed.verb),
            Verb::Look if matches!(sort, Sort::Counter | Sort::Early | Sort::Plain) => {
                self.plain(now, hash, &key, deed.verb)
            }
            Verb::Look => {
                take.peek = true;
                decided(&self.engine.take(now, hash, &key, Some(Rule::from(&policy)), &take))
            }
            Verb::Take(cost) | Verb::Once(cost, _) => {
                take.cost = cost;
                decided(&self.engine.take(now, hash, &key, Some(Rule::from(&policy)), &take))
            }
            Verb::Hold(cost) => {
                take.cost = cost;
                take.hold = Some(HOLD_NS);
                take.lease = named;
                decided(&self.engine.take(now, hash, &key, Some(Rule::from(&policy)), &take))
            }
            Verb::Lease(Borrower { client, used }, want) => {
                let stood = self.state(pt_ns, deed.key);
                let ask = LeaseAsk {
                    client: &client.to_be_bytes(),
                    want,
                    used: used.into(),
                    unused: 0,
                    weight: 1,
                    ttl: Some(LEASE_NS),
                };
                let rule = Rule::from(&policy);
                let granted = match self.engine.lease(now, hash, &key, Some(rule), &ask) {
                    Leased::Told(line) => line.granted,
                    other => panic!("a bucket can be leased, and there is room: {other:?}"),
                };
                (granted, 0, self.state(pt_ns, deed.key) != stood)
            }
            Verb::Settle(lease, actual) => {
                let settled = self.engine.settle(now, hash, &key, lease, actual);
                let found = matches!(settled, Limited::Decided(_));
                (u64::from(found), 0, found)
            }
        }
    }

    fn plain(&mut self, now: Now, hash: u64, key: &[u8], verb: Verb) -> (u64, u64, bool) {
        let value = [b'x'; 64];
        let operation = match verb {
            Verb::Add => Operation::Arithmetic(Arithmetic {
                vivify: Some(Exptime(0)),
                initial: 1,
                ..Arithmetic::plain(1, false)
            }),
            Verb::Put(bytes) => {
                let value = &value[..(bytes as usize).min(value.len())];
                Operation::Set(Set::plain(SetMode::Set, 0, Exptime(0), value))
            }
            Verb::Delete => Operation::Delete(Delete::default()),
            _ => Operation::Inspect,
        };
        let key = Key::plain(key).expect("it is four letters");
        match self.engine.apply(now, hash, &Command { key, operation }) {
            Outcome::Number(item) | Outcome::Stored(item) => (whole(item.value), 0, true),
            Outcome::Hit(item) => (whole(item.value), 0, false),
            Outcome::Deleted => (0, 0, true),
            _ => (0, 0, false),
        }
    }

    /// The state of a key; none where there is nothing, not even a history.
    fn state(&self, pt_ns: u64, key: u8) -> Option<Bytes> {
        let now = now(pt_ns);
        let wanted = name(key);
        let mut out = Vec::with_capacity(48);
        out.put_u32(self.head(key));
        if let Some(record) = self.engine.records(now).find(|record| record.key == wanted) {
            out.put_u8(1);
            out.put_u64(record.cas);
            out.put_u64(record.left_ms.map_or(u64::MAX, |left_ms| now.mono.millis() + left_ms));
            match record.value {
                Value::Number(number) => out.put_u64(number),
                Value::Bytes(bytes) => {
                    out[4] = 2;
                    out.extend_from_slice(bytes);
                }
            }
        } else if let Some(record) =
            self.engine.limit_records(now).find(|record| record.key == wanted)
        {
            out.put_u8(3);
            out.put_u64(record.cas);
            out.put_u64(now.mono.millis() + record.left_ms);
            out.extend_from_slice(record.body);
        } else if self.head(key) == 0 {
            return None;
        } else {
            out.put_u8(0);
        }
        Some(out.into())
    }

    /// All keys with their states.
    pub(crate) fn states(&self, pt_ns: u64) -> BTreeMap<u8, Bytes> {
        let now = now(pt_ns);
        let plain = self.engine.records(now).map(|record| number(record.key));
        let limits = self.engine.limit_records(now).map(|record| number(record.key));
        let mut keys: Vec<u8> = plain.chain(limits).chain(self.heads.keys().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().filter_map(|key| Some((key, self.state(pt_ns, key)?))).collect()
    }

    /// Every number given in an older term is below those of this one.
    fn enter(&mut self, at: At) {
        if at.term != self.term {
            self.term = at.term;
            let key: &[u8] = b"n";
            let (now, hash) = (now(at.pt_ns), self.hasher.hash(key));
            let cas = u64::from(at.term.0) << 40;
            let record = Record {
                key,
                value: Value::Number(0),
                client_flags: 0,
                cas,
                left_ms: None,
                stale: false,
                won: false,
                base64: false,
            };
            assert!(self.engine.restore(now, hash, &record), "there is room");
            self.remove(at.pt_ns, key);
        }
    }

    fn remove(&mut self, pt_ns: u64, key: &[u8]) {
        let hash = self.hasher.hash(key);
        let operation = Operation::Delete(Delete::default());
        let key = Key::plain(key).expect("it is short");
        self.engine.apply(now(pt_ns), hash, &Command { key, operation });
    }
}

fn whole(value: Value<'_>) -> u64 {
    match value {
        Value::Number(number) => number,
        Value::Bytes(bytes) => bytes.len() as u64,
    }
}

/// Units granted, or left on a peek; the lease; whether something changed.
fn decided(limited: &Limited) -> (u64, u64, bool) {
    match limited {
        Limited::Decided(facts) => {
            let decision = &facts.decision;
            (decision.granted, decision.lease.unwrap_or(0), decision.changed)
        }
        _ => (0, 0, false),
    }
}

impl Machine for Payload {
    fn apply(&mut self, at: At, op: &[u8], effect: &mut Effect) {
        self.enter(at);
        let deed = Deed::decode(op);
        let id = match deed.verb {
            Verb::Once(_, id) => Some(self.hasher.id_hash(&name(deed.key), &id.to_be_bytes())),
            _ => None,
        };
        if let Some(value) = id.and_then(|hash| self.recalled(at.pt_ns, hash)) {
            let answer = Answer { head: self.head(deed.key), changed: false, value, lease: 0 };
            effect.answer(&answer.encode());
            return;
        }
        let (value, lease, changed) =
            self.perform(at.pt_ns, deed, Some(u64::from(at.term.0) << 40 | at.lsn));
        let mut head = self.head(deed.key);
        if changed && Sort::of(deed.key) != Sort::Plain {
            let step = Step {
                call: deed.call,
                term: at.term.0,
                pt_ns: at.pt_ns,
                value,
                lease,
                ..Step::default()
            };
            head = self.journal.borrow_mut().add(head, step);
            self.heads.insert(deed.key, head);
        }
        let (key, state) = (name(deed.key), self.state(at.pt_ns, deed.key));
        let id = id.map(|hash| {
            let (exists, applied, ttl_ms, cas) = (false, 0, None, None);
            let value = value.cast_signed();
            let answer = RepeatedAnswer::Counted(CountLine { exists, value, applied, ttl_ms, cas });
            let copy = IdCopy::new(ids_now(at.pt_ns), hash, answer);
            self.put_id(at.pt_ns, &copy);
            copy
        });
        match (id, state) {
            (Some(id), state) if self.bug != Some(Bug::RecordWithoutId) => {
                let mut bytes = Vec::new();
                id.encode_with(&mut bytes, !changed, |out| {
                    out.extend_from_slice(state.as_deref().unwrap_or_default());
                    state.is_some()
                });
                effect.put(&key, &bytes);
            }
            _ if !changed => {}
            (_, Some(state)) => effect.put(&key, &state),
            (_, None) => effect.delete(&key),
        }
        effect.answer(&Answer { head, changed, value, lease }.encode());
    }

    fn install(&mut self, pt_ns: u64, key: &[u8], mut state: Option<&[u8]>) {
        if let (IDS_NAME, Some(mut ids)) = (key, state) {
            while let Some((id, rest)) = IdCopy::decode(ids) {
                self.put_id(pt_ns, &id);
                ids = rest;
            }
            return;
        }
        if let Some(Ok((id, change))) = state.and_then(IdCopy::split) {
            self.put_id(pt_ns, &id);
            state = match change {
                KeyChange::Unchanged => return,
                KeyChange::Gone => None,
                KeyChange::Changed(state) => Some(state),
            };
        }
        let number = number(key);
        let Some(mut state) = state else {
            self.heads.remove(&number);
            self.remove(pt_ns, key);
            return;
        };
        let head = state.get_u32();
        if head != 0 {
            self.heads.insert(number, head);
        }
        let (now, hash) = (now(pt_ns), self.hasher.hash(key));
        let tag = state.get_u8();
        if tag == 0 {
            self.remove(pt_ns, key);
            return;
        }
        let (cas, deadline_ms) = (state.get_u64(), state.get_u64());
        let left_ms = deadline_ms.saturating_sub(now.mono.millis());
        let is_in = if tag == 3 {
            let policy = Sort::of(number).policy();
            let record = LimitRecord { key, client_flags: 0, cas, left_ms, policy, body: state };
            self.engine.restore_limit(now, hash, &record, 0)
        } else {
            let value = if tag == 1 { Value::Number(state.get_u64()) } else { Value::Bytes(state) };
            let record = Record {
                key,
                value,
                client_flags: 0,
                cas,
                left_ms: (deadline_ms != u64::MAX).then_some(left_ms),
                stale: false,
                won: false,
                base64: false,
            };
            self.engine.restore(now, hash, &record)
        };
        assert!(is_in, "there is room");
    }

    fn export(
        &mut self,
        pt_ns: u64,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        out: &mut Vec<(Bytes, Bytes)>,
    ) -> Option<Bytes> {
        // Keys first, then the ids: their place has four bytes.
        let mut after = None;
        match cursor {
            Some(place) if place.len() == 4 => {
                let place = place.try_into().expect("it has four bytes");
                after = Some(IdCursor::of_number(u32::from_be_bytes(place)));
            }
            _ => {
                let first = cursor.map_or(0, |cursor| cursor[0]);
                let mut bytes = 0;
                for (key, state) in self.states(pt_ns).range(first..) {
                    if bytes >= bytes_max {
                        return Some(Bytes::copy_from_slice(&[*key]));
                    }
                    bytes += state.len();
                    out.push((Bytes::copy_from_slice(&name(*key)), state.clone()));
                }
            }
        }
        if self.bug == Some(Bug::CopyWithoutIds) {
            return None;
        }
        let (mut ids, count) = (Vec::new(), 1 + bytes_max / 40);
        let partition = IdPartition::default();
        let next =
            self.ids.export(ids_now(pt_ns), partition, after, count, |copy| copy.encode(&mut ids));
        if !ids.is_empty() {
            out.push((Bytes::from_static(IDS_NAME), ids.into()));
        }
        next.map(|cursor| Bytes::copy_from_slice(&cursor.number().to_be_bytes()))
    }

    fn clear(&mut self) {
        if !self.heads.is_empty() || !self.engine.is_empty() || !self.ids.is_empty() {
            let ids = (std::mem::take(&mut self.ids), self.ids_sum);
            *self = Self::new(Rc::clone(&self.journal), self.bug);
            if self.bug == Some(Bug::ClearWithoutIds) {
                (self.ids, self.ids_sum) = ids;
            }
        }
    }
}
