//! The arguments of native verbs: words one after the other, options, and the errors in them.
//!
//! Not here: the arguments of each verb (`super`).

use crate::bounds::ID_BYTES_MAX;
use crate::error::ProtocolError;
use crate::key::Key;
use crate::number::{bounded_i64, strict_u64};
use crate::policy::{COUNT_MAX, duration_nanos};
use crate::request::{CasCondition, PolicyArg, Words};

pub(super) const BAD_KEY: &str = "key must be 1 to 250 bytes";
const BAD_CAS: &str = "cas must be an unsigned 64-bit number";
const BAD_ID: &str = "id must be 1 to 64 bytes";

/// The error texts of a verb: one for a missing argument, one for an invalid option.
pub(super) struct Usage {
    pub(super) arguments: &'static str,
    pub(super) options: &'static str,
}

pub(super) const TAKE: Usage = Usage {
    arguments: "missing argument, the line is take <key> <cost> <policy>|=<limit>|-",
    options: "unknown or repeated option, there are peek part wait=<duration> cas[=<n>] id=<token> \
              hold=<duration> debit info",
};
pub(super) const TAKE_MANY: Usage = Usage {
    arguments: "missing argument, the line is takem <cost>[,<cost>...] <key> <key> ...",
    options: "unknown or repeated option, there are peek wait=<duration> id=<token> each \
              info",
};
pub(super) const REFUND: Usage = Usage {
    arguments: "missing argument, the line is refund <key> <n>",
    options: "too many arguments, the line is refund <key> <n>",
};
pub(super) const SETTLE: Usage = Usage {
    arguments: "missing argument, the line is settle <key> <lease> <actual>",
    options: "too many arguments, the line is settle <key> <lease> <actual>",
};
pub(super) const RENEW: Usage = Usage {
    arguments: "missing argument, the line is renew <key> <lease> <duration>",
    options: "too many arguments, the line is renew <key> <lease> <duration>",
};
pub(super) const LEASE: Usage = Usage {
    arguments: "missing argument, the line is lease <key> <client> <want> <policy>|=<limit>|-",
    options: "unknown or repeated option, there are used=<n> unused=<n> weight=<n> ttl=<duration>",
};
pub(super) const INCRX: Usage = Usage {
    arguments: "missing argument, the line is incrx <key> <delta> <ttl>",
    options: "unknown or repeated option, there are init=<n> max=<n> min=<n> clamp \
              ttl=set|touch|keep signed cas[=<n>] id=<token>",
};
pub(super) const SLIDE: Usage = Usage {
    arguments: "missing argument, the line is slide <key> <n> <window>",
    options: "unknown or repeated option, there is slices=<n>",
};

/// The unread words behind a verb.
pub(super) struct Arguments<'a> {
    pub(super) verb: &'static str,
    pub(super) words: Words<'a>,
    pub(super) usage: &'static Usage,
}

impl<'a> Arguments<'a> {
    pub(super) fn bad(&self, why: &'static str) -> ProtocolError {
        ProtocolError::Native { verb: self.verb, why }
    }

    pub(super) fn word(&mut self) -> Result<&'a [u8], ProtocolError> {
        self.words.next().ok_or_else(|| self.bad(self.usage.arguments))
    }

    pub(super) fn long_word(&mut self) -> Result<&'a [u8], ProtocolError> {
        self.words.next_long().ok_or_else(|| self.bad(self.usage.arguments))
    }

    pub(super) fn key(&mut self) -> Result<Key<'a>, ProtocolError> {
        let word = self.long_word()?;
        Key::plain(word).ok_or(self.bad(BAD_KEY))
    }

    pub(super) fn count(&mut self, why: &'static str) -> Result<u64, ProtocolError> {
        let word = self.word()?;
        count(word).ok_or(self.bad(why))
    }

    pub(super) fn lease(&mut self) -> Result<u64, ProtocolError> {
        let word = self.word()?;
        strict_u64(word).ok_or(self.bad("lease must be an unsigned 64-bit number"))
    }

    pub(super) fn policy(&mut self) -> Result<PolicyArg<'a>, ProtocolError> {
        match self.long_word()? {
            b"-" => Ok(PolicyArg::Configured),
            b"=" => Err(self.bad("a limit is named as in =login")),
            [b'=', name @ ..] => Ok(PolicyArg::Named(name)),
            token => Ok(PolicyArg::Inline(token)),
        }
    }

    /// Reads the next option: its name, and its value if it has one.
    pub(super) fn option(&mut self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        let word = self.words.next()?;
        Some(match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], Some(&word[at + 1..])),
            None => (word, None),
        })
    }

    /// Checks that no words follow.
    pub(super) fn end(&mut self) -> Result<(), ProtocolError> {
        match self.words.next() {
            None => Ok(()),
            Some(_) => Err(self.bad(self.usage.options)),
        }
    }

    pub(super) fn cas(&self, value: Option<&[u8]>) -> Result<CasCondition, ProtocolError> {
        match value {
            None => Ok(CasCondition::Show),
            Some(word) => strict_u64(word).map(CasCondition::Compare).ok_or(self.bad(BAD_CAS)),
        }
    }

    pub(super) fn id(&self, token: &'a [u8]) -> Result<&'a [u8], ProtocolError> {
        let fits = (1..=ID_BYTES_MAX).contains(&token.len());
        fits.then_some(token).ok_or(self.bad(BAD_ID))
    }

    /// Parses a duration of at least a nanosecond.
    pub(super) fn nanos(&self, word: &[u8], why: &'static str) -> Result<u64, ProtocolError> {
        duration_nanos(word).filter(|nanos| *nanos > 0).ok_or(self.bad(why))
    }

    pub(super) fn wait(&self, word: &[u8]) -> Result<u64, ProtocolError> {
        let nanos = if word == b"0" { Some(0) } else { duration_nanos(word) };
        nanos.ok_or(self.bad("wait must be 0 or a duration such as 500ms, at most 366d"))
    }

    pub(super) fn configured(&self, word: &[u8]) -> Result<i64, ProtocolError> {
        signed(word).ok_or(
            self.bad(
                "init, max and min must be numbers from -9007199254740991 to 9007199254740991",
            ),
        )
    }
}

pub(super) fn count(word: &[u8]) -> Option<u64> {
    strict_u64(word).filter(|count| *count <= COUNT_MAX)
}

pub(super) fn signed(word: &[u8]) -> Option<i64> {
    bounded_i64(word, COUNT_MAX)
}
