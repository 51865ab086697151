//! The planted bugs by name: the promise that each breaks, and the run in which it shows.

use clap::ValueEnum;

use crate::simulation::{promise::SimulationPromise, setting::Setting};

/// One bug.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum EngineBug {
    /// A release does not wake those who wait.
    WakeUpLost,
    /// A renewal that arrives after the release takes the lock again.
    RenewalAfterRelease,
    /// The lease is counted from the answer instead of from the request.
    ValidFromReceipt,
    /// A release in the background does nothing.
    BackgroundReleaseLost,
    /// A grant to a caller that went away is not given back.
    CancelledKeepsItsGrant,
    /// A caller that goes away keeps its turn in the queue of its process.
    QueueKeepsTheCancelled,
    /// The tasks of a process do not share a queue.
    QueueForEachTask,
    /// A contender that leaves keeps its place at the store.
    LeavesStayInLine,
    /// Renewals are taken for done, and not sent.
    RenewalNotSent,
    /// Renewals are not made.
    RenewalsSkipped,
    /// A renewal that failed is taken for a success.
    RenewalErrorIsSuccess,
    /// Deadlines are read from a clock that is too slow.
    ClockRunsSlow,
    /// Timers run twenty times as long.
    TimersLate,
    /// The answer to one caller goes to its neighbour as well.
    AnswersMixedUp,
    /// A release frees the lock whoever holds it.
    ReleaseWithoutOwner,
    /// The answers of a batch go to the wrong callers.
    BatchAnswersRotated,
    /// When a caller goes away, its neighbour in the batch gets no answer.
    BatchForgetsANeighbour,
    /// A grant to a caller of a batch that went away stays.
    BatchUndoesNothing,
    /// Two batches hold the same key.
    BatchSharesKeys,
}

/// Which run of a seed.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulation) enum Variant {
    Honest,
    Planted(EngineBug),
    /// As the one with this bug, without the bug.
    Twin(EngineBug),
}

impl Variant {
    pub(in crate::simulation) const fn bug(self) -> Option<EngineBug> {
        match self {
            Self::Planted(bug) => Some(bug),
            Self::Honest | Self::Twin(_) => None,
        }
    }
}

impl EngineBug {
    /// The promises of which one must be found broken.
    pub(in crate::simulation) const fn breaks(self) -> &'static [SimulationPromise] {
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
            | Self::ReleaseWithoutOwner => &[Exclusion, Belief],
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
        }
    }

    /// Whether it lives in the batcher.
    pub(in crate::simulation) const fn is_in_the_batcher(self) -> bool {
        matches!(
            self,
            Self::BatchAnswersRotated
                | Self::BatchForgetsANeighbour
                | Self::BatchUndoesNothing
                | Self::BatchSharesKeys
        )
    }

    /// A run in which it can show; the honest twin has the same.
    pub(in crate::simulation) fn shape(self, setting: &mut Setting) {
        match self {
            Self::WakeUpLost | Self::LeavesStayInLine => setting.store_queue = true,
            Self::QueueForEachTask => {
                setting.tasks = setting.tasks.max(2);
                (setting.store_queue, setting.hand_over) = (false, true);
            }
            Self::ValidFromReceipt => setting.chances.late = setting.chances.late.max(60),
            Self::RenewalErrorIsSuccess => setting.cuts = true,
            _ => {}
        }
    }
}
