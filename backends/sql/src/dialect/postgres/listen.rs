//! Receives the server's notifications of releases.
//!
//! The listener has a connection of its own. After connecting it wakes all waiters once, because
//! notifications before that were not received.

use std::{sync::Arc, time::Duration};

use distlock_core::LockName;
use sqlx::postgres::{PgListener, PgPoolOptions};

use super::{connect, context::StoreContext};
use crate::driver_panics::catch_panics;

/// After this long without a notification, the server is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(15);

/// Stands before the name of a lock whose queue a contender has left. No name holds such a
/// character, so programs that do not know the store queue ignore such a notification.
pub(super) const LEFT_QUEUE: char = '\u{1}';

/// Wakes waiters on each notification. Ends when the connection is lost.
pub(super) async fn listen(context: Arc<StoreContext>) {
    if let Err(error) = catch_panics(listening(&context)).await {
        tracing::debug!(%error, "releases in other processes are noticed by polling for a while");
    }
}

async fn listening(context: &StoreContext) -> Result<(), sqlx::Error> {
    // The driver's listener takes its connection from a pool.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(context.config.connect_timeout)
        .connect_lazy_with(connect::options(&context.config));
    context.counters.count("listen");
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    context.counters.count("listen");
    sqlx::query(connect::NO_IDLE_TIMEOUTS)
        .execute(&mut listener)
        .await?;
    listener.listen(&context.statements.channel()).await?;
    // Releases before this moment were not received.
    context.wait_group.any_may_be_free();
    loop {
        let notification = tokio::select! {
            notification = listener.try_recv() => notification?,
            () = context.clock.sleep(QUIET) => {
                context.counters.count("listen");
                let asking = sqlx::query("SELECT 1").execute(&mut listener);
                tokio::select! {
                    answer = asking => { answer?; }
                    () = context.clock.sleep(context.config.statement_timeout) => {
                        return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
                    }
                }
                continue;
            }
        };
        let Some(notification) = notification else {
            return Ok(());
        };
        let (left, name) = match notification.payload().strip_prefix(LEFT_QUEUE) {
            Some(name) => (true, name),
            None => (false, notification.payload()),
        };
        match LockName::new(name) {
            Ok(name) if left => context.wait_group.contender_left(&name),
            Ok(name) => context.wait_group.wake_waiters(&name),
            Err(_) => {}
        }
    }
}
