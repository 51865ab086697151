//! Asks the sentinels in rounds for the primary.
//!
//! One sentinel, or several that are cut off together with an old primary, still name the old
//! primary, and its clients still reach it. So a primary is used only while more than half of all
//! sentinels of the deployment name it. Two majorities share a sentinel: once a majority names
//! another primary, no later round finds a majority for the old one. A lease counts at most from
//! the first question of the last round, so it ends within one TTL of that moment.
//!
//! This module never sends a question over a connection that locks use. This module draws no
//! conclusion from the order of the answers.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Moment, Result, sync::Mutex};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};

use crate::{
    config::Endpoint,
    connection::{Connection, Connector, Server, SingleFlight},
    error::BACKEND,
    sentinels::{
        last_majority::{LastMajority, NamedPrimary},
        sentinel::{Sentinel, SentinelAnswer},
        votes::{OtherSentinel, Votes},
    },
};

/// The maximum age of a round that any operation uses. Before a grant, [`Sentinels::freshness`]
/// lowers this limit.
const MAX_ROUND_AGE: Duration = Duration::from_secs(5);

/// The divisor of the TTL that gives the maximum age of a round before a grant: one sixth of the
/// lease.
const LEASE_PART: u32 = 6;

/// The sentinels of one handle, and the connection to the primary that they name.
pub(crate) struct Sentinels {
    me: Weak<Self>,
    /// The sentinels' name for the primary.
    primary: String,
    connector: Arc<Connector>,
    last_majority: Arc<LastMajority>,
    // Std mutexes: they are held for operations on short lists only, never across an await.
    sentinels: Mutex<KnownSentinels>,
    round: SingleFlight<()>,
    server: Mutex<Option<Arc<Server>>>,
}

#[derive(Debug, Default)]
struct KnownSentinels {
    /// The sentinels in the configuration.
    configured: Vec<Arc<Sentinel>>,
    /// The sentinels that other sentinels reported.
    learned: Vec<Arc<Sentinel>>,
    closed: bool,
}

impl Sentinels {
    pub(crate) fn new(
        connector: &Arc<Connector>,
        last_majority: &Arc<LastMajority>,
        configured: &[Endpoint],
        primary: &str,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| {
            let sentinel =
                |endpoint: &Endpoint| Arc::new(Sentinel::new(endpoint.clone(), Weak::clone(me)));
            let configured = configured.iter().map(sentinel).collect();
            Self {
                me: Weak::clone(me),
                primary: primary.to_owned(),
                connector: Arc::clone(connector),
                last_majority: Arc::clone(last_majority),
                sentinels: Mutex::new(KnownSentinels {
                    configured,
                    ..KnownSentinels::default()
                }),
                round: SingleFlight::default(),
                server: Mutex::default(),
            }
        })
    }

    /// Returns the maximum age of a round for a lease of this TTL.
    pub(crate) fn freshness(ttl: Option<Duration>) -> Duration {
        ttl.map_or(MAX_ROUND_AGE / 5, |ttl| {
            (ttl / LEASE_PART).min(MAX_ROUND_AGE)
        })
    }

    /// Returns the connection to the primary, if the last round is recent enough and the connection
    /// works.
    pub(crate) fn live(&self) -> Option<Arc<Connection>> {
        let now = self.connector.clock().now();
        let named = self
            .last_majority
            .last()
            .filter(|named| now.since(named.asked) <= MAX_ROUND_AGE)?;
        let server = self.server.lock();
        let server = server
            .as_ref()
            .filter(|server| server.endpoint == named.primary)?;
        server.live()
    }

    /// Asks the sentinels, and connects to the primary that they name.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when no majority names a primary. No operation was sent.
    pub(crate) async fn connect(&self) -> Result<Arc<Connection>> {
        let named = self.asked_since(self.connector.clock().now()).await?;
        let server = self.server(&named.primary);
        server.connect(&self.connector).await
    }

    /// Returns the moment of the first question of a round that is no older than `max_age`. This is
    /// the last round if it is recent enough, otherwise a new one.
    ///
    /// # Errors
    /// As [`Sentinels::connect`].
    pub(crate) async fn confirm_primary(&self, max_age: Duration) -> Result<Moment> {
        let now = self.connector.clock().now();
        if let Some(named) = self.last_majority.last() {
            let age = now.since(named.asked);
            if age <= max_age {
                if age > max_age / 2 {
                    // A new round begins before the last one is too old. So the next caller finds a
                    // recent round and does not wait.
                    let _ = self.get_round(now).now_or_never();
                }
                return Ok(named.asked);
            }
        }
        self.asked_since(now).await.map(|named| named.asked)
    }

    /// Returns the result of a round whose first question was sent at `earliest` or later.
    ///
    /// # Errors
    /// As [`Sentinels::connect`].
    pub(crate) async fn asked_since(&self, earliest: Moment) -> Result<NamedPrimary> {
        // The round in progress may have begun too early. The round after it begins late enough.
        for _ in 0..2 {
            let answered = self.get_round(earliest).await;
            if let Some(named) = self.last_majority.since(earliest) {
                return Ok(named);
            }
            answered?;
        }
        Err(unavailable("the sentinels answered too late".into()))
    }

    /// Returns the number of sentinels, and the number of those that name the primary.
    ///
    /// # Errors
    /// As [`Sentinels::connect`].
    pub(crate) async fn examine(&self) -> Result<(usize, usize)> {
        let limit = self.connector.attempt_timeout();
        let (votes, named, _) = self.ask_all(limit, true).await;
        let named = named.ok_or_else(|| self.no_majority(&votes, None))?;
        Ok((votes.sentinels(), votes.votes_for(&named)))
    }

    /// Begins a round, because a sentinel reports that another primary serves. The other sentinels
    /// will soon report the same. The driver's task calls this, so it must not block.
    pub(super) fn ask_now(me: &Weak<Self>) {
        let Some(me) = me.upgrade() else { return };
        let now = me.connector.clock().now();
        tokio::spawn(async move {
            // The result is ignored: an operation that needs the result begins its own round.
            if let Ok(named) = me.asked_since(now).await {
                me.close_former_primary(&named.primary);
            }
        });
    }

    pub(crate) fn close(&self) {
        self.round.close();
        let mut sentinels = self.sentinels.lock();
        sentinels.closed = true;
        for sentinel in sentinels.configured.iter().chain(&sentinels.learned) {
            sentinel.close();
        }
        drop(sentinels);
        if let Some(server) = &*self.server.lock() {
            server.close();
        }
    }

    async fn get_round(&self, earliest: Moment) -> Result<()> {
        let clock = &**self.connector.clock();
        let good = |(): &()| self.last_majority.since(earliest).is_some();
        let me = Weak::clone(&self.me);
        let make = || async move {
            match me.upgrade() {
                Some(me) => me.hold_round().await,
                None => Err(unavailable("the store was closed".into())),
            }
        };
        self.round
            .get(clock, self.connector.max_connect_time(), good, make)
            .await
    }

    async fn hold_round(&self) -> Result<()> {
        let asked = self.connector.clock().now();
        let (votes, named, refused) = self.ask_all(self.connector.attempt_timeout(), false).await;
        let primary = named.ok_or_else(|| self.no_majority(&votes, refused))?;
        let named = NamedPrimary { primary, asked };
        self.last_majority
            .record(named, votes.sentinels(), self.connector.server_epochs());
        Ok(())
    }

    /// Asks every sentinel, until a majority names one primary. With `all`, until all sentinels
    /// have answered.
    async fn ask_all(
        &self,
        limit: Duration,
        all: bool,
    ) -> (Votes, Option<Endpoint>, Option<Error>) {
        let mut votes = Votes::new(self.last_majority.sentinels());
        let mut refused: Option<Error> = None;
        let mut named = None;
        let mut reported = Vec::new();
        let ask = |sentinel: Arc<Sentinel>| async move {
            let answer = sentinel.ask(&self.connector, &self.primary).await;
            (sentinel, answer)
        };
        let mut asked: FuturesUnordered<_> = self.known().into_iter().map(ask).collect();
        let over = self.connector.clock().sleep(limit);
        tokio::pin!(over);
        loop {
            let answer = tokio::select! {
                biased;
                answer = asked.next() => answer,
                () = &mut over => break,
            };
            match answer {
                None => break,
                Some((sentinel, Ok(SentinelAnswer { vote, others }))) => {
                    sentinel.record_id(&vote.id);
                    votes.count(&vote);
                    reported.extend(others.iter().cloned());
                    asked.extend(self.learn(others).into_iter().map(ask));
                    named = votes.elected().cloned();
                    if named.is_some() && !all {
                        break;
                    }
                }
                Some((_, Err(error))) => {
                    // A wrong password is a more useful error than an unreachable sentinel.
                    if refused.as_ref().is_none_or(Error::is_retryable) {
                        refused = Some(error);
                    }
                }
            }
        }
        if named.is_some() {
            self.forget_all_but(&reported);
        }
        (votes, named, refused)
    }

    fn known(&self) -> Vec<Arc<Sentinel>> {
        let sentinels = self.sentinels.lock();
        let all = sentinels.configured.iter().chain(&sentinels.learned);
        all.cloned().collect()
    }

    /// Stores the reported sentinels that are new, and returns these.
    fn learn(&self, others: Vec<OtherSentinel>) -> Vec<Arc<Sentinel>> {
        let mut sentinels = self.sentinels.lock();
        let mut new = Vec::new();
        for other in others {
            let mut known = sentinels.configured.iter().chain(&sentinels.learned);
            let is_known =
                known.any(|sentinel| sentinel.is_at(&other) || sentinel.is_configured_as(&other));
            if is_known || sentinels.closed {
                continue;
            }
            let sentinel = Arc::new(Sentinel::learned(other, Weak::clone(&self.me)));
            sentinels.learned.push(Arc::clone(&sentinel));
            new.push(sentinel);
        }
        new
    }

    /// Removes learned addresses that no sentinel reports any more, and those that lead to the same
    /// sentinel as a configured address.
    fn forget_all_but(&self, reported: &[OtherSentinel]) {
        let mut sentinels = self.sentinels.lock();
        let KnownSentinels {
            configured,
            learned,
            ..
        } = &mut *sentinels;
        learned.retain(|sentinel| {
            let stays = reported.iter().any(|other| {
                sentinel.is_at(other) && !configured.iter().any(|own| own.is_configured_as(other))
            });
            if !stays {
                sentinel.close();
            }
            stays
        });
    }

    /// Closes the connection to the former primary, which wakes the waiters that rely on it.
    fn close_former_primary(&self, primary: &Endpoint) {
        let mut known = self.server.lock();
        if let Some(former) = known.take_if(|server| server.endpoint != *primary) {
            former.close();
        }
    }

    fn server(&self, primary: &Endpoint) -> Arc<Server> {
        let mut known = self.server.lock();
        match &*known {
            Some(server) if server.endpoint == *primary => Arc::clone(server),
            former => {
                if let Some(former) = former {
                    former.close();
                }
                let server = Arc::new(Server::new(primary.clone(), self.connector.server_epochs()));
                if self.sentinels.lock().closed {
                    server.close();
                }
                *known = Some(Arc::clone(&server));
                server
            }
        }
    }

    fn no_majority(&self, votes: &Votes, refused: Option<Error>) -> Error {
        let at = &self.connector.config().topology;
        match refused {
            Some(refused) if votes.answered() == 0 => refused,
            refused => {
                let error = unavailable(format!("{at}: {}", votes.explain()));
                match refused {
                    Some(cause) => error.caused_by(cause),
                    None => error,
                }
            }
        }
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("primary", &self.primary)
            .finish_non_exhaustive()
    }
}

fn unavailable(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, message).on(BACKEND)
}
