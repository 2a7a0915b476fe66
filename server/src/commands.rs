//! Requests on items and limits: the effect of each verb on the store, and its reply.
//!
//! Not here: bytes of clients (`session`), owners of keys (`node`).

pub(crate) mod admin;
pub(crate) mod companions;
pub mod context;
pub(crate) mod decider;
pub(crate) mod decisions;
pub(crate) mod fast;
pub(crate) mod items;
pub(crate) mod limit_op;
mod limited_incrx;
pub(crate) mod limited_keys;
pub(crate) mod lookup;
pub(crate) mod multi_key;
pub(crate) mod native;
pub(crate) mod policy_cache;
pub(crate) mod replay;
pub mod scratch;
pub(crate) mod stats;
pub(crate) mod take_many;
pub(crate) mod verdict;
