//! Writes whose answers are lost.

use distlock_core::{DistLock, ErrorKind, HandOver, LossReason, Renewal, Renewed, TicketStep};
use uuid::Uuid;

use crate::scene::{Fate, RELEASED, TTL, lease, request, scene, ttl};

#[tokio::test]
async fn lost_answers_to_an_acquire() {
    let scene = scene().await;
    let first = request("a");
    scene.records.next([Fate::Unanswered]);
    let grant = scene.grant(&first).await;
    assert_eq!(scene.grant(&first).await.token, grant.token);
    // Free, and the write may still arrive: nobody can say.
    for fate in [Fate::Lost, Fate::Refused] {
        scene.records.next([fate]);
        let error = scene.lock.try_acquire(&request("b")).await.unwrap_err();
        let unknown = matches!(fate, Fate::Lost);
        assert_eq!(
            error.kind() == ErrorKind::OutcomeUnknown,
            unknown,
            "{error}"
        );
        assert_eq!(error.did_not_happen(), !unknown);
    }
    // The same for an expired lock, whose record is still as it was.
    scene.clock.advance(TTL);
    scene.records.next([Fate::Lost]);
    let error = scene.lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    scene.records.next([Fate::Unanswered]);
    assert!(scene.grant(&request("a")).await.token > grant.token);
}

#[tokio::test]
async fn lost_answers_to_a_release() {
    let scene = scene().await;
    for fates in [vec![Fate::Unanswered], vec![Fate::Lost, Fate::Lost]] {
        let first = request("a");
        let grant = scene.grant(&first).await;
        scene.records.next(fates);
        let released = scene.lock.release(&lease(&first, &grant)).await.unwrap();
        assert_eq!(released, RELEASED, "found gone, or tried again");
        assert_eq!(scene.raw("lock/a").await, None);
    }
    let first = request("a");
    let grant = scene.grant(&first).await;
    scene.records.next([Fate::Lost; 50]);
    let error = scene
        .lock
        .release(&lease(&first, &grant))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(
        scene.records.fates.lock().unwrap().len() > 30,
        "it gave up soon"
    );
}

#[tokio::test]
async fn lost_answers_to_a_renewal_and_a_hand_over() {
    let scene = scene().await;
    let (first, second) = (request("a"), request("a"));
    let grant = scene.grant(&first).await;
    let held = lease(&first, &grant);
    let nonce = Uuid::from_u128(1);
    let mut renewal = Renewal::plain(ttl());
    for ticket in [TicketStep::Issue(nonce), TicketStep::Redeem(nonce)] {
        renewal.ticket = ticket;
        scene.records.next([Fate::Unanswered]);
        let renewed = scene.lock.renew(&held, &renewal).await.unwrap();
        assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    }
    let renewed = scene.lock.renew(&held, &renewal).await.unwrap();
    assert!(
        matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)),
        "used once"
    );
    scene.records.next([Fate::Lost]);
    let error = scene
        .lock
        .renew(&held, &Renewal::plain(ttl()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    scene.records.next([Fate::Unanswered]);
    let handed = scene.lock.hand_over(&held, &second).await.unwrap();
    let HandOver::Done(next) = handed else {
        panic!("{handed:?}")
    };
    assert!(next.token > grant.token);
    let handed = scene.lock.hand_over(&held, &second).await.unwrap();
    assert!(matches!(handed, HandOver::NotHeld(LossReason::TakenOver)));
    assert_eq!(
        scene.lock.release(&lease(&second, &next)).await.unwrap(),
        RELEASED
    );
    let other = scene
        .lock
        .hand_over(&held, &request("b"))
        .await
        .unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
}
