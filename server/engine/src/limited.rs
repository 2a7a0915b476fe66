//! Commands on keys that a limit holds: load the state, ask the algorithm, keep what it says.
//!
//! Here: how a state lies in an item, holds, the cas unique of a state, one policy giving way to
//! another. Not here: the arithmetic (`limit`), quota leases (`lease`), plain items (`apply`), what is
//! saved of a state (`saved`), the short way of most takes (`quick`), ending and renewing holds
//! (`holds`).
//!
//! ```text
//! holds u16 | hold: lease u64, units u64, end u64 … | leases | the algorithm's own state
//! ```
//!
//! The top bit of `holds` says whether there are leases. The rule is among the figures of the item. A key
//! with many holders has the number of a set in place of all that (`store/sets`).

mod holds;
mod many;
mod quick;
mod saved;
mod usage;

use std::hint::cold_path;

use protocol::Policy;

use self::many::without_a_hold;
use crate::apply::{At, Engine};
use crate::arena::Slot;
use crate::item::{Content, Figures, Mark, State};
use crate::lease::{Leases, cover_leases, end_leases, kept_until};
use crate::limit::{self, Ask, Decision, Verdict};
use crate::policies::{INLINE, Kept, Policies, RULE_BYTES, Rule, put_inline};
use crate::store::{Full, HAS_SET, SetId};
use crate::time::{Deadline, Nanos, Now};

pub use self::holds::GivenHold;
pub use self::saved::LimitRecord;
pub use self::usage::SetUsed;

/// Most holds of one key that are not settled: beyond it a take that wants one is refused.
pub const HOLDS_MAX: usize = 1024;

/// Largest buffer that is kept for the next command.
const SPARE_BYTES_MAX: usize = 16 << 10;

/// What a key is limited by when neither caller nor state say.
const UNLIMITED: Policy =
    Policy { algorithm: protocol::Algorithm::Unlimited, over: false, shadow: false };

/// Beside the number of holds: leases follow them.
pub(crate) const HAS_LEASES: u16 = 1 << 15;

/// What is in front of the holds.
const HEAD_BYTES: usize = 2;
pub(crate) const HOLD_BYTES: usize = 24;

/// A take, as a caller words it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Take {
    /// Units, 0 to [`protocol::COUNT_MAX`].
    pub cost: u64,
    /// Take what there is when the whole cost is not there.
    pub part: bool,
    /// Look, change nothing.
    pub peek: bool,
    /// The caller's own bound on a wait, in nanoseconds.
    pub wait: Option<u64>,
    /// Keep the cost as an estimate to be settled, for so many nanoseconds.
    pub hold: Option<u64>,
    /// Only if the state has this cas unique; 0: only if there is no state.
    pub compare_cas: Option<u64>,
    /// The client's 32 bits, where it writes them.
    pub client_flags: Option<u32>,
    /// The lease of the hold, where it is to be the same as that of another key.
    pub lease: Option<u64>,
}

/// What became of a command on a limited key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// Decided, or looked at.
    Decided(Facts),
    /// The state has another cas unique; the facts are those of a look.
    Exists(Facts),
    /// There is no state, or no such lease.
    NotFound,
    /// There is no room for the state.
    Full,
}

/// A decision and what belongs to the key beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The algorithm's answer.
    pub decision: Decision,
    /// The cas unique of the state after it; 0 where there is none.
    pub cas: u64,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// There is a state after it.
    pub has_state: bool,
    /// Refused, put off or granted in part, but the policy only watches: the caller goes on.
    pub shadow: bool,
}

/// How a limit judged an attempt, for its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing was attempted: a look, or an attempt for nothing.
    Nothing,
    /// It passed.
    Allowed,
    /// It was refused.
    Denied,
    /// It would have been refused, but the policy only watches.
    ShadowDenied,
}

impl Facts {
    /// Whether the caller must not go on.
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.decision.verdict == Verdict::Deny && !self.shadow
    }

    /// How the limit judged what `take` asked.
    #[must_use]
    pub fn judgement(&self, take: &Take) -> Judgement {
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

impl Limited {
    /// How the limit judged what `take` asked.
    #[must_use]
    pub fn judgement(&self, take: &Take) -> Judgement {
        match self {
            Self::Decided(facts) => facts.judgement(take),
            _ => Judgement::Nothing,
        }
    }
}

/// What a shard needs for limits beside its store: the policies its states remember, and buffers
/// that are used again from command to command.
#[repr(C)]
pub(crate) struct LimitParts {
    /// In front, for its place in memory ([`Engine`]).
    pub(crate) policies: Policies,
    last_lease: u64,
    spare: (Vec<Hold>, Vec<u8>),
    pub(crate) encoded: Vec<u8>,
}

impl LimitParts {
    /// Where the bytes end that a lookup reads.
    pub(crate) const LOOKUP_END: usize = Policies::LOOKUP_END;
}

impl Default for LimitParts {
    fn default() -> Self {
        Self {
            policies: Policies::new(),
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
    /// On the monotonic clock.
    end: u64,
}

/// A key's state, taken apart.
pub(crate) struct Loaded {
    pub(crate) policy: Policy,
    /// The limit of the rule.
    limit: u32,
    /// The number of the rule, where the state has it already.
    number: Option<u32>,
    holds: Vec<Hold>,
    /// `None` for none: most keys have none, and pay eight bytes for that.
    pub(crate) leases: Option<Box<Leases>>,
    pub(crate) state: Vec<u8>,
    /// The holds that lie beside the item; `state` is empty then.
    set: Option<SetId>,
    figures: Figures,
    slot: Option<Slot>,
}

pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|run| run.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Engine {
    /// Takes from a key under `rule`, or under the one its state remembers.
    pub fn take(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Option<Rule<'_>>,
        take: &Take,
    ) -> Limited {
        let mut state = std::mem::take(&mut self.limits.encoded);
        let mut limited = Limited::Full;
        let mut tell = |facts: &Facts| limited = Limited::Decided(*facts);
        let taken = self.take_in_place(now, (hash, key), rule, *take, &mut state, &mut tell);
        self.limits.encoded = state;
        if taken.is_some() {
            return limited;
        }
        let at = self.at(now, hash, key);
        self.take_apart(at, rule, take)
    }

    /// Takes from any state: it is taken apart, decided on and written anew.
    fn take_apart(&mut self, at: At<'_>, rule: Option<Rule<'_>>, take: &Take) -> Limited {
        let At { now, hash, .. } = at;
        let at = if take.peek {
            at
        } else {
            match self.room_to_hold(at) {
                Ok(at) => at,
                Err(Full) => return Limited::Full,
            }
        };
        let mut loaded = self.load(at, rule);
        let holds_by_itself = holds_by_itself(&loaded.policy);
        let may_hold = !take.peek && (take.hold.is_some() || holds_by_itself);
        let lease = may_hold.then(|| take.lease.unwrap_or_else(|| self.next_lease(now)));
        let ask = Ask {
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
            // Without uniques (`-C`) every state has 0, and is there all the same.
            let is_it = match loaded.slot {
                None => unique == 0,
                Some(_) => unique != 0 && unique == loaded.figures.cas,
            };
            if !is_it {
                let decision = self.look_at(&mut loaded, now, ask);
                return Limited::Exists(self.facts(loaded, decision, false));
            }
        }
        let wants_hold = may_hold && !holds_by_itself;
        let policy = loaded.policy;
        let no_hold = wants_hold && loaded.holds.len() >= HOLDS_MAX;
        let mut decision = if no_hold {
            let first_end = loaded.holds.iter().map(|hold| hold.end).min().unwrap_or(0);
            without_a_hold(
                self.look_at(&mut loaded, now, ask),
                first_end.saturating_sub(now.mono.0),
            )
        } else {
            self.decide(&mut loaded, now, &ask)
        };
        loaded.figures.client_flags = take.client_flags.unwrap_or(loaded.figures.client_flags);
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
                self.store.item_mut(slot).set_mark(Mark::REFUSED);
            }
            return Limited::Decided(self.facts(loaded, decision, shadow));
        }
        if refused {
            loaded.figures = loaded.figures.mark(Mark::REFUSED, true);
        }
        self.keep(at, loaded, decision, shadow)
    }

    /// Notes that a key was refused where that was decided by looking at it: a refused key is the last
    /// to go for want of room.
    pub fn note_refused(&mut self, now: Now, hash: u64, key: &[u8]) {
        if let Some(slot) = self.at(now, hash, key).slot.filter(|slot| slot.is_second()) {
            self.store.item_mut(slot).set_mark(Mark::REFUSED);
        }
    }

    /// A name for a hold that no other has, on any key of any shard: it counts up from the clock,
    /// so that one given before a restart names nothing later. A hold in a store of 4096 shards is
    /// below 2^53 until the year 2039, and every client language reads that. After
    /// [`Engine::begin_at`] it is the number given there.
    pub fn next_lease(&mut self, now: Now) -> u64 {
        if let Some(unique) = self.uniques.given {
            return unique.get();
        }
        let (shard, shards) = self.shard();
        let by_clock = now.unix_ms.saturating_mul(shards).saturating_add(shard);
        self.limits.last_lease = by_clock.max(self.limits.last_lease.saturating_add(shards));
        self.limits.last_lease
    }

    /// Looks at a key without a policy of the caller's; `None` where there is no state.
    pub fn look(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Option<Rule<'_>>,
    ) -> Option<Facts> {
        let at = self.at(now, hash, key);
        if rule.is_none() && !is_state(at) {
            return None;
        }
        let mut loaded = self.load(at, rule);
        let decision = self.look_at(&mut loaded, now, Ask { hash, ..Ask::default() });
        Some(self.facts(loaded, decision, false))
    }

    /// Rules that may be kept by number at a time.
    pub(crate) fn rules_max(&self) -> usize {
        self.rule_bytes_max() / RULE_BYTES
    }

    /// The number of a rule; [`INLINE`] where there is no room for it, and then the policy is appended to
    /// `body`, which a state begins with.
    pub(crate) fn rule_number(&mut self, kept: &Kept, body: &mut Vec<u8>) -> u32 {
        let rules_max = self.rules_max();
        let (states, unused) = self.store.unused_rules();
        let number = self.limits.policies.number(kept, rules_max, states, unused);
        if number == INLINE {
            cold_path();
            put_inline(&kept.policy, body);
        }
        number
    }

    /// Forgets the rules that no state is under.
    pub(crate) fn drop_unused_rules(&mut self) {
        let (states, unused) = self.store.unused_rules();
        self.limits.policies.drop_unused(states, unused);
    }

    /// Calls `each` with every limit that has keys at work, and how many; a limit may come twice.
    pub fn active_keys(&self, mut each: impl FnMut(u32, u64)) {
        for (limit, number) in self.limits.policies.limits() {
            let states = self.store.states_by_rule().get(number as usize).copied().unwrap_or(0);
            if states > 0 {
                each(limit, u64::from(states));
            }
        }
    }

    /// The state of a key under `rule`, or under the one it remembers. Where both differ the new
    /// one holds at once. A plain item of that name counts as no state.
    pub(crate) fn load(&mut self, at: At<'_>, rule: Option<Rule<'_>>) -> Loaded {
        let (mut holds, mut state) = std::mem::take(&mut self.limits.spare);
        holds.clear();
        state.clear();
        let fresh = Figures::new(0, 0, Deadline::NEVER);
        let found = at.slot.filter(|slot| slot.is_second());
        let item = found.map(|slot| self.store.item(slot));
        let Some((item, state_of)) = item.and_then(|item| Some((item, item.state()?))) else {
            let policy = rule.map_or(UNLIMITED, |rule| *rule.policy);
            let limit = rule.map_or(0, |rule| rule.limit);
            let (number, leases, set, slot) = (None, None, None, None);
            let figures = fresh;
            return Loaded { policy, limit, number, holds, leases, state, set, figures, slot };
        };
        let figures = item.figures();
        let (number, kept, bytes) = if state_of.rule == INLINE {
            cold_path();
            let (kept, bytes) = self.limits.policies.rule_of(state_of).unzip();
            (None, kept, bytes.unwrap_or_default())
        } else {
            let kept = self.limits.policies.get(state_of.rule).copied();
            (Some(state_of.rule), kept, state_of.body)
        };
        let marked = bytes.first_chunk().map_or(0, |run| u16::from_le_bytes(*run));
        let mut set = SetId::of_body(bytes);
        let count = usize::from(marked & !(HAS_LEASES | HAS_SET));
        let body = HEAD_BYTES + count * HOLD_BYTES;
        for number in 0..count {
            let start = HEAD_BYTES + number * HOLD_BYTES;
            let end = read_u64(bytes, start + 16);
            // Not settled in time: the estimate stays spent, and the hold is forgotten.
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
        let remembered = kept.map(|kept| kept.policy);
        if let (Some(leases), Some(old)) = (&mut leases, &remembered) {
            end_leases(old, &mut state, leases, at.now, at.hash);
        }
        let (policy, limit, number) = match (rule, kept) {
            (Some(rule), Some(old)) if *rule.policy != old.policy => {
                limit::adopt(&old.policy, rule.policy, &mut state, at.now);
                (*rule.policy, rule.limit, None)
            }
            (Some(rule), Some(old)) if rule.limit == old.limit => (old.policy, old.limit, number),
            (Some(rule), _) => (*rule.policy, rule.limit, None),
            (None, Some(old)) => (old.policy, old.limit, number),
            (None, None) => (UNLIMITED, 0, None),
        };
        if leases.is_some() {
            cover_leases(&policy, &mut state, &mut leases, at.now, at.hash);
        }
        // Under another algorithm a key has no holders.
        set = set.filter(|_| holds_by_itself(&policy));
        Loaded { policy, limit, number, holds, leases, state, set, figures, slot: found }
    }

    /// Keeps the buffers for the next command.
    pub(crate) fn put_away(&mut self, loaded: Loaded) {
        // One large state must not cost the shard its size for ever.
        let Loaded { holds, state, .. } = loaded;
        if state.capacity() <= SPARE_BYTES_MAX && holds.capacity() * HOLD_BYTES <= SPARE_BYTES_MAX {
            self.limits.spare = (holds, state);
        }
        let_go_of_a_large(&mut self.limits.encoded);
    }

    fn facts(&mut self, loaded: Loaded, decision: Decision, shadow: bool) -> Facts {
        let facts = Facts {
            decision,
            cas: loaded.slot.map_or(0, |_| loaded.figures.cas),
            client_flags: loaded.figures.client_flags,
            has_state: loaded.slot.is_some(),
            shadow,
        };
        self.put_away(loaded);
        facts
    }

    pub(crate) fn keep_and_look(&mut self, at: At<'_>, mut loaded: Loaded) -> Limited {
        if loaded.leases.is_some() {
            let Loaded { policy, state, leases, .. } = &mut loaded;
            cover_leases(policy, state, leases, at.now, at.hash);
        }
        self.join_few(&mut loaded, at.now);
        let decision = self.look_at(&mut loaded, at.now, Ask { hash: at.hash, ..Ask::default() });
        self.keep(at, loaded, decision, false)
    }

    /// Writes a changed state, or removes an idle one.
    fn keep(
        &mut self,
        at: At<'_>,
        mut loaded: Loaded,
        decision: Decision,
        shadow: bool,
    ) -> Limited {
        let has_state = !loaded.state.is_empty() || loaded.set.is_some();
        if !has_state && loaded.holds.is_empty() && loaded.leases.is_none() {
            if let Some(slot) = loaded.slot.take() {
                self.store.remove(at.hash, slot);
            }
            return Limited::Decided(self.facts(loaded, decision, shadow));
        }
        let kept = Kept { policy: loaded.policy, limit: loaded.limit };
        self.part_from_many(&mut loaded);
        let mut bytes = std::mem::take(&mut self.limits.encoded);
        bytes.clear();
        let rule = loaded.number.unwrap_or_else(|| self.rule_number(&kept, &mut bytes));
        let mark = if loaded.leases.is_some() { HAS_LEASES } else { 0 };
        match loaded.set {
            // Estimates of another policy go where a key has many holders.
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
        let mut figures = loaded.figures;
        figures.cas = self.uniques.next(None);
        figures.deadline = Deadline::not_before(Nanos(idle_at));
        let content = Content::State(State { rule, body: &bytes });
        let written = self.store.write(at.now, at.hash, at.key, at.slot, figures, content);
        self.limits.encoded = bytes;
        let Ok(slot) = written else {
            if let Some(set) = loaded.set {
                self.drop_unnamed(at, set);
            }
            self.put_away(loaded);
            return Limited::Full;
        };
        loaded.slot = Some(slot);
        loaded.figures = figures;
        Limited::Decided(self.facts(loaded, decision, shadow))
    }
}

fn is_state(at: At<'_>) -> bool {
    at.slot.is_some_and(Slot::is_second)
}

/// One large state must not cost its memory for ever.
fn let_go_of_a_large(buffer: &mut Vec<u8>) {
    if buffer.capacity() > SPARE_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// Whether a decision is only told, because the policy watches: then nobody is refused, made to wait, or
/// goes on with a part.
fn only_watches(policy: &Policy, decision: &mut Decision) -> bool {
    let watched = policy.shadow && decision.verdict != Verdict::Allow;
    if watched {
        decision.verdict = Verdict::Deny;
    }
    watched
}

/// Every take of `concurrency` is a hold of its own kind.
fn holds_by_itself(policy: &Policy) -> bool {
    matches!(policy.algorithm, protocol::Algorithm::Concurrency { .. })
}
