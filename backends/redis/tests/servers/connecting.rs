//! Attempts to connect: to servers that answer every request slowly, and with a first caller that
//! leaves or is never polled again.
#![expect(
    clippy::disallowed_methods,
    reason = "a real server lives in real time"
)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::common::{SOON, pause, redis, within};
use distlock_core::{DistLock, ErrorKind, LockName};
use distlock_harness::{Direction, FaultProxy, eventually_async, servers::redis::RedisServer};
use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const LIMIT: Duration = Duration::from_secs(4);

/// The server's reply to a command; `None` if the server does not answer that command.
type Answer = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Starts a server that answers each request after a pause.
async fn server(
    late: Duration,
    answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer: Answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, late, Arc::clone(&answer)));
        }
    });
    address
}

async fn serve(mut client: TcpStream, late: Duration, answer: Answer) {
    let mut buffer = vec![0; 4096];
    while let Ok(read @ 1..) = client.read(&mut buffer).await {
        pause(late).await;
        let sent = String::from_utf8_lossy(&buffer[..read]).into_owned();
        for command in sent.split('*').skip(1) {
            let words = command
                .lines()
                .skip(1)
                .filter(|line| !line.starts_with('$'));
            let command = words.collect::<Vec<_>>().join(" ");
            if let Some(answer) = answer(&command) {
                let _ = client.write_all(answer.as_bytes()).await;
            }
        }
    }
}

fn strings(words: &[&str]) -> String {
    let words = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    words.collect()
}

async fn opening_fails_in_time(url: &str) {
    let start = Instant::now();
    let error = redis(url).await.expect_err(url);
    let took = start.elapsed();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    assert!(took < LIMIT + Duration::from_secs(1), "{took:?}: {error}");
}

/// The sentinels take half of the time limit, and the primary would take more than the other half.
#[tokio::test(flavor = "multi_thread")]
async fn opening_behind_slow_sentinels_ends_in_time() {
    let late = Duration::from_millis(420);
    // The server reports that it is a primary, and answers nothing else.
    let primary = server(late, |command| match command {
        "ROLE" => Some("*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n".into()),
        command if command.starts_with("CLIENT") => Some("+OK\r\n".into()),
        _ => None,
    });
    let port = primary.await.port().to_string();
    let sentinel = server(late, move |command| match command {
        "ROLE" => Some("*2\r\n$8\r\nsentinel\r\n*1\r\n$1\r\np\r\n".into()),
        "SENTINEL MASTERS" => {
            let fields = [
                "name",
                "p",
                "ip",
                "127.0.0.1",
                "port",
                &port,
                "flags",
                "master",
            ];
            Some(format!("*1\r\n*{}\r\n{}", fields.len(), strings(&fields)))
        }
        _ => Some("+OK\r\n".into()),
    });
    let sentinel = sentinel.await;
    opening_fails_in_time(&format!("redis+sentinel://{sentinel}/p?connect_timeout=4s")).await;
}

/// The server accepts the client, but does not answer the question for the slot map.
#[tokio::test(flavor = "multi_thread")]
async fn opening_a_slow_cluster_ends_in_time() {
    let node = server(LIMIT / 2, |command| {
        command
            .starts_with("HELLO")
            .then(|| "%1\r\n$5\r\nproto\r\n:3\r\n".into())
    });
    let node = node.await;
    opening_fails_in_time(&format!(
        "redis+cluster://{node}?connect_timeout=4s&request_timeout=4s"
    ))
    .await;
}

/// Breaks the connection, and holds back the server's answers to the next attempt to connect. That
/// attempt is in progress when this function returns.
async fn hold_back_next_connection(proxy: &FaultProxy, lock: &dyn DistLock, name: &LockName) {
    proxy.stop(Direction::ToClient);
    proxy.reset();
    eventually_async("a connection is being made", SOON, || async {
        let refused = lock.inspect(name).await.is_err();
        (refused && proxy.connections() == 1).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_not_polled_does_not_block_connecting() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let redis = redis(&server.url_at(proxy.address())).await;
    let (lock, name) = (redis.unwrap().lock(), LockName::new("a").unwrap());
    hold_back_next_connection(&proxy, &*lock, &name).await;
    let mut first = lock.inspect(&name);
    assert!(first.as_mut().now_or_never().is_none());
    proxy.pass();
    let second = eventually_async("the client is connected", SOON, || async {
        lock.inspect(&name).await.ok()
    });
    second.await.unwrap();
    within(SOON, "the first as well", first).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_being_made_is_given_up_on_closing() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let redis = redis(&server.url_at(proxy.address())).await.unwrap();
    let (lock, name) = (redis.lock(), LockName::new("a").unwrap());
    hold_back_next_connection(&proxy, &*lock, &name).await;
    redis.records().close().await;
    lock.close().await;
    proxy.pass();
    eventually_async("no connection is left", SOON, || async {
        (proxy.connections() == 0).then_some(())
    })
    .await
    .unwrap();
}
