//! Signs of life on a link: when to ask for one, and how long the peer has owed one.
//!
//! Here: the state, and what follows from the time. Not here: the frames on the wire (`link`).
//!
//! TCP says nothing of a cut link for minutes, and repeats what was lost ever more seldom. So the side
//! that opened a link asks for a sign of life while the link is used, one at a time; the other side
//! only answers. Whatever arrives on the link beside the answer proves nothing: where packets are lost
//! in one direction, the other one goes on for a while.

use std::time::Duration;

use super::Timing;

/// Asks on an idle link are this far apart.
const IDLE: Duration = Duration::from_secs(1);

/// What one link knows of its peer's life.
#[derive(Debug)]
pub(crate) struct Pings {
    /// We opened the link: we ask.
    pings: bool,
    timing: Timing,
    /// The number of the last ask, and when it was written.
    number: u64,
    pinged_ns: u64,
    is_answered: bool,
    /// The link was used since the last ask.
    is_used: bool,
    is_silent: bool,
    /// The peer's ask that is to be answered.
    owed: Option<u64>,
}

/// What the passing of time leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PingAction {
    /// Nothing before this time.
    Nothing(u64),
    /// An ask is to be written.
    Ask,
    /// The peer is silent from now on.
    Silence,
    /// The link has to end.
    End,
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Pings {
    /// A link that is up since `now_ns`.
    pub(crate) fn new(asks: bool, timing: Timing, now_ns: u64) -> Self {
        Self {
            pings: asks,
            timing,
            number: 0,
            pinged_ns: now_ns,
            is_answered: true,
            is_used: false,
            is_silent: false,
            owed: None,
        }
    }

    /// Something else than a sign of life was written.
    pub(crate) fn used(&mut self) {
        self.is_used = true;
    }

    /// The peer asks.
    pub(crate) fn on_ping(&mut self, number: u64) {
        self.owed = Some(number);
    }

    /// The peer answers. True: it was silent until now.
    pub(crate) fn answer(&mut self, number: u64) -> bool {
        if number != self.number {
            return false;
        }
        self.is_answered = true;
        std::mem::take(&mut self.is_silent)
    }

    /// The number of the peer's ask that is to be answered now.
    pub(crate) fn take_owed(&mut self) -> Option<u64> {
        self.owed.take()
    }

    /// Whether an answer waits to be written.
    pub(crate) fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// The next ask, which is written now.
    pub(crate) fn next(&mut self, now_ns: u64) -> u64 {
        self.number += 1;
        self.pinged_ns = now_ns;
        self.is_answered = false;
        self.is_used = false;
        self.number
    }

    /// Whether it is time to ask.
    fn is_ping_due(&self, now_ns: u64) -> bool {
        let pause = if self.is_used { self.timing.ping } else { IDLE };
        self.pings && self.is_answered && now_ns.saturating_sub(self.pinged_ns) >= ns(pause)
    }

    /// What was blocked at the socket moves on: the peer's host acknowledges, so both ways are open.
    pub(crate) fn moved(&mut self, now_ns: u64) {
        self.pinged_ns = self.pinged_ns.max(now_ns);
    }

    /// Whether [`Pings::due`] tells something new because the peer has not answered.
    pub(crate) fn is_overdue(&self, now_ns: u64) -> bool {
        let limit = if self.is_silent { self.timing.lost } else { self.timing.silent };
        !self.is_answered && now_ns >= self.pinged_ns.saturating_add(ns(limit))
    }

    /// What is due now, or when something will be.
    pub(crate) fn due(&mut self, now_ns: u64) -> PingAction {
        if !self.pings {
            return PingAction::Nothing(u64::MAX);
        }
        if self.is_ping_due(now_ns) {
            return PingAction::Ask;
        }
        let after = |time: Duration| self.pinged_ns.saturating_add(ns(time));
        if self.is_answered {
            return PingAction::Nothing(after(if self.is_used { self.timing.ping } else { IDLE }));
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
