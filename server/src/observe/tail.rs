//! The tail: the last denials and changes, and those who follow them.
//!
//! Here: the bounds of both. Not here: the events' transport (`tollgate-http`), their making
//! (`watcher`).

use std::collections::VecDeque;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Sender};
use tollgate_http::{TailEvent, TailStream};

/// Events that are kept for new followers.
pub(crate) const EVENTS_KEPT: usize = 1024;
/// Followers at once; the streams of a further one end at once.
pub(crate) const FOLLOWERS_MAX: usize = 32;
/// Messages that wait for a slow follower.
const MESSAGES_WAITING: usize = 16;
/// Denials a second above which they are thinned.
pub(crate) const EVENTS_A_SECOND: usize = 1000;

/// The state of the tail.
#[derive(Debug, Default)]
pub(crate) struct TailBus {
    kept: VecDeque<TailEvent>,
    followers: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    messages: Sender<(u64, Vec<TailEvent>)>,
    /// Events lost since its last message.
    lost: u64,
}

impl TailBus {
    /// Adds a follower. Its first message has the events that are kept.
    pub(crate) fn follow(&mut self) -> TailStream {
        self.followers.retain(|follower| !follower.messages.is_closed());
        let (messages, events) = mpsc::channel(MESSAGES_WAITING);
        if self.followers.len() < FOLLOWERS_MAX {
            // A new channel has room.
            let _ = messages.try_send((0, self.kept.iter().cloned().collect()));
            self.followers.push(Follower { messages, lost: 0 });
        }
        TailStream { events }
    }

    /// Returns whether there are followers.
    pub(crate) fn is_followed(&mut self) -> bool {
        self.followers.retain(|follower| !follower.messages.is_closed());
        !self.followers.is_empty()
    }

    /// Sends events, oldest first, to all followers. One that does not read loses them.
    pub(crate) fn send(&mut self, events: &[TailEvent]) {
        if events.is_empty() {
            return;
        }
        self.followers.retain_mut(|follower| {
            match follower.messages.try_send((follower.lost, events.to_vec())) {
                Ok(()) => follower.lost = 0,
                Err(TrySendError::Full(_)) => follower.lost += events.len() as u64,
                Err(TrySendError::Closed(_)) => return false,
            }
            true
        });
        let events = &events[events.len().saturating_sub(EVENTS_KEPT)..];
        let excess = (self.kept.len() + events.len()).saturating_sub(EVENTS_KEPT);
        self.kept.drain(..excess);
        self.kept.extend(events.iter().cloned());
    }
}

/// Returns the number of events of which one is sent, if `events` came in `span_ms`.
pub(crate) fn stride(events: usize, span_ms: u64) -> usize {
    let most = EVENTS_A_SECOND as u64 * span_ms.max(1) / 1000;
    events.div_ceil(usize::try_from(most.max(1)).unwrap_or(usize::MAX)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(cost: u64) -> TailEvent {
        TailEvent {
            kind: "denied",
            at_ms: 1,
            key: "a".to_owned(),
            limit: None,
            cost,
            retry_ms: None,
            weight: 1,
        }
    }

    #[test]
    fn follower_gets_kept_events_then_new_ones() {
        let mut bus = TailBus::default();
        let many: Vec<TailEvent> = (0..EVENTS_KEPT as u64 + 5).map(event).collect();
        bus.send(&many[..10]);
        bus.send(&many[10..]);
        let mut stream = bus.follow();
        let (lost, kept) = stream.events.try_recv().expect("the events that are kept");
        assert_eq!((lost, kept.len(), kept[0].cost), (0, EVENTS_KEPT, 5));
        bus.send(&[event(9)]);
        assert_eq!(stream.events.try_recv().expect("a new event"), (0, vec![event(9)]));
    }

    #[test]
    fn slow_follower_hears_how_many_it_lost() {
        let mut bus = TailBus::default();
        let mut stream = bus.follow();
        // The first message, with no event, waits too.
        for _ in 0..MESSAGES_WAITING - 1 {
            bus.send(&[event(1)]);
        }
        bus.send(&[event(2), event(3)]);
        bus.send(&[event(4)]);
        assert_eq!(bus.followers[0].lost, 3);
        for _ in 0..MESSAGES_WAITING {
            assert_eq!(stream.events.try_recv().expect("it was in time").0, 0);
        }
        assert!(stream.events.try_recv().is_err());
        bus.send(&[event(5)]);
        assert_eq!(stream.events.try_recv().expect("there is room again"), (3, vec![event(5)]));
    }

    #[test]
    fn followers_are_bounded_and_forgotten() {
        let mut bus = TailBus::default();
        let mut streams: Vec<TailStream> = (0..FOLLOWERS_MAX).map(|_| bus.follow()).collect();
        assert!(bus.follow().events.is_closed(), "one too many");
        streams.pop();
        assert!(!bus.follow().events.is_closed());
        streams.clear();
        bus.send(&[event(1)]);
        assert!(bus.followers.is_empty());
    }

    #[test]
    fn stride_keeps_to_the_rate() {
        assert_eq!([stride(0, 100), stride(100, 100), stride(101, 100)], [1, 1, 2]);
        assert_eq!([stride(10_000, 100), stride(5, 0), stride(1000, 1000)], [100, 5, 1]);
    }
}
