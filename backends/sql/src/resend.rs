//! Operations that were sent twice, because the first answer never came.
//!
//! The module owns two rules: which operations may be sent again, and which answers stay true when
//! an operation was sent twice.

use distlock_backend_kit::{
    batch::Reply,
    operation::{Answer, Operation},
};
use distlock_core::{Attempt, Error, ReleaseOutcome, TicketStep};

/// Whether the operation may be sent again while the outcome of the first send is unknown. An
/// acquire that finds its own lease reports the grant again. A second release of a free lock
/// changes nothing. See [`answer_after_resend`]. A renewal that redeems a ticket is not sent
/// again: a ticket can be redeemed only once, and the second answer would report a loss. The same
/// holds for a renewal that raises the token of a lease with a token: the second send would not
/// find that token.
pub(crate) fn may_be_resent(op: &Operation) -> bool {
    match op {
        Operation::Acquire(_) | Operation::Release(_) => true,
        Operation::Renew(lease, renewal) => {
            let changes_the_token = renewal.token_floor > lease.token && lease.token.is_some();
            renewal.ticket != TicketStep::Redeem && !changes_the_token
        }
        _ => false,
    }
}

/// Whether this answer to the second send leaves the outcome of the first send unknown. After
/// `NotHeld`, the first send may have freed the lock. After `Busy`, the first send may still wait
/// for its row on the server; the first send could then take the lock later, for a caller that
/// already received the answer "busy".
fn leaves_outcome_open(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Released(ReleaseOutcome::NotHeld)
            | Answer::Acquired(Attempt::Busy(_))
            | Answer::BusyNotified(_)
    )
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
        Reply::Done(Ok(answer)) if !leaves_outcome_open(&answer) => Reply::Done(Ok(answer)),
        Reply::Done(_) | Reply::Alone => Reply::Done(Err(why.clone())),
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{
        AcquireRequest, ErrorKind, FencingToken, HolderLabel, Lease, LockName, LossReason, OwnerId,
        Renewal, Renewed, Ttl,
    };

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
        assert!(may_be_resent(&Operation::Acquire(request.clone())));
        assert!(may_be_resent(&Operation::Release(lease.clone())));
        assert!(may_be_resent(&renewal(TicketStep::Keep)));
        assert!(may_be_resent(&renewal(TicketStep::Issue(nonce))));
        assert!(!may_be_resent(&renewal(TicketStep::Redeem)));
        let raising = |token| {
            let mut lease = lease.clone();
            lease.token = token;
            let floor = FencingToken::new(9).unwrap();
            Operation::Renew(lease, Renewal::raising(ttl, floor))
        };
        assert!(may_be_resent(&raising(None)));
        assert!(may_be_resent(&raising(FencingToken::new(9).ok())));
        assert!(!may_be_resent(&raising(FencingToken::new(8).ok())));
        assert!(!may_be_resent(&Operation::HandOver(lease.clone(), request)));
    }

    #[test]
    fn an_answer_after_a_second_send_claims_nothing_that_the_first_may_contradict() {
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
