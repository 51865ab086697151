//! The keeper thread, and [`Keeper`], through which the locker controls the thread.
//!
//! This module owns the thread with its runtime, and the order of the work on the thread. The
//! thread has its own connections, so leases are renewed while the user's runtime is blocked or
//! gone. Invariant: while the thread runs, each of its leases is renewed or reported as lost in
//! time, also when a job hangs. The loop itself must never wait for the store: only jobs do.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    clock::Clock,
    contract::{DistLock, loss::LossFeed},
    engine::{
        bounded::{at_most, close_bounded},
        jobs::{Job, Jobs, Spawn},
        lease_state::{Due, LeaseState},
        log,
        own_connection::OwnConnection,
        renewal,
        schedule::Schedule,
        threads,
    },
    types::error::{Error, ErrorKind, Result},
};

/// The state that the keeper thread shares with the locker, which owns the thread.
pub(crate) struct KeeperShared {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) schedule: Schedule,
    pub(crate) connection: OwnConnection,
    /// The number of awaited jobs that have not ended.
    jobs: watch::Sender<usize>,
    /// The number of jobs that have not ended and keep a released lock for its minimum hold.
    holds: watch::Sender<usize>,
}

impl KeeperShared {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            schedule: Schedule::new(Arc::clone(&clock)),
            clock,
            connection: OwnConnection::new(),
            jobs: watch::Sender::new(0),
            holds: watch::Sender::new(0),
        }
    }
}

/// The control of the keeper thread. The drop of this value ends the thread when the jobs of the
/// thread have ended.
pub(crate) struct Keeper {
    shared: Arc<KeeperShared>,
    orders: mpsc::UnboundedSender<Order>,
}

enum Order {
    Run(Job),
    Stop(oneshot::Sender<()>),
}

impl Keeper {
    /// Starts the thread, which opens its own handle on `backend` at once. With `simulated`, no
    /// thread is started: the simulation polls the keeper's loop and its jobs.
    pub(crate) fn start(
        backend: Arc<dyn DistLock>,
        clock: Arc<dyn Clock>,
        simulated: Option<Spawn>,
    ) -> Self {
        let (orders, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(KeeperShared::new(clock));
        let for_thread = Arc::clone(&shared);
        if let Some(spawn) = simulated {
            let jobs = Jobs::elsewhere(Arc::clone(&spawn));
            let keeper = async move { keep_leases(&for_thread, backend, inbox, jobs).await };
            spawn(Box::pin(keeper));
            return Self { shared, orders };
        }
        let started = std::thread::Builder::new()
            .name("distlock-keeper".into())
            .spawn(move || {
                let shared = for_thread;
                log::queue_lines_of_this_thread();
                match tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                {
                    Ok(runtime) => {
                        runtime.block_on(keep_leases(&shared, backend, inbox, Jobs::on_runtime()));
                    }
                    Err(error) => shared.connection.note_failure(
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
            shared.connection.note_failure(threads::no_thread(error));
        }
        Self { shared, orders }
    }

    /// Waits until the keeper's own handle on the store is open.
    ///
    /// # Errors
    /// The error of the first try to open the handle. After an error, the keeper tries again in the
    /// background.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.shared.connection.ready().await
    }

    /// Renews a lease and watches its deadline until the lease ends. A notification of the store
    /// that the lock was lost ends the lease too.
    pub(crate) fn keep(&self, lease_state: &Arc<LeaseState>, loss: &LossFeed) {
        self.shared.schedule.put(lease_state);
        // Both references are weak, because a listener at the store must keep neither the lease nor
        // the keeper thread alive.
        let (lease_state, orders) = (Arc::downgrade(lease_state), self.orders.downgrade());
        loss.on_loss(move |reason| {
            let Some(lease_state) = lease_state.upgrade().filter(|it| it.lose(reason)) else {
                return;
            };
            // The keeper thread writes the line: the thread that reports the loss may have other
            // holders to notify, and a slow log must not delay that.
            let job_state = Arc::clone(&lease_state);
            let log = Order::Run(Box::pin(async move { job_state.log_loss(reason) }));
            let sent = orders.upgrade().map(|orders| orders.send(log));
            if !matches!(sent, Some(Ok(()))) {
                lease_state.log_loss(reason);
            }
        });
    }

    /// Removes a lease that has ended from the schedule.
    pub(crate) fn forget(&self, lease_state: &LeaseState) {
        self.shared.schedule.remove(lease_state);
    }

    /// Runs a job on the keeper thread. [`Keeper::no_job_left`] waits for its end.
    pub(crate) fn spawn_awaited(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.spawn_counted(|shared| &shared.jobs, job);
    }

    /// Runs a job that keeps a released lock for its minimum hold. [`Keeper::no_hold_left`] waits
    /// for its end.
    pub(crate) fn spawn_hold(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.spawn_counted(|shared| &shared.holds, job);
    }

    fn spawn_counted(&self, count: Count, job: impl Future<Output = ()> + Send + 'static) {
        count(&self.shared).send_modify(|jobs| *jobs += 1);
        // A job that never starts counts as ended too. A keeper that stops drops the jobs in its
        // inbox, and the leases of those jobs end by themselves.
        let ended = JobEnded(Arc::clone(&self.shared), count);
        let _ = self.orders.send(Order::Run(Box::pin(async move {
            let _ended = ended;
            job.await;
        })));
    }

    /// Runs a job on the keeper thread that a close does not wait for.
    pub(crate) fn spawn_detached(&self, job: impl Future<Output = ()> + Send + 'static) {
        let _ = self.orders.send(Order::Run(Box::pin(job)));
    }

    /// Waits until all awaited jobs have ended.
    pub(crate) async fn no_job_left(&self) {
        none_left(&self.shared.jobs).await;
    }

    /// Waits until no released lock is kept any more for its minimum hold.
    pub(crate) async fn no_hold_left(&self) {
        none_left(&self.shared.holds).await;
    }

    /// Ends the thread and closes its handle.
    pub(crate) async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.orders.send(Order::Stop(done)).is_ok() {
            let _ = ended.await;
        }
    }

    pub(crate) fn shared(&self) -> Arc<KeeperShared> {
        Arc::clone(&self.shared)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keeper")
    }
}

/// Selects the counter of one kind of jobs.
type Count = fn(&KeeperShared) -> &watch::Sender<usize>;

/// Counts a job as ended when it is dropped: after its end, after a panic, or before its start.
struct JobEnded(Arc<KeeperShared>, Count);

impl Drop for JobEnded {
    fn drop(&mut self) {
        let Self(shared, count) = self;
        count(shared).send_modify(|jobs| *jobs -= 1);
    }
}

async fn none_left(jobs: &watch::Sender<usize>) {
    // The wait cannot fail, because the caller has the sender.
    let _ = jobs.subscribe().wait_for(|jobs| *jobs == 0).await;
}

/// The keeper's loop: serves leases and orders until the locker stops the loop or is dropped.
async fn keep_leases(
    shared: &Arc<KeeperShared>,
    backend: Arc<dyn DistLock>,
    mut inbox: mpsc::UnboundedReceiver<Order>,
    mut jobs: Jobs,
) {
    let opening = Arc::clone(shared);
    jobs.spawn(async move { opening.connection.open(&*opening.clock, backend).await });
    let mut idle = 0;
    let mut stopped = None;
    loop {
        serve_due(shared, |lease_state| {
            jobs.spawn(renewal::renew_in_background(
                Arc::clone(shared),
                Arc::clone(&lease_state),
            ));
            // This entry watches the deadline while the renewal is in flight, because the renewal
            // may hang.
            shared.schedule.put(&lease_state);
        });
        let pause = shared.schedule.time_to_sleep(&mut idle);
        let sleep = async {
            match pause {
                Some(Duration::ZERO) => tokio::task::yield_now().await,
                Some(pause) => shared.clock.sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The select is biased, so that it draws no random number and a simulation can be
            // repeated from its seed. Ended jobs come first, but there are no more of them than
            // orders, so orders are not delayed for long.
            biased;
            Some(()) = jobs.join_next() => {}
            order = inbox.recv() => match order {
                Some(Order::Run(job)) => jobs.spawn(job),
                Some(Order::Stop(done)) => {
                    stopped = Some(done);
                    break;
                }
                None => break,
            },
            () = shared.schedule.woken() => {}
            () = sleep => {}
        }
    }
    // Guards that are still held are not renewed any more. `watch_deadlines` below still reports
    // their losses.
    shared.schedule.stop_renewing();
    let wind_down = async {
        wind_down(shared, jobs).await;
        if let Some(done) = stopped {
            let _ = done.send(());
        }
        // An order that arrived after the loop ended is dropped here, which ends the wait of its
        // caller.
        drop(inbox);
    };
    tokio::join!(wind_down, watch_deadlines(shared));
}

/// Ends the jobs after the locker was closed or dropped. Running jobs get one second. After that
/// they are dropped, and their leases end by themselves.
async fn wind_down(shared: &Arc<KeeperShared>, mut jobs: Jobs) {
    let finish = async {
        while jobs.join_next().await.is_some() {}
        log::flushed().await;
    };
    at_most(&*shared.clock, Duration::from_secs(1), finish).await;
    jobs.shutdown().await;
    if let Some(handle) = shared.connection.handle_if_open() {
        close_bounded(&*shared.clock, handle.close()).await;
    }
}

/// Reports the leases whose deadlines pass, until no lease is left.
async fn watch_deadlines(shared: &Arc<KeeperShared>) {
    while let Some(pause) = shared.schedule.until_next() {
        shared.clock.sleep(pause).await;
        serve_due(shared, drop);
    }
}

/// Serves every lease that is due. All losses are reported before the first one is logged, because
/// a slow log would delay the later reports.
fn serve_due(shared: &KeeperShared, mut renew: impl FnMut(Arc<LeaseState>)) {
    let mut lost = Vec::new();
    for lease_state in shared.schedule.take_due() {
        match lease_state.take_due_step() {
            Due::Ended => {}
            Due::At(_) => shared.schedule.put(&lease_state),
            Due::Renew { .. } => renew(lease_state),
            Due::Lost(reason) => lost.push((lease_state, reason)),
        }
    }
    for (lease_state, reason) in lost {
        lease_state.log_loss(reason);
    }
}
