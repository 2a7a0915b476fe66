//! The effect of commands on a shard.
//!
//! Here: limited keys, quota leases, `incrx`. Not here: the storage of items (`store`), the decision
//! of a limit (`algorithms`).

mod incrx;
pub(crate) mod lease;
pub(crate) mod limited_keys;
pub(crate) mod take;
