//! Changes whose clients hang up.

use std::time::Duration;

use cluster::map::{MapLimit, Put};
use tokio::time::{sleep, timeout};
use tollgate_limits::Limits;

use super::*;
use crate::records::{Changed, FileRecords, Records};
use crate::runtime::service::Service;

/// The time of a change.
const COMMIT: Duration = Duration::from_millis(100);

/// A store that takes [`COMMIT`] for each change, and finishes it even if its caller has gone.
struct SlowRecords(Arc<FileRecords>);

impl Records for SlowRecords {
    fn mark(&self) -> u64 {
        self.0.mark()
    }

    fn get(&self, name: &str) -> Option<MapLimit> {
        self.0.get(name)
    }

    fn scan(&self, prefix: &str, visit: &mut dyn FnMut(&str, &MapLimit)) {
        self.0.scan(prefix, visit);
    }

    fn change(&self, puts: Vec<Put>) -> Changed<'_> {
        let records = Arc::clone(&self.0);
        Box::pin(async move {
            let changing = tokio::spawn(async move {
                sleep(COMMIT).await;
                records.change(puts).await
            });
            changing.await.expect("it does not panic")
        })
    }

    fn read_only(&self) -> Option<String> {
        self.0.read_only()
    }
}

/// A server with an empty store of this kind in a folder.
async fn host(folder: &std::path::Path) -> ServerHost {
    let service = Service::of_flags(&[], Limits::default());
    let records = FileRecords::open(&folder.join("limits.redb")).expect("nothing else has it");
    let records = Arc::new(SlowRecords(Arc::new(records)));
    service.limits_store().start(records, None, 0).await.expect("there is no limits file");
    ServerHost::new(Arc::new(service), None)
}

fn actor() -> Actor {
    Actor { name: "ann".to_owned(), via: Via::Api, address: None, is_admin: false }
}

fn changes_over_api(host: &ServerHost) -> u64 {
    host.change_counts().into_iter().find(|(via, _)| *via == Via::Api).map_or(0, |(_, count)| count)
}

#[tokio::test]
async fn a_change_whose_client_is_gone_comes_into_force() {
    let folder = tempfile::tempdir().expect("a directory for a file");
    let host = host(folder.path()).await;
    let limit = LimitChange {
        name: "a".to_owned(),
        toml: "[[limit]]\nname = \"a\"\nmatch = \"a:{x}\"\npolicy = \"fixed:5/s\"\n".to_owned(),
        before: None,
        note: None,
        version: None,
        adopt: false,
        dry_run: false,
        actor: actor(),
    };
    host.put_limit(limit).await.expect("a new limit");
    let mut put = host.put_override(OverrideChange {
        limit: "a".to_owned(),
        key: "a:1".to_owned(),
        policy: Some("block".to_owned()),
        expires_ms: None,
        note: None,
        version: None,
        actor: actor(),
    });
    assert!(timeout(COMMIT / 2, &mut put).await.is_err(), "the change takes longer");
    drop(put);
    let policy = || host.match_key(b"a:1").expect("a short key").policy;
    assert_eq!(policy().as_deref(), Some("fixed:5/s"));
    let in_force = async {
        while policy().as_deref() != Some("block") {
            sleep(COMMIT / 10).await;
        }
    };
    timeout(50 * COMMIT, in_force).await.expect("the override comes into force");
    assert_eq!((host.history(None).len(), changes_over_api(&host)), (2, 2));
}
