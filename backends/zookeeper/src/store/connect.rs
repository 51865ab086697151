//! Opens a session and starts its tasks.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::Credentials;
use distlock_core::{Error, ErrorKind, Result};
use zookeeper_client as zk;

use crate::{
    config::ZooKeeperConfig,
    error::{Access, invalid_config, session_ended_error, translate},
    queue::lease_watch,
    session::{
        Session, StoreContext, connection,
        dial::{dial, endpoints},
        io_thread::TaskGroup,
        keep_alive,
        tree::{acls_for, probe_session, read_or_create_epoch},
    },
};

/// The tick is measured with a session that requests the granted timeout divided by this number. A
/// larger number would leave a server less time to answer.
const SHORT_SESSION_DIVISOR: u32 = 5;

/// Tries once to open a session: connects, creates the parents of all nodes, and checks that these
/// credentials may write. `group` is the group of the client's tasks.
pub(crate) async fn open_session(
    context: &Arc<StoreContext>,
    group: TaskGroup,
) -> Result<Arc<Session>> {
    let config = &context.config;
    let endpoints = endpoints(&config.servers, config, &*context.clock).await;
    let attempt = |credentials| open_with(context, &endpoints, credentials, group);
    context.login.connect(attempt).await
}

async fn open_with(
    context: &Arc<StoreContext>,
    endpoints: &[String],
    credentials: Credentials,
    group: TaskGroup,
) -> Result<Arc<Session>> {
    let config = &context.config;
    let opened = context.clock.now();
    let client = dial(context, endpoints, config.session_timeout, &credentials).await?;
    let granted = client.session_timeout();
    let tick = find_tick(context, endpoints, granted, &credentials).await?;
    let states = client.state_watcher();
    let acls = acls_for(config.acl);
    let refused = |error| translate(error, Access::Read).during("connect");
    let parents = zk::CreateMode::Persistent.with_acls(acls);
    let layout = &context.layout;
    let made = client.mkdir(&layout.records, &parents).await;
    made.map_err(|error| match error {
        zk::Error::NoAuth => cannot_create_root(config),
        error => refused(error),
    })?;
    let epoch = read_or_create_epoch(&client, layout, acls)
        .await
        .map_err(refused)?;
    if probe_session(&client, layout, acls)
        .await
        .map_err(refused)?
        != client.session_id().0
    {
        return Err(session_ended_error());
    }
    let session = Session::new(context, client, credentials, group, epoch, tick, opened);
    session.spawn(connection::follow_connection(Arc::clone(&session), states));
    session.spawn(lease_watch::watch_leases(Arc::clone(&session)));
    session.spawn(keep_alive::keep_alive(Arc::clone(&session)));
    session.spawn(connection::follow_credentials(Arc::clone(&session)));
    tracing::debug!(?session, "session open");
    Ok(session)
}

/// Returns the servers' tick, or a longer time.
///
/// The servers do not report their tick. By default they grant no session shorter than two ticks.
/// So this function opens a second session that requests less, and takes half of the granted
/// timeout as the tick. If the second session cannot be opened, the function takes half of the
/// first session's timeout, which is at least one tick.
async fn find_tick(
    context: &StoreContext,
    endpoints: &[String],
    granted: Duration,
    credentials: &Credentials,
) -> Result<Duration> {
    let config = &context.config;
    if let Some(tick) = config.tick_time {
        if tick * 2 > granted {
            return Err(invalid_config(format!(
                "option `tick_time` is {tick:?}, and the servers let the session last \
                 {granted:?}: a session must last at least two ticks"
            )));
        }
        return Ok(tick);
    }
    let asked = context.tick.get_or_try_init(async || {
        let timeout = granted / SHORT_SESSION_DIVISOR;
        let shortest = dial(context, endpoints, timeout, credentials).await?;
        Ok::<_, Error>(shortest.session_timeout() / 2)
    });
    match asked.await {
        Ok(tick) => Ok((*tick).min(granted / 2)),
        Err(error) => {
            tracing::debug!(%error, "no session that shows the servers' tick");
            Ok(granted / 2)
        }
    }
}

/// Returns the error when the root does not exist and these credentials may not create it, or when
/// these credentials may not use an existing root.
fn cannot_create_root(config: &ZooKeeperConfig) -> Error {
    let root = &config.root;
    let whose = match config.credentials {
        Some(_) => "for these credentials",
        None => "for everybody (the URL names no credentials)",
    };
    Error::new(
        ErrorKind::AccessDenied,
        format!(
            "these credentials may not create or use {root}: let an administrator create it with \
             all rights {whose}, or remove the node that is there with other rights"
        ),
    )
    .on("zookeeper")
    .during("connect")
}
