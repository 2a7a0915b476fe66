//! The policies of a shard's limit states, each stored once and identified by a policy id.
//!
//! Here: the table, and a state's reference to it. An entry is a policy and the limit that it
//! belongs to. A state names its entry in four bytes. The store counts the states of each id, so an
//! unused policy is found without visiting states, and the number of states of a limit is known. If
//! clients use more inline policies than there is room for, a state contains its policy itself,
//! before its own bytes:
//!
//! ```text
//! policy id INLINE | n u8 | policy token n bytes | the state as under an id
//! ```
//!
//! For a token of more than 255 bytes, which only several policies have, `n` is a 0 and a `u16`.
//!
//! Not here: the meaning of a policy (`algorithms`).

use std::cell::OnceCell;
use std::hint::cold_path;
use std::io::Write as _;

use hashbrown::HashMap;
use protocol::{LIST_BYTES_MAX, Policy};

/// Policies that a shard may store whatever its share of memory.
const POLICIES_MIN: usize = 64;

/// In place of a policy id: the state contains its policy.
pub(crate) const INLINE: u32 = u32::MAX;

/// Bytes of a policy: its entry, its places in list, tables and free list, their slack, its token
/// twice.
pub(crate) const POLICY_BYTES: usize = 512;

/// A policy with the limit that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyRef<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The limit it belongs to, by the caller's numbers; 0 for an inline policy.
    pub limit: u32,
}

impl<'a> From<&'a Policy> for PolicyRef<'a> {
    fn from(policy: &'a Policy) -> Self {
        Self { policy, limit: 0 }
    }
}

/// A stored policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OwnedPolicy {
    pub(crate) policy: Policy,
    pub(crate) limit: u32,
}

/// A limit state as stored in an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitState<'a> {
    /// The id of the policy under which the state was written, or [`INLINE`].
    pub(crate) policy_id: u32,
    /// Holds, leases and the algorithm's own bytes (`take`), preceded by the policy if it is
    /// inline; fewer than 2^24 bytes.
    pub(crate) body: &'a [u8],
}

impl<'a> LimitState<'a> {
    /// The body without an inline policy.
    pub(crate) fn own(self) -> &'a [u8] {
        if self.policy_id == INLINE {
            cold_path();
            return inline(self.body).map_or(&[], |(_, own)| own);
        }
        self.body
    }
}

/// Whether two tokens or keys are the same. Most are too short to be worth a call that compares.
#[inline]
pub(crate) fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let (Some(one_end), Some(end)) = (one.last_chunk::<8>(), other.last_chunk::<8>()) else {
        return one == other;
    };
    let eights = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    one_end == end && eights.into_iter().all(|(one, other)| one == other)
}

/// A policy that has an id.
struct PolicyEntry {
    policy: OwnedPolicy,
    /// The policy's token, created at the first copy of a state under it.
    token: OnceCell<Box<[u8]>>,
}

impl PolicyEntry {
    fn token(&self) -> &[u8] {
        self.token.get_or_init(|| self.policy.policy.to_string().into_bytes().into())
    }
}

/// Ids of policies that may be unused. The store adds those whose last state is removed.
#[derive(Debug, Default)]
pub(crate) struct UnusedPolicies {
    numbers: Vec<u32>,
    /// Too many to list: any policy may be unused.
    all: bool,
}

/// Most ids in the list.
const UNUSED_LISTED_MAX: usize = 1024;

impl UnusedPolicies {
    pub(crate) fn add(&mut self, number: u32) {
        if self.numbers.len() < UNUSED_LISTED_MAX {
            self.numbers.push(number);
        } else {
            self.all = true;
        }
    }

    pub(crate) fn add_all(&mut self) {
        self.all = true;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.numbers.is_empty() && !self.all
    }
}

/// Policies by id.
#[repr(C)]
pub(crate) struct PolicyTable {
    /// The first field, for its place in memory ([`Engine`](crate::Engine)).
    entries: Vec<Option<PolicyEntry>>,
    numbers: HashMap<OwnedPolicy, u32>,
    /// Ids of policies without a limit, by their token: those that came from another node.
    copied: HashMap<Box<[u8]>, u32>,
    free: Vec<u32>,
}

impl PolicyTable {
    /// The end of the bytes that a lookup reads.
    pub(crate) const LOOKUP_END: usize = std::mem::offset_of!(Self, numbers);

    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            numbers: HashMap::new(),
            copied: HashMap::new(),
            free: Vec::new(),
        }
    }

    /// The policy of an id.
    pub(crate) fn get(&self, number: u32) -> Option<&OwnedPolicy> {
        Some(&self.entries.get(number as usize)?.as_ref()?.policy)
    }

    /// The token of the policy with an id.
    pub(crate) fn token(&self, number: u32) -> Option<&[u8]> {
        Some(self.entries.get(number as usize)?.as_ref()?.token())
    }

    /// The token of the policy of a state.
    pub(crate) fn token_of<'s>(&'s self, state: LimitState<'s>) -> Option<&'s [u8]> {
        match state.policy_id {
            INLINE => Some(inline(state.body)?.0),
            number => self.token(number),
        }
    }

    /// The policy of a state, and the state's own bytes.
    pub(crate) fn policy_of<'s>(&self, state: LimitState<'s>) -> Option<(OwnedPolicy, &'s [u8])> {
        if state.policy_id != INLINE {
            return Some((*self.get(state.policy_id)?, state.body));
        }
        let (token, body) = inline(state.body)?;
        Some((OwnedPolicy { policy: Policy::parse_list(token).ok()?, limit: 0 }, body))
    }

    /// Whether [`Self::number_of_copy`] would find the policy with this id for a copy with this
    /// token, and `is_right` holds for it.
    #[inline]
    pub(crate) fn is_of_copy(
        &self,
        number: u32,
        token: &[u8],
        is_right: impl FnOnce(&Policy) -> bool,
    ) -> bool {
        let Some(Some(entry)) = self.entries.get(number as usize) else { return false };
        let PolicyEntry { policy: OwnedPolicy { policy, limit }, .. } = entry;
        *limit == 0 && is_right(policy) && is_same(entry.token(), token)
    }

    /// The id of the policy under which another node made a copy, whatever its limit there;
    /// [`INLINE`] if there is no room for it, `None` for an invalid policy.
    pub(crate) fn number_of_copy(
        &mut self,
        token: &[u8],
        rules_max: usize,
        states: &[u32],
        unused: &mut UnusedPolicies,
    ) -> Option<u32> {
        if let Some(number) = self.copied.get(token) {
            return Some(*number);
        }
        let owned = OwnedPolicy { policy: Policy::parse_list(token).ok()?, limit: 0 };
        let number = self.number(&owned, rules_max, states, unused);
        if number == INLINE {
            return Some(INLINE);
        }
        // Only one spelling of a policy is stored.
        if self.token(number)? == token {
            self.copied.insert(token.into(), number);
        }
        Some(number)
    }

    /// Each limit that has a stored policy, with the id of that policy.
    pub(crate) fn limits(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let known = self.entries.iter().enumerate();
        known.filter_map(|(index, kept)| Some((kept.as_ref()?.policy.limit, index as u32)))
    }

    /// The id of a policy, which is added if needed. `states` has the number of states of each id.
    ///
    /// Returns [`INLINE`] if `rules_max` policies are in use: any client can send inline policies,
    /// and each takes memory beside the store. A policy of a limit always gets an id; the limits
    /// file bounds their number.
    pub(crate) fn number(
        &mut self,
        owned: &OwnedPolicy,
        rules_max: usize,
        states: &[u32],
        unused: &mut UnusedPolicies,
    ) -> u32 {
        if let Some(number) = self.numbers.get(owned) {
            return *number;
        }
        self.drop_unused(states, unused);
        if owned.limit == 0 && self.numbers.len() >= rules_max.max(POLICIES_MIN) {
            return INLINE;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize] =
            Some(PolicyEntry { policy: *owned, token: OnceCell::new() });
        self.numbers.insert(*owned, number);
        // Its first state may find no room.
        unused.add(number);
        number
    }

    /// Removes the policies without states.
    pub(crate) fn drop_unused(&mut self, states: &[u32], unused: &mut UnusedPolicies) {
        if unused.is_empty() {
            return;
        }
        if std::mem::take(&mut unused.all) {
            unused.numbers.clear();
            for index in 0..self.entries.len() {
                self.drop_if_unused(index as u32, states);
            }
        }
        for number in unused.numbers.drain(..) {
            self.drop_if_unused(number, states);
        }
        if self.numbers.is_empty() {
            *self = Self::new();
        }
    }

    fn drop_if_unused(&mut self, number: u32, states: &[u32]) {
        let is_used = states.get(number as usize).is_some_and(|count| *count > 0);
        let Some(place) = self.entries.get_mut(number as usize).filter(|_| !is_used) else {
            return;
        };
        let Some(known) = place.take() else { return };
        self.numbers.remove(&known.policy);
        if known.policy.limit == 0
            && let Some(token) = known.token.get()
        {
            self.copied.remove(token);
        }
        self.free.push(number);
    }

    /// The number of stored policies.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// The policy token at the front of `bytes`, and the bytes behind it; `None` if there is none.
#[must_use]
pub fn inline(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    if *length > 0 {
        return rest.split_at_checked((*length).into());
    }
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let is_long = (usize::from(u8::MAX) + 1..=LIST_BYTES_MAX).contains(&length);
    is_long.then(|| rest.split_at_checked(length)).flatten()
}

/// Appends the token of a policy, as [`inline`] reads it.
pub fn put_inline(policy: &Policy, out: &mut Vec<u8>) {
    let place = out.len();
    out.push(0);
    // Writing to a vector cannot fail.
    let _ = write!(out, "{policy}");
    let length = out.len() - place - 1;
    out[place] = u8::try_from(length).unwrap_or(0);
    if length > usize::from(u8::MAX) {
        // A token has at most `LIST_BYTES_MAX` bytes.
        out.splice(place + 1..=place, (length as u16).to_le_bytes());
    }
}

/// Appends a token, as [`inline`] reads it.
pub(crate) fn put_token(token: &[u8], out: &mut Vec<u8>) {
    let length = u8::try_from(token.len()).unwrap_or(0);
    out.push(length);
    if length == 0 {
        out.extend_from_slice(&(token.len() as u16).to_le_bytes());
    }
    out.extend_from_slice(token);
}

#[cfg(test)]
mod tests {
    mod twin;

    use protocol::{Algorithm, Rate};

    use super::*;

    fn kept(count: u64) -> OwnedPolicy {
        let rate = Rate { count, period: 1_000_000_000 };
        let algorithm = Algorithm::Gcra { rate, burst: 0 };
        OwnedPolicy { policy: Policy { algorithm, over: false, shadow: false }, limit: 0 }
    }

    /// The id of a policy in a table of at most `rules_max` policies with these counts of states.
    fn number(
        policies: &mut PolicyTable,
        owned: OwnedPolicy,
        rules_max: usize,
        states: &[u32],
    ) -> u32 {
        let mut unused = UnusedPolicies::default();
        unused.add_all();
        policies.number(&owned, rules_max, states, &mut unused)
    }

    #[test]
    fn a_policy_has_one_id() {
        let (mut policies, states) = (PolicyTable::new(), [1; 3]);
        let mut of = |owned| number(&mut policies, owned, 0, &states);
        let (first, second) = (of(kept(1)), of(kept(2)));
        let other = of(OwnedPolicy { limit: 7, ..kept(1) });
        assert!(first != second && first != other && second != other);
        assert_eq!(of(kept(1)), first);
        assert_eq!(policies.get(second), Some(&kept(2)));
        assert_eq!((policies.get(99), policies.get(INLINE)), (None, None));
        assert!(policies.limits().any(|pair| pair == (7, other)));
    }

    #[test]
    fn unused_policies_do_not_accumulate() {
        let (mut policies, mut unused) = (PolicyTable::new(), UnusedPolicies::default());
        assert_eq!(policies.number(&kept(1), 1000, &[], &mut unused), 0);
        for count in 2..100_000 {
            assert!(policies.number(&kept(count), 1000, &[1], &mut unused) != INLINE);
            assert!(policies.len() <= 2);
        }
        assert_eq!(policies.get(0), Some(&kept(1)));
        policies.drop_unused(&[], &mut unused);
        assert_eq!((policies.len(), policies.entries.len()), (1, 2));
        unused.add(0);
        policies.drop_unused(&[0], &mut unused);
        assert_eq!((policies.len(), policies.entries.capacity(), unused.is_empty()), (0, 0, true));
    }

    #[test]
    fn inline_policies_are_bounded_those_of_limits_not() {
        let (mut policies, in_use) = (PolicyTable::new(), [1; 2000]);
        for count in 1..=1000 {
            assert!(number(&mut policies, kept(count), 1000, &in_use) != INLINE);
        }
        assert_eq!(number(&mut policies, kept(1001), 1000, &in_use), INLINE);
        assert!(number(&mut policies, kept(1000), 1000, &in_use) != INLINE);
        assert!(
            number(&mut policies, OwnedPolicy { limit: 3, ..kept(1001) }, 1000, &in_use) != INLINE
        );
        // There is room again once states are removed.
        assert!(number(&mut policies, kept(1001), 1000, &in_use[..10]) != INLINE);
    }

    #[test]
    fn policies_of_copies_get_one_id_while_there_is_room() {
        let (mut policies, mut unused, in_use) =
            (PolicyTable::new(), UnusedPolicies::default(), [1; 2000]);
        let token = |count: u64| kept(count).policy.to_string().into_bytes();
        let mut of = |policies: &mut PolicyTable, token: &[u8], states: &[u32]| {
            policies.number_of_copy(token, 1000, states, &mut unused)
        };
        for count in 1..=1000 {
            let number = of(&mut policies, &token(count), &in_use).expect("a policy");
            assert_eq!(number, super::tests::number(&mut policies, kept(count), 0, &in_use));
            assert_eq!(of(&mut policies, &token(count), &in_use), Some(number));
            assert_eq!(policies.token(number), Some(&token(count)[..]));
        }
        assert_eq!(of(&mut policies, b"gcra:1/1s,burst=0", &in_use), Some(0));
        assert_eq!(of(&mut policies, b"gcra", &in_use), None);
        assert_eq!(of(&mut policies, &token(1001), &in_use), Some(INLINE));
        // Unused policies are removed together with their tokens.
        for count in 1001..50_000 {
            assert!(of(&mut policies, &token(count), &[]).is_some());
        }
        assert!(policies.copied.len() <= policies.len() && policies.len() <= 1000);
    }

    #[test]
    fn a_state_with_an_inline_policy_returns_it() {
        let mut body = Vec::new();
        put_inline(&kept(5).policy, &mut body);
        body.extend_from_slice(b"own");
        let state = LimitState { policy_id: INLINE, body: &body };
        let policies = PolicyTable::new();
        assert_eq!(policies.policy_of(state), Some((kept(5), &b"own"[..])));
        for cut in 0..body.len() - 3 {
            assert_eq!(policies.policy_of(LimitState { body: &body[..cut], ..state }), None);
        }
        assert_eq!(policies.policy_of(LimitState { policy_id: 7, body: &body }), None);
    }

    #[test]
    fn long_token_survives_encoding() {
        for count in [1, 2, 7, 8] {
            let one = |number: usize| format!("fixed:{}/d,align=calendar,tz=+09:00", 1 + number);
            let token = (0..count).map(one).collect::<Vec<_>>().join(";");
            let policy = Policy::parse_list(token.as_bytes()).expect("policies");
            let (mut printed, mut put) = (Vec::new(), Vec::new());
            put_inline(&policy, &mut printed);
            put_token(token.as_bytes(), &mut put);
            assert_eq!(printed, put);
            put.extend_from_slice(b"rest");
            assert_eq!(inline(&put), Some((token.as_bytes(), &b"rest"[..])));
            for cut in 0..put.len() - 4 {
                assert_eq!(inline(&put[..cut]), None, "{cut}");
            }
        }
        assert_eq!(inline(&[0, 255, 0].repeat(200)), None, "a short token in the long form");
        assert_eq!(inline(&[0, 255, 255].repeat(40_000)), None, "a token above the bound");
    }

    #[test]
    fn the_keys_at_work_are_those_that_have_a_state() {
        use std::sync::Arc;

        use crate::{Engine, EngineOptions, KeyHasher, MemoryCap, Now, TakeParams};

        let hasher = KeyHasher::new([1, 2, 3, 4]);
        let memory_cap = Arc::new(MemoryCap::new(300 << 10));
        let mut engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
        let policies = ["bucket:5/60s", "log:9/2s", "fixed:5/1s", "sliding:3/s,slices=4"]
            .map(|token| Policy::parse(token.as_bytes()).expect("a good policy"));
        let take = TakeParams { cost: 1, ..TakeParams::default() };
        let mut draw = 1_u64;
        for step in 0..40_000_u64 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
            let [a, b, c, ..] = draw.to_be_bytes();
            let now = Now::at_ms(1000 + step);
            let key = format!("key{}", u64::from(a) + (step / 5000) * 200);
            let hash = hasher.hash(key.as_bytes());
            let limit = u32::from(b % 3);
            let policy_ref = PolicyRef { policy: &policies[usize::from(c % 4)], limit };
            match b {
                ..5 => {
                    engine.refund(now, hash, key.as_bytes(), None, 9);
                }
                5 => {
                    engine.sweep(now, 100);
                }
                _ => {
                    engine.take(now, hash, key.as_bytes(), Some(policy_ref), &take);
                }
            }
            if step % 1000 == 0 {
                let mut counted = 0;
                engine.active_keys(|limit, count| {
                    assert!(limit < 3 && count > 0);
                    counted += count;
                });
                assert_eq!(counted, engine.len() as u64, "step {step}");
            }
        }
        engine.flush(Now::at_ms(90_000), protocol::Exptime(0));
        engine.active_keys(|_, _| panic!("there is nothing left"));
    }
}
