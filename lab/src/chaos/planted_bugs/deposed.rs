//! Clients that keep using a former leader, because it still answers them.
//!
//! A request to a server without any client library.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use distlock::{
    Attempt, DistLock, Epoch, Error, ErrorKind, LossReason, Store, SystemClock,
    backend::{AcquireRequest, Contender, Grant, Lease, LossFeed, Renewal, Renewed},
};
use distlock_conformance::LockLayer;
use distlock_core::sync::Mutex;
use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::attempts::AroundAttempts;

/// Time-out for the answer of a former leader.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// Opens the store of a client that asks the sentinels for the primary once, and again only after
/// an error. The client then uses the server directly, so no majority of sentinels confirms a
/// lease.
pub(super) async fn with_stale_primary(url: &str) -> Result<Store> {
    let sentinels = SentinelClient::from_url(url)?;
    let (at, store) = sentinels.open_primary().await?;
    Ok(wrap_store(
        &store,
        at,
        BelievedLeader::Primary(Arc::new(sentinels)),
    ))
}

/// Opens the store of a client that uses one server only, and trusts its session as long as that
/// server answers and names no new leader.
pub(super) async fn with_trusted_server(url: &str, worker: u32) -> Result<Store> {
    let (before, rest) = url.split_once('@').context("a user")?;
    let (hosts, behind) = rest.split_once('/').context("a root")?;
    let hosts: Vec<_> = hosts.split(',').collect();
    let host = hosts[usize::try_from(worker)? % hosts.len()];
    let store = distlock::open(format!("{before}@{host}/{behind}").as_str()).await?;
    let at = host.parse()?;
    let epoch = AtomicU64::default();
    Ok(wrap_store(
        &store,
        at,
        BelievedLeader::Leader(Arc::new(EnsembleServer { at, epoch })),
    ))
}

/// Wraps a store in a layer with this belief. `at` is the server that the store uses.
fn wrap_store(store: &Store, at: SocketAddr, belief: BelievedLeader) -> Store {
    let lock = DeposedLock {
        inner: Arc::new(Mutex::new((at, store.backend()))),
        belief,
    };
    Store::with_clock(lock.into_lock(), store.records(), Arc::new(SystemClock))
}

/// A lock on a server that may no longer be the leader.
#[derive(Clone, Debug)]
struct DeposedLock {
    inner: Arc<Mutex<(SocketAddr, Arc<dyn DistLock>)>>,
    belief: BelievedLeader,
}

/// The wrong belief of a client about the leader.
#[derive(Clone, Debug)]
enum BelievedLeader {
    Primary(Arc<SentinelClient>),
    Leader(Arc<EnsembleServer>),
}

/// The sentinels, and the password and name of their primary.
#[derive(Debug)]
struct SentinelClient {
    hosts: Vec<SocketAddr>,
    password: String,
    primary: String,
}

/// A server of ZooKeeper.
#[derive(Debug)]
struct EnsembleServer {
    at: SocketAddr,
    /// The epoch of the leader that the server followed at the last grant.
    epoch: AtomicU64,
}

impl SentinelClient {
    /// Reads `redis+sentinel://:PASSWORD@HOST,HOST/NAME?..`.
    fn from_url(url: &str) -> Result<Self> {
        let (_, rest) = url.split_once("://:").context("a password")?;
        let (password, rest) = rest.split_once('@').context("a host")?;
        let (hosts, rest) = rest.split_once('/').context("a name")?;
        let hosts = hosts.split(',').map(str::parse);
        Ok(Self {
            hosts: hosts.collect::<Result<_, _>>()?,
            password: password.to_owned(),
            primary: rest.split('?').next().unwrap_or_default().to_owned(),
        })
    }

    /// Returns the primary that the first answering sentinel names.
    async fn current_primary(&self) -> Result<SocketAddr> {
        let (password, name) = (&self.password, &self.primary);
        let question = format!("AUTH {password}\r\nSENTINEL GET-MASTER-ADDR-BY-NAME {name}\r\n");
        // The answer is `+OK`, `*2`, and twice a length and a text.
        let is_enough = |answer: &str| answer.matches("\r\n").count() >= 6;
        for host in &self.hosts {
            let Ok(answer) = ask_server(*host, &question, is_enough).await else {
                continue;
            };
            let words: Vec<_> = answer.lines().collect();
            if let [_, _, _, host, _, port, ..] = words[..] {
                return Ok(format!("{host}:{port}").parse()?);
            }
        }
        anyhow::bail!("no sentinel names a primary")
    }

    /// Opens the present primary directly, and returns its address.
    async fn open_primary(&self) -> Result<(SocketAddr, Store)> {
        let at = self.current_primary().await?;
        let url = format!("redis://:{}@{at}", self.password);
        Ok((at, distlock::open(url.as_str()).await?))
    }
}

impl EnsembleServer {
    /// Returns the epoch of the leader that the server follows. `None` means that the server does
    /// not serve.
    async fn epoch(&self) -> Option<u64> {
        let answer = ask_server(self.at, "srvr", |_| false).await.ok()?;
        let mut lines = answer.lines();
        let transaction = lines.find_map(|it| it.strip_prefix("Zxid: 0x"))?;
        let serves = answer.contains("Mode: leader") || answer.contains("Mode: follower");
        let transaction = u64::from_str_radix(transaction.trim(), 16).ok()?;
        serves.then_some(transaction >> 32)
    }
}

impl BelievedLeader {
    /// Removes the feed of losses from a grant of ZooKeeper, so that the client gets no notice of a
    /// loss. The function also stores the epoch of the leader at the time of the grant.
    async fn without_loss_feed(&self, mut attempt: Attempt<Grant>) -> Attempt<Grant> {
        if let (Self::Leader(server), Attempt::Acquired(grant)) = (self, &mut attempt) {
            grant.loss = LossFeed::silent();
            server.remember_epoch().await;
        }
        attempt
    }
}

impl EnsembleServer {
    /// Stores the epoch of the leader that the server follows now.
    async fn remember_epoch(&self) {
        if let Some(epoch) = self.epoch().await {
            self.epoch.store(epoch, Ordering::SeqCst);
        }
    }

    /// Renews a lease. While the server still follows the same leader, a missing answer or a lost
    /// session counts as a success.
    async fn renew(
        &self,
        inner: &dyn DistLock,
        lease: &Lease,
        renewal: &Renewal,
    ) -> distlock::Result<Renewed> {
        let believed = |token| Renewed::Extended {
            valid_for: renewal.ttl.duration(),
            epoch: Epoch::new(""),
            token,
            loss: LossFeed::silent(),
        };
        let answer = timeout(ANSWER_TIMEOUT, inner.renew(lease, renewal)).await;
        match (answer, lease.token) {
            (Ok(Ok(Renewed::Extended { token, .. })), _) => {
                self.remember_epoch().await;
                Ok(believed(token))
            }
            // The session has ended, or the server cannot prove that it is alive.
            (
                Err(_)
                | Ok(Err(_) | Ok(Renewed::NotHeld(LossReason::SessionLost | LossReason::Expired))),
                Some(token),
            ) if self.epoch().await == Some(self.epoch.load(Ordering::SeqCst)) => {
                Ok(believed(token))
            }
            (Ok(answer), _) => answer,
            (Err(_), _) => Err(Error::new(ErrorKind::Unavailable, "no answer")),
        }
    }
}

impl DeposedLock {
    /// Asks the sentinels for the primary again.
    async fn switch(&self) {
        if let BelievedLeader::Primary(sentinels) = &self.belief
            && let Ok((at, store)) = sentinels.open_primary().await
        {
            let mut inner = self.inner.lock();
            if inner.0 != at {
                *inner = (at, store.backend());
            }
        }
    }
}

#[async_trait]
impl LockLayer for DeposedLock {
    fn below(&self) -> Arc<dyn DistLock> {
        let inner = self.inner.lock();
        Arc::clone(&inner.1)
    }

    async fn after_error(&self) {
        self.switch().await;
    }

    async fn reopen(&self) -> distlock::Result<Self> {
        let at = self.inner.lock().0;
        let reopened = self.below().reopen().await;
        if reopened.is_err() {
            self.switch().await;
        }
        Ok(Self {
            inner: Arc::new(Mutex::new((at, reopened?))),
            belief: self.belief.clone(),
        })
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> distlock::Result<Attempt<Grant>> {
        self.attempt_below(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> distlock::Result<Box<dyn Contender>> {
        self.contend_below(request).await
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> distlock::Result<Renewed> {
        match &self.belief {
            BelievedLeader::Primary(_) => self.below().renew(lease, renewal).await,
            BelievedLeader::Leader(server) => server.renew(&*self.below(), lease, renewal).await,
        }
    }
}

#[async_trait]
impl AroundAttempts for DeposedLock {
    async fn around(
        &self,
        _request: &AcquireRequest,
        attempt: BoxFuture<'_, distlock::Result<Attempt<Grant>>>,
    ) -> distlock::Result<Attempt<Grant>> {
        Ok(self.belief.without_loss_feed(attempt.await?).await)
    }
}

/// Time-out for the answer of a server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the answer of a server, up to the end of the connection or until `is_enough` accepts it.
pub(super) async fn ask_server(
    server: SocketAddr,
    question: &str,
    is_enough: impl Fn(&str) -> bool,
) -> Result<String> {
    let asking = async {
        let mut stream = TcpStream::connect(server).await?;
        stream.write_all(question.as_bytes()).await?;
        let mut answer = String::new();
        let mut part = [0; 1024];
        while !is_enough(&answer) {
            let read = stream.read(&mut part).await?;
            if read == 0 {
                break;
            }
            answer.push_str(&String::from_utf8_lossy(&part[..read]));
        }
        Ok(answer)
    };
    timeout(REQUEST_TIMEOUT, asking).await?
}
