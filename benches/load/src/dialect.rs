//! The dialect of a server: its operations, and the protocol in which they are written.
//!
//! Here: one variant for each. Not here: requests and replies as bytes (`wire`).

use crate::keys::Space;
use crate::op::Op;

/// The verbs of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// memcached's text, and Tollgate's own verbs.
    #[default]
    Tollgate,
    /// memcached's text.
    Memcached,
    /// The counting part of memcached's text: the program `floor`.
    Floor,
    /// RESP, with limits as Lua scripts.
    Redis,
    /// RESP, like [`Dialect::Redis`]. `WAIT 1` ends each burst, so a replica has acknowledged it.
    RedisWait,
    /// RESP, with `CL.THROTTLE` of the module redis-cell.
    RedisCell,
    /// RESP, with `THROTTLE` and nothing else.
    Throttlecrab,
}

impl Dialect {
    /// All dialects, by their names on the command line.
    pub const NAMED: [(&str, Self); 6] = [
        ("tollgate", Self::Tollgate),
        ("memcached", Self::Memcached),
        ("floor", Self::Floor),
        ("redis", Self::Redis),
        ("redis-cell", Self::RedisCell),
        ("throttlecrab", Self::Throttlecrab),
    ];

    /// Whether the dialect is RESP.
    #[must_use]
    pub const fn is_resp(self) -> bool {
        matches!(self, Self::Redis | Self::RedisWait | Self::RedisCell | Self::Throttlecrab)
    }

    /// Whether each burst of requests ends with one that waits for a replica.
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(self, Self::RedisWait)
    }

    /// Whether the dialect has a verb for `op`.
    #[must_use]
    pub const fn speaks(self, op: Op) -> bool {
        match self {
            Self::Tollgate => true,
            Self::Memcached => !op.is_ours(),
            Self::Floor => matches!(
                op,
                Op::Incr { space: Space::Counter }
                    | Op::Get { space: Space::Counter, .. }
                    | Op::Fill { space: Space::Counter, exptime: 0 }
            ),
            Self::Redis | Self::RedisWait => match op {
                Op::Take { space } => matches!(space, Space::Bucket | Space::Window),
                // A limit's state cannot be read as the count of its calls.
                Op::Get { space, .. } => matches!(space, Space::Counter | Space::Value),
                _ => !op.is_ours(),
            },
            Self::RedisCell | Self::Throttlecrab => {
                matches!(op, Op::Take { space: Space::Bucket })
            }
        }
    }

    /// The number of requests in a batch when keys are created.
    ///
    /// throttlecrab writes each reply separately, and Nagle's algorithm holds back all but the
    /// first: a batch of any size takes it 40 ms.
    #[must_use]
    pub const fn filling_pipeline(self) -> u32 {
        if matches!(self, Self::Throttlecrab) { 1 } else { 32 }
    }
}

/// An operation in a server's dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The dialect, which [`speaks`](Dialect::speaks) the operation.
    pub dialect: Dialect,
}

#[cfg(test)]
mod tests {
    use super::Dialect;
    use crate::keys::Space;
    use crate::op::{KINDS, Op};

    #[test]
    fn every_server_has_some_of_the_kinds() {
        let kinds = |dialect: Dialect| {
            let spoken = KINDS.iter().filter(move |kind| dialect.speaks(kind.op));
            spoken.map(|kind| kind.name).collect::<Vec<_>>()
        };
        assert_eq!(kinds(Dialect::Tollgate).len(), KINDS.len());
        assert!(kinds(Dialect::Memcached).iter().all(|name| !name.starts_with("take")));
        for name in ["incr", "get", "set", "get100", "take-bucket", "take-window"] {
            assert!(kinds(Dialect::Redis).contains(&name), "{name}");
        }
        for dialect in [Dialect::RedisCell, Dialect::Throttlecrab] {
            assert_eq!(kinds(dialect), ["take-bucket", "take-hot"]);
        }
        assert!(kinds(Dialect::Floor).iter().all(|name| {
            ["incr", "get"].iter().any(|verb| name.starts_with(verb)) && *name != "get-value"
        }));
        assert!(!Dialect::Redis.speaks(Op::Get { space: Space::Bucket, keys: 1 }));
        for (exptime, has_it) in [(0, true), (60, false)] {
            let fill = Op::Fill { space: Space::Counter, exptime };
            assert_eq!(Dialect::Floor.speaks(fill), has_it);
        }
    }
}
