//! The condition for the first limits of a node: until the map has them, the node serves no client.
//!
//! Here: the wait, its bound and its reasons. Not here: compiling the limits (`super`), giving the
//! map the limits of a file (`from_file`), the replies to clients meanwhile (`dispatch`).
//!
//! A new cluster gets its settings and limits from its founder one by one, and the mark `FOUNDED`
//! last. A map without the mark may lack limits, and their keys would be counted as plain ones.

use std::time::Duration;

use cluster::map::Map;
use cluster::map::command::{FOUNDED, LIMITS_SET};
use control::Control;
use tokio::time::timeout;

use super::super::Node;
use crate::runtime::service::Service;

/// The longest wait for the first limits. Ten thousand limits on a slow disk need a tenth of it.
const FIRST_LIMITS_MAX: Duration = Duration::from_mins(2);
/// A longer wait is logged.
const LOGGED_AFTER: Duration = Duration::from_secs(1);
/// Time between two looks while the map does not change: a refused file changes no map.
const LOOK: Duration = Duration::from_millis(100);

/// The founder has not stored all settings and limits of the cluster in the map.
const OF_CLUSTER: &str = "it waits for the first limits of the cluster";
/// The cluster's limits were never set, and this node has a limits file.
const OF_FILE: &str = "it waits until the cluster has the limits of its file";
/// The map has the limits; they are being compiled.
const COMPILING: &str = "it puts the limits in force";

/// The outcome of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitOutcome {
    /// The map has the first limits.
    InMap,
    /// Still waiting, for this reason.
    Waiting(&'static str),
    /// The wait was too long, and the limits of the map are as other nodes have them.
    Without(&'static str),
    /// The wait was too long, and no limit of this node's file can be in force.
    Failed(&'static str),
}

/// The reason why this map may lack limits. `is_file_pending`: the limits file of this node may
/// still come into a map without limits.
fn lacks(map: &Map, is_file_pending: bool) -> Option<&'static str> {
    let marks = &map.settings().others;
    if map.head().is_none() || !marks.contains_key(FOUNDED) {
        return Some(OF_CLUSTER);
    }
    (is_file_pending && !marks.contains_key(LIMITS_SET)).then_some(OF_FILE)
}

fn outcome(map: &Map, is_file_pending: bool, waited: Duration) -> WaitOutcome {
    match lacks(map, is_file_pending) {
        None => WaitOutcome::InMap,
        Some(reason) if waited < FIRST_LIMITS_MAX => WaitOutcome::Waiting(reason),
        Some(reason) if reason == OF_CLUSTER && is_file_pending => WaitOutcome::Failed(reason),
        Some(reason) => WaitOutcome::Without(reason),
    }
}

/// Waits until the map has the first limits, for [`FIRST_LIMITS_MAX`] at most. Returns false if the
/// node must not serve: the process ends then, with the reason.
pub(super) async fn until_in_map(service: &Service, node: &Node, control: &Control) -> bool {
    let mut watch = control.watch();
    let now_ns = || service.clock().now().mono.0;
    let begun_ns = now_ns();
    let mut is_logged = false;
    loop {
        let waited = Duration::from_nanos(now_ns().saturating_sub(begun_ns));
        match outcome(&control.map(), node.limits_file.is_pending(), waited) {
            WaitOutcome::InMap => return true,
            WaitOutcome::Waiting(reason) => {
                if waited >= LOGGED_AFTER && !std::mem::replace(&mut is_logged, true) {
                    tracing::warn!("no client is served yet: {reason}");
                }
            }
            WaitOutcome::Without(reason) => {
                tracing::error!(
                    seconds = waited.as_secs(),
                    "{reason} no longer: it serves with the limits that the cluster has now"
                );
                return true;
            }
            WaitOutcome::Failed(reason) => {
                node.limits_file.fail(&format!("for {} s {reason}", waited.as_secs()));
                return false;
            }
        }
        let _ = timeout(LOOK, watch.changed()).await;
    }
}

impl Node {
    /// The reason why this node serves no client yet, once it is in the map.
    pub(in super::super) fn awaited_limits(&self, map: &Map) -> Option<&'static str> {
        let reason = || lacks(map, self.limits_file.is_pending()).unwrap_or(COMPILING);
        self.keyspace().is_none().then(reason)
    }
}

#[cfg(test)]
mod tests {
    use cluster::map::MapCommand;
    use cluster::map::command::{Setting, YES};
    use cluster::placement::{Placement, Scheme};

    use super::*;

    /// A map with these marks.
    fn map(marks: &[&str]) -> Map {
        let mut map = Map::default();
        let placement = Placement::new(Scheme::Ketama, 2).expect("few partitions");
        map.apply(&MapCommand::Create { cluster: 1, placement }).expect("the map is empty");
        for mark in marks {
            let mark = Setting::Other { name: (*mark).to_owned(), value: Some(YES.to_owned()) };
            map.apply(&MapCommand::Set(mark)).expect("a mark");
        }
        map
    }

    #[test]
    fn map_without_marks_may_lack_limits() {
        let reasons = |marks: &[&str]| [false, true].map(|file| lacks(&map(marks), file));
        assert_eq!(lacks(&Map::default(), false), Some(OF_CLUSTER));
        assert_eq!(reasons(&[]), [Some(OF_CLUSTER); 2]);
        // The limits come before the mark of the founder.
        assert_eq!(reasons(&[LIMITS_SET]), [Some(OF_CLUSTER); 2]);
        assert_eq!(reasons(&[FOUNDED]), [None, Some(OF_FILE)]);
        assert_eq!(reasons(&[FOUNDED, LIMITS_SET]), [None, None]);
    }

    #[test]
    fn wait_ends_in_time() {
        let before = FIRST_LIMITS_MAX.saturating_sub(Duration::from_millis(1));
        for (marks, is_file_pending, reason, end) in [
            (&[][..], false, OF_CLUSTER, WaitOutcome::Without(OF_CLUSTER)),
            (&[], true, OF_CLUSTER, WaitOutcome::Failed(OF_CLUSTER)),
            (&[FOUNDED], true, OF_FILE, WaitOutcome::Without(OF_FILE)),
        ] {
            let map = map(marks);
            let at = |waited| outcome(&map, is_file_pending, waited);
            assert_eq!(at(Duration::ZERO), WaitOutcome::Waiting(reason));
            assert_eq!(at(before), WaitOutcome::Waiting(reason));
            assert_eq!(at(FIRST_LIMITS_MAX), end);
        }
        let all = map(&[FOUNDED, LIMITS_SET]);
        assert_eq!(outcome(&all, true, FIRST_LIMITS_MAX), WaitOutcome::InMap);
    }
}
