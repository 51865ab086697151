//! The protocol on real sockets: the frames of a session, its waiters, and the unary calls.

use std::{sync::Arc, time::Duration};

use distlock_conformance::LockLayer;
use distlock_core::{
    AcquireRequest, Attempt, Clock as _, DistLock, FencingToken, Grant, LockName, Result, Store,
    SystemClock, at_most,
};
use distlock_memory::Memory;
use distlock_server::{LockServer, ServerConfig};
use distlock_wire::{
    FRAME_BYTES,
    v1::{
        self, acquire_answer, answer, error::Kind, operation::Operation as Asked, push,
        waiter_step::Step,
    },
};
use tokio::sync::{Notify, Semaphore, oneshot};
use tonic::Code;
use uuid::Uuid;

use crate::support::{
    SOON, TTL, acquire, call, error_kind, granted, hello, join, serve, serve_store, step,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_without_a_good_hello_is_refused_by_name() {
    let served = serve(|_| {}).await;
    let changed = |change: fn(&mut v1::Hello)| {
        let mut frame = hello(Uuid::new_v4(), 1);
        change(frame.hello.as_mut().unwrap());
        frame
    };
    let with_operation = v1::ClientFrame {
        operations: vec![v1::Operation::default()],
        ..hello(Uuid::new_v4(), 1)
    };
    for (first, code, says) in [
        (
            changed(|hello| hello.versions = vec![7, 9]),
            Code::FailedPrecondition,
            "[7, 9]",
        ),
        (
            changed(|hello| hello.versions.clear()),
            Code::FailedPrecondition,
            "version",
        ),
        (
            changed(|hello| hello.client.truncate(3)),
            Code::InvalidArgument,
            "16 bytes",
        ),
        (v1::ClientFrame::default(), Code::InvalidArgument, "Hello"),
        (with_operation, Code::InvalidArgument, "operations"),
    ] {
        let status = served.stream(first).await.refusal().await;
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(says), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_frames_end_the_session_and_grant_nothing() {
    let served = serve(|_| {}).await;
    let mut twice = served.any_session().await;
    twice.frames.send(hello(Uuid::new_v4(), 2)).unwrap();
    assert_eq!(twice.refusal().await.code(), Code::InvalidArgument);

    // The first one has no answer yet when the second one is read.
    let mut same_id = served.any_session().await;
    same_id.send([(5, join(1, "a")), (5, join(2, "a"))]);
    let status = same_id.refusal().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("operation 5"), "{status}");

    let mut large = served.any_session().await;
    let put = v1::WriteRecord {
        key: "k".to_owned(),
        value: vec![0; FRAME_BYTES],
        expect_version: None,
    };
    large.send([(1, Asked::Put(put))]);
    assert_eq!(large.refusal().await.code(), Code::OutOfRange);
    served.until("a", |info| info.waiters == Some(0)).await;
    assert_eq!(served.holder("a").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_that_break_a_rule_have_an_error_each_and_the_session_goes_on() {
    let served = serve(|config| config.limits.waiters = 1).await;
    let mut session = served.any_session().await;
    let unknown = v1::Operation {
        id: 1,
        operation: None,
    };
    let frame = v1::ClientFrame {
        hello: None,
        operations: vec![unknown],
    };
    session.frames.send(frame).unwrap();
    assert_eq!(error_kind(&session.answer(1).await), Kind::Unsupported);
    let mut nobody = acquire("a", Uuid::new_v4(), TTL);
    nobody.owner.truncate(15);
    let nameless = acquire("", Uuid::new_v4(), TTL);
    let endless = acquire("a", Uuid::new_v4(), Duration::from_secs(90_000));
    session.send([
        (2, Asked::Acquire(nobody)),
        (3, Asked::Acquire(nameless)),
        (4, Asked::Acquire(endless)),
        (5, step(77, Step::Attempt)),
        (6, join(1, "b")),
        (7, join(2, "b")),
    ]);
    for (id, kind) in [
        (2, Kind::InvalidArgument),
        (3, Kind::InvalidName),
        (4, Kind::InvalidArgument),
        (5, Kind::InvalidArgument),
        (7, Kind::LimitExceeded),
    ] {
        assert_eq!(error_kind(&session.answer(id).await), kind, "{id}");
    }
    assert!(matches!(session.answer(6).await, answer::Answer::Waiter(_)));
    for name in ["a", "b"] {
        assert_eq!(served.holder(name).await, None, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_of_a_client_ends_the_older_one_for_good() {
    let served = serve(|_| {}).await;
    let client = Uuid::new_v4();
    let mut first = served.session(client, 1).await;
    let mut second = served.session(client, 2).await;
    assert_eq!(first.refusal().await.code(), Code::Aborted);
    // It was on its way when the client made its second connection.
    let mut late = served.stream(hello(client, 1)).await;
    assert_eq!(late.refusal().await.code(), Code::FailedPrecondition);
    let owner = Uuid::new_v4();
    second.send([(1, Asked::Acquire(acquire("a", owner, TTL)))]);
    assert!(granted(second.answer(1).await).is_some());
    // The lock does not end with the connection.
    drop(second);
    let mut third = served.session(client, 3).await;
    third.send([
        (1, Asked::Acquire(acquire("a", Uuid::new_v4(), TTL))),
        (2, Asked::Acquire(acquire("a", owner, TTL))),
    ]);
    assert!(granted(third.answer(1).await).is_none(), "another owner");
    assert!(granted(third.answer(2).await).is_some(), "the same owner");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_wakes_the_first_waiter_and_grants_nothing() {
    let served = serve(|_| {}).await;
    let lease = served.hold("a").await;
    let mut session = served.any_session().await;
    // Joining takes a moment, so the second one joins after the answer to the first one.
    for waiter in [10, 11] {
        session.send([
            (waiter, join(waiter, "a")),
            (waiter + 10, step(waiter, Step::Attempt)),
        ]);
        assert!(granted(session.answer(waiter + 10).await).is_none());
    }
    served.lock.release(&lease).await.unwrap();
    assert_eq!(session.push().await, push::Push::Wake(10));
    assert_eq!(served.holder("a").await, None);
    session.send([(5, step(10, Step::Attempt))]);
    let grant = granted(session.answer(5).await).unwrap();
    assert_eq!(served.holder("a").await.as_deref(), Some("client"));
    assert!(session.pushes.is_empty(), "{:?}", session.pushes);

    // A waiter that has left is not woken, and keeps nobody out.
    session.send([(6, step(11, Step::Leave))]);
    assert!(matches!(session.answer(6).await, answer::Answer::Waiter(_)));
    let name = LockName::new("a").unwrap();
    let token = FencingToken::new(grant.token).unwrap();
    served.lock.force_release(&name, token).await.unwrap();
    let owner = Uuid::new_v4();
    session.send([(7, Asked::Acquire(acquire("a", owner, TTL)))]);
    assert!(granted(session.answer(7).await).is_some());
    assert!(session.pushes.is_empty(), "{:?}", session.pushes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waiters_of_a_broken_connection_keep_nobody_out() {
    let served = serve(|_| {}).await;
    let lease = served.hold("a").await;
    let mut gone = served.any_session().await;
    gone.send([(1, join(1, "a")), (2, step(1, Step::Attempt))]);
    assert!(granted(gone.answer(2).await).is_none());
    drop(gone);
    served.until("a", |info| info.waiters == Some(0)).await;
    served.lock.release(&lease).await.unwrap();
    let mut next = served.any_session().await;
    next.send([(1, Asked::Acquire(acquire("a", Uuid::new_v4(), TTL)))]);
    assert!(granted(next.answer(1).await).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_cut_to_the_longest_one() {
    let served = serve(|config| config.max_lease = Duration::from_secs(30)).await;
    let mut session = served.any_session().await;
    let owner = Uuid::new_v4();
    let hour = Duration::from_secs(3600);
    session.send([(1, Asked::Acquire(acquire("a", owner, hour)))]);
    let grant = granted(session.answer(1).await).unwrap();
    assert_eq!(grant.valid_for_us, 30_000_000);
    let lease = v1::Lease {
        name: "a".to_owned(),
        owner: owner.as_bytes().to_vec(),
        token: Some(grant.token),
        nonce: None,
    };
    let renewal = v1::RenewLease {
        lease: Some(lease),
        ttl_us: 3_600_000_000,
        ..v1::RenewLease::default()
    };
    session.send([(2, Asked::Renew(renewal))]);
    let renewed = session.answer(2).await;
    let answer::Answer::Renew(v1::RenewAnswer {
        answer: Some(v1::renew_answer::Answer::Extended(extended)),
    }) = renewed
    else {
        panic!("{renewed:?}");
    };
    assert_eq!(extended.valid_for_us, 30_000_000);
    let held = served.inspect("a").await.held.unwrap();
    assert!(held.expires_in.unwrap() <= Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unary_acquire_waits_and_its_lease_counts_from_the_call() {
    let served = serve(|_| {}).await;
    let lease = served.hold("a").await;
    let mut client = served.client().await;
    let sent = SystemClock.now();
    let waiting = tokio::spawn(async move { client.acquire(call("a", SOON)).await });
    SystemClock.sleep(Duration::from_millis(400)).await;
    served.lock.release(&lease).await.unwrap();
    let answer = waiting.await.unwrap().unwrap().into_inner();
    let received = SystemClock.now();
    let Some(acquire_answer::Answer::Granted(grant)) = answer.answer else {
        panic!("{answer:?}");
    };
    let valid_for = Duration::from_micros(grant.valid_for_us);
    assert!(
        valid_for >= TTL + Duration::from_millis(300),
        "{valid_for:?}"
    );
    // The end of the lease, counted from the sending, is not after its end at the store.
    assert!(sent + valid_for <= received + TTL, "{valid_for:?}");

    // Without a wait, a busy lock is an answer.
    let answer = served
        .client()
        .await
        .acquire(call("a", Duration::ZERO))
        .await;
    let Some(acquire_answer::Answer::Busy(busy)) = answer.unwrap().into_inner().answer else {
        panic!("granted twice");
    };
    assert_eq!(busy.holder.unwrap().holder, "client");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_call_that_has_ended_is_free() {
    let served = serve(|_| {}).await;
    let lease = served.hold("a").await;
    let mut client = served.client().await;
    let waiting = tokio::spawn(async move { client.acquire(call("a", SOON)).await });
    served.until("a", |info| info.waiters == Some(1)).await;
    waiting.abort();
    let _ = waiting.await;
    // Otherwise the grant may be on its way when the server learns of the end of the call.
    served.until("a", |info| info.waiters == Some(0)).await;
    served.lock.release(&lease).await.unwrap();
    let info = served.inspect("a").await;
    assert!(info.held.is_none(), "{info:?}");
    // No answer to an earlier call is on its way.
    SystemClock.sleep(Duration::from_millis(200)).await;
    let info = served.inspect("a").await;
    assert!(info.held.is_none(), "{info:?}");
}

/// The older call would release the grant of the newer one, if it ended later.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_repeated_ends_before_the_newer_one_is_served() {
    let served = serve(|_| {}).await;
    let lease = served.hold("a").await;
    let asked = call("a", SOON);
    let (mut older, mut newer) = (served.client().await, served.client().await);
    let (first, again) = (asked.clone(), asked.clone());
    let first = tokio::spawn(async move { older.acquire(first).await });
    served.until("a", |info| info.waiters == Some(1)).await;
    let again = tokio::spawn(async move { newer.acquire(again).await });
    // Its client is still there, and learns that nothing was granted.
    let status = first.await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    served.until("a", |info| info.waiters == Some(1)).await;
    served.lock.release(&lease).await.unwrap();
    let answer = again.await.unwrap().unwrap().into_inner();
    let Some(acquire_answer::Answer::Granted(grant)) = answer.answer else {
        panic!("{answer:?}");
    };
    let held = served.inspect("a").await.held.unwrap();
    assert_eq!(held.token.map(FencingToken::get), Some(grant.token));

    // The repetition of a call that has its answer is answered with the same grant.
    let answer = served.client().await.acquire(asked).await.unwrap();
    let Some(acquire_answer::Answer::Granted(same)) = answer.into_inner().answer else {
        panic!("the lock is held by this owner");
    };
    assert_eq!(same.token, grant.token);
}

/// It would find the lock that the caller has by its other call, and release it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_caller_has_gone_before_its_turn_asks_for_nothing() {
    let memory = Memory::default();
    let gate = Gate::over(memory.lock());
    let (reached, open) = (Arc::clone(&gate.reached), Arc::clone(&gate.open));
    let store = Store::new(gate.into_lock(), memory.records());
    let served = serve_store(store, memory.lock(), std::future::pending(), |_| {}).await;
    let asked = call("a", SOON);
    let (mut first, again) = (served.client().await, served.client().await);
    let (of_first, of_again) = (asked.clone(), asked);
    let first = tokio::spawn(async move { first.acquire(of_first).await });
    reached.notified().await;
    // The repetition waits for the end of the first call, which is at the store.
    let mut client = again.clone();
    let repeated = tokio::spawn(async move { client.acquire(of_again).await });
    let settled = async || {
        // The server reads the frames of a connection in their order.
        again.clone().health(v1::CheckHealth {}).await.unwrap();
        SystemClock.sleep(Duration::from_millis(200)).await;
    };
    settled().await;
    repeated.abort();
    let _ = repeated.await;
    settled().await;
    open.add_permits(1);
    let answer = first.await.unwrap().unwrap().into_inner().answer;
    assert!(
        matches!(answer, Some(acquire_answer::Answer::Granted(_))),
        "{answer:?}"
    );
    SystemClock.sleep(Duration::from_millis(200)).await;
    assert_eq!(served.holder("a").await.as_deref(), Some("client"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_has_a_status_by_the_book_and_our_error_in_its_details() {
    let served = serve(|_| {}).await;
    let mut client = served.client().await;
    let status = client.acquire(call("", Duration::ZERO)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let error = v1::Error::of_status(&status).unwrap();
    assert_eq!(error.kind(), Kind::InvalidName);
    let status = client
        .release(v1::ReleaseLease::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_beyond_loopback_or_with_a_wrong_option_does_not_start() {
    let minute = Duration::from_secs(60);
    for (listen, max_lease, setting) in [
        ("0.0.0.0:0", minute, "listen"),
        ("nowhere", minute, "listen"),
        ("127.0.0.1:0", Duration::from_millis(10), "max_lease"),
    ] {
        let memory = Memory::default();
        let store = Store::new(memory.lock(), memory.records());
        let mut config = ServerConfig::default();
        config.listen = Some(listen.to_owned());
        config.max_lease = max_lease;
        let error = LockServer::start(config, store).await.unwrap_err();
        assert_eq!(error.setting(), Some(setting), "{error}");
    }
}

/// A lock whose attempts wait until they may go on.
#[derive(Clone, Debug)]
struct Gate {
    below: Arc<dyn DistLock>,
    reached: Arc<Notify>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn over(below: Arc<dyn DistLock>) -> Self {
        Self {
            below,
            reached: Arc::default(),
            open: Arc::new(Semaphore::new(0)),
        }
    }
}

#[tonic::async_trait]
impl LockLayer for Gate {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.below)
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.reached.notify_one();
        let _open = self.open.acquire().await;
        self.below.try_acquire(request).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_over_a_new_connection_comes_after_the_acquire_that_it_undoes() {
    let memory = Memory::default();
    let gate = Gate::over(memory.lock());
    let (reached, open) = (Arc::clone(&gate.reached), Arc::clone(&gate.open));
    let store = Store::new(gate.into_lock(), memory.records());
    let served = serve_store(store, memory.lock(), std::future::pending(), |_| {}).await;
    let (client, owner) = (Uuid::new_v4(), Uuid::new_v4());
    let first = served.session(client, 1).await;
    first.send([(1, Asked::Acquire(acquire("a", owner, TTL)))]);
    reached.notified().await;
    // The attempt is at the store when the client gives its connection up.
    drop(first);
    let mut second = served.stream(hello(client, 2)).await;
    let lease = v1::Lease {
        name: "a".to_owned(),
        owner: owner.as_bytes().to_vec(),
        token: None,
        nonce: None,
    };
    let undo = v1::ReleaseLease { lease: Some(lease) };
    second.send([(1, Asked::Release(undo))]);
    let early = at_most(&SystemClock, Duration::from_millis(300), second.frame()).await;
    assert!(early.is_none(), "{early:?}");
    open.add_permits(1);
    let answer = second.answer(1).await;
    let answer::Answer::Release(v1::ReleaseAnswer { released, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert!(released, "it was granted before");
    assert_eq!(served.holder("a").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_sessions_and_waiting_calls() {
    let memory = Memory::default();
    let store = Store::new(memory.lock(), memory.records());
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let served = serve_store(store, memory.lock(), shutdown, |_| {}).await;
    served.hold("a").await;
    let mut session = served.any_session().await;
    session.send([(1, join(1, "a")), (2, step(1, Step::Attempt))]);
    assert!(granted(session.answer(2).await).is_none());
    let mut client = served.client().await;
    let hour = Duration::from_secs(3600);
    let waiting = tokio::spawn(async move { client.acquire(call("a", hour)).await });
    served.until("a", |info| info.waiters == Some(2)).await;
    stop.send(()).unwrap();
    assert_eq!(session.push().await, push::Push::Closing(true));
    assert_eq!(session.refusal().await.code(), Code::Cancelled, "its end");
    let refused = waiting.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    drop(session);
    let ended = at_most(&SystemClock, SOON, served.served).await;
    ended.expect("the server ends").unwrap().unwrap();
    // The lock does not end with the server.
    let name = LockName::new("a").unwrap();
    assert!(memory.lock().inspect(&name).await.unwrap().held.is_some());
}
