//! The holds in a state: their encoding, and what a settlement may give back.
//!
//! Here: estimates of any policy. Not here: the commands that take and settle (`take`, `holds`),
//! holds of `concurrency` (`algorithms/concurrency`).
//!
//! ```text
//! mark and number u16 | hold … | the rest        hold: lease u64, units u64, end u64
//! mark and number u16 | policies u8 | hold … | the rest
//!                    hold: lease u64, units u64, end u64, taken i64, least u128 × policies
//! ```
//!
//! [`HAS_USAGE`] marks the second form. Nodes of an older version know only the first.
//!
//! A settlement to less than the estimate leaves the state as if the take had had its true cost.
//! Units that a bucket has refilled since, or whose window is over, are not given back: that would
//! let later callers have them twice. For this each hold keeps, for each policy, the least usage
//! between its take and that of the next hold. No more is given back than the least usage since
//! the take ([`settle`]).

use std::mem::discriminant;

use protocol::{LIST_POLICIES_MAX, Policy};

use crate::algorithms;
use crate::engine::Hold;
use crate::store::HAS_SET;

/// Added to the number of holds: leases follow them.
const HAS_LEASES: u16 = 1 << 15;
/// Added to the number of holds: each of them has the time of its take and the usage since.
const HAS_USAGE: u16 = 1 << 13;

/// Bytes before the holds, without the number of policies.
const MARK_BYTES: usize = 2;
/// Bytes of a hold without time and usage.
const SHORT_BYTES: usize = 24;
/// Bytes of a hold with its time, without usage.
const LONG_BYTES: usize = 32;
/// Bytes of the usage under one policy.
const LEAST_BYTES: usize = 16;

/// The holds at the front of a state's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldList<'b> {
    pub(crate) has_leases: bool,
    pub(crate) has_set: bool,
    /// The number of policies of which each hold has the usage; `None` if they have no time either.
    policies: Option<usize>,
    bytes: &'b [u8],
}

impl<'b> HoldList<'b> {
    /// Splits a body behind its holds; `None` if they are incomplete.
    pub(crate) fn split(body: &'b [u8]) -> Option<(Self, &'b [u8])> {
        let (mark, mut rest) = body.split_first_chunk::<MARK_BYTES>()?;
        let mark = u16::from_le_bytes(*mark);
        let mut policies = None;
        if mark & HAS_USAGE != 0 {
            let (count, behind) = rest.split_first()?;
            policies = Some(usize::from(*count)).filter(|count| *count <= LIST_POLICIES_MAX);
            policies?;
            rest = behind;
        }
        let count = usize::from(mark & !(HAS_LEASES | HAS_SET | HAS_USAGE));
        let (bytes, rest) = rest.split_at_checked(count * bytes_of_hold(policies))?;
        let (has_leases, has_set) = (mark & HAS_LEASES != 0, mark & HAS_SET != 0);
        Some((Self { has_leases, has_set, policies, bytes }, rest))
    }

    /// The number of holds.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / bytes_of_hold(self.policies)
    }

    /// The holds in the order of their takes.
    pub(crate) fn holds(self) -> impl Iterator<Item = Hold> + use<'b> {
        self.bytes.chunks_exact(bytes_of_hold(self.policies)).map(move |bytes| {
            let mut hold =
                Hold::untimed(read_u64(bytes, 0), read_u64(bytes, 8), read_u64(bytes, 16));
            if let Some(policies) = self.policies {
                hold.taken = read_u64(bytes, SHORT_BYTES).cast_signed();
                for (at, least) in hold.least.iter_mut().take(policies).enumerate() {
                    *least = read_u128(bytes, LONG_BYTES + LEAST_BYTES * at);
                }
            }
            hold
        })
    }
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|run| run.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn read_u128(bytes: &[u8], at: usize) -> u128 {
    u128::from(read_u64(bytes, at)) | u128::from(read_u64(bytes, at + 8)) << 64
}

fn bytes_of_hold(policies: Option<usize>) -> usize {
    policies.map_or(SHORT_BYTES, |count| LONG_BYTES + LEAST_BYTES * count)
}

/// Appends holds under a policy, with their times and usage if `keeps_usage` is set.
#[inline]
pub(crate) fn encode(
    holds: &[Hold],
    policy: &Policy,
    has_leases: bool,
    keeps_usage: bool,
    out: &mut Vec<u8>,
) {
    let mut mark = holds.len() as u16;
    if has_leases {
        mark |= HAS_LEASES;
    }
    if holds.is_empty() {
        return out.extend_from_slice(&mark.to_le_bytes());
    }
    let policies = keeps_usage.then(|| policy.each().count());
    if let Some(count) = policies {
        out.extend_from_slice(&(mark | HAS_USAGE).to_le_bytes());
        out.push(count as u8);
    } else {
        out.extend_from_slice(&mark.to_le_bytes());
    }
    for hold in holds {
        let Hold { lease, units, end, taken, least } = hold;
        for part in [lease, units, end] {
            out.extend_from_slice(&part.to_le_bytes());
        }
        if let Some(count) = policies {
            out.extend_from_slice(&taken.to_le_bytes());
            for least in &least[..count] {
                out.extend_from_slice(&least.to_le_bytes());
            }
        }
    }
}

/// Appends a hold that is decoded from a state, unless it has ended: then its estimate stays spent.
pub(crate) fn push_live(holds: &mut Vec<Hold>, hold: Hold, now_ns: u64) {
    if hold.end > now_ns {
        holds.push(hold);
    } else if let Some(before) = holds.last_mut() {
        before.lower(&hold.least);
    }
}

/// Notes the present usage under each policy. The units of leases, `leased`, count in any case.
pub(crate) fn note_usage(
    holds: &mut [Hold],
    mut used: [u128; LIST_POLICIES_MAX],
    leased: &[u128; LIST_POLICIES_MAX],
) {
    for (used, leased) in used.iter_mut().zip(leased).filter(|(used, _)| **used < u128::MAX) {
        *used = used.saturating_sub(*leased);
    }
    if let Some(last) = holds.last_mut() {
        last.lower(&used);
    }
}

/// Lets no settlement of these holds give anything back.
pub(crate) fn forget_usage(holds: &mut [Hold]) {
    if let Some(last) = holds.last_mut() {
        last.lower(&[0; LIST_POLICIES_MAX]);
    }
}

/// Converts the usage of `old` for use under `new`: each policy takes over that of the policy whose
/// state it takes over, in whole units, rounded down. A sliding window or a log that becomes
/// another algorithm gives nothing back.
pub(crate) fn adopt(holds: &mut [Hold], old: &Policy, new: &Policy) {
    if old.algorithm == new.algorithm {
        return;
    }
    let (units_before, units) = (algorithms::amounts_of(old, 1), algorithms::amounts_of(new, 1));
    let counterparts = algorithms::counterparts(old, new);
    for Hold { least, .. } in holds {
        let before = *least;
        for (at, policy) in new.each().enumerate() {
            let Some((from, former)) =
                counterparts[at].and_then(|from| Some((from, old.each().nth(from)?)))
            else {
                least[at] = 0;
                continue;
            };
            let is_alike = discriminant(&former.algorithm) == discriminant(&policy.algorithm);
            least[at] = match before[from] {
                u128::MAX if is_alike => u128::MAX,
                u128::MAX => 0,
                known if former.algorithm == policy.algorithm => known,
                known => (known / units_before[from].max(1)).saturating_mul(units[at]),
            };
        }
    }
}

/// Removes the hold at `place`, whose true cost is less than its estimate by `amounts`, one for
/// each policy. Returns the amounts to give back.
pub(crate) fn settle(
    holds: &mut Vec<Hold>,
    place: usize,
    mut amounts: [u128; LIST_POLICIES_MAX],
) -> [u128; LIST_POLICIES_MAX] {
    for hold in &mut holds[place..] {
        for (amount, least) in amounts.iter_mut().zip(&mut hold.least) {
            (*amount, *least) = ((*amount).min(*least), least.saturating_sub(*amount));
        }
    }
    let settled = holds.remove(place);
    if let Some(before) = place.checked_sub(1).and_then(|before| holds.get_mut(before)) {
        before.lower(&settled.least);
    }
    amounts
}
