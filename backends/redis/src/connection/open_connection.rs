//! One connection to one primary, and what was true of the server when it was made.

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
        server_epoch::ServerEpoch,
        server_info::{CompareDelete, ServerInfo},
        waiter_registry::WaiterRegistry,
    },
    error::{self},
};

use crate::connection::push_listener::ConnectionState;

/// A live connection. Cheap to share; it closes when the last holder lets go of it.
pub(crate) struct Connection {
    pub(super) driver: MultiplexedConnection,
    /// Where it leads, for messages.
    pub(crate) address: Arc<str>,
    pub(crate) server: ServerInfo,
    /// What is known of the server by now, and the generation of what it told this connection.
    pub(super) server_epoch: Arc<ServerEpoch>,
    pub(super) asked_generation: u64,
    /// The server's clock, and a moment of ours at which it showed no less.
    pub(super) clock_read: (u64, Moment),
    pub(super) state: Arc<ConnectionState>,
    /// Whether the server remembers what this connection reads.
    pub(super) tracking: AtomicBool,
    /// Set when the server refused to compare and delete: it has the command, and this user may not use it.
    pub(super) must_not_compare: AtomicBool,
    pub(super) command_count: Arc<CommandCount>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

/// How many commands were sent.
#[derive(Debug, Default)]
pub(crate) struct CommandCount(AtomicU64);

impl CommandCount {
    pub(crate) fn sent(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, commands: usize) {
        self.0
            .fetch_add(u64::try_from(commands).unwrap_or(0), Ordering::Relaxed);
    }
}

impl Connection {
    /// Whether another one must be made.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.broken.load(Ordering::Acquire) || self.is_outdated()
    }

    /// Whether the server may be in another history than it told this connection.
    pub(crate) fn is_outdated(&self) -> bool {
        self.server_epoch.generation() != self.asked_generation
    }

    /// The server showed that it may be: no handle's connection from before counts any more.
    pub(crate) fn invalidate_epoch(&self) {
        self.server_epoch.invalidate(self.asked_generation);
    }

    /// Gives it up: whoever comes next makes a new one.
    pub(crate) fn abandon(&self) {
        self.state.broken.store(true, Ordering::Release);
    }

    pub(crate) fn epoch(&self) -> &Epoch {
        &self.server.epoch
    }

    /// About what the server's clock shows now, rather less than more, in microseconds since 1970.
    pub(crate) fn server_micros(&self, clock: &dyn Clock) -> u64 {
        let (micros, at) = self.clock_read;
        let since = clock.now().since(at).as_micros();
        micros.saturating_add(u64::try_from(since).unwrap_or(0))
    }

    /// Whether the server must still be told to remember what this connection reads. Says so once.
    pub(crate) fn must_start_tracking(&self) -> bool {
        !self.tracking.swap(true, Ordering::AcqRel)
    }

    /// The server refused to remember: ask it again next time.
    pub(crate) fn forget_tracking(&self) {
        self.tracking.store(false, Ordering::Release);
    }

    /// How this user deletes a value that is still the same without a script, if it can.
    pub(crate) fn compare_delete(&self) -> Option<CompareDelete> {
        let may = !self.must_not_compare.load(Ordering::Acquire);
        self.server.compare_delete.filter(|_| may)
    }

    pub(crate) fn forget_compare_delete(&self) {
        self.must_not_compare.store(true, Ordering::Release);
    }

    /// Sends commands in one go and reads their replies; a refusal of one is its reply.
    ///
    /// # Errors
    /// When the answer never came: any of them may have happened.
    pub(crate) async fn send(&self, commands: &Pipeline) -> Result<Vec<Value>> {
        self.command_count.count(commands.len());
        let mut driver = self.driver.clone();
        let sent = driver
            .send_packed_commands(commands, 0, commands.len())
            .await;
        sent.map_err(|error| self.failed(error))
    }

    /// As [`Connection::send`], one command, which is cheaper.
    pub(crate) async fn send_one(&self, command: &Cmd) -> Result<Value> {
        self.command_count.count(1);
        let mut driver = self.driver.clone();
        let sent = driver.send_packed_command(command).await;
        sent.map_err(|error| self.failed(error))
    }

    /// Sends one command and reads its reply.
    ///
    /// # Errors
    /// Its refusal, and as [`Connection::send`].
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let reply = self.send_one(command).await?;
        let read = reply
            .extract_error()
            .and_then(|reply| redis::from_redis_value(reply).map_err(RedisError::from));
        read.map_err(|error| error::of_operation(error, &self.address))
    }

    fn failed(&self, error: RedisError) -> Error {
        // After a timeout the connection may be a dead end that nobody will ever close.
        if error.is_timeout() || error.is_unrecoverable_error() || error.is_io_error() {
            self.abandon();
        }
        error::of_operation(error, &self.address)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The server forgets what it was to tell through it, and the driver says nothing of a connection that we let go.
        self.waiters.wake_all();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("address", &self.address)
            .field("server", &self.server)
            .field("broken", &self.is_broken())
            .finish_non_exhaustive()
    }
}
