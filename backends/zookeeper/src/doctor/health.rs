//! What the ensemble is, whether it serves, and which of its settings weaken a promise.

use std::{io, sync::Arc, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Health, Moment, Result, Verdict};
use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use zookeeper_client::{self as zk, Permission};

use super::limits;
use crate::{
    config::{AclPolicy, ZooKeeperConfig},
    ensemble::Ensemble,
    error::{Access, meaning},
    session::Session,
};

/// How long one server may take to say how it is.
const PROBE: Duration = Duration::from_secs(1);

/// Asks every server how it is, and looks at what our promises rest on.
pub(crate) async fn health(
    ensemble: &Arc<Ensemble>,
    session: &Arc<Session>,
    until: Moment,
) -> Result<Health> {
    session.prove(session.clock().now(), until).await?;
    let statuses = statuses(&ensemble.config, session.clock()).await;
    let version = statuses
        .iter()
        .find_map(|(_, status)| status.version.clone())
        .unwrap_or_else(|| "version unknown".into());
    let mut health = Health::new(format!("ZooKeeper {version}"));
    health.epoch = Some(session.epoch());
    for (server, status) in &statuses {
        let verdict = match status.state {
            State::Serving(_) => Verdict::Pass,
            State::Silent => Verdict::Unknown,
            _ => Verdict::Warn,
        };
        health.found(
            "server",
            verdict,
            format!("{server}: {}", status.state.words()),
        );
    }
    members(session, until, statuses.len(), &mut health).await?;
    timeouts(ensemble, session, &mut health);
    let serving = statuses
        .iter()
        .filter(|(_, status)| matches!(status.state, State::Serving(_) | State::Silent));
    let serving = serving.map(|(server, _)| *server);
    limits::examine(ensemble, session.timeout(), serving, &mut health).await;
    access(ensemble, session, until, &mut health).await?;
    let config = &ensemble.config;
    config.password_rule().examine(config.hosts(), &mut health);
    Ok(health)
}

/// Adds to an error of connecting how each server answers.
pub(crate) async fn explain(config: &ZooKeeperConfig, clock: &dyn Clock, error: Error) -> Error {
    if error.kind() != ErrorKind::Unavailable {
        return error;
    }
    let states: Vec<_> = statuses(config, clock)
        .await
        .into_iter()
        .map(|(server, status)| format!("{server}: {}", status.state.words()))
        .collect();
    Error::new(
        ErrorKind::Unavailable,
        format!("no session could be opened ({})", states.join("; ")),
    )
    .on("zookeeper")
    .caused_by(error.message().to_owned())
}

struct Status {
    state: State,
    version: Option<String>,
}

enum State {
    Unreachable(String),
    /// It accepts connections and does not tell.
    Silent,
    /// It accepts connections and closes them.
    Closed,
    NoQuorum,
    ReadOnly,
    /// As leader, follower, observer or alone.
    Serving(String),
}

impl State {
    fn words(&self) -> String {
        match self {
            Self::Unreachable(why) => why.clone(),
            Self::Silent => "connected, but it does not answer `srvr`".into(),
            Self::Closed => {
                "it closes the connection at once: it has as many from this address as it may (maxClientCnxns), or wants TLS"
                    .into()
            }
            Self::NoQuorum => "it does not serve: no quorum".into(),
            Self::ReadOnly => "it serves reads only: no quorum".into(),
            Self::Serving(mode) => format!("serves as {mode}"),
        }
    }
}

/// Asks all servers at the same time.
async fn statuses<'a>(config: &'a ZooKeeperConfig, clock: &dyn Clock) -> Vec<(&'a String, Status)> {
    let asked = config
        .servers
        .iter()
        .map(async |server| (server, status(config, clock, server).await));
    join_all(asked).await
}

/// Asks one server with the four-letter word that is allowed by default.
async fn status(config: &ZooKeeperConfig, clock: &dyn Clock, server: &str) -> Status {
    let unreachable = |why: String| Status {
        state: State::Unreachable(why),
        version: None,
    };
    let silent = Status {
        state: State::Silent,
        version: None,
    };
    let asked = async {
        let mut answer = String::new();
        match TcpStream::connect(server).await {
            Ok(_) if config.tls.is_some() => return Ok(None),
            Ok(mut stream) => {
                if stream.write_all(b"srvr").await.is_ok() {
                    let _ = stream.read_to_string(&mut answer).await;
                }
            }
            // Closed before the system said that it was open.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(Some(answer))
    };
    let answer = tokio::select! {
        biased;
        answer = asked => answer,
        () = clock.sleep(PROBE) => Err("no answer within a second".into()),
    };
    match answer {
        Err(why) => unreachable(why),
        Ok(None) => silent,
        Ok(Some(answer)) if answer.is_empty() => Status {
            state: State::Closed,
            version: None,
        },
        Ok(Some(answer)) if answer.contains("not currently serving") => Status {
            state: State::NoQuorum,
            version: None,
        },
        Ok(Some(answer)) => match line(&answer, "Mode: ") {
            None => silent,
            Some(mode) => Status {
                state: match mode {
                    "read-only" => State::ReadOnly,
                    mode => State::Serving(mode.to_owned()),
                },
                version: line(&answer, "Zookeeper version: ")
                    .and_then(|version| version.split(['-', ',']).next())
                    .map(str::to_owned),
            },
        },
    }
}

fn line<'a>(answer: &'a str, start: &str) -> Option<&'a str> {
    answer
        .lines()
        .find_map(|line| line.strip_prefix(start))
        .map(str::trim)
}

/// How many servers vote.
async fn members(
    session: &Arc<Session>,
    until: Moment,
    named: usize,
    health: &mut Health,
) -> Result<()> {
    let client = session.client()?;
    let config = match session
        .answer(Access::Read, until, client.get_config())
        .await?
    {
        Ok((config, _)) => String::from_utf8_lossy(&config).into_owned(),
        Err(error) => {
            health.found(
                "ensemble",
                Verdict::Unknown,
                format!("cannot be read: {error}"),
            );
            return Ok(());
        }
    };
    let voters = config
        .lines()
        .filter(|line| line.starts_with("server.") && !line.contains(":observer"))
        .count();
    let (verdict, detail) = match voters {
        0 | 1 => (
            Verdict::Warn,
            "one server alone: when it stops, no lock can be taken or released; run three or five"
                .to_owned(),
        ),
        even if even % 2 == 0 => (
            Verdict::Warn,
            format!(
                "{even} voting servers bear the loss of no more than {}: run an odd number",
                even / 2 - 1
            ),
        ),
        voters if voters > named => (
            Verdict::Warn,
            format!("{voters} voting servers, of which the URL names {named}: name all of them"),
        ),
        voters => (
            Verdict::Pass,
            format!(
                "{voters} voting servers bear the loss of {}",
                (voters - 1) / 2
            ),
        ),
    };
    health.found("ensemble", verdict, detail);
    Ok(())
}

fn timeouts(ensemble: &Arc<Ensemble>, session: &Session, health: &mut Health) {
    let (asked, granted) = (ensemble.config.session_timeout, session.timeout());
    let (verdict, detail) = if asked == granted {
        (Verdict::Pass, format!("{granted:?}, as asked for"))
    } else {
        (
            Verdict::Warn,
            format!(
                "{granted:?} instead of {asked:?}: the ensemble allows 2 to 20 ticks unless minSessionTimeout and maxSessionTimeout say otherwise"
            ),
        )
    };
    health.found("session timeout", verdict, detail);
}

/// Who may touch our tree.
async fn access(
    ensemble: &Arc<Ensemble>,
    session: &Arc<Session>,
    until: Moment,
    health: &mut Health,
) -> Result<()> {
    let client = session.client()?;
    let acl = match session
        .answer(Access::Read, until, client.get_acl(&session.layout().locks))
        .await?
    {
        Ok((acl, _)) => acl,
        Err(zk::Error::NoAuth) => {
            health.found(
                "access list",
                Verdict::Unknown,
                "may not be read with these credentials",
            );
            return Ok(());
        }
        Err(error) => return Err(meaning(error, Access::Read)),
    };
    let world = acl.iter().any(|entry| {
        entry.scheme() == "world"
            && (entry.permission().has(Permission::CREATE)
                || entry.permission().has(Permission::DELETE))
    });
    let config = &ensemble.config;
    let (verdict, detail) = match (world, config.acl) {
        (false, _) => (Verdict::Pass, "others may not touch the locks"),
        (true, AclPolicy::Open) => (
            Verdict::Warn,
            "everybody who can connect may remove locks: give credentials (`zookeeper://user:password@..`)",
        ),
        (true, AclPolicy::Creator) => (
            Verdict::Warn,
            "the tree was made by somebody without credentials, so everybody may remove locks: use another root, or set its access list",
        ),
    };
    health.found("access list", verdict, detail);
    Ok(())
}
