//! The counters of a worker: one set per worker, written by that worker alone, summed on request.
//!
//! Not here: metrics of the store (`shards`), names on the wire (`stats`), samples (`probe`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::probe::Probe;

/// Declares the set once: the atomic counters, and their sums over workers.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one worker. Only that worker writes them.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
            /// The worker's samples, which no reset changes.
            pub(crate) probe: Probe,
        }

        /// The sums of the counters over all workers.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CounterSums {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds these counters to `sums`.
            pub fn add_to(&self, sums: &mut CounterSums) {
                $(sums.$name += self.$name.get();)*
            }

            /// Zeroes all counters, as `stats reset` does.
            pub fn reset(&self) {
                $(self.$name.reset();)*
            }
        }
    };
}

/// A number that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count` by a plain load and store, because there is one writer. A `stats reset` between
    /// the two is lost, as in memcached.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Zeroes the counter.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Keys requested by `get`, `gets`, `mg`.
    cmd_get,
    /// Storage commands whose data block was read.
    cmd_set,
    /// `flush_all` commands.
    cmd_flush,
    /// Keys of `touch`, `gat`, `gats`.
    cmd_touch,
    /// Meta commands.
    cmd_meta,
    /// Keys found by `get`, `gets`, `mg`.
    get_hits,
    /// Keys not found by `get`, `gets`, `mg`.
    get_misses,
    /// Deletions of an existing key.
    delete_hits,
    /// Deletions of a missing key.
    delete_misses,
    /// Increments of an existing key.
    incr_hits,
    /// Increments of a missing key.
    incr_misses,
    /// Decrements of an existing key.
    decr_hits,
    /// Decrements of a missing key.
    decr_misses,
    /// Compare-and-set stores with a matching cas unique.
    cas_hits,
    /// Compare-and-set stores of a missing key.
    cas_misses,
    /// Compare-and-set stores with a different cas unique.
    cas_badval,
    /// Touches of an existing key.
    touch_hits,
    /// Touches of a missing key.
    touch_misses,
    /// Successful stores.
    total_items,
    /// Values over the item size bound.
    store_too_large,
    /// Stores refused for lack of memory.
    store_no_memory,
    /// ASCII authentication attempts.
    auth_cmds,
    /// Refused ASCII authentication attempts.
    auth_errors,
    /// Bytes read from clients.
    bytes_read,
    /// Bytes written to clients.
    bytes_written,
    /// Batches cut short so that other connections get their turn.
    conn_yields,
}
