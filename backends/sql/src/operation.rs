//! The operations that change something: the contents of a batch.
//!
//! The module owns three rules that hold for every dialect: the kinds of operations that can share
//! a statement, the undo of an operation, and the answer to an operation that was sent twice.

use distlock_backend_kit::batch::Reply;
use distlock_core::{
    AcquireRequest, Attempt, Deleted, Error, FencingToken, Forced, Grant, HandOver, HolderInfo,
    Lease, LockName, RecordKey, ReleaseOutcome, Renewal, Renewed, TicketStep, Version, Written,
};

/// Operations of one kind can share a statement. Renewals are urgent: a renewal that arrives after
/// the end of the lease loses the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OperationKind {
    Renew,
    Release,
    HandOver,
    Acquire,
    Force,
    Create,
    Replace,
    Delete,
}

impl OperationKind {
    /// The operation's name in metrics and errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Renew => "renew",
            Self::Release => "release",
            Self::HandOver => "hand_over",
            Self::Acquire => "acquire",
            Self::Force => "force_release",
            Self::Create => "create_record",
            Self::Replace => "replace_record",
            Self::Delete => "delete_record",
        }
    }
}

#[derive(Debug)]
pub(crate) enum Operation {
    Renew(Lease, Renewal),
    Release(Lease),
    HandOver(Lease, AcquireRequest),
    Acquire(AcquireRequest),
    Force(LockName, FencingToken),
    Create(RecordKey, Vec<u8>),
    Replace(RecordKey, Vec<u8>, Version),
    Delete(RecordKey, Version),
}

impl Operation {
    pub(crate) fn kind(&self) -> OperationKind {
        match self {
            Self::Renew(..) => OperationKind::Renew,
            Self::Release(_) => OperationKind::Release,
            Self::HandOver(..) => OperationKind::HandOver,
            Self::Acquire(_) => OperationKind::Acquire,
            Self::Force(..) => OperationKind::Force,
            Self::Create(..) => OperationKind::Create,
            Self::Replace(..) => OperationKind::Replace,
            Self::Delete(..) => OperationKind::Delete,
        }
    }

    /// The lock's name or the record's key.
    pub(crate) fn key(&self) -> &str {
        match self.lock() {
            Some(name) => name.as_str(),
            None => match self {
                Self::Create(key, _) | Self::Replace(key, ..) | Self::Delete(key, _) => {
                    key.as_str()
                }
                _ => "",
            },
        }
    }

    pub(crate) fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Renew(lease, _) | Self::Release(lease) | Self::HandOver(lease, _) => {
                Some(&lease.name)
            }
            Self::Acquire(request) => Some(&request.name),
            Self::Force(name, _) => Some(name),
            Self::Create(..) | Self::Replace(..) | Self::Delete(..) => None,
        }
    }

    /// The lease that is renewed, released or handed over.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Renew(lease, _) | Self::Release(lease) | Self::HandOver(lease, _) => Some(lease),
            _ => None,
        }
    }

    /// The request that the operation can grant.
    pub(crate) fn request(&self) -> Option<&AcquireRequest> {
        match self {
            Self::Acquire(request) | Self::HandOver(_, request) => Some(request),
            _ => None,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.key().len()
            + match self {
                Self::Acquire(request) | Self::HandOver(_, request) => {
                    64 + request.meta.as_ref().map_or(0, |meta| meta.as_str().len())
                }
                Self::Create(_, value) | Self::Replace(_, value, _) => 32 + value.len(),
                _ => 64,
            }
    }

    /// Whether the operation may be sent again while the outcome of the first send is unknown. An
    /// acquire that finds its own lease reports the grant again. A second release of a free lock
    /// changes nothing. See [`answer_after_resend`]. A renewal that redeems a ticket is not sent
    /// again: a ticket can be redeemed only once, and the second answer would report a loss.
    pub(crate) fn may_be_resent(&self) -> bool {
        match self {
            Self::Acquire(_) | Self::Release(_) => true,
            Self::Renew(_, renewal) => !matches!(renewal.ticket, TicketStep::Redeem(_)),
            _ => false,
        }
    }

    /// The release that undoes the grant in `answer`; `None` when `answer` is no grant.
    pub(crate) fn undo(&self, answer: &Answer) -> Option<Self> {
        let release = |request: &AcquireRequest, grant: &Grant| {
            let token = Some(grant.token);
            Self::Release(Lease::new(request.name.clone(), request.owner, token))
        };
        match (self, answer) {
            (Self::Acquire(request), Answer::Acquired(Attempt::Acquired(grant)))
            | (Self::HandOver(_, request), Answer::HandedOver(HandOver::Done(grant))) => {
                Some(release(request, grant))
            }
            _ => None,
        }
    }
}

#[derive(Debug)]
pub(crate) enum Answer {
    Renewed(Renewed),
    Released(ReleaseOutcome),
    HandedOver(HandOver),
    Acquired(Attempt<Grant>),
    /// The lock is held, and the store will notify this process of the release: the waiters of this
    /// process need not set a hint.
    BusyNotified(HolderInfo),
    Forced(Forced),
    Written(Written),
    Deleted(Deleted),
}

impl Answer {
    /// Whether this answer to the second send leaves the outcome of the first send unknown. After
    /// `NotHeld`, the first send may have freed the lock. After `Busy`, the first send may still
    /// wait for its row on the server; the first send could then take the lock later, for a caller
    /// that already received the answer "busy".
    fn leaves_outcome_open(&self) -> bool {
        matches!(
            self,
            Self::Released(ReleaseOutcome::NotHeld)
                | Self::Acquired(Attempt::Busy(_))
                | Self::BusyNotified(_)
        )
    }

    /// Whether the operation with this answer freed the lock.
    pub(crate) fn freed(&self) -> bool {
        matches!(
            self,
            Self::Released(ReleaseOutcome::Released { .. }) | Self::Forced(Forced::Released)
        )
    }
}

/// The answer to an operation that was sent twice; `reply` is the answer to the second send.
///
/// If the reply does not determine the outcome of both sends, the answer is the error `why`: an
/// unknown outcome. The second send skips an operation ([`Reply::Alone`]) when its row is locked;
/// the first send may be the one that locks the row. A skipped operation must not be sent as if for
/// the first time. A lock that the first send has freed would be reported as lost, and a lock that
/// the first send takes later would be held for a caller whose error says that nothing happened.
pub(crate) fn answer_after_resend(reply: Reply<Answer>, why: &Error) -> Reply<Answer> {
    match reply {
        Reply::Done(Ok(answer)) if !answer.leaves_outcome_open() => Reply::Done(Ok(answer)),
        Reply::Done(_) | Reply::Alone => Reply::Done(Err(why.clone())),
    }
}

#[cfg(all(test, any(feature = "mysql", feature = "postgres")))]
mod tests {
    use distlock_core::{ErrorKind, HolderLabel, LossReason, OwnerId, Ttl};

    use super::*;

    #[test]
    fn only_repeatable_operations_are_sent_twice() {
        let name = LockName::new("a").unwrap();
        let ttl = Ttl::from_millis(10_000).unwrap();
        let owner = OwnerId::new();
        let lease = Lease::new(name.clone(), owner, None);
        let request = AcquireRequest::new(name, owner, ttl, HolderLabel::new("tester").unwrap());
        let renewal = |ticket| {
            let mut renewal = Renewal::plain(ttl);
            renewal.ticket = ticket;
            Operation::Renew(lease.clone(), renewal)
        };
        let nonce = uuid::Uuid::from_u128(7);
        assert!(Operation::Acquire(request.clone()).may_be_resent());
        assert!(Operation::Release(lease.clone()).may_be_resent());
        assert!(renewal(TicketStep::Keep).may_be_resent());
        assert!(renewal(TicketStep::Issue(nonce)).may_be_resent());
        assert!(!renewal(TicketStep::Redeem(nonce)).may_be_resent());
        assert!(!Operation::HandOver(lease.clone(), request).may_be_resent());
    }

    #[test]
    fn an_answer_to_a_second_send_that_leaves_the_first_open_is_an_unknown_outcome() {
        let lost = || Error::new(ErrorKind::OutcomeUnknown, "the connection broke");
        let outcome = |answer| match answer_after_resend(Reply::Done(answer), &lost()) {
            Reply::Done(Ok(answer)) => Ok(answer),
            Reply::Done(Err(error)) => Err(error.kind()),
            Reply::Alone => panic!("sent once more as if for the first time"),
        };
        let freed = ReleaseOutcome::Released {
            others_waiting: None,
        };
        assert!(outcome(Ok(Answer::Released(freed))).is_ok());
        let not_held = Renewed::NotHeld(LossReason::TakenOver);
        assert!(outcome(Ok(Answer::Renewed(not_held))).is_ok());
        for unsure in [
            Ok(Answer::Acquired(Attempt::Busy(None))),
            Ok(Answer::Released(ReleaseOutcome::NotHeld)),
            // The operation was refused, and the read of its row failed.
            Err(Error::new(ErrorKind::Unavailable, "the row is locked")),
        ] {
            assert_eq!(outcome(unsure).unwrap_err(), ErrorKind::OutcomeUnknown);
        }
        let skipped = answer_after_resend(Reply::Alone, &lost());
        assert!(matches!(skipped, Reply::Done(Err(error)) if !error.did_not_happen()));
    }
}
