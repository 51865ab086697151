//! Keeps one session open for all handles of a store, and opens the next one after a loss.
//!
//! The supervisor owns the store's two threads. One thread runs the tasks of the sessions, on its
//! own runtime. The other thread runs the client's connection. No code of the caller runs on these
//! threads, so the session survives when the caller's runtime is blocked or dropped.
//!
//! A second handle ([`DistLock::reopen`](distlock_core::DistLock::reopen)) uses the same session,
//! because the contenders' nodes belong to that session.

use std::{
    fmt,
    sync::{Arc, mpsc},
    time::Duration,
};

use distlock_backend_kit::{ConnectGate, LONGEST_PAUSE, RequestCount};
use distlock_core::{Clock, Error, ErrorKind, LossReason, Moment, Result, at_most, threads};
use tokio::sync::{OnceCell, watch};

use super::connect::open_session;
use crate::{
    config::ZooKeeperConfig,
    error::{closed_error, not_connected_error},
    names::Layout,
    queue::delete::delete_in_background,
    session::{EndedLeases, Login, Session, StoreContext, io_thread::IoThread},
};

/// The shared part of all handles of one store.
pub(crate) struct Supervisor {
    pub(crate) context: Arc<StoreContext>,
    phase: watch::Sender<Phase>,
    /// The number of open handles.
    handles: watch::Sender<usize>,
}

/// The supervisor's present state.
#[derive(Clone)]
enum Phase {
    /// There is no session. The error is that of the last try to open one.
    Connecting(Option<Error>),
    Live(Arc<Session>),
    Closed,
}

impl Supervisor {
    /// Starts the threads, with one handle counted.
    pub(super) fn start(config: ZooKeeperConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        config.check()?;
        let login = Login::new(&config, Arc::clone(&clock))?;
        let no_thread = |error| threads::no_thread(error).on("zookeeper");
        // The threads start before the runtime is built. So if a thread cannot start, no runtime is
        // dropped here. Dropping a runtime blocks, and this code runs inside a caller's async task.
        let (give, given) = mpsc::channel::<(tokio::runtime::Runtime, Arc<Self>)>();
        std::thread::Builder::new()
            .name("distlock-zookeeper".into())
            .spawn(move || {
                if let Ok((runtime, supervised)) = given.recv() {
                    runtime.block_on(supervised.supervise());
                }
            })
            .map_err(no_thread)?;
        let io_thread = IoThread::start().map_err(no_thread)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                io_thread.stop();
                Error::new(ErrorKind::LimitExceeded, "no runtime for the session")
                    .passing()
                    .on("zookeeper")
                    .caused_by(error)
            })?;
        let context = StoreContext {
            layout: Layout::new(&config.root),
            login,
            config,
            clock,
            runtime: runtime.handle().clone(),
            io_thread,
            tick: OnceCell::new(),
            ended_leases: EndedLeases::default(),
            requests: RequestCount::new("zookeeper"),
        };
        let supervisor = Arc::new(Self {
            context: Arc::new(context),
            phase: watch::Sender::new(Phase::Connecting(None)),
            // The task `supervise` ends when no handle is open, so the first handle is counted
            // before the task starts.
            handles: watch::Sender::new(1),
        });
        // This cannot fail, because the thread waits for this message.
        let _ = give.send((runtime, Arc::clone(&supervisor)));
        Ok(supervisor)
    }

    /// Counts one more handle.
    pub(super) fn add_handle(&self) {
        self.handles.send_modify(|open| *open += 1);
    }

    /// Counts one handle less. `true` = no handle is left.
    pub(super) fn remove_handle(&self) -> bool {
        let mut last = false;
        self.handles.send_modify(|open| {
            *open -= 1;
            last = *open == 0;
        });
        last
    }

    /// Waits until the last session has been closed.
    pub(super) async fn wait_until_closed(&self) {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| matches!(phase, Phase::Closed)).await;
    }

    /// Waits for a live session, and returns it.
    pub(crate) async fn wait_for_session(&self, until: Moment) -> Result<Arc<Session>> {
        let mut phase = self.phase.subscribe();
        loop {
            let last_error = match &*phase.borrow_and_update() {
                Phase::Live(session) if session.end_reason().is_none() => {
                    return Ok(Arc::clone(session));
                }
                Phase::Closed => return Err(closed_error()),
                Phase::Connecting(Some(error)) => error.clone(),
                Phase::Connecting(None) | Phase::Live(_) => not_connected_error(),
            };
            if !last_error.is_retryable() {
                return Err(last_error);
            }
            // `changed` cannot fail, because `self` owns the sender.
            let changed = self.context.at_most_until(until, phase.changed()).await;
            if changed.is_none() {
                return Err(last_error);
            }
        }
    }

    /// Waits for the first session.
    pub(super) async fn wait_for_first_session(&self) -> Result<()> {
        let until = self.context.clock.now() + self.context.config.connect_timeout;
        self.wait_for_session(until).await.map(|_| ())
    }

    /// Opens one session after the other, until the last handle is closed.
    async fn supervise(self: Arc<Self>) {
        let mut handles = self.handles.subscribe();
        let (clock, config) = (&*self.context.clock, &self.context.config);
        let gate = ConnectGate::of(format!("zookeeper {config:?}"));
        loop {
            let io_thread = &self.context.io_thread;
            let group = io_thread.new_group();
            let connecting = io_thread.capture_spawns(group, open_session(&self.context, group));
            let connected = tokio::select! {
                biased;
                _ = handles.wait_for(|open| *open == 0) => break,
                connected = gate.connect(clock, connecting) => connected,
            };
            match connected {
                Ok(session) => {
                    self.phase.send_replace(Phase::Live(Arc::clone(&session)));
                    let ended = tokio::select! {
                        biased;
                        reason = session.wait_for_end() => Some(reason),
                        _ = handles.wait_for(|open| *open == 0) => None,
                    };
                    match ended {
                        Some(reason) => {
                            tracing::warn!(
                                %reason,
                                session = format_args!("{:#x}", session.id()),
                                "session ended, opening a new one"
                            );
                            self.phase.send_replace(Phase::Connecting(None));
                        }
                        None => {
                            close_session(&session).await;
                            break;
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no session yet");
                    let pause = error.retry_pause().unwrap_or(LONGEST_PAUSE);
                    self.phase.send_replace(Phase::Connecting(Some(error)));
                    tokio::select! {
                        _ = handles.wait_for(|open| *open == 0) => break,
                        () = clock.sleep(pause) => {}
                    }
                }
            }
        }
        self.phase.send_replace(Phase::Closed);
        self.context.io_thread.stop();
    }
}

/// Gives up every queue entry, waits until no lock is held any more, and closes the session, so
/// that contenders behind its nodes are woken at once. The node of a held lock stays until its
/// lease has ended.
async fn close_session(session: &Arc<Session>) {
    give_up_entries_and_wait(session).await;
    let states = session.watch_client_states();
    session.end(LossReason::SessionLost);
    if let Some(mut states) = states {
        let client_closed = async { while !states.changed().await.is_terminated() {} };
        at_most(session.clock(), Duration::from_secs(1), client_closed).await;
    }
}

/// Gives up every queue entry, and waits until the last lease has ended or was released.
async fn give_up_entries_and_wait(session: &Arc<Session>) {
    for node in session.nodes.begin_closing() {
        // The node is deleted now, so that no contender behind it waits for the last lease of the
        // session.
        if node.mark_gone(LossReason::SessionLost) {
            delete_in_background(session, node);
        }
    }
    loop {
        let removed = session.nodes.next_removal();
        if session.end_reason().is_some() || session.nodes.held_nodes().is_empty() {
            return;
        }
        tokio::select! {
            () = removed => {}
            _ = session.wait_for_end() => return,
        }
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("servers", &self.context.config.servers)
            .field("root", &self.context.config.root)
            .finish_non_exhaustive()
    }
}
