//! Changes as tasks of their own, which go on when the client that asked for them is gone.
//!
//! hyper drops the future of a request when its client hangs up, and the routes drop one that takes
//! 30 s. A change that stopped there would be stored and not in force, or made and not audited.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, TryAcquireError};
use tokio::time::timeout;
use tollgate_http::ServiceError;

/// Most changes under way at once: clients that hang up do not end theirs.
const CHANGES_MAX: u32 = 256;
/// Longest wait for changes under way when the listener ends.
const ENDING_MAX: Duration = Duration::from_secs(1);

/// The changes of the admin listener that are under way.
#[derive(Debug)]
pub(super) struct RunningChanges {
    /// A permit for each change; closed when the listener ends.
    places: Arc<Semaphore>,
}

impl Default for RunningChanges {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(CHANGES_MAX as usize)) }
    }
}

impl RunningChanges {
    /// Starts `change` as a task at the first poll and waits for its result. The task goes on if
    /// this future is dropped.
    ///
    /// # Errors
    ///
    /// The error of the change; unavailable if it panics, if too many are under way, or if the
    /// listener ends.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
    ) -> Result<T, ServiceError> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|error| {
            let reason = match error {
                TryAcquireError::NoPermits => "too many changes are under way: try again soon",
                TryAcquireError::Closed => "the server is stopping",
            };
            ServiceError::Unavailable(reason.to_owned())
        })?;
        let task = tokio::spawn(async move {
            let _place = place;
            change.await
        });
        let panicked = |_| Err(ServiceError::Unavailable("the change panicked".to_owned()));
        task.await.unwrap_or_else(panicked)
    }

    /// Waits for the changes under way, for at most a second, and refuses later ones.
    pub(super) async fn end(&self) {
        if timeout(ENDING_MAX, self.places.acquire_many(CHANGES_MAX)).await.is_err() {
            tracing::warn!("a change over the admin listener has no result yet: check the log");
        }
        self.places.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changes_are_awaited_at_the_end() {
        let (running, ended) = (RunningChanges::default(), Arc::new(AtomicU32::new(0)));
        let change = |time: Duration| {
            let ended = Arc::clone(&ended);
            async move {
                sleep(time).await;
                Ok(ended.fetch_add(1, Ordering::Relaxed))
            }
        };
        assert_eq!(running.run(change(Duration::ZERO)).await, Ok(0));
        for _ in 0..CHANGES_MAX {
            let run = running.run(change(ENDING_MAX / 2));
            assert!(timeout(Duration::ZERO, run).await.is_err());
        }
        let refused = |reason: &str| Err(ServiceError::Unavailable(reason.to_owned()));
        let one_more = running.run(change(Duration::ZERO)).await;
        assert_eq!(one_more, refused("too many changes are under way: try again soon"));
        running.end().await;
        assert_eq!(ended.load(Ordering::Relaxed), CHANGES_MAX + 1);
        let late = running.run(change(Duration::ZERO)).await;
        assert_eq!(late, refused("the server is stopping"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_panics_is_an_error() {
        let running = RunningChanges::default();
        let panicked = running.run::<()>(async { panic!("as the test wants") }).await;
        assert_eq!(panicked, Err(ServiceError::Unavailable("the change panicked".to_owned())));
    }
}
