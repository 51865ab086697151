//! The keeper thread and its owner's end.
//!
//! This module owns the thread with its runtime, and the order in which it does its work. The
//! thread has connections of its own, so it keeps time while the user's runtime is blocked or gone.
//! Invariant: as long as the thread runs, each lease that it keeps is renewed or reported as lost
//! in time, whatever its jobs do. The loop itself never waits for the store: only jobs do.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use super::{
    jobs::{Job, Jobs, Spawn},
    renew,
    shared::KeeperShared,
};
use crate::{
    contract::{DistLock, LossReason},
    engine::{
        bounded::close_bounded,
        clock::Clock,
        lease_state::{Due, LeaseState},
        log, threads,
    },
    types::error::{Error, ErrorKind, Result},
};

/// The owner's end. Dropping it ends the thread once its work is done.
pub(crate) struct Keeper {
    shared: Arc<KeeperShared>,
    orders: mpsc::UnboundedSender<Order>,
}

enum Order {
    Run(Job),
    Stop(oneshot::Sender<()>),
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
    /// The error of the first try to open it; the keeper tries again in the background.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.shared.connection.ready().await
    }

    /// Keeps a lease until it ends.
    pub(crate) fn keep(&self, lease_state: &Arc<LeaseState>) {
        self.shared.schedule.put(lease_state);
    }

    /// Forgets a lease that has ended.
    pub(crate) fn forget(&self, lease_state: &LeaseState) {
        self.shared.schedule.remove(lease_state);
    }

    /// Runs a job on the keeper thread. [`Keeper::no_job_left`] waits for its end.
    pub(crate) fn spawn_awaited(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.shared.jobs.send_modify(|jobs| *jobs += 1);
        // A job that never begins counts as ended, too: a keeper that stops drops the rest of its
        // inbox, and the leases then end by themselves.
        let ended = JobEnded(Arc::clone(&self.shared));
        let _ = self.orders.send(Order::Run(Box::pin(async move {
            let _ended = ended;
            job.await;
        })));
    }

    /// Runs a job on the keeper thread that a close does not wait for.
    pub(crate) fn spawn_detached(&self, job: impl Future<Output = ()> + Send + 'static) {
        let _ = self.orders.send(Order::Run(Box::pin(job)));
    }

    /// Logs a loss on the keeper thread: the sender of a loss may have other holders to notify, and
    /// a slow log must not delay them.
    pub(crate) fn loss_log(&self) -> impl Fn(Arc<LeaseState>, LossReason) + Send + use<> {
        // Weak: a listener at the store must not keep the thread alive.
        let orders = self.orders.downgrade();
        move |lease_state, reason| {
            let job_state = Arc::clone(&lease_state);
            let log = Order::Run(Box::pin(async move { job_state.log_loss(reason) }));
            if orders
                .upgrade()
                .is_none_or(|orders| orders.send(log).is_err())
            {
                lease_state.log_loss(reason);
            }
        }
    }

    /// Waits until no awaited job is left.
    pub(crate) async fn no_job_left(&self) {
        let _ = self
            .shared
            .jobs
            .subscribe()
            .wait_for(|jobs| *jobs == 0)
            .await;
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

/// Counts a job as ended, however it ends.
struct JobEnded(Arc<KeeperShared>);

impl Drop for JobEnded {
    fn drop(&mut self) {
        self.0.jobs.send_modify(|jobs| *jobs -= 1);
    }
}

/// The keeper's loop: it serves leases and orders until its owner stops it or goes away.
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
            jobs.spawn(renew::renew_in_background(
                Arc::clone(shared),
                Arc::clone(&lease_state),
            ));
            // The deadline is watched also while the renewal hangs.
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
            // Biased, so that no random number is drawn and the seed of a simulation decides
            // everything. Ended jobs are no more than orders, so orders are not delayed for long.
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
    // Guards that are still held are not renewed any more, but they learn of their deadline.
    shared.schedule.stop_renewing();
    let wind_down = async {
        wind_down(shared, jobs).await;
        if let Some(done) = stopped {
            let _ = done.send(());
        }
        // A job that comes too late is dropped here, which ends the wait of its caller.
        drop(inbox);
    };
    tokio::join!(wind_down, watch_deadlines(shared));
}

/// The locker is closed or gone. Running jobs get a moment; after that, leases end by themselves.
async fn wind_down(shared: &Arc<KeeperShared>, mut jobs: Jobs) {
    let finish = async {
        while jobs.join_next().await.is_some() {}
        log::flushed().await;
    };
    tokio::select! {
        biased;
        () = finish => {}
        () = shared.clock.sleep(Duration::from_secs(1)) => {}
    }
    jobs.shutdown().await;
    if let Some(handle) = shared.connection.handle_if_open() {
        close_bounded(&*shared.clock, handle.close()).await;
    }
}

/// Reports deadlines that pass, and does nothing else.
async fn watch_deadlines(shared: &Arc<KeeperShared>) {
    while let Some(pause) = shared.schedule.until_next() {
        shared.clock.sleep(pause).await;
        serve_due(shared, drop);
    }
}

/// Serves every lease that is due. A loss is logged after all losses were reported, because a slow
/// log would delay the later ones.
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
