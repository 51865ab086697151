//! `distlock serve`: serves a store to other programs until a signal ends it.

use std::time::Duration;

use clap::Args;
use distlock_server::{LockServer, ServerConfig};
use rustix::process::Signal;
use serde::Serialize;

use crate::{
    context::{Context, Sharing},
    drivers,
    exit::{Failure, Outcome, code},
    group::Signals,
    limits, output, values,
};

/// Serve a store to programs that do not open it themselves.
///
/// Clients name this server as distlock://HOST:PORT. The locks are in the store of --backend, so
/// they outlive this server, and several servers of one store are interchangeable. When it is
/// ready it prints one JSON line on standard output with the address it is bound to. TERM, INT and
/// every other signal that would end it, end it in an orderly way.
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
}

const EXAMPLES: &str = "\
Examples:
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
        let mut config = ServerConfig::default();
        config.listen = self.listen;
        config.max_lease = self.max_lease;
        // Each connection is an open file.
        limits::raise_open_files();
        let mut signals = Signals::catch()?;
        let shutdown = async move { while signals.next_ending().await == Signal::HUP {} };
        let mut shutdown = Box::pin(shutdown);
        let target = context.target(Sharing::Optional)?;
        let starting = Box::pin(async {
            let store = drivers::open(target).await?;
            let server = LockServer::start(config, store.clone()).await?;
            Outcome::Ok((store, server))
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
        server.run(shutdown).await?;
        store.close().await;
        Ok(code::OK)
    }
}
