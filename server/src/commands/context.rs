//! The context in which a command runs, and the outcome of a request.
//!
//! Not here: a client's share of a round (`session`), other nodes (`node`).

use engine::Now;

use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::runtime::connections::ConnectionInfo;
use crate::runtime::service::Service;
use crate::shards::{CommandShards, ObservedKey};

/// The context of a command.
pub struct ExecContext<'a> {
    /// The state all clients share.
    pub service: &'a Service,
    /// This worker's counters.
    pub counters: &'a Counters,
    /// The time of the batch.
    pub now: Now,
    /// This worker's index.
    pub worker: usize,
    /// The limits of this round.
    pub active_limits: &'a ActiveLimits,
    /// The worker's scratch memory.
    pub scratch: &'a mut Scratch,
    /// The client, if it has a connection.
    pub(crate) client: Option<&'a ConnectionInfo>,
    /// Charge only the key itself, not the parents of its limit.
    pub(crate) alone: bool,
    /// The key that a node's operation may change.
    pub(crate) observed: Option<&'a ObservedKey<'a>>,
}

impl<'a> ExecContext<'a> {
    /// Creates a context of worker 0, without a client.
    #[must_use]
    pub fn new(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        active_limits: &'a ActiveLimits,
        scratch: &'a mut Scratch,
    ) -> Self {
        let (worker, client, alone, observed) = (0, None, false, None);
        Self { service, counters, now, worker, active_limits, scratch, client, alone, observed }
    }

    /// Creates a context for one key in a cluster; owners of the other keys charge those.
    pub(crate) fn of_key(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        active_limits: &'a ActiveLimits,
        scratch: &'a mut Scratch,
        worker: usize,
    ) -> Self {
        Self { worker, alone: true, ..Self::new(service, counters, now, active_limits, scratch) }
    }

    /// The shards, for commands.
    pub(crate) fn shards(&self) -> CommandShards<'a> {
        CommandShards::new(self.service.shards(), self.observed)
    }

    /// Prefetches the memory that the keys of these hashes need.
    pub(crate) fn prefetch(&self, hashes: impl Iterator<Item = u64> + Clone) {
        self.service.shards().prefetch(hashes);
    }
}

/// The outcome of one request.
#[derive(Clone, Copy)]
pub(crate) enum RequestOutcome {
    Given,
    /// Partly answered: run the same request again once the replies are written.
    Partly,
    /// Run the same request again once outstanding replies are delivered.
    NotYet,
    /// Run the same request again after the other clients' turns.
    Later,
    /// Run the same request again at this time.
    Delayed(u64),
    Close,
}
