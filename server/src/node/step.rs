//! One key's part in a request that charges several: what its owner is asked, and what it tells.
//!
//! Here: both in bytes, and how the owner does it. Not here: what is made of the parts (`family`).
//!
//! Between two versions of the server these bytes must not change: a step is an operation like any
//! other, resent and kept as the client's own words are.

use engine::limit::{Decision, Verdict};
use engine::{Engine, Facts, GivenHold, Limited, Now, Rule, Take};
use protocol::Policy;

use crate::session::Round;
use crate::together::Change;

/// What is asked of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step<'a> {
    pub(super) rule: StepRule<'a>,
    /// The key to count under.
    pub(super) key: &'a [u8],
    pub(super) asked: Asked,
}

/// Under which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepRule<'a> {
    /// That of the limit of this name.
    Named(&'a [u8]),
    /// This policy.
    Written(&'a [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Take(Take),
    Change(Change),
    /// So many units were let pass without the owner.
    Debt(u64),
    /// This hold was given without the owner.
    Hold(GivenHold),
}

/// What the owner tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Limited(Limited),
    /// There is no limit of that name where the key is: the limits are changing.
    NoLimit,
}

const TAKE: u8 = 0;
const PUT_BACK: u8 = 1;
const SETTLE: u8 = 2;
const RENEW: u8 = 3;
const DEBT: u8 = 4;
const HOLD: u8 = 5;

const NAMED: u8 = 0;
const WRITTEN: u8 = 1;

fn put(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_option(out: &mut Vec<u8>, number: Option<u64>) {
    out.push(u8::from(number.is_some()));
    put(out, number.unwrap_or(0));
}

/// Reads what `put` and its like wrote.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
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

impl<'a> Step<'a> {
    /// Appends it. Names of limits, policies and keys have 250 bytes at most.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (kind, word) = match self.rule {
            StepRule::Named(name) => (NAMED, name),
            StepRule::Written(token) => (WRITTEN, token),
        };
        out.push(kind);
        for bytes in [word, self.key] {
            out.push(bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
        match self.asked {
            Asked::Take(take) => {
                out.push(TAKE);
                put(out, take.cost);
                out.push(u8::from(take.part) | u8::from(take.peek) << 1);
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
            Asked::Debt(units) => {
                out.push(DEBT);
                put(out, units);
            }
            Asked::Hold(GivenHold { lease, units, for_ns }) => {
                out.push(HOLD);
                put(out, lease);
                put(out, units);
                put(out, for_ns);
            }
            Asked::Change(Change::PutBack(units)) => {
                out.push(PUT_BACK);
                put(out, units);
            }
            Asked::Change(Change::Settle { lease, actual }) => {
                out.push(SETTLE);
                put(out, lease);
                put(out, actual);
            }
            Asked::Change(Change::Renew { lease, for_ns }) => {
                out.push(RENEW);
                put(out, lease);
                put(out, for_ns);
            }
        }
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let kind = reader.byte()?;
        let (word, key) = (reader.short()?, reader.short()?);
        let rule = match kind {
            NAMED => StepRule::Named(word),
            WRITTEN => StepRule::Written(word),
            _ => return None,
        };
        let asked = match reader.byte()? {
            TAKE => {
                let cost = reader.number()?;
                let flags = reader.byte()?;
                Asked::Take(Take {
                    cost,
                    part: flags & 1 != 0,
                    peek: flags & 2 != 0,
                    wait: reader.option()?,
                    hold: reader.option()?,
                    compare_cas: reader.option()?,
                    client_flags: reader.option()?.and_then(|flags| u32::try_from(flags).ok()),
                    lease: reader.option()?,
                })
            }
            DEBT => Asked::Debt(reader.number()?),
            HOLD => Asked::Hold(GivenHold {
                lease: reader.number()?,
                units: reader.number()?,
                for_ns: reader.number()?,
            }),
            PUT_BACK => Asked::Change(Change::PutBack(reader.number()?)),
            SETTLE => {
                Asked::Change(Change::Settle { lease: reader.number()?, actual: reader.number()? })
            }
            RENEW => {
                Asked::Change(Change::Renew { lease: reader.number()?, for_ns: reader.number()? })
            }
            _ => return None,
        };
        reader.0.is_empty().then_some(Self { rule, key, asked })
    }
}

impl Told {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let facts = match self {
            Self::Limited(Limited::Decided(facts)) => {
                out.push(0);
                facts
            }
            Self::Limited(Limited::Exists(facts)) => {
                out.push(1);
                facts
            }
            Self::Limited(Limited::NotFound) => return out.push(2),
            Self::Limited(Limited::Full) => return out.push(5),
            Self::NoLimit => return out.push(6),
        };
        let Facts { decision, cas, client_flags, has_state, shadow } = *facts;
        out.push(match decision.verdict {
            Verdict::Allow => 0,
            Verdict::Deny => 1,
            Verdict::Wait => 2,
            Verdict::Part => 3,
        });
        let Decision { changed, counted, .. } = decision;
        let bits = [has_state, shadow, changed, counted].into_iter().enumerate();
        out.push(bits.fold(0, |bits, (place, on)| bits | u8::from(on) << place));
        let Decision { limit, remaining, used, granted, reset, .. } = decision;
        let remaining = remaining.cast_unsigned();
        for number in [cas, u64::from(client_flags), limit, remaining, used, granted, reset] {
            put(out, number);
        }
        put_option(out, decision.retry);
        put_option(out, decision.lease);
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        Some(Self::Limited(match reader.byte()? {
            0 => Limited::Decided(facts(&mut reader)?),
            1 => Limited::Exists(facts(&mut reader)?),
            2 => Limited::NotFound,
            5 => Limited::Full,
            6 => return Some(Self::NoLimit),
            _ => return None,
        }))
    }
}

fn facts(reader: &mut Reader<'_>) -> Option<Facts> {
    let verdict = match reader.byte()? {
        0 => Verdict::Allow,
        1 => Verdict::Deny,
        2 => Verdict::Wait,
        3 => Verdict::Part,
        _ => return None,
    };
    let flags = reader.byte()?;
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
    Some(Facts { decision, cas, client_flags, has_state: flags & 1 != 0, shadow: flags & 2 != 0 })
}

impl Asked {
    fn apply(
        self,
        engine: &mut Engine,
        now: Now,
        hash: u64,
        key: &[u8],
        rule: Rule<'_>,
    ) -> Limited {
        match self {
            Self::Take(take) => engine.take(now, hash, key, Some(rule), &take),
            Self::Debt(units) => engine.charge(now, hash, key, rule, units),
            Self::Hold(hold) => engine.charge_hold(now, hash, key, rule, &hold),
            Self::Change(change) => change.apply(engine, now, hash, key, Some(rule)),
        }
    }
}

impl Round<'_> {
    /// Does a step; `hash` is that of its key.
    pub(super) fn step(&self, step: &Step<'_>, hash: u64) -> Told {
        let written;
        let (rule, limit) = match step.rule {
            StepRule::Named(name) => {
                let Some(limit) = self.in_force.limits().by_name(name) else {
                    return Told::NoLimit;
                };
                let rule = self.in_force.rule(limit.index(), limit.policy_of(step.key));
                (rule, Some(limit.index()))
            }
            StepRule::Written(token) => {
                let Ok(policy) = Policy::parse(token) else { return Told::NoLimit };
                written = policy;
                (Rule::from(&written), None)
            }
        };
        let now = self.now;
        let done = self.service.shards().with_room(now, hash, |engine| {
            match step.asked.apply(engine, now, hash, step.key, rule) {
                Limited::Full => None,
                done => Some(done),
            }
        });
        let limited = done.unwrap_or(Limited::Full);
        if let (Asked::Take(take), Some(limit)) = (&step.asked, limit) {
            self.note_judgement(limit, limited.judgement(take));
        }
        Told::Limited(limited)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn take() -> impl Strategy<Value = Take> {
        let option = || proptest::option::of(any::<u64>());
        (
            (any::<u64>(), any::<bool>(), any::<bool>()),
            (option(), option(), option(), proptest::option::of(any::<u32>()), option()),
        )
            .prop_map(
                |((cost, part, peek), (wait, hold, compare_cas, client_flags, lease))| Take {
                    cost,
                    part,
                    peek,
                    wait,
                    hold,
                    compare_cas,
                    client_flags,
                    lease,
                },
            )
    }

    fn asked() -> impl Strategy<Value = Asked> {
        prop_oneof![
            take().prop_map(Asked::Take),
            any::<u64>().prop_map(Asked::Debt),
            any::<[u64; 3]>().prop_map(|[lease, units, for_ns]| {
                Asked::Hold(GivenHold { lease, units, for_ns })
            }),
            any::<u64>().prop_map(|units| Asked::Change(Change::PutBack(units))),
            (any::<u64>(), any::<u64>())
                .prop_map(|(lease, actual)| Asked::Change(Change::Settle { lease, actual })),
            (any::<u64>(), any::<u64>())
                .prop_map(|(lease, for_ns)| Asked::Change(Change::Renew { lease, for_ns })),
        ]
    }

    fn told() -> impl Strategy<Value = Told> {
        let verdict = prop_oneof![
            Just(Verdict::Allow),
            Just(Verdict::Deny),
            Just(Verdict::Wait),
            Just(Verdict::Part)
        ];
        let option = || proptest::option::of(any::<u64>());
        let facts =
            (verdict, any::<[u64; 6]>(), any::<u32>(), any::<[bool; 4]>(), option(), option());
        (facts, 0..8).prop_map(|((verdict, numbers, client_flags, bits, retry, lease), kind)| {
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
            let facts = Facts { decision, cas, client_flags, has_state, shadow };
            Told::Limited(match kind {
                0 | 1 => Limited::Decided(facts),
                2 => Limited::Exists(facts),
                3 => Limited::NotFound,
                4..=6 => Limited::Full,
                _ => return Told::NoLimit,
            })
        })
    }

    proptest! {
        #[test]
        fn what_is_asked_and_told_arrives(
            asked in asked(),
            told in told(),
            is_named in any::<bool>(),
            limit in "[a-z]{1,250}",
            key in proptest::collection::vec(any::<u8>(), 1..=250),
        ) {
            let rule = if is_named {
                StepRule::Named(limit.as_bytes())
            } else {
                StepRule::Written(limit.as_bytes())
            };
            let step = Step { rule, key: &key, asked };
            let mut bytes = Vec::new();
            step.encode(&mut bytes);
            prop_assert_eq!(Step::decode(&bytes), Some(step));
            for end in 0..bytes.len() {
                prop_assert_eq!(Step::decode(&bytes[..end]), None);
            }
            bytes.clear();
            told.encode(&mut bytes);
            prop_assert_eq!(Told::decode(&bytes), Some(told));
        }

        #[test]
        fn nothing_else_is_a_step(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Step::decode(&bytes);
            let _ = Told::decode(&bytes);
        }
    }
}
