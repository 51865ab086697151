//! `distlock gateway run`: runs a gateway node until a signal ends it.

use std::{io::Read as _, time::Duration};

use clap::Args;
use distlock::backend::threads::no_thread;
use distlock_gateway::Event;
use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{
        broadcast::{self, error::RecvError},
        oneshot,
    },
};

use super::settings::{self, Flags, Settings};
use crate::{
    context::{Context, Sharing, is_of_this_process},
    drivers,
    exit::{Failure, Outcome, code},
    group::Signals,
    limits, output,
    reload::{self, Reloaded},
    systemd,
};

const RELOADED: Reloaded = Reloaded {
    server: "node",
    file: "certificate, login key or token",
    files: "certificates, keys, secrets and tokens",
};

/// Run one node.
///
/// Clients connect by WebSocket, and every account has one session over all nodes of the same
/// store (with --records, of the same two stores). Settings come from the [gateway] table of the
/// configuration file, overridden by DISTLOCK_GATEWAY_ variables, overridden by flags. When it is
/// ready it prints one JSON line on standard output with the addresses it is bound to. HUP has
/// certificates, the public keys of login tokens, the tokens of administrators and the secrets of
/// web hooks read again. TERM, INT and every other signal that would end it, end it in an orderly
/// way.
#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub(super) struct RunNode {
    #[command(flatten)]
    settings: Flags,
    /// Print every transition (granted, kicked, closed, ..) as one JSON line on standard output
    #[arg(long)]
    events: bool,
    /// End when standard input ends, as it does when the process that started this one dies
    #[arg(long)]
    exit_with_stdin: bool,
}

const RUN_EXAMPLES: &str = "\
Secrets:
  token_key, token_key_also, admin_token, send_token, login_jwks_url,
  profile_url, profile_token, may_send_url, may_send_token, save_url and
  save_token are read from the configuration file, or from
  DISTLOCK_GATEWAY_TOKEN_KEY and so on: flags can be seen by everybody on the
  host

Examples:
  export DISTLOCK_GATEWAY_TOKEN_KEY=$(head -c 32 /dev/urandom | base64)
  distlock gateway run --node n1
  distlock gateway run --node n2 --listen 127.0.0.1:0 \\
      --peer-listen 127.0.0.1:0 --admin-listen 127.0.0.1:0
  distlock gateway run --config /etc/distlock.toml";

impl RunNode {
    pub(super) async fn execute(self: Box<Self>, context: &Context) -> Outcome {
        let mut settings = Settings::read(context)?;
        settings.apply_flags(&self.settings)?;
        settings::warn_about_unknown_variables();
        let config = settings.config.clone();
        allow_connections(config.max_connections);
        // HUP is caught even where it was ignored at the start, because `nohup` only wants the node
        // to outlive its terminal.
        let hangups = signal(SignalKind::hangup())?;
        let mut shutdown = Box::pin(self.shutdown_signal()?);
        distlock_gateway::install_metrics();
        let target = context.target(Sharing::Optional)?;
        if [Some(&target), target.records()]
            .into_iter()
            .flatten()
            .any(is_of_this_process)
        {
            output::print_message(
                "warning: backend memory: is this process's alone: \
                 no other node knows the sessions of this one",
            );
        }
        let starting = Box::pin(async {
            let store = drivers::open(target).await?;
            let gateway = distlock_gateway::Gateway::start(config, store.clone())
                .await
                .map_err(|error| settings.with_origin(error))?;
            Outcome::Ok((store, gateway))
        });
        let (store, gateway) = tokio::select! {
            biased;
            started = starting => started?,
            // The start may wait until the lease of an earlier run of this node ends.
            () = &mut shutdown => return Ok(code::OK),
        };
        if let Some(token) = gateway.made_admin_token() {
            print_admin_token(token.expose(), &gateway.ready().page);
        }
        let events = gateway.events();
        if let Err(failure) = output::print_json(gateway.ready()) {
            // Without its addresses nobody could use the node, so the node ends.
            let ended = gateway.run(std::future::ready(())).await;
            store.close().await;
            ended?;
            return Err(Failure::new(
                code::UNAVAILABLE,
                format!(
                    "{}: nobody knows where this node listens",
                    failure.with_closed_pipe_as_failure()
                ),
            ));
        }
        let printer = self.events.then(|| print_events(events)).transpose()?;
        let reload = gateway.reloader().map(|reloader| {
            move || {
                let reloader = reloader.clone();
                async move { reloader.reload().await }
            }
        });
        let reloads = reload::at_hangups(hangups, RELOADED, reload);
        systemd::notify_ready();
        let served = gateway.run(shutdown).await;
        systemd::notify_stopping();
        reloads.abort();
        served?;
        store.close().await;
        if let Some(printed) = printer {
            // The wait is bounded, because the reader of a full pipe may never read again.
            drop(tokio::time::timeout(LAST_EVENTS_LIMIT, printed).await);
        }
        Ok(code::OK)
    }

    /// Resolves at a signal that would end this process, except HUP, and if `--exit-with-stdin` is
    /// given at the end of standard input.
    fn shutdown_signal(&self) -> Outcome<impl Future<Output = ()> + use<>> {
        let mut signals = Signals::catch()?;
        let parent = self.exit_with_stdin.then(watch_end_of_stdin).transpose()?;
        Ok(async move {
            let parent = async {
                match parent {
                    Some(ended) => drop(ended.await),
                    None => std::future::pending().await,
                }
            };
            let signalled = async { while signals.next_ending().await == Signal::HUP {} };
            tokio::select! {
                () = signalled => {}
                () = parent => {}
            }
        })
    }
}

/// Raises the limit of open files for this number of connections, and warns if it stays too low.
/// Each connection is an open file.
fn allow_connections(max_connections: usize) {
    let files = limits::raise_open_files();
    if usize::try_from(files).is_ok_and(|files| files < max_connections) {
        tracing::warn!(
            max_connections,
            files,
            "the limit of open files (ulimit -n) is below max_connections: raise it"
        );
    }
}

/// Prints the admin token that was generated for this run. A token of the configuration is never
/// printed.
fn print_admin_token(token: &str, page: &str) {
    output::print_message(format_args!(
        "no admin_token is set; for this run it is {token}\n\
         \x20 page:     {page}#token={token}\n\
         \x20 commands: export DISTLOCK_GATEWAY_ADMIN_TOKEN={token}"
    ));
}

/// The longest wait, after the node has ended, until the last events are printed.
const LAST_EVENTS_LIMIT: Duration = Duration::from_secs(2);

/// Prints events until the node has ended. The returned receiver resolves after the last event. A
/// separate thread prints, so that a pipe without a reader blocks only the printing.
fn print_events(mut events: broadcast::Receiver<Event>) -> distlock::Result<oneshot::Receiver<()>> {
    let (printing, printed) = oneshot::channel();
    std::thread::Builder::new()
        .name("events".to_owned())
        .spawn(move || {
            let _printing: oneshot::Sender<()> = printing;
            let mut lost = 0;
            loop {
                match events.blocking_recv() {
                    Ok(event) => {
                        // A failed write may have left a part of a line, which the line end
                        // separates from this event.
                        let gap = if lost > 0 { "\n" } else { "" };
                        let printed = serde_json::to_string(&event)
                            .map_err(|error| std::io::Error::from(error).into())
                            .and_then(|event| output::print_line(format_args!("{gap}{event}")));
                        note_printed(&mut lost, printed);
                    }
                    Err(RecvError::Lagged(missed)) => {
                        distlock_gateway::count_lost_events(missed);
                        tracing::warn!(missed, "events were not printed: the output is too slow");
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        })
        .map_err(no_thread)?;
    Ok(printed)
}

/// Counts an event that could not be printed, and tells once that events are lost and once that
/// they are printed again. The disk of the output may be full, or its reader may have ended: the
/// node still runs. `lost` is the number of events since the last one that was printed.
fn note_printed(lost: &mut u64, printed: Outcome<()>) {
    match printed {
        Ok(()) if *lost > 0 => {
            tracing::warn!(lost = *lost, "events are printed again");
            *lost = 0;
        }
        Ok(()) => {}
        Err(failure) => {
            distlock_gateway::count_lost_events(1);
            if *lost == 0 {
                let error = failure.with_closed_pipe_as_failure();
                tracing::warn!(%error, "events are lost, because they cannot be printed");
            }
            *lost += 1;
        }
    }
}

/// Returns a receiver that resolves when standard input ends. A separate thread reads, because a
/// blocked read cannot be cancelled.
fn watch_end_of_stdin() -> distlock::Result<oneshot::Receiver<()>> {
    let (tell, ended) = oneshot::channel();
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut byte = [0; 64];
            let mut input = std::io::stdin().lock();
            while matches!(input.read(&mut byte), Ok(read) if read > 0) {}
            let _ = tell.send(());
        })
        .map_err(no_thread)?;
    Ok(ended)
}
