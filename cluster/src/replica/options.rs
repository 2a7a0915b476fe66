//! What can be set about a copy, and the faults that its model can switch on.

/// How copies behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Most records that some copy has not acknowledged: beyond it operations are refused.
    pub unacked_max: usize,
    /// Most operations held while the primary changes.
    pub held_max: usize,
    /// Longest that an operation is held.
    pub hold_ns: u64,
    /// Most reads that wait for their round.
    pub reads_max: usize,
    /// Most results kept for one session.
    pub results_max: usize,
    /// About how large a piece of a copy is.
    pub chunk_bytes: usize,
    /// After so long without an answer, send again.
    pub resend_ns: u64,
    /// Most records sent again at once.
    pub resend_records: usize,
    /// An idle primary tells its backups the time so often.
    pub beat_ns: u64,
    /// A backup that owes an answer for so long is to be removed.
    pub silent_ns: u64,
    /// The controller is asked again after so long.
    pub ask_ns: u64,
    /// So many records behind, a learner's acknowledgement becomes mandatory.
    pub caught_up: u64,
    /// For so long after sending a heartbeat that the controller answered, nobody else is made
    /// primary: reads need no round. 0: each needs one. Less than the controller's patience by more
    /// than clocks may differ in rate.
    pub read_lease_ns: u64,
    /// Operations with [`AckMode::Owner`](super::AckMode) are answered at once while the oldest record
    /// that a backup lacks is no older.
    pub owner_lag_ns: u64,
    /// After four fifths of it without contact to the controller a primary serves no more, since it
    /// may give up the partition after the whole. None: it never does.
    pub lost_after_ns: Option<u64>,
    /// The earliest time that a partition begins with, in nanoseconds since 1970: a wall clock that is
    /// behind it is not believed.
    pub begins_min_ns: u64,
    /// The latest one, likewise.
    pub begins_max_ns: u64,
    /// A rule that is left out. Where the whole workspace is built this field is there: end a literal with
    /// `..Options::default()`.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

const MS: u64 = 1_000_000;

impl Default for Options {
    fn default() -> Self {
        Self {
            unacked_max: 4096,
            held_max: 1024,
            hold_ns: 250 * MS,
            reads_max: 4096,
            results_max: 1024,
            chunk_bytes: 32 << 10,
            resend_ns: 100 * MS,
            resend_records: 256,
            beat_ns: 1000 * MS,
            silent_ns: 1500 * MS,
            ask_ns: 200 * MS,
            caught_up: 2,
            read_lease_ns: 1400 * MS,
            owner_lag_ns: 10 * MS,
            lost_after_ns: Some(300_000 * MS),
            begins_min_ns: 0,
            begins_max_ns: u64::MAX,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }
}

/// Rules that the model leaves out, one at a time, to prove that it would find them missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "only the model may name one"))]
pub enum Bug {
    /// A primary answers before its backups hold the record.
    AnswerEarly,
    /// A primary stops waiting for a silent backup by itself.
    DropSilentBackup,
    /// A resend is done again.
    NoDedupe,
    /// A backup accepts records of a term that is over.
    AcceptOldTerms,
    /// A learner is made in-sync before its acknowledgement is mandatory.
    LateMandatory,
    /// A learner is made in-sync while it still lacks records that were answered without it.
    LearnerBehind,
    /// A new primary is adopted by the length of its history alone.
    AdoptByLength,
    /// A primary hands over without waiting for its copies.
    TransferUndrained,
    /// A primary goes on doing operations after it asked to hand over.
    ServeInTransfer,
    /// A copy takes over with its node's clock.
    ClockOfNode,
    /// Reads are never confirmed by a round.
    ReadsUnconfirmed,
    /// A primary serves however long it has not heard from the controller.
    ServeWhenLost,
    /// An attempt of an older term is done.
    AcceptOldAttempts,
    /// What a learner said before it began anew still counts.
    OldStartsCount,
    /// Results are not part of a copy.
    CopyWithoutResults,
    /// Operations that are answered early are answered so however far the backup is behind.
    OwnerUnbounded,
    /// Items are swept by their node's wall clock.
    SweepByWall,
    /// Batches are served from the header of a partition that has other copies.
    OpenBesideCopies,
    /// Numbers that were given out from a header are given out again.
    CloseWithoutNumber,
    #[cfg(feature = "bugs")]
    /// A record has what became of the key, but not the id of the request (the model's payload).
    RecordWithoutId,
    #[cfg(feature = "bugs")]
    /// Ids are not part of a copy (the model's payload).
    CopyWithoutIds,
    #[cfg(feature = "bugs")]
    /// A copy that begins anew still answers the ids it had (the model's payload).
    ClearWithoutIds,
}

impl Options {
    /// For so long without contact to the controller a primary serves.
    #[must_use]
    pub fn serves_for_ns(&self) -> u64 {
        match self.lost_after_ns {
            Some(lost_ns) if !self.has(Bug::ServeWhenLost) => lost_ns / 5 * 4,
            _ => u64::MAX,
        }
    }

    /// Whether a rule is left out. Never, outside of the model.
    #[cfg(feature = "bugs")]
    #[inline]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether a rule is left out. Never, outside of the model.
    #[cfg(not(feature = "bugs"))]
    #[inline]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) const fn has(&self, _: Bug) -> bool {
        false
    }
}
