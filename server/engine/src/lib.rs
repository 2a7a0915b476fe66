//! The counters and items behind Tollgate: state, time and command in, outcome out.
//!
//! Here: one shard of the store and the effect of each command on it. Not here: bytes on the wire
//! (`protocol`), locks, clocks and sockets (`server`).
//!
//! ```
//! use std::sync::Arc;
//! use engine::{MemoryCap, Engine, KeyHasher, Now, EngineOptions};
//! # use tollgate_engine as engine;
//! use protocol::{Command, Exptime, Key, Operation, Outcome};
//!
//! let hasher = KeyHasher::new([1, 2, 3, 4]);
//! let memory_cap = Arc::new(MemoryCap::new(64 << 20));
//! let mut engine = Engine::new(hasher.clone(), memory_cap, EngineOptions::default());
//! let key = Key::plain(b"hits").expect("four bytes are a key");
//! let command = Command { key, operation: Operation::Touch(Exptime(60)) };
//! let outcome = engine.apply(Now::at_ms(1000), hasher.hash(b"hits"), &command);
//! assert_eq!(outcome, Outcome::NotFound);
//! ```

pub mod algorithms;
mod commands;
mod engine;
pub mod fair_share;
mod flushed;
mod hasher;
mod idempotency;
mod item_codec;
mod item_mark;
mod policy_table;
mod prefetch;
mod rollback;
mod snapshot;
mod step_count;
mod store;
mod time;

pub use commands::fast::FastResult;
pub use commands::lease::{
    LEASE_CLIENTS_MAX, LEASE_TTL_DEFAULT, LEASE_TTL_MAX, LeaseParams, LeaseResult, is_leasable,
};
pub use commands::limited_keys::{
    added, adding, counted, refused_count, taking, undecided, units, usage,
};
pub use commands::take::{
    Decider, ForeignHold, HOLDS_MAX, Judged, Judgement, SetUsage, TakeInfo, TakeParams, TakeResult,
};
pub use engine::{Engine, EngineOptions};
pub use hasher::{HashRange, IdHash, KeyHasher, PartitionPrefix, PartitionTimes, Partitioner};
pub use idempotency::{
    CachedReply, ID_KEPT_MS, IdCopy, IdCursor, IdPartition, IdempotencyCache, KeyChange,
};
pub use item_codec::{LimitCopy, PartitionCursor, PutError};
pub use item_mark::ItemMark;
pub use policy_table::{PolicyRef, inline as split_policy, put_inline as put_policy};
pub use prefetch::{CACHE_LINE_BYTES, prefetch, prefetch_for_write};
pub use rollback::SavedState;
pub use snapshot::{ItemRecord, LimitRecord, SnapshotRecord};
pub use step_count::{LOOKUPS, StepCount};
pub use store::memory_cap::{EvictionScope, MemoryCap};
pub use store::{EVICTIONS_MAX, EvictionStats};
pub use time::{Nanos, Now};
