//! The part of one key in a request that charges several: the sub-request to its owner, and the
//! response.
//!
//! Here: both as bytes, and performing a sub-request. Not here: combining the responses
//! (`multi_owner`).
//!
//! These bytes must not change between two versions of the server: a sub-request is an operation
//! like any other, and is resent and logged as a client's request is.

use engine::algorithms::{Decision, Verdict};
use engine::{
    Decider, Engine, ForeignHold, LeaseParams, LeaseResult, Now, PolicyRef, TakeInfo, TakeParams,
    TakeResult,
};
use protocol::{LeaseLine, Policy};

use crate::commands::context::ExecContext;
use crate::commands::multi_key::Adjustment;
use crate::probe::SampledVerb;

/// An operation on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SubRequest<'a> {
    pub(super) policy: SubPolicy<'a>,
    /// The counted key.
    pub(super) key: &'a [u8],
    pub(super) op: SubOp<'a>,
}

/// The policy of a sub-request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubPolicy<'a> {
    /// The policy of the limit with this name.
    Named(&'a [u8]),
    /// This policy.
    Written(&'a [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubOp<'a> {
    /// The owner records the decision with the verb and the client's key, if there are any; only
    /// from feature version [`RECORDED_VERSION`] on.
    Take(TakeParams, Option<(SampledVerb, &'a [u8])>),
    Adjust(Adjustment),
    /// Leases quota of the key alone.
    Lease(LeaseParams<'a>),
    /// Takes units for a lease of another key, all or none.
    Lend(u64),
    /// Charges units that another node allowed without the owner.
    Debt(u64),
    /// Adds a hold that another node granted without the owner.
    Hold(ForeignHold),
}

/// The owner's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubResponse {
    Result(TakeResult),
    Leased(LeaseLine),
    /// The units of the key's policy cannot be leased.
    NotLeasable,
    /// The owner has no limit of that name: the limits are changing.
    NoLimit,
}

const TAKE: u8 = 0;
const REFUND: u8 = 1;
const SETTLE: u8 = 2;
const RENEW: u8 = 3;
const DEBT: u8 = 4;
const HOLD: u8 = 5;
/// From feature version [`LEASES_VERSION`] on.
const LEASE: u8 = 6;
const LEND: u8 = 7;
/// From feature version [`RECORDED_VERSION`] on.
const RECORDED_TAKE: u8 = 8;

/// The feature version of the map from which on all nodes know leases over several owners.
pub(super) const LEASES_VERSION: u32 = cluster::map::LIMITS_VERSION;

/// The feature version from which on all nodes know the client's key in a sub-request.
pub(super) const RECORDED_VERSION: u32 = cluster::map::LIMITS_VERSION;

const NAMED: u8 = 0;
const WRITTEN: u8 = 1;

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_option(out: &mut Vec<u8>, number: Option<u64>) {
    out.push(u8::from(number.is_some()));
    put(out, number.unwrap_or(0));
}

/// Reads the encoding of `put` and the other writers.
struct SubRequestReader<'a>(&'a [u8]);

impl<'a> SubRequestReader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    #[expect(clippy::option_option, reason = "the inner one is what is read")]
    fn option(&mut self) -> Option<Option<u64>> {
        let is_some = self.byte()? != 0;
        let number = self.number()?;
        Some(is_some.then_some(number))
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let bytes = usize::from(self.byte()?);
        let (short, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(short)
    }
}

impl<'a> SubRequest<'a> {
    /// Appends the encoding. Names of limits and of clients, policies and keys have at most 250
    /// bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, text) = match self.policy {
            SubPolicy::Named(name) => (NAMED, name),
            SubPolicy::Written(token) => (WRITTEN, token),
        };
        out.push(kind);
        for bytes in [text, self.key] {
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
        match self.op {
            SubOp::Take(take, recorded) => {
                if let Some((verb, key)) = recorded {
                    out.extend_from_slice(&[RECORDED_TAKE, verb as u8, key.len() as u8]);
                    out.extend_from_slice(key);
                } else {
                    out.push(TAKE);
                }
                put(out, take.cost);
                let flags = [take.part, take.peek, take.debit, take.of_first];
                out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
                for option in [
                    take.wait,
                    take.hold,
                    take.compare_cas,
                    take.client_flags.map(u64::from),
                    take.lease,
                ] {
                    put_option(out, option);
                }
            }
            SubOp::Lease(lease) => {
                out.push(LEASE);
                out.push(lease.client.len() as u8);
                out.extend_from_slice(lease.client);
                let LeaseParams { want, used, unused, weight, max, .. } = lease;
                for number in [want, used, unused, weight.into(), max] {
                    put(out, number);
                }
                put_option(out, lease.ttl);
                out.push(u8::from(lease.peek));
            }
            SubOp::Lend(units) | SubOp::Debt(units) => {
                out.push(if matches!(self.op, SubOp::Lend(_)) { LEND } else { DEBT });
                put(out, units);
            }
            SubOp::Hold(ForeignHold { lease, units, for_ns }) => {
                out.push(HOLD);
                put(out, lease);
                put(out, units);
                put(out, for_ns);
            }
            SubOp::Adjust(Adjustment::Refund(units)) => {
                out.push(REFUND);
                put(out, units);
            }
            SubOp::Adjust(Adjustment::Settle { lease, actual }) => {
                out.push(SETTLE);
                put(out, lease);
                put(out, actual);
            }
            SubOp::Adjust(Adjustment::Renew { lease, for_ns }) => {
                out.push(RENEW);
                put(out, lease);
                put(out, for_ns);
            }
        }
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = SubRequestReader(bytes);
        let kind = reader.byte()?;
        let (text, key) = (reader.short()?, reader.short()?);
        let policy = match kind {
            NAMED => SubPolicy::Named(text),
            WRITTEN => SubPolicy::Written(text),
            _ => return None,
        };
        let op = match reader.byte()? {
            kind @ (TAKE | RECORDED_TAKE) => {
                let recorded = if kind == RECORDED_TAKE {
                    Some((SampledVerb::of_code(reader.byte()?)?, reader.short()?))
                } else {
                    None
                };
                let cost = reader.number()?;
                let flags = reader.byte()?;
                let take = TakeParams {
                    cost,
                    part: flags & 1 != 0,
                    peek: flags & 2 != 0,
                    wait: reader.option()?,
                    hold: reader.option()?,
                    compare_cas: reader.option()?,
                    client_flags: reader.option()?.and_then(|flags| u32::try_from(flags).ok()),
                    lease: reader.option()?,
                    debit: flags & 4 != 0,
                    of_first: flags & 8 != 0,
                };
                SubOp::Take(take, recorded)
            }
            LEASE => SubOp::Lease(LeaseParams {
                client: reader.short()?,
                want: reader.number()?,
                used: reader.number()?,
                unused: reader.number()?,
                weight: u32::try_from(reader.number()?).ok()?,
                max: reader.number()?,
                ttl: reader.option()?,
                peek: reader.byte()? != 0,
            }),
            LEND => SubOp::Lend(reader.number()?),
            DEBT => SubOp::Debt(reader.number()?),
            HOLD => SubOp::Hold(ForeignHold {
                lease: reader.number()?,
                units: reader.number()?,
                for_ns: reader.number()?,
            }),
            REFUND => SubOp::Adjust(Adjustment::Refund(reader.number()?)),
            SETTLE => SubOp::Adjust(Adjustment::Settle {
                lease: reader.number()?,
                actual: reader.number()?,
            }),
            RENEW => SubOp::Adjust(Adjustment::Renew {
                lease: reader.number()?,
                for_ns: reader.number()?,
            }),
            _ => return None,
        };
        reader.0.is_empty().then_some(Self { policy, key, op })
    }
}

impl SubResponse {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let facts = match self {
            Self::Result(TakeResult::Decided(facts)) => {
                out.push(0);
                facts
            }
            Self::Result(TakeResult::Exists(facts)) => {
                out.push(1);
                facts
            }
            Self::Result(TakeResult::NotFound) => return out.push(2),
            Self::Leased(line) => {
                out.push(3);
                let LeaseLine { granted, ttl_ms, refresh_ms, remaining, lease, safe } = *line;
                for number in [granted, ttl_ms, refresh_ms, remaining, lease, safe] {
                    put(out, number);
                }
                return;
            }
            Self::NotLeasable => return out.push(4),
            Self::Result(TakeResult::Full) => return out.push(5),
            Self::NoLimit => return out.push(6),
        };
        let TakeInfo { decision, cas, client_flags, has_state, shadow, at } = *facts;
        out.push(match decision.verdict {
            Verdict::Allow => 0,
            Verdict::Deny => 1,
            Verdict::Wait => 2,
            Verdict::Part => 3,
        });
        let Decision { changed, counted, .. } = decision;
        let bits = [has_state, shadow, changed, counted].into_iter().enumerate();
        // The upper bits have the part that decided; 0 for none.
        let position = at.map_or(0, Decider::code) << 4;
        out.push(bits.fold(position, |bits, (place, on)| bits | u8::from(on) << place));
        let Decision { limit, remaining, used, granted, reset, .. } = decision;
        let remaining = remaining.cast_unsigned();
        for number in [cas, u64::from(client_flags), limit, remaining, used, granted, reset] {
            put(out, number);
        }
        put_option(out, decision.retry);
        put_option(out, decision.lease);
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = SubRequestReader(bytes);
        Some(Self::Result(match reader.byte()? {
            0 => TakeResult::Decided(facts(&mut reader)?),
            1 => TakeResult::Exists(facts(&mut reader)?),
            2 => TakeResult::NotFound,
            3 => {
                return Some(Self::Leased(LeaseLine {
                    granted: reader.number()?,
                    ttl_ms: reader.number()?,
                    refresh_ms: reader.number()?,
                    remaining: reader.number()?,
                    lease: reader.number()?,
                    safe: reader.number()?,
                }));
            }
            4 => return Some(Self::NotLeasable),
            5 => TakeResult::Full,
            6 => return Some(Self::NoLimit),
            _ => return None,
        }))
    }
}

fn facts(reader: &mut SubRequestReader<'_>) -> Option<TakeInfo> {
    let verdict = match reader.byte()? {
        0 => Verdict::Allow,
        1 => Verdict::Deny,
        2 => Verdict::Wait,
        3 => Verdict::Part,
        _ => return None,
    };
    let flags = reader.byte()?;
    let at = match flags >> 4 {
        0 => None,
        code => Some(Decider::of_code(code)?),
    };
    let cas = reader.number()?;
    let client_flags = u32::try_from(reader.number()?).ok()?;
    let decision = Decision {
        verdict,
        limit: reader.number()?,
        remaining: reader.number()?.cast_signed(),
        used: reader.number()?,
        granted: reader.number()?,
        reset: reader.number()?,
        retry: reader.option()?,
        lease: reader.option()?,
        changed: flags & 4 != 0,
        counted: flags & 8 != 0,
    };
    Some(TakeInfo {
        decision,
        cas,
        client_flags,
        has_state: flags & 1 != 0,
        shadow: flags & 2 != 0,
        at,
    })
}

impl SubOp<'_> {
    /// Performs the operation; `None` if there is no room for the state.
    fn apply(
        self,
        engine: &mut Engine,
        now: Now,
        hash: u64,
        key: &[u8],
        policy_ref: PolicyRef<'_>,
    ) -> Option<SubResponse> {
        let result = match self {
            Self::Take(take, _) => engine.take(now, hash, key, Some(policy_ref), &take),
            Self::Debt(units) => engine.charge(now, hash, key, policy_ref, units),
            Self::Hold(hold) => engine.charge_hold(now, hash, key, policy_ref, &hold),
            Self::Adjust(change) => change.apply(engine, now, hash, key, Some(policy_ref)),
            Self::Lend(units) => {
                let take = TakeParams { cost: units, wait: Some(0), ..TakeParams::default() };
                let peek = TakeParams { peek: true, ..take };
                match engine.take(now, hash, key, Some(policy_ref), &peek) {
                    // Nothing is counted, also where refused attempts are.
                    TakeResult::Decided(facts) if facts.refuses() => TakeResult::Decided(facts),
                    _ => engine.take(now, hash, key, Some(policy_ref), &take),
                }
            }
            Self::Lease(params) => {
                return match engine.lease(now, hash, key, Some(policy_ref), &params) {
                    LeaseResult::Decided(line) => Some(SubResponse::Leased(line)),
                    LeaseResult::NotLeasable => Some(SubResponse::NotLeasable),
                    LeaseResult::Full => None,
                };
            }
        };
        (result != TakeResult::Full).then_some(SubResponse::Result(result))
    }
}

impl ExecContext<'_> {
    /// Performs a sub-request; `hash` is the hash of its key.
    pub(super) fn sub_request(&self, sub_request: &SubRequest<'_>, hash: u64) -> SubResponse {
        let written;
        let (policy_ref, limit) = match sub_request.policy {
            SubPolicy::Named(name) => {
                let Some(limit) = self.active_limits.limits().by_name(name) else {
                    return SubResponse::NoLimit;
                };
                let policy_ref =
                    self.active_limits.policy_ref(limit.index(), limit.policy_of(sub_request.key));
                (policy_ref, Some(limit.index()))
            }
            SubPolicy::Written(token) => {
                let Ok(policy) = Policy::parse(token) else { return SubResponse::NoLimit };
                written = policy;
                (PolicyRef::from(&written), None)
            }
        };
        let now = self.now;
        let done = self.shards().with_room(now, hash, |engine| {
            sub_request.op.apply(engine, now, hash, sub_request.key, policy_ref)
        });
        let response = done.unwrap_or(SubResponse::Result(TakeResult::Full));
        if let (SubOp::Take(take, recorded), Some(limit), SubResponse::Result(result)) =
            (&sub_request.op, limit, &response)
        {
            self.note_result(limit, (hash, sub_request.key), result, take);
            if let Some((verb, key)) = recorded {
                self.record_result((hash, key), *verb, result, take);
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn take() -> impl Strategy<Value = TakeParams> {
        let option = || proptest::option::of(any::<u64>());
        (
            (any::<u64>(), any::<[bool; 4]>()),
            (option(), option(), option(), proptest::option::of(any::<u32>()), option()),
        )
            .prop_map(
                |(
                    (cost, [part, peek, debit, of_first]),
                    (wait, hold, compare_cas, client_flags, lease),
                )| {
                    TakeParams {
                        cost,
                        part,
                        peek,
                        wait,
                        hold,
                        compare_cas,
                        client_flags,
                        lease,
                        debit,
                        of_first,
                    }
                },
            )
    }

    fn lease() -> impl Strategy<Value = SubOp<'static>> {
        let client = prop_oneof![Just(&b"c"[..]), Just(&[b'x'; 250][..])];
        let numbers = (any::<[u64; 4]>(), any::<u32>(), proptest::option::of(any::<u64>()));
        (client, numbers, any::<bool>()).prop_map(
            |(client, ([want, used, unused, max], weight, ttl), peek)| {
                SubOp::Lease(LeaseParams { client, want, used, unused, weight, ttl, max, peek })
            },
        )
    }

    fn any_op() -> impl Strategy<Value = SubOp<'static>> {
        prop_oneof![
            lease(),
            any::<u64>().prop_map(SubOp::Lend),
            take().prop_map(|take| SubOp::Take(take, None)),
            (take(), 0..4_u8, lease()).prop_map(|(take, verb, lease)| {
                let SubOp::Lease(LeaseParams { client: key, .. }) = lease else { unreachable!() };
                SubOp::Take(take, Some((SampledVerb::of_code(verb).expect("below 4"), key)))
            }),
            any::<u64>().prop_map(SubOp::Debt),
            any::<[u64; 3]>().prop_map(|[lease, units, for_ns]| {
                SubOp::Hold(ForeignHold { lease, units, for_ns })
            }),
            any::<u64>().prop_map(|units| SubOp::Adjust(Adjustment::Refund(units))),
            (any::<u64>(), any::<u64>())
                .prop_map(|(lease, actual)| SubOp::Adjust(Adjustment::Settle { lease, actual })),
            (any::<u64>(), any::<u64>())
                .prop_map(|(lease, for_ns)| SubOp::Adjust(Adjustment::Renew { lease, for_ns })),
        ]
    }

    fn any_response() -> impl Strategy<Value = SubResponse> {
        let verdict = prop_oneof![
            Just(Verdict::Allow),
            Just(Verdict::Deny),
            Just(Verdict::Wait),
            Just(Verdict::Part)
        ];
        let option = || proptest::option::of(any::<u64>());
        let facts =
            (verdict, any::<[u64; 6]>(), any::<u32>(), any::<[bool; 4]>(), option(), option());
        (facts, 0..10, 0..10_u8).prop_map(|(facts, kind, code)| {
            let (verdict, numbers, client_flags, bits, retry, lease) = facts;
            let at = Decider::of_code(code);
            let [cas, limit, remaining, used, granted, reset] = numbers;
            let [has_state, shadow, changed, counted] = bits;
            let remaining = remaining.cast_signed();
            let decision = Decision {
                verdict,
                limit,
                remaining,
                used,
                granted,
                retry,
                reset,
                changed,
                counted,
                lease,
            };
            let facts = TakeInfo { decision, cas, client_flags, has_state, shadow, at };
            SubResponse::Result(match kind {
                0 | 1 => TakeResult::Decided(facts),
                2 => TakeResult::Exists(facts),
                3 => TakeResult::NotFound,
                4..=6 => TakeResult::Full,
                7 => return SubResponse::NotLeasable,
                8 => {
                    return SubResponse::Leased(LeaseLine {
                        granted: cas,
                        ttl_ms: limit,
                        refresh_ms: used,
                        remaining: granted,
                        lease: reset,
                        safe: limit,
                    });
                }
                _ => return SubResponse::NoLimit,
            })
        })
    }

    proptest! {
        #[test]
        fn request_and_response_survive_encoding(
            op in any_op(),
            response in any_response(),
            is_named in any::<bool>(),
            limit in "[a-z]{1,250}",
            key in proptest::collection::vec(any::<u8>(), 1..=250),
        ) {
            let policy = if is_named {
                SubPolicy::Named(limit.as_bytes())
            } else {
                SubPolicy::Written(limit.as_bytes())
            };
            let sub_request = SubRequest { policy, key: &key, op };
            let mut bytes = Vec::new();
            sub_request.encode(&mut bytes);
            prop_assert_eq!(SubRequest::decode(&bytes), Some(sub_request));
            for end in 0..bytes.len() {
                prop_assert_eq!(SubRequest::decode(&bytes[..end]), None);
            }
            bytes.clear();
            response.encode(&mut bytes);
            prop_assert_eq!(SubResponse::decode(&bytes), Some(response));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = SubRequest::decode(&bytes);
            let _ = SubResponse::decode(&bytes);
        }
    }
}
