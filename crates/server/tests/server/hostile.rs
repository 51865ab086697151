//! Clients that send garbage, read nothing, or are many. The server goes on for the others.

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock, ManualClock, Store, SystemClock};
use distlock_memory::Memory;
use distlock_wire::v1::{self, answer, operation::Operation as Asked, push, waiter_step::Step};
use futures_util::future::join_all;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tonic::{
    Code,
    codegen::{Bytes, http},
};
use uuid::Uuid;

use crate::support::{Served, TTL, acquire, granted, join, serve, serve_store, step};

/// The longest value of a record.
const VALUE: usize = 256 * 1024;

/// Sends these bytes as the body of a session, and returns the status of its end.
async fn session_of(served: &Served, body: &[u8]) -> i32 {
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::post(format!(
        "http://{}/distlock.lock.v1.LockService/Session",
        served.address
    ));
    let request = request
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (answer, mut sending) = client.send_request(request, false).unwrap();
    sending
        .send_data(Bytes::copy_from_slice(body), true)
        .unwrap();
    let (head, mut frames) = answer.await.unwrap().into_parts();
    let status = |headers: &http::HeaderMap| {
        let status = headers.get("grpc-status")?;
        status.to_str().unwrap().parse().ok()
    };
    if let Some(status) = status(&head.headers) {
        return status;
    }
    while let Some(frame) = frames.data().await {
        let length = frame.unwrap().len();
        let _ = frames.flow_control().release_capacity(length);
    }
    status(&frames.trailers().await.unwrap().unwrap()).unwrap()
}

/// Somebody else is served.
async fn assert_serves(served: &Served, name: &str) {
    let mut session = served.any_session().await;
    session.send([(1, Asked::Acquire(acquire(name, Uuid::new_v4(), TTL)))]);
    assert!(granted(session.answer(1).await).is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_connection_and_nothing_else() {
    let served = serve(|_| {}).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        // The server says what it has to say, and closes.
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
    }
    let invalid = Code::InvalidArgument as i32;
    // A message that is none, one that says it is longer than it is, and none at all.
    assert_eq!(
        session_of(&served, b"\0\0\0\0\x04\xff\xff\xff\xff").await,
        invalid
    );
    assert_eq!(
        session_of(&served, b"\0\0\0\0\x04\x0a\x7f\0\0").await,
        invalid
    );
    assert_eq!(session_of(&served, b"").await, invalid);
    assert_serves(&served, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_a_session_that_has_ended_do_nothing() {
    let served = serve(|_| {}).await;
    let mut session = served.any_session().await;
    session.send([(1, join(1, "a")), (1, join(2, "a"))]);
    assert_eq!(session.refusal().await.code(), Code::InvalidArgument);
    for id in 2..10 {
        let operations = [Asked::Acquire(acquire("a", Uuid::new_v4(), TTL))];
        let operations = operations.map(|operation| v1::Operation {
            id,
            operation: Some(operation),
        });
        // The stream may be closed already.
        let _ = session.frames.send(v1::ClientFrame {
            hello: None,
            operations: operations.to_vec(),
        });
        SystemClock.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(served.holder("a").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_is_cut_off_and_not_buffered() {
    let clock = Arc::new(ManualClock::new());
    let memory = Memory::new(Arc::clone(&clock) as Arc<dyn Clock>);
    let of_store = Arc::clone(&clock) as Arc<dyn Clock>;
    let store = Store::with_clock(memory.lock(), memory.records(), of_store);
    let served = serve_store(store, memory.lock(), std::future::pending(), |_| {}).await;
    let mut slow = served.any_session().await;
    let put = v1::WriteRecord {
        key: "k".to_owned(),
        value: vec![7; VALUE],
        expect_version: None,
    };
    slow.send([(1, Asked::Put(put))]);
    assert!(matches!(slow.answer(1).await, answer::Answer::Put(_)));
    const ASKED: u64 = 400;
    let get = || {
        Asked::Get(v1::ReadRecords {
            keys: vec!["k".to_owned()],
        })
    };
    slow.send((2..ASKED + 2).map(|id| (id, get())));
    for _ in 0..100 {
        SystemClock.sleep(Duration::from_millis(20)).await;
        clock.advance(Duration::from_secs(1));
    }
    assert_serves(&served, "a").await;
    // Its connection is gone, with everything that waited for it.
    let ended = slow.refusal().await;
    assert_ne!(ended.message(), "the stream ended");
}

/// On one thread, no waiter takes a step while the frame is read.
#[tokio::test]
async fn a_flood_of_steps_ends_its_session() {
    let served = serve(|_| {}).await;
    let mut session = served.any_session().await;
    session.send([(1, join(1, "a"))]);
    assert!(matches!(session.answer(1).await, answer::Answer::Waiter(_)));
    session.send((2..5_000).map(|id| (id, step(1, Step::Pause))));
    let ended = session.refusal().await;
    assert_eq!(ended.code(), Code::ResourceExhausted, "{ended}");
    served.until("a", |info| info.waiters == Some(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connections_are_served() {
    const CONNECTIONS: usize = 1_000;
    let mut files = getrlimit(Resource::Nofile);
    files.current = files.maximum;
    setrlimit(Resource::Nofile, files).unwrap();
    let served = serve(|_| {}).await;
    let hot = served.hold("hot").await;
    let mut sessions = Vec::new();
    // The backlog of a listener is shorter than a thousand.
    while sessions.len() < CONNECTIONS {
        sessions.extend(join_all((0..50).map(|_| served.any_session())).await);
    }
    let each = sessions
        .iter_mut()
        .enumerate()
        .map(|(number, session)| async move {
            let own = acquire(&format!("own-{number}"), Uuid::new_v4(), TTL * 6);
            session.send([
                (1, Asked::Acquire(own)),
                (2, join(1, "hot")),
                (3, step(1, Step::Attempt)),
            ]);
            assert!(granted(session.answer(1).await).is_some(), "{number}");
            assert!(granted(session.answer(3).await).is_none(), "{number}");
        });
    join_all(each).await;
    served
        .until("hot", |info| info.waiters == Some(1_000))
        .await;
    served.lock.release(&hot).await.unwrap();
    // One of them is woken, and takes the lock.
    let woken = sessions.iter_mut().map(|session| Box::pin(session.push()));
    let (push, first, others) = futures_util::future::select_all(woken).await;
    assert_eq!(push, push::Push::Wake(1));
    drop(others);
    sessions[first].send([(4, step(1, Step::Attempt))]);
    assert!(granted(sessions[first].answer(4).await).is_some());
    let held = served.lock.list("own-", None, 2_000).await.unwrap();
    assert_eq!(held.len(), CONNECTIONS);
}
