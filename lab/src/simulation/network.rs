//! The network between a process and the store. The network delays and loses requests and answers,
//! delivers some requests twice, and changes the order of requests. The seed decides on each of
//! them. A test that needs one certain fault scripts its store instead, as in `crates/core/tests`.
//!
//! A sent request arrives even if its sender has stopped waiting for the answer.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock::{
    Attempt, Capabilities, DistLock, Error, ErrorKind, LockInfo, LockName, OwnerId, Result,
    backend::{
        AcquireRequest, Contender, Grant, HandOver, Lease, LossFeed, ReleaseOutcome, Renewal,
        Renewed,
    },
};
use distlock_conformance::LockLayer;
use fastrand::Rng;
use tokio::sync::{Mutex, oneshot};

use super::{
    executor::Owner,
    setting::{Chances, LONGEST_DELAY, REQUEST_TIMEOUT},
    trace::About,
    world::World,
};

/// Pause of a contender after a lost notification, before it waits again.
const LOST_WAKE_UP_PAUSE: Duration = Duration::from_secs(1);

/// The connection of a process, or of an operator, to one store.
#[derive(Clone, Debug)]
pub(super) struct SimulatedConnection {
    pub(super) world: Arc<World>,
    pub(super) owner: Owner,
    /// The number of the store.
    number: usize,
    store: Arc<dyn DistLock>,
}

/// The delivery of one request and its answer, drawn when the request is sent.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    /// Number of times that the request arrives.
    copies: u32,
    request_delay: Duration,
    second_delay: Duration,
    answer_delay: Duration,
    sender: SenderOutcome,
}

/// The answer that the sender of a request gets.
#[derive(Clone, Copy, Debug)]
enum SenderOutcome {
    Answer,
    /// The request did not happen and will not happen.
    Refused,
    /// The connection breaks after this time.
    Unknown(Duration),
}

impl Delivery {
    /// Draws the delivery of one request. `cut` means that the process cannot reach the store.
    fn draw(random: &mut Rng, chances: Chances, cut: bool) -> Self {
        let mut delay = |most| Duration::from_micros(random.u64(100..=most));
        let mut delivery = Self {
            copies: 1,
            request_delay: delay(2_000),
            second_delay: delay(300_000),
            answer_delay: delay(2_000),
            sender: SenderOutcome::Answer,
        };
        let unanswered = |random: &mut Rng| match random.u32(0..3) {
            0 => SenderOutcome::Unknown(REQUEST_TIMEOUT),
            _ => SenderOutcome::Unknown(Duration::from_millis(random.u64(1..=1_500))),
        };
        if cut {
            delivery.copies = 0;
            delivery.sender = match random.bool() {
                true => SenderOutcome::Refused,
                false => unanswered(random),
            };
            return delivery;
        }
        let mut dice = random.u32(0..1000);
        let mut hits = |chance: u32| {
            let hit = dice < chance;
            dice = dice.wrapping_sub(chance);
            hit && chance > 0
        };
        if hits(chances.request_lost) {
            delivery.copies = 0;
            delivery.sender = unanswered(random);
        } else if hits(chances.refused) {
            delivery.copies = 0;
            delivery.sender = SenderOutcome::Refused;
        } else if hits(chances.answer_lost) {
            delivery.sender = unanswered(random);
            // The sender may see the broken connection long before the request arrives.
            if random.bool() {
                delivery.request_delay = LONGEST_DELAY / (2 << random.u32(0..6));
            }
        } else if hits(chances.twice) {
            delivery.copies = 2;
        } else if hits(chances.late) {
            // Slightly late and very late requests are equally frequent.
            let late = LONGEST_DELAY / (1 << random.u32(0..7));
            match random.bool() {
                true => delivery.request_delay = late,
                false => delivery.answer_delay = late,
            }
        }
        delivery
    }
}

impl SimulatedConnection {
    /// Connects a process or an operator to a handle on the store of this number.
    pub(super) fn new(
        world: &Arc<World>,
        owner: Owner,
        number: usize,
        store: Arc<dyn DistLock>,
    ) -> Self {
        Self {
            world: Arc::clone(world),
            owner,
            number,
            store,
        }
    }

    /// Passes the time that it takes to connect.
    ///
    /// # Errors
    /// An error if the store cannot be reached.
    pub(super) async fn connect(&self) -> Result<()> {
        let (_, cut) = self.world.chances_of(self.owner, self.number);
        // The administrator of a ring connects for each change, and many changes are wanted.
        let quick = self.owner == Owner::Course && self.world.setting.ring.is_some();
        let slow = self.world.is_fault_phase() && !quick;
        let takes = self.world.draw(|random| match random.u32(0..3) {
            0 if slow => random.u64(100..=4_000),
            _ => random.u64(1..=20),
        });
        self.world.time.sleep(Duration::from_millis(takes)).await;
        if cut {
            return Err(Error::new(ErrorKind::Unavailable, "cut off"));
        }
        Ok(())
    }

    /// Sends a request. `apply` performs the request at the store each time that it arrives.
    pub(super) async fn send<T: Send + 'static, F: Future<Output = Result<T>> + Send>(
        &self,
        what: &'static str,
        name: &LockName,
        apply: impl Fn() -> F + Send + 'static,
    ) -> Result<T> {
        let world = &self.world;
        let (chances, cut) = world.chances_of(self.owner, self.number);
        let delivery = world.draw(|random| Delivery::draw(random, chances, cut));
        let lock = world.lock_number(name);
        let about = About {
            lock,
            store: Some(self.number),
            ..About::default()
        };
        world.add_trace_line_about(self.owner, what, about);
        let (answer, answered) = oneshot::channel();
        let number = self.number;
        if delivery.copies > 0 {
            let (world, name) = (Arc::clone(world), name.clone());
            self.world.spawner.spawn(Owner::Network, what, async move {
                world.time.sleep(delivery.request_delay).await;
                let first = apply().await;
                world.record_applied(number, &name, what);
                if delivery.copies > 1 {
                    world.time.sleep(delivery.second_delay).await;
                    // Nobody receives the answer to the second delivery.
                    drop(apply().await);
                    world.record_applied(number, &name, what);
                }
                if let SenderOutcome::Answer = delivery.sender {
                    world.time.sleep(delivery.answer_delay).await;
                    let _ = answer.send(first);
                }
            });
        }
        match delivery.sender {
            SenderOutcome::Answer => answered
                .await
                .unwrap_or_else(|_| Err(unknown_outcome_error())),
            SenderOutcome::Refused => {
                world.time.sleep(delivery.answer_delay).await;
                Err(Error::new(ErrorKind::Unavailable, "refused"))
            }
            SenderOutcome::Unknown(after) => {
                world.time.sleep(after).await;
                Err(unknown_outcome_error())
            }
        }
    }

    /// Returns a grant for the process that receives it, with the feed of losses that the store
    /// pushes.
    fn received_grant(&self, name: &LockName, mut grant: Grant) -> Grant {
        if self.world.setting.pushes_losses {
            let (sender, feed) = LossFeed::new();
            self.world
                .keep_loss_sender(name, grant.token, self.owner, sender);
            grant.loss = feed;
        }
        grant
    }

    /// Returns the answer to an attempt for the process that receives the answer.
    fn received_attempt(&self, name: &LockName, attempt: Attempt<Grant>) -> Attempt<Grant> {
        attempt.map(|grant| self.received_grant(name, grant))
    }
}

/// Returns the error of a sender whose connection broke.
fn unknown_outcome_error() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the connection broke")
}

#[async_trait]
impl LockLayer for SimulatedConnection {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.store)
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        self.world.setting.capabilities(&below)
    }

    async fn reopen(&self) -> Result<Self> {
        self.connect().await?;
        let store = self.store.reopen().await?;
        Ok(Self::new(&self.world, self.owner, self.number, store))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let (store, asked) = (Arc::clone(&self.store), request.clone());
        let apply = move || {
            let (store, asked) = (Arc::clone(&store), asked.clone());
            async move { store.try_acquire(&asked).await }
        };
        let attempt = self.send("acquire", &request.name, apply).await?;
        Ok(self.received_attempt(&request.name, attempt))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        if !self.world.setting.store_queue {
            return Ok(Box::new(PollingContender {
                connection: self.clone(),
                request: request.clone(),
            }));
        }
        let (store, asked) = (Arc::clone(&self.store), request.clone());
        let apply = move || {
            let (store, asked) = (Arc::clone(&store), asked.clone());
            async move { store.contend(&asked).await }
        };
        let inner = self.send("join", &request.name, apply).await?;
        Ok(Box::new(QueuedContender {
            connection: self.clone(),
            request: request.clone(),
            inner: Arc::new(Mutex::new(Some(inner))),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        let (store, asked, renewal) = (Arc::clone(&self.store), lease.clone(), *renewal);
        let apply = move || {
            let (store, asked) = (Arc::clone(&store), asked.clone());
            async move { store.renew(&asked, &renewal).await }
        };
        self.send("renew", &lease.name, apply).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let (store, asked) = (Arc::clone(&self.store), lease.clone());
        let apply = move || {
            let (store, asked) = (Arc::clone(&store), asked.clone());
            async move { store.release(&asked).await }
        };
        self.send("release", &lease.name, apply).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let (store, asked, to) = (Arc::clone(&self.store), lease.clone(), next.clone());
        let apply = move || {
            let (store, asked, to) = (Arc::clone(&store), asked.clone(), to.clone());
            async move { store.hand_over(&asked, &to).await }
        };
        Ok(match self.send("hand over", &lease.name, apply).await? {
            HandOver::Done(grant) => HandOver::Done(self.received_grant(&lease.name, grant)),
            other => other,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let (store, asked) = (Arc::clone(&self.store), name.clone());
        let apply = move || {
            let (store, asked) = (Arc::clone(&store), asked.clone());
            async move { store.inspect(&asked).await }
        };
        self.send("inspect", name, apply).await
    }
}

/// A contender in the store queue, which the store notifies.
struct QueuedContender {
    connection: SimulatedConnection,
    request: AcquireRequest,
    /// Requests in flight share the inner contender. `None` means that the contender has left.
    inner: Arc<Mutex<Option<Box<dyn Contender>>>>,
}

#[async_trait]
impl Contender for QueuedContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let (store, mut asked) = (Arc::clone(&self.connection.store), self.request.clone());
        asked.owner = owner;
        let inner = Arc::clone(&self.inner);
        let apply = move || {
            let (store, asked, inner) = (Arc::clone(&store), asked.clone(), Arc::clone(&inner));
            async move {
                match inner.try_lock().as_deref_mut() {
                    Ok(Some(inner)) => inner.attempt_as(owner).await,
                    Ok(None) => Err(unknown_outcome_error()),
                    // The request is late: its sender already waits for a notification.
                    Err(_) => store.try_acquire(&asked).await,
                }
            }
        };
        let name = &self.request.name;
        let attempt = self.connection.send("attempt", name, apply).await?;
        Ok(self.connection.received_attempt(name, attempt))
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let world = &self.connection.world;
        let until = world.time.now().saturating_add(at_most);
        loop {
            let left = until.saturating_sub(world.time.now());
            if let Some(inner) = &mut *self.inner.lock().await {
                inner.wait(left).await;
            }
            let connection = &self.connection;
            let (chances, cut) = world.chances_of(connection.owner, connection.number);
            let dice = world.draw(|random| random.u32(0..1000));
            let left = until.saturating_sub(world.time.now());
            if left.is_zero() {
                return;
            }
            if !cut && dice >= chances.wake_up_lost {
                let late = world.draw(|random| random.u64(100..=2_000));
                let late = Duration::from_micros(late);
                world.time.sleep(late.min(left)).await;
                return;
            }
            world.time.sleep(LOST_WAKE_UP_PAUSE.min(left)).await;
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let apply = move || {
            let inner = Arc::clone(&inner);
            async move {
                let left = inner.lock().await.take();
                match left {
                    Some(contender) => contender.leave().await,
                    None => Ok(()),
                }
            }
        };
        self.connection
            .send("leave", &self.request.name, apply)
            .await
    }
}

/// A contender that polls.
struct PollingContender {
    connection: SimulatedConnection,
    request: AcquireRequest,
}

#[async_trait]
impl Contender for PollingContender {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let mut request = self.request.clone();
        request.owner = owner;
        self.connection.try_acquire(&request).await
    }

    fn is_first(&self) -> bool {
        true
    }

    async fn wait(&mut self, at_most: Duration) {
        let pause = self.connection.world.draw(|random| random.u64(10..=60));
        let pause = Duration::from_millis(pause).min(at_most);
        self.connection.world.time.sleep(pause).await;
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
