//! One run of a control, and the run of its twin.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, SystemClock};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::task::{block_in_place, spawn_blocking};

use super::{kinds::Control, open::stage};
use crate::chaos::{
    crew::{Crew, Orders},
    history::Entry,
    nemesis::{Break, Nemesis},
    referee::Referee,
    run::{LOCKS, Plan},
    verdict::{Limits, Promise, Verdict, Violation, judge},
    worker::Settings,
};

/// Which control, which faults, for how long.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ControlPlan {
    pub(super) control: Control,
    pub(super) faults: Vec<Break>,
    pub(super) seconds: u64,
    pub(super) seed: u64,
}

impl ControlPlan {
    /// The command that repeats the faults, of the control and of its twin.
    pub(super) fn command(&self) -> String {
        let mut command = format!(
            "distlock-lab chaos --controls --only {} --seconds {} --seed {}",
            self.control.key(),
            self.seconds,
            self.seed
        );
        if self.faults != self.control.faults() {
            let faults: Vec<_> = self.faults.iter().map(|it| it.key()).collect();
            command += &format!(" --faults {}", faults.join(","));
        }
        command
    }

    /// The same, of distlock.
    pub(super) fn twin(&self) -> Plan {
        let mut plan = Plan::of(self.control.store(), self.seconds, self.seed);
        plan.faults.clone_from(&self.faults);
        plan.hurrying = 0;
        plan.ttl_ms = self.control.ttl_ms();
        plan
    }
}

/// Plays it to its end, and answers with the whole history.
///
/// # Errors
/// When the servers or a worker cannot be started, or a worker crashes. A crash is a defect of the
/// lab: workers handle every error that a control returns.
pub(super) async fn play(plan: &ControlPlan) -> Result<(Verdict, Vec<Entry>)> {
    // So that everything but the lock is the same.
    let twin = plan.twin();
    let folder = tempfile::tempdir().context("a folder for the run")?;
    let (control, path) = (plan.control, folder.path().to_owned());
    let mut stage = spawn_blocking(move || stage(control, &path)).await??;
    let socket = folder.path().join("referee");
    let referee = Arc::new(Referee::start(&socket, false)?);
    let orders = Orders {
        settings: Settings {
            worker: 0,
            socket,
            url: String::new(),
            seed: plan.seed,
            names: (0..LOCKS).map(|at| format!("lock {at}")).collect(),
            quiet_names: Vec::new(),
            ttl_ms: twin.ttl_ms,
            hold_ms: twin.hold_ms,
            clients: 1,
            tasks: twin.tasks,
            hurrying: 0,
            single_threaded: false,
            looks_at_the_end: false,
            workloads: Vec::new(),
            plant: None,
            control: Some(control),
        },
        workers: twin.workers,
    };
    let longest_ttl = Duration::from_millis(twin.ttl_ms.1);
    let mut crew = Crew::start(orders, Arc::clone(&referee), &stage).await?;
    let rng = Rng::with_seed(plan.seed);
    let mut nemesis = Nemesis::new(rng, plan.faults.clone(), longest_ttl);
    let until = SystemClock.now() + Duration::from_secs(plan.seconds);
    while SystemClock.now() < until {
        nemesis.step(&mut crew, &mut stage, None).await?;
        crew.look_after(&stage).await?;
    }
    nemesis.heal_all(&mut crew, &mut stage).await?;
    let history = referee.history();
    // Its servers end before their folder goes.
    block_in_place(|| drop((crew, stage)));
    let verdict = judged(&history, longest_ttl)?;
    Ok((verdict, history))
}

/// The verdict, with the violations that apply to a lock without tokens, tickets and notices.
fn judged(history: &[Entry], longest_ttl: Duration) -> Result<Verdict> {
    let limits = Limits {
        ttl_us: u64::try_from(longest_ttl.as_micros()).unwrap_or_default(),
        notice_us: 0,
        failover_us: 0,
    };
    let mut verdict = judge(history, limits);
    let crash = |it: &&Violation| it.promise == Promise::NoCrash;
    if let Some(crash) = verdict.violations.iter().find(crash) {
        anyhow::bail!("{}", crash.detail);
    }
    verdict
        .violations
        .retain(|it| it.promise == Promise::Exclusion);
    ensure!(verdict.grants > 0, "the control was granted nothing");
    Ok(verdict)
}
