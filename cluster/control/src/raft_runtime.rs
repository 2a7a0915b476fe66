//! openraft's access to tokio.
//!
//! Here: the waits between ticks of Raft's clock, which end on the node's [`WakeGrid`], so that
//! they wake the thread together with the other periodic tasks. All else is that of openraft's own
//! runtime for tokio. Not here: the grid itself (`wake_grid`).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use openraft::{AsyncRuntime, TokioRuntime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::wake_grid::{GRID_STEP, WakeGrid};

/// The period of Raft's ticks. A leader sends its heartbeats with them.
pub(crate) const RAFT_TICK: Duration = GRID_STEP;

tokio::task_local! {
    /// The grid of the node that the task belongs to.
    static GRID: WakeGrid;
}

/// Runs `start`. A Raft that it starts ticks on `grid`.
pub(crate) async fn on_grid<F: Future>(grid: WakeGrid, start: F) -> F::Output {
    GRID.scope(grid, start).await
}

/// openraft's runtime for tokio, with the ticks of a Raft that [`on_grid`] started on its grid.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RaftRuntime;

impl AsyncRuntime for RaftRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: Send + 'static> = JoinHandle<T>;
    type Sleep = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;
    type Instant = Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + Send> = tokio::time::Timeout<T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type OneshotSender<T: Send> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: Send> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        match GRID.try_with(WakeGrid::clone) {
            Ok(grid) => tokio::spawn(GRID.scope(grid, future)),
            Err(_) => tokio::spawn(future),
        }
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Box::pin(sleep(duration))
    }

    /// Waits for the next tick on the grid, if there is one: openraft 0.9 calls this only between
    /// two ticks.
    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        match GRID.try_with(WakeGrid::clone) {
            Ok(grid) => Box::pin(async move { grid.wait_least(RAFT_TICK, RAFT_TICK / 2).await }),
            Err(_) => Box::pin(sleep_until(deadline)),
        }
    }

    fn timeout<R, F: Future<Output = R> + Send>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn oneshot<T: Send>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The ends of three waits of a task that Raft spawns.
    async fn ticks(begin: Instant) -> Vec<Duration> {
        let ticking = RaftRuntime::spawn(async move {
            let mut ends = Vec::new();
            for _ in 0..3 {
                RaftRuntime::sleep_until(Instant::now() + ms(180)).await;
                ends.push(begin.elapsed());
            }
            ends
        });
        ticking.await.expect("it does not panic")
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_end_on_the_grid() {
        let (begin, grid) = (Instant::now(), WakeGrid::from_now());
        advance(ms(130)).await;
        assert_eq!(on_grid(grid, ticks(begin)).await, [ms(512), ms(768), ms(1024)]);
        assert_eq!(ticks(begin).await, [ms(1204), ms(1384), ms(1564)], "without a grid");
    }
}
