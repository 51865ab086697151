//! One open connection to one primary, and what the server said when the connection was made.
//!
//! A connection that is broken or outdated never becomes good again: the next operation makes
//! another one.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use distlock_core::{Clock, Epoch, Error, Moment, Result};
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, Value, aio::MultiplexedConnection};

use crate::{
    connection::{
        push_listener::ConnectionState,
        server_epoch::ServerEpoch,
        server_info::{CompareDelete, ServerInfo},
        waiter_registry::WaiterRegistry,
    },
    error,
};

/// An open connection. Clones of the `Arc` share it; the connection closes with the last of them.
pub(crate) struct Connection {
    pub(super) driver: MultiplexedConnection,
    /// The server's address, for messages.
    pub(crate) address: Arc<str>,
    pub(crate) server: ServerInfo,
    /// The current knowledge of the server, and the generation of that knowledge when this
    /// connection asked. The connection is outdated when the two differ.
    pub(super) server_epoch: Arc<ServerEpoch>,
    pub(super) asked_generation: u64,
    /// A reading of the server's clock in microseconds since 1970, and a local moment at which the
    /// server's clock showed at least that.
    pub(super) clock_read: (u64, Moment),
    pub(super) state: Arc<ConnectionState>,
    /// Whether the server tracks the keys that this connection reads.
    pub(super) tracking: AtomicBool,
    /// Set when the server has the compare-and-delete command and this user may not run it.
    pub(super) must_not_compare: AtomicBool,
    pub(super) command_count: Arc<CommandCount>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

/// The number of commands that were sent.
#[derive(Debug, Default)]
pub(crate) struct CommandCount(AtomicU64);

impl CommandCount {
    pub(crate) fn sent(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds this number of commands.
    pub(crate) fn count(&self, commands: usize) {
        self.0
            .fetch_add(u64::try_from(commands).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Connection {
    /// Whether the next operation must make another connection.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.broken.load(Ordering::Acquire) || self.is_outdated()
    }

    /// Whether the server may have another epoch than the one it told this connection.
    pub(crate) fn is_outdated(&self) -> bool {
        self.server_epoch.generation() != self.asked_generation
    }

    /// The server showed that its epoch may have changed. All handles' connections to it become
    /// outdated.
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

    /// An estimate of the server's clock in microseconds since 1970, rather too low than too high.
    pub(crate) fn server_micros(&self, clock: &dyn Clock) -> u64 {
        let (micros, at) = self.clock_read;
        let since = clock.now().since(at).as_micros();
        micros.saturating_add(u64::try_from(since).unwrap_or(0))
    }

    /// Whether `CLIENT TRACKING ON` must still be sent. Only the first caller gets `true`.
    pub(crate) fn must_start_tracking(&self) -> bool {
        !self.tracking.swap(true, Ordering::AcqRel)
    }

    /// The server refused to track keys. The next caller of [`Connection::must_start_tracking`]
    /// asks it again.
    pub(crate) fn forget_tracking(&self) {
        self.tracking.store(false, Ordering::Release);
    }

    /// The command with which this user deletes an unchanged value without a script, if there is
    /// one.
    pub(crate) fn compare_delete(&self) -> Option<CompareDelete> {
        let may = !self.must_not_compare.load(Ordering::Acquire);
        self.server.compare_delete.filter(|_| may)
    }

    pub(crate) fn forget_compare_delete(&self) {
        self.must_not_compare.store(true, Ordering::Release);
    }

    /// Sends commands in one write and reads their replies. The refusal of one command is its
    /// reply.
    ///
    /// # Errors
    /// [`ErrorKind::OutcomeUnknown`](distlock_core::ErrorKind::OutcomeUnknown) when the replies
    /// never came: any of the commands may have been carried out.
    pub(crate) async fn send(&self, commands: &Pipeline) -> Result<Vec<Value>> {
        self.command_count.count(commands.len());
        let mut driver = self.driver.clone();
        let sent = driver
            .send_packed_commands(commands, 0, commands.len())
            .await;
        sent.map_err(|error| self.failed(error))
    }

    /// As [`Connection::send`], for one command. The driver does less work for it than for a
    /// pipeline.
    pub(crate) async fn send_one(&self, command: &Cmd) -> Result<Value> {
        self.command_count.count(1);
        let mut driver = self.driver.clone();
        let sent = driver.send_packed_command(command).await;
        sent.map_err(|error| self.failed(error))
    }

    /// Sends one command and reads its reply.
    ///
    /// # Errors
    /// The server's refusal, and as [`Connection::send`].
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let reply = self.send_one(command).await?;
        let read = reply
            .extract_error()
            .and_then(|reply| redis::from_redis_value(reply).map_err(RedisError::from));
        read.map_err(|error| error::of_operation(error, &self.address))
    }

    fn failed(&self, error: RedisError) -> Error {
        // After a time-out the connection may lead nowhere, and the driver would never close it.
        if error.is_timeout() || error.is_unrecoverable_error() || error.is_io_error() {
            self.abandon();
        }
        error::of_operation(error, &self.address)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The server stops tracking for a closed connection, and the driver reports nothing about a
        // connection that was closed from this side. So waiters are woken here, or they would wait
        // for pushes that never come.
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
