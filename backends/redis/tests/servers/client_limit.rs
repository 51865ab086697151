//! A server that has reached its limit of clients.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use crate::common::{SOON, locker};
use distlock_core::ErrorKind;
use distlock_harness::{eventually_async, servers::redis::RedisServer};

/// A client that lost its connection cannot connect again until the server has room.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_survives_a_server_at_its_client_limit() {
    let server = RedisServer::start().unwrap();
    let locker = locker(&server.url()).await;
    let ttl = Duration::from_secs(12);
    let guard = locker.lock("a").ttl(ttl).acquire().await.unwrap();
    let token = guard.token();
    let key = server.command(&["KEYS", "*:lock:a"]).unwrap();
    // From now on, no other client can connect.
    let mut administrator = Administrator::of(&server);
    assert_eq!(administrator.ask("CONFIG SET maxclients 1"), "+OK");
    let killed = administrator.ask("CLIENT KILL TYPE normal SKIPME yes");
    assert_ne!(killed, ":0");
    eventually_async("a renewal found no room", ttl, || {
        let refused = administrator.info("rejected_connections");
        async move { (refused != "0").then_some(()) }
    })
    .await
    .unwrap();
    let error = locker.lock("b").wait(Duration::ZERO).acquire().await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert!(guard.is_valid());
    let left = || -> u64 {
        let left = server.command(&["PTTL", &key]).unwrap();
        left.parse().unwrap()
    };
    assert_eq!(administrator.ask("CONFIG SET maxclients 100"), "+OK");
    let before = left();
    eventually_async("it is renewed", ttl, || async {
        (left() > before).then_some(())
    })
    .await
    .unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.token(), token);
    assert!(guard.release().await.is_clean());
}

/// A client that stays connected while no other client can connect.
struct Administrator(BufReader<TcpStream>);

impl Administrator {
    fn of(server: &RedisServer) -> Self {
        let stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut administrator = Self(BufReader::new(stream));
        let known = administrator.ask(&format!("AUTH {}", server.password()));
        assert_eq!(known, "+OK");
        administrator
    }

    /// Sends a command and returns the first line of the reply.
    fn ask(&mut self, command: &str) -> String {
        let stream = self.0.get_mut();
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn info(&mut self, field: &str) -> String {
        let length = self.ask("INFO stats");
        let length: usize = length.trim_start_matches('$').parse().unwrap();
        let mut text = vec![0; length + 2];
        self.0.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap().to_owned()
    }
}
