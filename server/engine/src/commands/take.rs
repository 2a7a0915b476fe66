//! Commands on limited keys: load the state, run the algorithm, store the result.
//!
//! Here: the encoding of a state in an item, holds, the cas unique of a state, the change of
//! policies. Not here: the arithmetic (`algorithms`), quota leases (`lease`), plain items
//! (`apply`), saved states (`snapshot`), the fast path of most takes (`fast`), ending and renewing
//! holds (`holds`).
//!
//! ```text
//! holds u16 | hold: lease u64, units u64, end u64 … | leases | the algorithm's own state
//! ```
//!
//! The top bit of `holds` marks leases. The policy id is in the header of the item. A key with many
//! holders has the number of a set in place of all these bytes (`store/sets`).

mod fast;
mod holds;
mod many;
mod snapshot;
mod usage;

use std::hint::cold_path;

use protocol::Policy;

use self::many::without_hold;
use crate::algorithms::{self, Attempt, Decision, Verdict};
use crate::apply::{Engine, Located};
use crate::commands::lease::{Leases, cover_leases, end_leases, kept_until};
use crate::policy_table::{
    INLINE, LimitState, OwnedPolicy, POLICY_BYTES, PolicyRef, PolicyTable, put_inline,
};
use crate::store::arena::Slot;
use crate::store::item::{Content, ItemFlag, ItemHeader};
use crate::store::{Full, HAS_SET, HoldSetId};
use crate::time::{Deadline, Nanos, Now};

pub use self::holds::ForeignHold;
pub use self::snapshot::LimitRecord;
pub use self::usage::SetUsage;

/// Most unsettled holds of one key: a take that asks for one more is refused.
pub const HOLDS_MAX: usize = 1024;

/// Greatest capacity in bytes of a buffer that is kept for the next command.
const SPARE_BYTES_MAX: usize = 16 << 10;

/// The policy of a key if neither caller nor state has one.
const UNLIMITED: Policy =
    Policy { algorithm: protocol::Algorithm::Unlimited, over: false, shadow: false };

/// Added to the number of holds: leases follow them.
pub(crate) const HAS_LEASES: u16 = 1 << 15;

/// Bytes before the holds.
const HEAD_BYTES: usize = 2;
pub(crate) const HOLD_BYTES: usize = 24;

/// A take by a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TakeParams {
    /// The cost in units, 0 to [`protocol::COUNT_MAX`].
    pub cost: u64,
    /// Whether to take the available units if the whole cost is not available.
    pub part: bool,
    /// Whether to decide without changing the state.
    pub peek: bool,
    /// The caller's own bound on a wait, in nanoseconds.
    pub wait: Option<u64>,
    /// Nanoseconds for which the cost is held as an estimate, to be settled.
    pub hold: Option<u64>,
    /// Take only if the state has this cas unique, or for 0 only if there is no state.
    pub compare_cas: Option<u64>,
    /// The client's 32 bits, if it sets them.
    pub client_flags: Option<u32>,
    /// The lease of the hold, if it must equal that of another key.
    pub lease: Option<u64>,
}

/// The result of a command on a limited key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeResult {
    /// Decided, or peeked.
    Decided(TakeInfo),
    /// The state has another cas unique; the information is that of a peek.
    Exists(TakeInfo),
    /// There is no state, or no hold with this lease.
    NotFound,
    /// There is no room for the state.
    Full,
}

/// A decision with further information on the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeInfo {
    /// The algorithm's decision.
    pub decision: Decision,
    /// The cas unique of the state after the decision; 0 without state.
    pub cas: u64,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// Whether the key has a state after the decision.
    pub has_state: bool,
    /// Whether the attempt was refused, delayed or granted in part by a policy that only reports:
    /// the caller continues.
    pub shadow: bool,
}

/// The judgement of a limit on an attempt, for its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// No attempt: a peek, or a cost of 0.
    Nothing,
    /// The attempt passed.
    Allowed,
    /// The attempt was refused.
    Denied,
    /// A policy that only reports would have refused the attempt.
    ShadowDenied,
}

impl TakeInfo {
    /// Whether the caller must not continue.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.decision.verdict == Verdict::Deny && !self.shadow
    }

    /// The judgement of the limit on `take`.
    #[must_use]
    pub fn judgement(&self, take: &TakeParams) -> Judgement {
        if take.peek || take.cost == 0 {
            Judgement::Nothing
        } else if self.refuses() {
            Judgement::Denied
        } else if self.shadow {
            Judgement::ShadowDenied
        } else {
            Judgement::Allowed
        }
    }
}

impl TakeResult {
    /// The judgement of the limit on `take`.
    #[must_use]
    pub fn judgement(&self, take: &TakeParams) -> Judgement {
        match self {
            Self::Decided(facts) => facts.judgement(take),
            _ => Judgement::Nothing,
        }
    }
}

/// The parts of a shard that limits need beside its store: the policies of its states, and buffers
/// that are reused from command to command.
#[repr(C)]
pub(crate) struct LimitParts {
    /// The first field, for its place in memory ([`Engine`]).
    pub(crate) policies: PolicyTable,
    last_lease: u64,
    spare: (Vec<Hold>, Vec<u8>),
    pub(crate) encoded: Vec<u8>,
}

impl LimitParts {
    /// The end of the bytes that a lookup reads.
    pub(crate) const LOOKUP_END: usize = PolicyTable::LOOKUP_END;
}

impl Default for LimitParts {
    fn default() -> Self {
        Self {
            policies: PolicyTable::new(),
            last_lease: 0,
            spare: (Vec::new(), Vec::new()),
            encoded: Vec::new(),
        }
    }
}

/// An estimate that waits to be settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hold {
    lease: u64,
    units: u64,
    /// The instant on the monotonic clock at which the hold ends.
    end: u64,
}

/// The decoded state of a key.
pub(crate) struct LoadedState {
    pub(crate) policy: Policy,
    /// The limit that the policy belongs to.
    limit: u32,
    /// The policy id, if the state has it already.
    number: Option<u32>,
    holds: Vec<Hold>,
    /// The leases; boxed, because most keys have none.
    pub(crate) leases: Option<Box<Leases>>,
    pub(crate) state: Vec<u8>,
    /// The holds that lie beside the item; `state` is then empty.
    set: Option<HoldSetId>,
    header: ItemHeader,
    slot: Option<Slot>,
}

pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|run| run.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Engine {
    /// Takes from a key under `policy_ref`, or under the policy stored in its state.
    pub fn take(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        take: &TakeParams,
    ) -> TakeResult {
        let mut state = std::mem::take(&mut self.limits.encoded);
        let mut limited = TakeResult::Full;
        let mut report = |facts: &TakeInfo| limited = TakeResult::Decided(*facts);
        let taken =
            self.take_in_place(now, (hash, key), policy_ref, *take, &mut state, &mut report);
        self.limits.encoded = state;
        if taken.is_some() {
            return limited;
        }
        let at = self.at(now, hash, key);
        self.take_general(at, policy_ref, take)
    }

    /// Takes from any state: decodes it, decides and encodes it anew.
    fn take_general(
        &mut self,
        at: Located<'_>,
        policy_ref: Option<PolicyRef<'_>>,
        take: &TakeParams,
    ) -> TakeResult {
        let Located { now, hash, .. } = at;
        let at = if take.peek {
            at
        } else {
            match self.room_to_hold(at) {
                Ok(at) => at,
                Err(Full) => return TakeResult::Full,
            }
        };
        let mut loaded = self.load(at, policy_ref);
        let holds_by_itself = holds_by_itself(&loaded.policy);
        let may_hold = !take.peek && (take.hold.is_some() || holds_by_itself);
        let lease = may_hold.then(|| take.lease.unwrap_or_else(|| self.next_lease(now)));
        let attempt = Attempt {
            cost: take.cost,
            part: take.part,
            peek: take.peek,
            over: loaded.policy.over,
            wait: take.wait,
            hold: take.hold,
            lease,
            hash,
        };
        if let Some(unique) = take.compare_cas {
            // Without uniques (`-C`) every existing state has 0, but it exists all the same.
            let is_it = match loaded.slot {
                None => unique == 0,
                Some(_) => unique != 0 && unique == loaded.header.cas,
            };
            if !is_it {
                let decision = self.look_at(&mut loaded, now, attempt);
                return TakeResult::Exists(self.facts(loaded, decision, false));
            }
        }
        let wants_hold = may_hold && !holds_by_itself;
        let policy = loaded.policy;
        let no_hold = wants_hold && loaded.holds.len() >= HOLDS_MAX;
        let mut decision = if no_hold {
            let first_end = loaded.holds.iter().map(|hold| hold.end).min().unwrap_or(0);
            without_hold(
                self.look_at(&mut loaded, now, attempt),
                first_end.saturating_sub(now.mono.0),
            )
        } else {
            self.decide(&mut loaded, now, &attempt)
        };
        loaded.header.client_flags = take.client_flags.unwrap_or(loaded.header.client_flags);
        let allowed = decision.verdict != Verdict::Deny;
        if wants_hold
            && allowed
            && let (Some(lease), Some(hold)) = (lease, take.hold)
        {
            let end = now.mono.0.saturating_add(hold);
            loaded.holds.push(Hold { lease, units: decision.granted, end });
            decision.lease = Some(lease);
            decision.changed = true;
        }
        let refused = !allowed && !take.peek;
        let shadow = only_watches(&policy, &mut decision);
        if !decision.changed {
            if refused && let Some(slot) = loaded.slot {
                self.store.item_mut(slot).set_mark(ItemFlag::REFUSED);
            }
            return TakeResult::Decided(self.facts(loaded, decision, shadow));
        }
        if refused {
            loaded.header = loaded.header.mark(ItemFlag::REFUSED, true);
        }
        self.keep(at, loaded, decision, shadow)
    }

    /// Marks a key as refused if the refusal was decided by a peek: a refused key is evicted last.
    pub fn note_refused(&mut self, now: Now, hash: u64, key: &[u8]) {
        if let Some(slot) = self.at(now, hash, key).slot.filter(|slot| slot.is_limit_state()) {
            self.store.item_mut(slot).set_mark(ItemFlag::REFUSED);
        }
    }

    /// Returns a lease that no other hold has, on any key of any shard: it counts up from the
    /// clock, so that a lease granted before a restart names no later hold. In a store of 4096
    /// shards it stays below 2^53, which every client language represents, until the year 2039.
    /// After [`Engine::begin_at`] it is the number passed there.
    pub fn next_lease(&mut self, now: Now) -> u64 {
        if let Some(unique) = self.uniques.given {
            return unique.get();
        }
        let (shard, shards) = self.shard();
        let by_clock = now.unix_ms.saturating_mul(shards).saturating_add(shard);
        self.limits.last_lease = by_clock.max(self.limits.last_lease.saturating_add(shards));
        self.limits.last_lease
    }

    /// Peeks at a key under `policy_ref` or the stored policy; `None` if there is neither a policy
    /// nor a state.
    pub fn look(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
    ) -> Option<TakeInfo> {
        let at = self.at(now, hash, key);
        if policy_ref.is_none() && !is_state(at) {
            return None;
        }
        let mut loaded = self.load(at, policy_ref);
        let decision = self.look_at(&mut loaded, now, Attempt { hash, ..Attempt::default() });
        Some(self.facts(loaded, decision, false))
    }

    /// Most policies stored by id at a time.
    pub(crate) fn policies_max(&self) -> usize {
        self.policy_bytes_max() / POLICY_BYTES
    }

    /// The id of a policy; [`INLINE`] if there is no room for it, and then the policy is appended
    /// to `body`, with which a state begins.
    pub(crate) fn policy_id(&mut self, owned: &OwnedPolicy, body: &mut Vec<u8>) -> u32 {
        let rules_max = self.policies_max();
        let (states, unused) = self.store.unused_policies();
        let number = self.limits.policies.number(owned, rules_max, states, unused);
        if number == INLINE {
            cold_path();
            put_inline(&owned.policy, body);
        }
        number
    }

    /// Removes the policies without states.
    pub(crate) fn drop_unused_policies(&mut self) {
        let (states, unused) = self.store.unused_policies();
        self.limits.policies.drop_unused(states, unused);
    }

    /// Passes every limit that has states, and their number, to `each`; a limit may be passed
    /// twice.
    pub fn active_keys(&self, mut each: impl FnMut(u32, u64)) {
        for (limit, number) in self.limits.policies.limits() {
            let states = self.store.states_by_policy().get(number as usize).copied().unwrap_or(0);
            if states > 0 {
                each(limit, u64::from(states));
            }
        }
    }

    /// Loads the state of a key under `policy_ref`, or under the stored policy. If both differ the
    /// new one holds at once. A plain item of the same key counts as no state.
    pub(crate) fn load(
        &mut self,
        at: Located<'_>,
        policy_ref: Option<PolicyRef<'_>>,
    ) -> LoadedState {
        let (mut holds, mut state) = std::mem::take(&mut self.limits.spare);
        holds.clear();
        state.clear();
        let fresh = ItemHeader::new(0, 0, Deadline::NEVER);
        let found = at.slot.filter(|slot| slot.is_limit_state());
        let item = found.map(|slot| self.store.item(slot));
        let Some((item, state_of)) = item.and_then(|item| Some((item, item.state()?))) else {
            let policy = policy_ref.map_or(UNLIMITED, |policy_ref| *policy_ref.policy);
            let limit = policy_ref.map_or(0, |policy_ref| policy_ref.limit);
            let (number, leases, set, slot) = (None, None, None, None);
            let header = fresh;
            return LoadedState { policy, limit, number, holds, leases, state, set, header, slot };
        };
        let header = item.header();
        let (number, owned, bytes) = if state_of.policy_id == INLINE {
            cold_path();
            let (owned, bytes) = self.limits.policies.policy_of(state_of).unzip();
            (None, owned, bytes.unwrap_or_default())
        } else {
            let owned = self.limits.policies.get(state_of.policy_id).copied();
            (Some(state_of.policy_id), owned, state_of.body)
        };
        let marked = bytes.first_chunk().map_or(0, |run| u16::from_le_bytes(*run));
        let mut set = HoldSetId::of_body(bytes);
        let count = usize::from(marked & !(HAS_LEASES | HAS_SET));
        let body = HEAD_BYTES + count * HOLD_BYTES;
        for index in 0..count {
            let start = HEAD_BYTES + index * HOLD_BYTES;
            let end = read_u64(bytes, start + 16);
            // An expired hold is dropped, and its estimate stays spent.
            if end > at.now.mono.0 {
                let lease = read_u64(bytes, start);
                holds.push(Hold { lease, units: read_u64(bytes, start + 8), end });
            }
        }
        let mut own = bytes.get(body..).unwrap_or_default();
        let mut leases = None;
        if marked & HAS_LEASES != 0
            && let Some((read, rest)) = Leases::decode(own)
        {
            leases = Some(Box::new(read));
            own = rest;
        }
        if set.is_none() {
            state.extend_from_slice(own);
        }
        let remembered = owned.map(|owned| owned.policy);
        if let (Some(leases), Some(old)) = (&mut leases, &remembered) {
            end_leases(old, &mut state, leases, at.now, at.hash);
        }
        let (policy, limit, number) = match (policy_ref, owned) {
            (Some(policy_ref), Some(old)) if *policy_ref.policy != old.policy => {
                algorithms::adopt(&old.policy, policy_ref.policy, &mut state, at.now);
                (*policy_ref.policy, policy_ref.limit, None)
            }
            (Some(policy_ref), Some(old)) if policy_ref.limit == old.limit => {
                (old.policy, old.limit, number)
            }
            (Some(policy_ref), _) => (*policy_ref.policy, policy_ref.limit, None),
            (None, Some(old)) => (old.policy, old.limit, number),
            (None, None) => (UNLIMITED, 0, None),
        };
        if leases.is_some() {
            cover_leases(&policy, &mut state, &mut leases, at.now, at.hash);
        }
        // Under another algorithm a key has no holders.
        set = set.filter(|_| holds_by_itself(&policy));
        LoadedState { policy, limit, number, holds, leases, state, set, header, slot: found }
    }

    /// Keeps the buffers for the next command.
    pub(crate) fn recycle(&mut self, loaded: LoadedState) {
        // One large state must not occupy its memory for ever.
        let LoadedState { holds, state, .. } = loaded;
        if state.capacity() <= SPARE_BYTES_MAX && holds.capacity() * HOLD_BYTES <= SPARE_BYTES_MAX {
            self.limits.spare = (holds, state);
        }
        release_large(&mut self.limits.encoded);
    }

    fn facts(&mut self, loaded: LoadedState, decision: Decision, shadow: bool) -> TakeInfo {
        let facts = TakeInfo {
            decision,
            cas: loaded.slot.map_or(0, |_| loaded.header.cas),
            client_flags: loaded.header.client_flags,
            has_state: loaded.slot.is_some(),
            shadow,
        };
        self.recycle(loaded);
        facts
    }

    pub(crate) fn store_and_look(
        &mut self,
        at: Located<'_>,
        mut loaded: LoadedState,
    ) -> TakeResult {
        if loaded.leases.is_some() {
            let LoadedState { policy, state, leases, .. } = &mut loaded;
            cover_leases(policy, state, leases, at.now, at.hash);
        }
        self.join_few(&mut loaded, at.now);
        let decision =
            self.look_at(&mut loaded, at.now, Attempt { hash: at.hash, ..Attempt::default() });
        self.keep(at, loaded, decision, false)
    }

    /// Writes a changed state, or removes an idle one.
    fn keep(
        &mut self,
        at: Located<'_>,
        mut loaded: LoadedState,
        decision: Decision,
        shadow: bool,
    ) -> TakeResult {
        let has_state = !loaded.state.is_empty() || loaded.set.is_some();
        if !has_state && loaded.holds.is_empty() && loaded.leases.is_none() {
            if let Some(slot) = loaded.slot.take() {
                self.store.remove(at.hash, slot);
            }
            return TakeResult::Decided(self.facts(loaded, decision, shadow));
        }
        let owned = OwnedPolicy { policy: loaded.policy, limit: loaded.limit };
        self.move_holds_to_set(&mut loaded);
        let mut bytes = std::mem::take(&mut self.limits.encoded);
        bytes.clear();
        let policy_id = loaded.number.unwrap_or_else(|| self.policy_id(&owned, &mut bytes));
        let mark = if loaded.leases.is_some() { HAS_LEASES } else { 0 };
        match loaded.set {
            // A key with many holders drops the estimates of a former policy.
            Some(set) => {
                bytes.extend_from_slice(&set.body());
                loaded.holds.clear();
            }
            None => bytes.extend_from_slice(&(loaded.holds.len() as u16 | mark).to_le_bytes()),
        }
        for hold in &loaded.holds {
            for part in [hold.lease, hold.units, hold.end] {
                bytes.extend_from_slice(&part.to_le_bytes());
            }
        }
        if let Some(leases) = &loaded.leases {
            leases.encode(&mut bytes);
        }
        bytes.extend_from_slice(&loaded.state);
        let now_ns = at.now.mono.0;
        let leases_end = loaded
            .leases
            .as_ref()
            .map_or(0, |leases| kept_until(&loaded.policy, &loaded.state, leases, at.now, at.hash));
        let idle_at = loaded
            .holds
            .iter()
            .map(|hold| hold.end)
            .fold(now_ns.saturating_add(decision.reset).max(leases_end), u64::max);
        let mut header = loaded.header;
        header.cas = self.uniques.next(None);
        header.deadline = Deadline::not_before(Nanos(idle_at));
        let content = Content::State(LimitState { policy_id, body: &bytes });
        let written = self.store.write(at.now, at.hash, at.key, at.slot, header, content);
        self.limits.encoded = bytes;
        let Ok(slot) = written else {
            if let Some(set) = loaded.set {
                self.drop_unnamed(at, set);
            }
            self.recycle(loaded);
            return TakeResult::Full;
        };
        loaded.slot = Some(slot);
        loaded.header = header;
        TakeResult::Decided(self.facts(loaded, decision, shadow))
    }
}

fn is_state(at: Located<'_>) -> bool {
    at.slot.is_some_and(Slot::is_limit_state)
}

/// One large state must not occupy its memory for ever.
fn release_large(buffer: &mut Vec<u8>) {
    if buffer.capacity() > SPARE_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// Whether the policy only reports this decision: then the caller is not refused, delayed or
/// granted a part.
fn only_watches(policy: &Policy, decision: &mut Decision) -> bool {
    let watched = policy.shadow && decision.verdict != Verdict::Allow;
    if watched {
        decision.verdict = Verdict::Deny;
    }
    watched
}

/// Whether every take of the policy is a hold, as in `concurrency`.
fn holds_by_itself(policy: &Policy) -> bool {
    matches!(policy.algorithm, protocol::Algorithm::Concurrency { .. })
}
