use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::sync::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{Direction, FaultProxy, eventually_async};

const SOON: Duration = Duration::from_secs(10);

/// Time for which a test checks that no bytes arrive. Bytes need much less time to cross the
/// loopback interface.
const NOT_YET: Duration = Duration::from_millis(150);

/// Starts a server that answers each line with the same line and records the lines.
async fn start_echo_server() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let received = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let (read, mut write) = stream.into_split();
                let mut lines = BufReader::new(read).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    log.lock().push(line.clone());
                    if write
                        .write_all(format!("{line}\n").as_bytes())
                        .await
                        .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    (address, received)
}

/// Connects a client to a server through a proxy. Returns the proxy, the client and the lines that
/// the server receives.
async fn connect_through_proxy() -> (FaultProxy, Client, Arc<Mutex<Vec<String>>>) {
    let (server, received) = start_echo_server().await;
    let proxy = FaultProxy::start(server).await.unwrap();
    let client = Client::connect(&proxy).await;
    (proxy, client, received)
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(proxy: &FaultProxy) -> Self {
        Self(BufReader::new(
            TcpStream::connect(proxy.address()).await.unwrap(),
        ))
    }

    async fn send_line(&mut self, line: &str) -> io::Result<()> {
        self.0.write_all(format!("{line}\n").as_bytes()).await
    }

    /// Reads the next line. `None` means the end of the stream.
    async fn read_line_or_end(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).await?;
        Ok((read > 0).then(|| line.trim_end().to_owned()))
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send_line(line).await.unwrap();
        self.expect_line().await
    }

    /// Reads the next line, which must come soon.
    async fn expect_line(&mut self) -> String {
        timeout(SOON, self.read_line_or_end())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
    }
}

#[tokio::test]
async fn a_proxy_without_a_fault_forwards_bytes_and_the_end_of_the_stream() {
    let (proxy, mut client, _) = connect_through_proxy().await;
    assert_eq!(client.ask("one").await, "one");
    assert_eq!(proxy.connections(), 1);
    client.0.shutdown().await.unwrap();
    assert_eq!(
        timeout(SOON, client.read_line_or_end())
            .await
            .unwrap()
            .unwrap(),
        None,
        "an orderly end, not a reset"
    );
    eventually_async("connection gone", SOON, || async {
        (proxy.connections() == 0).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_delay_applies_to_both_directions() {
    let (proxy, mut client, _) = connect_through_proxy().await;
    client.ask("quick").await;
    proxy.delay(Duration::from_millis(100));
    let start = Instant::now();
    client.ask("slow").await;
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[tokio::test]
async fn a_stopped_request_arrives_after_the_fault() {
    let (proxy, mut client, received) = connect_through_proxy().await;
    client.ask("before").await;
    proxy.stop(Direction::ToServer);
    client.send_line("held").await.unwrap();
    assert!(timeout(NOT_YET, client.read_line_or_end()).await.is_err());
    assert_eq!(*received.lock(), ["before"]);
    proxy.pass();
    assert_eq!(client.expect_line().await, "held");
}

#[tokio::test]
async fn the_request_of_a_stopped_reply_is_carried_out() {
    let (proxy, mut client, received) = connect_through_proxy().await;
    proxy.stop(Direction::ToClient);
    client.send_line("done").await.unwrap();
    eventually_async("received", SOON, || async {
        (!received.lock().is_empty()).then_some(())
    })
    .await
    .unwrap();
    assert!(timeout(NOT_YET, client.read_line_or_end()).await.is_err());
    proxy.pass();
    assert_eq!(client.expect_line().await, "done");
}

#[tokio::test]
async fn a_black_hole_loses_bytes_and_resets_their_connection_at_its_end() {
    let (proxy, mut old, received) = connect_through_proxy().await;
    old.ask("before").await;
    proxy.black_hole();
    old.send_line("lost").await.unwrap();
    let mut new = Client::connect(&proxy).await;
    assert!(timeout(NOT_YET, old.read_line_or_end()).await.is_err());
    proxy.pass();
    assert!(
        timeout(SOON, old.read_line_or_end())
            .await
            .unwrap()
            .is_err(),
        "a stream with a hole is reset"
    );
    assert_eq!(new.ask("after").await, "after");
    assert_eq!(*received.lock(), ["before", "after"]);
}

#[tokio::test]
async fn a_reset_affects_only_open_connections() {
    let (proxy, mut old, _) = connect_through_proxy().await;
    old.ask("before").await;
    proxy.reset();
    let error = timeout(SOON, old.read_line_or_end())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(Client::connect(&proxy).await.ask("after").await, "after");
}

#[tokio::test]
async fn the_request_of_a_replaced_reply_is_carried_out() {
    let (proxy, mut client, received) = connect_through_proxy().await;
    proxy.replace_one_reply("no\n");
    assert_eq!(client.ask("please").await, "no");
    assert_eq!(client.ask("again").await, "again");
    assert_eq!(*received.lock(), ["please", "again"]);
}

#[tokio::test]
async fn the_request_of_a_lost_reply_is_carried_out() {
    let (proxy, mut client, received) = connect_through_proxy().await;
    client.ask("before").await;
    proxy.swallow_one_reply();
    client.send_line("happened").await.unwrap();
    assert!(
        timeout(SOON, client.read_line_or_end())
            .await
            .unwrap()
            .is_err()
    );
    assert_eq!(*received.lock(), ["before", "happened"]);
    assert_eq!(Client::connect(&proxy).await.ask("after").await, "after");
}

#[tokio::test]
async fn refused_connections_are_reset_until_the_fault_ends() {
    let (proxy, mut client, _heard) = connect_through_proxy().await;
    assert_eq!(client.ask("a").await, "a");
    proxy.refuse();
    assert!(client.read_line_or_end().await.is_err());
    // A new client may still connect. The proxy then resets the new connection.
    let mut other = Client::connect(&proxy).await;
    let _ = other.send_line("b").await;
    assert!(!matches!(other.read_line_or_end().await, Ok(Some(_))));
    proxy.pass();
    assert_eq!(Client::connect(&proxy).await.ask("c").await, "c");
}

#[tokio::test]
async fn bytes_trickle_until_the_fault_ends() {
    let (proxy, mut client, _) = connect_through_proxy().await;
    assert_eq!(client.ask("a").await, "a");
    proxy.trickle(Duration::from_millis(20));
    let long = "x".repeat(60);
    let asked = Instant::now();
    assert_eq!(client.ask(&long).await, long);
    // The twelve pieces of the request need at least ten pauses of 20 ms. The pauses of the answer
    // may run at the same time.
    assert!(asked.elapsed() >= Duration::from_millis(200));
    proxy.trickle(SOON * 2);
    client
        .send_line("a line of more than a drip")
        .await
        .unwrap();
    assert!(timeout(NOT_YET, client.read_line_or_end()).await.is_err());
    proxy.pass();
    let received = client.expect_line().await;
    assert!(
        "a line of more than a drip".ends_with(&received),
        "{received}"
    );
}

#[tokio::test]
async fn a_stop_also_holds_the_rest_of_bytes_that_trickle() {
    let (proxy, mut client, received) = connect_through_proxy().await;
    client.ask("before").await;
    proxy.trickle(SOON * 2);
    client.send_line("a line of many pieces").await.unwrap();
    // The wait lets the proxy forward the first piece before the stop.
    assert!(timeout(NOT_YET, client.read_line_or_end()).await.is_err());
    proxy.stop(Direction::ToServer);
    assert!(timeout(NOT_YET, client.read_line_or_end()).await.is_err());
    assert_eq!(*received.lock(), ["before"]);
    proxy.pass();
    eventually_async("the rest arrives", SOON, || async {
        let received = received.lock();
        (*received == ["before", "a line of many pieces"]).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_half_close_ends_one_direction_and_keeps_the_other() {
    // The server receives the end of the requests, and closes the connection as well.
    let (proxy, mut client, received) = connect_through_proxy().await;
    assert_eq!(client.ask("a").await, "a");
    proxy.half_close(Direction::ToServer);
    assert_eq!(
        timeout(SOON, client.read_line_or_end())
            .await
            .unwrap()
            .unwrap(),
        None
    );
    assert_eq!(*received.lock(), ["a"]);
    // The client receives the end of the answers. The server still receives requests.
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("b").await, "b");
    proxy.half_close(Direction::ToClient);
    assert_eq!(
        timeout(SOON, client.read_line_or_end())
            .await
            .unwrap()
            .unwrap(),
        None
    );
    client.send_line("c").await.unwrap();
    eventually_async("it is received", SOON, || async {
        (*received.lock() == ["a", "b", "c"]).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn connect_twice_opens_a_second_silent_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = FaultProxy::start(listener.local_addr().unwrap())
        .await
        .unwrap();
    proxy.connect_twice();
    let mut client = Client::connect(&proxy).await;
    client.send_line("a").await.unwrap();
    let accept = || async { timeout(SOON, listener.accept()).await.unwrap().unwrap().0 };
    let (mut silent, mut spoken) = (accept().await, accept().await);
    let mut byte = [0];
    assert_eq!(spoken.read(&mut byte).await.unwrap(), 1);
    assert!(timeout(NOT_YET, silent.read(&mut byte)).await.is_err());
    // The silent connection ends together with the other connection.
    drop((client, spoken));
    let ended = timeout(SOON, silent.read(&mut byte)).await.unwrap();
    assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    proxy.pass();
    let _client = Client::connect(&proxy).await;
    drop(accept().await);
    assert!(timeout(NOT_YET, listener.accept()).await.is_err());
}

#[tokio::test]
async fn an_idle_connection_is_forgotten_and_new_ones_are_not() {
    let (proxy, mut client, received) = connect_through_proxy().await;
    proxy.forget_idle(NOT_YET);
    assert_eq!(client.ask("one").await, "one");
    tokio::time::sleep(NOT_YET * 2).await;
    client.send_line("two").await.unwrap();
    assert!(timeout(NOT_YET, client.read_line_or_end()).await.is_err());
    let mut other = Client::connect(&proxy).await;
    assert_eq!(other.ask("three").await, "three");
    assert_eq!(*received.lock(), ["one", "three"]);
}
