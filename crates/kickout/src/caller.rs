//! The care taken when other nodes are asked.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use distlock_core::{Clock, Moment};
use tokio::sync::Semaphore;

use crate::{
    ident::{NodeId, SessionKey, Uid},
    peers::{
        DeliverRequest, DeliverResult, KickRequest, KickResult, NodeAddress, PeerError, Peers,
    },
    wait::within,
};

/// Calls of one kind under way to one node at a time.
const CONCURRENCY: usize = 64;
/// Failures in a row after which a node is left alone for a while.
const FAILURES: u32 = 5;
const BREAK: Duration = Duration::from_secs(1);
/// Time after which nothing is remembered of a node that was not asked.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Deadlines, bounded concurrency and a circuit breaker around [`Peers`].
#[derive(Debug)]
pub(crate) struct Caller {
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    lines: Mutex<HashMap<NodeId, Arc<Line>>>,
}

#[derive(Debug)]
struct Line {
    /// For what a login waits for. Places of their own, because messages wait for clients that read slowly.
    kicks: Semaphore,
    deliveries: Semaphore,
    health: Mutex<LineHealth>,
}

#[derive(Debug)]
struct LineHealth {
    asked: Moment,
    failures: u32,
    open_until: Option<Moment>,
}

impl Caller {
    pub(crate) fn new(peers: Arc<dyn Peers>, clock: Arc<dyn Clock>) -> Self {
        Self {
            peers,
            clock,
            lines: Mutex::default(),
        }
    }

    pub(crate) async fn kick(
        &self,
        to: &NodeAddress,
        request: KickRequest,
        deadline: Duration,
    ) -> Result<KickResult, PeerError> {
        let call = self.peers.kick(to, request);
        self.call(to, |line| &line.kicks, deadline, call).await
    }

    pub(crate) async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
        deadline: Duration,
    ) -> Result<DeliverResult, PeerError> {
        let call = self.peers.deliver(to, request);
        self.call(to, |line| &line.deliveries, deadline, call).await
    }

    pub(crate) async fn idle(
        &self,
        to: &NodeAddress,
        uid: &Uid,
        deadline: Duration,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        let call = self.peers.idle(to, uid);
        self.call(to, |line| &line.kicks, deadline, call).await
    }

    async fn call<T>(
        &self,
        to: &NodeAddress,
        places: impl FnOnce(&Line) -> &Semaphore,
        deadline: Duration,
        call: impl Future<Output = Result<T, PeerError>>,
    ) -> Result<T, PeerError> {
        let line = self.line(&to.node);
        if line.is_open(self.clock.now()) {
            return Err(PeerError::NotSent(format!(
                "node {} did not answer lately",
                to.node
            )));
        }
        let started = self.clock.now();
        let place = within(&*self.clock, deadline, places(&line).acquire())
            .await
            .and_then(Result::ok)
            .ok_or_else(|| {
                PeerError::NotSent(format!("too many calls to node {} are under way", to.node))
            })?;
        let left = deadline.saturating_sub(self.clock.now().since(started));
        let answer = within(&*self.clock, left, call)
            .await
            .unwrap_or_else(|| Err(PeerError::Unknown(format!("no answer within {deadline:?}"))));
        drop(place);
        line.note(answer.is_ok(), self.clock.now());
        answer
    }

    fn line(&self, node: &NodeId) -> Arc<Line> {
        let now = self.clock.now();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if !lines.contains_key(node) {
            // Where nodes come under ever new names, those of long ago must not be kept.
            lines.retain(|_, line| Arc::strong_count(line) > 1 || !line.is_idle(now));
        }
        let line = lines.entry(node.clone()).or_insert_with(|| {
            Arc::new(Line {
                kicks: Semaphore::new(CONCURRENCY),
                deliveries: Semaphore::new(CONCURRENCY),
                health: Mutex::new(LineHealth {
                    asked: now,
                    failures: 0,
                    open_until: None,
                }),
            })
        });
        line.health().asked = now;
        Arc::clone(line)
    }
}

impl Line {
    fn health(&self) -> MutexGuard<'_, LineHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_idle(&self, now: Moment) -> bool {
        now.since(self.health().asked) > FORGOTTEN
    }

    fn is_open(&self, now: Moment) -> bool {
        let health = self.health();
        health.open_until.is_some_and(|until| now < until)
    }

    fn note(&self, answered: bool, now: Moment) {
        let mut health = self.health();
        if answered {
            health.failures = 0;
            health.open_until = None;
        } else {
            health.failures += 1;
            if health.failures >= FAILURES {
                // One failure after the break opens it again.
                health.open_until = Some(now + BREAK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use distlock_core::ManualClock;
    use futures_util::future::join_all;
    use tokio::time::timeout;
    use uuid::Uuid;

    use super::*;
    use crate::{
        ident::{Boot, Generation, SessionId},
        offline::Code,
        peers::Message,
    };

    /// Answers nothing, and counts what it was asked.
    #[derive(Debug)]
    struct Deaf {
        kicks: AtomicUsize,
        /// A permit for each.
        deliveries: Semaphore,
    }

    impl Default for Deaf {
        fn default() -> Self {
            Self {
                kicks: AtomicUsize::new(0),
                deliveries: Semaphore::new(0),
            }
        }
    }

    #[async_trait]
    impl Peers for Deaf {
        async fn kick(&self, _: &NodeAddress, _: KickRequest) -> Result<KickResult, PeerError> {
            self.kicks.fetch_add(1, Ordering::Relaxed);
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
    async fn a_node_that_does_not_answer_is_left_alone_for_a_while() {
        let clock = ManualClock::new();
        let deaf = Arc::new(Deaf::default());
        let caller = Caller::new(deaf.clone(), Arc::new(clock.clone()));
        let to = node("n1");
        let kick = || caller.kick(&to, kick(&to), Duration::from_secs(1));
        for _ in 0..FAILURES {
            assert!(matches!(kick().await, Err(PeerError::Unknown(_))));
        }
        assert!(matches!(kick().await, Err(PeerError::NotSent(_))));
        clock.advance(BREAK);
        assert!(matches!(kick().await, Err(PeerError::Unknown(_))));
        assert!(
            matches!(kick().await, Err(PeerError::NotSent(_))),
            "one failure is enough now"
        );
        assert_eq!(deaf.kicks.load(Ordering::Relaxed), FAILURES as usize + 1);
    }

    #[tokio::test]
    async fn nodes_that_are_asked_no_more_are_forgotten() {
        let clock = ManualClock::new();
        let caller = Caller::new(Arc::new(Deaf::default()), Arc::new(clock.clone()));
        let second = Duration::from_secs(1);
        for pod in 0..100 {
            let to = node(&format!("pod-{pod}"));
            let unanswered = caller.kick(&to, kick(&to), second).await;
            assert!(matches!(unanswered, Err(PeerError::Unknown(_))));
            clock.advance(FORGOTTEN / 2);
        }
        let known = caller.lines.lock().unwrap().len();
        assert!(known <= 3, "{known}");
    }

    #[tokio::test]
    async fn a_kick_does_not_wait_behind_messages_to_clients_that_read_nothing() {
        let deaf = Arc::new(Deaf::default());
        let caller = Caller::new(deaf.clone(), Arc::new(ManualClock::new()));
        let to = node("n1");
        let long = Duration::from_secs(30);
        let deliver = || {
            let uid = Uid::new("u").unwrap();
            let message = Message::new(uid.clone(), "hello");
            let request = DeliverRequest::new(uid, session(&to), message, long);
            caller.deliver(&to, request, long)
        };
        let deliveries = join_all((0..CONCURRENCY * 2).map(|_| deliver()));
        let kicked = async {
            let full = u32::try_from(CONCURRENCY).unwrap();
            drop(deaf.deliveries.acquire_many(full).await.unwrap());
            caller.kick(&to, kick(&to), long).await
        };
        // On a clock that stands still, whoever waits for a place waits for ever.
        let kicked = tokio::select! {
            kicked = timeout(long, kicked) => kicked.expect("the kick is not sent"),
            _ = deliveries => unreachable!(),
        };
        assert!(matches!(kicked, Err(PeerError::Unknown(_))), "{kicked:?}");
        assert_eq!(deaf.kicks.load(Ordering::Relaxed), 1);
    }
}
