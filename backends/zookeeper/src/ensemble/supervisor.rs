//! What all handles of one store share: a thread with a runtime of its own, on which the client's connection lives, and
//! one session after the other.
//!
//! The thread is the backend's and nobody else's, so neither a blocked user's runtime nor a dropped one ends the session.
//! A second handle ([`DistLock::reopen`](distlock_core::DistLock::reopen)) is another reference to the same session:
//! contenders' nodes belong to it.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use distlock_core::{
    Clock, Error, ErrorKind, LossReason, Moment, OpenFlag, OwnerId, Result, threads,
};
use tokio::{
    runtime::Handle as Runtime,
    sync::{OnceCell, watch},
};

use super::connect::connect;
use crate::{
    config::ZooKeeperConfig,
    doctor,
    error::{closed, not_connected},
    names::Layout,
    session::{Session, pump::Pump},
};

/// How many ended acquisitions are remembered, to tell a late renewal why.
const GRAVES: usize = 1024;

/// How long closing waits for the ensemble to be told.
const FAREWELL: Duration = Duration::from_secs(2);

/// The shared part.
pub(crate) struct Ensemble {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) layout: Layout,
    pub(crate) runtime: Runtime,
    pub(crate) pump: Arc<Pump>,
    /// The servers' tick, or longer, as far as it is known.
    pub(crate) tick: OnceCell<Duration>,
    phase: watch::Sender<Phase>,
    handles: watch::Sender<usize>,
    graves: Mutex<VecDeque<(OwnerId, LossReason)>>,
    pub(crate) requests: Tally,
}

/// How many requests were sent; the client's own pings and what opens a session are not among them.
#[derive(Default)]
pub(crate) struct Tally(AtomicU64);

impl Tally {
    pub(crate) fn add(&self, requests: u64) {
        self.0.fetch_add(requests, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
enum Phase {
    /// No session; why the last try failed.
    Connecting(Option<Error>),
    Live(Arc<Session>),
    Closed,
}

impl Ensemble {
    /// Starts the thread and waits for the first session.
    pub(crate) async fn open(config: ZooKeeperConfig, clock: Arc<dyn Clock>) -> Result<Handle> {
        config.check()?;
        let no_thread = |error| threads::no_thread(error).on("zookeeper");
        // The threads first: a runtime must not be dropped here, where others wait for this.
        let (give, given) = mpsc::channel::<(tokio::runtime::Runtime, Arc<Self>)>();
        std::thread::Builder::new()
            .name("distlock-zookeeper".into())
            .spawn(move || {
                if let Ok((runtime, supervised)) = given.recv() {
                    runtime.block_on(supervised.supervise());
                }
            })
            .map_err(no_thread)?;
        let pump = Pump::start().map_err(no_thread)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                pump.stop();
                Error::new(ErrorKind::LimitExceeded, "no runtime for the session")
                    .passing()
                    .on("zookeeper")
                    .caused_by(error)
            })?;
        let ensemble = Arc::new(Self {
            layout: Layout::new(&config.root),
            config,
            clock,
            runtime: runtime.handle().clone(),
            pump,
            tick: OnceCell::new(),
            phase: watch::Sender::new(Phase::Connecting(None)),
            handles: watch::Sender::new(0),
            graves: Mutex::default(),
            requests: Tally::default(),
        });
        let handle = Handle::new(&ensemble);
        // The thread is there and waits for it.
        let _ = give.send((runtime, Arc::clone(&ensemble)));
        match ensemble.first_session().await {
            Ok(()) => Ok(handle),
            Err(error) => Err(doctor::explain(&ensemble.config, &*ensemble.clock, error).await),
        }
    }

    /// The present session. Waits for one while there is none.
    pub(crate) async fn session(&self, until: Moment) -> Result<Arc<Session>> {
        let mut phase = self.phase.subscribe();
        loop {
            let last_error = match &*phase.borrow_and_update() {
                Phase::Live(session) if session.ended().is_none() => {
                    return Ok(Arc::clone(session));
                }
                Phase::Closed => return Err(closed()),
                Phase::Connecting(Some(error)) => error.clone(),
                Phase::Connecting(None) | Phase::Live(_) => not_connected(),
            };
            if !last_error.is_retryable() {
                return Err(last_error);
            }
            tokio::select! {
                biased;
                // The sender lives in `self`, so this cannot fail.
                _ = phase.changed() => {}
                () = self.clock.sleep(until.since(self.clock.now())) => return Err(last_error),
            }
        }
    }

    /// Until when an operation that starts now may wait for its answers.
    pub(crate) fn limit(&self) -> Moment {
        self.clock.now() + self.config.request_timeout
    }

    /// Remembers how an acquisition ended.
    pub(crate) fn bury(&self, owner: OwnerId, reason: LossReason) {
        let mut graves = self.graves();
        if graves.len() >= GRAVES {
            graves.pop_front();
        }
        graves.push_back((owner, reason));
    }

    /// It begins anew: an owner that lost its place, in a queue or with its session, has another one now.
    pub(crate) fn unbury(&self, owner: OwnerId) {
        self.graves().retain(|(buried, _)| *buried != owner);
    }

    /// How an acquisition ended, if that is remembered.
    pub(crate) fn grave(&self, owner: OwnerId) -> Option<LossReason> {
        self.graves()
            .iter()
            .rev()
            .find(|(buried, _)| *buried == owner)
            .map(|(_, reason)| *reason)
    }

    async fn first_session(&self) -> Result<()> {
        let until = self.clock.now() + self.config.connect_timeout;
        self.session(until).await.map(|_| ())
    }

    /// One session after the other, until the last handle is closed.
    async fn supervise(self: Arc<Self>) {
        let mut handles = self.handles.subscribe();
        let mut failures = 0u32;
        loop {
            let line = self.pump.line();
            let connected = tokio::select! {
                biased;
                _ = handles.wait_for(|open| *open == 0) => break,
                connected = self.pump.hosting(line, connect(&self, line)) => connected,
            };
            match connected {
                Ok(session) => {
                    failures = 0;
                    self.phase.send_replace(Phase::Live(Arc::clone(&session)));
                    let ended = tokio::select! {
                        biased;
                        reason = session.wait_for_end() => Some(reason),
                        _ = handles.wait_for(|open| *open == 0) => None,
                    };
                    match ended {
                        Some(reason) => {
                            tracing::warn!(%reason, session = format_args!("{:#x}", session.id()), "session ended, opening a new one");
                            self.phase.send_replace(Phase::Connecting(None));
                        }
                        None => {
                            session.close().await;
                            break;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no session yet");
                    failures += 1;
                    self.phase.send_replace(Phase::Connecting(Some(error)));
                    let pause = Duration::from_millis(100 << failures.min(4));
                    let jittered = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
                    tokio::select! {
                        _ = handles.wait_for(|open| *open == 0) => break,
                        () = self.clock.sleep(jittered) => {}
                    }
                }
            }
        }
        self.phase.send_replace(Phase::Closed);
        self.pump.stop();
    }

    fn graves(&self) -> MutexGuard<'_, VecDeque<(OwnerId, LossReason)>> {
        self.graves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble")
            .field("servers", &self.config.servers)
            .field("root", &self.config.root)
            .finish_non_exhaustive()
    }
}

/// One user of an [`Ensemble`]. The session ends with the last one.
#[derive(Debug)]
pub(crate) struct Handle {
    ensemble: Arc<Ensemble>,
    open: OpenFlag,
}

impl Handle {
    fn new(ensemble: &Arc<Ensemble>) -> Self {
        ensemble.handles.send_modify(|open| *open += 1);
        Self {
            ensemble: Arc::clone(ensemble),
            open: OpenFlag::default(),
        }
    }

    /// Another one on the same session.
    pub(crate) fn again(&self) -> Self {
        Self::new(&self.ensemble)
    }

    /// What it gives access to.
    pub(crate) fn ensemble(&self) -> Result<&Arc<Ensemble>> {
        self.open.check("zookeeper")?;
        Ok(&self.ensemble)
    }

    /// Whether it is open, for whoever outlives the operation that asks.
    pub(crate) const fn open(&self) -> &OpenFlag {
        &self.open
    }

    /// What all handles of this ensemble have sent, also those that were closed.
    pub(crate) fn requests_sent(&self) -> u64 {
        self.ensemble.requests.sent()
    }

    /// The present session, and until when the operation that asks for it may last.
    pub(crate) async fn session(&self) -> Result<(Arc<Session>, Moment)> {
        let ensemble = self.ensemble()?;
        let until = ensemble.limit();
        Ok((ensemble.session(until).await?, until))
    }

    /// Gives it up. When it was the last one, waits until the ensemble knows that the session has ended.
    pub(crate) async fn close(&self) {
        if !self.give_up() {
            return;
        }
        let mut phase = self.ensemble.phase.subscribe();
        let gone = phase.wait_for(|phase| matches!(phase, Phase::Closed));
        tokio::select! {
            _ = gone => {}
            () = self.ensemble.clock.sleep(FAREWELL) => {}
        }
    }

    /// Whether it was the last one.
    fn give_up(&self) -> bool {
        if !self.open.close() {
            return false;
        }
        let mut last = false;
        self.ensemble.handles.send_modify(|open| {
            *open -= 1;
            last = *open == 0;
        });
        last
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.give_up();
    }
}
