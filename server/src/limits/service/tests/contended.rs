//! Changes that lose to those of others.

use std::sync::atomic::AtomicU64;

use cluster::map::{MapLimit, Put};

use super::*;
use crate::records::Changed;

/// The time of a change, won or lost.
const COMMIT: Duration = Duration::from_millis(10);

/// A store in which a change of others comes before each of the first `losses` changes.
struct Contended {
    losses: u64,
    /// The changes that were tried.
    tries: AtomicU64,
    /// Whether the changes of others are here when a change is refused.
    has_news: bool,
}

impl Records for Contended {
    fn mark(&self) -> u64 {
        let tried = self.tries.load(Ordering::Relaxed);
        if self.has_news { tried } else { 0 }
    }

    fn get(&self, _: &str) -> Option<MapLimit> {
        None
    }

    fn scan(&self, _: &str, _: &mut dyn FnMut(&str, &MapLimit)) {}

    fn change(&self, _: Vec<Put>) -> Changed<'_> {
        let tried = self.tries.fetch_add(1, Ordering::Relaxed);
        let answer = if tried < self.losses { Err(RecordsError::OtherVersion) } else { Ok(1) };
        Box::pin(async move {
            sleep(COMMIT).await;
            answer
        })
    }

    fn read_only(&self) -> Option<String> {
        None
    }
}

/// Puts a limit into such a store. Returns the answer, and the number of attempts.
async fn put(losses: u64, has_news: bool) -> (Result<u64, ServiceError>, u64) {
    let world = World::at(std::path::Path::new("-"));
    let records = Arc::new(Contended { losses, tries: AtomicU64::new(0), has_news });
    world.store.set_records(records.clone());
    let answer = world.put("a", &limit("a", "block", ""), 0).await;
    (answer.map(|changed| changed.version), records.tries.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_change_is_tried_again_for_seconds() {
    for (has_news, pause) in [(true, Duration::ZERO), (false, PAUSE)] {
        let round = COMMIT + pause;
        let losses = (TRYING_MAX.as_millis() / round.as_millis()) as u64;
        let won = losses * 9 / 10;
        assert_eq!(put(won, has_news).await, (Ok(1), won + 1));
        let (answer, tries) = put(u64::MAX, has_news).await;
        let others = "others change the limits too: try again".to_owned();
        assert_eq!(answer, Err(ServiceError::Unavailable(others)));
        assert!((losses..=losses + 1).contains(&tries), "{tries} of {losses}");
    }
}
