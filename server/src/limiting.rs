//! The native verbs, from a decoded request to an outcome: which policy is meant, which shard
//! decides, what the verdict line says.
//!
//! Not here: the wire (`protocol`), the arithmetic (`engine`).

use engine::limit::{Decision, Verdict};
use engine::{Engine, Facts, Limited, RepeatedAnswer, Take as TakeUnits};
use protocol::{
    Algorithm, COUNT_MAX, CasAsk, Command, Form, IncrX, Native, Oldest, Outcome, Policy,
    PolicyWord, Rate, Slide, Take, VerdictLine, VerdictWord, encode,
};

use crate::session::Round;

/// Why a policy word means no policy.
enum NoPolicy {
    /// Nothing of that name, or nothing bound.
    None,
    /// It does not parse: what to tell the client.
    Bad(String),
}

fn resolve(word: PolicyWord<'_>) -> Result<Policy, NoPolicy> {
    match word {
        PolicyWord::Written(token) => {
            Policy::parse(token).map_err(|error| NoPolicy::Bad(error.to_string()))
        }
        // No limit has a name or is bound to a key yet.
        PolicyWord::Bound | PolicyWord::Named(_) => Err(NoPolicy::None),
    }
}

fn milliseconds(nanos: u64) -> u64 {
    nanos.div_ceil(1_000_000)
}

/// The verdict line of a decision.
fn verdict_line(facts: &Facts, show_cas: bool) -> VerdictLine {
    let Decision { verdict, limit, remaining, granted, retry, reset, lease, .. } = facts.decision;
    let word = match verdict {
        Verdict::Deny if facts.shadow => VerdictWord::Allow,
        Verdict::Allow => VerdictWord::Allow,
        Verdict::Deny => VerdictWord::Deny,
        Verdict::Wait => VerdictWord::Wait,
        Verdict::Part => VerdictWord::Part,
    };
    VerdictLine {
        word,
        limit,
        remaining,
        retry_ms: if word == VerdictWord::Allow { Some(0) } else { retry.map(milliseconds) },
        reset_ms: milliseconds(reset),
        cas: show_cas.then_some(facts.cas),
        lease,
        granted: (verdict == Verdict::Part).then_some(granted),
        at: None,
        shadow: facts.shadow,
        degraded: false,
    }
}

impl Round<'_> {
    /// Answers a native verb on one key.
    pub(crate) fn native(
        &self,
        command: &Command<'_>,
        native: &Native<'_>,
        form: &Form<'_>,
        hash: u64,
        out: &mut Vec<u8>,
    ) {
        let key = command.key.as_bytes();
        let now = self.now;
        let outcome = match native {
            Native::Take(take) => match resolve(take.policy) {
                Ok(policy) => self.take(key, hash, &policy, take),
                Err(refused) => return refuse(refused, command, form, out),
            },
            Native::Refund(units) => {
                let refund = |engine: &mut Engine| engine.put_back(now, hash, key, None, *units);
                verdict(self.limited(hash, refund), false)
            }
            Native::Settle { lease, actual } => {
                let settle = |engine: &mut Engine| engine.settle(now, hash, key, *lease, *actual);
                match self.limited(hash, settle) {
                    Limited::Decided(Facts { decision, .. }) => Outcome::Settled {
                        limit: decision.limit,
                        remaining: decision.remaining,
                        reset_ms: milliseconds(decision.reset),
                    },
                    other => unusual(other),
                }
            }
            Native::Renew { lease, for_ns } => {
                let renew = |engine: &mut Engine| engine.renew(now, hash, key, *lease, *for_ns);
                match self.limited(hash, renew) {
                    Limited::Decided(_) => Outcome::Renewed(milliseconds(*for_ns)),
                    other => unusual(other),
                }
            }
            Native::IncrX(incrx) => self.incrx(key, hash, incrx),
            Native::Slide(slide) => self.slide(key, hash, slide),
            Native::Lease(_) => {
                if !form.is_quiet() {
                    out.extend_from_slice(b"SERVER_ERROR lease is not built yet\r\n");
                }
                return;
            }
        };
        encode(out, command, form, &outcome);
    }

    /// Runs `change` on the shard of `hash`; when it finds no room, again after others made some.
    fn limited(&self, hash: u64, mut change: impl FnMut(&mut Engine) -> Limited) -> Limited {
        self.service
            .shards()
            .with_room(self.now, hash, |engine| match change(engine) {
                Limited::Full => None,
                done => Some(done),
            })
            .unwrap_or(Limited::Full)
    }

    fn take(&self, key: &[u8], hash: u64, policy: &Policy, take: &Take<'_>) -> Outcome<'static> {
        let now = self.now;
        let (show_cas, compare_cas) = match take.cas {
            CasAsk::None => (false, None),
            CasAsk::Show => (true, None),
            CasAsk::Compare(unique) => (true, Some(unique)),
        };
        let units = TakeUnits {
            cost: take.cost,
            part: take.part,
            peek: take.peek,
            wait: take.wait,
            hold: take.hold,
            compare_cas,
            client_flags: None,
        };
        let done = self.service.shards().with_room(now, hash, |engine| {
            let Some(id) = take.id else {
                return match engine.take(now, hash, key, Some(policy), &units) {
                    Limited::Full => None,
                    done => Some(verdict(done, show_cas)),
                };
            };
            if let Some(RepeatedAnswer::Verdict(line)) = engine.repeated(now, key, id) {
                return Some(Outcome::Verdict(line));
            }
            if !engine.may_keep_answer() {
                return Some(Outcome::OutOfMemory);
            }
            match engine.take(now, hash, key, Some(policy), &units) {
                Limited::Full => None,
                done => {
                    let outcome = verdict(done, show_cas);
                    if let (Outcome::Verdict(line), false) = (outcome, take.peek) {
                        engine.keep_answer(now, key, id, RepeatedAnswer::Verdict(line));
                    }
                    Some(outcome)
                }
            }
        });
        done.unwrap_or(Outcome::OutOfMemory)
    }

    fn incrx(&self, key: &[u8], hash: u64, incrx: &IncrX<'_>) -> Outcome<'static> {
        let now = self.now;
        let done = self.service.shards().with_room(now, hash, |engine| {
            if let Some(id) = incrx.id {
                if let Some(RepeatedAnswer::Counted(line)) = engine.repeated(now, key, id) {
                    return Some(Outcome::Counted(line));
                }
                if !engine.may_keep_answer() {
                    return Some(Outcome::OutOfMemory);
                }
            }
            match engine.incrx(now, hash, key, incrx) {
                Outcome::OutOfMemory => None,
                outcome => {
                    if let (Outcome::Counted(line), Some(id)) = (outcome, incrx.id) {
                        engine.keep_answer(now, key, id, RepeatedAnswer::Counted(line));
                    }
                    Some(outcome)
                }
            }
        });
        done.unwrap_or(Outcome::OutOfMemory)
    }

    /// A sliding count without a limit: one that nobody reaches.
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
        let units = TakeUnits { cost: slide.units, peek: slide.units == 0, ..TakeUnits::default() };
        match self.limited(hash, |engine| engine.take(now, hash, key, Some(&policy), &units)) {
            Limited::Decided(facts) => Outcome::Slid(facts.decision.used),
            other => unusual(other),
        }
    }
}

fn verdict(limited: Limited, show_cas: bool) -> Outcome<'static> {
    match limited {
        Limited::Decided(facts) => Outcome::Verdict(verdict_line(&facts, show_cas)),
        Limited::Exists(facts) => Outcome::Verdict(VerdictLine {
            word: VerdictWord::Exists,
            retry_ms: facts.decision.retry.map(milliseconds),
            lease: None,
            granted: None,
            shadow: false,
            ..verdict_line(&facts, true)
        }),
        other => unusual(other),
    }
}

fn unusual(limited: Limited) -> Outcome<'static> {
    match limited {
        Limited::NotFound => Outcome::NotFound,
        Limited::Exists(_) => Outcome::Exists,
        Limited::Full | Limited::TooManyHolds | Limited::Decided(_) => Outcome::OutOfMemory,
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
