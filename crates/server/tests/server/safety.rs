//! Who may do what: tokens, their prefixes and their end, and what a server tells without one.

use std::{sync::Arc, time::Duration};

use distlock_core::{ManualClock, Store, SystemClock};
use distlock_memory::Memory;
use distlock_server::{NamedFile, OperationGroup, TokenGrant, TokenKeys, mint_token};
use distlock_wire::v1::{self, answer, operation::Operation as Asked, push};
use tempfile::NamedTempFile;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status, metadata::MetadataMap};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};
use uuid::Uuid;

use crate::support::{
    SOON, Served, TTL, acquire, call, error_kind, granted, hello, join, serve, serve_store,
};

/// A file with one key.
fn key_file(letter: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), letter.repeat(32)).unwrap();
    file
}

async fn keys(file: &NamedTempFile) -> TokenKeys {
    let file = NamedFile {
        setting: "token_key",
        path: file.path().display().to_string(),
    };
    TokenKeys::read(file).await.unwrap()
}

fn grant(prefix: &str, operations: &[OperationGroup]) -> TokenGrant {
    TokenGrant {
        subject: "app".to_owned(),
        prefixes: vec![prefix.to_owned()],
        operations: operations.to_vec(),
        ttl: Duration::from_secs(60),
    }
}

fn with_token<T>(message: T, token: &str) -> Request<T> {
    let mut call = Request::new(message);
    let header = format!("Bearer {token}").parse().unwrap();
    call.metadata_mut().insert("authorization", header);
    call
}

/// The answers of a session that shows this token.
async fn session(served: &Served, token: &str) -> Result<crate::support::Session, Status> {
    let (frames, receiver) = tokio::sync::mpsc::unbounded_channel();
    frames.send(hello(Uuid::new_v4(), 1)).unwrap();
    let call = with_token(UnboundedReceiverStream::new(receiver), token);
    let opened = served.client().await.session(call).await?;
    let mut session = crate::support::Session {
        frames,
        from_server: opened.into_inner(),
        answers: Vec::new(),
        pushes: Vec::new(),
    };
    session.frame().await?;
    Ok(session)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_good_token_is_refused_for_its_reason() {
    let (file, other) = (key_file("a"), key_file("b"));
    let path = file.path().display().to_string();
    let served = serve(|config| config.token_key = Some(path)).await;
    let all = OperationGroup::ALL;
    let (keys, others) = (keys(&file).await, keys(&other).await);
    let past = ManualClock::new();
    let good = mint_token(&keys, grant("app/", &all), &SystemClock).unwrap();
    let expired = mint_token(&keys, grant("app/", &all), &past).unwrap();
    let of_another = mint_token(&others, grant("app/", &all), &SystemClock).unwrap();
    for (token, says) in [
        ("", "malformed"),
        (&*expired, "expired"),
        (&of_another, "another key"),
        (&good[1..], "malformed"),
    ] {
        let refused = session(&served, token).await.err().unwrap();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
        let call = with_token(call("app/x", Duration::ZERO), token);
        let refused = served.client().await.acquire(call).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        assert!(!refused.message().contains(&good[20..]), "{refused}");
    }
    let refused = served.client().await.health(v1::CheckHealth {}).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    assert!(refused.message().contains("asks for one"), "{refused}");
    let call = with_token(call("app/x", Duration::ZERO), &good);
    served.client().await.acquire(call).await.unwrap();
    let mut session = session(&served, &good).await.unwrap();
    session.send([(1, Asked::Acquire(acquire("app/y", Uuid::new_v4(), TTL)))]);
    assert!(granted(session.answer(1).await).is_some());
    assert_eq!(served.holder("x").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_allows_its_prefixes_and_operations_only() {
    use OperationGroup::{Acquire, Inspect, Release};

    let file = key_file("a");
    let path = file.path().display().to_string();
    let served = serve(|config| config.token_key = Some(path)).await;
    let token = grant("app/", &[Acquire, Release, Inspect]);
    let token = mint_token(&keys(&file).await, token, &SystemClock).unwrap();
    let mut session = session(&served, &token).await.unwrap();
    let named = |name: &str| name.to_owned();
    let lease = |name: &str| {
        Some(v1::Lease {
            name: name.to_owned(),
            owner: Uuid::new_v4().as_bytes().to_vec(),
            ..v1::Lease::default()
        })
    };
    let inspect = |name: &str| Asked::Inspect(v1::InspectLock { name: named(name) });
    let list = |prefix: &str| {
        Asked::List(v1::ListLocks {
            prefix: named(prefix),
            limit: 10,
            ..v1::ListLocks::default()
        })
    };
    let allowed = [
        Asked::Acquire(acquire("app/a", Uuid::new_v4(), TTL)),
        inspect("app/a"),
        list("app/"),
        list("app/b"),
        Asked::Release(v1::ReleaseLease {
            lease: lease("app/b"),
        }),
        join(7, "app/c"),
        Asked::Health(v1::CheckHealth {}),
    ];
    let refused = [
        Asked::Acquire(acquire("ap", Uuid::new_v4(), TTL)),
        inspect("other"),
        list(""),
        Asked::Release(v1::ReleaseLease { lease: lease("b") }),
        join(8, "c"),
        Asked::ForceRelease(v1::ForceReleaseLock {
            name: named("app/a"),
            token: 1,
        }),
        Asked::Get(v1::ReadRecords {
            keys: vec![named("app/a")],
        }),
    ];
    for (id, operation) in (1..).zip(allowed) {
        session.send([(id, operation.clone())]);
        let answer = session.answer(id).await;
        let is_error = matches!(answer, answer::Answer::Error(_));
        assert!(!is_error, "{operation:?} {answer:?}");
    }
    for (id, operation) in (100..).zip(refused) {
        session.send([(id, operation.clone())]);
        let answer = session.answer(id).await;
        let kind = error_kind(&answer);
        assert_eq!(kind, v1::error::Kind::AccessDenied, "{operation:?}");
    }
    // The same by a unary call.
    let call = with_token(call("other", Duration::ZERO), &token);
    let refused = served.client().await.acquire(call).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("begin with app/"), "{refused}");
    for name in ["ap", "other", "c"] {
        assert_eq!(served.holder(name).await, None, "{name}");
    }
}

/// The session ends as at a stop of the server, so no operation is left without an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_when_its_token_expires() {
    let file = key_file("a");
    let path = file.path().display().to_string();
    let clock = ManualClock::new();
    let memory = Memory::new(Arc::new(clock.clone()));
    let store = Store::with_clock(memory.lock(), memory.records(), Arc::new(clock.clone()));
    let forever = std::future::pending();
    let served = serve_store(store, memory.lock(), forever, |config| {
        config.token_key = Some(path);
    });
    let served = served.await;
    let token = grant("", &[OperationGroup::Acquire]);
    let token = mint_token(&keys(&file).await, token, &clock).unwrap();
    let mut first = session(&served, &token).await.unwrap();
    clock.advance(Duration::from_secs(59));
    first.send([(1, Asked::Acquire(acquire("a", Uuid::new_v4(), TTL)))]);
    assert!(granted(first.answer(1).await).is_some());
    // Some seconds are for the clocks of other hosts.
    clock.advance(Duration::from_secs(7));
    assert_eq!(first.push().await, push::Push::Closing(true));
    // What the client had sent is carried out.
    first.send([(2, Asked::Acquire(acquire("b", Uuid::new_v4(), TTL)))]);
    assert!(granted(first.answer(2).await).is_some());
    clock.advance(SOON);
    assert_eq!(first.refusal().await.message(), "the stream ended");
    let refused = session(&served, &token).await.err().unwrap();
    assert!(refused.message().contains("expired"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_needs_no_token_and_reflection_does() {
    let file = key_file("a");
    let path = file.path().display().to_string();
    for token_key in [None, Some(path)] {
        let asks = token_key.is_some();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let memory = Memory::default();
        let store = Store::new(memory.lock(), memory.records());
        let stopped = async move { drop(stopped.await) };
        let served = serve_store(store, memory.lock(), stopped, |config| {
            config.token_key = token_key;
        });
        let served = served.await;
        let channel = served.channel().await;
        let mut health = HealthClient::new(channel.clone());
        for service in ["", "distlock.lock.v1.LockService"] {
            let service = service.to_owned();
            let told = health.check(HealthCheckRequest { service }).await.unwrap();
            assert_eq!(told.into_inner().status(), ServingStatus::Serving);
        }
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut head = MetadataMap::new();
        if asks {
            let refused = ServerReflectionClient::new(channel.clone())
                .server_reflection_info(tokio_stream::once(ask.clone()))
                .await;
            assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
            let keys = keys(&file).await;
            let token = grant("none/", &[OperationGroup::Inspect]);
            let token = mint_token(&keys, token, &SystemClock).unwrap();
            head.insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let mut call = Request::new(tokio_stream::once(ask));
        *call.metadata_mut() = head;
        let mut reflection = ServerReflectionClient::new(channel);
        let told = reflection.server_reflection_info(call).await.unwrap();
        let told = told.into_inner().message().await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(list)) = told.message_response else {
            panic!("{told:?}");
        };
        let names: Vec<_> = list.service.iter().map(|it| &*it.name).collect();
        assert!(names.contains(&"distlock.lock.v1.LockService"), "{names:?}");
        // Who watches learns of the stop.
        let watched = HealthCheckRequest::default();
        let mut watch = health.watch(watched).await.unwrap().into_inner();
        let first = watch.message().await.unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
        drop(stop);
        let next = watch.message().await.unwrap().unwrap();
        assert_eq!(next.status(), ServingStatus::NotServing);
    }
}
