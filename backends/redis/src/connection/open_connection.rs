//! One open connection to one primary, and the server's description when the connection was made.
//!
//! A connection that is broken or outdated stays so: the next operation makes another one.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use distlock_backend_kit::RequestCount;
use distlock_core::{Clock, Epoch, Error, Moment, Result};
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, Value, aio::MultiplexedConnection};

use crate::{
    connection::{
        last_use::LastUse,
        server_epoch::ServerEpoch,
        server_info::ServerInfo,
        waiter_registry::{ConnectionState, WaiterRegistry},
    },
    error,
};

/// An open connection. Clones of the `Arc` share it. The connection closes when the last clone is
/// dropped.
pub(crate) struct Connection {
    pub(super) driver: MultiplexedConnection,
    /// The server's address, for messages.
    pub(crate) address: Arc<str>,
    pub(crate) server: ServerInfo,
    /// The shared knowledge of the server's epoch, and its generation when this connection asked
    /// for the epoch. The connection is outdated when the shared generation is another one.
    pub(super) server_epoch: Arc<ServerEpoch>,
    pub(super) asked_generation: u64,
    /// A reading of the server's clock in microseconds since 1970, and a later local moment. At
    /// that moment the server's clock showed the reading or more.
    pub(super) clock_read: (u64, Moment),
    pub(super) state: Arc<ConnectionState>,
    pub(super) last_use: LastUse,
    /// Whether the server tracks the keys that this connection reads.
    pub(super) tracking: AtomicBool,
    pub(super) requests: Arc<RequestCount>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

impl Connection {
    /// Returns whether the next operation must make another connection.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.broken.load(Ordering::Acquire) || self.is_outdated()
    }

    /// Returns whether the next operation may use this connection without a test.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_broken() && !self.last_use.is_idle()
    }

    /// Tests a connection that was idle. Without an answer the connection counts as broken.
    pub(crate) async fn is_alive(&self) -> bool {
        self.requests.add(1);
        let question = redis::cmd("TIME");
        let is_alive = self.last_use.is_answered(&self.driver, &question).await;
        if !is_alive {
            self.abandon();
        }
        is_alive && !self.is_broken()
    }

    /// Returns whether the server may have another epoch than the one that it reported on this
    /// connection.
    pub(crate) fn is_outdated(&self) -> bool {
        self.server_epoch.generation() != self.asked_generation
    }

    /// Records that the server's epoch may have changed. All handles' connections to this server
    /// become outdated.
    pub(crate) fn invalidate_epoch(&self) {
        self.server_epoch.invalidate(self.asked_generation);
    }

    /// Marks the connection as broken, so that the next operation makes another one.
    pub(crate) fn abandon(&self) {
        self.state.broken.store(true, Ordering::Release);
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.server.epoch
    }

    /// Returns an estimate of the server's clock in microseconds since 1970. The estimate may be
    /// too low, but hardly too high.
    pub(crate) fn server_micros(&self, clock: &dyn Clock) -> u64 {
        let (micros, at) = self.clock_read;
        let since = clock.now().since(at).as_micros();
        micros.saturating_add(u64::try_from(since).unwrap_or(0))
    }

    /// Returns whether `CLIENT TRACKING ON` must still be sent. Only the first caller gets `true`.
    pub(crate) fn must_start_tracking(&self) -> bool {
        !self.tracking.swap(true, Ordering::AcqRel)
    }

    /// Records that the server refused to track keys. The next caller of
    /// [`Connection::must_start_tracking`] gets `true` again.
    pub(crate) fn forget_tracking(&self) {
        self.tracking.store(false, Ordering::Release);
    }

    /// Sends commands in one write and reads their replies. If the server refuses a command, the
    /// refusal is the reply to that command.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`](distlock_core::ErrorKind::OutcomeUnknown) when the replies did
    /// not come: any of the commands may have been carried out.
    pub(crate) async fn send(&self, commands: &Pipeline) -> Result<Vec<Value>> {
        self.requests.add(commands.len());
        self.last_use.note();
        let mut driver = self.driver.clone();
        let sent = driver
            .send_packed_commands(commands, 0, commands.len())
            .await;
        self.last_use.note();
        sent.map_err(|error| self.failed(error))
    }

    /// Sends one command and reads its reply, like [`Connection::send`]. The driver does less work
    /// for one command than for a pipeline.
    pub(crate) async fn send_one(&self, command: &Cmd) -> Result<Value> {
        self.requests.add(1);
        self.last_use.note();
        let mut driver = self.driver.clone();
        let sent = driver.send_packed_command(command).await;
        self.last_use.note();
        sent.map_err(|error| self.failed(error))
    }

    /// Sends one command and reads its reply.
    ///
    /// # Errors
    /// The server's refusal, and the errors of [`Connection::send`].
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let reply = self.send_one(command).await?;
        let read = reply
            .extract_error()
            .and_then(|reply| redis::from_redis_value(reply).map_err(RedisError::from));
        read.map_err(|error| error::of_operation(error, &self.address))
    }

    fn failed(&self, error: RedisError) -> Error {
        // After a time-out the connection may be dead, and the driver would never close it.
        if error.is_timeout() || error.is_unrecoverable_error() || error.is_io_error() {
            self.abandon();
        }
        error::of_operation(error, &self.address)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The server stops tracking for a closed connection. The driver reports nothing about a
        // connection that this side closed. So this drop wakes the waiters, which would otherwise
        // wait for pushes that never come.
        self.waiters.wake_all();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address)
            .field("server", &self.server)
            .field("broken", &self.is_broken())
            .finish_non_exhaustive()
    }
}
