//! Servers that send bytes that no real server sends: random bytes and damaged answers.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{DistLock, Error, ErrorKind, Result};
use distlock_harness::eventually_async;
use fastrand::Rng;
use futures_util::{StreamExt as _, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

use crate::common::request;

/// The number of fake servers in one run.
const SERVERS: u64 = 150;

/// The time after which a fake server closes a silent connection. A client with half an answer
/// waits for the rest of the answer and sends nothing.
const PATIENCE: Duration = Duration::from_millis(50);

/// The random messages of a fake server. Some messages have a correct frame but no meaning.
#[derive(Clone, Copy)]
pub(crate) struct FakeProtocol {
    /// The server's first message; empty if the client sends the first message.
    pub(crate) greeting: fn(&mut Rng) -> Vec<u8>,
    /// The server's answer to the client's bytes.
    pub(crate) reply: fn(&mut Rng, &[u8]) -> Vec<u8>,
    /// The library's name for the protocol.
    pub(crate) name: &'static str,
}

/// Checks that the error is not `Internal`: that kind means a bug of this library, and a fake
/// server is no such bug.
#[track_caller]
fn assert_not_internal(seed: u64, error: &Error) {
    assert_ne!(error.kind(), ErrorKind::Internal, "SEED={seed}: {error}");
}

/// The first seed: the environment variable `SEED` if set, to repeat a run, or a random number.
#[expect(clippy::print_stdout, reason = "the test runner shows it")]
fn first_seed() -> u64 {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |it| it.parse().unwrap());
    println!("SEED={seed}");
    seed
}

/// Opens a store at many fake servers. No attempt may end in a panic or an internal error.
pub(crate) async fn opening_at_fake_servers<F, T>(
    tongue: FakeProtocol,
    open: impl Fn(SocketAddr) -> F,
) where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let first = first_seed();
    let outcomes: Vec<_> = stream::iter(0..SERVERS)
        .map(|number| first.wrapping_add(number))
        .map(|seed| {
            let open = &open;
            async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let serving = tokio::spawn(serve(listener, seed, tongue));
                let opened = tokio::spawn(open(address)).await;
                serving.abort();
                (seed, opened)
            }
        })
        .buffer_unordered(8)
        .collect()
        .await;
    let panics: Vec<_> = outcomes
        .iter()
        .filter(|(_, opened)| opened.is_err())
        .map(|(seed, _)| *seed)
        .collect();
    assert!(panics.is_empty(), "{} panics: {panics:?}", panics.len());
    let mut strange = 0;
    for (seed, opened) in outcomes {
        if let Ok(Err(error)) = opened {
            assert_not_internal(seed, &error);
            let says = format!("speaks something else than {}", tongue.name);
            strange += u64::from(error.to_string().contains(&says));
        }
    }
    assert!(strange > SERVERS / 10, "only {strange} were recognised");
}

async fn serve(listener: TcpListener, seed: u64, tongue: FakeProtocol) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            return;
        };
        tokio::spawn(converse(stream, Rng::with_seed(seed), tongue));
    }
}

async fn converse(mut stream: TcpStream, mut rng: Rng, tongue: FakeProtocol) {
    // The first messages are not damaged, so that more of the client's code runs.
    let sane = rng.usize(..8);
    let mut said = (tongue.greeting)(&mut rng);
    for step in 0..32 {
        if step >= sane {
            said = damaged(&mut rng, said);
        }
        if stream.write_all(&said).await.is_err() {
            return;
        }
        let mut request = vec![0; 16 * 1024];
        match timeout(PATIENCE, stream.read(&mut request)).await {
            Ok(Ok(length @ 1..)) => said = (tongue.reply)(&mut rng, &request[..length]),
            _ => return,
        }
    }
}

/// The bytes with a few bytes changed, cut off or replaced.
fn damaged(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    match rng.u8(..6) {
        0..=2 if !bytes.is_empty() => {
            for _ in 0..rng.usize(1..5) {
                let at = rng.usize(..bytes.len());
                let any = rng.u8(..);
                let telling = [0, 1, 2, 0x7f, 0x80, 0xfb, 0xfe, 0xff, any];
                bytes[at] = telling[rng.usize(..telling.len())];
            }
        }
        3 if !bytes.is_empty() => bytes.truncate(rng.usize(..bytes.len())),
        4 => bytes = std::iter::repeat_with(|| rng.u8(..)).take(64).collect(),
        _ => {}
    }
    bytes
}

/// A proxy to a real server that damages the server's answers while `garbles` is true.
struct DamagingProxy {
    address: SocketAddr,
    garbles: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl DamagingProxy {
    async fn before(server: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let garbles = Arc::<AtomicBool>::default();
        let switch = Arc::clone(&garbles);
        let task = tokio::spawn(async move {
            let mut rng = Rng::with_seed(seed);
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                tokio::spawn(carry(client, server, rng.fork(), Arc::clone(&switch)));
            }
        });
        Self {
            address,
            garbles,
            task,
        }
    }

    fn garble(&self, garbles: bool) {
        self.garbles.store(garbles, Ordering::Release);
    }
}

impl Drop for DamagingProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: TcpStream, mut rng: Rng, garbles: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let back = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            let mut said = buffer[..length].to_vec();
            if garbles.load(Ordering::Acquire) {
                said = damaged(&mut rng, said);
            }
            if to_client.write_all(&said).await.is_err() {
                break;
            }
        }
    };
    // When one side closes its connection, the other side is disconnected too.
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

/// Sends operations whose answers are damaged. No operation may end in a panic or an internal
/// error. With undamaged answers, the store works again.
pub(crate) async fn operations_amid_garbage<F>(server: SocketAddr, open: impl Fn(SocketAddr) -> F)
where
    F: Future<Output = Result<Arc<dyn DistLock>>>,
{
    let first = first_seed();
    let unknown: Vec<_> = stream::iter(0..24)
        .map(|number| amid_garbage(server, first.wrapping_add(number), &open))
        .buffer_unordered(8)
        .collect()
        .await;
    assert!(unknown.contains(&true), "no outcome was unknown");
}

/// Runs one store with damaged answers. Returns whether the outcome of an operation was unknown.
async fn amid_garbage<F>(server: SocketAddr, seed: u64, open: &impl Fn(SocketAddr) -> F) -> bool
where
    F: Future<Output = Result<Arc<dyn DistLock>>>,
{
    let garbler = DamagingProxy::before(server, seed).await;
    let lock = open(garbler.address).await.unwrap();
    garbler.garble(true);
    let mut unknown = false;
    let longest = Duration::from_secs(60);
    for number in 0..3 {
        let request = request(&format!("garbled-{seed}-{number}"), longest);
        let (taking, looking) = (Arc::clone(&lock), Arc::clone(&lock));
        let name = request.name.clone();
        let taken = tokio::spawn(async move { taking.try_acquire(&request).await }).await;
        let taken = taken.unwrap_or_else(|panic| panic!("SEED={seed}: {panic}"));
        if let Err(error) = taken {
            assert_not_internal(seed, &error);
            unknown |= error.kind() == ErrorKind::OutcomeUnknown;
        }
        let seen = tokio::spawn(async move { looking.inspect(&name).await }).await;
        if let Err(error) = seen.unwrap_or_else(|panic| panic!("SEED={seed}: {panic}")) {
            assert_not_internal(seed, &error);
        }
    }
    garbler.garble(false);
    let again = || async {
        let request = request(&format!("well-{seed}"), longest);
        lock.try_acquire(&request).await.ok()
    };
    let soon = Duration::from_secs(20);
    eventually_async("the store works again", soon, again)
        .await
        .unwrap();
    lock.close().await;
    unknown
}
