//! The context of a session's run: that of its commands, its share of the round, and the cluster.
//!
//! Not here: the execution of a command (`commands`), the state that a session keeps (`session`).

use engine::Now;

use super::is_large;
use crate::commands::context::ExecContext;
use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::node::Node;
use crate::node::router::Router;
use crate::runtime::service::Service;

/// The context of a run.
pub struct SessionContext<'a> {
    /// The context of its commands.
    pub exec: ExecContext<'a>,
    /// Requests that this client may still make in its turn.
    pub requests: usize,
    /// Bytes of large values that may still be answered in this round.
    pub(crate) large_left: usize,
    /// The way to other nodes, in a cluster.
    pub(crate) cluster: Option<ClusterContext<'a>>,
}

/// This process's node, and the worker's router to other nodes.
pub(crate) struct ClusterContext<'a> {
    pub(crate) node: &'a Node,
    pub(crate) router: &'a mut Router,
}

impl ClusterContext<'_> {
    /// Lends the context for a shorter time.
    pub(crate) fn reborrow(&mut self) -> ClusterContext<'_> {
        ClusterContext { node: self.node, router: &mut *self.router }
    }
}

impl<'a> SessionContext<'a> {
    /// Creates a context of worker 0, outside a cluster, with no bound on requests.
    #[must_use]
    pub fn new(
        service: &'a Service,
        counters: &'a Counters,
        now: Now,
        active_limits: &'a ActiveLimits,
        scratch: &'a mut Scratch,
    ) -> Self {
        let exec = ExecContext::new(service, counters, now, active_limits, scratch);
        Self { exec, requests: usize::MAX, large_left: usize::MAX, cluster: None }
    }

    /// Returns whether the value of a key must wait for the next round: it is large, and this
    /// round's share of large values is used up. The caller must hold no shard.
    pub(crate) fn must_wait(&self, hash: u64, key: &[u8]) -> bool {
        self.large_left == 0 && is_large(self.exec.service.shards().value_len(hash, key))
    }
}
