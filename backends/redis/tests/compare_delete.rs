//! Newer servers delete an unchanged value without a script: Valkey 9 with `DELIFEQ`, Redis 8.4
//! with `DELEX`.
//!
//! Here a proxy simulates such a server. The proxy reports that the command is known, and runs the
//! command as a script. The tests in `newer.rs` use a real Valkey.

mod common;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{open, pause, redis, request, take};
use distlock_conformance::Subject;
use distlock_core::{Guard, Lease, Locker, ReleaseOutcome};
use distlock_harness::servers::redis::RedisServer;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

const COMPARE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

const LONG: Duration = Duration::from_secs(30);

/// The command that the proxy simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    DelIfEq,
    DelEx,
    /// `DELIFEQ`, but this user may not run it.
    Denied,
}

struct NewerServer {
    address: SocketAddr,
    url: String,
    /// The number of compare-and-delete commands that the proxy received.
    asked: Arc<AtomicUsize>,
}

impl NewerServer {
    async fn start(server: &RedisServer, can: Command) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = server.url_at(address);
        let (asked, server) = (Arc::<AtomicUsize>::default(), server.address());
        let count = Arc::clone(&asked);
        // The task ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = server.into_split();
                tokio::spawn(translate(
                    BufReader::new(from_client),
                    to_server,
                    can,
                    Arc::clone(&count),
                ));
                tokio::spawn(
                    async move { tokio::io::copy(&mut from_server, &mut to_client).await },
                );
            }
        });
        Self {
            address,
            url,
            asked,
        }
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }
}

/// Forwards requests, and translates new commands into scripts.
async fn translate(
    mut client: BufReader<tokio::net::tcp::OwnedReadHalf>,
    mut server: tokio::net::tcp::OwnedWriteHalf,
    can: Command,
    asked: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    loop {
        let mut words = Vec::new();
        for _ in 0..number(&mut client).await? {
            let mut word = vec![0; number(&mut client).await?];
            client.read_exact(&mut word).await?;
            client.read_exact(&mut [0; 2]).await?;
            words.push(String::from_utf8_lossy(&word).into_owned());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let compared = match *words {
            ["DELIFEQ", key, value] if can != Command::DelEx => Some((key, value)),
            ["DELEX", key, "IFEQ", value] if can == Command::DelEx => Some((key, value)),
            _ => None,
        };
        let words = match (&*words, compared) {
            (["COMMAND", "INFO", ..], _) if can == Command::DelEx => {
                vec!["EVAL", "return {false, {'delex'}}", "0"]
            }
            (["COMMAND", "INFO", ..], _) => vec!["EVAL", "return {{'delifeq'}, false}", "0"],
            (_, Some((key, value))) => {
                asked.fetch_add(1, Ordering::AcqRel);
                if can == Command::Denied {
                    vec!["CONFIG", "GET", "save"]
                } else {
                    vec!["EVAL", COMPARE, "1", key, value]
                }
            }
            _ => words,
        };
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        server.write_all(request.as_bytes()).await?;
    }
}

/// Reads the number after the type byte of an array or a string.
async fn number(client: &mut BufReader<tokio::net::tcp::OwnedReadHalf>) -> std::io::Result<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await?;
    let digits = line.trim_end().get(1..).unwrap_or_default();
    digits.parse().map_err(std::io::Error::other)
}

async fn hold(locker: &Locker, name: &str) -> Guard {
    locker.lock(name).ttl(LONG).acquire().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_release_is_one_compare_and_delete() {
    for can in [Command::DelIfEq, Command::DelEx] {
        let server = RedisServer::start().unwrap();
        let newer = NewerServer::start(&server, can).await;
        let locker = common::locker(&newer.url()).await;
        let left = || server.command(&["KEYS", "*:l:*"]).unwrap();
        // The cycles never load the release script.
        for round in 1..=3 {
            let guard = locker.lock("a").ttl(LONG).meta("of\nmine").acquire();
            assert!(guard.await.unwrap().release().await.is_clean());
            assert_eq!((newer.asked(), left()), (round, String::new()), "{can:?}");
        }
        // When the counter is ahead of the clock, the token and the time in the stored value
        // differ. Then only a script can release the lock.
        let counter = server.command(&["KEYS", "*:c"]).unwrap();
        let set = server.command(&["SET", &counter, "8000000000000000"]);
        assert_eq!(set.unwrap(), "OK");
        let guard = hold(&locker, "a").await;
        assert_eq!(guard.token().get(), 8_000_000_000_000_001);
        assert!(guard.release().await.is_clean());
        assert_eq!(left(), "");
        server.command(&["DEL", &counter]).unwrap();
        // A script also releases a lock with a ticket.
        let ticket = hold(&locker, "a").await.into_ticket().await.unwrap();
        let guard = locker.resume(&ticket).await.unwrap();
        assert!(guard.release().await.is_clean());
        assert_eq!(left(), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_owner_is_not_deleted() {
    let server = RedisServer::start().unwrap();
    let newer = NewerServer::start(&server, Command::DelIfEq).await;
    let store = redis(&newer.url()).await.unwrap();
    let lock = store.lock();
    let (first, second) = (request("a", Duration::from_millis(300)), request("a", LONG));
    let grant = take(&*lock, &first).await;
    pause(Duration::from_millis(600)).await;
    take(&*lock, &second).await;
    let lease = Lease::new(first.name.clone(), first.owner, Some(grant.token));
    assert_eq!(lock.release(&lease).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(newer.asked(), 1);
    assert!(lock.inspect(&first.name).await.unwrap().held.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_right_tries_the_command_once() {
    let server = RedisServer::start().unwrap();
    let newer = NewerServer::start(&server, Command::Denied).await;
    let acl = include_str!("../src/acl.txt")
        .trim()
        .replace(">PASSWORD", ">secret");
    let words: Vec<_> = acl.split(' ').collect();
    assert_eq!(server.command(&words).unwrap(), "OK");
    let url = format!("redis://distlock:secret@{}", newer.address);
    let store = redis(&url).await.unwrap();
    let lock = store.lock();
    for _ in 0..3 {
        let request = request("a", LONG);
        let grant = take(&*lock, &request).await;
        let lease = Lease::new(request.name.clone(), request.owner, Some(grant.token));
        let released = lock.release(&lease).await.unwrap();
        assert!(matches!(released, ReleaseOutcome::Released { .. }));
    }
    assert_eq!(newer.asked(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_release_cases_of_the_suite_pass() {
    let server = RedisServer::start().unwrap();
    let newer = NewerServer::start(&server, Command::DelEx).await;
    let url = newer.url();
    let subject = Subject::connect("redis_newer", move || open(url.clone())).await;
    let subject = subject.unwrap();
    for property in ["release::", "handover::", "ownership::"] {
        let results = distlock_conformance::run(&subject, Some(property)).await;
        assert!(!results.is_empty());
        let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }
    assert!(newer.asked() > 0);
}
