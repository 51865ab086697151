//! One sentinel, and the connection that is used only for its votes.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use distlock_core::{Error, ErrorKind, Result, sync::Mutex};
use redis::{
    PushInfo, PushKind, ServerError, Value,
    aio::{AsyncPushSender, MultiplexedConnection, SendError},
};

use crate::{
    config::Endpoint,
    connection::{Connector, LastUse, SingleFlight},
    error::{self, BACKEND},
    sentinels::{
        rounds::Sentinels,
        votes::{OtherSentinel, Vote},
    },
};

/// The event that a sentinel publishes when another primary serves.
const SWITCHED: &str = "+switch-master";

/// One address of a sentinel.
#[derive(Debug)]
pub(super) struct Sentinel {
    endpoint: Endpoint,
    /// The sentinel's id, once it is known.
    // A blocking mutex: it is held to read and to write only.
    id: Mutex<Option<String>>,
    is_configured: bool,
    /// All sentinels of this handle, which ask again when another primary serves.
    sentinels: Weak<Sentinels>,
    connection: SingleFlight<SentinelConnection>,
}

/// A sentinel's vote, and the other sentinels that it knows.
#[derive(Debug)]
pub(super) struct SentinelAnswer {
    pub(super) vote: Vote,
    pub(super) others: Vec<OtherSentinel>,
}

#[derive(Clone)]
struct SentinelConnection {
    driver: MultiplexedConnection,
    broken: Arc<AtomicBool>,
    last_use: Arc<LastUse>,
}

/// Receives the sentinel's events.
struct SwitchListener {
    sentinels: Weak<Sentinels>,
    broken: Arc<AtomicBool>,
}

impl Sentinel {
    /// Creates a sentinel with an address from the configuration.
    pub(super) fn new(endpoint: Endpoint, sentinels: Weak<Sentinels>) -> Self {
        Self {
            endpoint,
            id: Mutex::default(),
            is_configured: true,
            sentinels,
            connection: SingleFlight::default(),
        }
    }

    pub(super) fn record_id(&self, id: &str) {
        let mut known = self.id.lock();
        if known.as_deref() != Some(id) {
            *known = Some(id.to_owned());
        }
    }

    /// Creates a sentinel with an address that another sentinel reported.
    pub(super) fn learned(other: OtherSentinel, sentinels: Weak<Sentinels>) -> Self {
        Self {
            id: Mutex::new(Some(other.id)),
            is_configured: false,
            ..Self::new(other.endpoint, sentinels)
        }
    }

    /// Returns whether `other` has the address of this sentinel.
    pub(super) fn is_at(&self, other: &OtherSentinel) -> bool {
        self.endpoint == other.endpoint
    }

    /// Returns whether this configured address leads to `other`, which the other sentinels know by
    /// another address.
    pub(super) fn is_configured_as(&self, other: &OtherSentinel) -> bool {
        self.is_configured && *self.id.lock() == Some(other.id.clone())
    }

    /// Asks the sentinel for its vote and for the other sentinels that it knows.
    pub(super) async fn ask(
        &self,
        connector: &Arc<Connector>,
        primary: &str,
    ) -> Result<SentinelAnswer> {
        let connection = self.connect(connector).await?;
        let mut questions = redis::pipe();
        questions.cmd("SENTINEL").arg("MYID");
        questions.cmd("SENTINEL").arg("MASTER").arg(primary);
        questions.cmd("SENTINEL").arg("SENTINELS").arg(primary);
        connector.requests().add(questions.len());
        connection.last_use.note();
        let mut driver = connection.driver.clone();
        let answers = driver
            .send_packed_commands(&questions, 0, questions.len())
            .await;
        connection.last_use.note();
        let answers = answers.map_err(|error| {
            // After a time-out the connection may be dead.
            connection.broken.store(true, Ordering::Release);
            error::of_connecting(&error, &self.endpoint.to_string())
        })?;
        let Ok([id, told, others]) = <[Value; 3]>::try_from(answers) else {
            return Err(self.malformed_answer());
        };
        for answer in [&told, &id] {
            if let Value::ServerError(refusal) = answer {
                return Err(self.refused(refusal, primary));
            }
        }
        let vote = Vote::read(id, told).ok_or_else(|| self.malformed_answer())?;
        // A sentinel that refuses to list the others still has its own vote.
        let others = OtherSentinel::read_all(&others);
        Ok(SentinelAnswer { vote, others })
    }

    pub(super) fn close(&self) {
        self.connection.close();
    }

    async fn connect(&self, connector: &Arc<Connector>) -> Result<SentinelConnection> {
        let is_broken = |connection: &SentinelConnection| connection.broken.load(Ordering::Acquire);
        let works = |connection: &SentinelConnection| {
            !is_broken(connection) && !connection.last_use.is_idle()
        };
        let idle = self.connection.latest();
        let idle = idle.filter(|connection| !is_broken(connection));
        let make = || {
            let (connector, endpoint) = (Arc::clone(connector), self.endpoint.clone());
            let sentinels = Weak::clone(&self.sentinels);
            async move {
                if let Some(idle) = idle {
                    let mut question = redis::cmd("SENTINEL");
                    question.arg("MYID");
                    connector.requests().add(1);
                    if idle.last_use.is_answered(&idle.driver, &question).await {
                        return Ok(idle);
                    }
                }
                let broken = Arc::<AtomicBool>::default();
                let events = SwitchListener {
                    sentinels,
                    broken: Arc::clone(&broken),
                };
                let driver = connector.connect_to_sentinel(&endpoint, events).await?;
                let mut listening = driver.clone();
                tokio::spawn(async move {
                    // The subscription is only a shortcut, because every renewal asks the sentinels
                    // anyway. So a missing right to subscribe is ignored.
                    let _ = listening.subscribe(SWITCHED).await;
                });
                let last_use = LastUse::now(Arc::clone(connector.clock()));
                Ok(SentinelConnection {
                    driver,
                    broken,
                    last_use: Arc::new(last_use),
                })
            }
        };
        let clock = &**connector.clock();
        self.connection
            .get(clock, connector.max_connect_time(), works, make)
            .await
    }

    fn refused(&self, refusal: &ServerError, primary: &str) -> Error {
        let at = &self.endpoint;
        let (code, detail) = error::code_and_detail(refusal);
        match code {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Error::new(
                ErrorKind::AccessDenied,
                format!(
                    "the sentinel at {at} refused the credentials, or the user may not do what it \
                     takes (options `sentinel_user`, `sentinel_password`): {detail}"
                ),
            ),
            _ if detail.contains("No such master") => Error::new(
                ErrorKind::Unavailable,
                format!("the sentinel at {at} knows no primary of the name {primary}"),
            ),
            _ if detail.contains("unknown command") || detail.contains("Unknown sentinel") => {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("{at} is no sentinel of Redis 6.2 or newer: {detail}"),
                )
            }
            _ => return error::of_question(refusal, &at.to_string()),
        }
        .on(BACKEND)
    }

    fn malformed_answer(&self) -> Error {
        let at = &self.endpoint;
        Error::new(
            ErrorKind::Unavailable,
            format!("{at} does not answer like a sentinel"),
        )
        .on(BACKEND)
    }
}

impl std::fmt::Debug for SentinelConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentinelConnection").finish_non_exhaustive()
    }
}

impl AsyncPushSender for SwitchListener {
    // The driver calls this function in its own task, so the function must not block.
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Message => {
                Sentinels::ask_now(&self.sentinels);
            }
            PushKind::Disconnection => self.broken.store(true, Ordering::Release),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for SwitchListener {
    fn drop(&mut self) {
        // The driver's task ends here, perhaps because its runtime was dropped.
        self.broken.store(true, Ordering::Release);
    }
}
