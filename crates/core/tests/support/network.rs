//! A simulated network in front of the scripted store, which can deliver requests late.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
};

use async_trait::async_trait;
use distlock_conformance::LockLayer;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, DistLock, Error, ErrorKind, Grant, HandOver, Lease,
    LossFeed, LossSender, ReleaseOutcome, Renewal, Renewed, Result, sync::Mutex,
};
use tokio::sync::{Semaphore, oneshot};

use super::ScriptedLock;

/// A store behind a network that can delay a request, and that can block the keeper thread in a
/// renewal.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    store: ScriptedLock,
    /// Delays the next release: the caller gets an unknown outcome at once, and the request reaches
    /// the store when `arrive` gets a permit.
    pub(crate) keep_release: Arc<AtomicBool>,
    pub(crate) arrive: Arc<Semaphore>,
    /// Like `keep_release`, for this number of attempts.
    pub(crate) keep_acquire: Arc<AtomicU32>,
    /// Like `keep_release`, for the next renewal.
    pub(crate) keep_renewal: Arc<AtomicBool>,
    /// While set, a renewal of the lock "block" blocks its thread.
    pub(crate) block: Arc<AtomicBool>,
    pub(crate) blocking: Arc<AtomicBool>,
    /// Delays the answer to the next hand-over until `arrive` gets a permit. The store does the
    /// hand-over at once. If the caller has dropped the future before the answer, the new grant is
    /// released.
    pub(crate) keep_hand_over: Arc<AtomicBool>,
    /// Whether `reopen` is refused, so that the keeper gets no connection.
    pub(crate) refuse_reopen: Arc<AtomicBool>,
    /// The senders of loss notifications, one for each grant. `None`: the store sends no loss
    /// notifications.
    pub(crate) feeds: Option<Arc<Mutex<Vec<LossSender>>>>,
}

impl Network {
    pub(crate) fn in_front_of(store: &ScriptedLock) -> Self {
        Self {
            store: store.clone(),
            keep_release: Arc::default(),
            arrive: Arc::new(Semaphore::new(0)),
            keep_acquire: Arc::default(),
            keep_renewal: Arc::default(),
            block: Arc::default(),
            blocking: Arc::default(),
            keep_hand_over: Arc::default(),
            refuse_reopen: Arc::default(),
            feeds: None,
        }
    }
}

fn kept() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "kept on its way by the test")
}

#[async_trait]
impl LockLayer for Network {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::new(self.store.clone())
    }

    fn capabilities(&self, mut below: Capabilities) -> Capabilities {
        below.tickets = true;
        below
    }

    async fn reopen(&self) -> Result<Self> {
        if self.refuse_reopen.load(SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "refused by the test"));
        }
        Ok(self.clone())
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let one_less = |kept: u32| kept.checked_sub(1);
        let keep = self.keep_acquire.fetch_update(SeqCst, SeqCst, one_less);
        if keep.is_ok() {
            let (store, arrive) = (self.store.clone(), Arc::clone(&self.arrive));
            let request = request.clone();
            tokio::spawn(async move {
                arrive.acquire().await.unwrap().forget();
                store.try_acquire(&request).await
            });
            return Err(kept());
        }
        let attempt = self.store.try_acquire(request).await?;
        Ok(attempt.map(|mut grant| {
            if let Some(feeds) = &self.feeds {
                let (sender, feed) = LossFeed::new();
                feeds.lock().push(sender);
                grant.loss = feed;
            }
            grant
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        while lease.name.as_str() == "block" && self.block.load(SeqCst) {
            self.blocking.store(true, SeqCst);
            std::thread::yield_now();
        }
        let (store, lease, renewal) = (self.store.clone(), lease.clone(), *renewal);
        if self.keep_renewal.swap(false, SeqCst) {
            let arrive = Arc::clone(&self.arrive);
            tokio::spawn(async move {
                arrive.acquire().await.unwrap().forget();
                store.renew(&lease, &renewal).await
            });
            return Err(kept());
        }
        // A request that was sent reaches the store also when its sender stops waiting.
        tokio::spawn(async move { store.renew(&lease, &renewal).await })
            .await
            .unwrap()
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        if self.keep_release.swap(false, SeqCst) {
            let (store, arrive) = (self.store.clone(), Arc::clone(&self.arrive));
            let lease = lease.clone();
            tokio::spawn(async move {
                arrive.acquire().await.unwrap().forget();
                store.release(&lease).await
            });
            return Err(kept());
        }
        self.store.release(lease).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        if !self.keep_hand_over.swap(false, SeqCst) {
            return self.store.hand_over(lease, next).await;
        }
        let (answer, answered) = oneshot::channel();
        let (store, arrive) = (self.store.clone(), Arc::clone(&self.arrive));
        let (lease, next) = (lease.clone(), next.clone());
        tokio::spawn(async move {
            let handed = store.hand_over(&lease, &next).await;
            arrive.acquire().await.unwrap().forget();
            if answer.send(handed).is_err() {
                let lease = Lease::new(next.name.clone(), next.owner, None);
                store.release(&lease).await.unwrap();
            }
        });
        answered.await.unwrap()
    }

    async fn close(&self) {}
}
