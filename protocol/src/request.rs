//! The requests of a client.
//!
//! Here: one type per shape of command, with the client's numbers as written. Not here: their
//! spelling on the wire (`classic`, `meta`, `native`), their effect (`engine`).

mod native;

pub use native::{
    CasCondition, Costs, IncrX, Lease, Native, PolicyArg, Slide, Take, TakeMany, Ttl, TtlMode,
};

use crate::key::Key;
use crate::text::word;

/// A request, borrowing from the read buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// `get`, `gets`, `gat`, `gats`: the reply has one block for every key found, then `END`.
    Retrieve {
        /// The keys, in order, repeated ones included.
        keys: Keys<'a>,
        /// Whether the reply includes the cas unique (`gets`, `gats`).
        with_cas: bool,
        /// The new exptime (`gat`, `gats`).
        touch: Option<Exptime>,
    },
    /// A command on one key.
    Command {
        /// The command.
        command: Command<'a>,
        /// The form of the reply.
        form: Form<'a>,
    },
    /// `takem`: takes from each of several keys, or from none.
    TakeMany {
        /// The keys, and the units of each.
        many: TakeMany<'a>,
        /// Whether the request has `noreply`.
        quiet: bool,
    },
    /// A command on no key.
    Admin {
        /// The command.
        admin: Admin<'a>,
        /// Whether the request has `noreply`.
        quiet: bool,
    },
}

/// A command on one key, as the engine applies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command<'a> {
    /// The item's key.
    pub key: Key<'a>,
    /// The operation on the item.
    pub operation: Operation<'a>,
}

/// An operation on one item. The classic verbs are the meta verbs with fewer options.
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
    /// `me`: reads the item without counting as an access.
    Inspect,
    /// A store with a value that exceeds the bound.
    TooLarge {
        /// Whether the verb is `set` or `ms`: memcached then drops the existing item, because the
        /// client must not go on reading the value that it meant to replace.
        drop: bool,
    },
    /// A native verb.
    Native(Native<'a>),
}

/// An exptime as the client wrote it: 0 never, up to 30 days relative, above that absolute Unix
/// time, negative at once. The engine, which has the time, resolves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exptime(pub i32);

impl Exptime {
    /// No deadline: the item stays until it is removed.
    pub const NEVER: Self = Self(0);
}

/// Options of a retrieval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Get {
    /// `T`, `gat`: set this exptime on a hit.
    pub touch: Option<Exptime>,
    /// `N`: on a miss, create an empty item with this exptime.
    pub vivify: Option<Exptime>,
    /// `R`: win the right to recache if fewer seconds than this remain.
    pub recache: Option<i32>,
    /// Whether `T` stands before `R`, which then compares with the new exptime: memcached processes
    /// both in their order.
    pub touch_is_first: bool,
    /// `C`: omit the value if the item still has this cas unique.
    pub unless_cas: Option<u64>,
    /// `E`: the cas unique of a vivified item.
    pub new_cas: Option<u64>,
    /// `u`: do not count as an access.
    pub no_bump: bool,
    /// Whether the key arrived in base64: a vivified item keeps this mark.
    pub base64: bool,
    /// Whether the request may win the right to recache: only `mg` may, because only its reply can
    /// report it.
    pub may_win: bool,
}

/// The condition of a store on the existing item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetMode {
    /// Store in any case.
    Set,
    /// Store only if there is no item.
    Add,
    /// Store only if there is an item.
    Replace,
    /// Append to the existing value.
    Append,
    /// Prepend to the existing value.
    Prepend,
}

/// A store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set<'a> {
    /// The condition on the existing item.
    pub mode: SetMode,
    /// The client's 32 bits.
    pub client_flags: u32,
    /// The exptime of the item.
    pub exptime: Exptime,
    /// The data block.
    pub value: &'a [u8],
    /// `cas`, `C`: store only if the item has this cas unique.
    pub compare_cas: Option<u64>,
    /// `E`: the cas unique to set instead of the next one.
    pub new_cas: Option<u64>,
    /// `I`: accept a cas unique older than the item's, and mark the item stale.
    pub invalidate: bool,
    /// `N` with append or prepend: create a missing item with this exptime.
    pub vivify: Option<Exptime>,
    /// Whether the key arrived in base64: the item keeps this mark.
    pub base64: bool,
}

impl<'a> Set<'a> {
    /// Returns a store without conditions beyond its mode.
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

/// A deletion; with `stale` or `drop_value`, the change that the meta protocol defines instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delete {
    /// `C`: delete only if the item has this cas unique.
    pub compare_cas: Option<u64>,
    /// `E`: the cas unique to set on an item that stays.
    pub new_cas: Option<u64>,
    /// `I`: mark the item stale instead of deleting it.
    pub stale: bool,
    /// `T`: with `I` or `x`, the new exptime.
    pub exptime: Option<Exptime>,
    /// `x`: replace the item by one without value, which has no deadline unless `T` sets one.
    pub drop_value: bool,
    /// `F`: the client flags of the item that `x` leaves.
    pub client_flags: u32,
}

/// An increment or decrement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arithmetic {
    /// Whether to subtract (down to 0) instead of adding (wraps at 2^64).
    pub decrement: bool,
    /// The amount.
    pub delta: u64,
    /// `N`: create a missing counter with this exptime.
    pub vivify: Option<Exptime>,
    /// `J`: the value of a created counter.
    pub initial: u64,
    /// `T`: the new exptime of an existing counter.
    pub exptime: Option<Exptime>,
    /// `C`: count only if the item has this cas unique.
    pub compare_cas: Option<u64>,
    /// `E`: the cas unique to set instead of the next one.
    pub new_cas: Option<u64>,
    /// Whether the key arrived in base64: a created counter keeps this mark.
    pub base64: bool,
}

impl Arithmetic {
    /// Returns a plain increment or decrement by `delta`.
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

/// The form of the reply to a command on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<'a> {
    /// The texts of the classic verbs.
    Text {
        /// Whether the request has `noreply`.
        quiet: bool,
    },
    /// The codes of the meta verbs.
    Meta {
        /// Whether the request has `q`: the ordinary reply is suppressed.
        quiet: bool,
        /// Whether the key arrived in base64.
        base64: bool,
        /// The key as it stands on the line.
        key_word: &'a [u8],
        /// The flags as they stand on the line: the reply keeps their order.
        flags: &'a [u8],
        /// `P`: the unparsed policy token for this call. memcached ignores the flag, as does every
        /// command that does not read this field.
        policy: Option<&'a [u8]>,
    },
    /// The lines of the native verbs.
    Native {
        /// Whether the request has `noreply`.
        quiet: bool,
    },
}

impl Form<'_> {
    /// Whether the request has `noreply` or `q`.
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
    /// A command that tunes parts of memcached which this server does not have: `slabs automove`,
    /// `lru mode`, `lru_crawler sleep` and others. Accepted without effect.
    Machinery,
    /// `watch`.
    Watch,
    /// `lru_crawler metadump` or `mgdump`.
    Dump,
    /// `quit`.
    Quit,
    /// `mn`: the end of a quiet batch.
    Noop,
    /// `config get cluster`: lists the nodes in `ElastiCache`'s format.
    ConfigGet,
    /// `cluster ...`: the operator's command to the whole cluster.
    Cluster(ClusterVerb<'a>),
}

/// The operator's commands to the whole cluster. The server resolves the name of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterVerb<'a> {
    /// `cluster drain <node>`: the node hands its partitions over and leaves.
    Drain(&'a [u8]),
    /// `cluster forget <node>`: this incarnation of the node is dead and does not return.
    Forget(&'a [u8]),
    /// `cluster set <name> <value>`: a setting of the whole cluster.
    Set {
        /// The name: at most 250 bytes.
        name: &'a [u8],
        /// The value: not empty.
        value: &'a [u8],
    },
    /// `cluster limits`: prints all limits, as a limits file.
    Limits,
    /// `cluster limit <name> <bytes> [before=<name>]` and a block: sets a limit to the text in the
    /// block.
    Limit {
        /// The name: at most 250 bytes.
        name: &'a [u8],
        /// The limit before which the new one is inserted.
        before: Option<&'a [u8]>,
        /// The text of the limit: at most [`LIMIT_BYTES_MAX`](crate::LIMIT_BYTES_MAX) bytes.
        text: &'a [u8],
    },
    /// `cluster unlimit <name>`: removes the limit.
    Unlimit(&'a [u8]),
}

/// The topic of `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatsTopic<'a> {
    /// The general counters.
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
    /// Resets the counters.
    Reset,
    /// `detail on` or `detail off`.
    Detail(bool),
    /// `detail dump`.
    DetailDump,
    /// Keys of a class: `cachedump <class> <count>`.
    CacheDump {
        /// The slab class.
        class: u32,
        /// Most keys to list; 0 for all that fit.
        count: u32,
    },
    /// A topic of our own or an unknown one: the server decides.
    Other(&'a [u8]),
}

/// The keys of a retrieval or of `takem`: one or more words of one line, each a valid key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'a>(&'a [u8]);

impl<'a> Keys<'a> {
    /// Returns the keys in `words`, the rest of a line; `None` if it is empty or a word is not a
    /// valid key.
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

    /// Returns the keys from byte `offset` of the list on, an offset that [`Keys::iter`] returned:
    /// a reply too long for one write continues there.
    #[must_use]
    pub fn skip(self, offset: usize) -> Self {
        Self(self.0.get(offset..).unwrap_or_default())
    }

    /// Returns the first key.
    #[must_use]
    pub fn first(self) -> Option<&'a [u8]> {
        Words(self.0).next_long()
    }

    /// Returns the key if it is the only one.
    #[inline]
    #[must_use]
    pub fn only(self) -> Option<Key<'a>> {
        let mut words = Words(self.0);
        let key = words.next_long()?;
        if words.next().is_some() {
            return None;
        }
        Key::plain(key)
    }

    /// Iterates over the keys, each with the offset just behind it.
    pub fn iter(self) -> impl Iterator<Item = (Key<'a>, usize)> {
        let whole = self.0;
        let mut words = Words(whole);
        std::iter::from_fn(move || {
            let key = Key::plain(words.next_long()?)?;
            Some((key, whole.len() - words.0.len()))
        })
    }
}

/// The words of a line, separated by blanks.
#[derive(Debug, Clone)]
pub(crate) struct Words<'a>(pub(crate) &'a [u8]);

impl<'a> Words<'a> {
    /// Returns the unread part of the line.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Like `next`, but faster for words of more than about ten bytes, as keys and policies are.
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
        let (rest, word) = word(self.0).ok()?;
        self.0 = rest;
        Some(word)
    }
}
