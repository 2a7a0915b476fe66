//! A grid of instants at which periodic waits end, so that the tasks of a thread wake together.
//!
//! Here: the instants, waits for them, and their shift to the heartbeats of another node. Not here:
//! the choice of that node (`rpc_server`), waits that must end at different times on different
//! nodes, such as those before an election.

use std::convert::Infallible;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use cluster::id::NodeId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The time between two instants of a grid. Periods are multiples of it.
///
/// The step is a multiple of 64 ms. A grid that follows no heartbeats has its instants at multiples
/// of 64 ms of tokio's clock. At these tokio's timer sorts the waits of the next 64 ms, so a wait
/// that ends there costs one wake-up, and any other wait two.
pub const GRID_STEP: Duration = Duration::from_millis(256);
/// See [`GRID_STEP`].
const TIMER_SLOT: Duration = Duration::from_millis(64);
/// An instant comes with a heartbeat that arrives up to this long before it.
const EARLY_MAX: Duration = TIMER_SLOT;
/// A heartbeat may be this late before the node stops waiting for it.
const LATE_MAX: Duration = Duration::from_millis(8);
/// Nodes that wait for the heartbeats of one leader fall back on their own timers at this number of
/// different times: otherwise they would stand for election together when the leader is gone.
const FALLBACKS: u32 = 3;

/// The instants of one process: every [`GRID_STEP`] since the grid began, or, while another node
/// sets the pace, with the arrival of its heartbeats. Clones share the instants.
#[derive(Debug, Clone)]
pub struct WakeGrid {
    inner: Arc<GridInner>,
}

#[derive(Debug)]
struct GridInner {
    begin: Instant,
    instants: Mutex<Instants>,
    /// Notified when the instants are shifted.
    shifted: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Instants {
    /// The instants that have passed.
    passed: u64,
    last: Instant,
    next: Instant,
}

impl Instants {
    fn settle(&mut self, now: Instant) {
        let Some(late) = now.checked_duration_since(self.next) else { return };
        let skipped = late.as_nanos() / GRID_STEP.as_nanos();
        let skipped = u32::try_from(skipped).unwrap_or(u32::MAX);
        self.passed += 1 + u64::from(skipped);
        self.last = self.next + GRID_STEP * skipped;
        self.next = self.last + GRID_STEP;
    }

    /// The expected time of an instant that has not passed.
    fn time_of(&self, instant: u64) -> Instant {
        let steps = instant.saturating_sub(self.passed + 1);
        self.next + GRID_STEP * u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

/// The number of steps in `period`, at least 1.
fn steps(period: Duration) -> u64 {
    u64::try_from(period.as_nanos() / GRID_STEP.as_nanos()).unwrap_or(u64::MAX).max(1)
}

impl WakeGrid {
    /// Begins a grid now. The timer of a runtime that is built next rounds up to its own
    /// milliseconds, so the multiples of 64 ms are common to both.
    #[must_use]
    pub fn from_now() -> Self {
        let begin = Instant::now();
        let instants = Instants { passed: 0, last: begin, next: begin + GRID_STEP };
        let shifted = Notify::new();
        Self { inner: Arc::new(GridInner { begin, instants: Mutex::new(instants), shifted }) }
    }

    /// Waits for the next multiple of `period`.
    pub async fn wait(&self, period: Duration) {
        self.wait_least(period, Duration::ZERO).await;
    }

    /// Waits for the first multiple of `period` that is more than `least` away.
    pub async fn wait_least(&self, period: Duration, least: Duration) {
        self.until(self.multiple(period, least)).await;
    }

    /// Waits for an instant that is between `least` and `least + slack` away. If there is none, the
    /// wait ends at the later of the two times.
    pub async fn wait_about(&self, least: Duration, slack: Duration) {
        let begun = Instant::now();
        let instant = self.multiple(GRID_STEP, least.saturating_sub(Duration::from_nanos(1)));
        tokio::select! {
            biased;
            () = self.until(instant) => sleep_until(begun + least).await,
            () = sleep_until(begun + least + slack) => {}
        }
    }

    /// Ticks at the multiples of `period`. Those that pass unnoticed are left out.
    #[must_use]
    pub fn ticks(&self, period: Duration) -> GridTicks {
        GridTicks { wait: self.tick(period), grid: self.clone(), period }
    }

    fn tick(&self, period: Duration) -> TickWait {
        let grid = self.clone();
        let instant = self.multiple(period, Duration::ZERO);
        Box::pin(async move { grid.until(instant).await })
    }

    /// Tells that a heartbeat of the node that sets the pace has arrived at this node, `me`. If an
    /// instant is near, it is now; the further ones come with the heartbeats that follow. Without
    /// this the node would wake once for each heartbeat and once for each instant.
    pub fn follow(&self, me: NodeId) {
        let now = Instant::now();
        let mut instants = self.inner.instants.lock();
        instants.settle(now);
        let late = LATE_MAX + TIMER_SLOT * (me.0 % FALLBACKS);
        let expected = now + GRID_STEP + late - self.inner.begin;
        let slots = expected.as_nanos().div_ceil(TIMER_SLOT.as_nanos());
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        let next = self.inner.begin + TIMER_SLOT * slots;
        if now - instants.last + EARLY_MAX >= GRID_STEP {
            *instants = Instants { passed: instants.passed + 1, last: now, next };
        } else if next > instants.next {
            // The heartbeats come between the instants, so the next instant waits for one.
            instants.next = next;
        } else {
            return;
        }
        drop(instants);
        self.inner.shifted.notify_waiters();
    }

    /// Waits, for ever, for the instant behind the one that other tasks renew their waits for.
    /// Without this each renewed wait would be the first to end: tokio writes to its eventfd for
    /// each of those, and wakes once more.
    pub async fn lead(&self) -> Infallible {
        let mut ahead = self.multiple(GRID_STEP, Duration::ZERO) + 1;
        let (mut this, mut other) = (pin!(self.until(ahead - 1)), pin!(self.until(ahead)));
        loop {
            tokio::select! {
                biased;
                () = this.as_mut() => {}
                () = other.as_mut() => {}
            }
            // A process that stood still leaves instants out.
            ahead = ahead.max(self.multiple(GRID_STEP, Duration::ZERO)) + 1;
            this.set(self.until(ahead));
            mem::swap(&mut this, &mut other);
        }
    }

    /// The number of the first multiple of `period` that is expected more than `least` from now.
    fn multiple(&self, period: Duration, least: Duration) -> u64 {
        let now = Instant::now();
        let mut instants = self.inner.instants.lock();
        instants.settle(now);
        let mut later = *instants;
        later.settle(now + least);
        let steps = steps(period);
        (later.passed / steps + 1).saturating_mul(steps)
    }

    /// Waits until an instant has passed.
    async fn until(&self, instant: u64) {
        loop {
            // A shift makes a new wait. If a wait is reset to a later time instead, tokio's timer
            // keeps the earlier time, and wakes the thread then too.
            let mut shifted = pin!(self.inner.shifted.notified());
            shifted.as_mut().enable();
            let at = {
                let mut instants = self.inner.instants.lock();
                instants.settle(Instant::now());
                if instants.passed >= instant {
                    return;
                }
                instants.time_of(instant)
            };
            tokio::select! {
                biased;
                () = shifted => {}
                () = sleep_until(at) => {}
            }
        }
    }
}

type TickWait = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// The multiples of a period on a [`WakeGrid`].
pub struct GridTicks {
    grid: WakeGrid,
    period: Duration,
    wait: TickWait,
}

impl GridTicks {
    /// Waits for the next tick. A wait that is dropped loses none.
    pub async fn tick(&mut self) {
        poll_fn(|context| self.poll_tick(context)).await;
    }

    /// Polls for the next tick.
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.wait.as_mut().poll(context));
        self.wait = self.grid.tick(self.period);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;
    use tokio::runtime::Builder;
    use tokio::time::{advance, sleep};

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The write calls of this thread so far.
    fn writes() -> u64 {
        let io = fs::read_to_string("/proc/thread-self/io").expect("Linux counts them");
        let count = io.lines().find_map(|line| line.strip_prefix("syscw: "));
        count.and_then(|count| count.parse().ok()).expect("a count")
    }

    /// The write calls of six steps in which five tasks renew their waits.
    fn writes_of_six_steps(is_led: bool) -> u64 {
        let grid = WakeGrid::from_now();
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            if is_led {
                let grid = grid.clone();
                tokio::spawn(async move { grid.lead().await });
            }
            for _ in 0..5 {
                let grid = grid.clone();
                tokio::spawn(async move {
                    loop {
                        grid.wait(GRID_STEP).await;
                    }
                });
            }
            sleep(ms(300)).await;
            let before = writes();
            sleep(GRID_STEP * 6).await;
            writes() - before
        })
    }

    #[test]
    fn renewed_waits_write_to_no_eventfd_behind_one_that_leads() {
        // A thread that the machine lets wait for a period writes too, so one of several attempts
        // has to succeed.
        assert!((0..5).any(|_| writes_of_six_steps(true) <= 3));
        assert!((0..5).any(|_| writes_of_six_steps(false) >= 12), "what is to be avoided");
    }

    /// When a wait that begins now ends, since the grid began.
    async fn end(grid: &WakeGrid, wait: impl Future<Output = ()>) -> Duration {
        wait.await;
        grid.inner.begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn wait_ends_at_a_multiple_after_the_least_wait() {
        let grid = WakeGrid::from_now();
        advance(ms(250)).await;
        assert_eq!(end(&grid, grid.wait_least(GRID_STEP, ms(6))).await, ms(512), "not just now");
        assert_eq!(end(&grid, grid.wait(GRID_STEP)).await, ms(768));
        assert_eq!(end(&grid, grid.wait(ms(1024))).await, ms(1024));
        assert_eq!(end(&grid, grid.wait(ms(1024))).await, ms(2048));
        assert_eq!(end(&grid, grid.wait_about(ms(200), ms(128))).await, ms(2304));
        assert_eq!(end(&grid, grid.wait_about(ms(256), ms(128))).await, ms(2560), "no more");
        assert_eq!(end(&grid, grid.wait_about(ms(20), ms(128))).await, ms(2708), "none is near");
    }

    #[tokio::test(start_paused = true)]
    async fn ticks_that_pass_unnoticed_are_left_out() {
        let grid = WakeGrid::from_now();
        let mut ticks = grid.ticks(GRID_STEP);
        assert_eq!(end(&grid, ticks.tick()).await, ms(256));
        let dropped = tokio::time::timeout(ms(200), ticks.tick()).await;
        assert!(dropped.is_err());
        assert_eq!(end(&grid, ticks.tick()).await, ms(512), "a dropped wait loses none");
        advance(ms(900)).await;
        assert_eq!(end(&grid, ticks.tick()).await, ms(1412), "late");
        assert_eq!(end(&grid, ticks.tick()).await, ms(1536));
    }

    /// The ends of ten waits on a grid to which heartbeats come every `period` from `first` on, six
    /// of them.
    async fn ends_with_heartbeats(me: u32, first: u64, period: u64) -> Vec<u64> {
        let grid = WakeGrid::from_now();
        let follower = grid.clone();
        tokio::spawn(async move {
            sleep(ms(first)).await;
            for _ in 0..6 {
                follower.follow(NodeId(me));
                sleep(ms(period)).await;
            }
        });
        let mut ends = Vec::new();
        for _ in 0..10 {
            ends.push(end(&grid, grid.wait(GRID_STEP)).await.as_millis() as u64);
        }
        ends
    }

    #[tokio::test(start_paused = true)]
    async fn instants_come_with_the_heartbeats_of_a_leader() {
        let ends = ends_with_heartbeats(0, 200, 256).await;
        assert_eq!(ends[..6], [200, 456, 712, 968, 1224, 1480], "a little early");
        assert_eq!(ends[6..], [1792, 2048, 2304, 2560], "the leader is gone");
        let ends = ends_with_heartbeats(0, 100, 256).await;
        assert_eq!(ends[..6], [356, 612, 868, 1124, 1380, 1664], "the first waits for one");
        // Two more nodes that follow the same leader.
        let ends =
            [ends_with_heartbeats(1, 200, 256).await, ends_with_heartbeats(2, 200, 256).await];
        assert_eq!(ends.map(|ends| ends[6]), [1856, 1920]);
    }

    proptest! {
        #[test]
        fn instants_are_never_far_apart(
            me in 0_u32..10,
            gaps in proptest::collection::vec(0_u64..700, 1..60),
        ) {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
            let ends = runtime.expect("a runtime").block_on(async {
                let grid = WakeGrid::from_now();
                let follower = grid.clone();
                let beats = async move {
                    for gap in gaps {
                        sleep(ms(gap)).await;
                        follower.follow(NodeId(me));
                    }
                };
                let mut ends = vec![0];
                let waits = async {
                    loop {
                        grid.wait(GRID_STEP).await;
                        ends.push(grid.inner.begin.elapsed().as_millis() as u64);
                    }
                };
                tokio::select! {
                    () = beats => {}
                    () = waits => {}
                }
                ends
            });
            for pair in ends.windows(2) {
                let apart = pair[1] - pair[0];
                prop_assert!((192..=647).contains(&apart), "{ends:?}");
            }
        }
    }
}
