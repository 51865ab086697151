//! `distlock serve`: serves a store, or locks in its own memory, to other programs until a signal
//! ends it.

mod token;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::{Args, Subcommand};
use distlock::{Store, SystemClock, Target};
use distlock_server::{LockServer, MetricsPage, ServerConfig, Socket, StateOptions};
use rustix::process::Signal;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use self::token::MintToken;
use crate::{
    context::{Context, Sharing, is_of_this_process},
    default_store, drivers,
    exit::{Failure, Outcome, code},
    group::Signals,
    limits, output,
    reload::{self, Reloaded},
    systemd, values,
};

const RELOADED: Reloaded = Reloaded {
    server: "server",
    file: "certificate or key",
    files: "certificates and keys",
};

/// Serve a store to programs that do not open it themselves.
///
/// Clients name this server as distlock://HOST:PORT. With --backend memory: the locks are in the
/// memory of this server: a stop in order loses none, and after a crash holders that renew have
/// theirs again. Other stores keep their locks themselves, and several servers of one store are
/// interchangeable. When it is ready it prints one JSON line on standard output with the address it
/// is bound to. HUP has certificates and keys read again. TERM, INT and every other signal that
/// would end it, end it in an orderly way.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: Box<ServeOptions>,
}

#[derive(Debug, Subcommand)]
enum Action {
    Token(MintToken),
}

#[derive(Args, Debug)]
struct ServeOptions {
    /// The address to listen at (127.0.0.1:7420 unless --unix or a socket of systemd is there)
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// A Unix socket to make, for its user and its group
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Certificate chain (PEM file): clients come by TLS
    #[arg(long, value_name = "PATH")]
    tls_cert: Option<String>,
    /// Private key of --tls-cert (PEM file)
    #[arg(long, value_name = "PATH")]
    tls_key: Option<String>,
    /// CA certificates (PEM file): clients must show a certificate of theirs
    #[arg(long, value_name = "PATH")]
    tls_client_ca: Option<String>,
    /// Listen beyond loopback without TLS
    #[arg(long)]
    insecure_listen: bool,
    /// File with one key per line: clients must show a token that one of them has signed
    #[arg(long, value_name = "PATH")]
    token_key: Option<String>,
    /// The address for metrics (HTTP: /metrics, /healthz)
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// The longest lease; a longer TTL is cut to it
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "60s",
        value_parser = values::parse_duration,
    )]
    max_lease: Duration,
    /// With --backend memory: the file of what a crash must not lose
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
    /// With --backend memory: no server has granted locks before, so without its file this one need
    /// not wait for the end of their leases
    #[arg(long)]
    init: bool,
    /// Check the options, the files and the store, and serve nobody
    #[arg(long)]
    check: bool,
    #[command(flatten, next_help_heading = "Limits")]
    limits: Limits,
}

/// What clients may use. Without a value, the default of the server.
#[derive(Args, Debug)]
struct Limits {
    /// Most connections [default: 10000]
    #[arg(long, value_name = "N")]
    max_connections: Option<usize>,
    /// Most connections of one address [default: 5000]
    #[arg(long, value_name = "N")]
    max_per_address: Option<usize>,
    /// Longest frame in bytes [default: 4194304]
    #[arg(long, value_name = "BYTES")]
    max_frame: Option<usize>,
    /// Most operations of one session without an answer [default: 4096]
    #[arg(long, value_name = "N")]
    max_operations: Option<usize>,
    /// Most names with a lock in the memory of this server [default: 4000000]
    #[arg(long, value_name = "N")]
    max_names: Option<usize>,
    /// Most names with a lock of one session; 0 = no limit [default: 0]
    #[arg(long, value_name = "N")]
    max_names_per_session: Option<usize>,
    /// Most callers that wait for locks [default: 100000]
    #[arg(long, value_name = "N")]
    max_waiters: Option<usize>,
    /// Most callers that wait for one lock [default: 100000]
    #[arg(long, value_name = "N")]
    max_waiters_per_name: Option<usize>,
    /// Time of a connection to show its first frame and its token [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    login_timeout: Option<Duration>,
    /// Time after which a client that reads nothing is cut off [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    slow_reader: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  distlock serve --backend memory: --init
  distlock serve --backend redis://locks.example
  distlock run --backend distlock://127.0.0.1:7420 nightly -- ./backup.sh
  distlock serve --backend memory: --init --listen 0.0.0.0:7420 \\
      --tls-cert server.crt --tls-key server.key --token-key server.keys
  distlock serve token --token-key server.keys --prefix app/";

/// The line that tells where the server listens.
#[derive(Serialize)]
struct Ready<'a> {
    event: &'static str,
    /// The address of TCP, if there is one.
    listen: Option<String>,
    url: &'a str,
}

impl Serve {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        match self.action {
            Some(Action::Token(token)) => token.execute(context).await,
            None => Box::pin(self.options.execute(context)).await,
        }
    }
}

impl ServeOptions {
    async fn execute(self: Box<Self>, context: &Context) -> Outcome {
        // Each connection is an open file.
        limits::raise_open_files();
        let inherited = systemd::inherited_sockets()?;
        // HUP is caught even where it was ignored at the start, because `nohup` only wants the
        // server to outlive its terminal.
        let hangups = signal(SignalKind::hangup())?;
        let mut signals = Signals::catch()?;
        let shutdown = async move { while signals.next_ending().await == Signal::HUP {} };
        let mut shutdown = Box::pin(shutdown);
        if self.metrics_listen.is_some() {
            // Before the store is opened, which gets its counters then.
            let _ = MetricsPage::install();
        }
        let target = context.target(Sharing::Optional)?;
        if self.check {
            return self.check(target, inherited).await;
        }
        let starting = Box::pin(async {
            if is_of_this_process(&target) {
                self.start_in_memory(target, inherited).await
            } else {
                self.start(target, inherited).await
            }
        });
        let (store, server) = tokio::select! {
            biased;
            started = starting => started?,
            () = &mut shutdown => return Ok(code::OK),
        };
        let ready = Ready {
            event: "ready",
            listen: server.address().map(|it| it.to_string()),
            url: server.url(),
        };
        if let Err(failure) = output::print_json(&ready) {
            // Without its address nobody could use the server.
            let ended = server.run(std::future::ready(())).await;
            store.close().await;
            ended?;
            return Err(Failure::new(
                code::UNAVAILABLE,
                format!(
                    "{}: nobody knows where this server listens",
                    failure.with_closed_pipe_as_failure()
                ),
            ));
        }
        let reload = server.files().map(|files| {
            move || {
                let files = files.clone();
                async move { files.reload().await }
            }
        });
        let reloads = reload::at_hangups(hangups, RELOADED, reload);
        systemd::notify_ready();
        let shutdown = async move {
            shutdown.await;
            systemd::notify_stopping();
        };
        let served = server.run(shutdown).await;
        reloads.abort();
        store.close().await;
        served?;
        Ok(code::OK)
    }

    fn config(&self, inherited: Vec<Socket>) -> ServerConfig {
        let mut config = ServerConfig::default();
        let has_other = self.unix.is_some() || !inherited.is_empty();
        let listen = self.listen.clone();
        config.listen = listen.or_else(|| (!has_other).then(ServerConfig::default_listen));
        config.unix.clone_from(&self.unix);
        config.inherited = inherited;
        config.insecure_listen = self.insecure_listen;
        config.tls_cert.clone_from(&self.tls_cert);
        config.tls_key.clone_from(&self.tls_key);
        config.tls_client_ca.clone_from(&self.tls_client_ca);
        config.token_key.clone_from(&self.token_key);
        config.metrics_listen.clone_from(&self.metrics_listen);
        config.max_lease = self.max_lease;
        let (limits, given) = (&mut config.limits, &self.limits);
        for (limit, given) in [
            (&mut limits.connections, given.max_connections),
            (&mut limits.connections_per_address, given.max_per_address),
            (&mut limits.frame_bytes, given.max_frame),
            (&mut limits.operations, given.max_operations),
            (&mut limits.names, given.max_names),
            (&mut limits.names_per_session, given.max_names_per_session),
            (&mut limits.waiters, given.max_waiters),
            (&mut limits.waiters_per_name, given.max_waiters_per_name),
        ] {
            *limit = given.unwrap_or(*limit);
        }
        limits.login = given.login_timeout.unwrap_or(limits.login);
        limits.slow_reader = given.slow_reader.unwrap_or(limits.slow_reader);
        config
    }

    /// Checks everything that a start needs, and prints what it would serve.
    async fn check(&self, target: Target, inherited: Vec<Socket>) -> Outcome {
        let config = self.config(inherited);
        let clock = Arc::new(SystemClock);
        let store = if is_of_this_process(&target) {
            let (state, records) = self.memory(&target)?;
            LockServer::check(&config, Some(&state), clock).await?;
            records
        } else {
            self.refuse_memory_options(&target)?;
            LockServer::check(&config, None, clock).await?;
            target
        };
        let shown = store.masked_url();
        let store = drivers::open(store).await?;
        let health = store.backend().health().await;
        store.close().await;
        health?;
        output::print_json(&serde_json::json!({"event": "checked", "store": shown}))?;
        Ok(code::OK)
    }

    fn refuse_memory_options(&self, target: &Target) -> Outcome<()> {
        if self.init || self.state.is_some() {
            return Err(Failure::usage(format!(
                "--state and --init are for --backend memory: {} keeps its locks itself",
                target.masked_url()
            )));
        }
        Ok(())
    }

    /// Serves the locks and records of a store.
    async fn start(&self, target: Target, inherited: Vec<Socket>) -> Outcome<(Store, LockServer)> {
        self.refuse_memory_options(&target)?;
        let store = drivers::open(target).await?;
        let server = LockServer::start(self.config(inherited), store.clone()).await?;
        Ok((store, server))
    }

    /// The state of a server with locks in its memory, and the store of its records, which are
    /// never in memory alone: without another store they are in a file beside the state.
    fn memory(&self, target: &Target) -> Outcome<(StateOptions, Target)> {
        if target.reveal_url() != "memory:" {
            return Err(Failure::new(
                code::CONFIG,
                format!(
                    "a lock server has one memory, without a name and without options: use \
                     --backend memory: instead of {}",
                    target.masked_url()
                ),
            ));
        }
        let path = match &self.state {
            Some(path) => path.clone(),
            None => default_store::own_server_state()?,
        };
        let records = target.records().cloned();
        let records = records.unwrap_or_else(|| Target::sqlite(records_beside(&path)));
        let is_new = self.init;
        Ok((StateOptions { path, is_new }, records))
    }

    /// Serves the locks in the memory of this process.
    async fn start_in_memory(
        &self,
        target: Target,
        inherited: Vec<Socket>,
    ) -> Outcome<(Store, LockServer)> {
        let (state, records) = self.memory(&target)?;
        let store = drivers::open(records).await?;
        let (config, clock) = (self.config(inherited), Arc::new(SystemClock));
        let server = LockServer::start_in_memory(config, state, store.records(), clock).await?;
        Ok((store, server))
    }
}

fn records_beside(state: &Path) -> PathBuf {
    let mut file = state.as_os_str().to_owned();
    file.push(".records.db");
    file.into()
}
