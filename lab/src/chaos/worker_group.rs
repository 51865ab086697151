//! The workers of a run: starts, stops, kills and replaces them. Each worker has its own proxies to
//! the store.

use std::{env, path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock_harness::{FaultProxy, Process, Signal, eventually, eventually_async};
use fastrand::Rng;
use tokio::time::timeout;

use super::{
    history::Event, referee::Referee, stores::RunningStore, worker_settings::WorkerSettings,
};

/// Time-out for the start of a worker, which may wait for a broken store.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out for the last events of a worker that has ended.
const LAST_EVENTS_TIMEOUT: Duration = Duration::from_secs(10);

/// The process of one worker, with its proxies to the store.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    pub(crate) worker: u32,
    process: Process,
    pub(crate) proxies: Vec<FaultProxy>,
}

impl WorkerProcess {
    /// Sends a signal to the process.
    pub(crate) fn signal(&self, which: Signal) -> Result<()> {
        self.process.signal(which)
    }
}

/// The settings that all workers of a run share.
#[derive(Clone, Debug)]
pub(crate) struct GroupSettings {
    pub(crate) settings: WorkerSettings,
    pub(crate) workers: u32,
}

/// All workers of one run.
#[derive(Debug)]
pub(crate) struct WorkerGroup {
    pub(crate) referee: Arc<Referee>,
    pub(crate) members: Vec<WorkerProcess>,
    group_settings: GroupSettings,
    program: PathBuf,
    next: u32,
}

impl WorkerGroup {
    /// Starts all workers, and waits until each is ready.
    pub(crate) async fn start(
        group_settings: GroupSettings,
        referee: Arc<Referee>,
        running_store: &RunningStore,
    ) -> Result<Self> {
        let mut group = Self {
            referee,
            members: Vec::new(),
            next: 1,
            program: env::current_exe().context("this program")?,
            group_settings,
        };
        for _ in 0..group.group_settings.workers {
            let member = group.start_member(running_store).await?;
            group.members.push(member);
        }
        for member in &group.members {
            group.wait_until_started(member).await?;
        }
        Ok(group)
    }

    /// Starts one worker with its own proxies. The worker is ready later.
    async fn start_member(&mut self, running_store: &RunningStore) -> Result<WorkerProcess> {
        let worker = self.next;
        self.next += 1;
        let mut proxies = Vec::new();
        for address in running_store.addresses() {
            proxies.push(FaultProxy::start(address).await?);
        }
        let mut settings = self.group_settings.settings.clone();
        settings.worker = worker;
        settings.url = running_store.url_through(&proxies);
        settings.records_url = running_store.records_url();
        settings.server_state = running_store.server_state();
        settings.seed = settings.seed.wrapping_add(u64::from(worker));
        settings.single_threaded = worker % 2 == 1;
        let (name, value) = settings.environment_variable()?;
        let process = Process::spawn(Command::new(&self.program).env(name, value))?;
        Ok(WorkerProcess {
            worker,
            process,
            proxies,
        })
    }

    /// Waits until a worker has reported that it is ready.
    async fn wait_until_started(&self, member: &WorkerProcess) -> Result<()> {
        eventually_async("a worker starts", START_TIMEOUT, async || {
            self.referee.has_started(member.worker).then_some(())
        })
        .await
        .with_context(|| member.process.output())
    }

    /// Returns the worker at an index, unless another worker has replaced it.
    pub(crate) fn member(&self, at: usize, worker: u32) -> Option<&WorkerProcess> {
        self.members.get(at).filter(|it| it.worker == worker)
    }

    /// Returns the name of a random contended lock.
    pub(crate) fn random_name(&self, rng: &mut Rng) -> Option<String> {
        let names = &self.group_settings.settings.names;
        (!names.is_empty()).then(|| names[rng.usize(..names.len())].clone())
    }

    /// Kills a worker, and starts a new worker in its place.
    pub(crate) async fn kill_and_replace(
        &mut self,
        at: usize,
        running_store: &RunningStore,
    ) -> Result<()> {
        // The old worker must end first. Otherwise a store in its memory would grant locks beside
        // the store of the new worker.
        self.members[at].signal(Signal::KILL).ok();
        self.record_panic(at);
        let member = self.start_member(running_store).await?;
        self.members[at] = member;
        Ok(())
    }

    /// Stops a worker at its next grant. `false` means that the worker got no grant within
    /// `patience`.
    pub(crate) async fn stop_at_grant(&self, worker: u32, patience: Duration) -> bool {
        let stopped = self.referee.stop_at_next_grant(worker);
        let is_stopped = timeout(patience, stopped)
            .await
            .is_ok_and(|stopped| stopped.is_ok());
        if !is_stopped {
            self.referee.cancel_stop(worker);
        }
        is_stopped
    }

    /// Records workers that have ended by themselves, and replaces them.
    pub(crate) async fn replace_crashed(&mut self, running_store: &RunningStore) -> Result<()> {
        for at in 0..self.members.len() {
            if !self.members[at].process.is_running()? {
                self.record_crash(at);
                let member = self.start_member(running_store).await?;
                self.members[at] = member;
            }
        }
        Ok(())
    }

    /// Records that a worker has ended by itself, with the begin of its output.
    fn record_crash(&self, at: usize) {
        let member = &self.members[at];
        let said = member.process.output();
        let first: Vec<_> = said.lines().take(6).collect();
        let how = first.join(" | ");
        self.referee.record(member.worker, Event::Crashed { how });
    }

    /// Records a panic that did not end the process.
    fn record_panic(&self, at: usize) {
        let member = &self.members[at];
        let said = member.process.output();
        if let Some(line) = said.lines().find(|line| line.contains("panicked at")) {
            let how = format!("the process continued after a panic: {line}");
            self.referee.record(member.worker, Event::Crashed { how });
        }
    }

    /// Waits until all workers have answered the roll call and ended.
    pub(crate) fn wait_for_end(&mut self, within: Duration) {
        for at in 0..self.members.len() {
            let process = &mut self.members[at].process;
            let ended = tokio::task::block_in_place(|| process.wait(within));
            let worker = self.members[at].worker;
            // The last events may still be in the socket.
            let has_finished = || {
                eventually("the last events of a worker", LAST_EVENTS_TIMEOUT, || {
                    self.referee.has_finished(worker)
                })
            };
            let well = ended.is_ok_and(|status| status.success())
                && tokio::task::block_in_place(has_finished).is_ok();
            if !well {
                self.record_crash(at);
            }
            self.record_panic(at);
        }
    }
}
