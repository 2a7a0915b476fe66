//! The newest map of this node, and the watchers of it.
//!
//! Here: the one store for maps that come from Raft's log, from a snapshot, or from a voter's
//! answer, whichever is first. Not here: these sources.
//!
//! All three sources carry committed changes only, so the newer map is right whatever its source.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::map::{Delta, Deltas, Map, Since};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The most bytes of deltas in one answer; a node that is further behind asks again.
const NEWS_BYTES_MAX: usize = 256 << 10;
/// A node that fetches the whole map asks for the next chunk within this time.
const FETCH_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The map and its last changes.
#[derive(Debug)]
pub(crate) struct MapPublisher {
    state: Mutex<PublishedMap>,
    ver: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct PublishedMap {
    map: Arc<Map>,
    deltas: Deltas,
    whole: Option<WholeMap>,
    /// The voters, and the log index that made them voters, counted from 1; both as far as
    /// committed.
    voters: (u64, BTreeSet<NodeId>),
}

/// The whole map as bytes, in the version that was encoded last.
#[derive(Debug)]
struct WholeMap {
    ver: u64,
    bytes: Bytes,
    fetched: Instant,
}

impl MapPublisher {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), ver: watch::Sender::new(0) })
    }

    pub(crate) fn map(&self) -> Arc<Map> {
        self.state.lock().map.clone()
    }

    pub(crate) fn ver(&self) -> u64 {
        *self.ver.borrow()
    }

    /// Applies a delta if it is the next.
    pub(crate) fn follow(&self, delta: Delta) {
        let mut state = self.state.lock();
        // The map is copied only if a reader still holds it and there is a new delta.
        let is_next = delta.ver == state.map.ver() + 1;
        if is_next && Arc::make_mut(&mut state.map).follow(&delta).is_ok() {
            let partitions = state.map.partitions().len();
            state.deltas.push(delta, partitions);
            self.notify(&state);
        }
    }

    /// Applies a delta, or replaces the map by `map`, which has applied it, if that is further
    /// ahead. Then `map` shares the changed entries, unless there are newer ones here: the delta
    /// that brings these to `map` finds them.
    pub(crate) fn follow_or_replace(&self, delta: Delta, map: &mut Map) {
        let (ver, changed) = (self.ver(), delta.partitions().collect::<Vec<_>>());
        if delta.ver == ver + 1 {
            self.follow(delta);
        } else if delta.ver > ver {
            self.replace(map.clone());
        }
        map.share_changed(changed, &self.state.lock().map);
    }

    /// Lets `map` share all entries that are equal here.
    pub(crate) fn share(&self, map: &mut Map) {
        map.share(&self.state.lock().map);
    }

    /// Replaces the map if `map` is newer.
    pub(crate) fn replace(&self, mut map: Map) {
        let mut state = self.state.lock();
        if map.ver() > state.map.ver() {
            // Other maps share the entries of the present one.
            map.share(&state.map);
            state.map = Arc::new(map);
            state.deltas = Deltas::default();
            self.notify(&state);
        }
    }

    /// Notifies the watchers while the map is locked, so that versions never seem to go back.
    fn notify(&self, state: &PublishedMap) {
        self.ver.send_replace(state.map.ver());
    }

    /// Encoded deltas that bring version `from` up to date; none if the whole map is necessary.
    pub(crate) fn since(&self, from: u64) -> Option<Vec<Bytes>> {
        let state = self.state.lock();
        if from > state.map.ver() {
            // The other node is ahead.
            return Some(Vec::new());
        }
        let Since::Deltas(deltas) = state.deltas.since(from, state.map.ver()) else { return None };
        let mut left = NEWS_BYTES_MAX;
        let mut news = Vec::new();
        for delta in deltas {
            let bytes = Bytes::from(delta.encode());
            if bytes.len() > left && !news.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes.len());
            news.push(bytes);
        }
        Some(news)
    }

    /// The whole map as bytes, for chunks. Returns version `ver` if that was encoded last, else a
    /// version from which the deltas go on.
    pub(crate) fn whole(&self, ver: u64) -> (u64, Bytes) {
        let mut state = self.state.lock();
        let PublishedMap { map, deltas, whole, .. } = &mut *state;
        let goes_on = |whole: &WholeMap| {
            whole.ver == ver || matches!(deltas.since(whole.ver, map.ver()), Since::Deltas(_))
        };
        let kept = whole.take().filter(goes_on);
        let fetched = Instant::now();
        let encode = || WholeMap { ver: map.ver(), bytes: Bytes::from(map.encode()), fetched };
        let whole = whole.insert(kept.unwrap_or_else(encode));
        whole.fetched = fetched;
        (whole.ver, whole.bytes.clone())
    }

    /// Drops these bytes if no node fetches them any more: they take some 17 of each partition.
    pub(crate) fn release_whole(&self) {
        let mut state = self.state.lock();
        if state.whole.as_ref().is_some_and(|whole| whole.fetched.elapsed() > FETCH_PAUSE_MAX) {
            state.whole = None;
        }
    }

    /// The voters, and the log entry that made them voters.
    pub(crate) fn voters(&self) -> (u64, BTreeSet<NodeId>) {
        self.state.lock().voters.clone()
    }

    /// Sets the voters, unless a later entry is known.
    pub(crate) fn set_voters(&self, index: u64, voters: BTreeSet<NodeId>) {
        let mut state = self.state.lock();
        if !voters.is_empty() && (index > state.voters.0 || state.voters.0 == 0) {
            state.voters = (index, voters);
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.ver.subscribe()
    }
}

/// A change of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapUpdate {
    /// The present map.
    pub map: Arc<Map>,
    /// The deltas from the map before to this one, in order; none: read the whole map.
    pub deltas: Option<Vec<Delta>>,
}

/// Receives each change of the map once.
///
/// A reader that keeps a map makes the next change copy its nodes, its settings and the list of its
/// chunks of entries. Keep only the parts you need, or your own [`Map`] that follows the deltas.
#[derive(Debug)]
pub struct MapWatch {
    published: Arc<MapPublisher>,
    waiting: watch::Receiver<u64>,
    seen: u64,
}

impl MapWatch {
    pub(crate) fn new(published: Arc<MapPublisher>) -> Self {
        let waiting = published.subscribe();
        Self { published, waiting, seen: 0 }
    }

    /// The changes since the last call, at once if there are any. Changes in quick succession
    /// arrive as one. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> MapUpdate {
        let seen = self.seen;
        // `wait_for` fails only if the sender is dropped, and `published` owns it.
        let _ = self.waiting.wait_for(|&ver| ver > seen).await;
        let state = self.published.state.lock();
        let map = state.map.clone();
        let deltas = match state.deltas.since(seen, map.ver()) {
            Since::Deltas(deltas) => Some(deltas.into_iter().cloned().collect()),
            Since::Full => None,
        };
        self.seen = map.ver();
        MapUpdate { map, deltas }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_of_the_map_are_kept_while_they_are_fetched() {
        let published = MapPublisher::new();
        let is_kept = || published.state.lock().whole.is_some();
        let (ver, bytes) = published.whole(0);
        for _ in 0..3 {
            advance(FETCH_PAUSE_MAX).await;
            published.release_whole();
            assert!(is_kept());
            assert_eq!(published.whole(ver), (ver, bytes.clone()));
        }
        advance(FETCH_PAUSE_MAX + Duration::from_millis(1)).await;
        published.release_whole();
        assert!(!is_kept());
        assert_eq!(published.whole(ver), (ver, bytes), "made again");
    }
}
