//! Keys with several owners that are charged together: all of them or none.
//!
//! Here: what a request asks of each key, and one answer made of what their owners tell. Not here: a
//! key's own part (`step`), charging together on one node (`crate::together`).
//!
//! Every key is charged at once, each by its owner. Where one refuses, or does not answer, what the
//! others gave is given back; should that get lost it stays spent. So never more passes than each
//! limit allows, and of two requests that meet both may be refused where one had fitted.

use bytes::Bytes;
use cluster::id::Partition;
use engine::limit::Verdict;
use engine::{Facts, Limited, Take, added, adding, counted, taking, undecided};
use protocol::{
    Command, Decoded, Form, Native, Operation, Outcome, PolicyWord, Request, SetMode, decode,
};

use super::delivery::{Client, Delivery};
use super::front::Lent;
use super::front::operation;
use super::machine::Sort;
use super::step::{Asked, Step, StepRule, Told};
use crate::bound::milliseconds;
use crate::limiting::{settled, units_of, verdict};
use crate::limits::{Found, Limit};
use crate::session::{Round, look_up};
use crate::together::{Change, Charged, Charges};

/// What a request wants of each key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wish {
    Take(Take),
    Change(Change),
}

impl Wish {
    /// Whether it asks to wait where no policy that it is charged by ever does.
    pub(super) fn waits_in_vain(&self, charges: &Charges) -> bool {
        matches!(self, Self::Take(take) if charges.wait_in_vain(take.wait))
    }
}

/// Why a request on several keys is not under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoWish {
    /// It concerns one key only.
    OneKey,
    /// It is of a sort that is not done over several owners.
    Unsupported(&'static str),
}

/// Longer than charging a key and giving back may take together.
const SOON_NS: u64 = 2_500_000_000;

const NO_IDS: &str = "SERVER_ERROR id= is not kept for keys of several owners";
const NO_LEASES: &str = "SERVER_ERROR quota of a limit with parents is not leased in a cluster";
const LIMITS_CHANGE: &str = "SERVER_ERROR not applied: limits are changing\r\n";

/// What a command on a key whose limit has parents wants of all of them.
pub(super) fn wish_of(found: &Found<'_>, operation: &Operation<'_>) -> Result<Wish, NoWish> {
    if found.companion().is_some() {
        return Err(NoWish::OneKey);
    }
    Ok(match operation {
        Operation::Arithmetic(arithmetic) if arithmetic.decrement => {
            Wish::Change(Change::PutBack(arithmetic.delta.min(protocol::COUNT_MAX)))
        }
        Operation::Arithmetic(arithmetic) if arithmetic.delta > 0 => Wish::Take(taking(arithmetic)),
        Operation::Set(set) if set.mode == SetMode::Add => {
            Wish::Take(adding(set).ok_or(NoWish::OneKey)?)
        }
        Operation::Native(Native::Take(take)) => {
            let is_own = match take.policy {
                PolicyWord::Bound => true,
                PolicyWord::Named(name) => name == found.limit().name().as_bytes(),
                PolicyWord::Written(_) => false,
            };
            match take.id {
                _ if !is_own => return Err(NoWish::OneKey),
                Some(_) => return Err(NoWish::Unsupported(NO_IDS)),
                None => Wish::Take(units_of(take).0),
            }
        }
        Operation::Native(Native::Lease(lease)) => match lease.policy {
            PolicyWord::Written(_) => return Err(NoWish::OneKey),
            _ => return Err(NoWish::Unsupported(NO_LEASES)),
        },
        Operation::Native(Native::Refund(units)) => Wish::Change(Change::PutBack(*units)),
        Operation::Native(Native::Settle { lease, actual }) => {
            Wish::Change(Change::Settle { lease: *lease, actual: *actual })
        }
        Operation::Native(Native::Renew { lease, for_ns }) => {
            Wish::Change(Change::Renew { lease: *lease, for_ns: *for_ns })
        }
        _ => return Err(NoWish::OneKey),
    })
}

/// What a `takem` with this `id` is told, if it cannot be done.
pub(super) fn refuses_id(id: Option<&[u8]>) -> Option<&'static str> {
    id.map(|_| NO_IDS)
}

/// One key.
struct Row {
    limit: Box<[u8]>,
    key: Box<[u8]>,
    partition: Partition,
    counts_refused: bool,
    member: usize,
    times: u64,
}

/// What became of a key's part.
#[derive(Debug, Clone, Copy)]
enum Part {
    Open,
    Told(Told),
    Failed(&'static str),
}

/// What a request on several keys came to.
pub(super) enum Ended {
    Told(Delivery),
    /// Not all owners have answered.
    Failed {
        client: Client,
        place: u64,
        words: Bytes,
        quiet: bool,
        error: &'static str,
    },
}

/// A request on several keys that is under way.
pub(super) struct Family {
    client: Client,
    place: u64,
    words: Bytes,
    /// The client wants to hear of no failure.
    quiet: bool,
    wish: Wish,
    rows: Vec<Row>,
    parts: Vec<Part>,
    open: usize,
}

impl Family {
    /// All keys that are listed.
    pub(super) fn new(
        client: Client,
        place: u64,
        (words, quiet): (&[u8], bool),
        wish: Wish,
        round: &Round<'_>,
        charges: &Charges,
        partition_of: impl Fn(u64) -> Partition,
    ) -> Self {
        let limits = round.in_force.limits();
        let rows: Vec<Row> = charges
            .rows()
            .map(|row| Row {
                limit: limits.get(row.limit).map_or("", Limit::name).as_bytes().into(),
                key: row.key.into(),
                partition: partition_of(row.hash),
                counts_refused: row.counts_refused,
                member: row.member,
                times: row.times,
            })
            .collect();
        let parts = vec![Part::Open; rows.len()];
        let open = rows.len();
        let words = Bytes::copy_from_slice(words);
        Self { client, place, words, quiet, wish, rows, parts, open }
    }

    /// What each key is asked.
    pub(super) fn operations(&self) -> Vec<(Partition, Bytes)> {
        let asked = |number: usize, row: &Row| match self.wish {
            Wish::Take(take) => Asked::Take(Take {
                cost: take.cost.saturating_mul(row.times).min(protocol::COUNT_MAX),
                compare_cas: take.compare_cas.filter(|_| number == 0),
                client_flags: take.client_flags.filter(|_| number == 0),
                ..take
            }),
            Wish::Change(change) => Asked::Change(change),
        };
        let of = |(number, row): (usize, &Row)| (row.partition, row.step(asked(number, row)));
        self.rows.iter().enumerate().map(of).collect()
    }

    /// Notes a part; true when it was the last.
    pub(super) fn note(&mut self, row: usize, told: Result<Bytes, &'static str>) -> bool {
        let Some(part) = self.parts.get_mut(row) else { return false };
        if !matches!(part, Part::Open) {
            return false;
        }
        *part = match told {
            Ok(bytes) => match Told::decode(&bytes) {
                Some(told) => Part::Told(told),
                // The owner speaks for itself: it found no such key there.
                None => Part::Failed(LIMITS_CHANGE),
            },
            Err(why) => Part::Failed(why),
        };
        self.open -= 1;
        self.open == 0
    }

    /// What it came to, and what is to be given back.
    pub(super) fn end(self, lent: &mut Lent<'_>) -> (Ended, Vec<(Partition, Bytes)>) {
        let mut back = Vec::new();
        let ended = match self.outcome(&mut back) {
            Ok(charged) => {
                let mut text = Vec::new();
                self.tell(lent, charged, &mut text);
                Ended::Told(Delivery::said(self.client, self.place, Bytes::from(text)))
            }
            Err(error) => {
                let Self { client, place, words, quiet, .. } = self;
                Ended::Failed { client, place, words, quiet, error }
            }
        };
        (ended, back)
    }

    fn outcome(&self, back: &mut Vec<(Partition, Bytes)>) -> Result<Charged, &'static str> {
        let take = match self.wish {
            Wish::Take(take) => take,
            Wish::Change(_) => return self.changed(),
        };
        let mut facts: Vec<Facts> = Vec::with_capacity(self.rows.len());
        let mut failed = None;
        let mut odd = None;
        for part in &self.parts {
            match part {
                Part::Told(Told::Limited(Limited::Decided(decided))) => facts.push(*decided),
                Part::Told(Told::Limited(other)) => odd = odd.or(Some(*other)),
                Part::Told(Told::NoLimit) => failed = failed.or(Some(LIMITS_CHANGE)),
                Part::Failed(why) => failed = failed.or(Some(*why)),
                Part::Open => {}
            }
        }
        let whole = facts.len() == self.rows.len();
        let refuses = facts.iter().any(Facts::refuses);
        let granted = |facts: &Facts, row: &Row| facts.decision.granted / row.times.max(1);
        let agreed = |facts: &Facts| !facts.shadow && facts.decision.verdict == Verdict::Part;
        let all_keep = if whole && !refuses {
            let parts = facts.iter().zip(&self.rows).filter(|(facts, _)| agreed(facts));
            parts.map(|(facts, row)| granted(facts, row)).fold(take.cost, u64::min)
        } else {
            0
        };
        if !take.peek {
            for (part, row) in self.parts.iter().zip(&self.rows) {
                let Part::Told(Told::Limited(Limited::Decided(facts))) = part else { continue };
                let kept = all_keep.saturating_mul(row.times);
                let units = facts.decision.granted.saturating_sub(kept);
                if units == 0 || facts.refuses() || (row.counts_refused && refuses) {
                    continue;
                }
                let held = facts.decision.lease.or(take.lease.filter(|_| take.hold.is_some()));
                let change = match held {
                    Some(name) => Change::Settle { lease: name, actual: kept },
                    // What is free again by itself that soon may be free before this arrives, and then it
                    // would be taken off the next window.
                    None if facts.decision.reset <= SOON_NS => continue,
                    None => Change::PutBack(units),
                };
                back.push((row.partition, row.step(Asked::Change(change))));
            }
        }
        match (failed, odd) {
            (Some(why), _) => Err(why),
            (None, Some(odd)) => Ok(Charged::undecided(odd)),
            (None, None) if refuses => {
                // What a key gave, or counted though it refused, is part of its usage.
                for facts in facts.iter_mut().filter(|_| !take.peek) {
                    facts.decision.counted |= facts.decision.granted > 0;
                }
                let retry = |facts: &Facts| facts.decision.retry.unwrap_or(u64::MAX);
                let refusing = facts.iter().enumerate().filter(|(_, facts)| facts.refuses());
                let worst =
                    refusing.max_by_key(|(number, facts)| (retry(facts), usize::MAX - number));
                let number = worst.map_or(0, |(number, _)| number);
                Ok(Charged::refused(&facts, number, self.rows[number].member))
            }
            (None, None) => Ok(Charged::allowed(&facts, all_keep, take.cost)),
        }
    }

    /// Of a change that cannot be refused the first key tells that had something to change.
    fn changed(&self) -> Result<Charged, &'static str> {
        let mut told = Limited::NotFound;
        for part in self.parts.iter().rev() {
            match part {
                Part::Told(Told::Limited(decided @ Limited::Decided(_))) => told = *decided,
                Part::Failed(why) => return Err(why),
                _ => {}
            }
        }
        Ok(Charged::undecided(told))
    }

    /// Answers the client as a node by itself would.
    fn tell(&self, lent: &mut Lent<'_>, charged: Charged, out: &mut Vec<u8>) {
        let bounds = lent.service.shards().bounds();
        let Ok(Decoded::Request { request, .. }) = decode(&self.words, 0, bounds) else { return };
        let mut counted = Vec::new();
        let mut round = lent.round();
        match request {
            Request::TakeMany { quiet, .. } => Round::tell_charged(charged, quiet, out),
            Request::Command { command, form } => {
                let looked = look_up(&round, command.key.as_bytes(), &mut counted);
                let Ok(Some(found)) = looked.bound else {
                    let told = if self.quiet { "" } else { LIMITS_CHANGE };
                    return out.extend_from_slice(told.as_bytes());
                };
                self.tell_one(&mut round, &found, &command, &form, charged, out);
            }
            _ => {}
        }
    }

    fn tell_one(
        &self,
        round: &mut Round<'_>,
        found: &Found<'_>,
        command: &Command<'_>,
        form: &Form<'_>,
        charged: Charged,
        out: &mut Vec<u8>,
    ) {
        let outcome = match (&command.operation, self.wish) {
            (Operation::Native(Native::Take(take)), _) => verdict(charged.all, units_of(take).1),
            (Operation::Native(Native::Refund(_)), _) => verdict(charged.first, false),
            (Operation::Native(Native::Settle { .. }), _) => settled(charged.first),
            (Operation::Native(Native::Renew { for_ns, .. }), _) => match charged.first {
                Limited::Decided(_) => Outcome::Renewed(milliseconds(*for_ns)),
                other => undecided(other),
            },
            (Operation::Set(_), _) => added(charged.first),
            (_, Wish::Take(take)) => counted(charged.first, take.cost),
            (_, Wish::Change(_)) => counted(charged.first, 0),
        };
        if matches!(command.operation, Operation::Native(_)) {
            protocol::encode(out, command, form, &outcome);
        } else {
            round.tell_bound(found, command, form, outcome, out);
        }
    }
}

impl Row {
    fn step(&self, asked: Asked) -> Bytes {
        let mut bytes = Vec::new();
        Step { rule: StepRule::Named(&self.limit), key: &self.key, asked }.encode(&mut bytes);
        operation(Sort::Step, &bytes)
    }
}
