//! Tests of the idempotency cache against an exact twin, and of its bounds.

use std::collections::BTreeMap;

use proptest::prelude::*;
use protocol::{CountLine, VerdictLine, VerdictWord};

use super::cached_reply::CachedReply;
use super::*;

fn hash(number: u64) -> IdHash {
    let low = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    IdHash(u128::from(low.rotate_left(17)) << 64 | u128::from(low))
}

fn counted(value: i64) -> CachedReply {
    CachedReply::Counted(CountLine { exists: false, value, applied: 1, ttl_ms: None, cas: None })
}

fn keep(cache: &mut IdempotencyCache, ms: u64, number: u64, answer: CachedReply, bytes_max: usize) {
    let copy = IdCopy::new(Now::at_ms(ms), hash(number), answer);
    cache.keep((ms / 1000) as u32, IdPartition::default(), &copy, bytes_max);
}

fn find(cache: &IdempotencyCache, ms: u64, number: u64) -> Option<CachedReply> {
    cache.find(Now::at_ms(ms), IdPartition::default(), hash(number), |_| true)
}

#[test]
fn an_answer_is_given_again_for_a_minute() {
    let mut cache = IdempotencyCache::default();
    keep(&mut cache, 1000, 1, counted(7), usize::MAX);
    assert_eq!(find(&cache, 60_999, 1), Some(counted(7)));
    assert_eq!(find(&cache, 60_999, 2), None);
    assert_eq!(find(&cache, 61_000, 1), None);
    // A copy may come from a clock that is ahead.
    assert_eq!(find(&cache, 500, 1), Some(counted(7)));
    keep(&mut cache, 61_000, 1, counted(8), usize::MAX);
    assert_eq!(find(&cache, 61_000, 1), Some(counted(8)));
    cache.forget_old(122);
    assert_eq!(cache.len(), 2);
    cache.forget_old(123);
    assert_eq!((cache.len(), cache.bytes()), (0, Index::new().allocated_bytes()));
}

#[test]
fn a_million_ids_take_56_mebibytes() {
    const COUNT: u64 = 1_000_000;
    let mut cache = IdempotencyCache::default();
    let line = VerdictLine {
        word: VerdictWord::Allow,
        limit: 1_000_000_000,
        remaining: 999_999_999,
        retry_ms: Some(0),
        reset_ms: 3_600_000,
        cas: None,
        lease: None,
        granted: None,
        at: None,
        shadow: false,
        degraded: false,
        ban: false,
    };
    for number in 0..COUNT {
        keep(&mut cache, 1000, number, CachedReply::Verdict(line, None), 56 << 20);
    }
    assert_eq!((cache.len() as u64, cache.forgotten()), (COUNT, 0));
    assert!(cache.bytes() <= 56 << 20, "{}", cache.bytes());
    assert_eq!(find(&cache, 1000, 0), Some(CachedReply::Verdict(line, None)));
}

#[test]
fn beyond_the_bound_the_oldest_are_forgotten() {
    const BYTES_MAX: usize = 200_000;
    let mut cache = IdempotencyCache::default();
    for number in 0..20_000 {
        keep(&mut cache, 1000 + number, number, counted(number.cast_signed()), BYTES_MAX);
        assert!(cache.bytes() <= BYTES_MAX, "{}", cache.bytes());
    }
    let kept = cache.len() as u64;
    assert!(kept >= BYTES_MAX as u64 / 64, "{kept}");
    assert_eq!(kept + cache.forgotten(), 20_000);
    for number in 0..20_000 {
        let answer = (number >= 20_000 - kept).then(|| counted(number.cast_signed()));
        assert_eq!(find(&cache, 21_000, number), answer, "{number}");
    }
    assert_eq!(cache.oldest_second(), Some(((1000 + 20_000 - kept) / 1000) as u32));
    // Expired replies are not counted as forgotten.
    let before = cache.forgotten();
    keep(&mut cache, 200_000, 0, counted(0), 0);
    assert_eq!((cache.forgotten(), cache.len() <= CHUNK as usize), (before, true));
}

#[test]
fn slots_wrap() {
    let mut cache =
        IdempotencyCache { first: 0_u32.wrapping_sub(3 * CHUNK), ..IdempotencyCache::default() };
    for number in 0..10_000 {
        keep(&mut cache, 1000, number, counted(number.cast_signed()), 60_000);
        assert_eq!(find(&cache, 1000, number), Some(counted(number.cast_signed())));
    }
    assert_eq!(find(&cache, 1000, 0), None);
}

#[derive(Debug, Clone)]
enum Step {
    Keep { number: u64, partition: u16, answer: CachedReply },
    Pass(u64),
    Forget(u16),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (0_u64..400, 0_u16..5, super::cached_reply::tests::any_answer())
            .prop_map(|(number, partition, answer)| Step::Keep { number, partition, answer }),
        3 => (0_u64..30_000).prop_map(Step::Pass),
        1 => (0_u16..5).prop_map(Step::Forget),
    ]
}

proptest! {
    #[test]
    fn ids_answer_as_the_exact_twin(
        steps in prop::collection::vec(any_step(), 1..600),
        bytes_max in prop_oneof![Just(usize::MAX), 15_000_usize..60_000],
    ) {
        let mut cache = IdempotencyCache::default();
        // In the order of arrival: number, partition with its generation, time, reply.
        let mut twin: Vec<(u64, IdPartition, u64, CachedReply)> = Vec::new();
        let mut generations = [0_u16; 5];
        let mut ms = 1000;
        for step in steps {
            let partition = |number: u16| {
                IdPartition { number, generation: generations[usize::from(number)] }
            };
            match step {
                Step::Pass(more) => {
                    ms += more;
                    cache.forget_old((ms / 1000) as u32);
                }
                Step::Forget(number) => generations[usize::from(number)] += 1,
                Step::Keep { number, partition: at, answer } => {
                    let (now, at) = (Now::at_ms(ms), partition(at));
                    if cache.find(now, at, hash(number), |_| true).is_none() {
                        let copy = IdCopy::new(now, hash(number), answer);
                        cache.keep((ms / 1000) as u32, at, &copy, bytes_max);
                        twin.push((number, at, ms, answer));
                    }
                }
            }
            prop_assert!(cache.bytes() <= bytes_max.max(2 * CHUNK_BYTES + 9 * CHUNK_BYTES + (16 << 10)));
        }
        // The replies that arrived last are kept.
        twin.drain(..twin.len() - cache.len());
        if bytes_max == usize::MAX {
            prop_assert_eq!(cache.forgotten(), 0);
        }
        let now = Now::at_ms(ms);
        let (mut all, mut by_partition) = (0, BTreeMap::<u16, Vec<IdCopy>>::new());
        for &(number, at, since, answer) in &twin {
            let is_given = at.generation == generations[usize::from(at.number)]
                && ms < since + u64::from(ID_KEPT_MS);
            if is_given {
                prop_assert_eq!(
                    cache.find(now, at, hash(number), |_| true).map(|found| found.encode().to_vec()),
                    Some(answer.encode().to_vec())
                );
                let copy = IdCopy { hash: hash(number), at_ms: since as u32, answer };
                by_partition.entry(at.number).or_default().push(copy);
                all += 1;
            }
        }
        // Each partition is exported, in parts of any length, the oldest first.
        let mut shown = 0;
        for number in 0..5 {
            let at = IdPartition { number, generation: generations[usize::from(number)] };
            let (mut copies, mut after) = (Vec::new(), None);
            loop {
                let count = 1 + copies.len() % 7;
                after = cache.export(now, at, after, count, |copy| copies.push(*copy));
                if after.is_none() {
                    break;
                }
            }
            let bytes = |copies: &[IdCopy]| {
                let mut out = Vec::new();
                for copy in copies {
                    copy.encode(&mut out);
                }
                out
            };
            let expected = by_partition.remove(&number).unwrap_or_default();
            prop_assert_eq!(bytes(&copies), bytes(&expected));
            shown += copies.len();
        }
        prop_assert_eq!(shown, all);
    }

    #[test]
    fn a_key_travels_with_its_id(
        answer in super::cached_reply::tests::any_answer(),
        copy in prop::collection::vec(any::<u8>(), 0..30),
        change in 0..3,
        cut in any::<prop::sample::Index>(),
    ) {
        let id = IdCopy { hash: hash(7), at_ms: 99, answer };
        let mut out = Vec::new();
        id.encode_with(&mut out, change == 0, |out| {
            out.extend_from_slice(if change == 1 { b"" } else { &copy });
            change == 2
        });
        let expected = match change {
            0 => KeyChange::Unchanged,
            1 => KeyChange::Gone,
            _ => KeyChange::Changed(&copy),
        };
        let Some(Ok((back, changed))) = IdCopy::split(&out) else { panic!("it has an id") };
        prop_assert_eq!(changed, expected);
        prop_assert_eq!(back.answer.encode().to_vec(), answer.encode().to_vec());
        prop_assert_eq!((back.hash, back.at_ms), (id.hash, id.at_ms));
        let cut = cut.index(out.len());
        let whole = out.len() - copy.len();
        prop_assert!(cut == 0 || (change == 2 && cut >= whole) || IdCopy::split(&out[..cut]) == Some(Err(())));
        prop_assert!(IdCopy::split(&copy).is_none() || copy[0] == 0b1000_0110);
    }
}
