//! The plain way on Redis: `SET name owner NX PX ttl` takes the lock. `DEL name` frees the lock
//! without a check of its owner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ::redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo as _, RedisResult,
    aio::MultiplexedConnection, io::tcp::TcpSettings,
};
use distlock_report::{Counters, Subject};

/// The pause of a waiting caller between two polls. The plain way has no notification.
const POLL: Duration = Duration::from_millis(5);

/// The plain way, on one multiplexed connection. Its locks have no fencing token, no check of the
/// owner and no report of a loss.
#[derive(Clone, Debug)]
pub(crate) struct RawRedis {
    connection: MultiplexedConnection,
    next_owner: Arc<AtomicU64>,
    commands: Arc<AtomicU64>,
}

impl RawRedis {
    pub(crate) async fn connect(url: &str) -> RedisResult<Self> {
        let info = url.into_connection_info()?;
        // distlock's own connection has the same setting.
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let options =
            AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(5)));
        let connection = Client::open(info)?
            .get_multiplexed_async_connection_with_config(&options)
            .await?;
        Ok(Self {
            connection,
            next_owner: Arc::default(),
            commands: Arc::default(),
        })
    }

    pub(crate) async fn ping(&self) -> RedisResult<()> {
        let mut connection = self.connection_for_command();
        ::redis::cmd("PING").exec_async(&mut connection).await
    }

    /// Counts a command, and returns the connection for it.
    pub(crate) fn connection_for_command(&self) -> MultiplexedConnection {
        self.count();
        self.connection.clone()
    }

    fn count(&self) {
        self.commands.fetch_add(1, Ordering::Relaxed);
    }
}

impl Subject for RawRedis {
    type Held = String;
    type Error = ::redis::RedisError;

    async fn acquire(&self, name: &str) -> RedisResult<String> {
        let owner = self.next_owner.fetch_add(1, Ordering::Relaxed);
        loop {
            let mut connection = self.connection_for_command();
            let taken: Option<String> = ::redis::cmd("SET")
                .arg(name)
                .arg(format!("{owner:032}"))
                .arg("NX")
                .arg("PX")
                .arg(10_000)
                .query_async(&mut connection)
                .await?;
            if taken.is_some() {
                return Ok(name.to_owned());
            }
            pause_before_poll().await;
        }
    }

    async fn release(&self, name: String) -> RedisResult<()> {
        let mut connection = self.connection_for_command();
        ::redis::cmd("DEL")
            .arg(&name)
            .exec_async(&mut connection)
            .await
    }

    fn counters(&self) -> Counters {
        let commands = Some(self.commands.load(Ordering::Relaxed));
        Counters {
            operations: commands,
            statements: commands,
            ..Counters::default()
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the plain way polls in real time, and that is what is measured"
)]
async fn pause_before_poll() {
    tokio::time::sleep(POLL).await;
}
