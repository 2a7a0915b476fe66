//! Tests of keys with many holders: the cost of a take, the copies on other nodes and processes,
//! and memory.

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use protocol::Policy;

use super::*;
use crate::commands::take::{HOLDS_MAX, TakeInfo, TakeParams, TakeResult};
use crate::store::sums::tests::STEPS;
use crate::{
    EngineOptions, HashRange, KeyHasher, MemoryCap, PartitionCursor, PolicyRef, SetUsage,
    SnapshotRecord,
};

const KEY: &[u8] = b"gpu";
const ALL: HashRange = HashRange { prefix: 0, bits: 0 };

fn hasher() -> KeyHasher {
    KeyHasher::new([1, 2, 3, 4])
}

fn hash() -> u64 {
    hasher().hash(KEY)
}

fn engine_with(bytes: usize) -> (Engine, Arc<MemoryCap>) {
    let memory_cap = Arc::new(MemoryCap::new(bytes));
    (Engine::new(hasher(), Arc::clone(&memory_cap), EngineOptions::default()), memory_cap)
}

fn engine() -> Engine {
    engine_with(1 << 30).0
}

fn policy(token: &str) -> Policy {
    Policy::parse(token.as_bytes()).expect(token)
}

fn facts(limited: TakeResult) -> TakeInfo {
    match limited {
        TakeResult::Decided(facts) => facts,
        other => panic!("{other:?}"),
    }
}

fn take(engine: &mut Engine, policy: &Policy, ms: u64, take: TakeParams) -> TakeInfo {
    facts(engine.take(Now::at_ms(ms), hash(), KEY, Some(PolicyRef::from(policy)), &take))
}

fn one() -> TakeParams {
    TakeParams { cost: 1, ..TakeParams::default() }
}

/// Begins `count` holds, one each millisecond.
fn fill(engine: &mut Engine, policy: &Policy, from_ms: u64, count: u64) -> Vec<u64> {
    let hold = |number| take(engine, policy, from_ms + number, one()).decision.lease;
    (0..count).map(hold).map(|lease| lease.expect("there is room")).collect()
}

/// All bytes of the key's item and its holds.
fn whole(engine: &Engine, now: Now) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    let bounds = (usize::MAX >> 1, usize::MAX >> 1);
    engine.export(now, ALL, None, bounds, |key, copy| seen.push((key.to_vec(), copy.to_vec())));
    seen
}

#[test]
fn a_million_holders_cost_a_take_few_steps() {
    let (mut engine, memory_cap) = engine_with(1 << 30);
    let limit = policy("concurrency:2M,hold=1h");
    let before = memory_cap.used_bytes();
    let mut steps = Vec::new();
    let mut leases = Vec::new();
    for count in [1_000, 999_000] {
        leases.append(&mut fill(&mut engine, &limit, 1_000 + leases.len() as u64, count));
        let (ms, from) = (1_000 + leases.len() as u64, leases.len() / 2);
        STEPS.set(0);
        for lease in &leases[from..from + 100] {
            take(&mut engine, &limit, ms, one());
            facts(engine.settle(Now::at_ms(ms), hash(), KEY, *lease, 0));
            facts(engine.renew(Now::at_ms(ms), hash(), KEY, lease + 200, 7_200_000_000_000));
        }
        steps.push(STEPS.get() / 100);
    }
    // The steps of all three operations together. A thousand times the holders add two levels.
    assert!(steps[0] <= 80 && steps[1] <= 150, "{steps:?}");
    let bytes = memory_cap.used_bytes() - before;
    assert!((32..80).contains(&(bytes / 1_000_000)), "{bytes}");

    let ms = 1_002_000;
    #[expect(clippy::disallowed_methods, reason = "what it takes is told, not tested")]
    let began = Instant::now();
    for _ in 0..40_000 {
        take(&mut engine, &limit, ms, one());
    }
    println!("take at 1,000,000 holders: {} ns", began.elapsed().as_nanos() / 40_000);
    assert_eq!(
        take(&mut engine, &limit, ms, TakeParams { peek: true, ..one() }).decision.used,
        1_040_000
    );

    // All its memory is freed, whether holds are removed or expire.
    engine.set_used(
        Now::at_ms(ms),
        hash(),
        KEY,
        Some(PolicyRef::from(&limit)),
        &SetUsage { used: 1, client_flags: 0, compare_cas: None },
    );
    assert!(memory_cap.used_bytes() - before < 64 << 10);
}

#[test]
fn at_the_bound_of_holders_the_answer_is_deny() {
    let mut engine = engine();
    let limit = policy("concurrency:2M,hold=1h");
    fill(&mut engine, &limit, 1_000, 1 << 20);
    let refused = take(&mut engine, &limit, 2_000_000, one());
    assert!(refused.refuses());
    // Until the first hold ends.
    assert_eq!(refused.decision.retry, Some(3_600_000_000_000 - 1_999_000_000_000));
    assert!(!take(&mut engine, &limit, 3_601_000, one()).refuses());

    let bucket = policy("bucket:1M/s");
    let mut engine = self::engine();
    let hold = TakeParams { hold: Some(60_000_000_000), ..one() };
    for number in 0..HOLDS_MAX as u64 {
        assert!(!take(&mut engine, &bucket, 1_000 + number, hold).refuses());
    }
    let refused = take(&mut engine, &bucket, 3_000, hold);
    assert_eq!((refused.refuses(), refused.decision.lease), (true, None));
    assert_eq!(refused.decision.retry, Some(58_000_000_000));
    assert!(!take(&mut engine, &bucket, 61_000, hold).refuses());
}

#[test]
fn holds_that_end_together_free_their_units_at_once() {
    let mut engine = engine();
    let limit = policy("concurrency:100001,hold=1h");
    let minute = TakeParams { hold: Some(60_000_000_000), ..one() };
    for _ in 0..100_000 {
        take(&mut engine, &limit, 1_000, minute);
    }
    take(&mut engine, &limit, 1_000, one());
    assert_eq!(take(&mut engine, &limit, 60_999, one()).decision.retry, Some(1_000_000));
    // Ended holds do not count, though each take removes only some of them.
    STEPS.set(0);
    assert_eq!(take(&mut engine, &limit, 61_000, one()).decision.used, 2);
    assert!(STEPS.get() < 1_200, "{}", STEPS.get());
    for used in 3..2_000 {
        assert_eq!(take(&mut engine, &limit, 61_001, one()).decision.used, used);
    }
}

#[test]
fn few_holders_go_back_to_their_item() {
    let (mut engine, memory_cap) = engine_with(1 << 30);
    let limit = policy("concurrency:1000,hold=1h");
    let before = memory_cap.used_bytes();
    let leases = fill(&mut engine, &limit, 1_000, 1_000);
    assert!(take(&mut engine, &limit, 3_000, one()).refuses());
    let settled = engine.refund(Now::at_ms(3_000), hash(), KEY, None, 100);
    assert_eq!(facts(settled).decision.used, 900);
    for (used, lease) in leases[..900].iter().rev().enumerate() {
        let settled = engine.settle(Now::at_ms(3_000), hash(), KEY, *lease, 0);
        assert_eq!(facts(settled).decision.used, 899 - used as u64);
    }
    assert_eq!(engine.look(Now::at_ms(3_000), hash(), KEY, None), None);
    assert!(memory_cap.used_bytes() - before < 16 << 10);
}

#[test]
fn a_key_without_room_for_a_holder_keeps_its_holders() {
    let (mut engine, memory_cap) = engine_with(1 << 20);
    let limit = policy("concurrency:1M,hold=1h");
    let mut held = 0;
    while let TakeResult::Decided(facts) =
        engine.take(Now::at_ms(1_000), hash(), KEY, Some(PolicyRef::from(&limit)), &one())
    {
        held += 1;
        assert_eq!(facts.decision.used, held);
    }
    assert!(held > 5_000, "{held}");
    assert!(memory_cap.used_bytes() <= (1 << 20) + (64 << 10));
    assert_eq!(
        take(&mut engine, &limit, 1_000, TakeParams { peek: true, ..one() }).decision.used,
        held
    );
}

#[test]
fn a_snapshot_brings_all_holders_back() {
    let (mut old, mut new) = (engine(), engine());
    let limit = policy("concurrency:100k,hold=1h");
    let leases = fill(&mut old, &limit, 1_000, 30_000);
    let now = Now::at_ms(40_000);
    let (mut pieces, mut after) = (0, None);
    loop {
        after = old.save_slice(now, after, (usize::MAX >> 1, 100_000), |record| {
            let SnapshotRecord::Limit(record) = record else { panic!("there is one key") };
            pieces += 1;
            assert!(record.body.len() < 101_000);
            assert!(new.restore_limit(now, hash(), &record, 5_000_000));
        });
        if after.is_none() {
            break;
        }
    }
    assert!(pieces > 1);
    // The new process's clock is five milliseconds ahead.
    let looked = take(&mut new, &limit, 40_000, TakeParams { peek: true, ..one() });
    assert_eq!(looked.decision.used, 30_000);
    assert!(matches!(new.settle(now, hash(), KEY, leases[7], 0), TakeResult::Decided(_)));
    let first_end = 1_000 + 3_600_000 + 5;
    let at = |ms| take(&mut new, &limit, ms, TakeParams { peek: true, ..one() }).decision.used;
    assert_eq!([first_end - 1, first_end].map(at), [29_999, 29_998]);
}

#[test]
fn a_rollback_restores_the_holders() {
    let mut engine = engine();
    let limit = policy("concurrency:5000,hold=1h");
    fill(&mut engine, &limit, 1_000, 4_000);
    let now = Now::at_ms(9_000);
    let before = whole(&engine, now);
    let mut bytes = Vec::new();
    let saved = engine.save(now, hash(), KEY, &mut bytes);
    take(&mut engine, &limit, 9_000, TakeParams { cost: 7, ..one() });
    take(&mut engine, &limit, 9_000, one());
    engine.rollback(now, hash(), KEY, &saved, &bytes);
    let after = whole(&engine, now);
    // All but the name of the next unnamed hold.
    assert_eq!(after.len(), before.len());
    assert_eq!(
        take(&mut engine, &limit, 9_000, TakeParams { peek: true, ..one() }).decision.used,
        4_000
    );
}

/// Applies the encoded change of one node to another; returns the number of bytes.
fn replicate(
    from: &mut Engine,
    to: &mut Engine,
    ms: u64,
    change: impl FnOnce(&mut Engine),
) -> usize {
    let before = from.mark_before_change(hash(), KEY);
    change(from);
    if from.mark_of(hash(), KEY) == before {
        return 0;
    }
    let mut copy = Vec::new();
    if from.copy_of(hash(), KEY, &mut copy) {
        assert_eq!(to.put_copy(Now::at_ms(ms), hash(), KEY, &copy), Ok(()));
    } else {
        to.remove_copy(hash(), KEY);
    }
    copy.len()
}

#[test]
fn a_backup_gets_changes_instead_of_all_holders() {
    let (mut primary, mut backup) = (engine(), engine());
    let limit = policy("concurrency:1M,hold=1h");
    let mut most = 0;
    for number in 0..50_000 {
        let bytes = replicate(&mut primary, &mut backup, 1_000 + number, |engine| {
            take(engine, &limit, 1_000 + number, one());
        });
        most = most.max(bytes);
    }
    // The greatest change is all holds at once, when they leave their item.
    assert!(most < 3_000, "{most}");
    let now = Now::at_ms(60_000);
    assert_eq!(whole(&primary, now), whole(&backup, now));
    // A copy that lost its holders is complete again after enough changes, each of which repeats
    // four holds.
    backup.remove_copy(hash(), KEY);
    for number in 0..20_000 {
        replicate(&mut primary, &mut backup, 61_000, |engine| {
            take(engine, &limit, 61_000 + number, one());
        });
    }
    assert_eq!(whole(&primary, now), whole(&backup, now));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A learner receives chunks while the key changes; changes older than a chunk arrive after it.
    #[test]
    fn chunks_and_changes_in_any_order_converge(
        first in 100..2_000_u64,
        steps in prop::collection::vec((0..12_u8, 0..3_000_usize, 0..5_u64, any::<bool>()), 1..400),
        late in 0..30_usize,
    ) {
        let limit = policy("concurrency:1500,hold=30s");
        let (mut primary, mut learner) = (engine(), engine());
        let mut leases = fill(&mut primary, &limit, 1_000, first.min(1_400));
        let mut ms = 4_000;
        let mut records: Vec<Option<Vec<u8>>> = Vec::new();
        let (mut applied, mut cursor, mut is_whole) = (0, None::<PartitionCursor>, false);
        let mut begun = false;
        for (verb, which, gap, pulls) in steps {
            ms += gap * 40;
            let now = Now::at_ms(ms);
            let lease = leases.get(which % leases.len().max(1)).copied().unwrap_or(0);
            let before = primary.mark_before_change(hash(), KEY);
            match verb {
                0 => {
                    primary.settle(now, hash(), KEY, lease, 0);
                }
                1 => {
                    primary.renew(now, hash(), KEY, lease, which as u64 * 9_000_000);
                }
                2 => {
                    primary.refund(now, hash(), KEY, None, which as u64 % 40);
                }
                3 if which < 20 => {
                    primary.refund(now, hash(), KEY, None, 5_000);
                }
                _ => {
                    let taken = take(&mut primary, &limit, ms, TakeParams { cost: 1 + gap, ..one() });
                    leases.extend(taken.decision.lease);
                }
            }
            if primary.mark_of(hash(), KEY) != before {
                let mut copy = Vec::new();
                let is_there = primary.copy_of(hash(), KEY, &mut copy);
                records.push(is_there.then_some(copy));
            }
            if pulls && !is_whole {
                // A chunk shows the present; earlier changes are applied after it.
                if !begun {
                    begun = true;
                    applied = records.len();
                }
                let mut pieces = Vec::new();
                let next = primary.export(now, ALL, cursor, (usize::MAX >> 1, 5_000), |_, copy| {
                    pieces.push(copy.to_vec());
                });
                for piece in pieces {
                    prop_assert!(piece.len() < 9_000);
                    prop_assert_eq!(learner.put_copy(now, hash(), KEY, &piece), Ok(()));
                }
                let mut bytes = Vec::new();
                cursor = next.map(|next| {
                    next.encode(&mut bytes);
                    PartitionCursor::decode(&bytes).expect("it is one")
                });
                is_whole = cursor.is_none();
            }
            while begun && applied + late < records.len() {
                apply(&mut learner, ms, records[applied].as_deref());
                applied += 1;
            }
        }
        prop_assume!(is_whole);
        for record in &records[applied..] {
            apply(&mut learner, ms, record.as_deref());
        }
        let now = Now::at_ms(ms);
        prop_assert_eq!(whole(&primary, now), whole(&learner, now));
    }
}

fn apply(learner: &mut Engine, ms: u64, record: Option<&[u8]>) {
    match record {
        Some(copy) => assert_eq!(learner.put_copy(Now::at_ms(ms), hash(), KEY, copy), Ok(())),
        None => learner.remove_copy(hash(), KEY),
    }
}

/// An engine without an id for another policy.
fn engine_full_of_policies() -> Engine {
    let memory_cap = Arc::new(MemoryCap::new(1 << 30));
    let mut engine = Engine::new(
        hasher(),
        memory_cap,
        EngineOptions { shards: 1 << 20, ..EngineOptions::default() },
    );
    for count in 1..=200 {
        let (key, limit) = (format!("k{count}"), policy(&format!("fixed:{count}/366d")));
        let hash = hasher().hash(key.as_bytes());
        engine.take(Now::at_ms(1), hash, key.as_bytes(), Some(PolicyRef::from(&limit)), &one());
    }
    engine
}

fn carries_its_policy(engine: &Engine) -> bool {
    let slot = engine.store.find(hash(), KEY).expect("it is there");
    let state = engine.store.item(slot).state().expect("it is a limit");
    assert!(HoldSetId::of(state).is_some(), "its holds are beside it");
    state.policy_id == crate::policy_table::INLINE
}

#[test]
fn a_key_with_an_inline_policy_has_many_holders() {
    let limit = policy("concurrency:5000,hold=1h");
    let mut engines = [engine(), engine_full_of_policies()];
    let seen = engines.each_mut().map(|engine| {
        fill(engine, &limit, 1_000, 4_000);
        let now = Now::at_ms(9_000);
        // Rolled back.
        let mut bytes = Vec::new();
        let saved = engine.save(now, hash(), KEY, &mut bytes);
        take(engine, &limit, 9_000, TakeParams { cost: 7, ..one() });
        engine.rollback(now, hash(), KEY, &saved, &bytes);
        // Copied, as a whole and by changes.
        let (mut backup, mut copied) = (engine_full_of_policies(), Vec::new());
        engine.export(now, ALL, None, (1 << 30, 1 << 30), |key, copy| {
            if key == KEY {
                copied.push(copy.to_vec());
            }
        });
        for copy in copied {
            assert_eq!(backup.put_copy(now, hash(), KEY, &copy), Ok(()));
        }
        let bytes = replicate(engine, &mut backup, 9_000, |engine| {
            take(engine, &limit, 9_000, TakeParams { cost: 2, ..one() });
        });
        assert!(bytes < 200, "{bytes}");
        assert!(carries_its_policy(&backup));
        // Restored.
        let mut restored = engine_full_of_policies();
        engine.save_slice(now, None, (1 << 30, 1 << 30), |record| {
            if let SnapshotRecord::Limit(record) = record
                && record.key == KEY
            {
                assert!(restored.restore_limit(now, hash(), &record, 0));
            }
        });
        assert!(carries_its_policy(&restored));
        let carries = carries_its_policy(engine);
        let all = [engine, &mut backup, &mut restored];
        let used = all.map(|engine| {
            let looked = engine.take(now, hash(), KEY, None, &TakeParams { peek: true, ..one() });
            (facts(looked).decision.used, facts(looked).decision.limit)
        });
        (carries, used)
    });
    let used = [(4_002, 5_000); 3];
    assert_eq!(seen, [(false, used), (true, used)]);
}
