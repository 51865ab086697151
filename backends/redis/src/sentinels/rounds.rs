//! Whom the sentinels call the primary, asked of a majority of them.
//!
//! One sentinel, or several that are cut off together with an old primary, go on naming it, and
//! its clients still reach it. So a primary is used only while more than half of all sentinels of
//! the deployment name it. Two majorities share a sentinel: once a majority names another primary,
//! no later question finds one for the old. A lease counts from the first question of the last
//! round at the most, so it ends within one TTL of that moment.
//!
//! This module never sends a question over a connection that locks use, and it decides nothing
//! from the order in which answers come.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Moment, Result};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};

use crate::{
    config::Endpoint,
    connection::{Dialer, Lasting, Link, Node},
    error::BACKEND,
    sentinels::{
        peer::{Answer, OnSwitch, Peer},
        view::{Named, View},
        votes::{Other, Votes},
    },
};

/// How old the last round may be when something is asked that rests on no lease.
const STALE: Duration = Duration::from_secs(5);

/// The part of a lease that the last round before it may be old.
const PART: u32 = 6;

/// The sentinels of one handle, and its connection to the primary that they name.
pub(crate) struct Sentinels {
    me: Weak<Self>,
    on_switch: OnSwitch,
    /// The name they know the primary by.
    primary: String,
    dialer: Arc<Dialer>,
    view: Arc<View>,
    // Std mutexes: held for a look only.
    peers: Mutex<Peers>,
    round: Lasting<()>,
    node: Mutex<Option<Arc<Node>>>,
}

#[derive(Debug, Default)]
struct Peers {
    /// Those that the user named.
    configured: Vec<Arc<Peer>>,
    /// Those that other sentinels named.
    learned: Vec<Arc<Peer>>,
    closed: bool,
}

impl Sentinels {
    pub(crate) fn new(
        dialer: &Arc<Dialer>,
        view: &Arc<View>,
        configured: &[Endpoint],
        primary: &str,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| {
            let on_switch = OnSwitch::new({
                let me = Weak::clone(me);
                move || Self::hurry(&me)
            });
            let peer =
                |endpoint: &Endpoint| Arc::new(Peer::new(endpoint.clone(), on_switch.clone()));
            let configured = configured.iter().map(peer).collect();
            Self {
                me: Weak::clone(me),
                on_switch: on_switch.clone(),
                primary: primary.to_owned(),
                dialer: Arc::clone(dialer),
                view: Arc::clone(view),
                peers: Mutex::new(Peers {
                    configured,
                    ..Peers::default()
                }),
                round: Lasting::default(),
                node: Mutex::default(),
            }
        })
    }

    /// How old a round may be that a lease of this TTL rests on.
    pub(crate) fn freshness(ttl: Option<Duration>) -> Duration {
        ttl.map_or(STALE / 5, |ttl| (ttl / PART).min(STALE))
    }

    /// The connection to the primary, if the last round still counts and the connection works.
    pub(crate) fn live(&self) -> Option<Arc<Link>> {
        let now = self.dialer.clock().now();
        let named = self
            .view
            .last()
            .filter(|named| now.since(named.asked) <= STALE)?;
        let node = lock(&self.node);
        let node = node
            .as_ref()
            .filter(|node| node.endpoint == named.primary)?;
        node.live()
    }

    /// Asks the sentinels, and connects to the primary that they name.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when no majority names one; nothing happened.
    pub(crate) async fn connect(&self) -> Result<Arc<Link>> {
        let named = self.asked_since(self.dialer.clock().now()).await?;
        let node = self.node(&named.primary);
        node.connect(&self.dialer).await
    }

    /// The first question of a round that is no older than this; the last one if that will do.
    ///
    /// # Errors
    /// As [`Sentinels::connect`].
    pub(crate) async fn vouched(&self, no_older: Duration) -> Result<Moment> {
        let now = self.dialer.clock().now();
        if let Some(named) = self.view.last() {
            let age = now.since(named.asked);
            if age <= no_older {
                if age > no_older / 2 {
                    // The next caller finds a fresh one, and waits for nobody.
                    let _ = self.get_round(now).now_or_never();
                }
                return Ok(named.asked);
            }
        }
        self.asked_since(now).await.map(|named| named.asked)
    }

    /// What a round came to whose first question was sent no earlier than this.
    ///
    /// # Errors
    /// As [`Sentinels::connect`].
    pub(crate) async fn asked_since(&self, earliest: Moment) -> Result<Named> {
        // The round that is under way may have begun too early. The next one has not.
        for _ in 0..2 {
            let answered = self.get_round(earliest).await;
            if let Some(named) = self.view.since(earliest) {
                return Ok(named);
            }
            answered?;
        }
        Err(unavailable("the sentinels answered too late".into()))
    }

    /// How many sentinels there are, and how many of them name the primary.
    ///
    /// # Errors
    /// As [`Sentinels::connect`].
    pub(crate) async fn examine(&self) -> Result<(usize, usize)> {
        let limit = self.dialer.patience();
        let (votes, named, _) = self.ask_all(limit, true).await;
        let named = named.ok_or_else(|| self.divided(&votes, None))?;
        Ok((votes.sentinels(), votes.votes_for(&named)))
    }

    /// A sentinel says that another primary serves: the others know it soon as well.
    fn hurry(me: &Weak<Self>) {
        let Some(me) = me.upgrade() else { return };
        let now = me.dialer.clock().now();
        tokio::spawn(async move {
            // Nobody waits for this: whoever needs an answer asks again.
            if let Ok(named) = me.asked_since(now).await {
                me.part_with_former(&named.primary);
            }
        });
    }

    pub(crate) fn hang_up(&self) {
        self.round.close();
        let mut peers = lock(&self.peers);
        peers.closed = true;
        for peer in peers.configured.iter().chain(&peers.learned) {
            peer.hang_up();
        }
        drop(peers);
        if let Some(node) = &*lock(&self.node) {
            node.hang_up();
        }
    }

    async fn get_round(&self, earliest: Moment) -> Result<()> {
        let clock = &**self.dialer.clock();
        let good = |(): &()| self.view.since(earliest).is_some();
        let me = Weak::clone(&self.me);
        let make = || async move {
            match me.upgrade() {
                Some(me) => me.hold_round().await,
                None => Err(unavailable("the store's handle is gone".into())),
            }
        };
        self.round
            .get(clock, self.dialer.longest(), good, make)
            .await
    }

    async fn hold_round(&self) -> Result<()> {
        let asked = self.dialer.clock().now();
        let (votes, named, refused) = self.ask_all(self.dialer.patience(), false).await;
        let primary = named.ok_or_else(|| self.divided(&votes, refused))?;
        let named = Named { primary, asked };
        self.view
            .learned(named, votes.sentinels(), self.dialer.standings());
        Ok(())
    }

    /// Asks every sentinel, until a majority names one primary, or `all` have answered.
    async fn ask_all(
        &self,
        limit: Duration,
        all: bool,
    ) -> (Votes, Option<Endpoint>, Option<Error>) {
        let mut votes = Votes::new(self.view.sentinels());
        let mut refused: Option<Error> = None;
        let mut named = None;
        let mut told = Vec::new();
        let ask = |peer: Arc<Peer>| async move {
            let answer = peer.ask(&self.dialer, &self.primary).await;
            (peer, answer)
        };
        let mut asked: FuturesUnordered<_> = self.known().into_iter().map(ask).collect();
        let over = self.dialer.clock().sleep(limit);
        tokio::pin!(over);
        loop {
            let answer = tokio::select! {
                biased;
                answer = asked.next() => answer,
                () = &mut over => break,
            };
            match answer {
                None => break,
                Some((peer, Ok(Answer { said, others }))) => {
                    peer.is(&said.id);
                    votes.count(&said);
                    told.extend(others.iter().cloned());
                    asked.extend(self.learn(others).into_iter().map(ask));
                    named = votes.elected().cloned();
                    if named.is_some() && !all {
                        break;
                    }
                }
                Some((_, Err(error))) => {
                    // A wrong password says more than a server that is gone.
                    if refused.as_ref().is_none_or(Error::is_retryable) {
                        refused = Some(error);
                    }
                }
            }
        }
        if named.is_some() {
            self.forget_all_but(&told);
        }
        (votes, named, refused)
    }

    fn known(&self) -> Vec<Arc<Peer>> {
        let peers = lock(&self.peers);
        let all = peers.configured.iter().chain(&peers.learned);
        all.cloned().collect()
    }

    /// Keeps the sentinels that are new, and gives them back.
    fn learn(&self, others: Vec<Other>) -> Vec<Arc<Peer>> {
        let mut peers = lock(&self.peers);
        let mut new = Vec::new();
        for other in others {
            let mut known = peers.configured.iter().chain(&peers.learned);
            let is_known = known.any(|peer| peer.is_at(&other) || peer.is_configured_as(&other));
            if is_known || peers.closed {
                continue;
            }
            let peer = Arc::new(Peer::learned(other, self.on_switch.clone()));
            peers.learned.push(Arc::clone(&peer));
            new.push(peer);
        }
        new
    }

    /// Forgets learned addresses that no sentinel tells any more, or that lead where a configured
    /// address leads.
    fn forget_all_but(&self, told: &[Other]) {
        let mut peers = lock(&self.peers);
        let Peers {
            configured,
            learned,
            ..
        } = &mut *peers;
        learned.retain(|peer| {
            let stays = told.iter().any(|other| {
                peer.is_at(other) && !configured.iter().any(|own| own.is_configured_as(other))
            });
            if !stays {
                peer.hang_up();
            }
            stays
        });
    }

    /// Lets go of the primary of before. Those who wait for its word are woken.
    fn part_with_former(&self, primary: &Endpoint) {
        let mut known = lock(&self.node);
        if let Some(former) = known.take_if(|node| node.endpoint != *primary) {
            former.hang_up();
        }
    }

    fn node(&self, primary: &Endpoint) -> Arc<Node> {
        let mut known = lock(&self.node);
        match &*known {
            Some(node) if node.endpoint == *primary => Arc::clone(node),
            former => {
                if let Some(former) = former {
                    former.hang_up();
                }
                let node = Arc::new(Node::new(primary.clone(), self.dialer.standings()));
                if lock(&self.peers).closed {
                    node.hang_up();
                }
                *known = Some(Arc::clone(&node));
                node
            }
        }
    }

    fn divided(&self, votes: &Votes, refused: Option<Error>) -> Error {
        let at = &self.dialer.config().topology;
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
