//! The meta verbs: `mg`, `ms`, `md`, `ma`, `mn`, `me`, and their flags.
//!
//! Here: the line parser, and beside it the encoder, which returns flags in the order of the
//! request. Not here: the classic verbs, and the effect of a flag on an item (`engine`). Source:
//! memcached's `doc/protocol.txt`, Meta Commands, and measurements of it.

use crate::bounds::OPAQUE_BYTES_MAX;
use crate::decimal::write_number;
use crate::error::ProtocolError;
use crate::key::{Key, write_key};
use crate::line::{Block, DecodeError, Decoded, Line, block_length};
use crate::number::{strict_i32, strict_u64};
use crate::reply::{ItemView, Outcome};
use crate::request::{
    Admin, Arithmetic, Command, Delete, Exptime, Form, Get, Operation, Request, Set, SetMode, Words,
};
use crate::text_reply::encode_text;

/// Every flag that some meta verb has; each verb ignores those of the others.
const FLAGS: &[u8] = b"bcCDEfFhIJklLMNOPqRstTuvx";

/// Decodes a line of the verb `m` + `verb`; `rest` is the line behind it.
pub(crate) fn decode<'a>(
    line: Line<'a>,
    verb: u8,
    rest: &'a [u8],
) -> Result<Decoded<'a>, DecodeError> {
    if verb == b'n' {
        return line.done(Request::Admin { admin: Admin::Noop, quiet: false });
    }
    let mut words = Words(rest);
    let key_word = words.next().ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
    match verb {
        b'e' => inspect(line, key_word, words.rest()),
        b's' => set(line, key_word, words),
        _ => {
            let (key, flags, form) =
                head(key_word, words.rest(), verb).map_err(|error| line.refuse(error, false))?;
            let operation = match verb {
                b'g' => Operation::Get(flags.get()),
                b'd' => Operation::Delete(flags.delete()),
                _ => Operation::Arithmetic(
                    flags.arithmetic().map_err(|error| line.refuse(error, false))?,
                ),
            };
            line.done(Request::Command { command: Command { key, operation }, form })
        }
    }
}

/// `me <key> [b]`. A key that is not valid base64 is looked up as it stands.
fn inspect<'a>(
    line: Line<'a>,
    key_word: &'a [u8],
    rest: &'a [u8],
) -> Result<Decoded<'a>, DecodeError> {
    let decoded = if rest.contains(&b'b') { Key::base64(key_word) } else { None };
    let key = decoded
        .or_else(|| Key::plain(key_word))
        .ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
    let form = Form::Meta { quiet: false, base64: false, key_word, flags: b"", policy: None };
    let command = Command { key, operation: Operation::Inspect };
    line.done(Request::Command { command, form })
}

/// `ms <key> <length> <flags>*` and a block. A fault in the flags consumes the block too.
fn set<'a>(
    line: Line<'a>,
    key_word: &'a [u8],
    mut words: Words<'a>,
) -> Result<Decoded<'a>, DecodeError> {
    let length = words
        .next()
        .and_then(block_length)
        .ok_or_else(|| line.refuse(ProtocolError::BadFormat, false))?;
    let bad = |error| line.refuse_with(length, error, false);
    let (key, flags, form) = head(key_word, words.rest(), b's').map_err(bad)?;
    let mode = flags.set_mode().map_err(bad)?;
    if !line.bounds.fits(key.as_bytes().len(), length) {
        let command = Command { key, operation: Operation::TooLarge { drop: true } };
        return line.done_with(length, Request::Command { command, form });
    }
    let value = match line.block(length) {
        Block::Whole(value) => value,
        Block::Incomplete(decoded) => return Ok(decoded),
        Block::Bad => return Err(bad(ProtocolError::BadDataChunk)),
    };
    let operation = Operation::Set(flags.set(mode, value));
    line.done_with(length, Request::Command { command: Command { key, operation }, form })
}

/// Parses the key and the flags of a line and returns them with the form of the reply.
fn head<'a>(
    key_word: &'a [u8],
    rest: &'a [u8],
    verb: u8,
) -> Result<(Key<'a>, Flags<'a>, Form<'a>), ProtocolError> {
    // The bound also holds for the key as it stands, base64 included.
    let plain = Key::plain(key_word);
    // memcached reports every fault in the flags of `ma` with the same text.
    let blur = |error| match error {
        ProtocolError::OpaqueTooLong => error,
        _ if verb == b'a' => ProtocolError::BadArithmeticFlag,
        // The tokenizer of `md` stops at a byte that no flag begins with.
        ProtocolError::BadFlag if verb == b'd' && !begin_like_flags(rest) => {
            ProtocolError::BadFormat
        }
        _ => error,
    };
    let plain = plain.ok_or(ProtocolError::BadFormat)?;
    let flags = Flags::decode(rest).map_err(blur)?;
    let key = if flags.base64 {
        Key::base64(key_word).ok_or(blur(ProtocolError::BadBase64))?
    } else {
        plain
    };
    let Flags { quiet, base64, policy, .. } = flags;
    let form = Form::Meta { quiet, base64, key_word, flags: rest, policy };
    Ok((key, flags, form))
}

/// Whether each word begins with a byte that memcached's tokenizer accepts as a flag.
fn begin_like_flags(rest: &[u8]) -> bool {
    Words(rest).all(|word| matches!(word[0], b'A'..=b'z' | b'0'..=b'9'))
}

/// The validated flags of one line.
#[derive(Default)]
struct Flags<'a> {
    base64: bool,
    quiet: bool,
    no_bump: bool,
    invalidate: bool,
    drop_value: bool,
    client_flags: u32,
    ttl: Option<Exptime>,
    vivify: Option<Exptime>,
    /// `T` stands behind `N`.
    ttl_is_last: bool,
    recache: Option<i32>,
    /// `T` stands before `R`.
    ttl_is_first: bool,
    compare_cas: Option<u64>,
    new_cas: Option<u64>,
    delta: Option<u64>,
    initial: Option<u64>,
    /// The mode letter behind `M`; its meaning depends on the verb. A token of any other length is
    /// `Some(0)`.
    mode: Option<u8>,
    policy: Option<&'a [u8]>,
}

impl<'a> Flags<'a> {
    fn decode(rest: &'a [u8]) -> Result<Self, ProtocolError> {
        let mut flags = Self::default();
        // One bit a letter: A is bit 0, z is bit 57.
        let mut seen = 0_u64;
        for word in Words(rest) {
            let (flag, token) = (word[0], &word[1..]);
            if !FLAGS.contains(&flag) {
                return Err(ProtocolError::BadFlag);
            }
            let bit = 1 << (flag - b'A');
            if seen & bit != 0 {
                return Err(ProtocolError::DuplicateFlag);
            }
            seen |= bit;
            flags.take(flag, token)?;
        }
        Ok(flags)
    }

    fn take(&mut self, flag: u8, token: &'a [u8]) -> Result<(), ProtocolError> {
        let number_or = |error| strict_u64(token).map(Some).ok_or(error);
        let number = || number_or(ProtocolError::BadToken);
        let seconds = || strict_i32(token).ok_or(ProtocolError::BadToken);
        match flag {
            b'b' => self.base64 = true,
            b'q' => self.quiet = true,
            b'u' => self.no_bump = true,
            b'I' => self.invalidate = true,
            b'x' => self.drop_value = true,
            b'C' => self.compare_cas = number()?,
            b'E' => self.new_cas = number()?,
            b'D' => self.delta = number_or(ProtocolError::BadDeltaToken)?,
            b'J' => self.initial = number_or(ProtocolError::BadInitialToken)?,
            b'N' => self.vivify = Some(Exptime(seconds()?)),
            b'T' => {
                self.ttl = Some(Exptime(seconds()?));
                self.ttl_is_last = self.vivify.is_some();
            }
            b'R' => {
                self.recache = Some(seconds()?);
                self.ttl_is_first = self.ttl.is_some();
            }
            b'M' => self.mode = Some(if let [mode] = token { *mode } else { 0 }),
            b'F' => {
                self.client_flags = strict_u64(token)
                    .and_then(|value| u32::try_from(value).ok())
                    .ok_or(ProtocolError::BadFormat)?;
            }
            // Proxies use a bare `P` for themselves.
            b'P' if !token.is_empty() => self.policy = Some(token),
            b'O' if token.len() > OPAQUE_BYTES_MAX => return Err(ProtocolError::OpaqueTooLong),
            _ => {}
        }
        Ok(())
    }

    fn get(&self) -> Get {
        Get {
            touch: self.ttl,
            vivify: self.vivify(),
            recache: self.recache,
            touch_is_first: self.ttl_is_first,
            unless_cas: self.compare_cas,
            new_cas: self.new_cas,
            no_bump: self.no_bump,
            base64: self.base64,
            may_win: true,
        }
    }

    /// The exptime of an item that the command creates: the last one of `N` and `T`, because
    /// memcached processes them in order.
    fn vivify(&self) -> Option<Exptime> {
        let last = if self.ttl_is_last { self.ttl } else { None };
        self.vivify.map(|exptime| last.unwrap_or(exptime))
    }

    fn set_mode(&self) -> Result<SetMode, ProtocolError> {
        Ok(match self.mode {
            None | Some(b'S') => SetMode::Set,
            Some(b'E') => SetMode::Add,
            Some(b'R') => SetMode::Replace,
            Some(b'A') => SetMode::Append,
            Some(b'P') => SetMode::Prepend,
            Some(_) => return Err(ProtocolError::BadSetMode),
        })
    }

    fn set<'v>(&self, mode: SetMode, value: &'v [u8]) -> Set<'v> {
        Set {
            mode,
            client_flags: self.client_flags,
            exptime: self.ttl.unwrap_or(Exptime::NEVER),
            value,
            compare_cas: self.compare_cas,
            new_cas: self.new_cas,
            invalidate: self.invalidate,
            vivify: self.vivify,
            base64: self.base64,
        }
    }

    fn delete(&self) -> Delete {
        Delete {
            compare_cas: self.compare_cas,
            new_cas: self.new_cas,
            stale: self.invalidate,
            exptime: self.ttl,
            drop_value: self.drop_value,
            client_flags: self.client_flags,
        }
    }

    fn arithmetic(&self) -> Result<Arithmetic, ProtocolError> {
        Ok(Arithmetic {
            decrement: match self.mode {
                None | Some(b'I' | b'+') => false,
                Some(b'D' | b'-') => true,
                Some(_) => return Err(ProtocolError::BadArithmeticMode),
            },
            delta: self.delta.unwrap_or(1),
            vivify: self.vivify(),
            initial: self.initial.unwrap_or(0),
            exptime: self.ttl,
            // Unlike `md` and `ms`, memcached's `ma` treats 0 as absent.
            compare_cas: self.compare_cas.filter(|unique| *unique != 0),
            new_cas: self.new_cas,
            base64: self.base64,
        })
    }
}

/// Appends the reply to a meta command.
pub(crate) fn encode(
    out: &mut Vec<u8>,
    command: &Command<'_>,
    form: &Form<'_>,
    outcome: &Outcome<'_>,
) {
    if silent(command, form.is_quiet(), outcome) {
        return;
    }
    let answer = ReplyContext { command, form };
    match outcome {
        Outcome::Hit(item)
        | Outcome::Vivified(item)
        | Outcome::Number(item)
        | Outcome::Refused(item) => answer.item(out, item),
        Outcome::Stored(item) => answer.code(out, b"HD", Some(item)),
        Outcome::Deleted | Outcome::Touched => answer.code(out, b"HD", None),
        Outcome::NotStored => answer.code(out, b"NS", None),
        Outcome::Exists => answer.code(out, b"EX", None),
        Outcome::NotFound => answer.code(out, b"NF", None),
        Outcome::Miss => answer.code(out, b"EN", None),
        _ => encode_text(out, command, outcome),
    }
}

/// Whether `q` suppresses the reply: the ordinary outcome of each verb, never an error (memcached,
/// `doc/protocol.txt`, Meta Commands).
fn silent(command: &Command<'_>, quiet: bool, outcome: &Outcome<'_>) -> bool {
    quiet
        && match command.operation {
            Operation::Get(_) => matches!(outcome, Outcome::Miss),
            // A refused take is never silent: it is the information that the caller requested.
            _ => matches!(outcome, Outcome::Stored(_) | Outcome::Deleted | Outcome::Number(_)),
        }
}

/// The inputs of a reply besides the outcome.
struct ReplyContext<'a> {
    command: &'a Command<'a>,
    form: &'a Form<'a>,
}

impl ReplyContext<'_> {
    fn flags(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let Form::Meta { flags, .. } = self.form else { return Words(b"").map(split as _) };
        Words(flags).map(split as fn(&[u8]) -> (u8, &[u8]))
    }

    /// Appends `HD` or `VA`, the requested flags, and the value if `v` is among them.
    fn item(&self, out: &mut Vec<u8>, item: &ItemView<'_>) {
        let with_value = !item.value_unwanted && self.flags().any(|(flag, _)| flag == b'v');
        if with_value {
            out.extend_from_slice(b"VA ");
            write_number(out, item.value.len() as u64);
        } else {
            out.extend_from_slice(b"HD");
        }
        let is_get = matches!(self.command.operation, Operation::Get(_));
        let counts = matches!(self.command.operation, Operation::Arithmetic(_));
        // memcached processes the flags of `mg` and `ma` in order: a `t` before the `T` returns the
        // former ttl, and a `t` before `N` that of an item just created, which is none.
        let mut ttl = match (is_get || counts, item.is_new) {
            (true, true) => None,
            (true, false) => item.former_ttl_seconds,
            (false, _) => item.ttl_seconds,
        };
        for (flag, token) in self.flags() {
            match flag {
                b'k' => self.key(out, if is_get { item.base64 } else { self.is_base64() }),
                b'O' => word(out, b'O', token),
                b'c' => number(out, b'c', item.cas),
                b't' => match ttl {
                    Some(seconds) => number(out, b't', u64::from(seconds)),
                    None => out.extend_from_slice(b" t-1"),
                },
                b'T' => ttl = item.ttl_seconds,
                b'N' if item.is_new => ttl = item.ttl_seconds,
                b'f' if is_get => number(out, b'f', u64::from(item.client_flags)),
                b's' if is_get => number(out, b's', item.value.len() as u64),
                b'h' if is_get => number(out, b'h', u64::from(item.fetched)),
                b'l' if is_get => number(out, b'l', u64::from(item.idle_seconds)),
                _ => {}
            }
        }
        if is_get && item.already_won {
            out.extend_from_slice(b" Z");
        }
        if is_get && item.stale {
            out.extend_from_slice(b" X");
        }
        if is_get && item.won {
            out.extend_from_slice(b" W");
        }
        out.extend_from_slice(b"\r\n");
        if with_value {
            item.value.write(out);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends a code without an item's flags, except the cas unique and size that `ms` returns.
    fn code(&self, out: &mut Vec<u8>, code: &[u8], stored: Option<&ItemView<'_>>) {
        let is_set = matches!(self.command.operation, Operation::Set(_));
        out.extend_from_slice(code);
        for (flag, token) in self.flags() {
            match (flag, stored) {
                (b'k', _) => self.key(out, self.is_base64()),
                (b'O', _) => word(out, b'O', token),
                (b'c', _) if is_set => number(out, b'c', stored.map_or(0, |item| item.cas)),
                (b's', Some(item)) if is_set => number(out, b's', item.value.len() as u64),
                _ => {}
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Whether the key arrived in base64.
    fn is_base64(&self) -> bool {
        matches!(self.form, Form::Meta { base64: true, .. })
    }

    /// Appends the key, and ` b` behind it if it is written in base64.
    fn key(&self, out: &mut Vec<u8>, base64: bool) {
        out.extend_from_slice(b" k");
        if write_key(out, self.command.key.as_bytes(), base64) {
            out.extend_from_slice(b" b");
        }
    }
}

fn split(word: &[u8]) -> (u8, &[u8]) {
    (word[0], &word[1..])
}

fn word(out: &mut Vec<u8>, flag: u8, token: &[u8]) {
    out.extend_from_slice(&[b' ', flag]);
    out.extend_from_slice(token);
}

fn number(out: &mut Vec<u8>, flag: u8, value: u64) {
    out.extend_from_slice(&[b' ', flag]);
    write_number(out, value);
}
