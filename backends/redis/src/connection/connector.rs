//! Makes connections to primaries, cluster nodes and sentinels.
//!
//! The connector owns the options that are the same for every server: credentials, TLS, time-outs.
//! Credentials and certificates are asked for again before each attempt, and every attempt has a
//! time limit. No password leaves this machine in clear unless the configuration allows that.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_backend_kit::{ConnectGate, CredentialSource, Credentials, RequestCount};
use distlock_core::{Clock, Error, ErrorKind, Result, at_most, sync::Mutex};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, Value,
    aio::{AsyncPushSender, MultiplexedConnection},
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::{
    config::{Endpoint, RedisConfig},
    connection::{
        addresses::{OneAddress, first_to_answer},
        last_use::LastUse,
        open_connection::Connection,
        server_epoch::{ServerEpoch, ServerEpochs},
        server_info::{InfoReply, ServerInfo},
        waiter_registry::{ConnectionState, PushListener, WaiterRegistry},
    },
    error::{self, BACKEND},
};

/// The gates of the servers that any handle of a store has connected to.
type Gates = Mutex<HashMap<String, Arc<ConnectGate>>>;

/// The options of every connection of one handle, and the data that all handles share.
pub(crate) struct Connector {
    config: RedisConfig,
    clock: Arc<dyn Clock>,
    waiters: Arc<WaiterRegistry>,
    requests: Arc<RequestCount>,
    server_epochs: Arc<ServerEpochs>,
    credentials: Arc<CredentialSource>,
    sentinel_credentials: Arc<CredentialSource>,
    gates: Arc<Gates>,
    #[cfg(feature = "tls")]
    certificates: Option<distlock_backend_kit::CertificateFiles>,
}

impl Connector {
    /// Creates a connector. Checks the certificate files.
    pub(crate) fn new(
        config: RedisConfig,
        clock: Arc<dyn Clock>,
        waiters: Arc<WaiterRegistry>,
    ) -> Result<Self> {
        #[cfg(feature = "tls")]
        let certificates = crate::connection::tls::open_files(&config)?;
        let source = |written| {
            let (provider, clock) = (config.provider.clone(), Arc::clone(&clock));
            CredentialSource::new(written, provider, clock, attempt_timeout(&config))
        };
        Ok(Self {
            credentials: Arc::new(source(config.written_credentials())),
            sentinel_credentials: Arc::new(
                source(config.written_sentinel_credentials()).for_sentinels(),
            ),
            #[cfg(feature = "tls")]
            certificates,
            config,
            clock,
            waiters,
            requests: Arc::new(RequestCount::new(BACKEND)),
            server_epochs: Arc::default(),
            gates: Arc::default(),
        })
    }

    /// Creates a connector for another handle, with the same options and its own waiters.
    pub(crate) fn for_handle(&self, waiters: Arc<WaiterRegistry>) -> Self {
        Self {
            config: self.config.clone(),
            clock: Arc::clone(&self.clock),
            waiters,
            requests: Arc::clone(&self.requests),
            server_epochs: Arc::clone(&self.server_epochs),
            credentials: Arc::clone(&self.credentials),
            sentinel_credentials: Arc::clone(&self.sentinel_credentials),
            gates: Arc::clone(&self.gates),
            #[cfg(feature = "tls")]
            certificates: self.certificates.clone(),
        }
    }

    pub(crate) const fn config(&self) -> &RedisConfig {
        &self.config
    }

    pub(crate) const fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the count of commands that were sent to the servers and sentinels.
    pub(crate) fn requests(&self) -> &RequestCount {
        &self.requests
    }

    pub(crate) const fn server_epochs(&self) -> &Arc<ServerEpochs> {
        &self.server_epochs
    }

    /// Returns the time limit of one attempt to connect. This limit is a little shorter than
    /// `connect_timeout`. So the error of the attempt, which names the cause, comes before the
    /// caller's own time-out.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        attempt_timeout(&self.config)
    }

    pub(crate) fn credentials(&self) -> &CredentialSource {
        &self.credentials
    }

    pub(crate) fn sentinel_credentials(&self) -> &CredentialSource {
        &self.sentinel_credentials
    }

    /// Returns the time limit of an attempt to connect that includes the questions to the
    /// sentinels.
    pub(crate) fn max_connect_time(&self) -> Duration {
        self.attempt_timeout() * 2
    }

    /// Connects to a server at the pace that all handles of this process share.
    async fn at_common_pace<T>(
        &self,
        address: &str,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let gate = {
            let mut gates = self.gates.lock();
            let gate = gates.entry(address.to_owned()).or_insert_with(|| {
                ConnectGate::of(format!("{BACKEND} {address} {:?}", self.config))
            });
            Arc::clone(gate)
        };
        gate.connect(&*self.clock, attempt).await
    }

    /// Connects to a primary and reads the server's description.
    ///
    /// # Errors
    /// The reason why the server cannot serve. No operation was sent.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        server_epoch: Arc<ServerEpoch>,
    ) -> Result<Connection> {
        let address = &*endpoint.to_string();
        let attempt = |credentials| async move {
            let client = self.client(endpoint, credentials).await?;
            let connecting = self.connect_unbounded(&client, address, server_epoch);
            at_most(&*self.clock, self.attempt_timeout(), connecting)
                .await
                .unwrap_or_else(|| {
                    let text = format!(
                        "{address} did not answer in time (option `connect_timeout`); a server \
                         is also silent if only one side uses TLS (rediss://, or `tls=true`)"
                    );
                    Err(Error::new(ErrorKind::Unavailable, text).on(BACKEND))
                })
        };
        let attempt = self.credentials.connect(attempt);
        self.at_common_pace(address, attempt).await
    }

    async fn connect_unbounded(
        &self,
        client: &Client,
        address: &str,
        server_epoch: Arc<ServerEpoch>,
    ) -> Result<Connection> {
        first_to_answer(&*self.clock, client, address, |at| {
            self.connect_to(at, client, address, Arc::clone(&server_epoch))
        })
        .await
    }

    async fn connect_to(
        &self,
        at: OneAddress,
        client: &Client,
        address: &str,
        server_epoch: Arc<ServerEpoch>,
    ) -> Result<Connection> {
        let state = Arc::<ConnectionState>::default();
        let listener = PushListener {
            state: Arc::clone(&state),
            waiters: Arc::clone(&self.waiters),
        };
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.attempt_timeout()))
            .set_response_timeout(Some(self.config.timeout))
            .set_write_backpressure_boundary(256 * 1024)
            .set_dns_resolver(at)
            .set_push_sender(listener);
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&options)
            .await
            .map_err(|error| error::of_connecting(&error, address))?;
        let mut questions = redis::pipe();
        questions.cmd("TIME").cmd("INFO");
        // The driver sends `HELLO`, and also `SELECT` if the database is not 0.
        self.requests
            .add(1 + usize::from(self.config.database != 0));
        let (clock_read, server, asked_generation) = loop {
            let begun = server_epoch.generation();
            self.requests.add(questions.len());
            let answers = connection
                .send_packed_commands(&questions, 0, questions.len())
                .await
                .map_err(|error| error::of_connecting(&error, address))?;
            let answered = self.clock.now();
            let (time, mut server) = ServerInfo::read(answers, address)?;
            server.epoch = server_epoch.known_name(server.epoch);
            if let Some(asked_generation) = server_epoch.record(begun, &server.epoch) {
                break ((time, answered), server, asked_generation);
            }
        };
        state.used.store(true, Ordering::Release);
        Ok(Connection {
            driver: connection,
            address: address.into(),
            server,
            server_epoch,
            asked_generation,
            clock_read,
            state,
            last_use: LastUse::now(Arc::clone(&self.clock)),
            tracking: AtomicBool::new(false),
            requests: Arc::clone(&self.requests),
            waiters: Arc::clone(&self.waiters),
        })
    }

    /// Returns the driver's client for a server.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the password would travel in clear. Sentinels, slot maps
    /// and redirects may name servers beyond this machine even if the URL names none.
    async fn client(&self, endpoint: &Endpoint, credentials: Credentials) -> Result<Client> {
        self.refuse_clear_text_password(endpoint, &credentials)?;
        let settings = settings(&credentials).set_db(i64::from(self.config.database));
        let info = self.info(endpoint)?.set_redis_settings(settings);
        self.open_client(info).await
    }

    fn refuse_clear_text_password(
        &self,
        endpoint: &Endpoint,
        credentials: &Credentials,
    ) -> Result<()> {
        let rule = self.config.password_rule(credentials.password.is_some());
        rule.check(&endpoint.host)
            .map_err(|error| error.on(BACKEND))
    }

    /// Returns the address and the TCP settings of a server, without credentials.
    fn info(&self, endpoint: &Endpoint) -> Result<ConnectionInfo> {
        let info = self
            .address(endpoint)
            .into_connection_info()
            .map_err(|error| error::of_connecting(&error, &endpoint.to_string()))?;
        Ok(info.set_tcp_settings(tcp_settings()))
    }

    /// Asks a server of a cluster for the slot map. A replica answers too.
    pub(crate) async fn ask_slots(&self, endpoint: &Endpoint) -> Result<Value> {
        let address = &*endpoint.to_string();
        let attempt = |credentials| async move {
            let client = self.client(endpoint, credentials).await?;
            let client = &client;
            let ask = |at| {
                let options = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.attempt_timeout()))
                    .set_response_timeout(Some(self.config.timeout))
                    .set_dns_resolver(at);
                async move {
                    let asking = async {
                        let mut connection = client
                            .get_multiplexed_async_connection_with_config(&options)
                            .await?;
                        redis::cmd("CLUSTER")
                            .arg("SLOTS")
                            .query_async::<Value>(&mut connection)
                            .await
                    };
                    asking.await.map_err(|error| match error.detail() {
                        Some(detail) if detail.contains("cluster support disabled") => Error::new(
                            ErrorKind::InvalidConfig,
                            format!(
                                "{address} is not a node of a cluster: use redis:// instead of \
                                 redis+cluster://"
                            ),
                        )
                        .on(BACKEND),
                        _ => error::of_connecting(&error, address),
                    })
                }
            };
            first_to_answer(&*self.clock, client, address, ask).await
        };
        let attempt = self.credentials.connect(attempt);
        self.at_common_pace(address, attempt).await
    }

    /// Connects to a primary for a caller's own commands.
    ///
    /// # Errors
    /// The reason why the server cannot serve. A replica is refused as
    /// [`ErrorKind::Unavailable`].
    pub(crate) async fn connect_for_own_commands(
        &self,
        endpoint: &Endpoint,
    ) -> Result<MultiplexedConnection> {
        let address = &*endpoint.to_string();
        let attempt = |credentials| async move {
            let client = self.client(endpoint, credentials).await?;
            let client = &client;
            let connect = |at| {
                let options = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.attempt_timeout()))
                    .set_response_timeout(Some(self.config.timeout))
                    .set_dns_resolver(at);
                async move {
                    let mut connection = client
                        .get_multiplexed_async_connection_with_config(&options)
                        .await
                        .map_err(|error| error::of_connecting(&error, address))?;
                    // After a failover the name may still lead to the former primary. As a
                    // replica it would answer reads with old data.
                    let info = connection
                        .send_packed_command(&redis::cmd("INFO"))
                        .await
                        .map_err(|error| error::of_connecting(&error, address))?;
                    InfoReply::read(Some(info)).check_is_primary(
                        address,
                        "a cache and counters need the primary: connect to that",
                    )?;
                    Ok(connection)
                }
            };
            first_to_answer(&*self.clock, client, address, connect).await
        };
        let attempt = self.credentials.connect(attempt);
        self.at_common_pace(address, attempt).await
    }

    /// Connects to a sentinel. The sentinel's pushes go to `events`.
    ///
    /// # Errors
    /// The reason why the sentinel cannot answer.
    pub(crate) async fn connect_to_sentinel(
        &self,
        endpoint: &Endpoint,
        events: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection> {
        let address = &*endpoint.to_string();
        let attempt = |credentials: Credentials| async move {
            self.refuse_clear_text_password(endpoint, &credentials)?;
            let info = self.info(endpoint)?;
            let client = self.open_client(info.set_redis_settings(settings(&credentials)));
            let client = client.await?;
            let options = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(self.attempt_timeout()))
                .set_response_timeout(Some(self.config.timeout))
                .set_push_sender(events);
            // The driver sends `HELLO`.
            self.requests.add(1);
            client
                .get_multiplexed_async_connection_with_config(&options)
                .await
                .map_err(|error| error::of_connecting_to_sentinel(&error, address))
        };
        let attempt = self.sentinel_credentials.connect(attempt);
        self.at_common_pace(address, attempt).await
    }

    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "files of TLS")
    )]
    async fn open_client(&self, info: ConnectionInfo) -> Result<Client> {
        let address = info.addr().to_string();
        #[cfg(feature = "tls")]
        if let Some(files) = &self.certificates {
            let certificates = crate::connection::tls::latest(files).await;
            return Client::build_with_tls(info, certificates)
                .map_err(|error| crate::connection::tls::refused(&error));
        }
        Client::open(info).map_err(|error| error::of_connecting(&error, &address))
    }

    fn address(&self, endpoint: &Endpoint) -> ConnectionAddr {
        let (host, port) = (endpoint.host.clone(), endpoint.port);
        match &self.config.tls {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
        }
    }
}

/// Returns [`Connector::attempt_timeout`] of these options.
fn attempt_timeout(config: &RedisConfig) -> Duration {
    config.connect_timeout * 4 / 5
}

/// Returns credentials and protocol.
fn settings(credentials: &Credentials) -> RedisConnectionInfo {
    // The library's name is not sent, because `CLIENT SETINFO` fails on older servers and under a
    // narrow ACL.
    let mut settings = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_skip_set_lib_name();
    if let Some(username) = &credentials.user {
        settings = settings.set_username(username);
    }
    if let Some(password) = &credentials.password {
        settings = settings.set_password(password.reveal());
    }
    settings
}

/// Returns TCP settings that detect a dead peer within about ten seconds, even while nothing is
/// sent.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(4))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(10));
    settings
}
