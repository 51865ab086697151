//! The declaration of a case: name, promise, needed features and code.
//!
//! Invariant: a case that has nothing to check on some stores declares the missing feature as a
//! need, so it shows there as not applicable and never passes without a check.

use distlock_core::{Fairness, FencingScope, LeaseKind, Reach};
use futures_util::future::BoxFuture;

use crate::{Outcome, Subject, support::Context};

/// A case as declared in its file.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    pub(crate) needs: &'static [Needs],
    pub(crate) body: fn(Context) -> BoxFuture<'static, Outcome>,
}

/// A feature that a case needs. Where the feature is missing, the case shows as not applicable
/// instead of passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// The suite can make a holder die. Where leases end with sessions, only a worker process can
    /// be such a holder, because the sessions of the suite's own process stay alive.
    DeadHolder,
    /// A queue entry can be used for any owner.
    EntryOfAnyOwner,
    /// A queue entry cannot be used for another owner, because it is what holds the lock.
    EntryOfOneOwner,
    /// Tokens of all names form one order.
    GlobalTokens,
    /// The store can hand a lock over in one step.
    HandOver,
    /// The store cannot hand a lock over in one step.
    NoHandOver,
    /// The store keeps no order among waiting clients.
    NoOrder,
    /// The store keeps no queue of contenders.
    NoStoreQueue,
    /// The store has no tickets.
    NoTickets,
    /// The store cannot raise the token of a lock.
    NoTokenFloor,
    /// Waiting clients that ask for it are served first come, first served.
    Order,
    /// Worker processes were given.
    Processes,
    /// The store keeps a queue of contenders, and shows it.
    StoreQueue,
    /// The store has tickets.
    Tickets,
    /// The store can raise the token of a lock.
    TokenFloor,
    /// Each lease has an expiry that other clients see.
    VisibleExpiry,
}

/// Declares a case: `case!(exclusion::two_tasks_never_overlap, "promise")`. The [`Needs`] of the
/// case follow, if there are any.
macro_rules! case {
    ($property:ident :: $name:ident, $promise:literal $(, $needs:ident)*) => {
        $crate::spec::Spec {
            name: concat!(stringify!($property), "::", stringify!($name)),
            promise: $promise,
            needs: &[$($crate::spec::Needs::$needs),*],
            body: |cx| Box::pin($name(cx)),
        }
    };
}
pub(crate) use case;

impl Needs {
    /// The reason why the subject does not meet the need; `None`: the subject meets the need.
    pub(crate) fn unmet_reason(self, subject: &Subject) -> Option<&'static str> {
        let can = subject.capabilities();
        let by_session = can.lease == LeaseKind::Session;
        let (missing, why) = match self {
            Self::DeadHolder => (
                by_session && subject.workers().is_none(),
                "a holder that dies with its session is a process, and no worker processes were \
                 given",
            ),
            Self::EntryOfAnyOwner => (
                by_session,
                "a queue entry of this store holds the lock, so it has one owner",
            ),
            Self::EntryOfOneOwner => (!by_session, "any owner can use a queue entry of this store"),
            Self::GlobalTokens => (
                can.fencing != FencingScope::Global,
                "this store's tokens rise per name",
            ),
            Self::HandOver => (!can.hand_over, "this store has no hand-over in one step"),
            Self::NoHandOver => (can.hand_over, "this store has hand-overs"),
            Self::NoOrder => (
                can.fairness != Fairness::None,
                "this store can keep an order among waiting clients",
            ),
            Self::NoStoreQueue => (can.store_queue, "this store keeps a queue of waiters"),
            Self::NoTickets => (can.tickets, "this store has tickets"),
            Self::NoTokenFloor => (can.token_floor, "this store can raise tokens"),
            Self::Order => (
                can.fairness == Fairness::None,
                "this store promises no order among waiting clients",
            ),
            Self::Processes if can.reach == Reach::Process => (
                true,
                "reach is process: no other process can share this store",
            ),
            Self::Processes => (
                subject.workers().is_none(),
                "no worker processes were given",
            ),
            Self::StoreQueue => (!can.store_queue, "this store keeps no queue of waiters"),
            Self::Tickets => (!can.tickets, "this store has no tickets"),
            Self::TokenFloor => (!can.token_floor, "this store cannot raise tokens"),
            Self::VisibleExpiry => (
                by_session,
                "leases end with sessions here, so no client sees when a lease expires",
            ),
        };
        missing.then_some(why)
    }
}
