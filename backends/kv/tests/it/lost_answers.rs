//! A lock over records, when the answers to writes are lost.

use distlock_core::{DistLock, ErrorKind, HandOver, LossReason, Renewal, Renewed, TicketStep};
use uuid::Uuid;

use crate::fixture::{Fault, RELEASED, TTL, fixture, lease, request, ttl};

#[tokio::test]
async fn lost_answers_to_an_acquire() {
    let fixture = fixture().await;
    let first = request("a");
    fixture.records.next([Fault::Unanswered]);
    let grant = fixture.grant(&first).await;
    assert_eq!(fixture.grant(&first).await.token, grant.token);
    // The lock is free and the write may still arrive, so the outcome is unknown.
    for fault in [Fault::Lost, Fault::Refused] {
        fixture.records.next([fault]);
        let error = fixture.lock.try_acquire(&request("b")).await.unwrap_err();
        let unknown = matches!(fault, Fault::Lost);
        assert_eq!(
            error.kind() == ErrorKind::OutcomeUnknown,
            unknown,
            "{error}"
        );
        assert_eq!(error.did_not_happen(), !unknown);
    }
    // An expired lock is the same case: its record still has the old version.
    fixture.clock.advance(TTL);
    fixture.records.next([Fault::Lost]);
    let error = fixture.lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    fixture.records.next([Fault::Unanswered]);
    assert!(fixture.grant(&request("a")).await.token > grant.token);
}

#[tokio::test]
async fn lost_answers_to_a_release() {
    let fixture = fixture().await;
    for faults in [vec![Fault::Unanswered], vec![Fault::Lost, Fault::Lost]] {
        let first = request("a");
        let grant = fixture.grant(&first).await;
        fixture.records.next(faults);
        let released = fixture.lock.release(&lease(&first, &grant)).await.unwrap();
        assert_eq!(released, RELEASED, "found gone, or tried again");
        assert_eq!(fixture.raw("lock/a").await, None);
    }
    let first = request("a");
    let grant = fixture.grant(&first).await;
    fixture.records.next([Fault::Lost; 50]);
    let error = fixture
        .lock
        .release(&lease(&first, &grant))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(
        fixture.records.faults.lock().unwrap().len() > 30,
        "it gave up soon"
    );
}

#[tokio::test]
async fn lost_answers_to_a_renewal_and_a_hand_over() {
    let fixture = fixture().await;
    let (first, second) = (request("a"), request("a"));
    let grant = fixture.grant(&first).await;
    let held = lease(&first, &grant);
    let nonce = Uuid::from_u128(1);
    let mut renewal = Renewal::plain(ttl());
    for ticket in [TicketStep::Issue(nonce), TicketStep::Redeem(nonce)] {
        renewal.ticket = ticket;
        fixture.records.next([Fault::Unanswered]);
        let renewed = fixture.lock.renew(&held, &renewal).await.unwrap();
        assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    }
    let renewed = fixture.lock.renew(&held, &renewal).await.unwrap();
    assert!(
        matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)),
        "used once"
    );
    fixture.records.next([Fault::Lost]);
    let error = fixture
        .lock
        .renew(&held, &Renewal::plain(ttl()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    fixture.records.next([Fault::Unanswered]);
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
    let other = fixture
        .lock
        .hand_over(&held, &request("b"))
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
}
