//! Clients that send garbage, read nothing, or are many. The server goes on for the others.

use std::{sync::Arc, time::Duration};

use distlock_core::{Clock, ManualClock, Store, SystemClock, at_most};
use distlock_memory::Memory;
use distlock_wire::{
    MAX_PARTS,
    v1::{self, answer, operation::Operation as Asked, push, waiter_step::Step},
};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
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

use crate::support::{
    SOON, Served, Session, TTL, acquire, error_kind, granted, join, serve, serve_store, step,
};

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
    asks_and_reads_nothing(&mut slow).await;
    for _ in 0..100 {
        SystemClock.sleep(Duration::from_millis(20)).await;
        clock.advance(Duration::from_secs(1));
    }
    assert_serves(&served, "a").await;
    // Its connection is gone, with everything that waited for it.
    let ended = slow.refusal().await;
    assert_ne!(ended.message(), "the stream ended");
}

/// Has the server send more than the connection takes, and reads nothing of it.
async fn asks_and_reads_nothing(session: &mut Session) {
    const ASKED: u64 = 400;
    let put = v1::WriteRecord {
        key: "k".to_owned(),
        value: vec![7; VALUE],
        expect_version: None,
    };
    session.send([(1, Asked::Put(put))]);
    assert!(matches!(session.answer(1).await, answer::Answer::Put(_)));
    let get = || {
        Asked::Get(v1::ReadRecords {
            keys: vec!["k".to_owned()],
        })
    };
    session.send((2..ASKED + 2).map(|id| (id, get())));
}

/// With their defaults, each of these takes ten seconds, or more bytes.
#[tokio::test(flavor = "multi_thread")]
async fn limits_of_other_values_are_kept() {
    let served = serve(|config| {
        config.limits.frame_bytes = 2 * 1024 * 1024;
        config.limits.login = Duration::from_secs(1);
        config.limits.slow_reader = Duration::from_millis(300);
    });
    let (served, began) = (served.await, SystemClock.now());
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    let mut slow = served.any_session().await;
    slow.send([(0, join(1, "a"))]);
    assert!(matches!(slow.answer(0).await, answer::Answer::Waiter(_)));
    asks_and_reads_nothing(&mut slow).await;
    // Its waiter goes with it.
    served.until("a", |info| info.waiters == Some(0)).await;
    let _ = silent.read_to_end(&mut Vec::new()).await;
    assert!(SystemClock.now().since(began) < SOON / 2);

    let mut large = served.any_session().await;
    let values = vec![vec![7; VALUE]; 9];
    large.send((1..).zip(values).map(|(id, value)| {
        let (key, expect_version) = ("large".to_owned(), None);
        let put = v1::WriteRecord {
            key,
            value,
            expect_version,
        };
        (id, Asked::Put(put))
    }));
    assert_eq!(large.refusal().await.code(), Code::OutOfRange);
}

/// The operations are empty: two bytes each on the way, and a hundred times as many in memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_very_many_operations_is_refused_unread() {
    let served = serve(|_| {}).await;
    for (operations, is_served) in [(MAX_PARTS, true), (MAX_PARTS + 1, false)] {
        let mut session = served.any_session().await;
        let frame = v1::ClientFrame {
            hello: None,
            operations: vec![v1::Operation::default(); operations],
        };
        session.frames.send(frame).unwrap();
        if is_served {
            let kind = error_kind(&session.answer(0).await);
            assert_eq!(kind, v1::error::Kind::Unsupported);
            continue;
        }
        let refused = session.refusal().await;
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
        assert!(refused.message().contains("16384 parts"), "{refused}");
    }
    let many = v1::ReadRecords {
        keys: vec![String::new(); MAX_PARTS + 1],
    };
    let refused = served.client().await.get_records(many).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
}

/// All of them together would be four times as many bytes as the server keeps.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_never_become_whole_are_refused_beyond_their_limit() {
    const CALLS: usize = 250;
    const BYTES: usize = 2 * 1024 * 1024;
    let served = serve(|config| config.limits.frame_bytes = BYTES).await;
    let piece = {
        let mut piece = vec![0];
        piece.extend(u32::try_from(BYTES).unwrap().to_be_bytes());
        piece.resize(BYTES, 7);
        Bytes::from(piece)
    };
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let request = http::Request::post(format!(
            "http://{}/distlock.lock.v1.LockService/PutRecord",
            served.address
        ));
        let request = request.header("content-type", "application/grpc");
        client = client.ready().await.unwrap();
        let request = request.body(()).unwrap();
        let (answer, mut sending) = client.send_request(request, false).unwrap();
        sending.send_data(piece.clone(), false).unwrap();
        calls.push((answer, sending));
    }
    let (answers, sending): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    // Those for which there is room wait for the rest, and all others have their answer.
    let mut answers: FuturesUnordered<_> = answers.into_iter().collect();
    for _ in 0..CALLS - 64 {
        let head = at_most(&SystemClock, SOON, answers.next()).await;
        let head = head.expect("an answer").unwrap().unwrap();
        let refused = (Code::ResourceExhausted as i32).to_string();
        assert_eq!(head.headers()["grpc-status"], *refused);
    }
    // A message that comes in one piece is no such message.
    assert_serves(&served, "a").await;
    connection.abort();
    drop((answers, sending, client));
    let put = || v1::WriteRecord {
        key: "k".to_owned(),
        value: vec![7; VALUE],
        expect_version: None,
    };
    let mut stranger = served.client().await;
    for _ in 0..500 {
        if stranger.put_record(put()).await.is_ok() {
            return;
        }
        SystemClock.sleep(Duration::from_millis(20)).await;
    }
    panic!("the bytes of calls that have ended are not given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_connection_does_not_wait_for_a_client_that_reads_nothing() {
    let served = serve(|_| {}).await;
    let client = Uuid::new_v4();
    let mut first = served.session(client, 1).await;
    asks_and_reads_nothing(&mut first).await;
    SystemClock.sleep(Duration::from_millis(500)).await;
    let began = SystemClock.now();
    let _second = served.session(client, 2).await;
    // Sooner than the end of a client that reads nothing.
    assert!(SystemClock.now().since(began) < SOON / 2);
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
