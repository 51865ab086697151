//! The planted bugs by name: the promise that each breaks, and the run in which it shows.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::chaos::{nemesis::FaultKind, stores::StoreKind, verdict::Promise, workload::Workload};

/// One bug.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreBug {
    /// A release frees the lock whoever holds it.
    ReleaseWithoutOwner,
    /// A release looks at the owner, and deletes a moment later.
    ReleaseInTwoSteps,
    /// A release says that it happened, and does nothing.
    ReleaseDoesNothing,
    /// A renewal that finds somebody else there is taken for a success.
    RenewalAlwaysSucceeds,
    /// A renewal that failed, or has not answered, is taken for a success.
    RenewalErrorIsSuccess,
    /// The lease is counted from the answer instead of from the request, on a slow network.
    ValidFromReceipt,
    /// The client believes in three times the lease that the store gave.
    ValidTooLong,
    /// The store is asked for half of the lease that the client believes in.
    LeaseRoundedDown,
    /// Every token is 1.
    TokensStandStill,
    /// Tokens are counted by each process for itself.
    TokensByProcess,
    /// Tokens come from clocks of processes that are seconds apart.
    TokensBySkewedClocks,
    /// Tokens wrap around.
    TokensWrap,
    /// The next owner inherits the token.
    HandOverKeepsToken,
    /// A hand-over looks at the owner, and writes the next one a moment later.
    HandOverInTwoSteps,
    /// A lock is granted now and then although somebody holds it.
    FailsOpen,
    /// Whether the lock is free and taking it are two steps.
    ChecksThenSets,
    /// A row that was seen to expire is deleted later, whoever holds the lock by then.
    DeletesTheExpired,
    /// A client whose clock is ahead takes a lock for expired too early.
    TakesOverEarly,
    /// Cleaning up removes rows that are alive.
    ReaperEatsLiveRows,
    /// The answer to one operation of a batch goes to its neighbour as well.
    AnswersAreMixedUp,
    /// Two processes make different keys of one name.
    KeysByProcess,
    /// A ticket can be resumed again and again.
    TicketsReused,
    /// Nobody is told a loss before they ask.
    LossIsNotTold,
    /// The clock of leases stands still while the process does.
    ClockStandsStill,
    /// Timers run twenty times as long.
    TimersRunLate,
    /// Each attempt keeps two megabytes.
    MemoryLeaks,
    /// Each attempt leaves files open.
    DescriptorsLeak,
    /// The fenced register looks at the token, and writes a moment later.
    FenceInTwoSteps,
    /// Writes of records do not look at the version.
    WritesIgnoreVersions,
    /// Reads of records come from a cache.
    ReadsAreStale,
    /// Some confirmed writes of records never happened.
    WritesAreForgotten,
    /// Deletes of records are confirmed and do nothing.
    DeletesDoNothing,
    /// A version of a record is used twice.
    VersionsAreReused,
    /// Sentinels are asked for the primary once, and not again while it answers.
    DeposedPrimary,
    /// A session is believed for as long as the server that it hangs on answers.
    DeposedLeader,
    /// The record that a periodic job has started is confirmed and never written.
    StartsAreForgotten,
    /// The record that an effect has happened is confirmed and never written.
    EffectsAreForgotten,
    /// What a gate has seen is confirmed and never written.
    GatesForget,
    /// Writes of counters do not look at the version.
    CountersAreOverwritten,
    /// A leader that cannot renew its lease believes in it for three times as long.
    LeadersStay,
    /// A lock that is to be kept for a minimum time is freed when it is released.
    MinimumIsIgnored,
}

impl StoreBug {
    /// The promises of which one must be found broken.
    pub(crate) const fn breaks(self) -> &'static [Promise] {
        use Promise::*;
        match self {
            Self::ReleaseWithoutOwner
            | Self::ReleaseInTwoSteps
            | Self::RenewalAlwaysSucceeds
            | Self::RenewalErrorIsSuccess
            | Self::ValidFromReceipt
            | Self::ValidTooLong
            | Self::LeaseRoundedDown
            | Self::HandOverInTwoSteps
            | Self::FailsOpen
            | Self::ChecksThenSets
            | Self::DeletesTheExpired
            | Self::TakesOverEarly
            | Self::ReaperEatsLiveRows
            | Self::AnswersAreMixedUp
            | Self::KeysByProcess
            | Self::ClockStandsStill
            | Self::DeposedPrimary
            | Self::DeposedLeader => &[Exclusion],
            Self::ReleaseDoesNothing => &[Recovery],
            Self::TokensStandStill
            | Self::TokensByProcess
            | Self::TokensBySkewedClocks
            | Self::TokensWrap
            | Self::HandOverKeepsToken => &[TokensRise],
            Self::TicketsReused => &[TicketsOnce],
            Self::LossIsNotTold => &[LossIsTold],
            Self::TimersRunLate => &[LossIsTold, CallsEnd],
            Self::MemoryLeaks | Self::DescriptorsLeak => &[FlatResources],
            Self::FenceInTwoSteps => &[FencedUpdates],
            Self::WritesIgnoreVersions
            | Self::ReadsAreStale
            | Self::WritesAreForgotten
            | Self::DeletesDoNothing
            | Self::VersionsAreReused => &[Linearizable],
            Self::StartsAreForgotten => &[OncePerPeriod],
            Self::EffectsAreForgotten => &[OncePerKey],
            Self::GatesForget => &[GateHolds],
            Self::CountersAreOverwritten => &[CountersAddUp],
            Self::LeadersStay => &[OneLeader],
            Self::MinimumIsIgnored => &[KeptAtLeast],
        }
    }

    /// A store on which it shows: some need an answer that is lost, or a server that hangs.
    pub(crate) const fn store(self) -> StoreKind {
        match self {
            Self::ReleaseWithoutOwner
            | Self::RenewalErrorIsSuccess
            | Self::LeadersStay
            | Self::TimersRunLate => StoreKind::Redis,
            Self::DeposedPrimary => StoreKind::RedisSentinel,
            Self::DeposedLeader => StoreKind::Zookeeper,
            _ => StoreKind::Sqlite,
        }
    }

    /// Whether it shows only when one server takes the place of another.
    pub(crate) const fn needs_a_group(self) -> bool {
        matches!(self, Self::DeposedPrimary | Self::DeposedLeader)
    }

    /// The faults under which it shows soon; `None` = any.
    pub(crate) const fn faults(self) -> Option<&'static [FaultKind]> {
        match self {
            Self::RenewalAlwaysSucceeds => Some(&[FaultKind::ForceRelease]),
            // The errors have to come before the lease ends.
            Self::RenewalErrorIsSuccess => Some(&[FaultKind::CutConnections]),
            Self::LeadersStay => Some(&[FaultKind::CutConnections, FaultKind::BlackHole]),
            // It takes many locks that change hands.
            Self::ReleaseInTwoSteps | Self::HandOverInTwoSteps => Some(&[]),
            // Workers that come later are sent to the new primary.
            Self::DeposedPrimary => Some(&[FaultKind::DeposePrimary, FaultKind::KillWorker]),
            Self::DeposedLeader => Some(&[FaultKind::DeposeLeader]),
            _ => None,
        }
    }

    /// What the workers have to do for it to show soon.
    pub(crate) const fn workloads(self) -> &'static [Workload] {
        match self {
            Self::StartsAreForgotten
            | Self::EffectsAreForgotten
            | Self::GatesForget
            | Self::CountersAreOverwritten
            | Self::LeadersStay => &[Workload::Recipes],
            _ => &[Workload::Locks, Workload::Records],
        }
    }

    /// Shortest and longest TTL under which it shows soon.
    pub(crate) const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::RenewalErrorIsSuccess => (800, 1_200),
            // A short lease ends during the two steps; a long one is handed over.
            Self::HandOverInTwoSteps => (300, 3_000),
            Self::DeposedPrimary | Self::DeposedLeader => self.store().ttl_ms(),
            _ => (300, 900),
        }
    }

    /// Its name on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }
}
