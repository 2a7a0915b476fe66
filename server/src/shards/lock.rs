//! The lock of a shard, which is held for some microseconds at most while a batch is executed.
//! Unlocking is a plain store.
//!
//! Not here: the choice of shards and the lock order (`shards`, `batch`).
//!
//! A mutex whose waiters sleep must find out on unlock whether there are any. That takes an atomic
//! operation, which waits for all earlier stores, and for the cache line of the lock if another
//! processor has just requested it. Here waiters spin, then sleep, and check the lock themselves.

use std::hint::spin_loop;
use std::thread;
use std::time::Duration;

use engine::{Engine, StepCount};
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Exclusive access to a shard's engine.
pub(super) type ShardGuard<'a> = SpinMutexGuard<'a, Engine>;

/// Checks of a locked shard before its holder is assumed not to run. At 27 ns per pause they take
/// 28 µs; a batch takes 1 to 4 µs.
const LOOKS: u32 = 64;
/// Pauses between two checks.
const PAUSES: u32 = 16;
/// Sleep between two series of checks: the holder does not run, or visits all items of the shard.
const SLEEP: Duration = Duration::from_micros(50);

/// Locks of shards, taken for whatever reason.
pub static SHARD_LOCKS: StepCount = StepCount::new();

/// An engine behind its lock.
pub(super) struct ShardLock(SpinMutex<Engine>);

impl ShardLock {
    pub(super) fn new(engine: Engine) -> Self {
        Self(SpinMutex::new(engine))
    }

    /// Locks the engine if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<ShardGuard<'_>> {
        self.0.try_lock().inspect(|_| SHARD_LOCKS.add(1))
    }

    /// Locks the engine if it becomes free within the time of a batch.
    #[cold]
    pub(super) fn lock_soon(&self) -> Option<ShardGuard<'_>> {
        for _ in 0..LOOKS {
            if !self.0.is_locked()
                && let Some(engine) = self.try_lock()
            {
                return Some(engine);
            }
            (0..PAUSES).for_each(|_| spin_loop());
        }
        None
    }

    /// Locks the engine; waits until it is free.
    #[inline]
    pub(super) fn lock(&self) -> ShardGuard<'_> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> ShardGuard<'_> {
        loop {
            if let Some(engine) = self.lock_soon() {
                return engine;
            }
            thread::sleep(SLEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::super::tests::shards;
    use super::*;

    #[test]
    fn lock_soon_gives_up_on_a_shard_that_stays_locked() {
        let shards = shards(64 << 20, None);
        let lock = &shards.shards[0];
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.lock_soon().is_none());
        drop(guard);
        assert!(lock.lock_soon().is_some());
        assert!(lock.try_lock().is_some(), "the last one is let go");
    }

    #[test]
    fn a_waiter_gets_the_shard_after_a_slow_holder() {
        let shards = shards(64 << 20, None);
        let lock = &shards.shards[0];
        let waits = Barrier::new(2);
        std::thread::scope(|scope| {
            let guard = lock.lock();
            let waiting = scope.spawn(|| {
                waits.wait();
                drop(lock.lock());
            });
            waits.wait();
            std::thread::sleep(20 * SLEEP);
            assert!(!waiting.is_finished(), "a shard has one holder");
            drop(guard);
            waiting.join().expect("it has the shard");
        });
        assert!(lock.try_lock().is_some());
    }
}
