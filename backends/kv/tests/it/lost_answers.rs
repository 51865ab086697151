//! A lock over records, when the answers to writes are lost.

use distlock_core::{DistLock, ErrorKind, HandOver, LossReason, Renewal, Renewed, TicketStep};
use uuid::Uuid;

use crate::fixture::{Fault, RELEASED, TTL, fixture, lease, request, ttl};

#[tokio::test]
async fn an_acquire_with_a_lost_answer_is_confirmed_or_unknown() {
    let fixture = fixture().await;
    let first = request("a");
    fixture.records.set_next_faults([Fault::Unanswered]);
    let grant = fixture.acquire(&first).await;
    assert_eq!(fixture.acquire(&first).await.token, grant.token);
    // A lost write may still arrive, so its outcome is unknown. A refused write did not happen.
    for fault in [Fault::Lost, Fault::Refused] {
        fixture.records.set_next_faults([fault]);
        let error = fixture.lock.try_acquire(&request("b")).await.unwrap_err();
        let unknown = matches!(fault, Fault::Lost);
        assert_eq!(
            error.kind() == ErrorKind::OutcomeUnknown,
            unknown,
            "{error}"
        );
        assert_eq!(error.did_not_happen(), !unknown);
    }
    // The same is true for an expired lock: a lost write that arrives late still finds the version
    // that it expects.
    fixture.clock.advance(TTL);
    fixture.records.set_next_faults([Fault::Lost]);
    let error = fixture.lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    fixture.records.set_next_faults([Fault::Unanswered]);
    assert!(fixture.acquire(&request("a")).await.token > grant.token);
}

#[tokio::test]
async fn a_release_with_a_lost_answer_is_repeated() {
    let fixture = fixture().await;
    for faults in [vec![Fault::Unanswered], vec![Fault::Lost, Fault::Lost]] {
        let first = request("a");
        let grant = fixture.acquire(&first).await;
        fixture.records.set_next_faults(faults);
        let released = fixture.lock.release(&lease(&first, &grant)).await.unwrap();
        assert_eq!(released, RELEASED, "found gone, or tried again");
        assert_eq!(fixture.read_record("lock/a").await, None);
    }
    let first = request("a");
    let grant = fixture.acquire(&first).await;
    fixture.records.set_next_faults([Fault::Lost; 50]);
    let error = fixture
        .lock
        .release(&lease(&first, &grant))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(fixture.records.faults.lock().len() > 30, "it gave up soon");
}

#[tokio::test]
async fn a_lost_answer_to_a_renewal_or_hand_over_is_confirmed_or_unknown() {
    let fixture = fixture().await;
    let (first, second) = (request("a"), request("a"));
    let grant = fixture.acquire(&first).await;
    let held = lease(&first, &grant);
    let nonce = Uuid::from_u128(1);
    let mut renewal = Renewal::plain(ttl());
    let mut by_ticket = held.clone();
    by_ticket.nonce = Some(nonce);
    for (lease, ticket) in [
        (&held, TicketStep::Issue(nonce)),
        (&by_ticket, TicketStep::Redeem),
    ] {
        renewal.ticket = ticket;
        fixture.records.set_next_faults([Fault::Unanswered]);
        let renewed = fixture.lock.renew(lease, &renewal).await.unwrap();
        assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    }
    let renewed = fixture.lock.renew(&by_ticket, &renewal).await.unwrap();
    assert!(
        matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)),
        "used once"
    );
    fixture.records.set_next_faults([Fault::Lost]);
    let error = fixture
        .lock
        .renew(&held, &Renewal::plain(ttl()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    fixture.records.set_next_faults([Fault::Unanswered]);
    let handed = fixture.lock.hand_over(&held, &second).await.unwrap();
    let HandOver::Done(next) = handed else {
        panic!("{handed:?}")
    };
    assert!(next.token > grant.token);
    let handed = fixture.lock.hand_over(&held, &second).await.unwrap();
    assert!(matches!(handed, HandOver::NotHeld(LossReason::TakenOver)));
    assert_eq!(
        fixture.lock.release(&lease(&second, &next)).await.unwrap(),
        RELEASED
    );
}
