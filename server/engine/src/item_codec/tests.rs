//! Tests of copies: marks show every change, a stored copy equals its item, an export is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use protocol::{
    Arithmetic, CasCondition, Command, Delete, Exptime, Get, IncrX, Key, Operation, Policy, Set,
    SetMode, Ttl, TtlMode,
};

use super::*;
use crate::{
    EngineOptions, KeyHasher, LeaseParams, LeaseResult, MemoryCap, PartitionPrefix, PolicyRef,
    SetUsage, TakeParams, TakeResult,
};

const POLICIES: [&str; 13] = [
    "bucket:5/1s",
    "bucket:5/1s,debt=3,over",
    "bucket:9/2s,init=2,warm=3s",
    "gcra:5/1s,burst=3,shadow",
    "leaky:5/1s,capacity=4",
    "leaky:5/1s,capacity=4,wait=300ms",
    "fixed:5/1s",
    "fixed:5/1m,align=calendar,phase=auto",
    "sliding:200/2s",
    "fixed:3/1s;bucket:5/2s;log:4/1s;ban=2/1s,for=1s,max=3s",
    "sliding:6/1s,slices=4",
    "log:4/1s",
    "concurrency:3,hold=1s",
];
const KEYS: usize = 4;

fn policies() -> [Policy; 13] {
    POLICIES.map(|token| Policy::parse_list(token.as_bytes()).expect(token))
}

fn hasher() -> KeyHasher {
    KeyHasher::new([1, 2, 3, 4])
}

fn engine(options: EngineOptions) -> Engine {
    Engine::new(hasher(), Arc::new(MemoryCap::new(64 << 20)), options)
}

fn key_of(index: usize) -> Vec<u8> {
    format!("key{index}{}", "k".repeat(index * 20)).into_bytes()
}

fn copy(engine: &Engine, key: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    engine.copy_of(hasher().hash(key), key, &mut bytes).then_some(bytes)
}

/// The random numbers that determine a step.
#[derive(Debug, Clone, Copy)]
struct Step {
    verb: u8,
    key: usize,
    policy: usize,
    later_ms: u64,
    units: u64,
    cas: Option<u64>,
    exptime: Exptime,
    flags: [bool; 4],
}

fn any_step() -> impl Strategy<Value = Step> {
    let cas = prop_oneof![
        3 => Just(None),
        2 => (0_u64..12).prop_map(Some),
        1 => Just(Some(u64::MAX)),
    ];
    let later = prop_oneof![2 => Just(0), 3 => 0_u64..90, 2 => 0_u64..900];
    let exptime = prop_oneof![3 => Just(0), 2 => 1_i32..3, 1 => Just(-1)].prop_map(Exptime);
    (0_u8..22, 0..KEYS, 0..POLICIES.len(), later, 0_u64..7, cas, exptime, any::<[bool; 4]>())
        .prop_map(|(verb, key, policy, later_ms, units, cas, exptime, flags)| Step {
            verb,
            key,
            policy,
            later_ms,
            units,
            cas,
            exptime,
            flags,
        })
}

/// The leases of holds that were granted.
#[derive(Default)]
struct Names(Vec<u64>);

impl Names {
    fn note(&mut self, limited: TakeResult) {
        if let TakeResult::Decided(facts) = limited {
            self.0.extend(facts.decision.lease);
        }
    }

    fn pick(&self, step: &Step) -> u64 {
        let back = step.units as usize % 3 + 1;
        self.0.len().checked_sub(back).map_or(0, |place| self.0[place])
    }
}

fn plain(engine: &mut Engine, now: Now, key: &[u8], operation: Operation<'_>) {
    let command = Command { key: Key::plain(key).expect("a key"), operation };
    engine.apply(now, hasher().hash(key), &command);
}

fn perform(engine: &mut Engine, now: Now, step: &Step, names: &mut Names) {
    match step.verb {
        0..=8 => perform_plain(engine, now, step),
        _ => perform_limited(engine, now, step, names),
    }
}

fn perform_plain(engine: &mut Engine, now: Now, step: &Step) {
    let key = key_of(step.key);
    let (key, hash) = (key.as_slice(), hasher().hash(&key));
    let Step { units, cas, exptime, flags: [a, b, c, d], .. } = *step;
    let some = |on: bool| on.then_some(exptime);
    let text = [&b""[..], b"7", b"4294967295", b"text", b"-5"][units as usize % 5];
    match step.verb {
        0 => {
            let get = Get {
                touch: some(a),
                vivify: some(b),
                recache: c.then_some(2),
                touch_is_first: d,
                unless_cas: None,
                new_cas: cas,
                no_bump: d,
                base64: a,
                may_win: b,
            };
            plain(engine, now, key, Operation::Get(get));
        }
        1..=3 => {
            let modes =
                [SetMode::Set, SetMode::Add, SetMode::Replace, SetMode::Append, SetMode::Prepend];
            let set = Set {
                mode: modes[if step.verb == 1 { 0 } else { step.policy % 5 }],
                client_flags: u32::from(a),
                exptime,
                value: text,
                compare_cas: cas.filter(|_| c),
                new_cas: cas,
                invalidate: b,
                vivify: some(d),
                base64: false,
            };
            plain(engine, now, key, Operation::Set(set));
        }
        4 => {
            let compare_cas = cas.filter(|_| c);
            let (new_cas, exptime, client_flags) = (cas, some(d), u32::from(a));
            let (stale, drop_value) = (a, b);
            let delete = Delete { compare_cas, new_cas, stale, exptime, drop_value, client_flags };
            plain(engine, now, key, Operation::Delete(delete));
        }
        5 | 6 => {
            let arithmetic = Arithmetic {
                decrement: a,
                delta: if b { u64::from(u32::MAX) } else { units },
                vivify: some(c),
                initial: units,
                exptime: some(d),
                compare_cas: None,
                new_cas: cas,
                base64: false,
            };
            plain(engine, now, key, Operation::Arithmetic(arithmetic));
        }
        7 => plain(engine, now, key, Operation::Touch(exptime)),
        _ => {
            let incrx = IncrX {
                delta: if a { -7 } else { units.cast_signed() },
                init: Some(3),
                min: None,
                max: b.then_some(20),
                clamp: c,
                signed: d,
                ttl: Ttl::Exptime(exptime),
                ttl_mode: [TtlMode::Set, TtlMode::Keep, TtlMode::Touch][step.policy % 3],
                cas: CasCondition::None,
                id: None,
            };
            engine.incrx(now, hash, key, &incrx);
        }
    }
}

fn perform_limited(engine: &mut Engine, now: Now, step: &Step, names: &mut Names) {
    let (key, policies) = (key_of(step.key), policies());
    let (key, hash) = (key.as_slice(), hasher().hash(&key));
    let Step { units, cas, exptime, flags: [a, b, c, d], .. } = *step;
    // Mostly one policy for each key, so that states are found again.
    let policy = &policies[if a && b { step.policy } else { step.key * 3 }];
    let policy_ref = (!(c && d)).then_some(PolicyRef { policy, limit: u32::from(step.policy > 8) });
    match step.verb {
        9..=12 => {
            let take = TakeParams {
                cost: units,
                part: a,
                peek: b && c,
                wait: None,
                hold: (c || step.verb == 12).then_some(500_000_000),
                compare_cas: cas.filter(|_| a && b),
                client_flags: d.then_some(9),
                lease: None,
                debit: a && c && d,
                of_first: b,
            };
            names.note(engine.take(now, hash, key, policy_ref, &take));
        }
        13 => names.note(engine.refund(now, hash, key, policy_ref, units)),
        14 => {
            let set = SetUsage { used: units, client_flags: 3, compare_cas: None };
            names.note(engine.set_used(now, hash, key, policy_ref, &set));
        }
        15 => names.note(engine.settle(now, hash, key, names.pick(step), units)),
        16 => names.note(engine.renew(now, hash, key, names.pick(step), units * 100_000_000)),
        17 | 18 => {
            let client: &[u8] = if a { b"one" } else { b"two" };
            let ttl = b.then_some(700_000_000);
            let params = LeaseParams {
                client,
                want: units,
                used: units / 2,
                unused: 1,
                weight: 1,
                ttl,
                max: u64::MAX,
                peek: false,
            };
            let leased = engine.lease(now, hash, key, policy_ref, &params);
            assert_ne!(leased, LeaseResult::Full);
        }
        19 => engine.note_refused(now, hash, key),
        20 => {
            let mut bytes = Vec::new();
            let saved = engine.save(now, hash, key, &mut bytes);
            for _ in 0..units {
                engine.take(
                    now,
                    hash,
                    key,
                    policy_ref,
                    &TakeParams { cost: 1, ..TakeParams::default() },
                );
            }
            engine.rollback(now, hash, key, &saved, &bytes);
        }
        _ if a && b && c => engine.flush(now, exptime),
        _ => {
            engine.sweep(now, 2);
        }
    }
}

/// Copies the item that was changed in place to `backup`, in the short form if it has one, which is
/// returned. `bytes` is the long form.
fn copy_changed(
    engine: &Engine,
    backup: &mut Engine,
    now: Now,
    (hash, key): (u64, &[u8]),
    (unique, bytes): (u64, &[u8]),
) -> Result<bool, TestCaseError> {
    let mut short = Vec::new();
    let state_bytes = engine.copy_of_limit(255, &mut short);
    let put = match state_bytes {
        Some(state_bytes) => {
            let (mut item, limit) = (Vec::new(), LimitCopy::of(&short, state_bytes));
            limit.write_item(unique, &mut item);
            prop_assert_eq!(item, bytes);
            prop_assert_eq!(engine.copy_of_limit(state_bytes - 1, &mut Vec::new()), None);
            backup.put_limit(now, (hash, key), limit, unique)
        }
        None => backup.put_copy(now, hash, key, bytes),
    };
    prop_assert_eq!(put, Ok(()));
    Ok(state_bytes.is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8 * ProptestConfig::default().cases, ..ProptestConfig::default() })]

    #[test]
    fn an_item_changed_in_place_is_the_item_of_its_key(
        steps in prop::collection::vec(
            (0_usize..2, 0..POLICIES.len() + 2, 0_u64..900, 0_u64..7), 1..60,
        ),
        cas in prop::bool::weighted(0.9),
    ) {
        let policies = policies();
        let mut backup = engine(EngineOptions { shard: 3, shards: 64, ..EngineOptions::default() });
        let mut engine = engine(EngineOptions { cas, ..EngineOptions::default() });
        let (mut ms, mut state) = (1000, Vec::new());
        for (lsn, (index, verb, later, units)) in steps.into_iter().enumerate() {
            ms += later;
            let (now, key) = (Now::at_ms(ms), key_of(index));
            let (hash, unique) = (hasher().hash(&key), 1 << 40 | lsn as u64);
            let before = engine.mark_of(hash, &key);
            engine.with_unique(unique, |engine| match policies.get(verb) {
                Some(policy) => {
                    let policy_ref = PolicyRef { policy, limit: 0 };
                    let at = (hash, &key[..]);
                    engine.take_units::<true>(now, at, policy_ref, units, &mut state, |_| ());
                }
                None if verb == POLICIES.len() => {
                    engine.count_in_place(now, hash, &key, units, false);
                }
                None => {
                    let exptime = Exptime(i32::from(units > 3));
                    let set = Set::plain(SetMode::Set, 0, exptime, b"5");
                    let key = Key::plain(&key).expect("a key");
                    engine.apply(now, hash, &Command { key, operation: Operation::Set(set) });
                }
            });
            let mut bytes = Vec::new();
            let is_changed = engine.copy_of_changed(&mut bytes);
            let after = engine.mark_of(hash, &key);
            let is_take = verb < POLICIES.len();
            if is_changed {
                prop_assert!(before != after && cas);
                prop_assert_eq!(after.map(|mark| mark.cas()), Some(unique));
                prop_assert_eq!(copy(&engine, &key), Some(bytes.clone()));
                let has_short_form =
                    copy_changed(&engine, &mut backup, now, (hash, &key), (unique, &bytes))?;
                prop_assert_eq!(has_short_form, is_take);
                let count = engine.bare_count(hash, &key, unique);
                prop_assert_eq!(engine.bare_count_changed(), count);
                prop_assert_eq!(engine.mark_before_general(), None);
            } else {
                prop_assert_eq!(engine.bare_count_changed(), None);
                let is_counted = verb == POLICIES.len() && before != after;
                prop_assert!(!is_counted || !cas, "a count is changed in place");
                if is_take && cas {
                    let general = engine.mark_before_general();
                    prop_assert_eq!(before != after, match general {
                        Some(marked) => marked != after,
                        None => engine.is_change_unplaced(),
                    });
                }
                match copy(&engine, &key) {
                    Some(bytes) => {
                        prop_assert_eq!(backup.put_copy(now, hash, &key, &bytes), Ok(()));
                    }
                    None => backup.remove_copy(hash, &key),
                }
            }
            prop_assert_eq!(copy(&backup, &key), copy(&engine, &key));
        }
    }

    #[test]
    fn a_mark_shows_every_change_and_a_copy_is_the_item(
        steps in prop::collection::vec(any_step(), 1..120),
        cas in prop::bool::weighted(0.9),
        numbered in any::<bool>(),
    ) {
        let mut primary = engine(EngineOptions { cas, ..EngineOptions::default() });
        let mut backup = engine(EngineOptions { shard: 3, shards: 64, ..EngineOptions::default() });
        let (mut ms, mut names) = (1000, Names::default());
        for (lsn, step) in steps.iter().enumerate() {
            ms += step.later_ms;
            let now = Now::at_ms(ms);
            let keys = [0, 1, 2, 3].map(key_of);
            let stand = |engine: &Engine| {
                [0, 1, 2, 3].map(|index: usize| {
                    let key = &keys[index];
                    (engine.mark_of(hasher().hash(key), key), copy(engine, key))
                })
            };
            if numbered {
                primary.begin_at(1 << 40 | (lsn / 2) as u64);
            }
            let before = stand(&primary);
            perform(&mut primary, now, step, &mut names);
            for (key, (before, after)) in keys.iter().zip(before.iter().zip(stand(&primary))) {
                let hash = hasher().hash(key);
                prop_assert!(before.0 != after.0 || before.1 == after.1, "{:?}", step);
                match &after.1 {
                    Some(bytes) if before.0 != after.0 => {
                        prop_assert_eq!(backup.put_copy(now, hash, key, bytes), Ok(()));
                    }
                    None => backup.remove_copy(hash, key),
                    _ => {}
                }
                prop_assert_eq!(copy(&backup, key), after.1);
            }
            prop_assert_eq!(primary.len(), backup.len());
            let mut at_work = 0;
            backup.active_keys(|limit, count| at_work += count + u64::from(limit));
            let states = backup.store.items().filter(|item| item.state().is_some()).count();
            prop_assert_eq!(at_work, states as u64);
        }
        while backup.remove_range(HashRange { prefix: 0, bits: 0 }, None, 1).is_some() {}
        prop_assert_eq!((backup.len(), backup.item_bytes()), (0, 0));
    }

    #[test]
    fn a_promoted_backup_continues_as_the_primary(
        mut steps in prop::collection::vec(any_step(), 1..60),
        mut more in prop::collection::vec(any_step(), 1..30),
    ) {
        // A pending flush is not part of any item.
        steps.retain(|step| step.verb < 21);
        more.retain(|step| step.verb < 21);
        let (mut primary, mut backup) = (engine(EngineOptions::default()), engine(EngineOptions::default()));
        let (mut ms, mut names) = (1000, Names::default());
        for step in &steps {
            ms += step.later_ms;
            perform(&mut primary, Now::at_ms(ms), step, &mut names);
        }
        for index in 0..KEYS {
            let key = key_of(index);
            if let Some(bytes) = copy(&primary, &key) {
                let put = backup.put_copy(Now::at_ms(ms), hasher().hash(&key), &key, &bytes);
                prop_assert_eq!(put, Ok(()));
            }
        }
        let mut other_names = Names(names.0.clone());
        for (lsn, step) in more.iter().enumerate() {
            ms += step.later_ms;
            for engine in [&mut primary, &mut backup] {
                engine.begin_at(1 << 40 | lsn as u64);
            }
            perform(&mut primary, Now::at_ms(ms), step, &mut names);
            perform(&mut backup, Now::at_ms(ms), step, &mut other_names);
            for key in [0, 1, 2, 3].map(key_of) {
                prop_assert_eq!(copy(&primary, &key), copy(&backup, &key), "{:?}", step);
            }
            prop_assert_eq!(&names.0, &other_names.0);
        }
    }

    #[test]
    fn no_bytes_do_harm(
        steps in prop::collection::vec(any_step(), 1..20),
        spoil in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        random in prop::collection::vec(any::<u8>(), 0..300),
        then in prop::collection::vec(any_step(), 1..12),
    ) {
        let (mut primary, mut names) = (engine(EngineOptions::default()), Names::default());
        for step in &steps {
            perform(&mut primary, Now::at_ms(1000), step, &mut names);
        }
        let mut backup = engine(EngineOptions::default());
        for key in [0, 1, 2, 3].map(key_of) {
            let mut bytes = copy(&primary, &key).unwrap_or_else(|| random.clone());
            for (place, byte) in &spoil {
                if !bytes.is_empty() {
                    let place = place.index(bytes.len());
                    bytes[place] = *byte;
                }
            }
            if let Some(cut) = &cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            let hash = hasher().hash(&key);
            match backup.put_copy(Now::at_ms(1000), hash, &key, &bytes) {
                Ok(()) => {
                    prop_assert!(backup.copy_of(hash, &key, &mut Vec::new()));
                }
                Err(error) => prop_assert_eq!(error, PutError::NotACopy),
            }
            let token = POLICIES[bytes.len() % POLICIES.len()].as_bytes();
            let policy = bytes.get(19..19 + token.len()).unwrap_or(token);
            for policy in [policy, token, &random] {
                let limit = LimitCopy { policy, state: &bytes[bytes.len() / 2..] };
                match backup.put_limit(Now::at_ms(1000), (hash, &key), limit, 7) {
                    Ok(()) => prop_assert!(backup.copy_of(hash, &key, &mut Vec::new())),
                    Err(error) => prop_assert_eq!(error, PutError::NotACopy),
                }
            }
        }
        for (index, step) in then.iter().enumerate() {
            perform(&mut backup, Now::at_ms(1000 + index as u64 * 300), step, &mut names);
        }
    }

    #[test]
    fn an_export_includes_every_item_that_stays(
        shard_bits in 0_u32..5,
        steps in prop::collection::vec((0_usize..300, 0_usize..6, 1_usize..40), 1..200),
    ) {
        let partition_prefix = Arc::new(PartitionPrefix::default());
        partition_prefix.set(3, [1, 2, 3, 4], |key: &[u8]| u64::from(key[0] % 8));
        let hasher = KeyHasher::prefixed([1, 2, 3, 4], partition_prefix, shard_bits);
        let mut engine =
            Engine::new(hasher.clone(), Arc::new(MemoryCap::new(64 << 20)), EngineOptions::default());
        let now = Now::at_ms(1000);
        let key_of = |index: usize| format!("{} {}", index % 3, index).into_bytes();
        let range = HashRange { prefix: u64::from(b'1' % 8), bits: 3 };
        let sizes = [0, 30, 100, 900, 2000];
        let policy = &policies()[10];
        let write = |engine: &mut Engine, index: usize, size: usize| {
            let (key, hash) = (key_of(index), hasher.hash(&key_of(index)));
            match size {
                0 => engine.remove_copy(hash, &key),
                1 => {
                    let take = TakeParams { cost: 1, ..TakeParams::default() };
                    engine.take(now, hash, &key, Some(PolicyRef::from(policy)), &take);
                }
                5 => {
                    let mut bytes = Vec::new();
                    let saved = engine.save(now, hash, &key, &mut bytes);
                    let take = TakeParams { cost: 1, hold: Some(1_000_000_000), ..TakeParams::default() };
                    for _ in 0..9 {
                        engine.take(now, hash, &key, None, &take);
                    }
                    engine.rollback(now, hash, &key, &saved, &bytes);
                }
                _ => {
                    let set = Set {
                        mode: SetMode::Set,
                        client_flags: 0,
                        exptime: Exptime::NEVER,
                        value: &vec![b'x'; sizes[size]],
                        compare_cas: None,
                        new_cas: None,
                        invalidate: false,
                        vivify: None,
                        base64: false,
                    };
                    let key = Key::plain(&key).expect("a key");
                    engine.apply(now, hash, &Command { key, operation: Operation::Set(set) });
                }
            }
        };
        for index in 0..200 {
            write(&mut engine, index, index % 5);
        }
        let mut stays: BTreeSet<Vec<u8>> = engine
            .store
            .items()
            .filter(|item| range.contains(hasher.hash(item.key())))
            .map(|item| item.key().to_vec())
            .collect();
        prop_assert!(stays.len() > 40);
        let (mut seen, mut after, mut left) = (BTreeMap::new(), None, steps.iter());
        loop {
            let step = left.next();
            let bounds = step.map_or((7, 99), |(_, _, count)| (*count, count * 9));
            after = engine.export(now, range, after, bounds, |key, copy| {
                seen.insert(key.to_vec(), copy.to_vec());
            });
            after = after.map(|cursor: PartitionCursor| {
                let mut bytes = Vec::new();
                cursor.encode(&mut bytes);
                PartitionCursor::decode(&bytes).expect("it is one")
            });
            if after.is_none() {
                break;
            }
            if let Some((index, size, _)) = step {
                let key = key_of(*index);
                let mark = engine.mark_of(hasher.hash(&key), &key);
                write(&mut engine, *index, *size);
                if engine.mark_of(hasher.hash(&key), &key) != mark {
                    stays.remove(&key);
                }
            }
        }
        for key in &stays {
            let mut bytes = Vec::new();
            engine.copy_of(hasher.hash(key), key, &mut bytes);
            prop_assert_eq!(seen.get(key), Some(&bytes));
        }
        prop_assert!(seen.keys().all(|key| key[0] == b'1'));
        let others = engine.store.items().filter(|item| item.key()[0] != b'1').count();
        let mut after = None;
        loop {
            after = engine.remove_range(range, after, 5);
            if after.is_none() {
                break;
            }
        }
        prop_assert_eq!(engine.len(), others);
        prop_assert!(engine.store.items().all(|item| item.key()[0] != b'1'));
    }
}

#[test]
fn an_export_omits_items_past_their_deadline() {
    let mut engine = engine(EngineOptions::default());
    let arithmetic = Arithmetic {
        decrement: false,
        delta: 1,
        vivify: Some(Exptime(2)),
        initial: 5,
        exptime: None,
        compare_cas: None,
        new_cas: None,
        base64: false,
    };
    plain(&mut engine, Now::at_ms(1000), b"key", Operation::Arithmetic(arithmetic));
    let all = HashRange { prefix: 0, bits: 0 };
    let count = |now| {
        let mut count = 0;
        assert_eq!(engine.export(now, all, None, (9, 9999), |_, _| count += 1), None);
        count
    };
    assert_eq!((count(Now::at_ms(2999)), count(Now::at_ms(3000))), (1, 0));
    assert!(copy(&engine, b"key").is_some());
}

#[test]
fn a_given_unique_names_everything_of_one_command() {
    let mut engine = engine(EngineOptions { shard: 5, shards: 64, ..EngineOptions::default() });
    let (now, hash) = (Now::at_ms(1000), hasher().hash(b"key"));
    let policy = &policies()[0];
    let take = TakeParams { cost: 1, hold: Some(1_000_000_000), ..TakeParams::default() };
    let taken = |engine: &mut Engine, unique: u64| {
        engine.begin_at(unique);
        match engine.take(now, hash, b"key", Some(PolicyRef::from(policy)), &take) {
            TakeResult::Decided(facts) => (facts.cas, facts.decision.lease),
            other => panic!("{other:?}"),
        }
    };
    // Each partition of a shard has its own numbers.
    for unique in [9 << 40 | 7, 9 << 40 | 8, 3 << 40 | 8] {
        assert_eq!(taken(&mut engine, unique), (unique, Some(unique)));
    }
}

#[test]
fn copies_without_room_and_of_no_key_are_refused() {
    let mut from = engine(EngineOptions::default());
    let (now, hash) = (Now::at_ms(1000), hasher().hash(b"key"));
    let take = TakeParams { cost: 1, ..TakeParams::default() };
    from.take(now, hash, b"key", Some(PolicyRef::from(&policies()[0])), &take);
    let bytes = copy(&from, b"key").expect("a state");
    let mut to = Engine::new(hasher(), Arc::new(MemoryCap::new(1)), EngineOptions::default());
    assert_eq!(to.put_copy(now, hash, b"key", &bytes), Err(PutError::NoRoom));
    assert_eq!(to.put_copy(now, hash, b"", &bytes), Err(PutError::NotACopy));
    assert_eq!(to.put_copy(now, hash, &[b'k'; 251], &bytes), Err(PutError::NotACopy));
    assert!(to.is_empty());
}

#[test]
fn a_bare_count_is_copied_as_its_number() {
    let (mut from, mut to, mut whole) = (
        engine(EngineOptions::default()),
        engine(EngineOptions::default()),
        engine(EngineOptions::default()),
    );
    let now = Now::at_ms(1000);
    let set = |flags, exptime, value: &'static [u8]| {
        Operation::Set(Set::plain(SetMode::Set, flags, Exptime(exptime), value))
    };
    // The former item, and its count if it is a bare count.
    for (before, count) in [
        (None, None),
        (Some(set(0, 0, b"17")), Some(17)),
        (Some(set(0, 0, b"4294967296")), Some(1 << 32)),
        (Some(set(3, 0, b"17")), None),
        (Some(set(0, 60, b"17")), None),
        (Some(set(0, 0, b"text")), None),
    ] {
        for after in [5, u64::MAX] {
            let key = key_of(1);
            let hash = hasher().hash(&key);
            for engine in [&mut from, &mut to, &mut whole] {
                engine.remove_copy(hash, &key);
                if let Some(operation) = &before {
                    let command = Command {
                        key: Key::plain(&key).expect("a key"),
                        operation: operation.clone(),
                    };
                    engine.begin_at(7);
                    engine.apply(now, hash, &command);
                }
            }
            assert_eq!(from.bare_count(hash, &key, 7), count);
            assert_eq!(from.bare_count(hash, &key, 8), None);
            let mark = to.mark_of(hash, &key);
            assert!(to.put_bare_count(now, hash, &key, after, 9));
            assert_ne!(to.mark_of(hash, &key), mark);
            assert_eq!(to.bare_count(hash, &key, 9), Some(after));
            let mut bytes = vec![COUNTER];
            bytes.extend_from_slice(&9_u64.to_le_bytes());
            bytes.extend_from_slice(&[0; 9]);
            bytes.extend_from_slice(&after.to_le_bytes());
            assert_eq!(whole.put_copy(now, hash, &key, &bytes), Ok(()));
            assert_eq!(copy(&to, &key), copy(&whole, &key));
        }
    }
}
