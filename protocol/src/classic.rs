//! The classic verbs: `get` to `quit`, one line each, with a data block behind the storage verbs.
//!
//! Here: the line parser. Not here: the replies (`text_reply`), the meta verbs, the native verbs.
//! Source: memcached's `doc/protocol.txt`; where it is silent, measurements of
//! memcached (argument errors as the newest release words them).

use crate::cluster_admin;
use crate::error::ProtocolError;
use crate::key::Key;
use crate::line::{Block, DecodeError, Decoded, Line, block_length, exptime};
use crate::machinery;
use crate::native;
use crate::number::{strict_u64, truncated_i32, truncated_u32};
use crate::request::{
    Admin, Arithmetic, Command, Delete, Exptime, Form, Keys, Operation, Request, Set, SetMode,
    StatsTopic, Words,
};
use crate::text::without_noreply;

/// Length in bytes of a line with one blank at most and a bare line end: malformed, not an unknown
/// verb.
const SHORT_LINE_BYTES: usize = 2;

/// Decodes a line that begins with `verb`; `rest` is the line behind it.
pub(crate) fn decode<'a>(
    line: Line<'a>,
    verb: &'a [u8],
    rest: &'a [u8],
) -> Result<Decoded<'a>, DecodeError> {
    match verb {
        _ if line.text.first() == Some(&b' ') => Err(unknown(line, verb)),
        b"incr" => arithmetic(line, rest, false),
        b"get" => retrieve(line, rest, false),
        b"decr" => arithmetic(line, rest, true),
        b"set" => store(line, rest, SetMode::Set),
        b"add" => store(line, rest, SetMode::Add),
        b"gets" => retrieve(line, rest, true),
        b"delete" => delete(line, rest),
        b"cas" => compare_and_store(line, rest),
        b"touch" => touch(line, rest),
        b"replace" => store(line, rest, SetMode::Replace),
        b"append" => store(line, rest, SetMode::Append),
        b"prepend" => store(line, rest, SetMode::Prepend),
        b"gat" => touch_and_retrieve(line, rest, false),
        b"gats" => touch_and_retrieve(line, rest, true),
        b"take" | b"takem" | b"refund" | b"settle" | b"renew" | b"lease" | b"incrx" | b"slide" => {
            native::decode(line, verb, rest)
        }
        _ => admin(line, verb, rest),
    }
}

fn admin<'a>(line: Line<'a>, verb: &'a [u8], rest: &'a [u8]) -> Result<Decoded<'a>, DecodeError> {
    let quiet = ends_quietly(rest);
    let admin = match verb {
        b"version" => Admin::Version,
        b"quit" => Admin::Quit,
        b"flush_all" => Admin::FlushAll(flush_delay(line, rest, quiet)?),
        b"verbosity" => return verbosity(line, rest, quiet),
        b"stats" => Admin::Stats(stats_topic(line, rest)?),
        b"cache_memlimit" => match first_number(rest) {
            Some(megabytes) => Admin::CacheMemlimit(megabytes),
            None => return Err(line.refuse(ProtocolError::UnknownCommand, quiet)),
        },
        b"shutdown" => match Words(rest).next() {
            None | Some(b"graceful") => Admin::Shutdown,
            Some(_) => return Err(line.refuse(ProtocolError::BadShutdownMode, false)),
        },
        b"slabs" | b"lru" | b"lru_crawler" => machinery::decode(line, verb, rest)?,
        b"watch" => Admin::Watch,
        b"config" if is_config_get_cluster(rest) => Admin::ConfigGet,
        b"cluster" => return cluster_admin::decode(line, rest),
        _ => return Err(unknown(line, verb)),
    };
    line.done(Request::Admin { admin, quiet })
}

/// Whether the line is `config get cluster`, by which `ElastiCache`'s clients find the nodes;
/// memcached has no `config`.
fn is_config_get_cluster(rest: &[u8]) -> bool {
    Words(rest).eq([&b"get"[..], b"cluster"])
}

/// Refuses an unknown verb. An HTTP request closes the connection, as in memcached.
fn unknown(line: Line<'_>, verb: &[u8]) -> DecodeError {
    let last = Words(line.text).last().unwrap_or_default();
    let error = match verb.len() {
        _ if last.starts_with(b"HTTP/") && verb != last => ProtocolError::Close,
        0 if line.bytes <= SHORT_LINE_BYTES => ProtocolError::BadFormat,
        // The newest release of memcached reports lines too short to be a command as malformed.
        0 | 1 if line.text.first() != Some(&b' ') => ProtocolError::BadFormat,
        _ => ProtocolError::UnknownCommand,
    };
    line.refuse(error, false)
}

/// Whether the last word is `noreply`.
fn ends_quietly(rest: &[u8]) -> bool {
    without_noreply(rest).is_some()
}

fn first_number(rest: &[u8]) -> Option<u64> {
    strict_u64(Words(rest).next()?)
}

fn retrieve<'a>(
    line: Line<'a>,
    rest: &'a [u8],
    with_cas: bool,
) -> Result<Decoded<'a>, DecodeError> {
    let keys = Keys::new(rest).ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
    line.done(Request::Retrieve { keys, with_cas, touch: None })
}

fn touch_and_retrieve<'a>(
    line: Line<'a>,
    rest: &'a [u8],
    with_cas: bool,
) -> Result<Decoded<'a>, DecodeError> {
    let mut words = Words(rest);
    let (Some(when), Some(_)) = (words.next(), words.next()) else {
        return Err(line.refuse(ProtocolError::BadFormat, false));
    };
    let touch = exptime(when).ok_or_else(|| line.refuse(ProtocolError::BadExptime, false))?;
    let mut words = Words(rest);
    words.next();
    let keys =
        Keys::new(words.rest()).ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
    line.done(Request::Retrieve { keys, with_cas, touch: Some(touch) })
}

/// Builds a command on one key that is answered in the classic form.
fn command<'a>(key: Key<'a>, operation: Operation<'a>, quiet: bool) -> Request<'a> {
    Request::Command { command: Command { key, operation }, form: Form::Text { quiet } }
}

fn arithmetic<'a>(
    line: Line<'a>,
    rest: &'a [u8],
    decrement: bool,
) -> Result<Decoded<'a>, DecodeError> {
    let mut words = Words(rest);
    let (Some(key), Some(delta)) = (words.next_long(), words.next()) else {
        return Err(line.refuse(ProtocolError::BadFormat, false));
    };
    let quiet = ends_quietly(words.rest());
    let key = Key::plain(key).ok_or_else(|| line.refuse(ProtocolError::BadFormat, quiet))?;
    let delta = strict_u64(delta).ok_or_else(|| line.refuse(ProtocolError::BadDelta, quiet))?;
    let operation = Operation::Arithmetic(Arithmetic::plain(delta, decrement));
    line.done(command(key, operation, quiet))
}

fn delete<'a>(line: Line<'a>, rest: &'a [u8]) -> Result<Decoded<'a>, DecodeError> {
    let mut words = Words(rest);
    let key = words.next().ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
    // Old clients send `delete k 0`; the newest memcached ignores any word there.
    let quiet = ends_quietly(words.rest());
    let key = Key::plain(key).ok_or_else(|| line.refuse(ProtocolError::BadFormat, quiet))?;
    line.done(command(key, Operation::Delete(Delete::default()), quiet))
}

fn touch<'a>(line: Line<'a>, rest: &'a [u8]) -> Result<Decoded<'a>, DecodeError> {
    let mut words = Words(rest);
    let (Some(key), Some(when)) = (words.next(), words.next()) else {
        return Err(line.refuse(ProtocolError::BadFormat, false));
    };
    let quiet = ends_quietly(words.rest());
    let key = Key::plain(key).ok_or_else(|| line.refuse(ProtocolError::BadFormat, quiet))?;
    let when = exptime(when).ok_or_else(|| line.refuse(ProtocolError::BadExptime, quiet))?;
    line.done(command(key, Operation::Touch(when), quiet))
}

fn store<'a>(line: Line<'a>, rest: &'a [u8], mode: SetMode) -> Result<Decoded<'a>, DecodeError> {
    let mut words = Words(rest);
    let (Some(key), Some(flags), Some(when), Some(length)) =
        (words.next_long(), words.next(), words.next(), words.next())
    else {
        return Err(line.refuse(ProtocolError::BadFormat, false));
    };
    let quiet = ends_quietly(words.rest());
    let set = StoreLine { key, flags, when, length, mode, compare_cas: None, quiet };
    set.decode(line)
}

fn compare_and_store<'a>(line: Line<'a>, rest: &'a [u8]) -> Result<Decoded<'a>, DecodeError> {
    let mut words = Words(rest);
    let (Some(key), Some(flags), Some(when), Some(length)) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(line.refuse(ProtocolError::BadFormat, false));
    };
    let quiet = ends_quietly(words.rest());
    // A line without a cas unique is refused, but its length is valid: the block is dropped with
    // it.
    let compare_cas = Some(words.next().unwrap_or_default());
    let set = StoreLine { key, flags, when, length, mode: SetMode::Set, compare_cas, quiet };
    set.decode(line)
}

/// The words of a storage line.
struct StoreLine<'a> {
    key: &'a [u8],
    flags: &'a [u8],
    when: &'a [u8],
    length: &'a [u8],
    mode: SetMode,
    compare_cas: Option<&'a [u8]>,
    quiet: bool,
}

impl<'a> StoreLine<'a> {
    fn decode(&self, line: Line<'a>) -> Result<Decoded<'a>, DecodeError> {
        // Without a length the end of the block is unknown, so the refusal is sent even under
        // `noreply`.
        let length = block_length(self.length)
            .ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
        let bad = |error| line.refuse_with(length, error, self.quiet);
        let key = Key::plain(self.key).ok_or_else(|| bad(ProtocolError::BadFormat))?;
        let (Some(client_flags), Some(exptime)) =
            (truncated_u32(self.flags), truncated_i32(self.when).map(Exptime))
        else {
            return Err(bad(ProtocolError::BadFormat));
        };
        let compare_cas = match self.compare_cas.map(strict_u64) {
            Some(None) => return Err(bad(ProtocolError::BadFormat)),
            Some(unique) => unique,
            None => None,
        };
        if !line.bounds.fits(key.as_bytes().len(), length) {
            let drop = self.mode == SetMode::Set && self.compare_cas.is_none();
            return line.done_with(length, command(key, Operation::TooLarge { drop }, self.quiet));
        }
        let value = match line.block(length) {
            Block::Whole(value) => value,
            Block::Incomplete(decoded) => return Ok(decoded),
            Block::Bad => return Err(bad(ProtocolError::BadDataChunk)),
        };
        let set = Set { compare_cas, ..Set::plain(self.mode, client_flags, exptime, value) };
        line.done_with(length, command(key, Operation::Set(set), self.quiet))
    }
}

fn flush_delay(line: Line<'_>, rest: &[u8], quiet: bool) -> Result<Exptime, DecodeError> {
    match Words(rest).next() {
        None | Some(b"noreply") => Ok(Exptime::NEVER),
        Some(delay) => exptime(delay).ok_or_else(|| line.refuse(ProtocolError::BadExptime, quiet)),
    }
}

fn verbosity<'a>(line: Line<'a>, rest: &'a [u8], quiet: bool) -> Result<Decoded<'a>, DecodeError> {
    let level = match Words(rest).next() {
        Some(b"noreply") => 0,
        Some(word) => {
            truncated_u32(word).ok_or_else(|| line.refuse(ProtocolError::BadFormat, quiet))?
        }
        None => return Err(line.refuse(ProtocolError::BadFormat, false)),
    };
    line.done(Request::Admin { admin: Admin::Verbosity(level), quiet })
}

fn stats_topic<'a>(line: Line<'a>, rest: &'a [u8]) -> Result<StatsTopic<'a>, DecodeError> {
    let mut words = Words(rest);
    Ok(match words.next() {
        None => StatsTopic::General,
        Some(b"settings") => StatsTopic::Settings,
        Some(b"items") => StatsTopic::Items,
        Some(b"slabs") => StatsTopic::Slabs,
        Some(b"sizes") => StatsTopic::Sizes,
        Some(b"conns") => StatsTopic::Conns,
        Some(b"reset") => StatsTopic::Reset,
        Some(b"detail") => match words.next() {
            Some(b"on") => StatsTopic::Detail(true),
            Some(b"off") => StatsTopic::Detail(false),
            Some(b"dump") => StatsTopic::DetailDump,
            _ => return Err(line.refuse(ProtocolError::BadDetail, false)),
        },
        Some(b"cachedump") => {
            let number = |word: &[u8]| strict_u64(word).and_then(|n| u32::try_from(n).ok());
            let (Some(class), Some(count)) = (words.next(), words.next()) else {
                return Err(line.refuse(ProtocolError::BadLine, false));
            };
            let (Some(class), Some(count)) = (number(class), number(count)) else {
                return Err(line.refuse(ProtocolError::BadFormat, false));
            };
            StatsTopic::CacheDump { class, count }
        }
        Some(_) => StatsTopic::Other(rest),
    })
}
