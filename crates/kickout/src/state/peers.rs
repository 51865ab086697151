//! Deadline, concurrency limit and circuit breaker for calls to peers.
//!
//! A dead peer costs a login only a bounded time, and slow deliveries never delay kicks. A peer
//! that cannot be called is counted and logged with the cause, never left in silence.

use std::{collections::HashMap, sync::Arc, time::Duration};

use distlock_core::{Clock, Moment, at_most, sync::Mutex};
use tokio::sync::Semaphore;

use crate::{
    meters,
    model::{
        ident::{NodeId, SessionKey, Uid},
        node::NodeAddress,
        request::{DeliverRequest, DeliverResult, KickRequest, KickResult, PeerError},
    },
    state::api::Peers,
};

/// Most calls of one kind to one node at the same time. The kinds are kicks and deliveries.
const MAX_CALLS: usize = 64;
/// Number of failures in a row after which the circuit to a node opens.
const FAILURES_TO_OPEN: u32 = 5;
/// Time for which a circuit stays open.
const OPEN_TIME: Duration = Duration::from_secs(1);
/// Period at which one kick may try a node behind an open circuit. The period is short, because an
/// older session must end soon after its node is reachable again.
const PROBE_PERIOD: Duration = Duration::from_millis(100);
/// Number of failures in a row after which the log, and the list of nodes, say that a node cannot
/// be called. One late answer of a busy node is not worth a line.
const FAILURES_TO_TELL: u32 = 2;
/// Least time between two warnings about one node.
const WARNING_PERIOD: Duration = Duration::from_secs(60);
/// Time after which an unused link is removed.
const UNUSED_LINK_LIFE: Duration = Duration::from_secs(60);

/// Deadlines, bounded concurrency and a circuit breaker around [`Peers`].
#[derive(Debug)]
pub(crate) struct PeerClient {
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    links: Mutex<HashMap<NodeId, Arc<PeerLink>>>,
}

#[derive(Debug)]
struct PeerLink {
    /// Permits for calls that a login waits for: kicks, and calls for idle times.
    kicks: Semaphore,
    /// Permits for deliveries. Deliveries wait for clients that read slowly, so they must not use
    /// up the permits of kicks.
    deliveries: Semaphore,
    health: Mutex<PeerHealth>,
}

#[derive(Debug)]
struct PeerHealth {
    /// Time of the last use of the link.
    asked: Moment,
    /// Number of failures in a row.
    failures: u32,
    open_until: Option<Moment>,
    /// Time at which the next kick may try the node although the circuit is open.
    probe_at: Moment,
    /// Why the last call failed; `None` if it was answered.
    failure: Option<PeerError>,
    /// Time of the last warning since the node was last known to answer.
    warned: Option<Moment>,
}

/// The line of the log that an outcome is worth.
#[derive(Debug, PartialEq, Eq)]
enum LinkNews {
    /// The node cannot be called. The number is that of the failures in a row.
    Unreachable(u32),
    /// The node answers again after such a line.
    Reachable,
}

impl PeerClient {
    pub(crate) fn new(peers: Arc<dyn Peers>, clock: Arc<dyn Clock>) -> Self {
        Self {
            peers,
            clock,
            links: Mutex::default(),
        }
    }

    /// Waits until a kick may be sent. Behind an open circuit, this kick waits until the node
    /// answers another kick, or until this kick may try the node. The wait lasts no longer than
    /// that other kick may take, because most nodes behind an open circuit are dead. The call that
    /// follows takes up to `deadline`, so the wait leaves that much of `limit`.
    ///
    /// # Errors
    /// [`PeerError::NotSent`] when this kick may not be sent within that time.
    pub(crate) async fn wait_to_kick(
        &self,
        node: &NodeId,
        limit: Duration,
        deadline: Duration,
    ) -> Result<(), PeerError> {
        let link = self.link(node);
        // A kick that tries the node is answered within `deadline`, and a waiting kick notices that
        // answer within PROBE_PERIOD.
        let limit = limit.saturating_sub(deadline).min(deadline + PROBE_PERIOD);
        let turn = async {
            while let Err(wait) = link.reserve_kick(self.clock.now()) {
                self.clock.sleep(wait).await;
            }
        };
        let turn = at_most(&*self.clock, limit, turn).await;
        turn.ok_or_else(|| circuit_open_error(node))
    }

    /// Sends a kick. The caller has waited with [`wait_to_kick`](Self::wait_to_kick).
    pub(crate) async fn kick(
        &self,
        to: &NodeAddress,
        request: KickRequest,
        deadline: Duration,
    ) -> Result<KickResult, PeerError> {
        let call = self.peers.kick(to, request);
        let link = self.link(&to.node);
        self.call(to, &link, &link.kicks, deadline, call).await
    }

    /// Sends a delivery. Fails at once while the circuit is open.
    pub(crate) async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
        deadline: Duration,
    ) -> Result<DeliverResult, PeerError> {
        let call = self.peers.deliver(to, request);
        let link = self.usable_link(&to.node)?;
        self.call(to, &link, &link.deliveries, deadline, call).await
    }

    /// Asks a node for the idle times of an account. Fails at once while the circuit is open.
    pub(crate) async fn idle(
        &self,
        to: &NodeAddress,
        uid: &Uid,
        deadline: Duration,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        let call = self.peers.idle(to, uid);
        let link = self.usable_link(&to.node)?;
        self.call(to, &link, &link.kicks, deadline, call).await
    }

    /// Tells a node that messages are stored for these accounts. An open circuit does not stop the
    /// call: it notices that the node can be called again.
    pub(crate) async fn hand_out(
        &self,
        to: &NodeAddress,
        uids: &[Uid],
        deadline: Duration,
    ) -> Result<(), PeerError> {
        let call = self.peers.hand_out(to, uids);
        let link = self.link(&to.node);
        self.call(to, &link, &link.kicks, deadline, call).await
    }

    /// Why a node cannot be called; `None` if it answers, or was never called.
    pub(crate) fn failure_of(&self, node: &NodeId) -> Option<PeerError> {
        let links = self.links.lock();
        let link = Arc::clone(links.get(node)?);
        drop(links);
        let health = link.health.lock();
        let told = health.failures >= FAILURES_TO_TELL;
        health.failure.clone().filter(|_| told)
    }

    /// Makes one call within its deadline, and records whether the node answered.
    async fn call<T>(
        &self,
        to: &NodeAddress,
        link: &PeerLink,
        permits: &Semaphore,
        deadline: Duration,
        call: impl Future<Output = Result<T, PeerError>>,
    ) -> Result<T, PeerError> {
        let started = self.clock.now();
        let permit = at_most(&*self.clock, deadline, permits.acquire())
            .await
            .and_then(Result::ok)
            .ok_or_else(|| {
                PeerError::NotSent(format!("too many calls to node {} are under way", to.node))
            })?;
        let left = deadline.saturating_sub(self.clock.now().since(started));
        let answer = at_most(&*self.clock, left, call).await.unwrap_or_else(|| {
            Err(PeerError::Unknown(format!(
                "no answer within {deadline:.1?}"
            )))
        });
        drop(permit);
        let failure = answer.as_ref().err();
        if failure.is_some() {
            metrics::counter!(meters::PEER_FAILED).increment(1);
        }
        let news = link.record_outcome(failure, self.clock.now());
        let (node, addr) = (&to.node, &to.addr);
        match (news, failure) {
            (Some(LinkNews::Unreachable(failures)), Some(error)) => tracing::warn!(
                %node, addr, failures, %error,
                "this node cannot call another one: until it can, sessions there end late when \
                 their account logs in here, and messages to them are stored"
            ),
            (Some(LinkNews::Reachable), _) => {
                tracing::warn!(%node, addr, "this node can call the other one again");
            }
            _ => {}
        }
        answer
    }

    /// The link to a node, or an error while its circuit is open.
    fn usable_link(&self, node: &NodeId) -> Result<Arc<PeerLink>, PeerError> {
        let link = self.link(node);
        if link.is_circuit_open(self.clock.now()) {
            return Err(circuit_open_error(node));
        }
        Ok(link)
    }

    /// The link to a node, which the first use makes.
    fn link(&self, node: &NodeId) -> Arc<PeerLink> {
        let now = self.clock.now();
        let mut links = self.links.lock();
        if !links.contains_key(node) {
            // Nodes may get a new name with every start, so unused links are removed.
            links.retain(|_, link| Arc::strong_count(link) > 1 || !link.is_unused(now));
        }
        let link = links.entry(node.clone()).or_insert_with(|| {
            Arc::new(PeerLink {
                kicks: Semaphore::new(MAX_CALLS),
                deliveries: Semaphore::new(MAX_CALLS),
                health: Mutex::new(PeerHealth {
                    asked: now,
                    failures: 0,
                    open_until: None,
                    probe_at: now,
                    failure: None,
                    warned: None,
                }),
            })
        });
        link.health.lock().asked = now;
        Arc::clone(link)
    }
}

fn circuit_open_error(node: &NodeId) -> PeerError {
    PeerError::NotSent(format!(
        "node {node} did not answer lately, and is tried again within a second"
    ))
}

impl PeerLink {
    /// Whether no call has used the link for a while.
    fn is_unused(&self, now: Moment) -> bool {
        now.since(self.health.lock().asked) > UNUSED_LINK_LIFE
    }

    fn is_circuit_open(&self, now: Moment) -> bool {
        let health = self.health.lock();
        health.open_until.is_some_and(|until| now < until)
    }

    /// Allows a kick now, or returns the time that the kick has to wait. Behind an open circuit, an
    /// allowed kick makes other kicks wait for `PROBE_PERIOD`.
    fn reserve_kick(&self, now: Moment) -> Result<(), Duration> {
        let mut health = self.health.lock();
        if health.open_until.is_none_or(|until| now >= until) {
            return Ok(());
        }
        let wait = health.probe_at.since(now);
        if wait.is_zero() {
            health.probe_at = now + PROBE_PERIOD;
            return Ok(());
        }
        Err(wait)
    }

    /// Notes the outcome of a call, which opens or closes the circuit. Returns what the log has to
    /// say about it.
    fn record_outcome(&self, failure: Option<&PeerError>, now: Moment) -> Option<LinkNews> {
        let mut health = self.health.lock();
        health.failure = failure.cloned();
        if failure.is_none() {
            health.failures = 0;
            health.open_until = None;
            return health.warned.take().map(|_| LinkNews::Reachable);
        }
        health.failures = health.failures.saturating_add(1);
        if health.failures >= FAILURES_TO_OPEN {
            // The number of failures is kept. So a single failure after `OPEN_TIME` opens the
            // circuit again.
            health.open_until = Some(now + OPEN_TIME);
        }
        let is_due = health
            .warned
            .is_none_or(|warned| now.since(warned) >= WARNING_PERIOD);
        (is_due && health.failures >= FAILURES_TO_TELL).then(|| {
            health.warned = Some(now);
            LinkNews::Unreachable(health.failures)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use async_trait::async_trait;
    use distlock_core::ManualClock;
    use futures_util::{FutureExt, future::join_all};
    use tokio::time::timeout;
    use uuid::Uuid;

    use super::*;
    use crate::model::{
        ident::{Boot, Generation, SessionId},
        notice::Code,
        request::Message,
    };

    /// A peer that counts the calls, and answers none unless `answers` is set.
    #[derive(Debug)]
    struct SilentPeer {
        kicks: AtomicUsize,
        /// If true, the peer answers kicks.
        answers: AtomicBool,
        /// Gets one permit for each delivery.
        deliveries: Semaphore,
    }

    impl Default for SilentPeer {
        fn default() -> Self {
            Self {
                kicks: AtomicUsize::new(0),
                answers: AtomicBool::new(false),
                deliveries: Semaphore::new(0),
            }
        }
    }

    #[async_trait]
    impl Peers for SilentPeer {
        async fn kick(&self, _: &NodeAddress, _: KickRequest) -> Result<KickResult, PeerError> {
            self.kicks.fetch_add(1, Ordering::Relaxed);
            if self.answers.load(Ordering::Relaxed) {
                return Ok(KickResult::AlreadyGone);
            }
            Err(PeerError::Unknown("no answer".into()))
        }

        async fn deliver(
            &self,
            _: &NodeAddress,
            _: DeliverRequest,
        ) -> Result<DeliverResult, PeerError> {
            self.deliveries.add_permits(1);
            std::future::pending().await
        }

        async fn hand_out(&self, _: &NodeAddress, _: &[Uid]) -> Result<(), PeerError> {
            let answers = self.answers.load(Ordering::Relaxed);
            let error = PeerError::NotSent("nothing listens there".into());
            answers.then_some(()).ok_or(error)
        }
    }

    fn node(name: &str) -> NodeAddress {
        NodeAddress {
            node: NodeId::new(name).unwrap(),
            boot: Boot::new(1),
            addr: String::new(),
        }
    }

    fn kick(to: &NodeAddress) -> KickRequest {
        KickRequest::new(
            Uid::new("u").unwrap(),
            session(to),
            Generation::new(1),
            Code::Superseded,
            Uuid::nil(),
            NodeId::new("n2").unwrap(),
        )
    }

    fn session(on: &NodeAddress) -> SessionKey {
        SessionKey {
            node: on.node.clone(),
            boot: on.boot,
            session: SessionId::random(),
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_gets_no_calls_for_a_while() {
        let clock = ManualClock::new();
        let peer = Arc::new(SilentPeer::default());
        let client = PeerClient::new(peer.clone(), Arc::new(clock.clone()));
        let to = node("n1");
        let second = Duration::from_secs(1);
        let ask = async || {
            let uid = Uid::new("u").unwrap();
            client.idle(&to, &uid, second).await.unwrap_err()
        };
        let kick = async || {
            let unanswered = client.kick(&to, kick(&to), second).await;
            assert!(matches!(unanswered, Err(PeerError::Unknown(_))));
        };
        for _ in 0..FAILURES_TO_OPEN {
            kick().await;
        }
        let refusal = ask().await;
        assert!(matches!(refusal, PeerError::NotSent(_)));
        clock.advance(OPEN_TIME);
        // This is the error of a peer that reports no idle times, so the call reached the peer.
        assert_ne!(ask().await, refusal);
        kick().await;
        assert_eq!(ask().await, refusal, "one failure is enough now");
    }

    /// A session behind an open circuit has to end as soon as its node is reachable again.
    #[tokio::test]
    async fn behind_an_open_circuit_one_kick_at_a_time_tries_the_node() {
        let clock = ManualClock::new();
        let peer = Arc::new(SilentPeer::default());
        let client = PeerClient::new(peer.clone(), Arc::new(clock.clone()));
        let to = node("n1");
        let second = Duration::from_secs(1);
        let wait_to_kick = || client.wait_to_kick(&to.node, second, second).now_or_never();
        for _ in 0..FAILURES_TO_OPEN {
            assert_eq!(wait_to_kick(), Some(Ok(())));
            let unanswered = client.kick(&to, kick(&to), second).await;
            assert!(matches!(unanswered, Err(PeerError::Unknown(_))));
        }
        assert_eq!(wait_to_kick(), Some(Ok(())));
        let refused = wait_to_kick().unwrap();
        assert!(
            refused.is_err(),
            "one is trying, and no time is left to wait for it"
        );
        clock.advance(PROBE_PERIOD);
        assert_eq!(wait_to_kick(), Some(Ok(())));
        // After an answer every kick may be sent.
        peer.answers.store(true, Ordering::Relaxed);
        assert!(client.kick(&to, kick(&to), second).await.is_ok());
        for _ in 0..3 {
            assert_eq!(wait_to_kick(), Some(Ok(())));
        }
    }

    /// A node that is reachable again may be slow at first. Only some of many kicks can try the
    /// node, and the other kicks must not give up before the node answers.
    #[tokio::test]
    async fn a_kick_waits_as_long_as_another_kick_may_take_and_no_longer() {
        for answers in [true, false] {
            let clock = ManualClock::new();
            let peer = Arc::new(SilentPeer::default());
            let client = PeerClient::new(peer.clone(), Arc::new(clock.clone()));
            let to = node("n1");
            let deadline = Duration::from_millis(300);
            for _ in 0..FAILURES_TO_OPEN {
                let unanswered = client.kick(&to, kick(&to), deadline).await;
                assert!(matches!(unanswered, Err(PeerError::Unknown(_))));
            }
            let wait_to_kick = || client.wait_to_kick(&to.node, Duration::from_secs(1), deadline);
            assert_eq!(wait_to_kick().now_or_never(), Some(Ok(())));
            // A permission that leaves no time for a call is useless: the call would count as a
            // failure of the node.
            let too_late = client
                .wait_to_kick(&to.node, deadline, deadline)
                .now_or_never();
            assert!(matches!(too_late, Some(Err(PeerError::NotSent(_)))));
            let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(wait_to_kick())).collect();
            let mut results = Vec::new();
            let mut look = || {
                waiting.retain_mut(|waiting| {
                    let result = waiting.now_or_never();
                    let waits = result.is_none();
                    results.extend(result);
                    waits
                });
                results.clone()
            };
            let mut took = Duration::ZERO;
            while took < deadline {
                look();
                clock.advance(PROBE_PERIOD);
                took += PROBE_PERIOD;
            }
            if answers {
                peer.answers.store(true, Ordering::Relaxed);
                assert!(client.kick(&to, kick(&to), deadline).await.is_ok());
            } else {
                assert_eq!(look(), [Ok(()), Ok(()), Ok(())], "one after the other");
            }
            clock.advance(PROBE_PERIOD);
            let results = look();
            assert_eq!(results.len(), 10, "somebody waits on");
            if answers {
                assert!(results.iter().all(Result::is_ok), "{results:?}");
            }
        }
    }

    /// The log has one line a minute about a node that cannot be called, and one when it can be
    /// called again. The list of nodes names the cause all the time.
    #[tokio::test]
    async fn a_node_that_cannot_be_called_is_told_of_once_a_minute() {
        let clock = ManualClock::new();
        let peer = Arc::new(SilentPeer::default());
        let client = PeerClient::new(peer.clone(), Arc::new(clock.clone()));
        let (to, second) = (node("n1"), Duration::from_secs(1));
        let failed = PeerError::NotSent("nothing listens there".into());
        let link = client.link(&to.node);
        let told = |seconds: usize| {
            let told = (0..seconds).filter_map(|_| {
                clock.advance(second);
                link.record_outcome(Some(&failed), clock.now())
            });
            told.collect::<Vec<_>>()
        };
        assert_eq!(told(1), [], "one late answer");
        assert_eq!(client.failure_of(&to.node), None);
        assert_eq!(told(60), [LinkNews::Unreachable(2)]);
        assert_eq!(told(60), [LinkNews::Unreachable(62)]);
        let asked = client.hand_out(&to, &[], second).await;
        assert_eq!(asked, Err(failed.clone()), "an open circuit stops no call");
        assert_eq!(client.failure_of(&to.node), Some(failed));
        peer.answers.store(true, Ordering::Relaxed);
        let now = clock.now();
        assert_eq!(link.record_outcome(None, now), Some(LinkNews::Reachable));
        assert_eq!(link.record_outcome(None, now), None);
        assert_eq!(client.hand_out(&to, &[], second).await, Ok(()));
        assert_eq!(client.failure_of(&to.node), None);
    }

    #[tokio::test]
    async fn links_to_unused_nodes_are_removed() {
        let clock = ManualClock::new();
        let client = PeerClient::new(Arc::new(SilentPeer::default()), Arc::new(clock.clone()));
        let second = Duration::from_secs(1);
        for pod in 0..100 {
            let to = node(&format!("pod-{pod}"));
            let unanswered = client.kick(&to, kick(&to), second).await;
            assert!(matches!(unanswered, Err(PeerError::Unknown(_))));
            clock.advance(UNUSED_LINK_LIFE / 2);
        }
        let known = client.links.lock().len();
        assert!(known <= 3, "{known}");
    }

    #[tokio::test]
    async fn a_kick_does_not_wait_for_deliveries_to_clients_that_read_nothing() {
        let peer = Arc::new(SilentPeer::default());
        let client = PeerClient::new(peer.clone(), Arc::new(ManualClock::new()));
        let to = node("n1");
        let long = Duration::from_secs(30);
        let deliver = || {
            let uid = Uid::new("u").unwrap();
            let message = Message::new(uid.clone(), "hello");
            let request = DeliverRequest::new(uid, session(&to), message, long);
            client.deliver(&to, request, long)
        };
        let deliveries = join_all((0..MAX_CALLS * 2).map(|_| deliver()));
        let kicked = async {
            let full = u32::try_from(MAX_CALLS).unwrap();
            drop(peer.deliveries.acquire_many(full).await.unwrap());
            client.kick(&to, kick(&to), long).await
        };
        // The clock stands still, so a kick that had to wait for a permit would never be sent.
        let kicked = tokio::select! {
            kicked = timeout(long, kicked) => kicked.expect("the kick is not sent"),
            _ = deliveries => unreachable!(),
        };
        assert!(matches!(kicked, Err(PeerError::Unknown(_))), "{kicked:?}");
        assert_eq!(peer.kicks.load(Ordering::Relaxed), 1);
    }
}
