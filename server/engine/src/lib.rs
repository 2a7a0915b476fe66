//! The counters and items behind Tollgate: state, time and command in, outcome out.
//!
//! Here: one shard of the store and what each command does to it. Not here: bytes on the wire
//! (`protocol`), locks, clocks and sockets (`server`).
//!
//! ```
//! use std::sync::Arc;
//! use engine::{Budget, Engine, KeyHasher, Now, Options};
//! # use tollgate_engine as engine;
//! use protocol::{Command, Exptime, Key, Operation, Outcome};
//!
//! let hasher = KeyHasher::new([1, 2, 3, 4]);
//! let budget = Arc::new(Budget::new(64 << 20));
//! let mut engine = Engine::new(hasher.clone(), budget, Options::default());
//! let key = Key::plain(b"hits").expect("four bytes are a key");
//! let command = Command { key, operation: Operation::Touch(Exptime(60)) };
//! let outcome = engine.apply(Now::at_ms(1000), hasher.hash(b"hits"), &command);
//! assert_eq!(outcome, Outcome::NotFound);
//! ```

mod apply;
mod arena;
mod bound;
mod budget;
mod copy;
mod flushed;
mod holders;
mod ids;
mod incrx;
mod index;
mod item;
mod lease;
pub mod limit;
mod limited;
mod placer;
mod policies;
mod prefetch;
mod record;
pub mod share;
mod store;
mod time;
mod undo;

pub use apply::{Engine, InPlace, Options};
pub use bound::{added, adding, counted, taking, undecided};
pub use budget::{Budget, Reach};
pub use copy::{Cursor, ItemMark, PutError};
pub use ids::{ID_KEPT_MS, IdCopy, IdCursor, IdHash, IdPartition, Ids, KeyChange, RepeatedAnswer};
pub use lease::{
    LEASE_CLIENTS_MAX, LEASE_TTL_DEFAULT, LEASE_TTL_MAX, LeaseAsk, Leased, is_leasable,
};
pub use limited::{Facts, GivenHold, HOLDS_MAX, Judgement, LimitRecord, Limited, SetUsed, Take};
pub use placer::{HashRange, KeyHasher, Place, Placer};
pub use policies::Rule;
pub use prefetch::{CACHE_LINE_BYTES, prefetch, prefetch_for_write};
pub use record::{Record, SnapshotRecord};
pub use store::{EVICTIONS_MAX, Losses};
pub use time::{Nanos, Now};
pub use undo::Saved;
