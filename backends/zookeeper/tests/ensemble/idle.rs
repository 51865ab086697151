//! Connections that carry no request of a caller for a long time, behind a router that forgets
//! silent connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use distlock_core::{Clock as _, Locker, SystemClock};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use distlock_zookeeper::ZooKeeper as Store;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
};

use crate::fixtures::{config, now, pause, within};

/// The longest time that a request after an idle time may take, and what a busy machine adds.
const LONGEST: Duration = Duration::from_millis(500 + 500);

/// The client sends a ping on a connection that was silent for this time, whatever the session
/// timeout is.
const LONGEST_SILENCE: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_request_after_an_idle_time_is_answered_at_once() {
    let ensemble = ZooKeeper::start_with(&Setup {
        settings: vec!["maxSessionTimeout=3600000".into()],
        ..Setup::default()
    })
    .unwrap();
    // A session sends a request in each period, an eighth of its timeout less a tick, and a ping
    // where that is longer.
    tokio::join!(
        an_idle_session_is_not_forgotten(&ensemble, 5, Duration::from_secs(2)),
        an_idle_session_is_not_forgotten(&ensemble, 1800, LONGEST_SILENCE + Duration::from_secs(2)),
    );
}

async fn an_idle_session_is_not_forgotten(ensemble: &ZooKeeper, session: u64, forgets: Duration) {
    let router = start_router(ensemble.address(0), forgets).await;
    let mut config = config(&ensemble.reached_at(&[router]));
    config.session_timeout = Duration::from_secs(session);
    let store = Store::open(config, Arc::new(SystemClock)).await.unwrap();
    let locker = Locker::new(store.lock());
    locker.ready().await.unwrap();
    for round in 0..3 {
        if round > 0 {
            pause(forgets + Duration::from_secs(1)).await;
        }
        let start = now();
        let lock = locker.lock(format!("idle-{session}"));
        let guard = within("acquired", lock.acquire()).await.expect("acquires");
        let acquired = now().since(start);
        let released = guard.release().await;
        assert!(released.is_clean(), "{session} s: {released:?}");
        let took = now().since(start);
        assert!(
            took < LONGEST,
            "{session} s: {acquired:?}, and released after {took:?}"
        );
    }
    locker.close().await;
}

/// Starts a router that forgets a connection on which nothing was sent for a time: it then loses
/// all bytes of the connection, and closes nothing.
async fn start_router(server: SocketAddr, forgets: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.unwrap();
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let last = Arc::new(Mutex::new(Some(SystemClock.now())));
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            let also_last = Arc::clone(&last);
            tokio::spawn(async move {
                forward(&mut from_client, &mut to_server, &last, forgets).await;
            });
            tokio::spawn(async move {
                forward(&mut from_server, &mut to_client, &also_last, forgets).await;
            });
        }
    });
    address
}

/// Forwards one direction of a connection. `last` is the moment of its last bytes in either
/// direction; `None` = the connection is forgotten.
async fn forward(
    from: &mut (impl tokio::io::AsyncRead + Unpin),
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    last: &Mutex<Option<distlock_core::Moment>>,
    forgets: Duration,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let mut last = last.lock().await;
        let now = SystemClock.now();
        *last = last.filter(|last| now.since(*last) < forgets).map(|_| now);
        if last.is_some() && to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
