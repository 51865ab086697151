//! The care taken when other nodes are asked.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
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

/// Calls under way to one node at a time.
const CONCURRENCY: usize = 64;
/// Failures in a row after which a node is left alone for a while.
const FAILURES: u32 = 5;
const BREAK: Duration = Duration::from_secs(1);

/// Deadlines, bounded concurrency and a circuit breaker around [`Peers`].
#[derive(Debug)]
pub(crate) struct Caller {
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    lines: Mutex<HashMap<NodeId, Arc<Line>>>,
}

#[derive(Debug)]
struct Line {
    places: Semaphore,
    health: Mutex<LineHealth>,
}

#[derive(Debug, Default)]
struct LineHealth {
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
        self.call(to, deadline, self.peers.kick(to, request)).await
    }

    pub(crate) async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
        deadline: Duration,
    ) -> Result<DeliverResult, PeerError> {
        self.call(to, deadline, self.peers.deliver(to, request))
            .await
    }

    pub(crate) async fn idle(
        &self,
        to: &NodeAddress,
        uid: &Uid,
        deadline: Duration,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        self.call(to, deadline, self.peers.idle(to, uid)).await
    }

    async fn call<T>(
        &self,
        to: &NodeAddress,
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
        let place = within(&*self.clock, deadline, line.places.acquire())
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
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lines.entry(node.clone()).or_insert_with(|| {
            Arc::new(Line {
                places: Semaphore::new(CONCURRENCY),
                health: Mutex::default(),
            })
        }))
    }
}

impl Line {
    fn is_open(&self, now: Moment) -> bool {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        health.open_until.is_some_and(|until| now < until)
    }

    fn note(&self, answered: bool, now: Moment) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if answered {
            *health = LineHealth::default();
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
    use uuid::Uuid;

    use super::*;
    use crate::{
        ident::{Boot, Generation, SessionId},
        offline::Code,
    };

    #[derive(Debug, Default)]
    struct Deaf(AtomicUsize);

    #[async_trait]
    impl Peers for Deaf {
        async fn kick(&self, _: &NodeAddress, _: KickRequest) -> Result<KickResult, PeerError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(PeerError::Unknown("no answer".into()))
        }

        async fn deliver(
            &self,
            _: &NodeAddress,
            _: DeliverRequest,
        ) -> Result<DeliverResult, PeerError> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_left_alone_for_a_while() {
        let clock = ManualClock::new();
        let deaf = Arc::new(Deaf::default());
        let caller = Caller::new(deaf.clone(), Arc::new(clock.clone()));
        let to = NodeAddress {
            node: NodeId::new("n1").unwrap(),
            boot: Boot::new(1),
            addr: String::new(),
        };
        let key = SessionKey {
            node: to.node.clone(),
            boot: to.boot,
            session: SessionId::random(),
        };
        let (uid, from) = (Uid::new("u").unwrap(), NodeId::new("n2").unwrap());
        let request = KickRequest::new(
            uid,
            key,
            Generation::new(1),
            Code::Superseded,
            Uuid::nil(),
            from,
        );
        let kick = || caller.kick(&to, request.clone(), Duration::from_secs(1));
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
        assert_eq!(deaf.0.load(Ordering::Relaxed), FAILURES as usize + 1);
    }
}
