//! The process that is one node: the gateway library itself, over a store that may have a planted
//! bug.
//!
//! The settings come through the environment, because the store's URL may contain a password. A
//! command line would show it to other users.
//!
//! Asks the admin interface of a node for the session of an account.

use std::{env, io::Write as _, net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, Store, SystemClock};
use distlock_checker::Fact;
use distlock_gateway::{Event, Gateway, GatewayConfig, Secret};
use distlock_kickout::{Generation, Uid};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::broadcast::{Receiver, error::RecvError},
    time::timeout,
};

use super::planted_bugs::NodeBug;
use crate::chaos::{history::now, stores::target};

/// The environment variable with the settings. A process that has this variable is a node.
const SETTINGS: &str = "DISTLOCK_LAB_NODE";
/// Signs the login tokens of clients and the calls between nodes.
pub(super) const KEY: &str = "the nodes of a run share this key";
/// The token that administrators show.
pub(super) const ADMIN_TOKEN: &str = "the run's own administrator";
/// Pause between two attempts to open the store.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The settings of a node. Times are in milliseconds.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct NodeSettings {
    pub(super) node: String,
    /// The number of the node. Some planted bugs behave differently by this number.
    pub(super) number: u32,
    pub(super) url: String,
    /// The URL of the store with the records, if that is another store.
    pub(super) records_url: Option<String>,
    pub(super) peer_listen: String,
    pub(super) peer_advertise: String,
    pub(super) lock_ttl: u64,
    pub(super) lock_wait: u64,
    pub(super) kick_budget: u64,
    pub(super) node_lease: u64,
    pub(super) grace: u64,
    pub(super) sweep: u64,
    pub(super) bug: Option<NodeBug>,
}

impl NodeSettings {
    /// Reads the settings. `None` means that this process is no node.
    pub(crate) fn from_environment() -> Result<Option<Self>> {
        match env::var(SETTINGS) {
            Ok(text) => Ok(Some(serde_json::from_str(&text).context(SETTINGS)?)),
            Err(_) => Ok(None),
        }
    }

    /// Returns the environment variable that carries these settings, as name and value.
    pub(super) fn environment_variable(&self) -> Result<(&'static str, String)> {
        Ok((SETTINGS, serde_json::to_string(self)?))
    }

    /// Converts the settings to the configuration of the gateway.
    fn config(&self) -> GatewayConfig {
        let mut config = GatewayConfig::default();
        config.node.clone_from(&self.node);
        config.listen = "127.0.0.1:0".into();
        config.admin_listen = "127.0.0.1:0".into();
        config.peer_listen.clone_from(&self.peer_listen);
        config.peer_advertise = Some(self.peer_advertise.clone());
        config.token_key = Some(Secret::new(KEY));
        config.admin_token = Some(Secret::new(ADMIN_TOKEN));
        config.lock_ttl = Duration::from_millis(self.lock_ttl);
        config.lock_wait = Duration::from_millis(self.lock_wait);
        config.kick_budget = Duration::from_millis(self.kick_budget);
        config.node_lease = Duration::from_millis(self.node_lease);
        config.grace = Duration::from_millis(self.grace);
        config.sweep = Duration::from_millis(self.sweep);
        config
    }
}

/// Serves until SIGTERM.
pub(crate) fn serve(settings: NodeSettings) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .with_writer(std::io::stderr)
        .init();
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(Box::pin(run_node(settings)))
}

/// Starts the gateway with as many attempts as needed, prints its events, and serves until SIGTERM.
async fn run_node(settings: NodeSettings) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let store = open_store(&settings).await;
    let gateway = loop {
        match Gateway::start(settings.config(), store.clone()).await {
            Ok(gateway) => break gateway,
            // The store may be broken at this moment, or the lease of an earlier process may still
            // be valid.
            Err(error) if error.is_retryable() => SystemClock.sleep(RETRY_PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    };
    let events = gateway.events();
    print_json(&gateway.ready())?;
    let printer = thread::Builder::new()
        .name("events".into())
        .spawn(move || print_events(events))?;
    gateway
        .run(async move {
            terminate.recv().await;
        })
        .await?;
    store.close().await;
    // The printer ends when the gateway closes its channel of events.
    let printed = tokio::task::spawn_blocking(move || printer.join());
    drop(timeout(Duration::from_secs(2), printed).await);
    Ok(())
}

/// Opens the store, with as many attempts as needed, because the store may be broken at this
/// moment.
async fn open_store(settings: &NodeSettings) -> Store {
    loop {
        let target = target(&settings.url, settings.records_url.clone());
        match distlock::open(target).await {
            Ok(store) => {
                return match settings.bug {
                    Some(bug) => bug.wrap_store(&store, settings.number),
                    None => store,
                };
            }
            Err(_) => SystemClock.sleep(RETRY_PAUSE).await,
        }
    }
}

/// Prints each event. Missed events show as a gap in the numbers.
fn print_events(mut events: Receiver<Event>) {
    loop {
        match events.blocking_recv() {
            Ok(event) => {
                if print_json(&event).is_err() {
                    return;
                }
            }
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Prints a value as one line of JSON.
fn print_json(it: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(it)?;
    line.push(b'\n');
    let mut output = std::io::stdout().lock();
    output.write_all(&line)?;
    output.flush()?;
    Ok(())
}

/// Time-out for the answer of a node, which may be stopped or without a store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks a node for the session of an account.
///
/// # Errors
/// Returns an error if the node cannot be reached or cannot answer.
pub(super) async fn look_up(node: SocketAddr, uid: &Uid) -> Result<Fact> {
    let from_us = now();
    let answer = timeout(ANSWER_TIMEOUT, get_json(node, &format!("/v1/users/{uid}"))).await??;
    let record = &answer["record"];
    let slots = record["slots"].as_object();
    let mut slots = slots.into_iter().flat_map(serde_json::Map::values);
    let session = slots.find_map(|slot| serde_json::from_value(slot["session"].clone()).ok());
    Ok(Fact::Lookup {
        uid: uid.clone(),
        from_us,
        to_us: now(),
        r#gen: Generation::new(record["gen"].as_u64().unwrap_or_default()),
        session,
    })
}

/// Sends a GET request with the administrator's token, and returns the JSON of a successful answer.
async fn get_json(node: SocketAddr, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(node).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: {node}\r\nconnection: close\r\n\
         authorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("an incomplete answer")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    Ok(serde_json::from_str(body)?)
}
