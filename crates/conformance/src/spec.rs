//! Declarations of cases.

use distlock_core::{Fairness, FencingScope, LeaseKind, Reach};
use futures_util::future::BoxFuture;

use crate::{Outcome, Subject, support::Context};

/// A case as its file declares it.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    pub(crate) needs: &'static [Needs],
    pub(crate) body: fn(Context) -> BoxFuture<'static, Outcome>,
}

/// What a case cannot do without. A case that would have nothing to check on some stores declares
/// it here, so that it shows there as not applicable instead of passing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// A holder that dies: a worker process where leases hang on sessions, since a session of this
    /// process lives on.
    DeadHolder,
    /// Waiting clients are served first come, first served.
    Fifo,
    /// Tokens of all names form one order.
    GlobalTokens,
    /// A lock passes to the next owner in one store step.
    HandOver,
    /// The store has no such step.
    NoHandOver,
    /// The store has no tickets.
    NoTickets,
    /// Worker processes.
    Processes,
    /// A held lock can become a ticket.
    Tickets,
}

/// Declares a case: `case!(exclusion::two_tasks_never_overlap, "promise")`, followed by its
/// [`Needs`] if it has any.
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
    /// Why a subject lacks it, if it does.
    pub(crate) fn obstacle(self, subject: &Subject) -> Option<&'static str> {
        let can = subject.capabilities();
        let by_session = can.lease == LeaseKind::Session;
        let (missing, why) = match self {
            Self::DeadHolder => (
                by_session && subject.workers().is_none(),
                "a holder that dies with its session is a process, and no worker processes were given",
            ),
            Self::Fifo => (
                can.fairness != Fairness::Fifo,
                "this store promises no order among waiting clients",
            ),
            Self::GlobalTokens => (
                can.fencing != FencingScope::Global,
                "this store's tokens rise per name",
            ),
            Self::HandOver => (!can.hand_over, "this store has no hand-over in one step"),
            Self::NoHandOver => (can.hand_over, "this store has hand-overs"),
            Self::NoTickets => (can.tickets, "this store has tickets"),
            Self::Processes if can.reach == Reach::Process => (
                true,
                "reach is process: no other process can share this store",
            ),
            Self::Processes => (
                subject.workers().is_none(),
                "no worker processes were given",
            ),
            Self::Tickets => (!can.tickets, "this store has no tickets"),
        };
        missing.then_some(why)
    }
}
