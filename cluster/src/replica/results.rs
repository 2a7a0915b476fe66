//! Results that are kept until their session has them, so that a resend is answered and not done
//! again.
//!
//! Results of changes are part of the partition: they come with its records, in its copies, and go
//! when a record says that their session has them. Results of operations that changed nothing are
//! known only where they were made, and only while that copy is primary; an attempt is bound to one
//! term, so no other copy will ever be asked for them.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::event::{SessionId, Stamp};
use crate::id::{Incarnation, NodeId};

/// What is kept for one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionResults {
    /// Whose.
    pub session: SessionId,
    /// Everything below it is done with, as the records say; at least 1.
    pub floor: u64,
    /// Number, lsn and result, by ascending number.
    pub kept: Vec<(u64, u64, Bytes)>,
}

/// What is known of an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Known<'a> {
    /// Nothing: do it.
    New,
    /// It was done, in the record `lsn`; none: it changed nothing.
    Done { lsn: Option<u64>, result: &'a Bytes },
    /// It is done with, or its session is over.
    Stale,
    /// The session has as many unfinished operations here as it may have.
    TooMany,
}

#[derive(Debug, Clone)]
struct Kept {
    seq: u64,
    lsn: u64,
    result: Bytes,
}

/// What is known of one core of one node.
#[derive(Debug, Clone, Default)]
struct Session {
    /// By the records: the life of the node, what it is done with, and results by ascending number.
    incarnation: Incarnation,
    floor: u64,
    kept: VecDeque<Kept>,
    /// By what came to this primary: the newest life, what it is done with, and results of what
    /// changed nothing.
    heard: Incarnation,
    told: u64,
    unchanged: BTreeMap<u64, Bytes>,
}

impl Session {
    fn place(&self, seq: u64) -> Result<usize, usize> {
        self.kept.binary_search_by_key(&seq, |kept| kept.seq)
    }

    /// How many the session may still ask for; those before wait for a record that drops them.
    fn unfinished(&self) -> usize {
        let first = self.place(self.told).unwrap_or_else(|place| place);
        self.kept.len() - first + self.unchanged.len()
    }

    /// Something came from this life; false if it is over.
    fn hear(&mut self, incarnation: Incarnation, first_unacked: u64) -> bool {
        let heard = self.heard.max(self.incarnation);
        if incarnation < heard {
            return false;
        }
        if incarnation > self.heard {
            self.heard = incarnation;
            self.told = 0;
            self.unchanged.clear();
        }
        if first_unacked > self.told {
            self.told = first_unacked;
            if !self.unchanged.is_empty() {
                self.unchanged = self.unchanged.split_off(&first_unacked);
            }
        }
        true
    }

    /// A record came from this life; false if it is over, as the records have it.
    fn record(&mut self, incarnation: Incarnation, floor: u64) -> bool {
        if incarnation < self.incarnation {
            return false;
        }
        if incarnation > self.incarnation {
            self.incarnation = incarnation;
            self.floor = 0;
            self.kept.clear();
        }
        self.floor = self.floor.max(floor);
        while self.kept.front().is_some_and(|kept| kept.seq < self.floor) {
            self.kept.pop_front();
        }
        true
    }
}

/// The results of one partition. One life of a node counts per core: a newer one ends the older.
#[derive(Debug, Clone, Default)]
pub(crate) struct Results {
    /// By ascending node and core. A list, for there are few, and a partition for each of thousands.
    sessions: Vec<((NodeId, u16), Session)>,
}

impl Results {
    fn find(&self, node: NodeId, core: u16) -> Result<usize, usize> {
        self.sessions.binary_search_by_key(&(node, core), |(name, _)| *name)
    }

    fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        let place = self.find(id.node, id.core).ok()?;
        Some(&mut self.sessions[place].1)
    }

    fn session_or_new(&mut self, id: SessionId) -> &mut Session {
        let place = self.find(id.node, id.core).unwrap_or_else(|place| {
            self.sessions.insert(place, ((id.node, id.core), Session::default()));
            place
        });
        &mut self.sessions[place].1
    }

    /// What is known of an attempt; takes note of what its session has done with.
    pub(crate) fn look_up(
        &mut self,
        id: SessionId,
        seq: u64,
        first_unacked: u64,
        kept_max: usize,
    ) -> Known<'_> {
        let session = self.session_or_new(id);
        let is_recorded = session.incarnation == id.incarnation;
        let floor = if is_recorded { session.floor } else { 0 };
        if !session.hear(id.incarnation, first_unacked) || seq < floor.max(session.told) {
            return Known::Stale;
        }
        if is_recorded && let Ok(place) = session.place(seq) {
            let kept = &session.kept[place];
            return Known::Done { lsn: Some(kept.lsn), result: &kept.result };
        }
        if session.unfinished() >= kept_max && !session.unchanged.contains_key(&seq) {
            return Known::TooMany;
        }
        match session.unchanged.get(&seq) {
            Some(result) => Known::Done { lsn: None, result },
            None => Known::New,
        }
    }

    /// Takes note of what a session has done with: of what changed nothing nobody else knows.
    pub(crate) fn hear(&mut self, id: SessionId, first_unacked: u64) {
        if let Some(session) = self.session(id) {
            session.hear(id.incarnation, first_unacked);
        }
    }

    /// Keeps the result of an operation that changed nothing.
    pub(crate) fn keep_unchanged(&mut self, id: SessionId, seq: u64, result: Bytes) {
        if let Some(session) = self.session(id) {
            session.unchanged.insert(seq, result);
        }
    }

    /// Takes over what a record says.
    pub(crate) fn absorb(&mut self, lsn: u64, stamp: &Stamp) {
        let id = stamp.session;
        let session = self.session_or_new(id);
        if session.record(id.incarnation, stamp.first_unacked)
            && let Some((seq, result)) = &stamp.result
            && *seq >= session.floor
            && let Err(place) = session.place(*seq)
        {
            session.kept.insert(place, Kept { seq: *seq, lsn, result: result.clone() });
        }
    }

    /// Whether a record is worth while that only says: everything below `first_unacked` is done with.
    pub(crate) fn can_prune(&self, id: SessionId, first_unacked: u64) -> bool {
        self.find(id.node, id.core).is_ok_and(|place| {
            let session = &self.sessions[place].1;
            session.incarnation == id.incarnation
                && session.kept.front().is_some_and(|kept| kept.seq < first_unacked)
        })
    }

    /// Forgets what only this primary knew: it is primary no more.
    pub(crate) fn drop_unchanged(&mut self) {
        for (_, session) in &mut self.sessions {
            session.heard = Incarnation::default();
            session.told = 0;
            session.unchanged.clear();
        }
    }

    /// Forgets the sessions of nodes that are no more.
    pub(crate) fn retain(&mut self, is_known: impl Fn(NodeId) -> bool) {
        self.sessions.retain(|((node, _), _)| is_known(*node));
    }

    /// Appends what a copy gets: sessions from this one on, until `bytes_max` is passed; answers where
    /// to go on.
    pub(crate) fn export(
        &self,
        from: (NodeId, u16),
        bytes_max: usize,
        out: &mut Vec<SessionResults>,
    ) -> Option<(NodeId, u16)> {
        let mut bytes = 0;
        let begin = self.find(from.0, from.1).unwrap_or_else(|place| place);
        for &((node, core), ref session) in &self.sessions[begin..] {
            if bytes > bytes_max {
                return Some((node, core));
            }
            // Else no record says anything of it.
            if session.floor > 0 {
                let kept: Vec<_> = session
                    .kept
                    .iter()
                    .map(|kept| (kept.seq, kept.lsn, kept.result.clone()))
                    .collect();
                bytes += size_of::<SessionResults>();
                bytes += kept.iter().map(|(_, _, result)| 16 + result.len()).sum::<usize>();
                let id = SessionId { node, incarnation: session.incarnation, core };
                out.push(SessionResults { session: id, floor: session.floor, kept });
            }
        }
        None
    }

    /// Adds what [`Results::export`] gave; records absorbed already, or later, do no harm.
    pub(crate) fn import(&mut self, all: &[SessionResults]) {
        for one in all {
            let floor = Stamp { session: one.session, first_unacked: one.floor, result: None };
            self.absorb(0, &floor);
            for (seq, lsn, result) in &one.kept {
                let result = Some((*seq, result.clone()));
                self.absorb(*lsn, &Stamp { result, ..floor });
            }
        }
    }

    /// How many results are kept.
    pub(crate) fn len(&self) -> usize {
        self.sessions.iter().map(|(_, session)| session.kept.len() + session.unchanged.len()).sum()
    }
}
