//! Memory that a worker's requests reuse in turn, so that none has to allocate.
//!
//! Not here: the contents.

use std::cell::Cell;

use engine::IdCopy;

use crate::commands::multi_key::{ChargeScratch, ChargeSet};
use crate::commands::policy_cache::PolicyCache;

/// The scratch memory of one worker.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Counted keys of the requests of a batch.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Counted keys of one request with several keys.
    pub(crate) more_keys: Vec<Vec<u8>>,
    /// The counted key of a request whose override is prefetched.
    pub(crate) prefetched_key: Vec<u8>,
    pub(crate) charges: ChargeSet,
    pub(crate) charge_scratch: ChargeScratch,
    pub(crate) policy_cache: PolicyCache,
    /// The limit state that a take decides on.
    pub(crate) state: Vec<u8>,
    /// The id whose reply was cached last, until it is copied to the backups of its key.
    pub(crate) kept_id: Cell<Option<IdCopy>>,
}
