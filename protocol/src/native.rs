//! The native verbs: `take` and its kin, one line each, for callers that need a full verdict.
//!
//! Here: the line parser, and beside it the encoder. Not here: the parser of the policy token
//! (`policy`): the token is passed on as it stands. Source: `docs/reference/verbs-native.md`.

use crate::backwards::Backwards;
use crate::bounds::{ID_BYTES_MAX, KEY_BYTES_MAX, TAKE_KEYS_MAX};
use crate::classic;
use crate::decimal::write_number;
use crate::decode::{DecodeError, Decoded, Line};
use crate::error::ProtocolError;
use crate::key::Key;
use crate::number::{bounded_i64, strict_u64};
use crate::policy::{COUNT_MAX, SLICES_MAX, duration_nanos};
use crate::reply::{CountLine, LeaseLine, Outcome, VerdictLine, VerdictWord};
use crate::request::{
    CasCondition, Command, Form, IncrX, Keys, Lease, Native, Operation, PolicyArg, Request, Slide,
    Take, Ttl, TtlMode, Words,
};

const BAD_COST: &str = "cost must be a number from 0 to 9007199254740991";
const BAD_CAS: &str = "cas must be an unsigned 64-bit number";
const BAD_ID: &str = "id must be 1 to 64 bytes";
const BAD_HOLD: &str = "hold must be a duration such as 30s, at most 366d";

/// Decodes a line that begins with `verb`, a native verb; `rest` is the line behind it.
pub(crate) fn decode<'a>(
    line: Line<'a>,
    verb: &[u8],
    rest: &'a [u8],
) -> Result<Decoded<'a>, DecodeError> {
    let (rest, quiet) = match classic::without_noreply(rest) {
        Some(before) => (before, true),
        None => (rest, false),
    };
    let words = Words(rest);
    let request = match verb {
        b"take" => take(Arguments { verb: "take", words, usage: TAKE }, quiet),
        b"takem" => take_many(Arguments { verb: "takem", words, usage: TAKE_MANY }, quiet),
        b"refund" => refund(Arguments { verb: "refund", words, usage: REFUND }, quiet),
        b"settle" => settle(Arguments { verb: "settle", words, usage: SETTLE }, quiet),
        b"renew" => renew(Arguments { verb: "renew", words, usage: RENEW }, quiet),
        b"lease" => lease(Arguments { verb: "lease", words, usage: LEASE }, quiet),
        b"incrx" => incrx(Arguments { verb: "incrx", words, usage: INCRX }, quiet),
        _ => slide(Arguments { verb: "slide", words, usage: SLIDE }, quiet),
    };
    line.done(request.map_err(|error| line.refuse(error, quiet))?)
}

/// The error texts of a verb: one for a missing argument, one for an invalid option.
struct Usage {
    arguments: &'static str,
    options: &'static str,
}

const TAKE: Usage = Usage {
    arguments: "missing argument, the line is take <key> <cost> <policy>|=<limit>|-",
    options: "unknown or repeated option, there are peek part wait=<duration> cas[=<n>] id=<token> \
              hold=<duration>",
};
const TAKE_MANY: Usage = Usage {
    arguments: "missing argument, the line is takem <cost> <key> <key> ...",
    options: "unknown or repeated option, there are peek id=<token>",
};
const REFUND: Usage = Usage {
    arguments: "missing argument, the line is refund <key> <n>",
    options: "too many arguments, the line is refund <key> <n>",
};
const SETTLE: Usage = Usage {
    arguments: "missing argument, the line is settle <key> <lease> <actual>",
    options: "too many arguments, the line is settle <key> <lease> <actual>",
};
const RENEW: Usage = Usage {
    arguments: "missing argument, the line is renew <key> <lease> <duration>",
    options: "too many arguments, the line is renew <key> <lease> <duration>",
};
const LEASE: Usage = Usage {
    arguments: "missing argument, the line is lease <key> <client> <want> <policy>|=<limit>|-",
    options: "unknown or repeated option, there are used=<n> unused=<n> weight=<n> ttl=<duration>",
};
const INCRX: Usage = Usage {
    arguments: "missing argument, the line is incrx <key> <delta> <ttl>",
    options: "unknown or repeated option, there are init=<n> max=<n> min=<n> clamp \
              ttl=set|touch|keep signed cas[=<n>] id=<token>",
};
const SLIDE: Usage = Usage {
    arguments: "missing argument, the line is slide <key> <n> <window>",
    options: "unknown or repeated option, there is slices=<n>",
};

/// `take <key> <cost> <policy>|=<limit>|- [option]*`.
fn take(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let cost = line.count(BAD_COST)?;
    let policy = line.policy()?;
    let (mut peek, mut part, mut cas) = (false, false, CasCondition::None);
    let (mut wait, mut id, mut hold) = (None, None, None);
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"peek", None) if !peek => peek = true,
            (b"part", None) if !part => part = true,
            (b"cas", value) if cas == CasCondition::None => cas = line.cas(value)?,
            (b"id", Some(token)) if id.is_none() => id = Some(line.id(token)?),
            (b"wait", Some(word)) if wait.is_none() => {
                let bad = line.bad("wait must be 0 or a duration such as 500ms, at most 366d");
                let nanos = if word == b"0" { Some(0) } else { duration_nanos(word) };
                wait = Some(nanos.ok_or(bad)?);
            }
            (b"hold", Some(word)) if hold.is_none() => hold = Some(line.nanos(word, BAD_HOLD)?),
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    let take = Take { cost, policy, peek, part, wait, cas, id, hold };
    Ok(command(key, Native::Take(take), quiet))
}

/// `takem <cost> <key> <key> … [option]*`. The keys end at the first word spelt like an option of
/// `take`, but the first key is always a key.
fn take_many(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let cost = line.count(BAD_COST)?;
    let whole = line.words.rest();
    let mut count = 0;
    let mut end = 0;
    while let Some(word) = line.words.next() {
        if count > 0 && is_option_of_take(word) {
            break;
        }
        count += 1;
        end = whole.len() - line.words.rest().len();
    }
    if count == 0 {
        return Err(line.bad(line.usage.arguments));
    }
    if count > TAKE_KEYS_MAX {
        return Err(line.bad("at most 16 keys"));
    }
    let (words, options) = whole.split_at(end);
    let keys = Keys::new(words).ok_or(line.bad(BAD_KEY))?;
    line.words = Words(options);
    let (mut peek, mut id) = (false, None);
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"peek", None) if !peek => peek = true,
            (b"id", Some(token)) if id.is_none() => id = Some(line.id(token)?),
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    Ok(Request::TakeMany { cost, keys, peek, id, quiet })
}

/// Whether a word is spelt as an option of `take`. `takem` has two of them and refuses the others:
/// read as keys they would be charged, and the option would have no effect.
fn is_option_of_take(word: &[u8]) -> bool {
    let named = [&b"id="[..], b"hold=", b"wait=", b"cas="];
    matches!(word, b"peek" | b"part" | b"cas") || named.iter().any(|name| word.starts_with(name))
}

/// `refund <key> <n>`.
fn refund(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let units = line.count("n must be a number from 0 to 9007199254740991")?;
    line.end()?;
    Ok(command(key, Native::Refund(units), quiet))
}

/// `settle <key> <lease> <actual>`.
fn settle(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let lease = line.lease()?;
    let actual = line.count("actual must be a number from 0 to 9007199254740991")?;
    line.end()?;
    Ok(command(key, Native::Settle { lease, actual }, quiet))
}

/// `renew <key> <lease> <duration>`.
fn renew(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let lease = line.lease()?;
    let word = line.word()?;
    let for_ns = line.nanos(word, "the third argument must be a duration such as 30s")?;
    line.end()?;
    Ok(command(key, Native::Renew { lease, for_ns }, quiet))
}

/// `lease <key> <client> <want> <policy>|=<limit>|- [option]*`.
fn lease(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let client = line.word()?;
    if client.len() > KEY_BYTES_MAX {
        return Err(line.bad("client must be 1 to 250 bytes"));
    }
    let want = line.count("want must be a number from 0 to 9007199254740991")?;
    let policy = line.policy()?;
    let (mut used, mut unused, mut weight, mut ttl) = (None, None, None, None);
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"used", Some(word)) if used.is_none() => {
                used = Some(count(word).ok_or(line.bad("used must be 0 to 9007199254740991"))?);
            }
            (b"unused", Some(word)) if unused.is_none() => {
                unused = Some(count(word).ok_or(line.bad("unused must be 0 to 9007199254740991"))?);
            }
            (b"weight", Some(word)) if weight.is_none() => {
                let number = strict_u64(word).and_then(|number| u32::try_from(number).ok());
                let bad = line.bad("weight must be a number from 1 to 4294967295");
                weight = Some(number.filter(|number| *number > 0).ok_or(bad)?);
            }
            (b"ttl", Some(word)) if ttl.is_none() => {
                ttl = Some(line.nanos(word, "ttl must be a duration such as 30s, at most 366d")?);
            }
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    let (used, unused) = (used.unwrap_or(0), unused.unwrap_or(0));
    let weight = weight.unwrap_or(1);
    let lease = Lease { client, want, policy, used, unused, weight, ttl };
    Ok(command(key, Native::Lease(lease), quiet))
}

/// `incrx <key> <delta> <ttl> [option]*`.
fn incrx(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let word = line.word()?;
    let delta = signed(word)
        .ok_or(line.bad("delta must be a number from -9007199254740991 to 9007199254740991"))?;
    let word = line.word()?;
    let ttl = match classic::exptime(word) {
        Some(exptime) => Ttl::Exptime(exptime),
        None => Ttl::Nanos(line.nanos(word, "ttl must be seconds or a duration such as 250ms")?),
    };
    let (mut clamp, mut below_zero, mut ttl_mode) = (false, false, None);
    let (mut init, mut max, mut min) = (None, None, None);
    let (mut cas, mut id) = (CasCondition::None, None);
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"init", Some(word)) if init.is_none() => init = Some(line.configured(word)?),
            (b"max", Some(word)) if max.is_none() => max = Some(line.configured(word)?),
            (b"min", Some(word)) if min.is_none() => min = Some(line.configured(word)?),
            (b"clamp", None) if !clamp => clamp = true,
            (b"signed", None) if !below_zero => below_zero = true,
            (b"cas", value) if cas == CasCondition::None => cas = line.cas(value)?,
            (b"id", Some(token)) if id.is_none() => id = Some(line.id(token)?),
            (b"ttl", Some(word)) if ttl_mode.is_none() => {
                ttl_mode = Some(match word {
                    b"set" => TtlMode::Set,
                    b"touch" => TtlMode::Touch,
                    b"keep" => TtlMode::Keep,
                    _ => return Err(line.bad("ttl= must be set, touch or keep")),
                });
            }
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    if !below_zero && [init, max, min].iter().flatten().any(|bound| *bound < 0) {
        return Err(line.bad("init, max and min below 0 need signed"));
    }
    if max.zip(min).is_some_and(|(max, min)| max < min) {
        return Err(line.bad("max is below min"));
    }
    let ttl_mode = ttl_mode.unwrap_or_default();
    let signed = below_zero;
    let count = IncrX { delta, ttl, ttl_mode, init, max, min, clamp, signed, cas, id };
    Ok(command(key, Native::IncrX(count), quiet))
}

/// `slide <key> <n> <window> [slices=<n>]`.
fn slide(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let units = line.count("n must be a number from 0 to 9007199254740991")?;
    let word = line.word()?;
    let window = line.nanos(word, "window must be a duration such as 60s, at most 366d")?;
    let mut slices = None;
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"slices", Some(word)) if slices.is_none() => {
                let number = strict_u64(word).and_then(|number| u8::try_from(number).ok());
                let bad = line.bad("slices must be a number from 1 to 120");
                slices =
                    Some(number.filter(|number| (1..=SLICES_MAX).contains(number)).ok_or(bad)?);
            }
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    let slide = Slide { units, window, slices: slices.unwrap_or(1) };
    Ok(command(key, Native::Slide(slide), quiet))
}

const BAD_KEY: &str = "key must be 1 to 250 bytes";

/// Builds a command on one key that is answered by a native line.
fn command<'a>(key: Key<'a>, native: Native<'a>, quiet: bool) -> Request<'a> {
    let command = Command { key, operation: Operation::Native(native) };
    Request::Command { command, form: Form::Native { quiet } }
}

fn count(word: &[u8]) -> Option<u64> {
    strict_u64(word).filter(|count| *count <= COUNT_MAX)
}

fn signed(word: &[u8]) -> Option<i64> {
    bounded_i64(word, COUNT_MAX)
}

/// The unread words behind a verb.
struct Arguments<'a> {
    verb: &'static str,
    words: Words<'a>,
    usage: Usage,
}

impl<'a> Arguments<'a> {
    fn bad(&self, why: &'static str) -> ProtocolError {
        ProtocolError::Native { verb: self.verb, why }
    }

    fn word(&mut self) -> Result<&'a [u8], ProtocolError> {
        self.words.next().ok_or_else(|| self.bad(self.usage.arguments))
    }

    fn long_word(&mut self) -> Result<&'a [u8], ProtocolError> {
        self.words.next_long().ok_or_else(|| self.bad(self.usage.arguments))
    }

    fn key(&mut self) -> Result<Key<'a>, ProtocolError> {
        let word = self.long_word()?;
        Key::plain(word).ok_or(self.bad(BAD_KEY))
    }

    fn count(&mut self, why: &'static str) -> Result<u64, ProtocolError> {
        let word = self.word()?;
        count(word).ok_or(self.bad(why))
    }

    fn lease(&mut self) -> Result<u64, ProtocolError> {
        let word = self.word()?;
        strict_u64(word).ok_or(self.bad("lease must be an unsigned 64-bit number"))
    }

    fn policy(&mut self) -> Result<PolicyArg<'a>, ProtocolError> {
        match self.long_word()? {
            b"-" => Ok(PolicyArg::Configured),
            b"=" => Err(self.bad("a limit is named as in =login")),
            [b'=', name @ ..] => Ok(PolicyArg::Named(name)),
            token => Ok(PolicyArg::Inline(token)),
        }
    }

    /// Reads the next option: its name, and its value if it has one.
    fn option(&mut self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let word = self.words.next()?;
        Some(match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        })
    }

    /// Checks that no words follow.
    fn end(&mut self) -> Result<(), ProtocolError> {
        match self.words.next() {
            None => Ok(()),
            Some(_) => Err(self.bad(self.usage.options)),
        }
    }

    fn cas(&self, value: Option<&[u8]>) -> Result<CasCondition, ProtocolError> {
        match value {
            None => Ok(CasCondition::Show),
            Some(word) => strict_u64(word).map(CasCondition::Compare).ok_or(self.bad(BAD_CAS)),
        }
    }

    fn id(&self, token: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        let fits = (1..=ID_BYTES_MAX).contains(&token.len());
        fits.then_some(token).ok_or(self.bad(BAD_ID))
    }

    /// Parses a duration of at least a nanosecond.
    fn nanos(&self, word: &[u8], why: &'static str) -> Result<u64, ProtocolError> {
        duration_nanos(word).filter(|nanos| *nanos > 0).ok_or(self.bad(why))
    }

    fn configured(&self, word: &[u8]) -> Result<i64, ProtocolError> {
        signed(word).ok_or(
            self.bad(
                "init, max and min must be numbers from -9007199254740991 to 9007199254740991",
            ),
        )
    }
}

/// Appends the reply to a native verb.
pub(crate) fn encode(out: &mut Vec<u8>, command: &Command<'_>, outcome: &Outcome<'_>) {
    match outcome {
        Outcome::Verdict(line) => encode_verdict(out, line),
        Outcome::Settled { limit, remaining, reset_ms } => {
            out.extend_from_slice(b"SETTLED");
            number(out, *limit);
            out.push(b' ');
            out.extend_from_slice(itoa::Buffer::new().format(*remaining).as_bytes());
            number(out, 0);
            number(out, *reset_ms);
            out.extend_from_slice(b"\r\n");
        }
        Outcome::Renewed(ms) => {
            out.extend_from_slice(b"RENEWED");
            number(out, *ms);
            out.extend_from_slice(b"\r\n");
        }
        Outcome::Leased(line) => encode_lease(out, line),
        Outcome::Counted(line) => encode_count(out, line),
        Outcome::Slid(count) => {
            write_number(out, *count);
            out.extend_from_slice(b"\r\n");
        }
        _ => classic::encode(out, command, outcome),
    }
}

/// The longest word, four numbers, the blanks before them, and the line end.
const VERDICT_FRONT_BYTES_MAX: usize = 6 + 4 * (1 + 20) + 2;

/// Appends a verdict line, the reply to `take` and `takem`.
pub fn encode_verdict(out: &mut Vec<u8>, line: &VerdictLine) {
    let VerdictLine { word, limit, remaining, retry_ms, reset_ms, .. } = *line;
    let has_pairs = line.has_pairs();
    encode_verdict_front(out, word, (limit, remaining), retry_ms, reset_ms, !has_pairs);
    if has_pairs {
        encode_pairs(out, line);
    }
}

/// [`encode_verdict`] for the common case: no `key=value` pairs.
#[inline]
pub fn encode_plain_verdict(
    out: &mut Vec<u8>,
    word: VerdictWord,
    (limit, remaining): (u64, i64),
    retry_ms: Option<u64>,
    reset_ms: u64,
) {
    encode_verdict_front(out, word, (limit, remaining), retry_ms, reset_ms, true);
}

/// Appends the verdict word and its four numbers, and the line end if `ends` is set.
#[inline(never)]
fn encode_verdict_front(
    out: &mut Vec<u8>,
    word: VerdictWord,
    (limit, remaining): (u64, i64),
    retry_ms: Option<u64>,
    reset_ms: u64,
    ends: bool,
) {
    let mut front = Backwards::<VERDICT_FRONT_BYTES_MAX>::new();
    if ends {
        front.bytes(b"\r\n");
    }
    front.blank_and_number(reset_ms);
    match retry_ms {
        Some(ms) => front.blank_and_number(ms),
        None => front.bytes(b" -1"),
    }
    front.blank_and_signed(remaining);
    front.blank_and_number(limit);
    match word {
        VerdictWord::Allow => front.bytes(b"ALLOW"),
        VerdictWord::Deny => front.bytes(b"DENY"),
        VerdictWord::Wait => front.bytes(b"WAIT"),
        VerdictWord::Part => front.bytes(b"PART"),
        VerdictWord::Exists => front.bytes(b"EXISTS"),
    }
    out.extend_from_slice(front.written());
}

#[cold]
fn encode_pairs(out: &mut Vec<u8>, line: &VerdictLine) {
    pair(out, b" cas=", line.cas);
    pair(out, b" lease=", line.lease);
    pair(out, b" granted=", line.granted);
    pair(out, b" at=", line.at.map(|at| at as u64));
    pair(out, b" shadow=", line.shadow.then_some(1));
    pair(out, b" degraded=", line.degraded.then_some(1));
    out.extend_from_slice(b"\r\n");
}

fn encode_lease(out: &mut Vec<u8>, line: &LeaseLine) {
    out.extend_from_slice(b"LEASE");
    for figure in [line.granted, line.ttl_ms, line.refresh_ms, line.remaining] {
        number(out, figure);
    }
    pair(out, b" lease=", Some(line.lease));
    pair(out, b" safe=", Some(line.safe));
    out.extend_from_slice(b"\r\n");
}

fn encode_count(out: &mut Vec<u8>, line: &CountLine) {
    if line.exists {
        out.extend_from_slice(b"EXISTS ");
    }
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(line.value).as_bytes());
    out.push(b' ');
    out.extend_from_slice(digits.format(line.applied).as_bytes());
    number_or_never(out, line.ttl_ms);
    pair(out, b" cas=", line.cas);
    out.extend_from_slice(b"\r\n");
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.push(b' ');
    write_number(out, value);
}

fn number_or_never(out: &mut Vec<u8>, value: Option<u64>) {
    match value {
        Some(value) => number(out, value),
        None => out.extend_from_slice(b" -1"),
    }
}

fn pair(out: &mut Vec<u8>, name: &[u8], value: Option<u64>) {
    if let Some(value) = value {
        out.extend_from_slice(name);
        write_number(out, value);
    }
}

#[cfg(test)]
mod tests;
