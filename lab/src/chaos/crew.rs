//! The workers of a run: started, stopped, killed and replaced.

use std::{env, path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock_harness::{FaultProxy, Process, Signal, eventually, eventually_async};
use fastrand::Rng;
use tokio::time::timeout;

use super::{history::Event, referee::Referee, stores::Stage, worker::Settings};

/// A worker that has not come up by then never does: the store may be away for a while.
const START: Duration = Duration::from_secs(60);
/// A word of a worker that has ended arrives by then, or was never said.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// One worker and its own ways to the store.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) worker: u32,
    process: Process,
    pub(crate) lines: Vec<FaultProxy>,
}

impl Player {
    pub(crate) fn signal(&self, which: Signal) -> Result<()> {
        self.process.signal(which)
    }
}

/// The orders that all workers of a run get alike.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) settings: Settings,
    pub(crate) workers: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) referee: Arc<Referee>,
    pub(crate) players: Vec<Player>,
    orders: Orders,
    program: PathBuf,
    next: u32,
}

impl Crew {
    pub(crate) async fn start(
        orders: Orders,
        referee: Arc<Referee>,
        stage: &Stage,
    ) -> Result<Self> {
        let mut crew = Self {
            referee,
            players: Vec::new(),
            next: 1,
            program: env::current_exe().context("this program")?,
            orders,
        };
        for _ in 0..crew.orders.workers {
            let player = crew.new_player(stage).await?;
            crew.players.push(player);
        }
        for player in &crew.players {
            crew.has_started(player).await?;
        }
        Ok(crew)
    }

    async fn new_player(&mut self, stage: &Stage) -> Result<Player> {
        let worker = self.next;
        self.next += 1;
        let mut lines = Vec::new();
        for address in stage.addresses() {
            lines.push(FaultProxy::start(address).await?);
        }
        let mut settings = self.orders.settings.clone();
        settings.worker = worker;
        settings.url = stage.url_through(&lines);
        settings.seed = settings.seed.wrapping_add(u64::from(worker));
        settings.single_threaded = worker % 2 == 1;
        let (name, value) = settings.variable()?;
        let process = Process::spawn(Command::new(&self.program).env(name, value))?;
        Ok(Player {
            worker,
            process,
            lines,
        })
    }

    async fn has_started(&self, player: &Player) -> Result<()> {
        eventually_async("a worker starts", START, async || {
            self.referee.has_started(player.worker).then_some(())
        })
        .await
        .with_context(|| player.process.output())
    }

    /// The worker at a place, unless another one has taken it.
    pub(crate) fn player(&self, at: usize, worker: u32) -> Option<&Player> {
        self.players.get(at).filter(|it| it.worker == worker)
    }

    pub(crate) fn any_name(&self, rng: &mut Rng) -> Option<String> {
        let names = &self.orders.settings.names;
        (!names.is_empty()).then(|| names[rng.usize(..names.len())].clone())
    }

    /// Kills a worker, and starts another one in its place.
    pub(crate) async fn replace(&mut self, at: usize, stage: &Stage) -> Result<()> {
        // The old one first: it must not outlive its replacement's store.
        self.players[at].signal(Signal::KILL).ok();
        self.note_panics(at);
        let player = self.new_player(stage).await?;
        self.players[at] = player;
        Ok(())
    }

    /// Stops a worker at its next grant. `false` = it was granted nothing within `patience`.
    pub(crate) async fn stop_at_grant(&self, worker: u32, patience: Duration) -> bool {
        let hit = self.referee.ambush(worker);
        let stands = timeout(patience, hit).await.is_ok_and(|hit| hit.is_ok());
        if !stands {
            self.referee.let_pass(worker);
        }
        stands
    }

    /// Notes workers that have ended by themselves, and replaces them.
    pub(crate) async fn look_after(&mut self, stage: &Stage) -> Result<()> {
        for at in 0..self.players.len() {
            if !self.players[at].process.is_running()? {
                self.note_crash(at);
                let player = self.new_player(stage).await?;
                self.players[at] = player;
            }
        }
        Ok(())
    }

    fn note_crash(&self, at: usize) {
        let player = &self.players[at];
        let said = player.process.output();
        let first: Vec<_> = said.lines().take(6).collect();
        let how = first.join(" | ");
        self.referee.note(player.worker, Event::Crashed { how });
    }

    /// Notes a panic that did not end the process.
    fn note_panics(&self, at: usize) {
        let player = &self.players[at];
        let said = player.process.output();
        if let Some(line) = said.lines().find(|line| line.contains("panicked at")) {
            let how = format!("it goes on after a panic: {line}");
            self.referee.note(player.worker, Event::Crashed { how });
        }
    }

    /// Waits until all have answered the roll call and ended.
    pub(crate) fn dismiss(&mut self, within: Duration) {
        for at in 0..self.players.len() {
            let process = &mut self.players[at].process;
            let ended = tokio::task::block_in_place(|| process.wait(within));
            let worker = self.players[at].worker;
            // Its last words may still be on their way.
            let has_finished = || {
                eventually("its last words", LAST_WORDS, || {
                    self.referee.has_finished(worker)
                })
            };
            let well = ended.is_ok_and(|status| status.success())
                && tokio::task::block_in_place(has_finished).is_ok();
            if !well {
                self.note_crash(at);
            }
            self.note_panics(at);
        }
    }
}
