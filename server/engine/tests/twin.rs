//! The engine against a naive twin: a `BTreeMap` of plain items, with every rule written out from
//! memcached's documentation.
//!
//! Here: all commands on plain items. Not here: the properties of index and arena (their own unit
//! tests).

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use protocol::{
    Arithmetic, Bounds, Command, Delete, Exptime, Get, ItemView, Key, Operation, Outcome, Set,
    SetMode, Value,
};
use tollgate_engine::{Engine, EngineOptions, FastResult, KeyHasher, MemoryCap, Now};

/// An outcome that owns its bytes, so that two can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    Plain(&'static str),
    Item(&'static str, Box<SeenItem>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenItem {
    value: Vec<u8>,
    client_flags: u32,
    cas: u64,
    ttl_seconds: Option<u32>,
    former_ttl_seconds: Option<u32>,
    idle_seconds: u32,
    marks: [bool; 6],
}

fn seen(outcome: &Outcome<'_>) -> Seen {
    let item = |name, item: &ItemView<'_>| {
        let mut value = Vec::new();
        item.value.write(&mut value);
        assert_eq!(value.len(), item.value.len());
        Seen::Item(
            name,
            Box::new(SeenItem {
                value,
                client_flags: item.client_flags,
                cas: item.cas,
                ttl_seconds: item.ttl_seconds,
                former_ttl_seconds: item.former_ttl_seconds,
                idle_seconds: item.idle_seconds,
                marks: [
                    item.fetched,
                    item.stale,
                    item.won,
                    item.already_won,
                    item.base64,
                    item.value_unwanted,
                ],
            }),
        )
    };
    match outcome {
        Outcome::Hit(view) => item("hit", view),
        Outcome::Vivified(view) => item("vivified", view),
        Outcome::Stored(view) => item("stored", view),
        Outcome::Number(view) => item("number", view),
        Outcome::Miss => Seen::Plain("miss"),
        Outcome::NotStored => Seen::Plain("not stored"),
        Outcome::Exists => Seen::Plain("exists"),
        Outcome::NotFound => Seen::Plain("not found"),
        Outcome::Deleted => Seen::Plain("deleted"),
        Outcome::Touched => Seen::Plain("touched"),
        Outcome::NonNumeric => Seen::Plain("non-numeric"),
        Outcome::TooLarge => Seen::Plain("too large"),
        Outcome::OutOfMemory => Seen::Plain("out of memory"),
        other => unreachable!("{other:?} is no answer to a command of memcached"),
    }
}

#[derive(Debug, Clone)]
struct TwinItem {
    value: Vec<u8>,
    client_flags: u32,
    cas: u64,
    ends_ms: Option<u64>,
    used_ms: u64,
    fetched: bool,
    stale: bool,
    won: bool,
    base64: bool,
}

#[derive(Default)]
struct Twin {
    items: BTreeMap<Vec<u8>, TwinItem>,
    last_cas: u64,
    flush_ms: Option<u64>,
}

fn ends(now: Now, exptime: Exptime) -> Option<u64> {
    let now_ms = now.mono.0 / 1_000_000;
    match i64::from(exptime.0) {
        0 => None,
        negative if negative < 0 => Some(now_ms),
        relative if relative <= 2_592_000 => Some(now_ms + relative.cast_unsigned() * 1000),
        absolute => {
            let left_ms = absolute * 1000 - now.unix_ms.cast_signed();
            Some(now_ms + left_ms.max(0).cast_unsigned())
        }
    }
}

/// The number of a value, by a table of the results of `strtoull`; written independently of the
/// engine.
fn number_in(value: &[u8]) -> Option<u64> {
    // A byte that is not UTF-8 is not a digit either.
    let text = String::from_utf8_lossy(value);
    let blanks = [' ', '\t', '\n', '\u{b}', '\u{c}', '\r'];
    let trimmed = text.trim_start_matches(blanks);
    let sign_len = usize::from(trimmed.starts_with(['+', '-']));
    let digits: String = trimmed.chars().skip(sign_len).take_while(char::is_ascii_digit).collect();
    if digits.is_empty() {
        return text.starts_with(blanks).then_some(0);
    }
    let follower = trimmed.chars().nth(sign_len + digits.len());
    let ends = follower.is_none_or(|next| next == '\0' || blanks.contains(&next));
    if trimmed.starts_with('-') || !ends {
        return None;
    }
    digits.parse().ok()
}

impl Twin {
    fn cas(&mut self, explicit: Option<u64>) -> u64 {
        explicit.unwrap_or_else(|| {
            self.last_cas += 1;
            self.last_cas
        })
    }

    fn forget_the_past(&mut self, now: Now) {
        let now_ms = now.mono.0 / 1_000_000;
        if self.flush_ms.is_some_and(|at| at <= now_ms) {
            self.items.clear();
            self.flush_ms = None;
        }
        self.items.retain(|_, item| item.ends_ms.is_none_or(|at| at > now_ms));
    }

    fn flush(&mut self, now: Now, delay: Exptime) {
        self.forget_the_past(now);
        self.flush_ms = None;
        if delay.0 > 0 {
            self.flush_ms = ends(now, delay);
        } else {
            self.items.clear();
        }
    }

    fn show(&self, name: &'static str, now: Now, key: &[u8], before: Option<&TwinItem>) -> Seen {
        let now_ms = now.mono.0 / 1_000_000;
        let item = &self.items[key];
        let left = |item: &TwinItem| left_seconds(now, item);
        let earlier = before.unwrap_or(item);
        Seen::Item(
            name,
            Box::new(SeenItem {
                value: item.value.clone(),
                client_flags: item.client_flags,
                cas: item.cas,
                ttl_seconds: left(item),
                former_ttl_seconds: left(earlier),
                idle_seconds: ((now_ms / 100 - earlier.used_ms / 100) / 10) as u32,
                marks: [earlier.fetched, item.stale, false, false, item.base64, false],
            }),
        )
    }

    fn apply(&mut self, now: Now, key: &[u8], operation: &Operation<'_>, bounds: Bounds) -> Seen {
        self.forget_the_past(now);
        match operation {
            Operation::Get(get) => self.get(now, key, get),
            Operation::Set(set) => self.set(now, key, set, bounds),
            Operation::Delete(delete) => self.delete(now, key, delete),
            Operation::Arithmetic(arithmetic) => self.count(now, key, arithmetic),
            Operation::Touch(exptime) => match self.items.get_mut(key) {
                None => Seen::Plain("not found"),
                Some(item) => {
                    item.ends_ms = ends(now, *exptime);
                    item.used_ms = now.mono.0 / 1_000_000;
                    Seen::Plain("touched")
                }
            },
            Operation::Inspect if self.items.contains_key(key) => self.show("hit", now, key, None),
            Operation::Inspect => Seen::Plain("miss"),
            Operation::Native(_) => unreachable!("only memcached's own commands are drawn"),
            Operation::TooLarge { drop } => {
                if *drop {
                    self.items.remove(key);
                }
                Seen::Plain("too large")
            }
        }
    }

    fn new_item(
        &mut self,
        now: Now,
        value: &[u8],
        exptime: Exptime,
        new_cas: Option<u64>,
        base64: bool,
    ) -> TwinItem {
        TwinItem {
            value: value.to_vec(),
            client_flags: 0,
            cas: self.cas(new_cas),
            ends_ms: ends(now, exptime),
            used_ms: now.mono.0 / 1_000_000,
            fetched: false,
            stale: false,
            won: false,
            base64,
        }
    }

    fn get(&mut self, now: Now, key: &[u8], get: &Get) -> Seen {
        let now_ms = now.mono.0 / 1_000_000;
        let Some(before) = self.items.get(key).cloned() else {
            let Some(exptime) = get.vivify else { return Seen::Plain("miss") };
            let mut item = self.new_item(now, b"", exptime, get.new_cas, get.base64);
            item.won = true;
            self.items.insert(key.to_vec(), item);
            let mut seen = self.show("vivified", now, key, None);
            if let Seen::Item(_, item) = &mut seen {
                item.marks[2] = true;
            }
            return seen;
        };
        let left_s = before.ends_ms.map(|at| (at - now_ms).div_ceil(1000).cast_signed());
        let left_s = match get.touch {
            Some(exptime) if get.touch_is_first => {
                ends(now, exptime).map(|at| at.saturating_sub(now_ms).div_ceil(1000).cast_signed())
            }
            _ => left_s,
        };
        let soon = match (get.recache, left_s) {
            (Some(seconds), Some(left)) => left < i64::from(seconds),
            _ => false,
        };
        let wins = get.may_win && !before.won && (before.stale || soon);
        let item = self.items.get_mut(key).expect("it was just there");
        item.won |= wins;
        if let Some(exptime) = get.touch {
            item.ends_ms = ends(now, exptime);
        }
        if !get.no_bump {
            item.fetched = true;
            item.used_ms = now_ms;
        }
        let unwanted = get.unless_cas == Some(before.cas);
        let mut seen = self.show("hit", now, key, Some(&before));
        if let Seen::Item(_, item) = &mut seen {
            item.marks[2] = wins;
            item.marks[3] = before.won;
            item.marks[5] = unwanted;
        }
        seen
    }

    fn set(&mut self, now: Now, key: &[u8], set: &Set<'_>, bounds: Bounds) -> Seen {
        let old = self.items.get(key).cloned();
        let extends = matches!(set.mode, SetMode::Append | SetMode::Prepend);
        match (&old, set.mode) {
            (Some(_), SetMode::Add) => {
                self.items.get_mut(key).expect("it is there").used_ms = now.mono.0 / 1_000_000;
                return Seen::Plain("not stored");
            }
            (None, SetMode::Replace) if set.compare_cas.is_none() => {
                return Seen::Plain("not stored");
            }
            (None, _) if extends && set.vivify.is_none() => return Seen::Plain("not stored"),
            _ => {}
        }
        let mut stale = false;
        let is_whole = matches!(set.mode, SetMode::Set | SetMode::Replace);
        match (set.compare_cas, &old) {
            (Some(_), None) if is_whole => return Seen::Plain("not found"),
            (None, _) | (_, None) => {}
            (Some(0), Some(_)) if extends => {}
            (Some(unique), Some(item)) if item.cas == unique => {}
            (Some(unique), Some(item))
                if is_whole && set.invalidate && unique > 0 && unique < item.cas =>
            {
                stale = true;
            }
            (Some(_), Some(_)) => return Seen::Plain("exists"),
        }
        let item = if let (true, Some(old)) = (extends, &old) {
            let value = match set.mode {
                SetMode::Append => [&old.value[..], set.value].concat(),
                _ => [set.value, &old.value[..]].concat(),
            };
            if !bounds.fits(key.len(), value.len()) {
                return Seen::Plain("not stored");
            }
            let fresh = self.new_item(now, &value, set.exptime, set.new_cas, old.base64);
            TwinItem {
                client_flags: old.client_flags,
                ends_ms: old.ends_ms,
                fetched: old.fetched,
                ..fresh
            }
        } else {
            let exptime = match set.vivify {
                Some(exptime) if extends => exptime,
                _ => set.exptime,
            };
            let mut item = self.new_item(now, set.value, exptime, set.new_cas, set.base64);
            item.client_flags = set.client_flags;
            item.stale = stale;
            item.won = stale && old.as_ref().is_some_and(|old| old.won);
            if let (true, Some(old)) = (stale, &old) {
                item.ends_ms = old.ends_ms;
            }
            item
        };
        self.items.insert(key.to_vec(), item);
        let mut seen = self.show("stored", now, key, None);
        clear_fetched(&mut seen, self.items[key].fetched);
        seen
    }

    fn delete(&mut self, now: Now, key: &[u8], delete: &Delete) -> Seen {
        let Some(item) = self.items.get(key).cloned() else { return Seen::Plain("not found") };
        if delete.compare_cas.is_some_and(|unique| unique != item.cas) {
            return Seen::Plain("exists");
        }
        if !delete.stale && !delete.drop_value {
            self.items.remove(key);
            return Seen::Plain("deleted");
        }
        let mut item = item;
        item.cas = self.cas(delete.new_cas);
        if delete.stale {
            item.stale = true;
            item.won = false;
            item.ends_ms = delete.exptime.map_or(item.ends_ms, |exptime| ends(now, exptime));
        }
        if delete.drop_value {
            item.value.clear();
            item.client_flags = delete.client_flags;
            item.ends_ms = delete.exptime.and_then(|exptime| ends(now, exptime));
            item.fetched = false;
            (item.stale, item.won) = (delete.stale, false);
            item.used_ms = now.mono.0 / 1_000_000;
        }
        self.items.insert(key.to_vec(), item);
        Seen::Plain("deleted")
    }

    fn count(&mut self, now: Now, key: &[u8], arithmetic: &Arithmetic) -> Seen {
        let Some(item) = self.items.get(key).cloned() else {
            let Some(exptime) = arithmetic.vivify else { return Seen::Plain("not found") };
            let text = arithmetic.initial.to_string();
            let item =
                self.new_item(now, text.as_bytes(), exptime, arithmetic.new_cas, arithmetic.base64);
            self.items.insert(key.to_vec(), item);
            return self.show("number", now, key, None);
        };
        if arithmetic.compare_cas.is_some_and(|unique| unique != item.cas) {
            return Seen::Plain("exists");
        }
        let Some(number) = number_in(&item.value) else { return Seen::Plain("non-numeric") };
        let wide = i128::from(number)
            + i128::from(arithmetic.delta) * if arithmetic.decrement { -1 } else { 1 };
        let number = if arithmetic.decrement { wide.max(0) } else { wide % (1 << 64) };
        let mut item = item;
        item.value = number.to_string().into_bytes();
        item.cas = self.cas(arithmetic.new_cas);
        item.ends_ms = arithmetic.exptime.map_or(item.ends_ms, |exptime| ends(now, exptime));
        item.used_ms = now.mono.0 / 1_000_000;
        let before = self.items.insert(key.to_vec(), item);
        let mut seen = self.show("number", now, key, None);
        if let (Seen::Item(_, item), Some(before)) = (&mut seen, before) {
            item.former_ttl_seconds = left_seconds(now, &before);
        }
        seen
    }
}

fn left_seconds(now: Now, item: &TwinItem) -> Option<u32> {
    let now_ms = now.mono.0 / 1_000_000;
    item.ends_ms.map(|at| at.saturating_sub(now_ms).div_ceil(1000) as u32)
}

fn clear_fetched(seen: &mut Seen, fetched: bool) {
    if let Seen::Item(_, item) = seen {
        item.marks[0] = fetched;
    }
}

fn any_exptime() -> impl Strategy<Value = Exptime> {
    prop_oneof![
        4 => Just(0),
        6 => 1..5_i32,
        1 => Just(-1),
        1 => Just(2_592_000),
        1 => Just(2_592_001),
        2 => 1_700_000_000..1_700_000_010_i32,
        1 => Just(i32::MAX),
    ]
    .prop_map(Exptime)
}

fn any_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        4 => (0..20_u64).prop_map(|number| number.to_string().into_bytes()),
        2 => (u64::from(u32::MAX) - 3..u64::from(u32::MAX) + 3)
            .prop_map(|number| number.to_string().into_bytes()),
        2 => "[ +]?0{0,3}[0-9]{0,21}[ x]?".prop_map(String::into_bytes),
        2 => prop::collection::vec(any::<u8>(), 0..400),
        1 => prop::collection::vec(any::<u8>(), 1000..3000),
    ]
}

fn any_delta() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..5_u64, 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => Just(1 << 32)]
}

/// Uniques near those assigned, so that some match.
fn any_cas() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![4 => Just(None), 3 => (0..60_u64).prop_map(Some), 1 => any::<u64>().prop_map(Some)]
}

fn maybe_exptime() -> impl Strategy<Value = Option<Exptime>> {
    prop::option::weighted(0.3, any_exptime())
}

/// A command with its value beside it, because commands borrow.
#[derive(Debug, Clone)]
enum Step {
    Get(Get),
    Set(SetMode, u32, Exptime, Vec<u8>, Option<u64>, Option<u64>, bool, Option<Exptime>),
    Delete(Delete),
    Arithmetic(Arithmetic),
    Touch(Exptime),
    Inspect,
    TooLarge(bool),
    Flush(Exptime),
    Sweep(usize),
}

fn any_get() -> impl Strategy<Value = Step> {
    let get = (maybe_exptime(), maybe_exptime(), prop::option::of(0..5_i32), any_cas(), any_cas());
    (get, any::<[bool; 3]>()).prop_map(
        |((touch, vivify, recache, unless_cas, new_cas), [no_bump, may_win, touch_is_first])| {
            let base64 = no_bump;
            Step::Get(Get {
                touch,
                vivify,
                recache,
                touch_is_first,
                unless_cas,
                new_cas,
                no_bump,
                base64,
                may_win,
            })
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        3 => Just(SetMode::Set),
        1 => Just(SetMode::Add),
        1 => Just(SetMode::Replace),
        1 => Just(SetMode::Append),
        1 => Just(SetMode::Prepend),
    ];
    let set = (
        mode,
        any::<u32>(),
        any_exptime(),
        any_value(),
        any_cas(),
        any_cas(),
        any::<bool>(),
        maybe_exptime(),
    )
        .prop_map(|(mode, flags, exptime, value, compare, new, invalidate, vivify)| {
            Step::Set(mode, flags, exptime, value, compare, new, invalidate, vivify)
        });
    let delete = (any_cas(), any_cas(), any::<bool>(), maybe_exptime(), any::<bool>()).prop_map(
        |(compare_cas, new_cas, stale, exptime, drop_value)| {
            let client_flags = new_cas.unwrap_or_default() as u32;
            let delete = Delete { compare_cas, new_cas, stale, exptime, drop_value, client_flags };
            Step::Delete(delete)
        },
    );
    let count = (
        any::<bool>(),
        any_delta(),
        maybe_exptime(),
        any_delta(),
        maybe_exptime(),
        any_cas(),
        any_cas(),
    )
        .prop_map(|(decrement, delta, vivify, initial, exptime, compare_cas, new_cas)| {
            Step::Arithmetic(Arithmetic {
                decrement,
                delta,
                vivify,
                initial,
                exptime,
                compare_cas,
                new_cas,
                base64: decrement,
            })
        });
    prop_oneof![
        6 => any_get(),
        6 => Just(Step::Get(Get::default())),
        8 => set,
        3 => delete,
        8 => count,
        8 => (any_delta(), any::<bool>())
            .prop_map(|(delta, decrement)| Step::Arithmetic(Arithmetic::plain(delta, decrement))),
        2 => any_exptime().prop_map(Step::Touch),
        2 => Just(Step::Inspect),
        1 => any::<bool>().prop_map(Step::TooLarge),
        1 => any_exptime().prop_map(Step::Flush),
        2 => (0..10_usize).prop_map(Step::Sweep),
    ]
}

fn operation(step: &Step) -> Option<Operation<'_>> {
    Some(match step {
        Step::Get(get) => Operation::Get(*get),
        Step::Set(mode, client_flags, exptime, value, compare_cas, new_cas, invalidate, vivify) => {
            Operation::Set(Set {
                mode: *mode,
                client_flags: *client_flags,
                exptime: *exptime,
                value,
                compare_cas: *compare_cas,
                new_cas: *new_cas,
                invalidate: *invalidate,
                vivify: *vivify,
                base64: false,
            })
        }
        Step::Delete(delete) => Operation::Delete(*delete),
        Step::Arithmetic(arithmetic) => Operation::Arithmetic(*arithmetic),
        Step::Touch(exptime) => Operation::Touch(*exptime),
        Step::Inspect => Operation::Inspect,
        Step::TooLarge(drop) => Operation::TooLarge { drop: *drop },
        Step::Flush(_) | Step::Sweep(_) => return None,
    })
}

/// Value and client flags that the fast path found, or `None` if there was no item; outer `None`
/// for the general path.
type ShortSeen = Option<Option<(Vec<u8>, u32)>>;

fn in_place(
    engine: &mut Engine,
    now: Now,
    hash: u64,
    key: &[u8],
    operation: &Operation<'_>,
) -> ShortSeen {
    let text = |value: Value<'_>| {
        let mut text = Vec::new();
        value.write(&mut text);
        text
    };
    let came = match operation {
        Operation::Get(get) if *get == Get::default() => {
            engine.get_in_place(now, hash, key, |value, client_flags| (text(value), client_flags))
        }
        Operation::Arithmetic(asked)
            if *asked == Arithmetic::plain(asked.delta, asked.decrement) =>
        {
            match engine.count_in_place(now, hash, key, asked.delta, asked.decrement) {
                // The result has no client flags.
                FastResult::Done(number) => {
                    FastResult::Done((text(Value::Number(number)), u32::MAX))
                }
                FastResult::Missing => FastResult::Missing,
                FastResult::General => FastResult::General,
            }
        }
        _ => return None,
    };
    match came {
        FastResult::Done(seen) => Some(Some(seen)),
        FastResult::Missing => Some(None),
        FastResult::General => None,
    }
}

/// The expected result of the fast path.
fn value_seen(expected: &Seen) -> Option<(Vec<u8>, u32)> {
    match expected {
        Seen::Item("hit", item) => Some((item.value.clone(), item.client_flags)),
        Seen::Item("number", item) => Some((item.value.clone(), u32::MAX)),
        Seen::Plain("miss" | "not found") => None,
        other => panic!("{other:?} is none of the short way"),
    }
}

/// Steps for which memory is prefetched at once.
const AHEAD: usize = 5;

proptest! {
    #![proptest_config(ProptestConfig { cases: 8 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_agrees_with_a_plain_map(
        steps in prop::collection::vec((0..6_usize, 0..1500_u64, any_step()), 1..80)
    ) {
        let keys: Vec<Vec<u8>> = vec![
            b"a".to_vec(), b"bb".to_vec(), vec![b'k'; 20], vec![b'k'; 21], vec![b'l'; 250], b"z".to_vec(),
        ];
        let bounds = Bounds { item_bytes_max: 4096 };
        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let memory_cap = Arc::new(MemoryCap::new(64 << 20));
        let options = EngineOptions { bounds, ..EngineOptions::default() };
        let mut engine = Engine::new(hasher.clone(), Arc::clone(&memory_cap), options);
        let mut twin = Twin::default();
        let mut now_ms = 1000;
        for (at, (key, pause_ms, step)) in steps.iter().enumerate() {
            if at % AHEAD == 0 {
                // As a server does for a batch: a prefetched slot is old when it is used.
                for (key, ..) in steps.iter().skip(at).take(AHEAD) {
                    let hash = hasher.hash(&keys[*key]);
                    engine.prefetch_line(hash);
                    if !engine.prefetch_item(hash) {
                        engine.prefetch_item_behind(hash);
                    }
                }
            }
            now_ms += pause_ms;
            let (now, key) = (Now::at_ms(now_ms), keys[*key].as_slice());
            match (step, operation(step)) {
                (Step::Flush(delay), _) => {
                    engine.flush(now, *delay);
                    twin.flush(now, *delay);
                }
                (Step::Sweep(count), _) => {
                    engine.sweep(now, *count);
                }
                (_, Some(operation)) => {
                    let expected = twin.apply(now, key, &operation, bounds);
                    let hash = hasher.hash(key);
                    if let Some(came) = in_place(&mut engine, now, hash, key, &operation) {
                        prop_assert_eq!(came, value_seen(&expected), "{:?} at {} ms", step, now_ms);
                        continue;
                    }
                    let command = Command { key: Key::plain(key).expect("a key"), operation };
                    let outcome = engine.apply(now, hash, &command);
                    prop_assert_eq!(seen(&outcome), expected, "{:?} at {} ms", step, now_ms);
                }
                _ => {}
            }
        }
        let now = Now::at_ms(now_ms);
        twin.forget_the_past(now);
        // To the end of the current round, and one more round.
        while !engine.sweep(now, 1000) {}
        while !engine.sweep(now, 1000) {}
        prop_assert_eq!(engine.len(), twin.items.len());
        let mut records = 0;
        for record in engine.records(now) {
            let mut value = Vec::new();
            record.value.write(&mut value);
            prop_assert_eq!(&twin.items[record.key].value, &value);
            records += 1;
        }
        prop_assert_eq!(records, twin.items.len());
        engine.flush(now, Exptime::NEVER);
        prop_assert_eq!(engine.item_bytes(), 0);
        drop(engine);
        prop_assert_eq!(memory_cap.used_bytes(), 0);
    }
}
