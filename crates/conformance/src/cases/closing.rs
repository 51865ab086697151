//! Property: a closed handle refuses every operation, and other handles keep working.

use std::sync::Arc;

use distlock_core::{
    ErrorKind, Expect, FencingToken, Lease, OwnerId, RecordKey, Records, Released, Renewal, Ttl,
    Version,
};

use crate::{
    Outcome,
    failure::{ensure, expect_error, fail},
    spec::{Spec, case},
    support::{
        Context, SOON, acquire_free, eventually, inspect_lock, release_clean, request, soon,
    },
};

pub(crate) const CASES: &[Spec] = &[
    case!(
        closing::closed_handle_refuses,
        "a closed handle on the locks answers Closed to everything"
    ),
    case!(
        closing::contender_of_a_closed_handle_refuses,
        "a contender asks the store nothing after its handle was closed"
    ),
    case!(
        closing::closed_records_refuse,
        "a closed handle on the records answers Closed to everything"
    ),
    case!(
        closing::locks_and_records_close_separately,
        "closing the locks leaves the records open, and a reopened handle outlives its first"
    ),
    case!(
        closing::closed_locker_refuses_inspect_and_force,
        "a closed locker answers Closed to inspections, forced releases and health checks"
    ),
    case!(
        closing::closed_locker_refuses_tickets,
        "a closed locker answers Closed to tickets, which stay usable",
        Tickets
    ),
    case!(
        closing::guard_of_a_closed_locker_is_not_released,
        "a guard that outlives its locker is not released any more, and ends with its lease"
    ),
];

const CLOSED: &[ErrorKind] = &[ErrorKind::Closed];

async fn closed_handle_refuses(cx: Context) -> Outcome {
    let (backend, other) = (cx.backend().await?, cx.backend().await?);
    let (held, free) = (cx.lock_name("held")?, cx.lock_name("free")?);
    let owner = OwnerId::new();
    let ask = request(held.as_str(), owner, cx.long_ttl())?;
    let Some(grant) = backend.try_acquire(&ask).await?.acquired() else {
        fail!("the lock should be free");
    };
    let owner = grant.owner.unwrap_or(owner);
    let lease = Lease::new(held.clone(), owner, Some(grant.token));
    let wanted = request(free.as_str(), OwnerId::new(), cx.long_ttl())?;
    let next = request(held.as_str(), OwnerId::new(), cx.long_ttl())?;
    let renewal = Renewal::plain(Ttl::new(cx.long_ttl())?);
    let before = backend.requests_sent();
    for _ in 0..2 {
        soon("close", backend.close()).await?;
        expect_error("try_acquire", backend.try_acquire(&wanted).await, CLOSED)?;
        expect_error("contend", backend.contend(&wanted).await.map(drop), CLOSED)?;
        expect_error("renew", backend.renew(&lease, &renewal).await, CLOSED)?;
        expect_error("release", backend.release(&lease).await, CLOSED)?;
        expect_error("hand_over", backend.hand_over(&lease, &next).await, CLOSED)?;
        expect_error("inspect", backend.inspect(&held).await, CLOSED)?;
        expect_error("list", backend.list(cx.prefix(), None, 10).await, CLOSED)?;
        expect_error("no list", backend.list(cx.prefix(), None, 0).await, CLOSED)?;
        let forced = backend.force_release(&held, grant.token).await;
        expect_error("force_release", forced, CLOSED)?;
        expect_error("health", backend.health().await, CLOSED)?;
        expect_error("reopen", backend.reopen().await.map(drop), CLOSED)?;
    }
    // A closed handle still returns the number of requests that it has sent.
    ensure!(
        backend.requests_sent() >= before,
        "a closed handle lost count"
    );
    let free = other.inspect(&free).await?;
    ensure!(free.held.is_none(), "a closed handle has taken a lock");
    Ok(())
}

async fn contender_of_a_closed_handle_refuses(cx: Context) -> Outcome {
    let (backend, other) = (cx.backend().await?, cx.backend().await?);
    let name = cx.lock_name("a")?;
    let mut contender = backend
        .contend(&request(name.as_str(), OwnerId::new(), cx.long_ttl())?)
        .await?;
    soon("close", backend.close()).await?;
    expect_error("attempt", contender.attempt().await, CLOSED)?;
    let attempt = contender.attempt_as(OwnerId::new()).await;
    expect_error("attempt_as", attempt, CLOSED)?;
    // The drop makes the contender leave the queue, also after its handle was closed. In a store
    // where the first queue entry holds the lock, the entry shows as the holder until the store has
    // removed the entry.
    drop(contender);
    let what = "the contender of a closed handle takes no lock";
    eventually(what, SOON, || async {
        Ok(other.inspect(&name).await?.held.is_none())
    })
    .await
}

async fn closed_records_refuse(cx: Context) -> Outcome {
    let (closing, other) = (cx.store().await?, cx.store().await?);
    let (closing, other) = (closing.records(), other.records());
    let (key, absent) = (cx.key("a")?, cx.key("b")?);
    let version = match other.put(&key, b"1", Expect::Absent).await? {
        distlock_core::Written::Stored(version) => version,
        distlock_core::Written::Conflict => fail!("the record should be absent"),
    };
    for _ in 0..2 {
        soon("close", closing.close()).await?;
        ensure_records_refuse(&closing, &key, &absent, version, cx.prefix()).await?;
    }
    let now = other.get(&key).await?;
    ensure!(
        now.is_some_and(|entry| entry.version == version),
        "a closed handle has changed a record"
    );
    ensure!(
        other.get(&absent).await?.is_none(),
        "a closed handle has made a record"
    );
    Ok(())
}

/// Checks that closed records refuse every operation on an existing key and on an absent one.
async fn ensure_records_refuse(
    records: &Arc<dyn Records>,
    key: &RecordKey,
    absent: &RecordKey,
    version: Version,
    prefix: &str,
) -> Outcome {
    expect_error("get", records.get(key).await, CLOSED)?;
    let keys = [key.clone(), absent.clone()];
    expect_error("get_many", records.get_many(&keys).await, CLOSED)?;
    expect_error("get none", records.get_many(&[]).await, CLOSED)?;
    let put = records.put(absent, b"1", Expect::Absent).await;
    expect_error("put of a new record", put, CLOSED)?;
    let put = records.put(key, b"2", Expect::Version(version)).await;
    expect_error("put of an old record", put, CLOSED)?;
    expect_error("delete", records.delete(key, version).await, CLOSED)?;
    expect_error("scan", records.scan(prefix, None, 10).await, CLOSED)?;
    expect_error("no scan", records.scan(prefix, None, 0).await, CLOSED)?;
    expect_error("reopen", records.reopen().await.map(drop), CLOSED)?;
    Ok(())
}

async fn locks_and_records_close_separately(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let (backend, records) = (store.backend(), store.records());
    let (name, key) = (cx.lock_name("a")?, cx.key("a")?);
    let again = backend.reopen().await?;
    soon("close", backend.close()).await?;
    records.put(&key, b"1", Expect::Absent).await?;
    let owner = OwnerId::new();
    let ask = request(name.as_str(), owner, cx.long_ttl())?;
    let Some(grant) = again.try_acquire(&ask).await?.acquired() else {
        fail!("the lock should be free");
    };
    let more = records.reopen().await?;
    soon("close", records.close()).await?;
    ensure!(more.get(&key).await?.is_some(), "the record is there");
    let owner = grant.owner.unwrap_or(owner);
    again
        .release(&Lease::new(name, owner, Some(grant.token)))
        .await?;
    soon("close", again.close()).await?;
    soon("close", more.close()).await
}

async fn closed_locker_refuses_inspect_and_force(cx: Context) -> Outcome {
    let (holder, closing) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&holder, &name, cx.long_ttl()).await?;
    soon("close", closing.close()).await?;
    expect_error("inspect", closing.inspect(&name).await, CLOSED)?;
    expect_error("list", closing.list(cx.prefix()).await, CLOSED)?;
    let page = closing.list_page(cx.prefix(), None, 10).await;
    expect_error("list_page", page, CLOSED)?;
    let forced = closing.force_release(&name, guard.token()).await;
    expect_error("force_release", forced, CLOSED)?;
    let forced = closing.force_release(&name, FencingToken::new(1)?).await;
    expect_error("force_release of another token", forced, CLOSED)?;
    expect_error("health", closing.health().await, CLOSED)?;
    expect_error("ready", closing.ready().await, CLOSED)?;
    ensure!(guard.is_valid(), "the lock is still held");
    release_clean(guard).await
}

async fn closed_locker_refuses_tickets(cx: Context) -> Outcome {
    let (holder, closing) = cx.two_lockers().await?;
    let name = cx.name("a");
    let ticket = acquire_free(&holder, &name, cx.long_ttl())
        .await?
        .into_ticket()
        .await?;
    soon("close", closing.close()).await?;
    expect_error("resume", closing.resume(&ticket).await.map(drop), CLOSED)?;
    let renewed = closing.renew_ticket(&ticket, cx.long_ttl()).await;
    expect_error("renew_ticket", renewed, CLOSED)?;
    expect_error(
        "release_ticket",
        closing.release_ticket(&ticket).await,
        CLOSED,
    )?;
    release_clean(holder.resume(&ticket).await?).await
}

async fn guard_of_a_closed_locker_is_not_released(cx: Context) -> Outcome {
    let (closing, other) = cx.two_lockers().await?;
    let name = cx.name("a");
    let guard = acquire_free(&closing, &name, cx.long_ttl()).await?;
    soon("close", closing.close()).await?;
    match soon("release", guard.release()).await? {
        Released::Unconfirmed(error) if error.kind() == ErrorKind::Closed => {
            let held = inspect_lock(&other, &name).await?.held;
            ensure!(held.is_some(), "the lock is free before its lease ends");
        }
        // The leases of this store end with sessions, and the close has ended the session.
        Released::AlreadyLost(_) => {}
        other => fail!("the release after closing said {other:?}"),
    }
    Ok(())
}
