//! A lock store under the control of a test: a minimal correct table of locks, with a switch for
//! each kind of fault. The test says what happens to its next request, for example that the request
//! arrives late. The lab's simulation instead draws a fault for each request, on its own network.

// Each test binary uses only a part of this module.
#![allow(dead_code, reason = "shared by several test binaries")]

use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Contender, DistLock, Epoch, Error, ErrorKind,
    Fairness, FencingToken, Forced, Grant, HandOver, Health, HolderInfo, Lease, LockInfo, LockName,
    LossFeed, LossReason, LossSender, ManualClock, Moment, OwnerId, ReleaseOutcome, Renewal,
    Renewed, Result, Ttl, sync::Mutex,
};
use tokio::sync::{Notify, Semaphore, oneshot};

/// The faults of the next calls of one operation.
#[derive(Debug, Default)]
pub(crate) struct Fault {
    /// The number of next calls that are applied, but whose answer is lost.
    pub(crate) lose_reply: AtomicU32,
    /// The number of next calls that are applied and then panic instead of answering.
    pub(crate) panic: AtomicU32,
    /// The number of next calls that fail without being applied.
    pub(crate) refuse: AtomicU32,
    /// The number of next calls that fail after the delay without being applied.
    pub(crate) refuse_late: AtomicU32,
    /// The number of next calls that never return and are not applied.
    pub(crate) hang: AtomicU32,
    /// The number of next calls that are kept on their way: the caller gets an unknown outcome at
    /// once, and the call reaches the store when [`Script::arrive`] gets a permit.
    pub(crate) keep: AtomicU32,
    /// Whether each call goes on when its caller stops waiting.
    pub(crate) outlives_caller: AtomicBool,
    /// The delay in milliseconds, by the script's clock, after which each call is applied.
    pub(crate) delay_ms: AtomicU64,
    pub(crate) calls: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) acquire: Fault,
    pub(crate) contend: Fault,
    pub(crate) leave: Fault,
    pub(crate) renew: Fault,
    pub(crate) release: Fault,
    pub(crate) hand_over: Fault,
    /// Lets a call that is kept on its way go on.
    pub(crate) arrive: Semaphore,
    /// Keeps the answer to the next hand-over until `arrive` gets a permit. The store does the
    /// hand-over at once. If the caller has dropped the future before the answer, the new grant is
    /// released.
    pub(crate) keep_hand_over_answer: AtomicBool,
    /// While set, a renewal of the lock "block" blocks its thread.
    pub(crate) block: AtomicBool,
    pub(crate) blocking: AtomicBool,
    /// Whether `reopen` is refused, so that the keeper gets no connection.
    pub(crate) refuse_reopen: AtomicBool,
    /// The senders of loss notifications, one for each grant. `None`: the store sends no loss
    /// notifications.
    pub(crate) feeds: Mutex<Option<Vec<LossSender>>>,
    /// The kind of the error of refused calls; `None` = [`ErrorKind::Unavailable`].
    pub(crate) refuse_with: Mutex<Option<ErrorKind>>,
    /// Whether every contender learns that another contender is ahead of it.
    pub(crate) others_ahead: AtomicBool,
    /// Whether answers to renewals name another epoch of the store.
    pub(crate) another_history: AtomicBool,
    /// Whether each grant is made to a fresh owner, which the grant names.
    pub(crate) fresh_owners: AtomicBool,
    table: Mutex<Table>,
    freed: Notify,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
}

#[derive(Debug, Default)]
struct Table {
    rows: HashMap<LockName, Row>,
    last_token: u64,
    grants: Vec<(LockName, u64)>,
}

#[derive(Debug, Clone)]
struct Row {
    owner: OwnerId,
    token: u64,
    expires: Moment,
    holder: String,
}

/// One handle on the store. All handles share one script.
#[derive(Debug, Clone)]
pub(crate) struct ScriptedLock(pub(crate) Arc<Script>);

impl Script {
    pub(crate) fn open(clock: Arc<dyn Clock>) -> ScriptedLock {
        Self::with_capabilities(clock, |_| {})
    }

    /// A store that keeps a queue in order of arrival and has no hand-over.
    pub(crate) fn open_queueing(clock: Arc<dyn Clock>) -> ScriptedLock {
        Self::with_capabilities(clock, |capabilities| {
            capabilities.fairness = Fairness::Fifo;
            capabilities.hand_over = false;
        })
    }

    pub(crate) fn with_capabilities(
        clock: Arc<dyn Clock>,
        change: impl FnOnce(&mut Capabilities),
    ) -> ScriptedLock {
        let mut capabilities = Capabilities::new("scripted");
        capabilities.min_ttl = Duration::from_millis(10);
        change(&mut capabilities);
        ScriptedLock(Arc::new(Self {
            acquire: Fault::default(),
            contend: Fault::default(),
            leave: Fault::default(),
            renew: Fault::default(),
            release: Fault::default(),
            hand_over: Fault::default(),
            arrive: Semaphore::new(0),
            keep_hand_over_answer: AtomicBool::default(),
            block: AtomicBool::default(),
            blocking: AtomicBool::default(),
            refuse_reopen: AtomicBool::default(),
            feeds: Mutex::default(),
            refuse_with: Mutex::default(),
            others_ahead: AtomicBool::default(),
            another_history: AtomicBool::default(),
            fresh_owners: AtomicBool::default(),
            table: Mutex::default(),
            freed: Notify::new(),
            clock,
            capabilities,
        }))
    }

    /// Whether the lock is held, by the script's clock.
    pub(crate) fn is_held(&self, name: &str) -> bool {
        let name = LockName::new(name).unwrap();
        let now = self.clock.now();
        self.table
            .lock()
            .rows
            .get(&name)
            .is_some_and(|row| row.expires > now)
    }

    /// Deletes a row, like an operator with a database client. No guard is notified.
    pub(crate) fn delete(&self, name: &str) {
        self.table.lock().rows.remove(&LockName::new(name).unwrap());
        self.freed.notify_waiters();
    }

    /// Notifies every waiter, as if its lock had become free.
    pub(crate) fn wake_waiters(&self) {
        self.freed.notify_waiters();
    }

    /// The tokens of all grants of a name, in the order of the grants.
    pub(crate) fn grants(&self, name: &str) -> Vec<u64> {
        let name = LockName::new(name).unwrap();
        self.table
            .lock()
            .grants
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|&(_, t)| t)
            .collect()
    }

    /// The TTL that this store grants: a requested TTL, or the longest lease if that is shorter.
    fn granted(&self, ttl: Ttl) -> Ttl {
        let longest = self.capabilities.max_lease.unwrap_or(Duration::MAX);
        Ttl::new(ttl.duration().min(longest)).unwrap()
    }

    /// The owner of the next grant, if it is not the owner of the request.
    fn fresh_owner(&self) -> Option<OwnerId> {
        self.fresh_owners.load(Ordering::SeqCst).then(OwnerId::new)
    }

    fn refusal(&self) -> Error {
        let kind = self.refuse_with.lock();
        let kind = kind.unwrap_or(ErrorKind::Unavailable);
        Error::new(kind, "refused by the script")
    }

    /// Sends one operation to the store, where `apply` does it.
    async fn send<T: Send + 'static>(
        self: &Arc<Self>,
        fault: fn(&Self) -> &Fault,
        apply: impl FnOnce(&mut Table, Moment) -> T + Send + 'static,
    ) -> Result<T> {
        let script = Arc::clone(self);
        if take(&fault(self).keep) {
            tokio::spawn(async move {
                script.arrive.acquire().await.unwrap().forget();
                let answer = script.receive(fault(&script), apply).await;
                script.freed.notify_waiters();
                answer
            });
            return Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "kept on its way by the script",
            ));
        }
        if fault(self).outlives_caller.load(Ordering::SeqCst) {
            let call = async move { script.receive(fault(&script), apply).await };
            return tokio::spawn(call).await.unwrap();
        }
        self.receive(fault(self), apply).await
    }

    /// Applies the faults of one operation, and calls `apply` in between to do the operation.
    async fn receive<T>(
        &self,
        fault: &Fault,
        apply: impl FnOnce(&mut Table, Moment) -> T + Send,
    ) -> Result<T> {
        fault.calls.fetch_add(1, Ordering::SeqCst);
        if take(&fault.hang) {
            pending::<()>().await;
        }
        if take(&fault.refuse) {
            return Err(self.refusal());
        }
        let delay = fault.delay_ms.load(Ordering::SeqCst);
        if delay > 0 {
            self.clock.sleep(Duration::from_millis(delay)).await;
        } else {
            tokio::task::yield_now().await;
        }
        if take(&fault.refuse_late) {
            return Err(self.refusal());
        }
        let answer = apply(&mut self.table.lock(), self.clock.now());
        if take(&fault.panic) {
            panic!("wanted by the test");
        }
        if take(&fault.lose_reply) {
            return Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "reply lost by the script",
            ));
        }
        Ok(answer)
    }
}

/// Takes one of the calls that a fault waits for. Returns `false` if the fault waits for none.
fn take(count: &AtomicU32) -> bool {
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
        .is_ok()
}

impl Table {
    fn acquire(&mut self, request: &AcquireRequest, now: Moment) -> Attempt<Grant> {
        let expires = now + request.ttl.duration();
        if let Some(row) = self
            .rows
            .get_mut(&request.name)
            .filter(|row| row.expires > now)
        {
            if row.owner == request.owner {
                row.expires = expires;
                return Attempt::Acquired(grant(row.token, request));
            }
            let mut info = HolderInfo::new(&row.holder);
            info.expires_in = Some(row.expires.since(now));
            return Attempt::Busy(Some(info));
        }
        Attempt::Acquired(self.insert(request, expires))
    }

    fn insert(&mut self, request: &AcquireRequest, expires: Moment) -> Grant {
        self.last_token += 1;
        self.grants.push((request.name.clone(), self.last_token));
        let row = Row {
            owner: request.owner,
            token: self.last_token,
            expires,
            holder: request.holder.as_str().into(),
        };
        self.rows.insert(request.name.clone(), row);
        grant(self.last_token, request)
    }

    fn owned(&mut self, lease: &Lease, now: Moment) -> Result<&mut Row, LossReason> {
        match self.rows.get_mut(&lease.name) {
            Some(row) if row.expires <= now => Err(LossReason::Expired),
            Some(row) if row.owner == lease.owner => Ok(row),
            Some(_) => Err(LossReason::TakenOver),
            None => Err(LossReason::Removed),
        }
    }
}

fn grant(token: u64, request: &AcquireRequest) -> Grant {
    Grant::new(
        FencingToken::new(token).unwrap(),
        Epoch::new("script"),
        request.ttl.duration(),
    )
}

#[async_trait]
impl DistLock for ScriptedLock {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        if self.0.refuse_reopen.load(Ordering::SeqCst) {
            return Err(self.0.refusal());
        }
        Ok(Arc::new(self.clone()))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        let mut request = request.clone();
        request.ttl = self.0.granted(request.ttl);
        let fresh_owner = self.0.fresh_owner();
        request.owner = fresh_owner.unwrap_or(request.owner);
        let apply = move |table: &mut Table, now| table.acquire(&request, now);
        let attempt = self.0.send(|script| &script.acquire, apply).await?;
        Ok(attempt.map(|mut grant| {
            grant.owner = fresh_owner;
            if let Some(feeds) = &mut *self.0.feeds.lock() {
                let (sender, feed) = LossFeed::new();
                feeds.push(sender);
                grant.loss = feed;
            }
            grant
        }))
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.0.send(|script| &script.contend, |_, _| ()).await?;
        Ok(Box::new(Waiter {
            lock: self.clone(),
            request: request.clone(),
        }))
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        renewal.check_floor(self.capabilities())?;
        while lease.name.as_str() == "block" && self.0.block.load(Ordering::SeqCst) {
            self.0.blocking.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        let another_history = self.0.another_history.load(Ordering::SeqCst);
        let epoch = Epoch::new(if another_history { "another" } else { "script" });
        let granted = self.0.granted(renewal.ttl).duration();
        let lease = lease.clone();
        let apply = move |table: &mut Table, now| match table.owned(&lease, now) {
            Ok(row) => {
                row.expires = now + granted;
                Renewed::Extended {
                    valid_for: granted,
                    epoch,
                    token: FencingToken::new(row.token).unwrap(),
                    loss: LossFeed::silent(),
                }
            }
            Err(reason) => Renewed::NotHeld(reason),
        };
        self.0.send(|script| &script.renew, apply).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        let lease = lease.clone();
        let apply = move |table: &mut Table, now| {
            if table.owned(&lease, now).is_err() {
                return ReleaseOutcome::NotHeld;
            }
            table.rows.remove(&lease.name);
            ReleaseOutcome::Released {
                others_waiting: None,
            }
        };
        let outcome = self.0.send(|script| &script.release, apply).await;
        self.0.freed.notify_waiters();
        outcome
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        let (lease, next) = (lease.clone(), next.clone());
        if self.0.keep_hand_over_answer.swap(false, Ordering::SeqCst) {
            let (lock, (answer, answered)) = (self.clone(), oneshot::channel());
            tokio::spawn(async move {
                let handed = lock.hand_over(&lease, &next).await;
                lock.0.arrive.acquire().await.unwrap().forget();
                if answer.send(handed).is_err() {
                    let unwanted = Lease::new(next.name, next.owner, None);
                    lock.release(&unwanted).await.unwrap();
                }
            });
            return answered.await.unwrap();
        }
        let fresh_owner = self.0.fresh_owner();
        let mut next = next;
        next.owner = fresh_owner.unwrap_or(next.owner);
        let apply = move |table: &mut Table, now| match table.owned(&lease, now) {
            Ok(_) => {
                let mut grant = table.insert(&next, now + next.ttl.duration());
                grant.owner = fresh_owner;
                HandOver::Done(grant)
            }
            Err(reason) => HandOver::NotHeld(reason),
        };
        self.0.send(|script| &script.hand_over, apply).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let now = self.0.clock.now();
        let table = self.0.table.lock();
        Ok(match table.rows.get(name).filter(|row| row.expires > now) {
            Some(row) => LockInfo::held(name.clone(), HolderInfo::new(&row.holder)),
            None => LockInfo::free(name.clone()),
        })
    }

    async fn list(&self, _: &str, _: Option<&LockName>, _: u32) -> Result<Vec<LockInfo>> {
        Ok(Vec::new())
    }

    async fn force_release(&self, _: &LockName, _: FencingToken) -> Result<Forced> {
        Ok(Forced::NotHeld)
    }

    async fn health(&self) -> Result<Health> {
        Ok(Health::new("scripted"))
    }

    async fn close(&self) {}
}

struct Waiter {
    lock: ScriptedLock,
    request: AcquireRequest,
}

#[async_trait]
impl Contender for Waiter {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        self.attempt_as(self.request.owner).await
    }

    async fn attempt_as(&mut self, owner: OwnerId) -> Result<Attempt<Grant>> {
        let mut request = self.request.clone();
        request.owner = owner;
        self.lock.try_acquire(&request).await
    }

    fn is_first(&self) -> bool {
        !self.lock.0.others_ahead.load(Ordering::SeqCst)
    }

    async fn wait(&mut self, at_most: Duration) {
        let script = Arc::clone(&self.lock.0);
        let freed = script.freed.notified();
        if !script.is_held(self.request.name.as_str()) {
            return;
        }
        tokio::select! {
            () = freed => {}
            () = script.clock.sleep(at_most) => {}
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        self.lock.0.send(|script| &script.leave, |_, _| ()).await
    }
}

/// Waits until a condition holds. Fails the test after 2000 pauses of about a millisecond, so that
/// a hang does not block the test run.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if holds() {
            return;
        }
        pause().await;
    }
    panic!("never happened: {what}");
}

/// Sleeps for about a millisecond, so that other threads and tasks run.
#[expect(
    clippy::disallowed_methods,
    reason = "only paces a loop that waits on a condition with a deadline"
)]
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Advances the clock until the future ends. Returns the time that passed on the clock, and the
/// result of the future.
pub(crate) async fn time_of<T: Send + 'static>(
    clock: &ManualClock,
    what: impl Future<Output = T> + Send + 'static,
) -> (Duration, T) {
    let started = clock.now();
    let what = tokio::spawn(what);
    for _ in 0..2000 {
        pause().await;
        if what.is_finished() {
            return (clock.now().since(started), what.await.unwrap());
        }
        clock.advance(Duration::from_millis(100));
    }
    panic!("it has no end");
}
