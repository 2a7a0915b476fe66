//! The rules that the model can leave out, one at a time, to prove that it detects each omission.

/// The rules in force: all of them, except in the model.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
}

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "bugs"),
    expect(unreachable_pub, dead_code, reason = "only the model names one")
)]
pub enum Bug {
    /// Refusals follow in the next ack instead of preceding the position in the same one.
    WordBeforeRefusal,
    /// Refusals in force are not reported again on a new link.
    RefusalLostWithLink,
    /// A removed copy's parked batches are released as a whole.
    RemovalFreesWholePiece,
    /// A node counts answers although it refused the records that they follow.
    AnswerDespiteRefusal,
    /// Frames without numbers, and so answers, overtake the records.
    AnswersOvertakeRecords,
    /// The first record of a frame leaves out its policy if it is that of the frame before.
    PolicyOutlivesFrame,
    /// Answers follow the records on one link although another copy is waited for too.
    AnswersBehindOneCopy,
    /// Bytes of the older link are read after the newer one began.
    OlderLinkReadOn,
    /// A resumed stream begins one frame late.
    ResumeOneBehind,
    /// A parked batch waits for its first link only.
    PieceNeedsOneLink,
    /// Reads are answered before all mandatory copies hold the changes that they saw.
    ReadNotParked,
    /// A learner gets no records until it is mandatory.
    SetAfterMandatory,
    /// An operation that is sent again gets a new number.
    NumberNotKeptOnResend,
    /// A log drops results before their op stream is done with them.
    LogDroppedEarly,
    /// Results of a copy that was wiped still count.
    LogSurvivesWipe,
    /// A deposed primary releases its parked batches.
    DeposalReleases,
    /// Answers to older sendings count.
    AnswerOfAnySending,
    /// An operation with a longer time to keep trying is not sent again until its link is new.
    KeptOpNotResent,
    /// Results of operations that changed nothing count in later terms.
    UnchangedSurvivesDeposal,
    /// A refusal ends with an `Adopt` in any stream.
    AdoptInAnyStreamClears,
    /// A result from the log is answered at once.
    FoundAnsweredAtOnce,
    /// Operations of op streams that are not in the map are done.
    UnseenLaneIsNew,
    /// A new primary serves before the other copies have adopted its term.
    ServesBeforeAdopted,
    /// The logs of a node's op streams are dropped when it connects again.
    LogDiesWithStream,
    /// A held operation is looked up when it arrives, not when it is done.
    LookedUpOnArrival,
    /// Operations below the highest done number are done.
    DoneNotRefused,
    /// A worker empties its inbox before it reads the acknowledged positions.
    AckedBeforeInbox,
    /// A copy does not include results.
    ChunkWithoutLog,
    /// Batches of a deposed primary stay parked unchanged.
    DeposalOpensNothing,
    /// A resend is done again.
    NoDedupe,
    /// Records of an older term are accepted.
    AcceptOldTerms,
    /// A learner is made in-sync before its acknowledgement is mandatory.
    LateMandatory,
    /// A learner is made in-sync while it lacks changes that were answered without it.
    LearnerBehind,
    /// A primary hands over before its copies hold everything.
    TransferUndrained,
    /// A primary serves while it hands over.
    ServeInTransfer,
    /// A copy takes over with its node's clock.
    ClockOfNode,
    /// A store expires the items of a partition by its node's clock.
    SweepByWall,
    /// A store expires the items of a copy by the clock of the primary that the node's map names,
    /// though the copy's offset is to the clock of the primary of the copy's term.
    SweepByMapPrimary,
    /// Reads need neither a lease nor a term check.
    ReadsUnconfirmed,
    /// A primary serves without any contact to the controller.
    ServeWhenLost,
    /// An operation stamped with an older term is done.
    AcceptOldAttempts,
    /// Early answers run ahead of the backups without a bound.
    OwnerUnbounded,
    /// Answers are sent before the other copies hold the record.
    AnswerEarly,
    /// A primary stops waiting for a silent copy by itself.
    DropSilentBackup,
    /// A backup that does not follow is removed at once, though one copy is left.
    RemovalAtOnce,
    /// A replica is dropped while the last record of its copy is of an older term.
    RestsBeforeFirstRecord,
    /// A restored primary ignores refusals of what is under way, like those of an earlier copy.
    RestoredPastRefusals,
    /// The map puts the records of a change one by one, up to the first conflict.
    ChangeInParts,
    /// The map does not compare the version of a record of the history.
    HistoryUncompared,
    /// A map takes the later bounds of records before the feature version says so.
    BoundsBeforeVersion,
    /// The ring of the history has one place too few.
    RingTooShort,
    /// A removal of what has expired is sent again with the present versions.
    ExpiryUncompared,
}

impl Rules {
    /// All rules but this one.
    #[cfg(feature = "bugs")]
    #[must_use]
    pub fn without(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether a rule is left out. Never, outside of the model.
    #[cfg(feature = "bugs")]
    #[must_use]
    #[inline]
    pub fn lack(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether a rule is left out. Never, outside of the model.
    #[cfg(not(feature = "bugs"))]
    #[inline]
    #[expect(
        clippy::unused_self,
        clippy::trivially_copy_pass_by_ref,
        reason = "as with the feature"
    )]
    pub(crate) const fn lack(&self, _: Bug) -> bool {
        false
    }
}
