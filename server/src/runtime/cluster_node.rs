//! The node of a cluster, as the shared state uses it.
//!
//! Not here: the node itself (`node`).

use std::path::Path;

use engine::Now;
use tollgate_limits::LimitsError;

/// This process's node. No request on a key calls it.
pub(crate) trait ClusterNode: Send + Sync {
    /// Answers `stats cluster` and its variants. Returns false for any other topic.
    fn write_stats(&self, now: Now, topic: &[u8], out: &mut Vec<u8>) -> bool;

    /// Answers `config get cluster`. Returns false before the node has a control plane.
    fn write_config(&self, now: Now, out: &mut Vec<u8>) -> bool;

    /// Reads the limits file again and proposes its changes to all nodes.
    ///
    /// # Errors
    ///
    /// The file is faulty, or has lost all of its limits.
    fn reload_limits(&self, path: &Path) -> Result<(), LimitsError>;
}
