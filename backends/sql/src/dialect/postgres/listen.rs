//! Receives the server's notifications of releases.
//!
//! The listener has its own connection. Notifications from before the connection are lost, so that
//! the listener wakes all waiters once after connecting.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::LONGEST_PAUSE;
use distlock_core::{LockName, Result, at_most};
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::{
    connect::{
        NO_IDLE_TIMEOUTS, connect, dial, former_primary, read_timeline, set_aside, to_one_server,
        with_connect_timeout,
    },
    context::StoreContext,
    pool::TAKES_NO_WRITES,
};
use crate::{
    network::Candidate,
    statement_error::{Access, StatementError, catch_panics},
};

/// After this time without a notification, the listener tests its connection with a request.
const QUIET: Duration = Duration::from_secs(15);

/// The first character of a notification that a contender has left the queue of a lock; the lock's
/// name follows. No lock name contains this character, so that programs without the store queue
/// ignore the notification.
pub(super) const LEFT_QUEUE: char = '\u{1}';

/// Wakes waiters on each notification. The future ends when the connection is lost.
pub(super) async fn listen(context: Arc<StoreContext>) {
    if let Err(error) = listening(&context).await {
        tracing::debug!(%error, "no notifications of releases arrive; polls find them meanwhile");
    }
}

/// Waits until the server serves clients. The driver's pool, which the listener needs, repeats a
/// refused attempt by itself, up to ten times a second. So an attempt of its own comes first,
/// unless another one has just succeeded.
async fn server_is_back(context: &StoreContext) {
    while !context.gate.answered_lately(context.common.clock.now()) {
        let attempt = with_connect_timeout(context, async {
            connect(context, false).await?.session.close().await;
            Ok(())
        });
        if let Err(error) = context.gate.connect(&*context.common.clock, attempt).await {
            let pause = error.retry_pause().unwrap_or(LONGEST_PAUSE);
            context.common.clock.sleep(pause).await;
        }
    }
}

/// Connects to the primary. A standby refuses to listen. A primary that was set aside and a former
/// one listen, but no release is notified there: among several servers, they are passed over.
async fn connect_listener(context: &StoreContext, candidate: Candidate) -> Result<PgListener> {
    context.common.counters.count("listen");
    let connecting = |options| async move {
        // The driver's listener needs a pool. This pool has only the one connection.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(context.config.connect_timeout)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        let asking = sqlx::query_scalar(TAKES_NO_WRITES);
        let read_only: bool = asking.fetch_one(&mut listener).await?;
        context.common.counters.count("listen");
        sqlx::query(NO_IDLE_TIMEOUTS).execute(&mut listener).await?;
        listener.listen(&context.statements.channel()).await?;
        Ok::<_, sqlx::Error>((listener, read_only))
    };
    let (mut listener, read_only) = dial(context, &candidate, connecting).await?;
    if candidate.one_of_several {
        if read_only {
            return Err(set_aside());
        }
        let timeline = read_timeline(&mut listener, context).await?;
        if timeline.is_some_and(|it| context.timelines.has_later_than(&it)) {
            return Err(former_primary());
        }
    }
    Ok(listener)
}

async fn listening(context: &StoreContext) -> Result<()> {
    server_is_back(context).await;
    let attempt = |candidate| connect_listener(context, candidate);
    let mut listener = to_one_server(context, attempt).await?;
    catch_panics(receive(context, &mut listener))
        .await
        .map_err(|error| StatementError::postgres(error, Access::Read).into_error())
}

async fn receive(context: &StoreContext, listener: &mut PgListener) -> Result<(), sqlx::Error> {
    let (clock, limit) = (&*context.common.clock, context.config.statement_timeout);
    listener.eager_reconnect(false);
    // No notification of a release before this moment was received.
    context.common.wait_group.any_may_be_free();
    loop {
        let Some(notification) = at_most(clock, QUIET, listener.try_recv()).await else {
            context.common.counters.count("listen");
            let asking = sqlx::query("SELECT 1").execute(&mut *listener);
            let Some(answer) = at_most(clock, limit, asking).await else {
                return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
            };
            answer?;
            continue;
        };
        let Some(notification) = notification? else {
            return Ok(());
        };
        let (left, name) = match notification.payload().strip_prefix(LEFT_QUEUE) {
            Some(name) => (true, name),
            None => (false, notification.payload()),
        };
        match LockName::new(name) {
            Ok(name) if left => context.common.wait_group.contender_left(&name),
            Ok(name) => context.common.wait_group.wake_waiters(&name),
            Err(_) => {}
        }
    }
}
