//! The lock of a shard, which is held for some microseconds at most while a batch is answered, and let go of by
//! a plain store.
//!
//! Not here: which shards are locked, and in what order (`shards`, `batch`).
//!
//! A mutex whose waiters sleep has to learn at its end whether there are any. That is an atomic operation, which
//! waits for all that was stored before it, and for the line of the lock where another processor has
//! just asked for it. Here whoever waits looks again by itself.

use std::hint::spin_loop;
use std::thread;
use std::time::Duration;

use engine::Engine;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// A shard that nobody else has meanwhile.
pub(super) type ShardGuard<'a> = SpinMutexGuard<'a, Engine>;

/// Looks at a shard that somebody has, before its holder is taken to be off its processor: 28 µs where a pause takes
/// 27 ns, and a batch is answered in 1 to 4.
const LOOKS: u32 = 64;
/// Pauses between two looks.
const PAUSES: u32 = 16;
/// Between two looks at a shard whose holder does not run, or shows all of it to somebody.
const SLEEP: Duration = Duration::from_micros(50);

/// An engine behind its lock.
pub(super) struct ShardLock(SpinMutex<Engine>);

impl ShardLock {
    pub(super) fn new(engine: Engine) -> Self {
        Self(SpinMutex::new(engine))
    }

    /// The engine, if nobody has it.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<ShardGuard<'_>> {
        self.0.try_lock()
    }

    /// The engine, if whoever has it lets it go within the time that a batch takes.
    #[cold]
    pub(super) fn lock_soon(&self) -> Option<ShardGuard<'_>> {
        for _ in 0..LOOKS {
            if !self.0.is_locked()
                && let Some(engine) = self.0.try_lock()
            {
                return Some(engine);
            }
            (0..PAUSES).for_each(|_| spin_loop());
        }
        None
    }

    /// The engine, as soon as nobody else has it.
    #[inline]
    pub(super) fn lock(&self) -> ShardGuard<'_> {
        self.0.try_lock().unwrap_or_else(|| self.wait())
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
    fn a_shard_that_is_not_let_go_is_not_waited_for_where_there_is_something_else_to_do() {
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
    fn who_waits_has_the_shard_after_its_holder_however_long_that_takes() {
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
