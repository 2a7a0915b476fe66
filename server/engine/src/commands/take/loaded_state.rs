//! The state of a key, decoded for a command and encoded again.
//!
//! Here: the encoding of a state in an item, the cas unique of a state, the change of policies. Not
//! here: the commands (`take`), the holds' bytes (`hold_list`), the algorithm's own (`algorithms`).
//!
//! ```text
//! holds | leases | the algorithm's own state
//! ```
//!
//! The policy id is in the header of the item. A key with many holders has the number of a set in
//! place of all these bytes (`store/sets`).

use std::hint::cold_path;

use protocol::Policy;

use super::hold_list::{self, HoldList};
use super::{Decider, TakeInfo, TakeResult, holds_by_itself};
use crate::algorithms::{self, Attempt, Decision, SeveralDecision};
use crate::commands::lease::{Leases, cover_leases, end_leases, kept_until};
use crate::engine::{Engine, Hold};
use crate::policy_table::{INLINE, LimitState, OwnedPolicy, PolicyRef};
use crate::store::arena::Slot;
use crate::store::item::{Content, ItemHeader};
use crate::store::{HoldSetId, Located};
use crate::time::{Deadline, Nanos, Now};

/// Greatest capacity in bytes of a buffer that is kept for the next command.
const SPARE_BYTES_MAX: usize = 16 << 10;
/// Greatest capacity in holds.
const SPARE_HOLDS_MAX: usize = 512;

/// The policy of a key if neither caller nor state has one.
const UNLIMITED: Policy =
    Policy { algorithm: protocol::Algorithm::Unlimited, over: false, shadow: false };

/// The decoded state of a key.
pub(crate) struct LoadedState {
    pub(crate) policy: Policy,
    /// The limit that the policy belongs to.
    pub(super) limit: u32,
    /// The policy id, if the state has it already.
    pub(super) number: Option<u32>,
    pub(super) holds: Vec<Hold>,
    /// The leases; boxed, because most keys have none.
    pub(crate) leases: Option<Box<Leases>>,
    pub(crate) state: Vec<u8>,
    /// The holds that lie beside the item; `state` is then empty.
    pub(super) set: Option<HoldSetId>,
    pub(super) header: ItemHeader,
    pub(super) slot: Option<Slot>,
    /// Whether several policies decided: the engine keeps the last such decision.
    pub(super) is_several: bool,
    /// Whether the figures of the first of several policies are reported.
    pub(super) of_first: bool,
}

impl LoadedState {
    /// Makes the state of a key that has none, with these empty buffers.
    fn fresh(policy_ref: Option<PolicyRef<'_>>, holds: Vec<Hold>, state: Vec<u8>) -> Self {
        Self {
            policy: policy_ref.map_or(UNLIMITED, |policy_ref| *policy_ref.policy),
            limit: policy_ref.map_or(0, |policy_ref| policy_ref.limit),
            number: None,
            holds,
            leases: None,
            state,
            set: None,
            header: ItemHeader::new(0, 0, Deadline::NEVER),
            slot: None,
            is_several: false,
            of_first: true,
        }
    }

    /// Returns whether the state has the cas unique `unique`; 0 stands for a missing state.
    pub(super) fn has_cas(&self, unique: u64) -> bool {
        // Without uniques (`-C`) every existing state has 0, but it exists all the same.
        match self.slot {
            None => unique == 0,
            Some(_) => unique != 0 && unique == self.header.cas,
        }
    }
}

impl Engine {
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
        let found = at.slot.filter(|slot| slot.is_limit_state());
        let item = found.map(|slot| self.store.item(slot));
        let Some((item, state_of)) = item.and_then(|item| Some((item, item.state()?))) else {
            return LoadedState::fresh(policy_ref, holds, state);
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
        let BodyParts { mut leases, mut set, own } = decode(bytes, at.now, &mut holds);
        if set.is_none() {
            state.extend_from_slice(own);
        }
        let remembered = owned.map(|owned| owned.policy);
        if let (Some(leases), Some(old)) = (&mut leases, &remembered) {
            end_leases(old, &mut state, leases, at.now, at.hash);
        }
        let (policy, limit, number) = match (policy_ref, owned) {
            (Some(policy_ref), Some(old)) if *policy_ref.policy != old.policy => {
                hold_list::adopt(&mut holds, &old.policy, policy_ref.policy);
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
        if !holds.is_empty() {
            let leased = leases.as_ref().map_or(0, |leases| leases.outstanding());
            let leased = algorithms::amounts_of(&policy, leased);
            let used = algorithms::used_of_each(&policy, &state, at.now, at.hash);
            hold_list::note_usage(&mut holds, used, &leased);
        }
        // Under another algorithm a key has no holders.
        set = set.filter(|_| holds_by_itself(&policy));
        LoadedState {
            policy,
            limit,
            number,
            holds,
            leases,
            state,
            set,
            header,
            slot: found,
            is_several: false,
            of_first: true,
        }
    }

    /// Keeps the buffers for the next command.
    pub(crate) fn recycle(&mut self, loaded: &mut LoadedState) {
        // One large state must not occupy its memory for ever.
        let LoadedState { holds, state, .. } = loaded;
        if state.capacity() <= SPARE_BYTES_MAX && holds.capacity() <= SPARE_HOLDS_MAX {
            self.limits.spare = (std::mem::take(holds), std::mem::take(state));
        }
        release_large(&mut self.limits.encoded);
    }

    pub(super) fn facts(
        &mut self,
        loaded: &mut LoadedState,
        decision: Decision,
        shadow: bool,
    ) -> TakeInfo {
        let several = self.limits.decided.as_ref().filter(|_| loaded.is_several);
        let (decision, at) = match several {
            Some(several) => shown(decision, several, loaded.of_first),
            None => (decision, None),
        };
        let facts = TakeInfo {
            decision,
            cas: loaded.slot.map_or(0, |_| loaded.header.cas),
            client_flags: loaded.header.client_flags,
            has_state: loaded.slot.is_some(),
            shadow,
            at,
        };
        self.recycle(loaded);
        facts
    }

    pub(crate) fn store_and_look(
        &mut self,
        at: Located<'_>,
        loaded: &mut LoadedState,
    ) -> TakeResult {
        if loaded.leases.is_some() {
            let LoadedState { policy, state, leases, .. } = loaded;
            cover_leases(policy, state, leases, at.now, at.hash);
        }
        self.join_few(loaded, at.now);
        let decision =
            self.look_at(loaded, at.now, Attempt { hash: at.hash, ..Attempt::default() });
        self.keep(at, loaded, decision, false)
    }

    /// Writes a changed state, or removes an idle one.
    pub(super) fn keep(
        &mut self,
        at: Located<'_>,
        loaded: &mut LoadedState,
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
        self.move_holds_to_set(loaded);
        let mut bytes = std::mem::take(&mut self.limits.encoded);
        bytes.clear();
        let policy_id = loaded.number.unwrap_or_else(|| {
            let owned = OwnedPolicy { policy: loaded.policy, limit: loaded.limit };
            self.policy_id(&owned, &mut bytes)
        });
        if loaded.set.is_some() {
            // A key with many holders drops the estimates of a former policy.
            loaded.holds.clear();
        }
        encode(loaded, self.limits.keeps_hold_usage, &mut bytes);
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
        header.deadline = if algorithms::begins_unfilled(&loaded.policy) {
            // Past its deadline the key would begin unfilled again.
            Deadline::LAST
        } else {
            Deadline::not_before(Nanos(idle_at))
        };
        let content = Content::State(LimitState { policy_id, body: &bytes });
        let written = self.store.write(at, header, content);
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

/// The figures to report of a decision over several policies: those of the first, or of the one
/// that decides, with its position.
#[cold]
fn shown(
    decision: Decision,
    several: &SeveralDecision,
    of_first: bool,
) -> (Decision, Option<Decider>) {
    if of_first {
        let Decision { limit, remaining, used, reset, counted, .. } = several.first;
        return (Decision { limit, remaining, used, reset, counted, ..decision }, None);
    }
    let at = if several.banned { Some(Decider::BAN) } else { Decider::policy(several.at) };
    (Decision { reset: several.reset, ..decision }, at)
}

/// A state's body without its holds.
struct BodyParts<'s> {
    leases: Option<Box<Leases>>,
    /// The set of holds that the body names in place of all other parts.
    set: Option<HoldSetId>,
    /// The algorithm's own state.
    own: &'s [u8],
}

/// Decodes a state's body; appends its holds that have not ended at `now` to `holds`.
#[inline]
fn decode<'s>(bytes: &'s [u8], now: Now, holds: &mut Vec<Hold>) -> BodyParts<'s> {
    let set = HoldSetId::of_body(bytes);
    let Some((list, mut own)) = HoldList::split(bytes) else {
        return BodyParts { leases: None, set, own: &[] };
    };
    holds.reserve(list.len());
    for hold in list.holds() {
        hold_list::push_live(holds, hold, now.mono.0);
    }
    let mut leases = None;
    if list.has_leases
        && let Some((read, rest)) = Leases::decode(own)
    {
        leases = Some(Box::new(read));
        own = rest;
    }
    BodyParts { leases, set, own }
}

/// Appends a state's body.
#[inline]
fn encode(loaded: &LoadedState, keeps_usage: bool, out: &mut Vec<u8>) {
    let LoadedState { holds, policy, leases, .. } = loaded;
    match loaded.set {
        Some(set) => out.extend_from_slice(&set.body()),
        None => hold_list::encode(holds, policy, leases.is_some(), keeps_usage, out),
    }
    if let Some(leases) = &loaded.leases {
        leases.encode(out);
    }
    out.extend_from_slice(&loaded.state);
}

/// One large state must not occupy its memory for ever.
pub(super) fn release_large(buffer: &mut Vec<u8>) {
    if buffer.capacity() > SPARE_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// Whether the algorithm's own state in a sound body is one of this policy. Only the states of
/// several policies have a form that can be wrong.
pub(crate) fn has_own_state(policy: &Policy, body: &[u8]) -> bool {
    let protocol::Algorithm::Several(list) = policy.algorithm else { return true };
    // Neither leases nor a set of holders go with several policies.
    HoldList::split(body).is_some_and(|(holds, own)| {
        !holds.has_leases && !holds.has_set && algorithms::is_state_of_several(list, own)
    })
}
