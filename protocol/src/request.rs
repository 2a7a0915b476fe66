//! What a client can ask.
//!
//! Here: one type per shape of command, holding the client's numbers as written. Not here: how
//! they are spelt on the wire (`classic`, `meta`, `native`), what they do (`engine`).

mod native;

pub use native::{CasCondition, IncrX, Lease, Native, PolicyArg, Slide, Take, Ttl, TtlMode};

use crate::key::Key;

/// A request, borrowing from the read buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`: one answer block for every key that is there, then `END`.
    Retrieve {
        /// The keys, in order, repeated ones included.
        keys: Keys<'a>,
        /// Whether the cas unique is answered (`gets`, `gats`).
        with_cas: bool,
        /// The new exptime (`gat`, `gats`).
        touch: Option<Exptime>,
    },
    /// A command on one key.
    Command {
        /// What to do.
        command: Command<'a>,
        /// How to answer.
        form: Form<'a>,
    },
    /// `takem`: one cost from several keys, from all or none.
    TakeMany {
        /// Units from each key, 0 to [`COUNT_MAX`](crate::COUNT_MAX).
        cost: u64,
        /// The keys, at most [`TAKE_KEYS_MAX`](crate::TAKE_KEYS_MAX), repeated ones included.
        keys: Keys<'a>,
        /// Look, take nothing.
        peek: bool,
        /// What marks a repeat of this request.
        id: Option<&'a [u8]>,
        /// `noreply` was asked.
        quiet: bool,
    },
    /// A command on no key.
    Admin {
        /// What to do.
        admin: Admin<'a>,
        /// `noreply` was asked.
        quiet: bool,
    },
}

/// A command on one key: what the engine applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command<'a> {
    /// The item's key.
    pub key: Key<'a>,
    /// What to do with the item.
    pub operation: Operation<'a>,
}

/// What to do with one item. The classic verbs are the meta verbs with fewer options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation<'a> {
    /// `get`, `gat`, `mg`.
    Get(Get),
    /// `set` and its kin, `ms`.
    Set(Set<'a>),
    /// `delete`, `md`.
    Delete(Delete),
    /// `incr`, `decr`, `ma`.
    Arithmetic(Arithmetic),
    /// `touch`.
    Touch(Exptime),
    /// `me`: look without leaving a trace.
    Inspect,
    /// A store whose value is over the bound.
    TooLarge {
        /// It was `set` or `ms`: memcached then drops the item that was there, because the client
        /// must not go on reading what it meant to replace.
        drop: bool,
    },
    /// A native verb.
    Native(Native<'a>),
}

/// An exptime as the client wrote it: 0 never, up to 30 days relative, above that absolute Unix
/// time, negative at once. Resolved by the engine, which knows the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exptime(pub i32);

impl Exptime {
    /// The item stays until it is removed.
    pub const NEVER: Self = Self(0);
}

/// Options of a retrieval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Get {
    /// `T`, `gat`: set this exptime on a hit.
    pub touch: Option<Exptime>,
    /// `N`: on a miss, leave an empty item with this exptime.
    pub vivify: Option<Exptime>,
    /// `R`: win the right to recache when fewer seconds than this remain.
    pub recache: Option<i32>,
    /// `C`: leave the value out when the item still has this cas unique.
    pub unless_cas: Option<u64>,
    /// `E`: the cas unique of a vivified item.
    pub new_cas: Option<u64>,
    /// `u`: do not count as an access.
    pub no_bump: bool,
    /// The key came in base64: a vivified item remembers it.
    pub base64: bool,
    /// It may win the right to recache: `mg`, whose answer can say so.
    pub may_win: bool,
}

/// How a store treats an item that is there, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// Store in any case.
    Set,
    /// Store only where there is none.
    Add,
    /// Store only where there is one.
    Replace,
    /// Put after the value that is there.
    Append,
    /// Put before the value that is there.
    Prepend,
}

/// A store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set<'a> {
    /// What an existing item means.
    pub mode: SetMode,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// When the item ends.
    pub exptime: Exptime,
    /// The data block.
    pub value: &'a [u8],
    /// `cas`, `C`: store only when the item has this cas unique.
    pub compare_cas: Option<u64>,
    /// `E`: the cas unique to give instead of the next one.
    pub new_cas: Option<u64>,
    /// `I`: accept an older cas than the item's, and mark the item stale.
    pub invalidate: bool,
    /// `N` with append or prepend: create a missing item with this exptime.
    pub vivify: Option<Exptime>,
    /// The key came in base64: the item remembers it.
    pub base64: bool,
}

impl<'a> Set<'a> {
    /// A store without conditions beyond its mode.
    #[must_use]
    pub fn plain(mode: SetMode, client_flags: u32, exptime: Exptime, value: &'a [u8]) -> Self {
        Self {
            mode,
            client_flags,
            exptime,
            value,
            compare_cas: None,
            new_cas: None,
            invalidate: false,
            vivify: None,
            base64: false,
        }
    }
}

/// A deletion, or with `stale` and `drop_value` what the meta protocol makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delete {
    /// `C`: only when the item has this cas unique.
    pub compare_cas: Option<u64>,
    /// `E`: the cas unique to give to an item that stays.
    pub new_cas: Option<u64>,
    /// `I`: mark the item stale instead of deleting it.
    pub stale: bool,
    /// `T`: with `I` or `x`, the new exptime.
    pub exptime: Option<Exptime>,
    /// `x`: leave a new item without value, which never ends unless `T` says when.
    pub drop_value: bool,
    /// `F`: the client flags of the item that `x` leaves.
    pub client_flags: u32,
}

/// An increment or decrement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    /// Down (floor 0) instead of up (wraps at 2^64).
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// `N`: create a missing counter with this exptime.
    pub vivify: Option<Exptime>,
    /// `J`: the value of a created counter.
    pub initial: u64,
    /// `T`: the new exptime of an existing counter.
    pub exptime: Option<Exptime>,
    /// `C`: only when the item has this cas unique.
    pub compare_cas: Option<u64>,
    /// `E`: the cas unique to give instead of the next one.
    pub new_cas: Option<u64>,
    /// The key came in base64: a created counter remembers it.
    pub base64: bool,
}

impl Arithmetic {
    /// Up or down by `delta`, and nothing else.
    #[must_use]
    pub fn plain(delta: u64, decrement: bool) -> Self {
        Self {
            decrement,
            delta,
            vivify: None,
            initial: 0,
            exptime: None,
            compare_cas: None,
            new_cas: None,
            base64: false,
        }
    }
}

/// How a command on one key is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// In the words of the classic verbs, or silently.
    Text {
        /// `noreply` was asked.
        quiet: bool,
    },
    /// In the codes of the meta verbs.
    Meta {
        /// `q` was asked: the ordinary answer is left out.
        quiet: bool,
        /// The key came in base64.
        base64: bool,
        /// The key as it stood on the line.
        key_word: &'a [u8],
        /// The flags as they stood on the line: answered in their order.
        flags: &'a [u8],
        /// `P`: the policy token for this call, not parsed. memcached ignores the flag, and so
        /// does everyone who does not look here.
        policy: Option<&'a [u8]>,
    },
    /// In the lines of the native verbs, or silently.
    Native {
        /// `noreply` was asked.
        quiet: bool,
    },
}

impl Form<'_> {
    /// Whether `noreply` or `q` was asked.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let (Self::Text { quiet } | Self::Meta { quiet, .. } | Self::Native { quiet }) = *self;
        quiet
    }
}

/// A command on no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin<'a> {
    /// `flush_all [delay]`: the delay as an exptime.
    FlushAll(Exptime),
    /// `verbosity <level>`.
    Verbosity(u32),
    /// `version`.
    Version,
    /// `stats [topic]`.
    Stats(StatsTopic<'a>),
    /// `cache_memlimit <megabytes>`.
    CacheMemlimit(u64),
    /// `shutdown [graceful]`.
    Shutdown,
    /// A command to machinery that memcached has and this server has not: `slabs automove`,
    /// `lru mode`, `lru_crawler sleep` and their like. Heard, without effect.
    Machinery,
    /// `watch`.
    Watch,
    /// `lru_crawler metadump` or `mgdump`.
    Dump,
    /// `quit`.
    Quit,
    /// `mn`: the end of a quiet batch.
    Noop,
    /// `config get cluster`: which nodes there are, as `ElastiCache` tells it.
    ConfigGet,
    /// `cluster ...`: a word of the operator to the whole cluster.
    Cluster(ClusterVerb<'a>),
}

/// What an operator asks of the whole cluster. How a node is named is the server's to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterVerb<'a> {
    /// `cluster drain <node>`: the node is to give away what it holds, and go.
    Drain(&'a [u8]),
    /// `cluster forget <node>`: the node is dead and will not come back in this life.
    Forget(&'a [u8]),
    /// `cluster set <name> <value>`: a setting of the whole cluster.
    Set {
        /// Its name: at most 250 bytes.
        name: &'a [u8],
        /// Its value: not empty.
        value: &'a [u8],
    },
    /// `cluster limits`: all limits, as a limits file.
    Limits,
    /// `cluster limit <name> <bytes> [before=<name>]` and a block: a limit becomes what the block says.
    Limit {
        /// Its name: at most 250 bytes.
        name: &'a [u8],
        /// The limit that it is to come right before.
        before: Option<&'a [u8]>,
        /// The limit itself: at most [`LIMIT_BYTES_MAX`](crate::LIMIT_BYTES_MAX) bytes.
        text: &'a [u8],
    },
    /// `cluster unlimit <name>`: there is no such limit any more.
    Unlimit(&'a [u8]),
}

/// What `stats` is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsTopic<'a> {
    /// The general figures.
    General,
    /// The configuration in force.
    Settings,
    /// Items by class.
    Items,
    /// Memory by class.
    Slabs,
    /// Sizes of items.
    Sizes,
    /// Connections.
    Conns,
    /// Zero the counters.
    Reset,
    /// `detail on` or `detail off`.
    Detail(bool),
    /// `detail dump`.
    DetailDump,
    /// Keys of a class: `cachedump <class> <count>`.
    CacheDump {
        /// The class asked for.
        class: u32,
        /// At most so many keys; 0 for all that fit.
        count: u32,
    },
    /// A topic of our own or none at all: the server decides.
    Other(&'a [u8]),
}

/// The keys of a retrieval or of `takem`: one to many words of one line, each a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'a>(&'a [u8]);

impl<'a> Keys<'a> {
    /// The keys on `words`, the rest of a line; `None` when there is none or one is not a key.
    pub(crate) fn new(words: &'a [u8]) -> Option<Self> {
        let keys = Self(words);
        let mut count = 0_usize;
        let mut words = Words(words);
        while let Some(word) = words.next_long() {
            Key::plain(word)?;
            count += 1;
        }
        (count > 0).then_some(keys)
    }

    /// The keys from byte `offset` of the list on, as [`Keys::iter`] told it: how an answer too
    /// long for one write is gone on with.
    #[must_use]
    pub fn skip(self, offset: usize) -> Self {
        Self(self.0.get(offset..).unwrap_or_default())
    }

    /// The first key.
    #[must_use]
    pub fn first(self) -> Option<&'a [u8]> {
        Words(self.0).next_long()
    }

    /// The key, where it is the only one.
    #[must_use]
    pub fn only(self) -> Option<Key<'a>> {
        let mut words = Words(self.0);
        let key = Key::plain(words.next_long()?);
        if words.next().is_none() { key } else { None }
    }

    /// Each key, with the offset just after it.
    pub fn iter(self) -> impl Iterator<Item = (Key<'a>, usize)> {
        let whole = self.0;
        let mut words = Words(whole);
        std::iter::from_fn(move || {
            let key = Key::plain(words.next_long()?)?;
            Some((key, whole.len() - words.0.len()))
        })
    }
}

/// The words of a line: what stands between blanks.
#[derive(Debug, Clone)]
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl<'a> Words<'a> {
    /// What is left of the line.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// As `next`, quicker for a word of more than some ten bytes, as keys and policies are.
    pub(crate) fn next_long(&mut self) -> Option<&'a [u8]> {
        let start = self.0.iter().position(|byte| *byte != b' ')?;
        let rest = &self.0[start..];
        let (word, rest) = rest.split_at(memchr::memchr(b' ', rest).unwrap_or(rest.len()));
        self.0 = rest;
        Some(word)
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (rest, word) = crate::decode::word(self.0).ok()?;
        self.0 = rest;
        Some(word)
    }
}
