//! Quota leases: units of a limited key that a client takes at once and spends locally.
//!
//! Here: the effect of a lease on the key's limit, its end, the reply to the client. Not here: the
//! size of a grant (`lease/size`), its storage (`lease/records`), the division of a capacity
//! (`fair_share`).
//!
//! A grant is taken from the limit's state like any other units, so `take`, `incr` and leases share
//! one state. The units of leases are *outstanding*, and `used + outstanding ≤ limit` always:
//!
//! - For a rate (`bucket`, `gcra`, `leaky`) outstanding units are not refilled: a bucket and all
//!   units lent from it never exceed the capacity together. Their refill begins when the lease
//!   ends.
//! - For a count (`fixed`, `sliding`, `log`) a lease ends before its units leave the window. In a
//!   sliding window they count as spent when the client reports them, or when the lease ends.
//! - Any other change that makes the count of a key smaller than its outstanding units (a new
//!   policy, `set`, refunds) is corrected before the next decision. If a new policy's limit is
//!   below the outstanding units, nothing remains. Removing the key removes its leases.
//!
//! A holder is trusted: it reports its spent units and returns units, together at most as many as
//! it has. If it does not report before its lease ends, its spent units are unknown, so all its
//! units count as spent. The units that holders spend and all takes together therefore never exceed
//! the capacity plus the refill in any span, or the limit in a window. Unspent units may be lost by
//! that: those of a dead holder return when they leave the window, or for a rate by refill from the
//! end of the lease on. Clients should therefore report when they stop (`want` 0).

mod records;
mod size;

use protocol::{Algorithm, COUNT_MAX, LeaseLine, Policy};

pub(crate) use self::records::{LeaseRecord, Leases};
use self::size::{GrantInputs, SPAN_MIN, rate};
use crate::algorithms::{self, Attempt, Decision};
use crate::commands::take::{LoadedState, TakeResult};
use crate::engine::Engine;
use crate::policy_table::PolicyRef;
use crate::store::Located;
use crate::time::{Nanos, Now};

/// Most clients with leases of one key at a time; one more gets the time until the first lease
/// ends.
pub const LEASE_CLIENTS_MAX: usize = crate::fair_share::CLIENTS_MAX;

/// Default duration of a lease in nanoseconds: ten seconds.
pub const LEASE_TTL_DEFAULT: u64 = 10_000 * NANOS_PER_MS;

/// Longest duration of a lease in nanoseconds, whatever the client requests: an hour.
pub const LEASE_TTL_MAX: u64 = 3_600_000 * NANOS_PER_MS;

const NANOS_PER_MS: u64 = 1_000_000;

/// A client's request for quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseParams<'a> {
    /// The name of the client: 1 to 250 bytes.
    pub client: &'a [u8],
    /// Units that the client can use beside those it has. 0 only reports; if no units are left, it
    /// ends the lease.
    pub want: u64,
    /// Units spent since the last call. More than the client has counts as all it has; a report
    /// that is sent twice counts twice.
    pub used: u64,
    /// Units given back. Together with `used`, more than the client has counts as all it has.
    pub unused: u64,
    /// The weight of the client's share; 0 counts as 1.
    pub weight: u32,
    /// Requested duration of the lease in nanoseconds; by default [`LEASE_TTL_DEFAULT`], at most
    /// [`LEASE_TTL_MAX`], and no longer than the units count in the window. The units that a client
    /// keeps never end sooner than an earlier reply said.
    pub ttl: Option<u64>,
    /// Most units to grant, whatever the client wants: those that other keys can spare.
    pub max: u64,
    /// Nothing is changed: the result is that of the same request at this moment.
    pub peek: bool,
}

/// The result of a request for quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseResult {
    /// Decided:
    ///
    /// - `granted`: units added to those the client has; maybe 0. With `shadow` all that it wants,
    ///   though only the available units were taken from the limit.
    /// - `safe`: all units that the client may spend now, even if no further reply arrives: those
    ///   it had and has neither spent nor given back, plus the granted ones. A client that takes
    ///   this number as its balance, less the units spent since its request, also has the units
    ///   granted by a lost reply.
    /// - `ttl_ms`: milliseconds in which the client may spend them, counted from its request;
    ///   rounded down, 0 if there are no units to spend.
    /// - `refresh_ms`: milliseconds after which to call again: half the time to the end of the
    ///   lease, so that one call may fail. If there are no units to spend, the time until a unit is
    ///   available if there is no other attempt, or until another client with units is due to call
    ///   and may give some back, whichever is sooner; rounded up, at most [`LEASE_TTL_MAX`]; that
    ///   maximum for `block`.
    /// - `remaining`: units left for other clients.
    /// - `lease`: the number of the lease, the same from call to call while it lasts; 0 without
    ///   lease.
    Decided(LeaseLine),
    /// The units of the policy cannot be spent elsewhere: holders (`concurrency`), places in a
    /// queue (`leaky` with `wait`), and units of several
    /// policies or of a limit with a ban, which return at different times or not at all.
    NotLeasable,
    /// There is no room for the state; nothing was changed.
    Full,
}

/// The kind of a policy's units, with regard to leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseKind {
    /// Every attempt passes.
    Free,
    /// No attempt passes.
    Closed,
    /// Neither counts nor rates.
    NotLeasable,
    /// Units that refill.
    Rate,
    /// Units that count until their window is over.
    Window,
    /// Units that count until they leave a sliding window.
    Sliding,
}

impl LeaseKind {
    fn of(policy: &Policy) -> Self {
        match policy.algorithm {
            Algorithm::Unlimited => Self::Free,
            Algorithm::Block => Self::Closed,
            Algorithm::Concurrency { .. }
            | Algorithm::Leaky { wait: Some(_), .. }
            | Algorithm::Several(_) => Self::NotLeasable,
            Algorithm::Bucket { .. } | Algorithm::Gcra { .. } | Algorithm::Leaky { .. } => {
                Self::Rate
            }
            Algorithm::Fixed { .. } => Self::Window,
            Algorithm::Sliding { .. } | Algorithm::Log { .. } => Self::Sliding,
        }
    }

    fn has_leases(self) -> bool {
        matches!(self, Self::Rate | Self::Window | Self::Sliding)
    }
}

/// Whether units of this policy can be spent elsewhere; otherwise the result is
/// [`LeaseResult::NotLeasable`].
#[must_use]
pub fn is_leasable(policy: &Policy) -> bool {
    LeaseKind::of(policy) != LeaseKind::NotLeasable
}

/// A client's call in progress: its lease after its report.
struct LeaseCall<'a> {
    params: LeaseParams<'a>,
    /// Its lease: `units` are the units it still has, `rate` is its new rate.
    record: LeaseRecord,
    /// Whether the client had no lease.
    is_new: bool,
    /// Nanoseconds to the next call.
    refresh: u64,
}

impl Engine {
    /// Lends quota of a key under `policy_ref`, or under the policy stored in its state, and
    /// accepts the report on the quota lent before.
    pub fn lease(
        &mut self,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: Option<PolicyRef<'_>>,
        params: &LeaseParams<'_>,
    ) -> LeaseResult {
        let at = self.at(now, hash, key);
        let mut loaded = self.load(at, policy_ref);
        let kind = LeaseKind::of(&loaded.policy);
        if !kind.has_leases() {
            self.recycle(&mut loaded);
            return match kind {
                LeaseKind::NotLeasable => LeaseResult::NotLeasable,
                LeaseKind::Closed => {
                    LeaseResult::Decided(lease_line_without_state(0, 0, LEASE_TTL_MAX))
                }
                _ => LeaseResult::Decided(lease_line_without_state(
                    params.want.min(params.max),
                    COUNT_MAX,
                    ttl_of(params) / 2,
                )),
            };
        }
        let mut leases = loaded.leases.take().unwrap_or_default();
        let before = leases.take_out(params.client);
        let mut call = report(&mut loaded, at, before, params);
        let (granted, changed) = grant(&mut loaded, at, &mut call, &leases);
        if call.is_new && granted > 0 && !params.peek {
            call.record.lease = self.next_lease(now);
        }
        let ends = call.record.units == 0 && (call.is_new || params.want == 0);
        if !ends {
            leases.push(call.record, params.client);
        }
        loaded.leases = (!leases.is_empty()).then_some(leases);
        let wait = wait_for_a_unit(&mut loaded, at, kind);
        let shadow = loaded.policy.shadow;
        let decision = if !params.peek && (changed || before.is_some()) {
            match self.store_and_look(at, &mut loaded) {
                TakeResult::Decided(facts) => facts.decision,
                _ => return LeaseResult::Full,
            }
        } else {
            let decision = limit_peek(&mut loaded, at, 0);
            self.recycle(&mut loaded);
            decision
        };
        LeaseResult::Decided(lease_line(now, &call, granted, shadow, decision.left(), wait))
    }
}

/// Applies a client's report of spent and returned units.
fn report<'a>(
    loaded: &mut LoadedState,
    at: Located<'_>,
    before: Option<LeaseRecord>,
    params: &LeaseParams<'a>,
) -> LeaseCall<'a> {
    let since = at.now.mono.0;
    let weight = params.weight.max(1);
    let new =
        LeaseRecord { lease: 0, units: 0, end: since, until: u64::MAX, since, rate: 0, weight };
    let had = before.unwrap_or(new);
    let spent = params.used.min(had.units);
    let given = params.unused.min(had.units - spent);
    let units = had.units - spent - given;
    // The units were spent some time after they were taken. Those given back are the newest.
    algorithms::recount(&loaded.policy, &mut loaded.state, at.now, spent + given);
    if given > 0 {
        algorithms::refund(&loaded.policy, &mut loaded.state, at.now, given);
    }
    // The units that the client keeps leave the window at their original time.
    let counted = algorithms::counted_for(&loaded.policy, &loaded.state, at.now, at.hash);
    let kept_until = if units > 0 { had.until } else { u64::MAX };
    let until = counted.map_or(u64::MAX, |counted| since.saturating_add(counted).min(kept_until));
    let ttl = ttl_of(params);
    let kept_end = if units > 0 { had.end } else { 0 };
    let end = since.saturating_add(ttl).min(until).max(kept_end);
    let refresh = (end.saturating_sub(since) / 2).max(NANOS_PER_MS);
    let rate = rate(spent, since.saturating_sub(had.since), had.rate);
    let record = LeaseRecord { lease: had.lease, units, end, until, since, rate, weight };
    LeaseCall { params: *params, record, is_new: before.is_none(), refresh }
}

/// Takes a grant, and adds it to the client's units; returns the granted units, and whether the
/// state changed.
fn grant(
    loaded: &mut LoadedState,
    at: Located<'_>,
    call: &mut LeaseCall<'_>,
    others: &Leases,
) -> (u64, bool) {
    let seen = limit_peek(loaded, at, 0);
    let out = others.outstanding().saturating_add(call.record.units);
    let no_place = call.is_new && others.len() >= LEASE_CLIENTS_MAX;
    if no_place || call.record.end.saturating_sub(at.now.mono.0) < NANOS_PER_MS {
        return (0, false);
    }
    let ttl = call.record.end - at.now.mono.0;
    let counted = algorithms::counted_for(&loaded.policy, &loaded.state, at.now, at.hash);
    let left = counted.unwrap_or(seen.reset);
    let size = GrantInputs {
        limit: seen.limit,
        remaining: seen.left().min(seen.limit.saturating_sub(out)),
        left: if left == 0 { ttl } else { left },
        refresh: call.refresh,
        want: call.params.want,
        weight: call.record.weight,
        has: (!call.is_new).then_some((call.record.units, call.record.rate)),
    };
    let cost = size.grant(others.iter().map(|(record, _)| record)).min(call.params.max);
    // A cost of 0 is taken too: a bucket that begins empty fills from its first attempt on.
    let attempt = Attempt { cost, part: cost > 0, hash: at.hash, ..Attempt::default() };
    let Decision { granted, changed, .. } =
        algorithms::take(&loaded.policy, &mut loaded.state, at.now, &attempt);
    call.record.units = call.record.units.saturating_add(granted);
    if call.is_new {
        // Until it reports more, the client's rate is its grant over the time to its next call.
        call.record.rate = rate(granted, call.refresh.max(SPAN_MIN), 0);
    }
    (granted, changed)
}

/// Nanoseconds until a client without a lease can be granted a unit if there is no other attempt
/// but the calls of clients with leases.
fn wait_for_a_unit(loaded: &mut LoadedState, at: Located<'_>, kind: LeaseKind) -> u64 {
    // Debt is never lent: a unit must be available beyond it.
    let debt = match loaded.policy.algorithm {
        Algorithm::Bucket { debt, .. } => debt,
        _ => 0,
    };
    let seen = limit_peek(loaded, at, debt.saturating_add(1).min(COUNT_MAX));
    let retry = seen.retry.unwrap_or(LEASE_TTL_MAX);
    let Some(leases) = &loaded.leases else { return retry };
    let first_end = leases.first_end().saturating_sub(at.now.mono.0);
    if leases.len() >= LEASE_CLIENTS_MAX {
        return retry.max(first_end);
    }
    // A client with units may give some back when it calls.
    let lent = leases.iter().filter(|(record, _)| record.units > 0);
    let first_call = lent.map(|(record, _)| record.next_call(at.now)).min();
    // Outstanding units are not refilled before a lease ends, and the state is then as it is now.
    let waits = kind == LeaseKind::Rate && leases.outstanding() >= seen.limit;
    let retry = if waits { first_end.saturating_add(retry) } else { retry };
    retry.min(first_call.unwrap_or(u64::MAX))
}

fn lease_line(
    now: Now,
    call: &LeaseCall<'_>,
    granted: u64,
    shadow: bool,
    remaining: u64,
    wait: u64,
) -> LeaseLine {
    let LeaseRecord { lease, units, end, .. } = call.record;
    // A policy that only reports refuses no client; units beyond the limit are not taken from it.
    let left_ms = end.saturating_sub(now.mono.0) / NANOS_PER_MS;
    let wanted = call.params.want.min(call.params.max);
    let beyond = if shadow && left_ms > 0 { wanted.saturating_sub(granted) } else { 0 };
    let granted = granted + beyond;
    let safe = if left_ms > 0 { units.saturating_add(beyond) } else { 0 };
    let spends = safe > 0 || call.params.want == 0;
    let refresh = if spends { call.refresh } else { wait.clamp(1, LEASE_TTL_MAX) };
    let ttl_ms = if safe > 0 { left_ms } else { 0 };
    let lease = if units > 0 || !call.is_new { lease } else { 0 };
    let refresh_ms = if spends { refresh / NANOS_PER_MS } else { refresh.div_ceil(NANOS_PER_MS) };
    LeaseLine { granted, ttl_ms, refresh_ms, remaining, lease, safe }
}

/// The reply of a policy without state.
fn lease_line_without_state(granted: u64, remaining: u64, refresh: u64) -> LeaseLine {
    let refresh_ms = (refresh / NANOS_PER_MS).max(1);
    let ttl_ms = if granted > 0 { 2 * refresh_ms } else { 0 };
    LeaseLine { granted, ttl_ms, refresh_ms, remaining, lease: 0, safe: granted }
}

fn ttl_of(params: &LeaseParams<'_>) -> u64 {
    params.ttl.unwrap_or(LEASE_TTL_DEFAULT).min(LEASE_TTL_MAX)
}

fn limit_peek(loaded: &mut LoadedState, at: Located<'_>, cost: u64) -> Decision {
    let attempt = Attempt { cost, peek: true, hash: at.hash, ..Attempt::default() };
    algorithms::take(&loaded.policy, &mut loaded.state, at.now, &attempt)
}

/// Ends the leases of a state that are over at `now`, under the policy of the state, and makes sure
/// that the outstanding units are counted.
///
/// A state is loaded when a command names its key, not when a lease ends. Its refill is therefore
/// computed end by end, limited at each end by the units outstanding then (`algorithms::cover`). In
/// a sliding window the units of a lease may have been spent just before its end. Other windows
/// count them to their own end.
pub(crate) fn end_leases(
    policy: &Policy,
    state: &mut Vec<u8>,
    leases: &mut Leases,
    now: Now,
    hash: u64,
) {
    let mut out = leases.outstanding();
    for (end, units) in leases.take_ended(now) {
        let at = |nanos| Now { mono: Nanos(nanos), ..now };
        match LeaseKind::of(policy) {
            LeaseKind::Rate => algorithms::cover(policy, state, at(end), hash, out),
            LeaseKind::Sliding => {
                algorithms::recount(policy, state, at(end.saturating_sub(1)), units);
            }
            _ => {}
        }
        out = out.saturating_sub(units);
    }
    algorithms::cover(policy, state, now, hash, out);
}

/// Makes sure that the outstanding units are counted, whatever changed the state; drops the leases
/// of a policy that has none.
pub(crate) fn cover_leases(
    policy: &Policy,
    state: &mut Vec<u8>,
    leases: &mut Option<Box<Leases>>,
    now: Now,
    hash: u64,
) {
    let held = leases.take().filter(|held| !held.is_empty() && LeaseKind::of(policy).has_leases());
    if let Some(held) = &held {
        algorithms::cover(policy, state, now, hash, held.outstanding());
    }
    *leases = held;
}

/// The instant until which a state must be kept for its leases. All units may be outstanding until
/// the last lease ends, and be refilled, or leave a sliding window, only after that.
pub(crate) fn kept_until(
    policy: &Policy,
    state: &[u8],
    leases: &Leases,
    now: Now,
    hash: u64,
) -> u64 {
    let (end, kind) = (leases.last_end(), LeaseKind::of(policy));
    if kind == LeaseKind::Window || end <= now.mono.0 {
        return end;
    }
    let (mut state, mut then) = (state.to_vec(), Now { mono: Nanos(end), ..now });
    if kind == LeaseKind::Rate {
        algorithms::cover(policy, &mut state, then, hash, leases.outstanding());
    } else {
        then.mono.0 -= 1;
        algorithms::recount(policy, &mut state, then, leases.outstanding());
    }
    let attempt = Attempt { peek: true, hash, ..Attempt::default() };
    end.saturating_add(algorithms::take(policy, &mut state, then, &attempt).reset)
}

#[cfg(test)]
mod tests;
