//! Acquiring, renewing and releasing locks.

use distlock_core::{
    ErrorKind, FencingToken, Forced, HandOver, LossReason, Meta, ReleaseOutcome, Renewal, Renewed,
    TicketStep,
};
use sqlx::Connection as _;

use super::*;

const FREED: ReleaseOutcome = ReleaseOutcome::Released {
    others_waiting: Some(false),
};

fn plain(request: &AcquireRequest) -> Renewal {
    Renewal::plain(request.ttl)
}

/// A hand-over whose caller goes away before the sending is not sent. Nobody would receive its
/// grant, and the undo of that grant would free a lock whose owner still counts on its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_without_its_caller_is_not_sent() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let first = request("a");
    let held = lease(&first, &take(&lock, &first).await);
    let mut other_writer = place.raw().await;
    sqlx::raw_sql("BEGIN IMMEDIATE")
        .execute(&mut other_writer)
        .await
        .unwrap();
    // These requests are in flight for as long as the other writer is.
    let mut in_flight = Vec::new();
    for name in ["b", "c", "d"] {
        let lock = Arc::clone(&lock);
        let mut acquire = Box::pin(async move { lock.try_acquire(&request(name)).await });
        assert!(futures_util::poll!(&mut acquire).is_pending());
        in_flight.push(acquire);
    }
    let next = request("a");
    let mut hand_over = Box::pin(lock.hand_over(&held, &next));
    assert!(futures_util::poll!(&mut hand_over).is_pending());
    drop(hand_over);
    sqlx::raw_sql("ROLLBACK")
        .execute(&mut other_writer)
        .await
        .unwrap();
    for acquired in join_all(in_flight).await {
        assert!(matches!(acquired.unwrap(), Attempt::Acquired(_)));
    }
    let renewed = lock.renew(&held, &plain(&first)).await.unwrap();
    assert!(matches!(renewed, Renewed::Extended { .. }), "{renewed:?}");
}

#[tokio::test]
async fn two_handles_exclude_each_other() {
    let place = Place::new();
    let (one, two) = (place.open().await.lock(), place.open().await.lock());
    let mut first = request("a");
    first.meta = Some(Meta::new("job 7 \"quoted\" \u{1f512}").unwrap());
    let grant = take(&one, &first).await;
    let seen = refused(&two, &request("a")).await;
    assert_eq!(seen.holder, "tester");
    assert_eq!(seen.meta.as_deref(), Some("job 7 \"quoted\" \u{1f512}"));
    assert_eq!(seen.token, Some(grant.token));
    assert!(seen.expires_in.unwrap() <= first.ttl.duration());
    assert!(seen.acquired_at.unwrap() <= SystemClock.wall());

    assert_eq!(one.release(&lease(&first, &grant)).await.unwrap(), FREED);
    assert_eq!(
        one.release(&lease(&first, &grant)).await.unwrap(),
        ReleaseOutcome::NotHeld
    );
    let second = request("a");
    let next = take(&two, &second).await;
    assert!(next.token > grant.token);
    assert_eq!(next.epoch, grant.epoch);
    // All operations of the former holder are refused.
    assert_eq!(
        one.release(&lease(&first, &grant)).await.unwrap(),
        ReleaseOutcome::NotHeld
    );
    let renewed = one.renew(&lease(&first, &grant), &plain(&first)).await;
    assert!(matches!(
        renewed.unwrap(),
        Renewed::NotHeld(LossReason::TakenOver)
    ));
    let handed = one.hand_over(&lease(&first, &grant), &request("a")).await;
    assert!(matches!(
        handed.unwrap(),
        HandOver::NotHeld(LossReason::TakenOver)
    ));
    assert_eq!(refused(&one, &request("a")).await.token, Some(next.token));
}

/// Many requests at once form batches. The requests are similar or different, and the releases are
/// correct or wrong.
#[tokio::test]
async fn each_operation_of_a_batch_has_its_own_answer() {
    let place = Place::new();
    let lock = place.open().await.lock();
    for unlike in [false, true] {
        let requests: Vec<_> = (0..40)
            .map(|at| {
                let mut request = request(&format!("{unlike}-{at:02}"));
                if unlike && at % 3 == 0 {
                    request.meta = Some(Meta::new(format!("job {at}")).unwrap());
                    request.ttl = Ttl::from_millis(40_000).unwrap();
                }
                request
            })
            .collect();
        let grants = join_all(requests.iter().map(|request| take(&lock, request))).await;
        let held = lock.list("", None, 100).await.unwrap();
        assert_eq!(held.len(), requests.len());
        for ((request, grant), info) in requests.iter().zip(&grants).zip(held) {
            let holder = info.held.unwrap();
            assert_eq!(
                (&info.name, holder.token),
                (&request.name, Some(grant.token))
            );
            assert_eq!(
                holder.meta.as_deref(),
                request.meta.as_ref().map(Meta::as_str)
            );
            let long = holder.expires_in.unwrap() > Duration::from_secs(20);
            assert_eq!(long, request.meta.is_some());
        }
        // Every fourth lease has a wrong token, and every fifth lease has no token.
        let released = requests
            .iter()
            .zip(&grants)
            .enumerate()
            .map(|(at, (request, grant))| {
                let mut lease = lease(request, grant);
                match at {
                    at if at % 4 == 0 => {
                        lease.token = Some(FencingToken::new(grant.token.get() - 1).unwrap());
                    }
                    at if at % 5 == 0 => lease.token = None,
                    _ => {}
                }
                let lock = &lock;
                async move { lock.release(&lease).await.unwrap() }
            });
        for (at, outcome) in join_all(released).await.into_iter().enumerate() {
            let expected = if at % 4 == 0 {
                ReleaseOutcome::NotHeld
            } else {
                FREED
            };
            assert_eq!(outcome, expected, "{at}");
        }
        let left = lock.list("", None, 100).await.unwrap();
        assert_eq!(left.len(), requests.len() / 4);
        for (request, grant) in requests.iter().zip(&grants).step_by(4) {
            assert_eq!(lock.release(&lease(request, grant)).await.unwrap(), FREED);
        }
    }
}

/// Acquires and releases share a transaction, and each operation has its own answer.
#[tokio::test]
async fn acquires_and_releases_of_one_batch_have_their_own_answers() {
    let place = Place::new();
    let store = place.open().await;
    let lock = store.lock();
    let leaving: Vec<_> = (0..12).map(|at| request(&format!("old-{at:02}"))).collect();
    let grants = join_all(leaving.iter().map(|request| take(&lock, request))).await;
    let held = request("held");
    let kept = take(&lock, &held).await;
    for unlike in [false, true] {
        let taking: Vec<_> = (0..12)
            .map(|at| {
                let mut request = request(&format!("{unlike}-{at:02}"));
                if unlike && at == 7 {
                    request.meta = Some(Meta::new("job").unwrap());
                }
                request
            })
            .collect();
        // A batch forms while a request is in flight. A fast file answers each request before the
        // next one is made, so another process holds the file until all are made.
        let mut writer = place.raw().await;
        let begin = sqlx::raw_sql("BEGIN IMMEDIATE");
        begin.execute(&mut writer).await.unwrap();
        let wanted_too = request("held");
        let before = store.statements();
        let requests = both(
            join_all(taking.iter().map(|request| take(&lock, request))),
            both(
                join_all(leaving.iter().zip(&grants).map(|(request, grant)| {
                    let mut lease = lease(request, grant);
                    if request.name.as_str() == "old-03" {
                        lease.token = Some(FencingToken::new(grant.token.get() - 1).unwrap());
                    }
                    let lock = &lock;
                    async move { lock.release(&lease).await.unwrap() }
                })),
                // A batch contains a name only once. The second request for a name is in the next
                // batch.
                both(refused(&lock, &wanted_too), take(&lock, &held)),
            ),
        );
        let rollback = async {
            let rollback = sqlx::raw_sql("ROLLBACK");
            rollback.execute(&mut writer).await.unwrap();
        };
        let ((taken, (freed, (busy, again))), ()) = both(requests, rollback).await;
        let spent = store.statements() - before;
        assert!(spent < 15, "{spent} statements are not batches");
        assert_eq!(busy.token, Some(kept.token));
        assert_eq!(again.token, kept.token);
        for (at, outcome) in freed.into_iter().enumerate() {
            // In the second round of releases, the locks are free already.
            let gone = unlike || at == 3;
            let expected = if gone { ReleaseOutcome::NotHeld } else { FREED };
            assert_eq!(outcome, expected, "{at}");
        }
        for (request, grant) in taking.iter().zip(&taken) {
            assert_eq!(
                refused(&lock, &super::request(request.name.as_str()))
                    .await
                    .token,
                Some(grant.token)
            );
        }
    }
}

/// A batch that fails because of one row is rolled back, and its operations are sent again one by
/// one. No later request becomes a part of the failed transaction.
#[tokio::test]
async fn a_batch_that_fails_half_way_is_rolled_back() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let (stuck, ahead) = (request("stuck"), request("ahead"));
    for request in [&stuck, &ahead] {
        let grant = take(&lock, request).await;
        assert_eq!(lock.release(&lease(request, &grant)).await.unwrap(), FREED);
    }
    // Both tokens are ahead of the wall clock, so that one statement raises both. The highest token
    // that the table allows cannot be raised.
    let most = 9_007_199_254_740_991_u64;
    for (name, token) in [("stuck", most), ("ahead", most - 9)] {
        let set = "UPDATE distributed_lock SET token =";
        place
            .sql(&format!("{set} {token} WHERE lock_name = '{name}'"))
            .await;
    }
    let first = request("first");
    let (_, (failed, taken)) = both(
        // This request is sent at once, so that the other requests form a batch.
        take(&lock, &first),
        both(lock.try_acquire(&stuck), take(&lock, &ahead)),
    )
    .await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(taken.token.get(), most - 8);
    // Another store finds the change, so that the change is committed.
    let beside = place.open().await.lock();
    let held = refused(&beside, &request("ahead")).await;
    assert_eq!(held.token, Some(taken.token));
    let rest = beside.inspect(&stuck.name).await.unwrap();
    assert!(rest.held.is_none(), "{rest:?}");
    take(&beside, &request("next")).await;
}

/// Two locks are released in one batch. The first lock is taken by another owner as soon as it is
/// free. The second lock was released by force before.
#[tokio::test]
async fn a_release_whose_lock_is_taken_at_once_has_an_unknown_outcome() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let (ours, gone) = (request("ours"), request("gone"));
    let grants = [take(&lock, &ours).await, take(&lock, &gone).await];
    let forced = lock.force_release(&gone.name, grants[1].token).await;
    assert_eq!(forced.unwrap(), Forced::Released);
    let trigger = "CREATE TRIGGER taken AFTER UPDATE OF holder_id ON distributed_lock WHEN \
        new.holder_id IS NULL
         AND new.lock_name = 'ours' BEGIN UPDATE distributed_lock SET holder_id = randomblob(16), \
             token = token + 1,
         expires_at = expires_at + 60000000 WHERE lock_name = 'ours'; END";
    place.sql(trigger).await;
    let first = request("first");
    let (ours, gone) = (lease(&ours, &grants[0]), lease(&gone, &grants[1]));
    let mut raw = place.raw().await;
    let writing = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let releases = both(lock.release(&ours), lock.release(&gone));
    // The first request is sent at once and waits until another program ends its write. So the
    // releases behind this request form a batch.
    let ((_, (ours, gone)), ended) =
        both(both(take(&lock, &first), releases), writing.rollback()).await;
    ended.unwrap();
    assert_eq!(ours.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(gone.unwrap(), ReleaseOutcome::NotHeld);
    refused(&lock, &request("ours")).await;
}

#[tokio::test]
async fn the_same_owner_gets_the_same_token_and_a_fresh_lease() {
    let place = Place::new();
    let (clock, shared) = manual();
    let lock = place.open_at(shared).await.lock();
    let mine = request("a");
    let grant = take(&lock, &mine).await;
    clock.advance(Duration::from_secs(9));
    let again = take(&lock, &mine).await;
    assert_eq!(again.token, grant.token);
    clock.advance(Duration::from_secs(9));
    let seen = refused(&lock, &request("a")).await;
    assert_eq!(seen.expires_in, Some(Duration::from_secs(1)));
    // After the lease has expired, the same request is a new grant.
    clock.advance(Duration::from_secs(1));
    assert!(take(&lock, &mine).await.token > grant.token);
}

#[tokio::test]
async fn an_expired_lock_is_taken_over_and_its_holder_learns_the_reason() {
    let place = Place::new();
    let (clock, shared) = manual();
    let lock = place.open_at(shared).await.lock();
    let first = request("a");
    let grant = take(&lock, &first).await;
    let held = lease(&first, &grant);
    clock.advance(Duration::from_secs(5));
    let renewed = lock.renew(&held, &plain(&first)).await.unwrap();
    assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    clock.advance(first.ttl.duration() - Duration::from_micros(1));
    refused(&lock, &request("a")).await;
    clock.advance(Duration::from_micros(1));
    let renewed = lock.renew(&held, &plain(&first)).await.unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::Expired)));
    let info = lock.inspect(&name("a")).await.unwrap();
    assert_eq!((info.held, info.last_token), (None, Some(grant.token)));

    let next = take(&lock, &request("a")).await;
    assert!(next.token > grant.token);
    let renewed = lock.renew(&held, &plain(&first)).await.unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::TakenOver)));
    assert_eq!(lock.release(&held).await.unwrap(), ReleaseOutcome::NotHeld);
    place.sql("DELETE FROM distributed_lock").await;
    let renewed = lock.renew(&held, &plain(&first)).await.unwrap();
    assert!(matches!(renewed, Renewed::NotHeld(LossReason::Removed)));
}

#[tokio::test]
async fn a_lock_of_another_boot_is_free() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let first = request("a");
    let grant = take(&lock, &first).await;
    place
        .sql("UPDATE distributed_lock SET boot_id = randomblob(16), expires_at = 9000000000000000")
        .await;
    assert_eq!(lock.list("", None, 10).await.unwrap(), []);
    let renewed = lock.renew(&lease(&first, &grant), &plain(&first)).await;
    assert!(matches!(renewed.unwrap(), Renewed::NotHeld(_)));
    let next = take(&lock, &request("a")).await;
    assert!(next.token > grant.token);
    refused(&lock, &request("a")).await;
}

#[tokio::test]
async fn tokens_rise_across_restarts_and_a_clock_set_back() {
    let place = Place::new();
    let (clock, shared) = manual();
    clock.advance(Duration::from_secs(3600));
    let store = place.open_at(shared).await;
    let first = request("a");
    let grant = take(&store.lock(), &first).await;
    store.lock().release(&lease(&first, &grant)).await.unwrap();
    close(&store).await;

    // Both clocks are an hour earlier.
    let (_, shared) = manual();
    let lock = place.open_at(shared).await.lock();
    let next = take(&lock, &request("a")).await;
    assert_eq!(next.token.get(), grant.token.get() + 1);
}

#[tokio::test]
async fn an_unreadable_row_is_corrupt_and_never_free() {
    let place = Place::new();
    let lock = place.open().await.lock();
    take(&lock, &request("a")).await;
    for damage in [
        "token = -1",
        "holder_id = x'00'",
        "boot_id = x'00'",
        "token = 9007199254740992",
    ] {
        place
            .sql(&format!(
                "PRAGMA ignore_check_constraints = ON; UPDATE distributed_lock SET {damage} WHERE \
                    lock_name = 'a'"
            ))
            .await;
        let corrupt = |error: distlock_core::Error| {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{damage}: {error}");
            assert!(error.to_string().contains("\"a\""), "{error}");
        };
        corrupt(lock.try_acquire(&request("a")).await.unwrap_err());
        corrupt(lock.inspect(&name("a")).await.unwrap_err());
        // The damaged row does not affect the other operation of the batch.
        let (damaged, sound) = (request("a"), request("b"));
        let (bad, good) = tokio::join!(lock.try_acquire(&damaged), take(&lock, &sound));
        corrupt(bad.unwrap_err());
        lock.release(&lease(&sound, &good)).await.unwrap();
        place
            .sql("DELETE FROM distributed_lock WHERE lock_name = 'a'")
            .await;
        take(&lock, &request("a")).await;
    }
}

#[tokio::test]
async fn a_hand_over_is_one_step() {
    let place = Place::new();
    let store = place.open().await;
    let lock = store.lock();
    let (first, second) = (request("a"), request("a"));
    let grant = take(&lock, &first).await;
    let before = store.statements();
    let handed = lock.hand_over(&lease(&first, &grant), &second).await;
    assert_eq!(store.statements() - before, 1);
    let HandOver::Done(next) = handed.unwrap() else {
        panic!("not handed over")
    };
    assert!(next.token > grant.token);
    let renewed = lock.renew(&lease(&first, &grant), &plain(&first)).await;
    assert!(matches!(
        renewed.unwrap(),
        Renewed::NotHeld(LossReason::TakenOver)
    ));
    assert_eq!(take(&lock, &second).await.token, next.token);
    assert_eq!(lock.release(&lease(&second, &next)).await.unwrap(), FREED);
    a_hand_over_takes_one_statement(&*lock, 10, || store.statements()).await;
}

#[tokio::test]
async fn a_ticket_is_redeemed_once() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let mine = request("a");
    let grant = take(&lock, &mine).await;
    let held = lease(&mine, &grant);
    let (nonce, other) = (*OwnerId::new().as_uuid(), *OwnerId::new().as_uuid());
    let step = |ticket| {
        let mut renewal = plain(&mine);
        renewal.ticket = ticket;
        renewal
    };
    let by_ticket = |nonce| {
        let mut lease = held.clone();
        lease.nonce = Some(nonce);
        lease
    };
    let redeem = step(TicketStep::Redeem);
    let renewed = lock.renew(&by_ticket(nonce), &redeem).await;
    assert!(matches!(renewed.unwrap(), Renewed::NotHeld(_)));
    lock.renew(&held, &step(TicketStep::Issue(nonce)))
        .await
        .unwrap();
    lock.renew(&held, &step(TicketStep::Keep)).await.unwrap();
    let renewed = lock.renew(&by_ticket(other), &redeem).await;
    assert!(matches!(renewed.unwrap(), Renewed::NotHeld(_)));
    let renewed = lock.renew(&by_ticket(nonce), &plain(&mine)).await.unwrap();
    assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    let renewed = lock.renew(&by_ticket(nonce), &redeem).await.unwrap();
    assert!(matches!(renewed, Renewed::Extended { token, .. } if token == grant.token));
    for renewal in [redeem, plain(&mine)] {
        let renewed = lock.renew(&by_ticket(nonce), &renewal).await;
        assert!(matches!(renewed.unwrap(), Renewed::NotHeld(_)));
    }
    let released = lock.release(&by_ticket(nonce)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::NotHeld);
    // The lock itself is still held.
    refused(&lock, &request("a")).await;
}

#[tokio::test]
async fn a_force_release_with_another_token_is_refused() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let mine = request("a");
    assert_eq!(
        lock.force_release(&name("a"), FencingToken::new(1).unwrap())
            .await
            .unwrap(),
        Forced::NotHeld
    );
    let grant = take(&lock, &mine).await;
    let wrong = FencingToken::new(grant.token.get() - 1).unwrap();
    assert_eq!(
        lock.force_release(&name("a"), wrong).await.unwrap(),
        Forced::OtherToken(grant.token)
    );
    assert_eq!(
        lock.force_release(&name("a"), grant.token).await.unwrap(),
        Forced::Released
    );
    assert_eq!(
        lock.force_release(&name("a"), grant.token).await.unwrap(),
        Forced::NotHeld
    );
    let lost = async |lease| match lock.renew(&lease, &plain(&mine)).await.unwrap() {
        Renewed::NotHeld(reason) => reason,
        renewed => panic!("{renewed:?}"),
    };
    assert_eq!(lost(lease(&mine, &grant)).await, LossReason::ForceReleased);
    // The force-release did not end an earlier lease.
    let mut earlier = lease(&mine, &grant);
    earlier.token = Some(wrong);
    assert_eq!(lost(earlier).await, LossReason::Removed);
    // A row that was freed by hand does not count as released by force.
    let grant = take(&lock, &mine).await;
    place
        .sql("UPDATE distributed_lock SET holder_id = NULL")
        .await;
    assert_eq!(lost(lease(&mine, &grant)).await, LossReason::Removed);
}

#[tokio::test]
async fn a_release_reports_whether_another_process_waits() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let waiting = ReleaseOutcome::Released {
        others_waiting: Some(true),
    };
    let requests: Vec<_> = (0..4).map(|id| request(&format!("n{id}"))).collect();
    let mut leases = Vec::new();
    for request in &requests {
        leases.push(lease(request, &take(&lock, request).await));
    }
    place
        .sql(
            "UPDATE distributed_lock SET hint_id = -1, hint_until = expires_at WHERE \
                lock_name IN ('n1', 'n3')",
        )
        .await;
    assert_eq!(lock.release(&leases[3]).await.unwrap(), waiting);
    // One batch releases a lock with a hint, a lock without a hint, and a lock that is not held.
    let all = leases.iter().map(|lease| lock.release(lease));
    let mut outcomes = Vec::new();
    for outcome in join_all(all).await {
        outcomes.push(outcome.unwrap());
    }
    assert_eq!(outcomes, [FREED, waiting, FREED, ReleaseOutcome::NotHeld]);
}

#[tokio::test]
async fn names_are_compared_byte_for_byte() {
    let place = Place::new();
    let lock = place.open().await.lock();
    let names = [
        "a",
        "A",
        "a ",
        " a",
        "ä",
        "a\u{308}",
        "%",
        "_",
        "'",
        "\"",
        "\\",
        "/",
        ".",
        "..",
        "*",
        "[a]",
        "{}",
        "null",
        "1",
        "[\"a\"]",
        "\u{1f512}",
        "\u{10ffff}",
    ];
    for text in names {
        take(&lock, &request(text)).await;
    }
    let listed = lock.list("", None, 100).await.unwrap();
    let mut sorted = names;
    sorted.sort_unstable();
    let listed: Vec<_> = listed.iter().map(|info| info.name.as_str()).collect();
    assert_eq!(listed, sorted);
    for text in names {
        refused(&lock, &request(text)).await;
    }
}

#[tokio::test]
async fn a_list_is_paged_and_its_prefix_is_plain_text() {
    let place = Place::new();
    let lock = place.open().await.lock();
    for text in ["a%1", "a%2", "a_3", "ab", "b"] {
        take(&lock, &request(text)).await;
    }
    let names = |infos: Vec<distlock_core::LockInfo>| -> Vec<String> {
        infos.iter().map(|info| info.name.to_string()).collect()
    };
    assert_eq!(
        names(lock.list("a%", None, 9).await.unwrap()),
        ["a%1", "a%2"]
    );
    assert_eq!(
        names(lock.list("a", None, 2).await.unwrap()),
        ["a%1", "a%2"]
    );
    assert_eq!(
        names(lock.list("a", Some(&name("a%2")), 2).await.unwrap()),
        ["a_3", "ab"]
    );
    assert_eq!(
        names(lock.list("b", Some(&name("a%2")), 9).await.unwrap()),
        ["b"]
    );
    assert!(
        lock.list("a", Some(&name("b")), 9)
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_busy_file_is_unavailable_and_not_held() {
    let place = Place::new();
    let mut config = place.config();
    config.busy_timeout = Duration::from_millis(50);
    let lock = Sqlite::open(config, Arc::new(SystemClock))
        .await
        .unwrap()
        .lock();
    let mut raw = place.raw().await;
    let transaction = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mine = request("a");
    let error = lock.try_acquire(&mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.did_not_happen(), "{error}");
    // Reads still work.
    assert_eq!(lock.inspect(&name("a")).await.unwrap().held, None);
    transaction.rollback().await.unwrap();
    take(&lock, &mine).await;
}

#[tokio::test]
async fn a_dropped_acquisition_leaves_nothing_behind() {
    let place = Place::new();
    let lock = place.open().await.lock();
    for round in 0..50 {
        let lost = request("a");
        let attempt = tokio::spawn({
            let (lock, lost) = (Arc::clone(&lock), lost.clone());
            async move { lock.try_acquire(&lost).await.is_ok() }
        });
        for _ in 0..round % 5 {
            tokio::task::yield_now().await;
        }
        attempt.abort();
        let answered = attempt.await.is_ok();
        let next = request("a");
        if answered {
            lock.release(&Lease::new(lost.name, lost.owner, None))
                .await
                .unwrap();
        }
        let grant = take(&lock, &next).await;
        lock.release(&lease(&next, &grant)).await.unwrap();
    }
}

#[tokio::test]
async fn a_closed_handle_refuses_operations() {
    let place = Place::new();
    let store = place.open().await;
    let (lock, records) = (store.lock(), store.records());
    let reopened = lock.reopen().await.unwrap();
    lock.close().await;
    lock.close().await;
    let error = lock.try_acquire(&request("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    // The records of this handle and the reopened handle stay open.
    let key = distlock_core::RecordKey::new("k").unwrap();
    assert_eq!(records.get(&key).await.unwrap(), None);
    take(&reopened, &request("a")).await;
    records.close().await;
    assert_eq!(
        records.get(&key).await.unwrap_err().kind(),
        ErrorKind::Closed
    );
    assert!(matches!(
        store.reap().await.unwrap_err().kind(),
        ErrorKind::Closed
    ));
}
