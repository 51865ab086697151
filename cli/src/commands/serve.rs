//! `distlock serve`: serves a store, or locks in its own memory, to other programs until a signal
//! ends it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use distlock::{Store, SystemClock, Target};
use distlock_server::{LockServer, ServerConfig, StateOptions};
use rustix::process::Signal;
use serde::Serialize;

use crate::{
    context::{Context, Sharing, is_of_this_process},
    default_store, drivers,
    exit::{Failure, Outcome, code},
    group::Signals,
    limits, output, values,
};

/// Serve a store to programs that do not open it themselves.
///
/// Clients name this server as distlock://HOST:PORT. With --backend memory: the locks are in the
/// memory of this server: a stop in order loses none, and after a crash holders that renew have
/// theirs again. Other stores keep their locks themselves, and several servers of one store are
/// interchangeable. When it is ready it prints one JSON line on standard output with the address it
/// is bound to. TERM, INT and every other signal that would end it, end it in an orderly way.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The address to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: String,
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
}

const EXAMPLES: &str = "\
Examples:
  distlock serve --backend memory: --init
  distlock serve --backend redis://locks.example
  distlock run --backend distlock://127.0.0.1:7420 nightly -- ./backup.sh";

/// The line that tells where the server listens.
#[derive(Serialize)]
struct Ready {
    event: &'static str,
    listen: String,
    url: String,
}

impl Serve {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        // Each connection is an open file.
        limits::raise_open_files();
        let mut signals = Signals::catch()?;
        let shutdown = async move { while signals.next_ending().await == Signal::HUP {} };
        let mut shutdown = Box::pin(shutdown);
        let target = context.target(Sharing::Optional)?;
        let starting = Box::pin(async {
            if is_of_this_process(&target) {
                self.start_in_memory(target).await
            } else {
                self.start(target).await
            }
        });
        let (store, server) = tokio::select! {
            biased;
            started = starting => started?,
            () = &mut shutdown => return Ok(code::OK),
        };
        let address = server.address().to_string();
        let ready = Ready {
            event: "ready",
            url: format!("distlock://{address}"),
            listen: address,
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
        let served = server.run(shutdown).await;
        store.close().await;
        served?;
        Ok(code::OK)
    }

    fn config(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        config.listen.clone_from(&self.listen);
        config.max_lease = self.max_lease;
        config
    }

    /// Serves the locks and records of a store.
    async fn start(&self, target: Target) -> Outcome<(Store, LockServer)> {
        if self.init || self.state.is_some() {
            return Err(Failure::usage(format!(
                "--state and --init are for --backend memory: {} keeps its locks itself",
                target.masked_url()
            )));
        }
        let store = drivers::open(target).await?;
        let server = LockServer::start(self.config(), store.clone()).await?;
        Ok((store, server))
    }

    /// Serves locks in the memory of this process. The records are never there alone: without
    /// another store for them they are in a file beside the state.
    async fn start_in_memory(&self, target: Target) -> Outcome<(Store, LockServer)> {
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
        let records = target.records().cloned().unwrap_or_else(|| {
            let mut file = path.clone().into_os_string();
            file.push(".records.db");
            Target::sqlite(file)
        });
        let store = drivers::open(records).await?;
        let state = StateOptions {
            path,
            is_new: self.init,
        };
        let clock = Arc::new(SystemClock);
        let server =
            LockServer::start_in_memory(self.config(), state, store.records(), clock).await?;
        Ok((store, server))
    }
}
