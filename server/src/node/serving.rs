//! Access of a batch to the headers of partitions.
//!
//! Here: the headers with the batch's time and unique numbers. Not here: when a header is open
//! (`cluster::replica`), the batch (`session`).

use cluster::partition_header::PartitionHeader;
use cluster::replica::Now;
use engine::prefetch;

use super::front::node_now;
use super::machine::{items_time, unique};
use crate::session::Round;

/// The headers, and the time of a batch.
pub(crate) struct Serving<'a> {
    headers: &'a [PartitionHeader],
    /// How far right a hash is shifted to give its partition.
    shift: u32,
    /// Partitions lie in several shards each.
    is_shared: bool,
    now: Now,
}

impl<'a> Serving<'a> {
    /// Returns `None` outside a cluster, and while no batch may be served from headers.
    pub(crate) fn of(round: &Round<'a>) -> Option<Self> {
        let service = round.service;
        let space = service.node()?.space()?;
        let headers = space.copies.headers(round.now.mono.0)?;
        let is_shared = service.shards().share_partitions(space.bits);
        let now = node_now(service.clock(), round.now);
        Some(Self { headers, shift: u64::BITS - space.bits, is_shared, now })
    }

    fn header(&self, hash: u64) -> Option<&'a PartitionHeader> {
        self.headers.get((hash >> self.shift) as usize)
    }

    /// Whether the header of the hash's partition is open.
    #[inline]
    pub(crate) fn may_serve(&self, hash: u64) -> bool {
        self.header(hash).is_some_and(PartitionHeader::is_open)
    }

    /// Fetches the header of a hash's partition.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(header) = self.header(hash) {
            prefetch(header);
        }
    }

    /// The unique number and the time of the next command on a key of this hash, whose shard is held; `None` if
    /// the header is closed.
    #[inline]
    pub(crate) fn next(&self, hash: u64) -> Option<(u64, engine::Now)> {
        let at = self.header(hash)?.next(self.now, self.is_shared)?;
        let unix_ms = self.now.wall_ns / 1_000_000;
        Some((unique(at), engine::Now { mono: items_time(at.pt_ns), unix_ms }))
    }
}
