//! The doctor's findings: the servers, the ensemble, and the settings that weaken a promise.

use std::sync::Arc;

use distlock_core::{Health, Moment, Result, Verdict};
use zookeeper_client::{self as zk, Permission};

use super::{
    limits,
    servers::{ServerState, ask_all_servers},
};
use crate::{
    config::AclPolicy,
    error::{Access, translate},
    session::{Session, StoreContext},
};

/// Asks every server for its state, and checks the settings that the guarantees depend on.
pub(crate) async fn check_health(session: &Arc<Session>, until: Moment) -> Result<Health> {
    let context = session.context();
    session
        .ensure_committed_since(session.clock().now(), until)
        .await?;
    let statuses = ask_all_servers(&context.config, session.clock()).await;
    let version = statuses
        .iter()
        .find_map(|(_, status)| status.version.clone())
        .unwrap_or_else(|| "version unknown".into());
    let mut health = Health::new(format!("ZooKeeper {version}"));
    health.epoch = Some(session.epoch());
    for (server, status) in &statuses {
        let verdict = match status.state {
            ServerState::Serving(_) => Verdict::Pass,
            ServerState::Silent => Verdict::Unknown,
            _ => Verdict::Warn,
        };
        health.found(
            "server",
            verdict,
            format!("{server}: {}", status.state.describe()),
        );
    }
    check_voters(session, until, statuses.len(), &mut health).await?;
    check_session_timeout(context, session, &mut health);
    let serving = statuses.iter().filter(|(_, status)| {
        matches!(status.state, ServerState::Serving(_) | ServerState::Silent)
    });
    let serving = serving.map(|(server, _)| *server);
    limits::check_limits(context, session.timeout(), serving, &mut health).await;
    check_access_list(session, until, &mut health).await?;
    let config = &context.config;
    config.password_rule().examine(config.hosts(), &mut health);
    Ok(health)
}

/// Checks the number of voting servers. `named` is the number of servers in the configuration.
async fn check_voters(
    session: &Arc<Session>,
    until: Moment,
    named: usize,
    health: &mut Health,
) -> Result<()> {
    let client = session.client()?;
    let config = match session
        .await_answer(Access::Read, until, client.get_config())
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
                "{even} voting servers tolerate the loss of only {}: run an odd number",
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
                "{voters} voting servers tolerate the loss of {}",
                (voters - 1) / 2
            ),
        ),
    };
    health.found("ensemble", verdict, detail);
    Ok(())
}

/// Checks whether the ensemble granted the requested session timeout.
fn check_session_timeout(context: &StoreContext, session: &Session, health: &mut Health) {
    let (asked, granted) = (context.config.session_timeout, session.timeout());
    let (verdict, detail) = if asked == granted {
        (Verdict::Pass, format!("{granted:?}, as asked for"))
    } else {
        (
            Verdict::Warn,
            format!(
                "{granted:?} instead of {asked:?}: the ensemble allows 2 to 20 ticks unless \
                 minSessionTimeout and maxSessionTimeout say otherwise"
            ),
        )
    };
    health.found("session timeout", verdict, detail);
}

/// Checks which clients may change the tree.
async fn check_access_list(
    session: &Arc<Session>,
    until: Moment,
    health: &mut Health,
) -> Result<()> {
    let client = session.client()?;
    let acl = match session
        .await_answer(Access::Read, until, client.get_acl(&session.layout().locks))
        .await?
    {
        Ok((acl, _)) => acl,
        Err(zk::Error::NoAuth) => {
            health.found(
                "access list",
                Verdict::Unknown,
                "these credentials may not read it",
            );
            return Ok(());
        }
        Err(error) => return Err(translate(error, Access::Read)),
    };
    let world = acl.iter().any(|entry| {
        entry.scheme() == "world"
            && (entry.permission().has(Permission::CREATE)
                || entry.permission().has(Permission::DELETE))
    });
    let config = &session.context().config;
    let (verdict, detail) = match (world, config.acl) {
        (false, _) => (Verdict::Pass, "other clients may not change the locks"),
        (true, AclPolicy::Open) => (
            Verdict::Warn,
            "every client that can connect may remove locks: give credentials \
             (`zookeeper://user:password@..`)",
        ),
        (true, AclPolicy::Creator) => (
            Verdict::Warn,
            "the tree was created without credentials, so every client may remove locks: use \
             another root, or set the access list of this one",
        ),
    };
    health.found("access list", verdict, detail);
    Ok(())
}
