//! The native verbs: `take` and its kin, one line each, for callers that need a full verdict.
//!
//! Here: the verbs, one parser each. In this folder: their [`arguments`], the [`lines`] of the
//! replies, and the [`groups`] of pairs that a request asks for. Not here: the parser of the policy
//! token (`policy`): the token is passed on as it stands. Source: `docs/reference/verbs-native.md`.

mod arguments;
pub(crate) mod groups;
pub(crate) mod lines;

use self::arguments::{
    Arguments, BAD_KEY, INCRX, LEASE, REFUND, RENEW, SETTLE, SLIDE, TAKE, TAKE_MANY, count, signed,
};
use crate::bounds::{KEY_BYTES_MAX, TAKE_KEYS_MAX};
use crate::error::ProtocolError;
use crate::key::Key;
use crate::line::{DecodeError, Decoded, Line, exptime};
use crate::number::strict_u64;
use crate::policy::SLICES_MAX;
use crate::request::{
    CasCondition, Command, Costs, Form, IncrX, Keys, Lease, Native, Operation, Request, Slide,
    Take, TakeMany, Ttl, TtlMode, Words,
};
use crate::text::without_noreply;

const BAD_COST: &str = "cost must be a number from 0 to 9007199254740991";
const BAD_COSTS: &str = "costs must be numbers from 0 to 9007199254740991 between commas";
const BAD_HOLD: &str = "hold must be a duration such as 30s, at most 366d";

/// Decodes a line that begins with `verb`, a native verb; `rest` is the line behind it.
pub(crate) fn decode<'a>(
    line: Line<'a>,
    verb: &[u8],
    rest: &'a [u8],
) -> Result<Decoded<'a>, DecodeError> {
    let (rest, quiet) = match without_noreply(rest) {
        Some(before) => (before, true),
        None => (rest, false),
    };
    let words = Words(rest);
    let request = match verb {
        b"take" => take(Arguments { verb: "take", words, usage: &TAKE }, quiet),
        b"takem" => take_many(Arguments { verb: "takem", words, usage: &TAKE_MANY }, quiet),
        b"refund" => refund(Arguments { verb: "refund", words, usage: &REFUND }, quiet),
        b"settle" => settle(Arguments { verb: "settle", words, usage: &SETTLE }, quiet),
        b"renew" => renew(Arguments { verb: "renew", words, usage: &RENEW }, quiet),
        b"lease" => lease(Arguments { verb: "lease", words, usage: &LEASE }, quiet),
        b"incrx" => incrx(Arguments { verb: "incrx", words, usage: &INCRX }, quiet),
        _ => slide(Arguments { verb: "slide", words, usage: &SLIDE }, quiet),
    };
    line.done(request.map_err(|error| line.refuse(error, quiet))?)
}

/// `take <key> <cost> <policy>|=<limit>|- [option]*`.
fn take(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let key = line.key()?;
    let cost = line.count(BAD_COST)?;
    let policy = line.policy()?;
    let (mut peek, mut part, mut cas) = (false, false, CasCondition::None);
    let (mut wait, mut id, mut hold, mut debit, mut info) = (None, None, None, false, false);
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"peek", None) if !peek => peek = true,
            (b"part", None) if !part => part = true,
            (b"debit", None) if !debit => debit = true,
            (b"info", None) if !info => info = true,
            (b"cas", value) if cas == CasCondition::None => cas = line.cas(value)?,
            (b"id", Some(token)) if id.is_none() => id = Some(line.id(token)?),
            (b"wait", Some(word)) if wait.is_none() => {
                wait = Some(line.wait(word)?);
            }
            (b"hold", Some(word)) if hold.is_none() => hold = Some(line.nanos(word, BAD_HOLD)?),
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    if debit && (peek || part || wait.is_some() || cas != CasCondition::None || hold.is_some()) {
        return Err(line.bad("debit does not go with peek part wait= cas hold="));
    }
    let take = Take { cost, policy, peek, part, wait, cas, id, hold, debit, info };
    Ok(command(key, Native::Take(take), quiet))
}

/// `takem <cost>[,<cost>…] <key> <key> … [option]*`. The keys end at the first word spelt like an
/// option, but the first key is always a key.
fn take_many(mut line: Arguments<'_>, quiet: bool) -> Result<Request<'_>, ProtocolError> {
    let word = line.long_word()?;
    let bad = if word.contains(&b',') { BAD_COSTS } else { BAD_COST };
    let costs = Costs::new(word).ok_or(line.bad(bad))?;
    let whole = line.words.rest();
    let mut count = 0;
    let mut end = 0;
    while let Some(word) = line.words.next() {
        if count > 0 && is_option(word) {
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
    if costs.only().is_none() && costs.count() != count {
        return Err(line.bad("give one cost for all keys, or one for each"));
    }
    let (words, options) = whole.split_at(end);
    let keys = Keys::new(words).ok_or(line.bad(BAD_KEY))?;
    line.words = Words(options);
    let (mut peek, mut wait, mut id, mut each, mut info) = (false, None, None, false, false);
    while let Some((name, value)) = line.option() {
        match (name, value) {
            (b"peek", None) if !peek => peek = true,
            (b"wait", Some(word)) if wait.is_none() => wait = Some(line.wait(word)?),
            (b"id", Some(token)) if id.is_none() => id = Some(line.id(token)?),
            (b"each", None) if !each => each = true,
            (b"info", None) if !info => info = true,
            _ => return Err(line.bad(line.usage.options)),
        }
    }
    let many = TakeMany { costs, keys, peek, wait, id, each, info };
    Ok(Request::TakeMany { many, quiet })
}

/// Whether a word is spelt as an option of `take` or `takem`. `takem` refuses those that only
/// `take` has: read as keys they would be charged, and the option would have no effect.
fn is_option(word: &[u8]) -> bool {
    let named = [&b"id="[..], b"hold=", b"wait=", b"cas="];
    let is_bare = matches!(word, b"peek" | b"part" | b"cas" | b"each" | b"info");
    is_bare || named.iter().any(|name| word.starts_with(name))
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
    let ttl = match exptime(word) {
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

/// Builds a command on one key that is answered by a native line.
fn command<'a>(key: Key<'a>, native: Native<'a>, quiet: bool) -> Request<'a> {
    let command = Command { key, operation: Operation::Native(native) };
    Request::Command { command, form: Form::Native { quiet } }
}

#[cfg(test)]
mod tests;
