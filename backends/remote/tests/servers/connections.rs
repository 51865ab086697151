//! Connections that break in the middle of a request, and servers that go away.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use distlock_backend_kit::Drivers;
use distlock_core::{
    AcquireRequest, Attempt, Clock as _, DistLock, ErrorKind, HolderLabel, Lease, LockName,
    OwnerId, ReleaseOutcome, Store, SystemClock, Ttl,
};
use distlock_harness::{Direction, FaultProxy};
use distlock_memory::Memory;
use distlock_remote::RemoteDriver;
use distlock_server::{LockServer, ServerConfig, StateOptions};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// A server over a store in memory, and a handle on the store itself.
async fn server(memory: &Memory) -> SocketAddr {
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    let store = Store::new(memory.lock(), memory.records());
    let server = LockServer::start(config, store).await.unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.run(std::future::pending()));
    address
}

/// A server with locks in its own memory.
async fn server_in_memory(state: &Path) -> SocketAddr {
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    let state = StateOptions {
        path: state.to_owned(),
        is_new: true,
    };
    let records = Memory::default().records();
    let clock = Arc::new(SystemClock);
    let server = LockServer::start_in_memory(config, state, records, clock).await;
    let server = server.unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.run(std::future::pending()));
    address
}

async fn open(url: &str) -> Store {
    let drivers = Drivers::new().with(Arc::new(RemoteDriver));
    drivers.open(url).await.unwrap()
}

fn request(name: &str) -> AcquireRequest {
    let name = LockName::new(name).unwrap();
    let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
    AcquireRequest::new(name, OwnerId::new(), ttl, HolderLabel::new("h").unwrap())
}

fn lease(request: &AcquireRequest) -> Lease {
    Lease::new(request.name.clone(), request.owner, None)
}

async fn is_held(lock: &dyn DistLock, name: &LockName) -> bool {
    lock.inspect(name).await.unwrap().held.is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_without_an_answer_is_undone_over_a_new_connection() {
    let memory = Memory::default();
    let proxy = FaultProxy::start(server(&memory).await).await.unwrap();
    let url = format!("distlock://{}?request_timeout=500ms", proxy.address());
    let (store, direct) = (open(&url).await, memory.lock());
    let lock = store.backend();

    // The connection ends before the answer.
    let lost = request("lost");
    proxy.swallow_one_reply();
    let error = lock.try_acquire(&lost).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    let undone = lock.release(&lease(&lost)).await.unwrap();
    assert!(
        matches!(undone, ReleaseOutcome::Released { .. }),
        "{undone:?}"
    );
    assert!(!is_held(&*direct, &lost.name).await);

    // The answer does not come in time, and the connection seems to live.
    let late = request("late");
    proxy.stop(Direction::ToClient);
    let error = lock.try_acquire(&late).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    assert!(error.to_string().contains("500ms"), "{error}");
    proxy.pass();
    lock.release(&lease(&late)).await.unwrap();
    assert!(!is_held(&*direct, &late.name).await);

    // The same owner asks again, and has the lock once.
    let again = request("again");
    proxy.swallow_one_reply();
    assert!(lock.try_acquire(&again).await.is_err());
    let attempt = lock.try_acquire(&again).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
    lock.release(&lease(&again)).await.unwrap();
    assert!(!is_held(&*direct, &again.name).await);
}

/// The bytes of the request wait in the network, and reach the server after the undo.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_the_network_kept_comes_too_late_for_its_undo() {
    let memory = Memory::default();
    let address = server(&memory).await;
    let (slow, quick) = (
        FaultProxy::start(address).await.unwrap(),
        FaultProxy::start(address).await.unwrap(),
    );
    let url = format!(
        "distlock://{},{}?request_timeout=500ms",
        slow.address(),
        quick.address()
    );
    let (store, direct) = (open(&url).await, memory.lock());
    let lock = store.backend();
    let kept = request("kept");
    slow.stop(Direction::ToServer);
    let error = lock.try_acquire(&kept).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    // The next connection takes the other way.
    let undone = lock.release(&lease(&kept)).await.unwrap();
    assert!(matches!(undone, ReleaseOutcome::NotHeld), "{undone:?}");
    assert_eq!(quick.accepted(), 1);
    slow.pass();
    SystemClock.sleep(Duration::from_millis(200)).await;
    let other = request("kept");
    let attempt = lock.try_acquire(&other).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
    assert!(is_held(&*direct, &kept.name).await);
}

/// Each would grant what the other one has granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_locks_in_its_own_memory_is_named_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (
        server_in_memory(&folder.path().join("a")).await,
        server_in_memory(&folder.path().join("b")).await,
    );
    let drivers = Drivers::new().with(Arc::new(RemoteDriver));
    let both = format!("distlock://{first},{second}");
    let error = drivers.open(both.as_str()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("name it alone"), "{error}");
    open(&format!("distlock://{first}")).await.close().await;
}

/// A name of DNS can have the addresses of both.
#[tokio::test(flavor = "multi_thread")]
async fn one_name_leads_to_one_server_with_locks_in_its_own_memory() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [
        server_in_memory(&folder.path().join("a")).await,
        server_in_memory(&folder.path().join("b")).await,
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let name = listener.local_addr().unwrap();
    let (choose, chosen) = watch::channel(0);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let server = servers[*chosen.borrow()];
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let store = open(&format!("distlock://{name}")).await;
    let lock = store.backend();
    choose.send_replace(1);
    let error = lock.reopen().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("another server"), "{error}");
    choose.send_replace(0);
    // The next attempt to connect comes after a pause.
    let again = loop {
        match lock.reopen().await {
            Ok(again) => break again,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        SystemClock.sleep(Duration::from_millis(50)).await;
    };
    let held = request("a");
    let attempt = lock.try_acquire(&held).await.unwrap();
    assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
    assert!(is_held(&*again, &held.name).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_server_is_asked_when_one_is_gone() {
    let memory = Memory::default();
    let first = FaultProxy::start(server(&memory).await).await.unwrap();
    let second = server(&memory).await;
    let store = open(&format!("distlock://{},{second}", first.address())).await;
    let lock = store.backend();
    let held = request("a");
    assert!(matches!(
        lock.try_acquire(&held).await.unwrap(),
        Attempt::Acquired(_)
    ));
    first.refuse();
    // The connection breaks between two requests, so the outcome of the next one may be unknown.
    let released = match lock.release(&lease(&held)).await {
        Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
            lock.release(&lease(&held)).await
        }
        answer => answer,
    };
    released.unwrap();
    assert!(!is_held(&*memory.lock(), &held.name).await);
}

/// The place in the queue is lost with the session, so another waiter is first after it. Where the
/// server waits as one process at its store, the store does not see the order of its clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_fair_waiter_passes_nobody_after_the_end_of_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let drivers = Drivers::new()
        .with(Arc::new(RemoteDriver))
        .with(Arc::new(distlock_sql::SqliteDriver));
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    let store = drivers.open(url.as_str()).await.unwrap();
    let server = LockServer::start(config, store).await.unwrap();
    let address = server.address().unwrap();
    tokio::spawn(server.run(std::future::pending()));
    let proxy = FaultProxy::start(address).await.unwrap();
    let fair = || {
        let mut request = request("a");
        request.in_order = true;
        request
    };
    let via_proxy = open(&format!("distlock://{}", proxy.address())).await;
    let (first, direct) = (
        via_proxy.backend(),
        open(&format!("distlock://{address}")).await,
    );
    let second = direct.backend();
    for granted in [false, true] {
        let holder = request("a");
        let attempt = second.try_acquire(&holder).await.unwrap();
        assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
        let asked = fair();
        let mut one = first.contend(&asked).await.unwrap();
        assert!(one.is_first());
        let next = fair();
        let mut two = second.contend(&next).await.unwrap();
        second.release(&lease(&holder)).await.unwrap();
        if granted {
            // The server grants the lock, and its answer is lost with the session.
            proxy.swallow_one_reply();
            let error = one.attempt().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        } else {
            proxy.reset();
            // The client has noticed it by then.
            SystemClock.sleep(Duration::from_millis(200)).await;
        }
        let attempt = loop {
            match one.attempt().await {
                // The next connection comes after a pause.
                Err(error) if error.is_retryable() => {
                    SystemClock.sleep(Duration::from_millis(20)).await;
                }
                answer => break answer.unwrap(),
            }
        };
        if granted {
            assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
            first.release(&lease(&asked)).await.unwrap();
        } else {
            assert!(matches!(attempt, Attempt::Busy(None)), "{attempt:?}");
        }
        one.leave().await.unwrap();
        assert!(!is_held(&*second, &holder.name).await);
        let attempt = two.attempt().await.unwrap();
        assert!(matches!(attempt, Attempt::Acquired(_)), "{attempt:?}");
        two.leave().await.unwrap();
        second.release(&lease(&next)).await.unwrap();
    }
}
