//! The planted bugs by name: the promise that each bug breaks, and a run that shows it.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    chaos::{nemesis::FaultKind, options::Workload, stores::StoreKind, verdict::Promise},
    served::WrongRestart,
};

/// One bug.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreBug {
    /// A release frees the lock even if somebody else holds it.
    ReleaseWithoutOwner,
    /// A release compares the owner, and deletes a moment later.
    ReleaseInTwoSteps,
    /// A release is confirmed and does nothing.
    ReleaseDoesNothing,
    /// A renewal that finds another owner is taken for a success.
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
    /// Each process counts its own tokens.
    TokensByProcess,
    /// Tokens come from clocks of processes that are seconds apart.
    TokensBySkewedClocks,
    /// Tokens start again at a low number.
    TokensWrap,
    /// The next owner inherits the token.
    HandOverKeepsToken,
    /// A hand-over compares the owner, and writes the next owner a moment later.
    HandOverInTwoSteps,
    /// A lock is now and then granted although somebody holds it.
    FailsOpen,
    /// The check that a lock is free and the acquire are two separate steps.
    ChecksThenSets,
    /// A row that has expired is deleted later, even if somebody holds the lock by then.
    DeletesTheExpired,
    /// A client whose clock is ahead takes over a lease that has not expired.
    TakesOverEarly,
    /// The reaper removes rows that have not expired.
    ReaperEatsLiveRows,
    /// The answer to one operation of a batch also goes to its neighbour.
    AnswersAreMixedUp,
    /// Two processes make different keys of one name.
    KeysByProcess,
    /// A ticket can be resumed several times.
    TicketsReused,
    /// A loss is not reported; the holder must ask for it.
    LossIsNotTold,
    /// The clock of leases stands still while the process is stopped.
    ClockStandsStill,
    /// Timers take twenty times as long.
    TimersRunLate,
    /// Each attempt leaks two megabytes.
    MemoryLeaks,
    /// Each attempt leaves files open.
    DescriptorsLeak,
    /// The fenced register compares the token, and writes a moment later.
    FenceInTwoSteps,
    /// Writes of records ignore the version.
    WritesIgnoreVersions,
    /// Reads of records come from a cache.
    ReadsAreStale,
    /// Some confirmed writes of records never happen.
    WritesAreForgotten,
    /// Deletes of records are confirmed and do nothing.
    DeletesDoNothing,
    /// A version of a record is used twice.
    VersionsAreReused,
    /// A client asks the sentinels for the primary once, and not again while that primary answers.
    DeposedPrimary,
    /// A client trusts its session as long as its own server answers.
    DeposedLeader,
    /// The start of a periodic job is confirmed and never recorded.
    StartsAreForgotten,
    /// The result of an effect is confirmed and never recorded.
    EffectsAreForgotten,
    /// The token that a gate has accepted is confirmed and never recorded.
    GatesForget,
    /// Writes of counters ignore the version.
    CountersAreOverwritten,
    /// A leader that cannot renew its lease trusts it for three times as long.
    LeadersStay,
    /// A lock with a minimum hold time is freed at its release.
    MinimumIsIgnored,
    /// A lock server that has crashed grants at once.
    CrashWithoutRecovery,
    /// The recovery of a lock server is cut by a lowered `--max-lease`.
    RecoveryIsShort,
    /// The recovery of a lock server counts from its first start, not from its crash.
    RecoveryFromStart,
    /// A lock server reads the locks of an earlier stop after a crash.
    ExportIsStale,
    /// A lock server does not check the proof of a lease of before its crash.
    ProofsAreNotChecked,
    /// An agent drops the moment from which a lease counts.
    CountsFromIsDropped,
    /// A lock server counts the lease of a waiter from the receipt of its joining.
    LeaseFromJoining,
    /// The twin of `ProofsAreNotChecked`: the server refuses proofs that another key has signed.
    #[value(skip)]
    ProofsAreForged,
    /// The twin of the bugs of agents: the same agent without them.
    #[value(skip)]
    AgentIsHonest,
    /// Writes of a list of holders ignore the version: who may enter is decided by an older list.
    HoldersAreOverwritten,
    /// Reads of a list of holders lack the oldest one.
    HoldersAreForgotten,
    /// The slot of a holder that lives is granted to whoever looks for dead holders.
    LiveHoldersAreBuried,
    /// A client does not look for its holders again: it trusts what it has read or written.
    HoldersAreNotMissed,
    /// The word that somebody waits is confirmed and never written.
    WaitersAreUnheard,
    /// A writer becomes a reader in two writes: it leaves, and enters a moment later.
    DowngradeInTwoWrites,
    /// Every write of a list of holders has the version 1, so every token is 1.
    HoldersTokensStandStill,
    /// Callers that want the order of arrival do not get it.
    OrderIsForgotten,
    /// A ring grants a name that has moved at once, without its quarantine.
    MovedAtOnce,
    /// A client of a ring uses a view for longer than its validity.
    ViewUsedTooLong,
    /// A client of a ring renews a guard where it was granted, although its name has moved.
    MovedGuardsStay,
}

impl StoreBug {
    /// Returns the promises that the bug may break; the verdict must find one of them broken.
    pub(crate) const fn may_break(self) -> &'static [Promise] {
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
            | Self::DeposedLeader
            | Self::CrashWithoutRecovery
            | Self::RecoveryIsShort
            | Self::RecoveryFromStart
            | Self::ProofsAreNotChecked
            | Self::CountsFromIsDropped
            | Self::LeaseFromJoining
            | Self::HoldersAreOverwritten
            | Self::HoldersAreForgotten
            | Self::LiveHoldersAreBuried
            | Self::HoldersAreNotMissed
            | Self::MovedAtOnce
            | Self::ViewUsedTooLong
            | Self::MovedGuardsStay => &[Exclusion],
            Self::WaitersAreUnheard | Self::OrderIsForgotten => &[InOrder],
            Self::DowngradeInTwoWrites => &[NoWriterBetween],
            Self::ExportIsStale => &[Exclusion, TokensRise],
            Self::ReleaseDoesNothing => &[Recovery],
            Self::TokensStandStill
            | Self::TokensByProcess
            | Self::TokensBySkewedClocks
            | Self::TokensWrap
            | Self::HandOverKeepsToken
            | Self::HoldersTokensStandStill => &[TokensRise],
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
            Self::ProofsAreForged | Self::AgentIsHonest => &[],
        }
    }

    /// Tells whether this is a twin, which breaks no promise.
    pub(crate) const fn is_twin(self) -> bool {
        self.may_break().is_empty()
    }

    /// Returns the twin of a bug whose run differs from a usual one in more than the mistake.
    pub(crate) const fn twin(self) -> Option<Self> {
        match self {
            Self::ProofsAreNotChecked => Some(Self::ProofsAreForged),
            Self::CountsFromIsDropped | Self::LeaseFromJoining => Some(Self::AgentIsHonest),
            _ => None,
        }
    }

    /// Returns a kind of store that shows the bug. Some bugs need a lost answer or a server that
    /// hangs.
    pub(crate) const fn store(self) -> StoreKind {
        match self {
            Self::ReleaseWithoutOwner
            | Self::RenewalErrorIsSuccess
            | Self::LeadersStay
            | Self::TimersRunLate
            | Self::CountsFromIsDropped
            | Self::LeaseFromJoining
            | Self::AgentIsHonest => StoreKind::Redis,
            Self::MovedAtOnce | Self::ViewUsedTooLong | Self::MovedGuardsStay => StoreKind::Ring,
            Self::DeposedPrimary => StoreKind::RedisSentinel,
            Self::DeposedLeader => StoreKind::Zookeeper,
            Self::CrashWithoutRecovery
            | Self::RecoveryIsShort
            | Self::RecoveryFromStart
            | Self::ExportIsStale
            | Self::ProofsAreNotChecked
            | Self::ProofsAreForged => StoreKind::LockServer,
            _ => StoreKind::Sqlite,
        }
    }

    /// Tells whether the faults of the bug stop all grants for a while, by a failover or by the
    /// recovery of a lock server.
    pub(crate) const fn stops_grants(self) -> bool {
        matches!(
            self.store(),
            StoreKind::RedisSentinel | StoreKind::Zookeeper | StoreKind::LockServer
        )
    }

    /// Returns the faults that show the bug soon. `None` means all faults.
    pub(crate) const fn faults(self) -> Option<&'static [FaultKind]> {
        match self {
            Self::RenewalAlwaysSucceeds => Some(&[FaultKind::ForceRelease]),
            // The errors must come before the end of the lease.
            Self::RenewalErrorIsSuccess => Some(&[FaultKind::CutConnections]),
            Self::LeadersStay => Some(&[FaultKind::CutConnections, FaultKind::BlackHole]),
            // The bug needs many locks that change hands, and no fault. A fault may cost a caller
            // its place in the order of arrival.
            Self::ReleaseInTwoSteps
            | Self::HandOverInTwoSteps
            | Self::WaitersAreUnheard
            | Self::OrderIsForgotten => Some(&[]),
            Self::HoldersAreNotMissed => Some(&[FaultKind::DeleteHolders]),
            // A new worker asks the sentinels again, so it uses the new primary.
            Self::DeposedPrimary => Some(&[FaultKind::DeposePrimary, FaultKind::KillWorker]),
            Self::DeposedLeader => Some(&[FaultKind::DeposeLeader]),
            Self::CrashWithoutRecovery
            | Self::RecoveryIsShort
            | Self::RecoveryFromStart
            | Self::ProofsAreNotChecked => Some(&[FaultKind::CrashServer]),
            Self::CountsFromIsDropped | Self::LeaseFromJoining => Some(&[FaultKind::StopAtGrant]),
            Self::ExportIsStale => Some(&[FaultKind::RestartServer, FaultKind::CrashServer]),
            Self::MovedAtOnce | Self::ViewUsedTooLong | Self::MovedGuardsStay => {
                Some(&[FaultKind::ChangeMembers])
            }
            _ => None,
        }
    }

    /// Returns the wrong restart of a lock server that is the bug.
    pub(crate) const fn wrong_restart(self) -> Option<WrongRestart> {
        match self {
            Self::CrashWithoutRecovery => Some(WrongRestart::AsNew),
            Self::RecoveryIsShort => Some(WrongRestart::ShortRecovery),
            Self::RecoveryFromStart => Some(WrongRestart::RecoveryFromStart),
            Self::ExportIsStale => Some(WrongRestart::StaleExport),
            _ => None,
        }
    }

    /// Returns the kinds of use that show the bug soon.
    pub(crate) const fn workloads(self) -> &'static [Workload] {
        match self {
            Self::StartsAreForgotten
            | Self::EffectsAreForgotten
            | Self::GatesForget
            | Self::CountersAreOverwritten
            | Self::LeadersStay => &[Workload::Recipes],
            Self::ProofsAreNotChecked
            | Self::CountsFromIsDropped
            | Self::LeaseFromJoining
            | Self::MovedAtOnce
            | Self::ViewUsedTooLong
            | Self::MovedGuardsStay => &[Workload::Locks],
            Self::HoldersAreOverwritten
            | Self::HoldersAreForgotten
            | Self::LiveHoldersAreBuried
            | Self::HoldersAreNotMissed
            | Self::WaitersAreUnheard
            | Self::DowngradeInTwoWrites
            | Self::HoldersTokensStandStill => &[Workload::SharedLocks],
            Self::OrderIsForgotten => &[Workload::FairWaiters],
            _ => &[Workload::Locks, Workload::Records],
        }
    }

    /// Returns the number of tasks of each worker that shows the bug soon. `None` means the usual
    /// number.
    pub(crate) const fn tasks(self) -> Option<u32> {
        match self {
            // The other tasks of a process would read the list again after a conflict.
            Self::HoldersAreNotMissed => Some(1),
            _ => None,
        }
    }

    /// Returns the shortest and longest TTL that show the bug soon.
    pub(crate) const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::RenewalErrorIsSuccess => (800, 1_200),
            // A short lease ends between the two steps, and a long lease is handed over.
            Self::HandOverInTwoSteps => (300, 3_000),
            Self::DeposedPrimary
            | Self::DeposedLeader
            | Self::MovedAtOnce
            | Self::ViewUsedTooLong
            | Self::MovedGuardsStay => self.store().ttl_ms(),
            // A lease outlasts the restart of its server, or the time between two writes.
            Self::DowngradeInTwoWrites
            | Self::CrashWithoutRecovery
            | Self::RecoveryIsShort
            | Self::RecoveryFromStart
            | Self::ExportIsStale
            | Self::ProofsAreNotChecked => (2_000, 4_000),
            // Half of the shortest lease is longer than the shortest lease of the store.
            Self::CountsFromIsDropped | Self::LeaseFromJoining => (600, 1_200),
            _ => (300, 900),
        }
    }

    /// Returns the name of the bug on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }
}
