//! The native verbs, from a decoded request to an outcome: the choice of the policy and the shard.
//!
//! Not here: the wire format (`protocol`), the arithmetic (`engine`), the verdict line (`verdict`),
//! `takem` (`take_many`).

mod lease;
mod refusal;

use engine::{CachedReply, Engine, LeaseResult, Now, PolicyRef, TakeParams, TakeResult, undecided};
use protocol::{
    Algorithm, COUNT_MAX, Command, DecidingLimit, Form, IncrX, Native, Oldest, Operation, Outcome,
    Policy, PolicyArg, Rate, Slide, Take, VerdictLine, encode, name_decider,
};
use tollgate_limits::{Limit, LimitMatch, LimitedKeyError, UNLIMITED, Unlimited};

pub(crate) use self::refusal::refusal;
use crate::commands::context::ExecContext;
use crate::commands::decider::{AskedPairs, Decided};
use crate::commands::limit_op::{LimitAction, LimitOp};
use crate::commands::limited_keys::{milliseconds, write_error};
use crate::commands::policy_cache::PolicyId;
use crate::commands::verdict::{units_of, verdict};
use crate::probe::SampledVerb;
use crate::shards::{KeyId, Shards};

/// The policy of a request.
enum RequestPolicy<'f> {
    /// The policy of the key's own limit, with its parents.
    Bound(&'f LimitMatch<'f>),
    /// A policy written in the request.
    Written(PolicyId),
    /// The policy of the named limit, and the limit's index.
    Named { policy: &'f Policy, limit: usize },
    /// No limit applies to the key.
    Exempt,
}

/// The policy or charge that decided on a take.
enum TakenBy {
    /// One policy: that of a limit, or one that the request wrote. The period is there if `info`
    /// asks for it.
    Policy { limit: Option<usize>, period_ms: Option<u64> },
    /// One of the charges that `scratch.charges` lists.
    Charges { asked: AskedPairs, decided: Option<Decided> },
}

impl Default for TakenBy {
    fn default() -> Self {
        Self::Policy { limit: None, period_ms: None }
    }
}

/// The reason why a policy word names no policy.
enum NoPolicy {
    /// No limit has that name, or no limit matches the key.
    None,
    /// The word does not parse; the message for the client.
    Bad(String),
}

impl<'a> ExecContext<'a> {
    /// Returns the policy that `policy` selects for the counted key; `found` is the key's limit
    /// match.
    fn resolve<'f>(
        &mut self,
        policy: PolicyArg<'_>,
        key: &[u8],
        found: Option<&'f LimitMatch<'f>>,
    ) -> Result<RequestPolicy<'f>, NoPolicy>
    where
        'a: 'f,
    {
        match policy {
            PolicyArg::Inline(token) => self
                .scratch
                .policy_cache
                .parse(token)
                .map(RequestPolicy::Written)
                .map_err(NoPolicy::Bad),
            PolicyArg::Configured => {
                let Some(found) = found else { return self.resolve_unlimited(key) };
                Ok(RequestPolicy::Bound(found))
            }
            PolicyArg::Named(name) => {
                let limit = self.active_limits.limits().by_name(name).ok_or(NoPolicy::None)?;
                if found.is_none() && self.active_limits.limits().exemption(key).is_some() {
                    return Ok(RequestPolicy::Exempt);
                }
                Ok(match found {
                    Some(found) if found.limit().index() == limit.index() => {
                        RequestPolicy::Bound(found)
                    }
                    _ => {
                        RequestPolicy::Named { policy: limit.policy_of(key), limit: limit.index() }
                    }
                })
            }
        }
    }

    /// Returns the policy of a key without a limit, if its requests pass all the same.
    fn resolve_unlimited<'f>(&self, key: &[u8]) -> Result<RequestPolicy<'f>, NoPolicy>
    where
        'a: 'f,
    {
        match self.active_limits.limits().unlimited(key) {
            Some(Unlimited::Fallback(limit)) => {
                Ok(RequestPolicy::Named { policy: limit.policy(), limit: limit.index() })
            }
            Some(Unlimited::Exempt) => Ok(RequestPolicy::Exempt),
            None => Err(NoPolicy::None),
        }
    }

    /// Executes a native verb on one key. `hash` is the hash of the counted key if `found` has one.
    pub(crate) fn native(
        &mut self,
        command: &Command<'_>,
        native: &Native<'_>,
        form: &Form<'_>,
        hash: u64,
        found: Option<&LimitMatch<'_>>,
        out: &mut Vec<u8>,
    ) {
        let own = command.key.as_bytes();
        let bound = found.filter(|found| found.companion().is_none());
        // A limited key has one state, whichever policy a request names. A companion is a key of
        // its own here.
        let (key, hash) = match (bound, found) {
            (Some(bound), _) => (bound.key(), hash),
            (None, Some(_)) => (own, self.service.shards().hash(own)),
            (None, None) => (own, hash),
        };
        let mut taken_by = TakenBy::default();
        let outcome = match native {
            Native::Take(take) => match self.resolve_take(take, key, bound) {
                Ok(Err(error)) => return write_error(error, form, out),
                Ok(Ok(meant)) => {
                    let taken = self.take_under(&meant, (own, key, hash), take);
                    taken.map(|(outcome, named)| {
                        taken_by = named;
                        outcome
                    })
                }
                Err(refused) => return refuse(refused, command, form, out),
            },
            Native::Refund(_) | Native::Settle { .. } | Native::Renew { .. } => {
                self.change(key, hash, bound, &command.operation)
            }
            Native::IncrX(incrx) => match (bound, found) {
                (Some(bound), _) => self.limited_incrx(bound, hash, incrx),
                (None, Some(_)) => Ok(Outcome::NotAllowed),
                (None, None) => Ok(self.incrx(key, hash, incrx)),
            },
            Native::Slide(_) if found.is_some() => Ok(Outcome::NotAllowed),
            Native::Slide(slide) => Ok(self.slide(key, hash, slide)),
            Native::Lease(lease) => match self.resolve(lease.policy, key, bound) {
                Ok(meant) => match self.lease(key, hash, &meant, lease) {
                    Ok(LeaseResult::Decided(line)) => Ok(Outcome::Leased(line)),
                    Ok(LeaseResult::Full) => Ok(Outcome::OutOfMemory),
                    Ok(LeaseResult::NotLeasable) => {
                        return write_error(self.why_not_leasable(&meant), form, out);
                    }
                    Err(error) => Err(error),
                },
                Err(refused) => return refuse(refused, command, form, out),
            },
        };
        match &outcome {
            Ok(outcome) => {
                let start = out.len();
                encode(out, command, form, outcome);
                self.name_taken(&taken_by, outcome, start, out);
            }
            Err(error) => write_error(&error.to_string(), form, out),
        }
    }

    /// Takes from `key` under a policy. Returns what decided, too.
    fn take_under(
        &mut self,
        meant: &RequestPolicy<'_>,
        (own, key, hash): (&[u8], &[u8], u64),
        take: &Take<'_>,
    ) -> Result<(Outcome<'static>, TakenBy), LimitedKeyError> {
        let (policy_ref, limit) = match meant {
            RequestPolicy::Bound(found) if self.charges_more(found) => {
                return self.take_with_parents(found, hash, take);
            }
            RequestPolicy::Bound(found) => (self.policy_of(found), Some(found.limit().index())),
            RequestPolicy::Written(policy_id) => {
                (PolicyRef::from(self.scratch.policy_cache.policy(*policy_id)), None)
            }
            RequestPolicy::Named { policy, limit } => {
                (self.active_limits.policy_ref(*limit, policy), Some(*limit))
            }
            RequestPolicy::Exempt => (PolicyRef::from(&UNLIMITED), None),
        };
        let outcome = self.take((own, key, hash), policy_ref, limit, take);
        let period_ms = match &outcome {
            Outcome::Verdict(line) if take.info => {
                Some(milliseconds(policy_ref.policy.period_nanos(line.at)))
            }
            _ => None,
        };
        Ok((outcome, TakenBy::Policy { limit, period_ms }))
    }

    /// The policy of a take, or the reply to an option that it cannot carry out.
    fn resolve_take<'f>(
        &mut self,
        take: &Take<'_>,
        key: &[u8],
        bound: Option<&'f LimitMatch<'f>>,
    ) -> Result<Result<RequestPolicy<'f>, &'static str>, NoPolicy>
    where
        'a: 'f,
    {
        let meant = self.resolve(take.policy, key, bound)?;
        Ok(self.refusal(&meant, take).map_or(Ok(meant), Err))
    }

    /// [`refusal()`] for a request's policy and those of its parents.
    fn refusal(&mut self, meant: &RequestPolicy<'_>, take: &Take<'_>) -> Option<&'static str> {
        if take.wait.is_none_or(|wait| wait == 0) && !take.debit {
            return None;
        }
        let (take, _) = units_of(take);
        match meant {
            RequestPolicy::Bound(found) if self.charges_more(found) => {
                // A failure to list the keys is reported by the charge itself.
                self.list_charges(found).ok().and_then(|()| self.scratch.charges.refusal(&take))
            }
            RequestPolicy::Bound(found) => refusal(&take, std::iter::once(found.policy())),
            RequestPolicy::Written(policy_id) => {
                refusal(&take, std::iter::once(self.scratch.policy_cache.policy(*policy_id)))
            }
            RequestPolicy::Named { policy, .. } => refusal(&take, std::iter::once(*policy)),
            RequestPolicy::Exempt => refusal(&take, std::iter::once(&UNLIMITED)),
        }
    }

    /// Changes a key and its parents.
    fn change(
        &mut self,
        key: &[u8],
        hash: u64,
        found: Option<&LimitMatch<'_>>,
        operation: &Operation<'_>,
    ) -> Result<Outcome<'static>, LimitedKeyError> {
        let Some(op) = &LimitOp::of(operation) else { return Ok(Outcome::NotAllowed) };
        let LimitAction::Change(change) = op.action else { return Ok(Outcome::NotAllowed) };
        if let Some(found) = found.filter(|found| self.charges_more(found)) {
            return Ok(op.reply_one(self.adjust_all(found, change, None)?));
        }
        let now = self.now;
        let policy_ref = found.map(|found| self.policy_of(found));
        let changed = self.limited(hash, |engine| change.apply(engine, now, hash, key, policy_ref));
        Ok(op.reply_one(changed))
    }

    /// Runs `change` on the shard of `hash`. If it finds no room, other shards make room and it
    /// runs again.
    fn limited(&self, hash: u64, mut change: impl FnMut(&mut Engine) -> TakeResult) -> TakeResult {
        let mut result = TakeResult::Full;
        self.shards().with_room(self.now, hash, |engine| {
            result = change(engine);
            (!matches!(result, TakeResult::Full)).then_some(())
        });
        result
    }

    /// Takes from `key`, under which the client's key `own` counts.
    fn take(
        &self,
        (own, key, hash): (&[u8], &[u8], u64),
        policy_ref: PolicyRef<'_>,
        limit: Option<usize>,
        take: &Take<'_>,
    ) -> Outcome<'static> {
        let now = self.now;
        let (units, show_cas) = units_of(take);
        let id = self.key_id(hash, key, take.id);
        let done = self.shards().with_room(now, hash, |engine| {
            // The shard is locked: of two requests with one id, the second finds the reply of the
            // first.
            if let Some(line) = self.recall(id) {
                return Some(Outcome::Verdict(line));
            }
            let limited = engine.take(now, hash, key, Some(policy_ref), &units);
            if matches!(limited, TakeResult::Full) {
                return None;
            }
            if let Some(limit) = limit {
                self.note_result(limit, (hash, key), &limited, &units);
            }
            self.record_result((hash, own), SampledVerb::Take, &limited, &units);
            let outcome = verdict(limited, show_cas);
            self.keep(id.filter(|_| !take.peek), &outcome);
            Some(outcome)
        });
        done.unwrap_or(Outcome::OutOfMemory)
    }

    /// Adds what decided on a take to the verdict line that `out` contains from `start` on.
    fn name_taken(
        &self,
        taken_by: &TakenBy,
        outcome: &Outcome<'_>,
        start: usize,
        out: &mut Vec<u8>,
    ) {
        if !matches!(outcome, Outcome::Verdict(_)) {
            return;
        }
        match *taken_by {
            TakenBy::Policy { limit, period_ms: None } => self.name_refusal(limit, start, out),
            TakenBy::Policy { limit, period_ms: Some(period_ms) } => {
                let limit = limit.and_then(|limit| self.active_limits.limits().get(limit));
                let decider = DecidingLimit { name: limit.map(Limit::name), period_ms };
                name_decider(out, start, &decider);
            }
            TakenBy::Charges { asked, decided } => {
                self.add_pairs(asked, decided, start, out);
                self.name_holds(outcome, start, out);
            }
        }
    }

    /// Takes from a limited key and its parents. Returns what decided, too.
    fn take_with_parents(
        &mut self,
        found: &LimitMatch<'_>,
        hash: u64,
        take: &Take<'_>,
    ) -> Result<(Outcome<'static>, TakenBy), LimitedKeyError> {
        let (units, show_cas) = units_of(take);
        self.list_charges(found)?;
        let decision_ctx = self.decision_context();
        let asked = AskedPairs { info: take.info, keys: 0 };
        let (outcome, decided) = self.take_listed(&units, (take.id, asked), |charged| {
            if let TakeResult::Decided(facts) = &charged.all {
                decision_ctx.record((hash, found.base()), SampledVerb::Take, facts, &units);
            }
            verdict(charged.all, show_cas)
        });
        Ok((outcome, TakenBy::Charges { asked, decided }))
    }

    fn key_id(&self, hash: u64, key: &[u8], id: Option<&[u8]>) -> Option<KeyId> {
        id.map(|id| self.service.shards().key_id(hash, key, id))
    }

    fn recall(&self, id: Option<KeyId>) -> Option<VerdictLine> {
        recall(self.service.shards(), self.now, id?).map(|(line, _)| line)
    }

    /// Caches the reply to an id, and records it for the copies of the key.
    fn keep(&self, id: Option<KeyId>, outcome: &Outcome<'_>) {
        let answer = match outcome {
            Outcome::Verdict(line) => CachedReply::Verdict(*line, None),
            Outcome::Counted(line) => CachedReply::Counted(*line),
            _ => return,
        };
        if let Some(id) = id {
            let kept = self.service.shards().keep_answer(self.now, id, answer);
            self.scratch.kept_id.set(Some(kept));
        }
    }

    fn incrx(&self, key: &[u8], hash: u64, incrx: &IncrX<'_>) -> Outcome<'static> {
        let (now, shards) = (self.now, self.shards());
        let id = self.key_id(hash, key, incrx.id);
        let done = shards.with_room(now, hash, |engine| {
            let is_count = |answer: &CachedReply| matches!(answer, CachedReply::Counted(_));
            let before = id.and_then(|id| shards.answer_to(now, id, is_count));
            if let Some(CachedReply::Counted(line)) = before {
                return Some(Outcome::Counted(line));
            }
            match engine.incrx(now, hash, key, incrx) {
                Outcome::OutOfMemory => None,
                outcome => {
                    self.keep(id, &outcome);
                    Some(outcome)
                }
            }
        });
        done.unwrap_or(Outcome::OutOfMemory)
    }

    /// Executes a sliding count as a limit that is never reached.
    fn slide(&self, key: &[u8], hash: u64, slide: &Slide) -> Outcome<'static> {
        let now = self.now;
        let policy = Policy {
            algorithm: Algorithm::Sliding {
                rate: Rate { count: COUNT_MAX, period: slide.window },
                slices: slide.slices,
                oldest: Oldest::Weighted,
            },
            over: false,
            shadow: false,
        };
        let units =
            TakeParams { cost: slide.units, peek: slide.units == 0, ..TakeParams::default() };
        match self.limited(hash, |engine| {
            engine.take(now, hash, key, Some(PolicyRef::from(&policy)), &units)
        }) {
            TakeResult::Decided(facts) => Outcome::Slid(facts.decision.used),
            other => undecided(other),
        }
    }
}

/// Returns the cached verdict for this id, and the code of the charge that decided, if it was to be
/// named.
pub(super) fn recall(shards: &Shards, now: Now, id: KeyId) -> Option<(VerdictLine, Option<usize>)> {
    let is_verdict = |answer: &CachedReply| matches!(answer, CachedReply::Verdict(..));
    match shards.answer_to(now, id, is_verdict)? {
        CachedReply::Verdict(line, decided) => Some((line, decided)),
        CachedReply::Counted(_) => None,
    }
}

fn refuse(refused: NoPolicy, command: &Command<'_>, form: &Form<'_>, out: &mut Vec<u8>) {
    match refused {
        NoPolicy::None => encode(out, command, form, &Outcome::NotFound),
        NoPolicy::Bad(why) if !form.is_quiet() => {
            out.extend_from_slice(b"CLIENT_ERROR ");
            out.extend_from_slice(why.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        NoPolicy::Bad(_) => {}
    }
}
