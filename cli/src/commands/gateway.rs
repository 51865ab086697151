//! `distlock gateway`: one kick-out gateway node, tokens to log in with, and what an administrator asks of a running node.

use std::{io::Read as _, time::Duration};

use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand, parser::ValueSource};
use distlock::{Error, config::Config, threads::no_thread};
use distlock_gateway::{Certificates, Event, GatewayConfig, Uid, mint, mint_for_class};
use distlock_kickout::Class;
use serde_json::json;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{
        broadcast::{self, error::RecvError},
        oneshot,
    },
};

use super::gateway_admin::{Ban, Drain, Kick, Lookup, Nodes};
use crate::{
    context::{Context, Sharing, near_variable},
    exit::{Failure, Outcome, code},
    limits,
    output::{self, millis},
    values,
};

/// Run a gateway node, mint a login token, or ask a running node.
#[derive(Args, Debug)]
pub(crate) struct Gateway {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(Box<Node>),
    Token(Token),
    Lookup(Lookup),
    Kick(Kick),
    Ban(Ban),
    Drain(Drain),
    Nodes(Nodes),
}

impl Gateway {
    /// Whether it is a node, and not an order to one.
    pub(crate) const fn serves(&self) -> bool {
        matches!(self.action, Action::Run(_))
    }

    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        match self.action {
            Action::Run(node) => Box::pin(node.execute(context)).await,
            Action::Token(token) => token.execute(context),
            Action::Lookup(lookup) => Box::pin(lookup.execute(context)).await,
            Action::Kick(kick) => Box::pin(kick.execute(context)).await,
            Action::Ban(ban) => Box::pin(ban.execute(context)).await,
            Action::Drain(drain) => Box::pin(drain.execute(context)).await,
            Action::Nodes(nodes) => Box::pin(nodes.execute(context)).await,
        }
    }
}

/// Run one node.
///
/// Clients connect by WebSocket, and every account has one session over all nodes of the same
/// store. Settings come from the [gateway] table of the configuration file, overridden by
/// DISTLOCK_GATEWAY_ variables, overridden by flags. When it is ready it prints one JSON line on
/// standard output with the addresses it is bound to. TERM and INT end it in an orderly way; HUP
/// has certificates read again.
#[derive(Args, Debug)]
#[command(after_help = RUN_EXAMPLES)]
struct Node {
    #[command(flatten)]
    settings: Settings,
    /// Print every transition (granted, kicked, closed, ..) as one JSON line on standard output
    #[arg(long)]
    events: bool,
    /// End when standard input ends, as it does when the process that started this one dies
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

const RUN_EXAMPLES: &str = "\
Secrets:
  token_key, token_key_also, admin_token, send_token, profile_url,
  profile_token, may_send_url and may_send_token are read from the configuration
  file, or from DISTLOCK_GATEWAY_TOKEN_KEY and so on: flags can be seen by
  everybody on the host

Examples:
  export DISTLOCK_GATEWAY_TOKEN_KEY=$(head -c 32 /dev/urandom | base64)
  distlock gateway run --node n1
  distlock gateway run --node n2 --listen 127.0.0.1:0 \\
      --peer-listen 127.0.0.1:0 --admin-listen 127.0.0.1:0
  distlock gateway run --config /etc/distlock.toml";

/// Mint a login token, for trying things out.
///
/// The key is `token_key` of the configuration file's [gateway] table, or DISTLOCK_GATEWAY_TOKEN_KEY.
#[derive(Args, Debug)]
#[command(after_help = TOKEN_EXAMPLES)]
struct Token {
    /// The account
    #[arg(long, value_name = "UID")]
    uid: String,
    /// How long the token is valid, up to 24h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "1h",
        value_parser = values::duration,
        allow_hyphen_values = true,
    )]
    ttl: Duration,

    /// Class of the device, whatever its client says (the client's word unless given)
    #[arg(long)]
    class: Option<String>,
}

const TOKEN_EXAMPLES: &str = "\
Examples:
  distlock gateway token --uid alice
  distlock gateway token --uid alice --ttl 10m --json";

impl Node {
    async fn execute(self: Box<Self>, context: &Context) -> Outcome {
        let mut settings = settings(context)?;
        for (key, value, place) in &self.settings.given {
            if SECRET_ADDRESSES.contains(key) && place.starts_with("--") {
                output::tell(format_args!(
                    "warning: {place} can be seen by everybody on the host, and may hold a key: \
                     set {} or the configuration file",
                    variable(key)
                ));
            }
            settings.set(key, value, place)?;
        }
        let config = settings.config.clone();
        config.validate().map_err(|error| settings.blame(error))?;
        warn_about_unknown_variables();
        let files = limits::raise_open_files();
        if usize::try_from(files).is_ok_and(|files| files < config.max_connections) {
            tracing::warn!(
                max_connections = config.max_connections,
                files,
                "every connection is an open file, and fewer are allowed (ulimit -n)"
            );
        }
        let has_certificates = config.tls_cert.is_some() || config.peer_tls_ca.is_some();
        // Without certificates HUP ends the node, as it ends other programs.
        let hangups = has_certificates
            .then(|| signal(SignalKind::hangup()))
            .transpose()?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let parent = self.exit_with_stdin.then(stdin_ends).transpose()?;
        let mut shutdown = Box::pin(async move {
            let parent = async {
                match parent {
                    Some(ended) => drop(ended.await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = parent => {}
            }
        });
        distlock_gateway::install_metrics();
        let target = context.target(Sharing::Optional)?;
        if target.scheme().as_deref() == Some("memory") {
            output::tell(
                "warning: backend memory: is this process's alone: no other node knows the sessions of this one",
            );
        }
        let starting = Box::pin(async {
            let store = distlock::open(target).await?;
            let gateway = distlock_gateway::Gateway::start(config, store.clone())
                .await
                .map_err(|error| settings.blame(error))?;
            Outcome::Ok((store, gateway))
        });
        let (store, gateway) = tokio::select! {
            biased;
            started = starting => started?,
            // It may be waiting for the end of a predecessor's lease.
            () = &mut shutdown => return Ok(code::OK),
        };
        if let Some(token) = gateway.made_admin_token() {
            tell_admin_token(token.expose(), &gateway.ready().page);
        }
        let events = gateway.events();
        if let Err(failure) = output::json(gateway.ready()) {
            // Nobody learns that it runs, nor where.
            let ended = gateway.run(std::future::ready(())).await;
            store.close().await;
            ended?;
            return Err(Failure::new(
                code::UNAVAILABLE,
                format!("{}: nobody knows where this node listens", failure.unread()),
            ));
        }
        let printer = self.events.then(|| print(events)).transpose()?;
        let certificates = gateway.certificates();
        let reloads = hangups.map(|hangups| tokio::spawn(reload(certificates, hangups)));
        let served = gateway.run(shutdown).await;
        if let Some(reloads) = reloads {
            reloads.abort();
        }
        served?;
        store.close().await;
        if let Some(printed) = printer {
            // Not for ever: perhaps nobody reads.
            drop(tokio::time::timeout(LAST_EVENTS, printed).await);
        }
        Ok(code::OK)
    }
}

/// A token that was made for this run is told to whoever reads the node's output, as development
/// servers do. One of the configuration is never shown.
fn tell_admin_token(token: &str, page: &str) {
    output::tell(format_args!(
        "no admin_token is set; for this run it is {token}\n\
         \x20 page:     {page}#token={token}\n\
         \x20 commands: export DISTLOCK_GATEWAY_ADMIN_TOKEN={token}"
    ));
}

/// Reads the certificates again at each HUP.
async fn reload(certificates: Certificates, mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        match certificates.reload() {
            Ok(()) => output::tell("certificates were read again"),
            Err(error) => tracing::error!(%error, "certificates stay as they were"),
        }
    }
}

/// How long a node stays to have its last events printed.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// Prints events until the node is gone, then ends the receiver that it gives. On a thread of its own: a pipe that nobody
/// reads must hold up the printing and nothing else.
fn print(mut events: broadcast::Receiver<Event>) -> distlock::Result<oneshot::Receiver<()>> {
    let (printing, printed) = oneshot::channel();
    std::thread::Builder::new()
        .name("events".to_owned())
        .spawn(move || {
            let _printing: oneshot::Sender<()> = printing;
            loop {
                match events.blocking_recv() {
                    // Whoever read our output may go away; the node serves on.
                    Ok(event) => drop(output::json(&event)),
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "events were not printed: the output is too slow");
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        })
        .map_err(no_thread)?;
    Ok(printed)
}

impl Token {
    fn execute(self, context: &Context) -> Outcome {
        let settings = settings(context)?;
        let key = settings.config.key().map_err(|it| settings.blame(it))?;
        let uid = Uid::new(&self.uid)?;
        let token = match &self.class {
            Some(class) => mint_for_class(&key, &uid, &Class::new(class)?, self.ttl)?,
            None => mint(&key, &uid, self.ttl)?,
        };
        if context.json() {
            output::json(
                &json!({"uid": self.uid, "token": token, "expires_in_ms": millis(self.ttl)}),
            )?;
        } else {
            output::line(token)?;
        }
        Ok(code::OK)
    }
}

/// The settings so far, and where they were given.
struct Placed<'a> {
    config: GatewayConfig,
    file: &'a Config,
    /// What replaced the file's: keys, and the flag or variable.
    replaced: Vec<(&'static str, String)>,
}

impl Placed<'_> {
    fn set(&mut self, key: &'static str, value: &str, place: &str) -> Outcome<()> {
        self.replaced.push((key, place.to_owned()));
        let done = self.config.set(key, value);
        Ok(done.map_err(|error| self.blame(error))?)
    }

    /// The error with the place of the key that it is about.
    fn blame(&self, error: Error) -> Error {
        let Some(key) = GatewayConfig::key_of(&error) else {
            return error;
        };
        let mut replaced = self.replaced.iter().rev();
        let place = match replaced.find(|(replaced, _)| *replaced == key) {
            Some((_, place)) => place.clone(),
            None => match self.file.gateway_origin(key) {
                Some(origin) => origin.to_string(),
                None => return error,
            },
        };
        Error::new(error.kind(), format!("{place}: {error}"))
    }
}

/// The `[gateway]` table with the secrets of the environment.
fn settings(context: &Context) -> Outcome<Placed<'_>> {
    let file = context.config()?;
    let mut settings = Placed {
        config: file.gateway()?.unwrap_or_default(),
        file,
        replaced: Vec::new(),
    };
    for key in SECRETS {
        let variable = variable(key);
        let Some(value) = std::env::var_os(&variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        let value = value
            .into_string()
            .map_err(|_| Failure::new(code::CONFIG, format!("{variable} is not UTF-8")))?;
        settings.set(key, &value, &variable)?;
    }
    Ok(settings)
}

/// The `[gateway]` table with the secrets of the environment.
pub(crate) fn configured(context: &Context) -> Outcome<GatewayConfig> {
    Ok(settings(context)?.config)
}

/// The bearer token of the admin HTTP, from the environment or the configuration file.
pub(crate) fn admin_token(context: &Context) -> Outcome<Option<String>> {
    let settings = settings(context)?;
    let token = settings.config.admin_bearer();
    let token = token.map_err(|error| settings.blame(error))?;
    Ok(token.map(str::to_owned))
}

/// A misspelled variable would leave its setting at the default without a word.
fn warn_about_unknown_variables() {
    let known: Vec<_> = GatewayConfig::KEYS
        .iter()
        .map(|(key, _)| variable(key))
        .chain(["DISTLOCK_GATEWAY_ADMIN".to_owned()])
        .collect();
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("DISTLOCK_GATEWAY_") && !known.iter().any(|known| *known == name) {
            let known: Vec<_> = known.iter().map(String::as_str).collect();
            let near = near_variable(&name, &known);
            let near = near.map(|near| format!(": did you mean {near}?"));
            output::tell(format_args!(
                "warning: {} means nothing here{}",
                name.escape_debug(),
                near.unwrap_or_default()
            ));
        }
    }
}

/// Resolves when standard input ends. On a thread of its own: a blocked read cannot be cancelled.
fn stdin_ends() -> distlock::Result<oneshot::Receiver<()>> {
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

/// Never as flags: those can be seen by everybody on the host.
const SECRETS: [&str; 6] = [
    "token_key",
    "token_key_also",
    "admin_token",
    "send_token",
    "profile_token",
    "may_send_token",
];

/// Addresses that may hold a key. Their flags are of before and go with the next version.
const SECRET_ADDRESSES: [&str; 2] = ["profile_url", "may_send_url"];

fn variable(key: &str) -> String {
    format!("DISTLOCK_GATEWAY_{}", key.to_uppercase())
}

/// One flag and one variable per key of the `[gateway]` table, as the gateway itself lists them.
#[derive(Debug, Default)]
struct Settings {
    /// Key, value, and the flag or variable.
    given: Vec<(&'static str, String, String)>,
}

impl Args for Settings {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flags = GatewayConfig::KEYS
            .iter()
            .filter(|(key, _)| !SECRETS.contains(key))
            .map(|(key, help)| {
                let default = GatewayConfig::default_of(key);
                let default = default.map(|default| format!(" [default: {default}]"));
                let flag = Arg::new(*key)
                    .long(key.replace('_', "-"))
                    .env(variable(key))
                    .hide_env_values(true)
                    .hide(SECRET_ADDRESSES.contains(key))
                    .value_name("VALUE")
                    .help(format!("{help}{}", default.unwrap_or_default()));
                if GatewayConfig::SWITCHES.contains(key) {
                    return flag
                        .value_name("true|false")
                        .num_args(0..=1)
                        .require_equals(true)
                        .default_missing_value("true");
                }
                flag
            });
        command.args(flags)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given = GatewayConfig::KEYS
            .iter()
            .filter(|(key, _)| !SECRETS.contains(key))
            .filter_map(|(key, _)| {
                let value = matches.get_one::<String>(key)?;
                let place = match matches.value_source(key) {
                    // As with every other variable, an empty one names nothing.
                    Some(ValueSource::EnvVariable) if value.is_empty() => return None,
                    Some(ValueSource::EnvVariable) => variable(key),
                    _ => format!("--{}", key.replace('_', "-")),
                };
                Some((*key, value.clone(), place))
            })
            .collect();
        Ok(())
    }
}
