//! Pings on a link: when to send one, and how long the answer has been due.
//!
//! Here: the state of pings, and the actions that the time requires. Not here: the frames on the
//! wire (`link`).
//!
//! TCP reports a cut link only after minutes, and repeats lost packets ever less frequently. So the
//! side that opened a link sends pings, one at a time, more frequently while the link is used; the
//! other side only answers.
//!
//! Other traffic on the link does not count as an answer: when packets are lost in one direction,
//! the other direction works for a while. The exception is much traffic since the ping: the answer
//! may still be queued behind it. TCP sends at most one window to a host that acknowledges nothing,
//! so this delays the end of a cut link only a little.

use std::time::Duration;

use super::Timing;

/// Interval of pings on an idle link.
const IDLE: Duration = Duration::from_secs(1);
/// Received bytes behind which the answer to a ping may still be queued.
const QUEUED_BYTES: usize = 1 << 20;

/// The state of pings on one link.
#[derive(Debug)]
pub(crate) struct Pings {
    /// Whether this side opened the link, and so sends pings.
    pings: bool,
    timing: Timing,
    /// The number of the last ping, and the time when it was written.
    number: u64,
    pinged_ns: u64,
    is_answered: bool,
    /// Bytes received since the ping, or since they last gave its answer more time.
    received: usize,
    /// Whether the link was used since the last ping.
    is_used: bool,
    is_silent: bool,
    /// The number of the peer's ping that is to be answered.
    owed: Option<u64>,
}

/// The action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PingAction {
    /// None before this time.
    Nothing(u64),
    /// Write a ping.
    Ask,
    /// Treat the peer as silent from now on.
    Silence,
    /// End the link.
    End,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Pings {
    /// The state of a link that is up since `now_ns`. `asks`: this side sends pings.
    pub(crate) fn new(asks: bool, timing: Timing, now_ns: u64) -> Self {
        Self {
            pings: asks,
            timing,
            number: 0,
            pinged_ns: now_ns,
            is_answered: true,
            received: 0,
            is_used: false,
            is_silent: false,
            owed: None,
        }
    }

    /// Records that a frame other than a ping or pong was written.
    pub(crate) fn used(&mut self) {
        self.is_used = true;
    }

    /// Records the peer's ping.
    pub(crate) fn on_ping(&mut self, number: u64) {
        self.owed = Some(number);
    }

    /// Records the peer's answer. Returns whether the peer was silent until now.
    pub(crate) fn answer(&mut self, number: u64) -> bool {
        if number != self.number {
            return false;
        }
        self.is_answered = true;
        std::mem::take(&mut self.is_silent)
    }

    /// Removes and returns the number of the peer's ping that is to be answered.
    pub(crate) fn take_owed(&mut self) -> Option<u64> {
        self.owed.take()
    }

    /// Whether an answer is to be written.
    pub(crate) fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// Returns the number of a new ping, which is written now.
    pub(crate) fn next(&mut self, now_ns: u64) -> u64 {
        self.number += 1;
        self.pinged_ns = now_ns;
        self.is_answered = false;
        self.received = 0;
        self.is_used = false;
        self.number
    }

    /// Whether a new ping is due.
    fn is_ping_due(&self, now_ns: u64) -> bool {
        self.has_passed(self.pause(), now_ns)
    }

    /// Whether a new ping may go with an answer that is written now. Half of the pause is enough,
    /// so that both sides ask in one exchange, which wakes each of them less often than two.
    pub(crate) fn may_join_answer(&self, now_ns: u64) -> bool {
        self.has_passed(self.pause() / 2, now_ns)
    }

    fn pause(&self) -> Duration {
        if self.is_used { self.timing.ping } else { IDLE }
    }

    /// Whether this time has passed since the last ping, and none is under way.
    fn has_passed(&self, pause: Duration, now_ns: u64) -> bool {
        self.pings && self.is_answered && now_ns.saturating_sub(self.pinged_ns) >= ns(pause)
    }

    /// Records that a blocked write makes progress: the peer's host acknowledges, so both
    /// directions work.
    pub(crate) fn moved(&mut self, now_ns: u64) {
        self.pinged_ns = self.pinged_ns.max(now_ns);
    }

    /// Records bytes that were received from the peer.
    pub(crate) fn received(&mut self, count: usize) {
        self.received = self.received.saturating_add(count);
    }

    /// Whether the answer is late: [`Pings::due`] then reports a new action, unless many bytes were
    /// received.
    pub(crate) fn is_overdue(&self, now_ns: u64) -> bool {
        let limit = if self.is_silent { self.timing.lost } else { self.timing.silent };
        !self.is_answered && now_ns >= self.pinged_ns.saturating_add(ns(limit))
    }

    /// Returns the action that is due at `now_ns`, or the time of the next one.
    pub(crate) fn due(&mut self, now_ns: u64) -> PingAction {
        if !self.pings {
            return PingAction::Nothing(u64::MAX);
        }
        if self.is_ping_due(now_ns) {
            return PingAction::Ask;
        }
        if self.received >= QUEUED_BYTES && self.is_overdue(now_ns) {
            self.received = 0;
            self.moved(now_ns);
        }
        let after = |time: Duration| self.pinged_ns.saturating_add(ns(time));
        if self.is_answered {
            return PingAction::Nothing(after(self.pause()));
        }
        if now_ns >= after(self.timing.lost) {
            return PingAction::End;
        }
        if self.is_silent {
            return PingAction::Nothing(after(self.timing.lost));
        }
        if now_ns < after(self.timing.silent) {
            return PingAction::Nothing(after(self.timing.silent));
        }
        self.is_silent = true;
        PingAction::Silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pings() -> Pings {
        Pings::new(true, Timing::default(), 0)
    }

    #[test]
    fn used_link_asks_ten_times_a_second() {
        let mut pings = pings();
        pings.used();
        assert_eq!(pings.due(60 * MS), PingAction::Nothing(100 * MS));
        assert_eq!(pings.due(100 * MS), PingAction::Ask);
        assert_eq!(pings.next(100 * MS), 1);
        assert!(!pings.is_ping_due(350 * MS), "one at a time");
        assert!(!pings.answer(1));
        assert_eq!(pings.due(350 * MS), PingAction::Nothing(1100 * MS), "idle");
        pings.used();
        assert_eq!(pings.due(350 * MS), PingAction::Ask);
    }

    #[test]
    fn ping_goes_with_an_answer_after_half_of_the_pause() {
        let mut pings = pings();
        assert!(!pings.may_join_answer(499 * MS) && pings.may_join_answer(500 * MS));
        pings.used();
        assert!(!pings.may_join_answer(49 * MS) && pings.may_join_answer(50 * MS));
        pings.next(50 * MS);
        assert!(!pings.may_join_answer(900 * MS), "one at a time");
        pings.answer(1);
        assert!(pings.may_join_answer(900 * MS));
        assert!(!Pings::new(false, Timing::default(), 0).may_join_answer(900 * MS));
    }

    #[test]
    fn peer_without_answer_is_silent_then_lost() {
        let mut pings = pings();
        pings.used();
        pings.next(100 * MS);
        assert_eq!(pings.due(399 * MS), PingAction::Nothing(400 * MS));
        assert!(!pings.is_overdue(399 * MS) && pings.is_overdue(400 * MS));
        assert_eq!(pings.due(400 * MS), PingAction::Silence);
        assert_eq!(pings.due(401 * MS), PingAction::Nothing(3100 * MS), "it is told once");
        assert!(!pings.is_overdue(401 * MS) && pings.is_overdue(3100 * MS));
        assert!(pings.answer(1), "it is heard again");
        pings.used();
        assert_eq!(pings.due(500 * MS), PingAction::Ask);
        pings.next(500 * MS);
        assert!(!pings.answer(1), "that was answered before");
        assert_eq!(pings.due(900 * MS), PingAction::Silence);
        pings.moved(1000 * MS);
        assert_eq!(pings.due(3999 * MS), PingAction::Nothing(4000 * MS));
        assert_eq!(pings.due(4000 * MS), PingAction::End);
    }

    #[test]
    fn answer_behind_many_bytes_may_come_late() {
        let mut pings = pings();
        pings.used();
        pings.received(QUEUED_BYTES);
        pings.next(100 * MS);
        pings.received(QUEUED_BYTES - 1);
        assert_eq!(pings.due(399 * MS), PingAction::Nothing(400 * MS));
        pings.received(1);
        assert_eq!(pings.due(399 * MS), PingAction::Nothing(400 * MS), "it is not due yet");
        assert_eq!(pings.due(400 * MS), PingAction::Nothing(700 * MS));
        pings.received(QUEUED_BYTES - 1);
        assert_eq!(pings.due(700 * MS), PingAction::Silence, "fewer bytes");
        pings.received(1);
        assert_eq!(pings.due(3400 * MS), PingAction::Nothing(6400 * MS), "it is not lost yet");
        assert_eq!(pings.due(6400 * MS), PingAction::End);
    }

    #[test]
    fn side_that_accepted_only_answers() {
        let mut pings = Pings::new(false, Timing::default(), 0);
        pings.used();
        assert_eq!(pings.due(u64::MAX), PingAction::Nothing(u64::MAX));
        pings.on_ping(7);
        assert!(pings.owes());
        assert_eq!(pings.take_owed(), Some(7));
        assert!(!pings.owes());
    }
}
