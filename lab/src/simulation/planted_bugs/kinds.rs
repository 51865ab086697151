//! The planted bugs by name: the promise that each bug breaks, and a run that shows it.

use clap::ValueEnum;

use crate::simulation::{promise::SimulationPromise, setting::Setting};

/// One bug.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum EngineBug {
    /// A release does not wake the waiters
    WakeUpLost,
    /// A renewal that arrives after the release takes the lock again
    RenewalAfterRelease,
    /// The lease is counted from the answer instead of from the request
    ValidFromReceipt,
    /// A release in the background does nothing
    BackgroundReleaseLost,
    /// A grant to a caller that went away is not released
    CancelledKeepsItsGrant,
    /// A caller that goes away keeps its place in the local queue
    QueueKeepsTheCancelled,
    /// The tasks of a process do not share a local queue
    QueueForEachTask,
    /// A contender that leaves keeps its place in the store queue
    LeavesStayInLine,
    /// Renewals are taken for a success and not sent
    RenewalNotSent,
    /// Renewals never end
    RenewalsSkipped,
    /// A renewal that failed is taken for a success
    RenewalErrorIsSuccess,
    /// Deadlines are read from a clock that is too slow
    ClockRunsSlow,
    /// Timers take twenty times as long
    TimersLate,
    /// The answer to one caller also goes to its neighbour
    AnswersMixedUp,
    /// A release frees the lock even if somebody else holds it
    ReleaseWithoutOwner,
    /// The answers of a batch go to the wrong callers
    BatchAnswersRotated,
    /// When a caller goes away, its neighbour in the batch gets no answer
    BatchForgetsANeighbour,
    /// A grant to a caller of a batch that went away is not undone
    BatchUndoesNothing,
    /// Two batches contain the same key
    BatchSharesKeys,
    /// A member of a quorum votes whatever its marker says
    MarkerIgnored,
    /// A member of a quorum that has forgotten votes as soon as it has a marker again
    MarkerAgeNotCompared,
    /// A renewal counts at members that belong to another quorum by now
    ReplacedMarkerRenewed,
    /// A raise does not compare the owner
    RaiseWithoutOwner,
    /// The token of another holder counts into the token of a round
    BusyTokenCounted,
    /// All rounds of a call have one owner
    OneOwnerForAllRounds,
    /// A name of a ring that has moved is free at once
    NoQuarantine,
    /// A quarantine counts from the last read of the earlier view by the client itself
    QuarantineFromOwnRead,
    /// A quarantine counts from a view that is not confirmed
    UnconfirmedViewCounts,
    /// A change of the members forgets the quarantines of the changes before
    PendingForgotten,
    /// A client that cannot read the view goes on with the last one
    ViewUsedTooLong,
    /// A lock is renewed where it was granted, although its name has moved
    RenewalFollowsItsName,
    /// The tokens of a name that has moved are not raised
    TokenFloorIgnored,
    /// A name belongs to a member of the last known list by hash and modulo, and nothing else
    ModuloAlone,
}

/// The variant of a seed.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulation) enum Variant {
    Honest,
    Planted(EngineBug),
    /// The twin of a bug: the same setting, without the bug.
    Twin(EngineBug),
}

impl Variant {
    /// Returns the bug, unless this variant runs without it.
    pub(in crate::simulation) const fn bug(self) -> Option<EngineBug> {
        match self {
            Self::Planted(bug) => Some(bug),
            Self::Honest | Self::Twin(_) => None,
        }
    }
}

impl EngineBug {
    /// Returns the promises that the bug may break; the checks must find one of them broken.
    pub(in crate::simulation) const fn may_break(self) -> &'static [SimulationPromise] {
        use SimulationPromise::*;
        match self {
            Self::WakeUpLost => &[NobodyForgotten],
            Self::RenewalAfterRelease
            | Self::BackgroundReleaseLost
            | Self::CancelledKeepsItsGrant => &[GivenBack],
            Self::ValidFromReceipt
            | Self::RenewalNotSent
            | Self::RenewalErrorIsSuccess
            | Self::ClockRunsSlow
            | Self::ReleaseWithoutOwner
            | Self::OneOwnerForAllRounds => &[Exclusion, Belief],
            Self::QueueKeepsTheCancelled => &[Recovery, NobodyForgotten, NothingLeft],
            Self::QueueForEachTask => &[QueueOrder],
            Self::LeavesStayInLine => &[NothingLeft],
            Self::RenewalsSkipped => &[KeptInPeace],
            Self::TimersLate => &[LossIsTold, CallsEnd],
            Self::AnswersMixedUp => &[OwnAnswer, Exclusion],
            Self::BatchAnswersRotated
            | Self::BatchForgetsANeighbour
            | Self::BatchUndoesNothing
            | Self::BatchSharesKeys => &[Batches],
            Self::MarkerIgnored | Self::MarkerAgeNotCompared => &[Exclusion, Majority],
            Self::RaiseWithoutOwner => &[Exclusion, Majority, TokensRise],
            Self::BusyTokenCounted => &[OwnAnswer, TokensRise],
            Self::ReplacedMarkerRenewed
            | Self::NoQuarantine
            | Self::QuarantineFromOwnRead
            | Self::UnconfirmedViewCounts
            | Self::PendingForgotten
            | Self::RenewalFollowsItsName
            | Self::ModuloAlone => &[Exclusion],
            Self::ViewUsedTooLong => &[FreshView, Exclusion],
            Self::TokenFloorIgnored => &[TokensRise],
        }
    }

    /// Tells whether the bug is planted in the quorum.
    pub(in crate::simulation) const fn is_in_the_quorum(self) -> bool {
        matches!(
            self,
            Self::MarkerIgnored
                | Self::MarkerAgeNotCompared
                | Self::ReplacedMarkerRenewed
                | Self::RaiseWithoutOwner
                | Self::BusyTokenCounted
                | Self::OneOwnerForAllRounds
        )
    }

    /// Tells whether the bug is planted in the ring.
    pub(in crate::simulation) const fn is_in_the_ring(self) -> bool {
        matches!(
            self,
            Self::NoQuarantine
                | Self::QuarantineFromOwnRead
                | Self::UnconfirmedViewCounts
                | Self::PendingForgotten
                | Self::ViewUsedTooLong
                | Self::RenewalFollowsItsName
                | Self::TokenFloorIgnored
                | Self::ModuloAlone
        )
    }

    /// Tells whether the bug is planted in the batcher.
    pub(in crate::simulation) const fn is_in_the_batcher(self) -> bool {
        matches!(
            self,
            Self::BatchAnswersRotated
                | Self::BatchForgetsANeighbour
                | Self::BatchUndoesNothing
                | Self::BatchSharesKeys
        )
    }

    /// Changes the setting of a run so that the bug can break a promise. The twin of the bug (the
    /// run without the bug on the same seed) has the same setting.
    pub(in crate::simulation) fn adjust_setting(self, setting: &mut Setting) {
        match self {
            Self::WakeUpLost | Self::LeavesStayInLine => setting.store_queue = true,
            Self::QueueForEachTask => {
                setting.tasks = setting.tasks.max(2);
                (setting.store_queue, setting.hand_over) = (false, true);
            }
            Self::ValidFromReceipt | Self::OneOwnerForAllRounds => {
                setting.chances.late = setting.chances.late.max(60);
            }
            Self::RenewalErrorIsSuccess | Self::QuarantineFromOwnRead | Self::ViewUsedTooLong => {
                setting.cuts = true;
            }
            Self::ReplacedMarkerRenewed => setting.move_quorum(),
            Self::MarkerIgnored | Self::MarkerAgeNotCompared => setting.forget(),
            Self::RaiseWithoutOwner => {
                setting.forget();
                setting.forced = true;
                setting.chances.late = setting.chances.late.max(60);
            }
            _ => {}
        }
        if let Some(ring) = &mut setting.ring {
            ring.stalls |= self == Self::UnconfirmedViewCounts;
            ring.fast_clock |= self == Self::TokenFloorIgnored;
        }
    }
}
