//! One run: a store, workers that compete for its locks, a nemesis, and a verdict.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, Store, SystemClock};
use distlock_harness::eventually_async;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::task::block_in_place;

use super::{
    history::{Event, HistoryEntry, now},
    nemesis::{FaultKind, Nemesis},
    options::Workload,
    planted_bugs::StoreBug,
    referee::{Referee, RunPhase},
    stores::{RunningStore, StoreKind},
    verdict::{Limits, Promise, Verdict, Violation, judge},
    worker::leftovers,
    worker_group::{GroupSettings, WorkerGroup},
    worker_settings::{RW_LOCKS, SEMAPHORES, WorkerSettings},
};

/// Time-out for the first answer of a healed store.
const HEAL_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest allowed time from a deadline to the notice of its loss, in running time.
const NOTICE_BOUND: Duration = Duration::from_millis(250);
/// Pause between two verdicts in a run that looks for a planted bug.
const VERDICT_PAUSE: Duration = Duration::from_millis(500);
/// Number of locks that all tasks compete for. Brief tasks use other locks.
pub(super) const LOCKS: u32 = 4;
/// Number of locks that brief tasks use, each for a moment.
const QUIET_LOCKS: u32 = 40;

/// The plan of one run: the store, the faults, the duration and the load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct RunPlan {
    pub(crate) store: StoreKind,
    pub(crate) faults: Vec<FaultKind>,
    pub(crate) workloads: Vec<Workload>,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) ttl_ms: (u64, u64),
    /// Longest time for which a task holds a lock on purpose.
    pub(crate) hold_ms: u64,
    pub(crate) workers: u32,
    pub(crate) tasks: u32,
    /// Number of tasks of each worker that hold their locks for a moment only.
    pub(crate) brief_tasks: u32,
    pub(crate) bug: Option<StoreBug>,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunResult {
    pub(crate) verdict: Verdict,
    pub(crate) history: Vec<HistoryEntry>,
    /// The server's product and version, in its own words.
    pub(crate) server: String,
}

impl RunPlan {
    /// Plans a run on a store, with all faults that apply to the store.
    pub(crate) fn for_store(store: StoreKind, seconds: u64, seed: u64) -> Self {
        use clap::ValueEnum as _;
        let faults = FaultKind::value_variants().iter().copied();
        let (workers, tasks) = store.workers_and_tasks();
        Self {
            store,
            faults: faults.filter(|it| it.applies_to(store)).collect(),
            workloads: Workload::all(),
            seconds,
            seed,
            ttl_ms: store.ttl_ms(),
            hold_ms: store.longest_hold_ms(),
            workers,
            tasks,
            brief_tasks: tasks / 2,
            bug: None,
        }
    }

    /// Returns the command that repeats the faults.
    pub(crate) fn command(&self) -> String {
        let faults: Vec<_> = self.faults.iter().map(|it| it.key()).collect();
        let workloads: Vec<_> = self.workloads.iter().map(|it| it.key()).collect();
        format!(
            "distlock-lab chaos --spawn {} --seconds {} --seed {} --faults {} --workloads {}",
            self.store.key(),
            self.seconds,
            self.seed,
            faults.join(","),
            workloads.join(",")
        )
    }

    /// Returns the limits that the verdict allows in this run.
    fn limits(&self) -> Limits {
        Limits {
            ttl_us: self.ttl_ms.1 * 1000,
            notice_us: u64::try_from(NOTICE_BOUND.as_micros()).unwrap_or_default(),
            failover_us: self.store.failover_ms() * 1000,
            record_failover_us: self.store.record_failover_ms() * 1000,
        }
    }

    /// Returns the longest TTL that a task asks for.
    fn longest_ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms.1)
    }
}

/// Runs a plan to its end.
///
/// # Errors
/// Returns an error if the store or a worker cannot be started. A broken promise is no error: the
/// verdict contains every broken promise.
pub(crate) async fn run_plan(plan: &RunPlan) -> Result<RunResult> {
    let folder = tempfile::tempdir().context("a folder for the run")?;
    let (kind, path) = (plan.store, folder.path().to_owned());
    let settable_clock = plan.faults.contains(&FaultKind::StepClock);
    let starting =
        tokio::task::spawn_blocking(move || RunningStore::start(kind, &path, settable_clock));
    let mut running_store = starting.await??;
    if let Some(wrong) = plan.bug.and_then(StoreBug::wrong_restart) {
        running_store.restart_wrongly(wrong)?;
    }
    let socket = folder.path().join("referee");
    let late_writes = plan.bug == Some(StoreBug::FenceInTwoSteps);
    let referee = Arc::new(Referee::start(&socket, late_writes)?);
    let in_process = running_store.is_in_process();
    let group_settings = group_settings(plan, socket, in_process);
    // The nemesis acts as an administrator, so its client uses none of the proxies.
    let admin = match in_process {
        true => None,
        false => Some(distlock::open(running_store.target()).await?),
    };
    let server = match &admin {
        Some(admin) => {
            let health = async || admin.locker().health().await.ok();
            eventually_async("the store answers", HEAL_TIMEOUT, health)
                .await?
                .server
        }
        None => "the memory of one process".into(),
    };
    let mut worker_group =
        WorkerGroup::start(group_settings, Arc::clone(&referee), &running_store).await?;
    let mut nemesis = Nemesis::new(
        Rng::with_seed(plan.seed),
        plan.faults.clone(),
        plan.longest_ttl(),
    );
    inject_faults(
        plan,
        &mut nemesis,
        &mut worker_group,
        &mut running_store,
        admin.as_ref(),
    )
    .await?;
    nemesis
        .heal_all(&mut worker_group, &mut running_store)
        .await?;
    let shows_before_roll_call = |bug: StoreBug| !bug.may_break().contains(&Promise::Recovery);
    if finds_planted_bug(plan, &referee) || plan.bug.is_some_and(shows_before_roll_call) {
        // A bug that breaks no promise about recovery shows before the roll call. With such a bug
        // the roll call may take long.
        return Ok(judge_run(plan, &referee, server));
    }
    if let Some(admin) = &admin {
        let locker = admin.locker();
        eventually_async("the healed store answers", HEAL_TIMEOUT, async || {
            locker.health().await.ok()
        })
        .await?;
    }
    referee.start_phase(RunPhase::RollCall);
    let each = plan.longest_ttl() + Duration::from_secs(10);
    let shared = u32::try_from(RW_LOCKS.len() + SEMAPHORES.len())?;
    worker_group.wait_for_end(each * (LOCKS + shared) + Duration::from_secs(30));
    if let Some(admin) = admin {
        for (name, holder) in leftovers(&admin.locker(), plan.longest_ttl()).await {
            referee.record(0, Event::Left { name, holder });
        }
        admin.close().await;
    }
    // The servers must end before the folder with their data is removed.
    block_in_place(|| drop(running_store));
    Ok(judge_run(plan, &referee, server))
}

/// Returns the settings that all workers of a run share. A store in the memory of a process has one
/// worker with several clients, because no other process can reach it.
fn group_settings(plan: &RunPlan, socket: PathBuf, in_process: bool) -> GroupSettings {
    let settings = WorkerSettings {
        worker: 0,
        socket,
        url: String::new(),
        records_url: None,
        server_state: None,
        seed: plan.seed,
        names: (0..LOCKS).map(|at| format!("lock {at}")).collect(),
        quiet_names: (0..QUIET_LOCKS).map(|at| format!("quiet {at}")).collect(),
        ttl_ms: plan.ttl_ms,
        hold_ms: plan.hold_ms,
        clients: if in_process { plan.workers } else { 1 },
        tasks: plan.tasks,
        brief_tasks: plan.brief_tasks,
        single_threaded: false,
        checks_leftovers: in_process,
        workloads: plan.workloads.clone(),
        bug: plan.bug,
        control: None,
    };
    GroupSettings {
        settings,
        workers: if in_process { 1 } else { plan.workers },
    }
}

/// Injects faults until the time of the plan is over, or the planted bug is found.
async fn inject_faults(
    plan: &RunPlan,
    nemesis: &mut Nemesis,
    worker_group: &mut WorkerGroup,
    running_store: &mut RunningStore,
    admin: Option<&Store>,
) -> Result<()> {
    let until = SystemClock.now() + Duration::from_secs(plan.seconds);
    let mut next_verdict = SystemClock.now() + VERDICT_PAUSE;
    while SystemClock.now() < until {
        nemesis.step(worker_group, running_store, admin).await?;
        worker_group.replace_crashed(running_store).await?;
        // An active fault is not in the history yet. The verdict would attribute a violation of
        // such a fault to the planted bug.
        let looks = plan.bug.is_some() && !nemesis.has_open_excuse();
        if looks && SystemClock.now() >= next_verdict {
            if finds_planted_bug(plan, &worker_group.referee) {
                break;
            }
            next_verdict = SystemClock.now() + VERDICT_PAUSE;
        }
    }
    Ok(())
}

/// Judges the whole history of a run.
fn judge_run(plan: &RunPlan, referee: &Referee, server: String) -> RunResult {
    let history = referee.history();
    let mut verdict = judge(&history, plan.limits());
    // A run without a single grant proves nothing, so it must not pass.
    if verdict.grants == 0
        && plan.bug.is_none_or(StoreBug::is_twin)
        && plan.workloads.contains(&Workload::Locks)
    {
        verdict.violations.push(Violation {
            promise: Promise::Recovery,
            at: now(),
            detail: "no lock was granted in the whole run".into(),
            excused_by: None,
        });
    }
    RunResult {
        verdict,
        history,
        server,
    }
}

/// Tells whether the verdict finds the planted bug.
fn finds_planted_bug(plan: &RunPlan, referee: &Referee) -> bool {
    plan.bug.is_some_and(|bug| {
        let promises = judge(&referee.history(), plan.limits()).broken_promises();
        bug.may_break().iter().any(|it| promises.contains(it))
    })
}
