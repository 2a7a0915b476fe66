//! A worker's cache of the links to other nodes.
//!
//! Not here: the links (`links`), the records that are appended to them (`batch`).

use std::sync::Arc;

use cluster::LinkIndex;
use cluster::replica_set::ReplicaSet;

use super::links::{Links, PeerLink};

/// A worker's cache of the node's links, and the links it has appended to since its last flush.
#[derive(Default)]
pub(crate) struct LinkCache {
    generation: u64,
    links: Vec<Option<Arc<PeerLink>>>,
    touched: Vec<LinkIndex>,
}

impl LinkCache {
    /// Drops the cached links if links came or went. Called once per round.
    pub(crate) fn refresh(&mut self, links: &Links) {
        let generation = links.generation();
        if generation != self.generation {
            self.generation = generation;
            self.links.clear();
        }
    }

    /// Returns the link with this index.
    #[inline]
    pub(crate) fn get(&mut self, links: &Links, index: LinkIndex) -> Option<&Arc<PeerLink>> {
        let place = usize::from(index.0);
        if self.links.get(place).is_none_or(Option::is_none) {
            self.fetch(links, index);
        }
        self.links[place].as_ref()
    }

    #[cold]
    fn fetch(&mut self, links: &Links, index: LinkIndex) {
        let place = usize::from(index.0);
        if self.links.len() <= place {
            self.links.resize_with(place + 1, || None);
        }
        self.links[place] = links.get(index);
    }

    /// Whether the streams to all copies of a set have room for one more record.
    #[inline]
    pub(crate) fn may_append(&mut self, links: &Links, set: ReplicaSet) -> bool {
        set.links().iter().all(|link| self.get(links, *link).is_some_and(|link| !link.is_full()))
    }

    /// Whether a link in the cache is over half full of unacknowledged bytes, and clients should
    /// not be read.
    pub(crate) fn is_any_over_half(&self) -> bool {
        self.links.iter().flatten().any(|link| link.is_over_half())
    }

    /// Marks a link as appended to: it is flushed at the end of the round.
    pub(crate) fn touch(&mut self, index: LinkIndex) {
        if !self.touched.contains(&index) {
            self.touched.push(index);
        }
    }

    /// Sends the appended bytes of all touched links.
    pub(crate) fn flush(&mut self, links: &Links, now_ns: u64) {
        while let Some(index) = self.touched.pop() {
            if let Some(link) = self.get(links, index) {
                link.flush(now_ns);
            }
        }
    }
}
