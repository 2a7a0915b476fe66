//! What a worker counts: one set per worker, written by it alone, summed when asked.
//!
//! Not here: figures of the store (`shards`), their names on the wire (`stats`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the set once: the atomic figures, and their sum over workers.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The figures of one worker. Only that worker writes them.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        /// The figures of all workers.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct CounterSums {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds these figures to `sums`.
            pub fn add_to(&self, sums: &mut CounterSums) {
                $(sums.$name += self.$name.get();)*
            }

            /// Zeroes all figures, as `stats reset` does.
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
    /// Adds `count`. Plain load and store: there is one writer. A `stats reset` that falls between
    /// the two is overwritten, which memcached's own counters share.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Zeroes it.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Keys asked for by `get`, `gets`, `mg`.
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
    /// Keys not found by them.
    get_misses,
    /// Deletions of a key that was there.
    delete_hits,
    /// Deletions of a key that was not.
    delete_misses,
    /// Increments of a key that was there.
    incr_hits,
    /// Increments of a key that was not.
    incr_misses,
    /// Decrements of a key that was there.
    decr_hits,
    /// Decrements of a key that was not.
    decr_misses,
    /// Compare-and-set stores whose unique matched.
    cas_hits,
    /// Those of a key that was not there.
    cas_misses,
    /// Those whose unique did not match.
    cas_badval,
    /// Touches of a key that was there.
    touch_hits,
    /// Touches of a key that was not.
    touch_misses,
    /// Successful stores.
    total_items,
    /// Values over the item bound.
    store_too_large,
    /// Stores refused for want of memory.
    store_no_memory,
    /// ASCII authentications tried.
    auth_cmds,
    /// Those refused.
    auth_errors,
    /// Bytes read from clients.
    bytes_read,
    /// Bytes written to clients.
    bytes_written,
    /// Batches cut short so that other connections had their turn.
    conn_yields,
}
