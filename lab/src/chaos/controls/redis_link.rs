//! A client of one Redis server, built as most programs build it: one shared connection that is
//! replaced after an error.

use std::time::Duration;

use anyhow::{Context as _, Result};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, aio::MultiplexedConnection,
};
use tokio::sync::Mutex;

/// Redisson and go-redis wait 3 s for an answer by default; redis-py and ioredis wait for ever.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The client, with its connection.
pub(super) struct RedisLink {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl RedisLink {
    pub(super) fn new(url: &str) -> Result<Self> {
        Ok(Self {
            client: Client::open(url).context("the URL of a Redis server")?,
            connection: Mutex::new(None),
        })
    }

    /// Sends a command. After an error that breaks the connection, the next command opens a new
    /// connection.
    pub(super) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut connection = self.shared_connection().await?;
        let answer = command.query_async(&mut connection).await;
        if let Err(error) = &answer
            && error.is_unrecoverable_error()
        {
            *self.connection.lock().await = None;
        }
        answer
    }

    /// Runs a script on one key.
    pub(super) async fn run_script<T: FromRedisValue>(
        &self,
        script: &str,
        key: &str,
        arguments: &[&str],
    ) -> RedisResult<T> {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(1).arg(key).arg(arguments);
        self.query(&command).await
    }

    /// Returns the open connection, or opens one.
    async fn shared_connection(&self) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_TIMEOUT));
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        let made = connecting.await?;
        *connection = Some(made.clone());
        Ok(made)
    }
}

/// Deletes a key if the key still has the value of its writer.
pub(super) const DELETE_OWN: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// Returns a value that no other caller uses.
pub(super) fn random_value() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Builds `SET key value NX PX ttl`.
pub(super) fn set_nx_command(key: &str, value: &str, ttl_ms: u64) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value).arg("NX").arg("PX").arg(ttl_ms);
    command
}
