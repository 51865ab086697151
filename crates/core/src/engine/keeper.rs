//! The keeper: a thread with its own runtime and its own connections, which renews leases, notices deadlines, and cleans up
//! after callers that went away. It keeps time even while the user's runtime is blocked or gone.

mod cleanup;
mod renew;
mod tasks;

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, mpsc, oneshot, watch};

pub(crate) use cleanup::{Abandoned, InFlight, Landed, clean_up, leave, release_until_expiry};
pub(crate) use renew::as_asked;
pub(crate) use tasks::{Job, Spawn};

use crate::{
    backend_kit::threads,
    contract::{DistLock, LossReason},
    engine::{
        bounded::closed,
        clock::{Clock, Moment},
        hold::{Due, Hold},
        log,
    },
    types::error::{Error, ErrorKind, Result},
};
use tasks::Tasks;

/// The keeper looks at the clock at least this often while it has anything to keep: its timer stands still while the
/// machine sleeps, the clock does not.
const SLICE: Duration = Duration::from_millis(200);

/// After this many empty slices it sleeps until it is woken.
const IDLE_SLICES: u32 = 5;

/// The owner's end. Dropping it ends the thread once its work is done.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
}

enum Order {
    Run(Job),
    Watch(Job),
    Stop(oneshot::Sender<()>),
}

pub(crate) struct Shared {
    clock: Arc<dyn Clock>,
    schedule: Mutex<Schedule>,
    wake: Notify,
    /// The keeper's own handle on the store; an error when opening it failed for now.
    handle: watch::Sender<Option<Result<Arc<dyn DistLock>>>>,
    /// Background jobs that are not finished.
    pending: watch::Sender<usize>,
}

#[derive(Default)]
struct Schedule {
    events: BTreeMap<(Moment, u64), Arc<Hold>>,
    /// When the keeper looks at the schedule by itself; `None` = not before it is woken.
    next_look: Option<Moment>,
}

impl Keeper {
    /// Starts the thread, which opens its own handle on `backend` at once. A simulation has no
    /// thread of ours: it polls the keeper and its jobs where it wants.
    pub(crate) fn start(
        backend: Arc<dyn DistLock>,
        clock: Arc<dyn Clock>,
        simulated: Option<Spawn>,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            clock,
            schedule: Mutex::default(),
            wake: Notify::new(),
            handle: watch::Sender::new(None),
            pending: watch::Sender::new(0),
        });
        let for_thread = Arc::clone(&shared);
        if let Some(spawn) = simulated {
            let tasks = Tasks::elsewhere(Arc::clone(&spawn));
            let keeper = async move { run(&for_thread, backend, inbox, tasks).await };
            spawn(Box::pin(keeper));
            return Self { shared, orders };
        }
        let started = std::thread::Builder::new()
            .name("distlock-keeper".into())
            .spawn(move || {
                let shared = for_thread;
                log::written_elsewhere();
                match tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                {
                    Ok(runtime) => {
                        runtime.block_on(run(&shared, backend, inbox, Tasks::on_runtime()));
                    }
                    Err(error) => shared.failed(
                        Error::new(
                            ErrorKind::LimitExceeded,
                            "no runtime for the renewal thread",
                        )
                        .passing()
                        .caused_by(error),
                    ),
                }
            });
        if let Err(error) = started {
            shared.failed(threads::no_thread(error));
        }
        Self { shared, orders }
    }

    /// The keeper's own handle on the store, as soon as it is open.
    ///
    /// # Errors
    /// As opening it, for good (a failure is retried in the background).
    pub(crate) async fn ready(&self) -> Result<()> {
        let mut handle = self.shared.handle.subscribe();
        match handle.wait_for(Option::is_some).await {
            Ok(state) => match &*state {
                Some(Err(error)) => Err(error.clone()),
                Some(Ok(_)) | None => Ok(()),
            },
            Err(_) => Err(Error::new(
                ErrorKind::Internal,
                "the renewal thread is gone",
            )),
        }
    }

    /// Keeps a hold until it ends.
    pub(crate) fn keep(&self, hold: &Arc<Hold>) {
        self.shared.file(hold);
    }

    /// Forgets a hold that has ended.
    pub(crate) fn forget(&self, hold: &Hold) {
        if let Some(at) = hold.unfile() {
            self.shared.schedule().events.remove(&(at, hold.id()));
        }
    }

    /// Runs a job on the keeper's thread.
    pub(crate) fn run(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.shared.pending.send_modify(|pending| *pending += 1);
        // Counted as done also when it is never begun: a keeper that is stopping drops what is left in its inbox, and
        // leases end by themselves then.
        let done = Done(Arc::clone(&self.shared));
        let _ = self.orders.send(Order::Run(Box::pin(async move {
            let _done = done;
            job.await;
        })));
    }

    /// Runs something on the keeper's thread that nobody waits for.
    pub(crate) fn watch(&self, watch: impl Future<Output = ()> + Send + 'static) {
        let _ = self.orders.send(Order::Watch(Box::pin(watch)));
    }

    /// Logs a loss on the keeper's thread: who hears of it from the store may have others to tell.
    pub(crate) fn loss_log(&self) -> impl Fn(Arc<Hold>, LossReason) + Send + use<> {
        let orders = self.orders.downgrade();
        move |hold, reason| {
            let job_hold = Arc::clone(&hold);
            let log = Order::Watch(Box::pin(async move { job_hold.log_loss(reason) }));
            if orders
                .upgrade()
                .is_none_or(|orders| orders.send(log).is_err())
            {
                hold.log_loss(reason);
            }
        }
    }

    /// Waits until no job is left.
    pub(crate) async fn settled(&self) {
        let _ = self
            .shared
            .pending
            .subscribe()
            .wait_for(|pending| *pending == 0)
            .await;
    }

    /// Ends the thread and closes its handle.
    pub(crate) async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.orders.send(Order::Stop(done)).is_ok() {
            let _ = ended.await;
        }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

impl Shared {
    /// The keeper's own handle; waits while it is being opened.
    pub(crate) async fn handle(&self) -> Arc<dyn DistLock> {
        let mut handle = self.handle.subscribe();
        loop {
            if let Some(Ok(handle)) = &*handle.borrow_and_update() {
                return Arc::clone(handle);
            }
            // The sender lives in `self`, so this cannot fail.
            let _ = handle.changed().await;
        }
    }

    /// Why there is no handle of its own yet.
    fn not_open(&self) -> Error {
        let error = Error::new(
            ErrorKind::Unavailable,
            "the connection for renewals is not open",
        );
        match &*self.handle.borrow() {
            Some(Err(cause)) => error.caused_by(cause.clone()),
            Some(Ok(_)) | None => error,
        }
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Puts a hold where its next event is.
    pub(crate) fn file(&self, hold: &Arc<Hold>) {
        let mut schedule = self.schedule();
        let Some((at, before)) = hold.file_next() else {
            return;
        };
        if let Some(before) = before {
            schedule.events.remove(&(before, hold.id()));
        }
        schedule.events.insert((at, hold.id()), Arc::clone(hold));
        let too_late = schedule.next_look.is_none_or(|look| at < look);
        if too_late {
            // Until it has looked, nobody else needs to wake it.
            schedule.next_look = Some(at);
            drop(schedule);
            self.wake.notify_one();
        }
    }

    fn failed(&self, error: Error) {
        self.handle.send_replace(Some(Err(error)));
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is due.
    fn take_due(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut schedule = self.schedule();
        let mut due = Vec::new();
        while let Some(first) = schedule.events.first_entry() {
            if first.key().0 > now {
                break;
            }
            let hold = first.remove();
            hold.unfile();
            due.push(hold);
        }
        due
    }

    fn stop_renewing(&self) {
        for hold in self.schedule().events.values() {
            hold.stop_renewing();
        }
    }

    /// Time until the next event, in slices; `None` = there is none.
    fn until_next(&self) -> Option<Duration> {
        let schedule = self.schedule();
        let (&(at, _), _) = schedule.events.first_key_value()?;
        Some(at.since(self.clock.now()).min(SLICE))
    }

    /// How long to sleep; `None` = until woken.
    fn pause(&self, idle: &mut u32) -> Option<Duration> {
        let now = self.clock.now();
        let mut schedule = self.schedule();
        let next = schedule.events.first_key_value().map(|(&(at, _), _)| at);
        *idle = if next.is_some() {
            0
        } else {
            idle.saturating_add(1)
        };
        let pause = match next {
            Some(at) => at.since(now).min(SLICE),
            None if *idle <= IDLE_SLICES => SLICE,
            None => {
                schedule.next_look = None;
                return None;
            }
        };
        schedule.next_look = Some(now + pause);
        Some(pause)
    }
}

async fn run(
    shared: &Arc<Shared>,
    backend: Arc<dyn DistLock>,
    mut inbox: mpsc::UnboundedReceiver<Order>,
    mut tasks: Tasks,
) {
    tasks.spawn(open(Arc::clone(shared), backend));
    let mut idle = 0;
    let mut stopped = None;
    loop {
        look(shared, |hold| {
            tasks.spawn(renew::in_background(Arc::clone(shared), Arc::clone(&hold)));
            // Its deadline is kept whether or not the renewal ever returns.
            shared.file(&hold);
        });
        let pause = shared.pause(&mut idle);
        let sleep = async {
            match pause {
                Some(Duration::ZERO) => tokio::task::yield_now().await,
                Some(pause) => shared.clock.sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // No random number is drawn, so that the seed of a simulation decides everything.
            // There are no more ended jobs than orders, so these are not held up for long.
            biased;
            Some(()) = tasks.join_next() => {}
            order = inbox.recv() => match order {
                Some(Order::Run(job) | Order::Watch(job)) => tasks.spawn(job),
                Some(Order::Stop(done)) => {
                    stopped = Some(done);
                    break;
                }
                None => break,
            },
            () = shared.wake.notified() => {}
            () = sleep => {}
        }
    }
    // Guards that are still held are not renewed any more, but they are told when their time is up.
    shared.stop_renewing();
    let wind_down = async {
        wind_down(shared, tasks).await;
        if let Some(done) = stopped {
            let _ = done.send(());
        }
        // Whoever waits for a job that comes too late is told by its drop.
        drop(inbox);
    };
    tokio::join!(wind_down, tell(shared));
}

/// The locker is closed or gone. What is still running gets a moment, then leases end by themselves.
async fn wind_down(shared: &Arc<Shared>, mut tasks: Tasks) {
    let finish = async {
        while tasks.join_next().await.is_some() {}
        log::written().await;
    };
    tokio::select! {
        biased;
        () = finish => {}
        () = shared.clock.sleep(Duration::from_secs(1)) => {}
    }
    tasks.shutdown().await;
    let handle = shared.handle.borrow().clone();
    if let Some(Ok(handle)) = handle {
        closed(&*shared.clock, handle.close()).await;
    }
}

/// Notices deadlines, and nothing else.
async fn tell(shared: &Arc<Shared>) {
    while let Some(pause) = shared.until_next() {
        shared.clock.sleep(pause).await;
        look(shared, drop);
    }
}

/// Counts a job as done however it ends.
struct Done(Arc<Shared>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.pending.send_modify(|pending| *pending -= 1);
    }
}

/// Looks at everything that is due. Losses are logged when everybody who has lost something was told.
fn look(shared: &Shared, mut renew: impl FnMut(Arc<Hold>)) {
    let mut lost = Vec::new();
    for hold in shared.take_due(shared.clock.now()) {
        match hold.due() {
            Due::Ended => {}
            Due::At(_) => shared.file(&hold),
            Due::Renew { .. } => renew(hold),
            Due::Lost(reason) => lost.push((hold, reason)),
        }
    }
    for (hold, reason) in lost {
        hold.log_loss(reason);
    }
}

async fn open(shared: Arc<Shared>, backend: Arc<dyn DistLock>) {
    let mut pause = Duration::from_millis(100);
    loop {
        match backend.reopen().await {
            Ok(handle) => {
                shared.handle.send_replace(Some(Ok(handle)));
                return;
            }
            Err(error) => {
                shared.failed(error.clone());
                log::write(move || {
                    tracing::warn!(%error, "cannot open the connection for renewals, trying again");
                });
            }
        }
        shared.clock.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}
