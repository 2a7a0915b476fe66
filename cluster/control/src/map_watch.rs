//! The newest map that this node knows, and who waits for a newer one.
//!
//! Here: one place for a map that comes from Raft's log, from a snapshot or from a voter's news,
//! whichever is first. Not here: where it comes from.
//!
//! All three bring committed changes only, so the newer one is right whoever says it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::map::{Delta, Deltas, Map, Since};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Most bytes of deltas in one piece of news; who is further behind asks again.
const NEWS_BYTES_MAX: usize = 256 << 10;

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
    /// The whole map in bytes, as it was handed out last.
    whole: Option<(u64, Bytes)>,
    /// Who votes, and the place of that in the log, from 1; both as far as it is committed.
    voters: (u64, BTreeSet<NodeId>),
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

    /// One version on, if it is the next.
    pub(crate) fn follow(&self, delta: Delta) {
        let mut state = self.state.lock();
        // All voters say the same; a map that someone holds is copied only for what is new.
        let is_next = delta.ver == state.map.ver() + 1;
        if is_next && Arc::make_mut(&mut state.map).follow(&delta).is_ok() {
            state.deltas.push(delta);
            self.notify(&state);
        }
    }

    /// One version on to `map`; or to `map` at once, if that is further.
    pub(crate) fn follow_or_replace(&self, delta: Delta, map: &Map) {
        let ver = self.ver();
        if delta.ver == ver + 1 {
            self.follow(delta);
        } else if delta.ver > ver {
            self.replace(map.clone());
        }
    }

    /// The whole map, if it is newer.
    pub(crate) fn replace(&self, map: Map) {
        let mut state = self.state.lock();
        if map.ver() > state.map.ver() {
            state.map = Arc::new(map);
            state.deltas = Deltas::default();
            self.notify(&state);
        }
    }

    /// Told while the map is locked, so that versions never seem to go back.
    fn notify(&self, state: &PublishedMap) {
        self.ver.send_replace(state.map.ver());
    }

    /// Encoded deltas that bring version `from` on; none if it takes the whole map.
    pub(crate) fn since(&self, from: u64) -> Option<Vec<Bytes>> {
        let state = self.state.lock();
        if from > state.map.ver() {
            // The other one is ahead.
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

    /// The whole map in bytes, for pieces: version `ver` as long as it was the last handed out, else
    /// one from which the deltas go on.
    pub(crate) fn whole(&self, ver: u64) -> (u64, Bytes) {
        let mut state = self.state.lock();
        if let Some((kept, bytes)) = &state.whole {
            let goes_on = matches!(state.deltas.since(*kept, state.map.ver()), Since::Deltas(_));
            if *kept == ver || goes_on {
                return (*kept, bytes.clone());
            }
        }
        let whole = (state.map.ver(), Bytes::from(state.map.encode()));
        state.whole = Some(whole.clone());
        whole
    }

    /// Who votes, and since which entry of the log.
    pub(crate) fn voters(&self) -> (u64, BTreeSet<NodeId>) {
        self.state.lock().voters.clone()
    }

    /// Who votes, unless something later is known.
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

/// What became new in the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapUpdate {
    /// The map as it is now.
    pub map: Arc<Map>,
    /// What brought the map before to this one, in order; none: look at all of it.
    pub deltas: Option<Vec<Delta>>,
}

/// Sees each change of the map once.
///
/// Whoever keeps a map makes the next change copy all of it, some milliseconds for 16384 partitions:
/// keep what you need of it, or your own [`Map`] that follows the deltas.
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

    /// What is new since the last call, at once if something is. Changes that come close together
    /// come as one. Dropping the future loses nothing.
    pub async fn changed(&mut self) -> MapUpdate {
        let seen = self.seen;
        // The sender lives in `published`, which lives as long as we do.
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
