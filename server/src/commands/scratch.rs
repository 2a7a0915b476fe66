//! Memory that a worker's requests use one after the other, so that none has to allocate its own.
//!
//! Not here: what lies in it.

use std::cell::Cell;

use engine::IdCopy;

use crate::commands::multi_key::{ChargeScratch, ChargeSet};
use crate::commands::policy_cache::PolicyCache;

/// One per worker.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Counted keys of the requests of a batch.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Counted keys of one request with many.
    pub(crate) more_keys: Vec<Vec<u8>>,
    pub(crate) charges: ChargeSet,
    pub(crate) charge_scratch: ChargeScratch,
    pub(crate) policy_cache: PolicyCache,
    /// The state that a take decides on.
    pub(crate) state: Vec<u8>,
    /// The id whose answer was kept last: the copies of its key are to be told.
    pub(crate) kept_id: Cell<Option<IdCopy>>,
}
