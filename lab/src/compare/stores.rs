//! The stores that take part. A store is given by its URL, or this command starts it.

use std::{path::Path, str::FromStr, time::Duration};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use distlock::{Reach, Store, Target, ring::Terms};
use distlock_cli::program::{self, open_client};
use distlock_conformance::Subject;
use distlock_harness::servers::{
    mysql::{MySqlServer, Product},
    postgres::PostgresServer,
    redis::{RedisCluster, RedisSentinels, RedisServer},
    zookeeper::{Setup, ZooKeeper},
};
use distlock_report::compare::{Finding, StoreFacts};

use super::plan::within;
use crate::{
    chaos::StoreKind,
    quorum::{Lost, QuorumServers},
    ring::RingServers,
    served::ServedStore,
};

/// A store to start, and the locks that are measured on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreToSpawn {
    store: StoreKind,
    /// Whether to measure locks over the store's records, as `kv+URL` opens them, and not the
    /// store's own locks.
    over_records: bool,
    /// The member that the store has lost, if it is a quorum.
    lost: Lost,
}

impl FromStr for StoreToSpawn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix("kv+");
        let mut named = Lost::ALL
            .map(|lost| (format!("quorum{}", lost.suffix()), lost))
            .into_iter();
        let quorum = named.find(|(name, _)| name == text).map(|(_, lost)| lost);
        let kind = quorum.map_or(inner.unwrap_or(text), |_| "quorum");
        let known = || {
            let all = StoreKind::value_variants().iter();
            let all = all.map(|it| it.key()).collect::<Vec<_>>().join(", ");
            format!("known are {all}, each also after kv+; quorum-dead and quorum-silent")
        };
        Ok(Self {
            store: <StoreKind as ValueEnum>::from_str(kind, false).map_err(|_| known())?,
            over_records: inner.is_some(),
            lost: quorum.unwrap_or(Lost::None),
        })
    }
}

impl StoreToSpawn {
    /// The key of the store in the report. Pages use it as a word.
    fn key(self) -> String {
        let prefix = if self.over_records { "kv-" } else { "" };
        format!("{prefix}{}{}", self.store.key(), self.lost.suffix())
    }

    fn name(self) -> String {
        let suffix = if self.over_records { " records" } else { "" };
        let lost = match self.lost {
            Lost::None => "",
            Lost::Dead => ", one dead",
            Lost::Silent => ", one silent",
        };
        format!("{}{suffix}{lost}", display_name(&self.store.key()))
    }
}

/// The number of members of a quorum and of a ring.
const MEMBERS: usize = 3;

/// The number of primaries in the cluster. Each has a replica.
const SHARDS: usize = 3;

/// The longest lease of a lock server: the default of `distlock serve`.
const MAX_LEASE: Duration = Duration::from_secs(60);

/// Describes how the server is set up. Durability is not part of the text: the server reports it,
/// or [`ensemble_setup`] knows it.
const fn setup_of(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::Memory => "in the measuring process",
        StoreKind::Sqlite => "a file on the machine's disk",
        StoreKind::Redis | StoreKind::Postgres => "one server started by this command",
        StoreKind::RedisSentinel => {
            "a primary, a replica and three sentinels started by this command on one machine"
        }
        StoreKind::RedisCluster => {
            "three primaries with a replica each, started by this command on one machine"
        }
        StoreKind::Quorum => {
            "three Redis servers started by this command on one machine; the records are in a file"
        }
        StoreKind::Ring => {
            "three Redis servers, and one for the view, started by this command on one machine"
        }
        StoreKind::LockServer => "one `distlock serve` with its locks in its memory",
        StoreKind::Agents => "two `distlock serve` before one Redis server started by this command",
        StoreKind::Mariadb | StoreKind::Mysql => {
            "one server started by this command, no binary log"
        }
        StoreKind::Zookeeper => {
            "three servers started by this command on one machine, sessions of 5 s"
        }
    }
}

/// The setup of the ensemble, and its durability, which ZooKeeper itself does not report.
fn ensemble_setup() -> (Setup, &'static str) {
    let setup = Setup {
        optimised: true,
        flushed: true,
        ..Setup::default()
    };
    (setup, "forceSync=yes")
}

/// A server that this command started and may break.
#[derive(Debug)]
pub(super) enum Server {
    Redis(RedisServer),
    RedisSentinels(Box<RedisSentinels>),
    RedisCluster(RedisCluster),
    /// A quorum, and the member that it has lost, or loses when its clients are open.
    Quorum(QuorumServers, Lost),
    Ring(RingServers),
    MySql(MySqlServer),
    Postgres(PostgresServer),
    ZooKeeper(ZooKeeper),
    Served(ServedStore),
}

/// One store of the comparison.
pub(super) struct StoreUnderTest {
    pub(super) facts: StoreFacts,
    pub(super) target: Target,
    /// A client that stays open. Each measurement opens a client of its own.
    pub(super) store: Store,
    pub(super) server: Option<Server>,
    /// Whether this run started the store, so that it may keep the store busy and break it.
    pub(super) is_ours: bool,
}

impl StoreUnderTest {
    /// The key of the store in the report.
    pub(super) fn key(&self) -> &str {
        &self.facts.key
    }

    /// Whether the store still takes part.
    pub(super) fn is_alive(&self) -> bool {
        self.facts.stopped.is_none()
    }

    /// Loses the member that this quorum is measured without. Other stores stay as they are.
    pub(super) fn lose_member(&mut self) -> Result<()> {
        match &mut self.server {
            Some(Server::Quorum(servers, lost)) => servers.lose(*lost),
            _ => Ok(()),
        }
    }

    /// An opener of further, independent clients of this store.
    pub(super) fn opener(&self) -> Opener {
        Opener {
            target: self.target.clone(),
            shared: (self.reach() == Reach::Process).then(|| self.store.clone()),
        }
    }

    /// The reach of the store.
    pub(super) fn reach(&self) -> Reach {
        self.store.backend().capabilities().reach
    }

    /// The store in the form that the conformance suite needs.
    pub(super) fn subject(&self) -> std::io::Result<Subject> {
        let opener = self.opener();
        let subject = Subject::new(
            self.key().to_owned(),
            self.store.backend().capabilities().clone(),
            move || {
                let opener = opener.clone();
                async move { opener.open_client().await }
            },
        );
        if self.reach() == Reach::Process {
            return Ok(subject);
        }
        Ok(subject.with_workers(program::workers(&self.target)?))
    }
}

/// Opens independent clients of one store.
#[derive(Clone, Debug)]
pub(super) struct Opener {
    target: Target,
    /// The open client, if the store lives in one process. A second `open` would give another,
    /// empty store.
    shared: Option<Store>,
}

impl Opener {
    /// Opens another client, as another process would.
    pub(super) async fn open_client(&self) -> distlock::Result<Store> {
        open_client(self.target.clone(), self.shared.clone()).await
    }
}

/// Starts a store, and opens it.
pub(super) async fn spawn_store(wanted: StoreToSpawn, folder: &Path) -> Result<StoreUnderTest> {
    let what = wanted.store;
    // Starting a server blocks its thread, so each start runs on a thread of its own. Other servers
    // start meanwhile.
    let started = tokio::task::spawn_blocking(move || -> Result<Option<Server>> {
        Ok(match what {
            StoreKind::Memory | StoreKind::Sqlite => None,
            StoreKind::Redis => Some(Server::Redis(RedisServer::with(&["appendfsync everysec"])?)),
            StoreKind::RedisSentinel => {
                Some(Server::RedisSentinels(Box::new(RedisSentinels::start()?)))
            }
            StoreKind::RedisCluster => Some(Server::RedisCluster(RedisCluster::start(SHARDS, 1)?)),
            StoreKind::Quorum => Some(Server::Quorum(
                QuorumServers::start(MEMBERS, &["appendfsync everysec"])?,
                wanted.lost,
            )),
            StoreKind::Ring => Some(Server::Ring(RingServers::start(
                MEMBERS,
                &["appendfsync everysec"],
            )?)),
            StoreKind::LockServer => Some(Server::Served(ServedStore::in_memory(MAX_LEASE)?)),
            StoreKind::Agents => Some(Server::Served(ServedStore::agents(MAX_LEASE)?)),
            StoreKind::Mariadb => Some(Server::MySql(MySqlServer::start(Product::MariaDb)?)),
            StoreKind::Mysql => Some(Server::MySql(MySqlServer::start(Product::MySql)?)),
            StoreKind::Postgres => Some(Server::Postgres(PostgresServer::with(&["fsync=on"])?)),
            StoreKind::Zookeeper => Some(Server::ZooKeeper(ZooKeeper::start_with(
                &ensemble_setup().0,
            )?)),
        })
    });
    let server = started
        .await?
        .with_context(|| format!("start {}", what.key()))?;
    let target = match &server {
        None if what == StoreKind::Memory => Target::new("memory:"),
        None => Target::sqlite(folder.join(format!("{}.db", wanted.key()))),
        Some(Server::Redis(it)) => Target::new(it.url()),
        Some(Server::RedisSentinels(it)) => Target::new(it.url()),
        Some(Server::RedisCluster(it)) => Target::new(it.url()),
        Some(Server::Quorum(it, _)) => {
            QuorumServers::init(&it.url()).await?;
            let records = folder.join(format!("{}.records.db", wanted.key()));
            Target::new(it.url()).records_in(Target::sqlite(records))
        }
        Some(Server::Ring(it)) => {
            RingServers::init(&it.url(), Terms::default()).await?;
            Target::new(it.url())
        }
        Some(Server::MySql(it)) => Target::new(it.url()),
        Some(Server::Served(it)) => Target::new(it.url()),
        Some(Server::Postgres(it)) => Target::new(it.url()),
        Some(Server::ZooKeeper(it)) => Target::new(zookeeper_url(&it.servers())),
    };
    let target = match wanted.over_records {
        true => target.wrapped_by("kv+"),
        false => target,
    };
    let mut candidate = open_store(target, setup_of(what).to_owned()).await?;
    candidate.server = server;
    candidate.is_ours = true;
    if what == StoreKind::Zookeeper {
        candidate.facts.durability = Some(ensemble_setup().1.to_owned());
    }
    candidate.facts.product = wanted.key();
    candidate.facts.key = wanted.key();
    candidate.facts.name = wanted.name();
    Ok(candidate)
}

/// The URL of an ensemble. The session time-out is the shortest with which this ensemble stays
/// stable on a busy machine. `servers` starts with the user and the password, before the addresses.
pub(super) fn zookeeper_url(servers: &str) -> String {
    format!("zookeeper://{servers}/distlock-compare?session_timeout=5s")
}

/// Opens a store by its URL, and collects facts about it.
pub(super) async fn open_store(target: Target, setup: String) -> Result<StoreUnderTest> {
    let store = program::open(target.clone()).await?;
    let health = store.locker().health().await?;
    let capabilities = store.backend().capabilities().clone();
    let said = health.server.to_lowercase();
    let product = match target.scheme().as_deref() {
        Some("redis+sentinel") => "redis-sentinel",
        Some("redis+cluster") => "redis-cluster",
        _ if said.contains("mariadb") => "mariadb",
        _ => capabilities.backend,
    };
    let facts = StoreFacts {
        key: product.to_owned(),
        product: product.to_owned(),
        name: display_name(product).to_owned(),
        server: health.server,
        setup,
        promises: serde_json::to_value(&capabilities)
            .and_then(serde_json::from_value)
            .unwrap_or_default(),
        findings: health
            .findings
            .iter()
            .map(|finding| Finding {
                check: finding.check.to_owned(),
                verdict: format!("{:?}", finding.verdict).to_lowercase(),
                detail: finding.detail.clone(),
            })
            .collect(),
        ..StoreFacts::default()
    };
    Ok(StoreUnderTest {
        facts,
        target,
        store,
        server: None,
        is_ours: false,
    })
}

/// The name of a product that readers see.
fn display_name(product: &str) -> &str {
    match product {
        "memory" => "Memory",
        "sqlite" => "SQLite",
        "redis" => "Redis",
        "redis-sentinel" => "Redis with Sentinel",
        "redis-cluster" => "Redis Cluster",
        "quorum" => "Quorum of three Redis",
        "ring" => "Ring of three Redis",
        "mariadb" => "MariaDB",
        "mysql" => "MySQL",
        "postgres" => "Postgres",
        "zookeeper" => "ZooKeeper",
        "lock-server" => "Lock server",
        "agents" => "Agents of Redis",
        other => other,
    }
}

/// Gives each store of a product its own key and name: `redis`, `redis-2`.
pub(super) fn make_keys_unique(candidates: &mut [StoreUnderTest]) {
    for at in 1..candidates.len() {
        let product = candidates[at].facts.product.clone();
        let before = candidates[..at]
            .iter()
            .filter(|it| it.facts.product == product)
            .count();
        if before > 0 {
            let facts = &mut candidates[at].facts;
            facts.key = format!("{product}-{}", before + 1);
            facts.name = format!("{} {}", facts.name, before + 1);
        }
    }
}

/// Checks that a store still answers; returns its error if the store does not answer.
pub(super) async fn check_answers(store: &Store) -> std::result::Result<(), String> {
    match within(Duration::from_secs(8), store.locker().health()).await {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("no answer for 8 s".into()),
    }
}
