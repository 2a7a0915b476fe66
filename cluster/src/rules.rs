//! Rules that the model leaves out, one at a time, to prove that it would find them missing.

/// The rules that are in force: all of them, outside of the model.
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
    /// Refusals follow the next word instead of preceding the position in the same one.
    WordBeforeRefusal,
    /// Refusals that stand are not said again on a new link.
    RefusalLostWithLink,
    /// A removed copy's pieces are released as a whole.
    RemovalFreesWholePiece,
    /// What the older link still holds is read after the newer one began.
    OlderLinkReadOn,
    /// A resumed stream begins one frame late.
    ResumeOneBehind,
    /// A piece waits for its first link only.
    PieceNeedsOneLink,
    /// Reads are answered before what they saw is held by all.
    ReadNotParked,
    /// A learner gets no records until it is mandatory.
    SetAfterMandatory,
    /// An operation that is sent again gets a new number.
    NumberNotKeptOnResend,
    /// A log drops results before their lane is done with them.
    LogDroppedEarly,
    /// Results of a copy that was wiped still count.
    LogSurvivesWipe,
    /// A deposed primary releases what waited.
    DeposalReleases,
    /// Answers to older sendings count.
    AnswerOfAnySending,
    /// Results of what changed nothing count in later terms.
    UnchangedSurvivesDeposal,
    /// A refusal ends with an `Adopt` in any stream.
    AdoptInAnyStreamClears,
    /// A result that was found is answered at once.
    FoundAnsweredAtOnce,
    /// Operations of lanes that the map does not know are done.
    UnseenLaneIsNew,
    /// A new primary serves before the other copies have adopted its term.
    ServesBeforeAdopted,
    /// The log of a lane goes with the stream that filled it.
    LogDiesWithStream,
    /// An operation that is held is looked up when it arrives, not when it is done.
    LookedUpOnArrival,
    /// Operations below the highest done number are done.
    DoneNotRefused,
    /// A worker empties its inbox before it reads the acknowledged positions.
    AckedBeforeInbox,
    /// Results are not part of a copy.
    ChunkWithoutLog,
    /// Pieces of a deposed primary stay parked as they are.
    DeposalOpensNothing,
    /// A resend is done again.
    NoDedupe,
    /// Records of a term that is over are accepted.
    AcceptOldTerms,
    /// A learner is made in-sync before its acknowledgement is mandatory.
    LateMandatory,
    /// A learner is made in-sync while it lacks what was answered without it.
    LearnerBehind,
    /// A primary hands over before its copies hold everything.
    TransferUndrained,
    /// A primary serves while it hands over.
    ServeInTransfer,
    /// A copy takes over with its node's clock.
    ClockOfNode,
    /// A store looks at the items of a partition by its node's clock.
    SweepByWall,
    /// Reads need neither lease nor round.
    ReadsUnconfirmed,
    /// A primary serves however long it has not heard the controller.
    ServeWhenLost,
    /// An attempt of an older term is done.
    AcceptOldAttempts,
    /// Early answers run ahead of the backups without a bound.
    OwnerUnbounded,
    /// Answers are sent before the other copies hold the record.
    AnswerEarly,
    /// A primary stops waiting for a silent copy by itself.
    DropSilentBackup,
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
