//! A change of several commands of which one fails.

use std::sync::atomic::AtomicU64;

use cluster::map::command::PUTS_MAX;
use cluster::map::{MapLimit, Put};

use super::*;
use crate::records::Changed;

/// A store that refuses every change but the first.
struct FailingRecords {
    records: FileRecords,
    tries: AtomicU64,
}

impl Records for FailingRecords {
    fn mark(&self) -> u64 {
        self.records.mark()
    }

    fn get(&self, name: &str) -> Option<MapLimit> {
        self.records.get(name)
    }

    fn scan(&self, prefix: &str, visit: &mut dyn FnMut(&str, &MapLimit)) {
        self.records.scan(prefix, visit);
    }

    fn change(&self, puts: Vec<Put>) -> Changed<'_> {
        if self.tries.fetch_add(1, Ordering::Relaxed) == 0 {
            return self.records.change(puts);
        }
        Box::pin(async { Err(RecordsError::Unavailable("the disk is full".to_owned())) })
    }

    fn read_only(&self) -> Option<String> {
        None
    }
}

#[tokio::test]
async fn the_applied_part_of_a_failed_change_is_told() {
    let folder = tempfile::tempdir().expect("a directory for a file");
    let world = World::at(folder.path());
    let records = FileRecords::open(&folder.path().join("limits.redb")).expect("nothing has it");
    let records = Arc::new(FailingRecords { records, tries: AtomicU64::new(0) });
    world.store.start(records, None, NOW).await.expect("there is no file");
    // Each limit is put with a record of its change.
    let applied = PUTS_MAX / 2;
    let toml: String = (0..2 * applied).map(|n| limit(&format!("l{n}"), "block", "")).collect();
    let imported = world.import(&toml, ImportMode::Merge).await;
    let expected = ServiceError::Unavailable("the disk is full".to_owned());
    assert_eq!(imported.map(|_| ()), Err(expected));
    assert_eq!(world.store.limits().len(), applied);
    let in_force = world.store.limits().into_iter();
    let policies = in_force.map(|limit| world.policy(&format!("{}:x", limit.name)));
    assert!(policies.into_iter().all(|policy| policy == "block"));
    let counts = world.store.change_counts();
    assert!(counts.contains(&(Via::Api, applied as u64)), "{counts:?}");
}
