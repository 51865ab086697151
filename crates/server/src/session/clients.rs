//! The connections of each client, by their numbers.
//!
//! A client that loses its connection does not know which of its operations were read. On the next
//! connection it undoes an acquire without an answer. If the old connection still had that acquire
//! unread in its buffers, the undo would be overtaken, and the lock would stay held without a
//! holder. So a client numbers its connections, and this module orders them.
//!
//! Invariant: two sessions of one client never carry out operations at the same time, and the
//! number of a session is higher than those of all sessions of the client before.

use std::{collections::HashMap, sync::Arc, time::Duration};

use distlock_core::{Clock, Moment, sync::Mutex};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use uuid::Uuid;

/// The time for which the number of a client without a session is kept. A connection that is read
/// later than this after its client made a newer one is older than any lease and any wait.
const KEPT: Duration = Duration::from_secs(600);

/// The number of clients at which those without a session are looked through.
const SWEEP_AT: usize = 1024;

/// The most clients without a session that are kept. A client chooses its id, and nothing keeps it
/// from choosing a new one for each session.
const MOST_KEPT: usize = 250_000;

/// The clients that have or had a session.
#[derive(Debug)]
pub(crate) struct Clients {
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    clients: HashMap<Uuid, Client>,
    sweep_at: usize,
    /// See [`MOST_KEPT`].
    most: usize,
}

#[derive(Debug)]
struct Client {
    connection: u64,
    /// Ends the session, which then reads nothing more.
    end: CancellationToken,
    /// Cancelled when the session and all before it have ended.
    ended: CancellationToken,
    /// When the session ended; `None` while it lives.
    since: Option<Moment>,
}

/// The place of a session. Its drop says that all operations of the session have ended.
#[derive(Debug)]
pub(super) struct Place {
    clients: Arc<Clients>,
    client: Uuid,
    connection: u64,
    end: CancellationToken,
    ended: CancellationToken,
}

impl Clients {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            known: Mutex::new(Known {
                clients: HashMap::new(),
                sweep_at: SWEEP_AT,
                most: MOST_KEPT,
            }),
        }
    }

    /// Ends the older sessions of the client, and waits until their operations have ended.
    pub(super) async fn admit(
        self: &Arc<Self>,
        client: Uuid,
        connection: u64,
    ) -> Result<Place, Status> {
        let entry = Client {
            connection,
            end: CancellationToken::new(),
            ended: CancellationToken::new(),
            since: None,
        };
        let (end, ended) = (entry.end.clone(), entry.ended.clone());
        let former = self.enter(client, entry)?;
        let place = Place {
            clients: Arc::clone(self),
            client,
            connection,
            end,
            ended,
        };
        if let Some(former) = former {
            former.end.cancel();
            // Also if a newer session comes meanwhile: that one waits for this one.
            former.ended.cancelled().await;
        }
        Ok(place)
    }

    /// Stores the newest connection of a client, and returns the one before.
    fn enter(&self, client: Uuid, entry: Client) -> Result<Option<Client>, Status> {
        let now = self.clock.now();
        let mut known = self.known.lock();
        if let Some(newest) = known.clients.get(&client)
            && newest.connection >= entry.connection
        {
            return Err(Status::failed_precondition(format!(
                "connection {} of this client is served already, and this is connection {}",
                newest.connection, entry.connection
            )));
        }
        if known.clients.len() >= known.sweep_at {
            known.sweep(now);
        }
        Ok(known.clients.insert(client, entry))
    }
}

impl Known {
    /// Forgets clients without a session: those that are over for long, and if they are still too
    /// many, the older half.
    fn sweep(&mut self, now: Moment) {
        self.clients
            .retain(|_, it| it.since.is_none_or(|since| now.since(since) < KEPT));
        let mut ends: Vec<_> = self.clients.values().filter_map(|it| it.since).collect();
        if ends.len() >= self.most / 2 {
            let middle = ends.len() / 2;
            let (_, middle, _) = ends.select_nth_unstable(middle);
            self.clients
                .retain(|_, it| it.since.is_none_or(|since| since > *middle));
        }
        let live = self.clients.len();
        self.sweep_at = (live * 2).max(SWEEP_AT).min(live + self.most / 2);
    }
}

impl Place {
    /// Whether a newer connection of the client has come.
    pub(super) fn is_replaced(&self) -> bool {
        self.end.is_cancelled()
    }

    /// Resolves when a newer connection of the client has come.
    pub(super) async fn replaced(&self) {
        self.end.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = self.clients.clock.now();
        let mut known = self.clients.known.lock();
        if let Some(client) = known.clients.get_mut(&self.client)
            && client.connection == self.connection
        {
            client.since.get_or_insert(now);
        }
        drop(known);
        self.ended.cancel();
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_newer_connection_waits_for_the_operations_of_the_older_ones() {
        let clients = Arc::new(Clients::new(Arc::new(ManualClock::new())));
        let client = Uuid::new_v4();
        let first = clients.admit(client, 1).await.unwrap();
        let mut second = Box::pin(clients.admit(client, 2));
        assert!((&mut second).now_or_never().is_none());
        assert!(
            first.replaced().now_or_never().is_some(),
            "it reads no more"
        );
        // The third one comes while the second one still waits.
        let mut third = Box::pin(clients.admit(client, 3));
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        let second = second.now_or_never().unwrap().unwrap();
        assert!(second.replaced().now_or_never().is_some());
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        let third = third.now_or_never().unwrap().unwrap();
        assert!(third.replaced().now_or_never().is_none());
        let other = clients.admit(Uuid::new_v4(), 1).now_or_never();
        assert!(other.unwrap().is_ok(), "another client");
    }

    #[tokio::test]
    async fn a_connection_that_is_read_late_is_refused_also_after_the_newer_one_has_ended() {
        let clock = Arc::new(ManualClock::new());
        let clients = Arc::new(Clients::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let client = Uuid::new_v4();
        drop(clients.admit(client, 2).await.unwrap());
        for late in [1, 2] {
            let refused = clients.admit(client, late).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        }
        let again = clients.admit(client, 3).await.unwrap();
        assert!(again.replaced().now_or_never().is_none());
    }

    #[tokio::test]
    async fn clients_without_a_session_are_forgotten_after_a_while() {
        let clock = Arc::new(ManualClock::new());
        let clients = Arc::new(Clients::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let kept = clients.admit(Uuid::new_v4(), 1).await.unwrap();
        for _ in 1..SWEEP_AT {
            drop(clients.admit(Uuid::new_v4(), 1).await.unwrap());
        }
        assert_eq!(clients.known.lock().clients.len(), SWEEP_AT);
        clock.advance(KEPT);
        drop(clients.admit(Uuid::new_v4(), 1).await.unwrap());
        assert_eq!(clients.known.lock().clients.len(), 2);
        drop(kept);
    }

    #[tokio::test]
    async fn of_very_many_clients_without_a_session_the_newest_are_kept() {
        let clock = Arc::new(ManualClock::new());
        let clients = Arc::new(Clients::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let most = 3 * SWEEP_AT;
        clients.known.lock().most = most;
        let live = clients.admit(Uuid::new_v4(), 1).await.unwrap();
        for _ in 0..3 * most {
            let client = Uuid::new_v4();
            drop(clients.admit(client, 2).await.unwrap());
            assert!(clients.admit(client, 1).await.is_err(), "just now");
            clock.advance(Duration::from_millis(1));
            assert!(clients.known.lock().clients.len() <= most);
        }
        assert!(clients.admit(live.client, 1).await.is_err(), "it lives");
    }
}
