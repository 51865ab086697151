//! One run of a control, and the plan of its twin.
//!
//! Counts the results of a control and of its twin from their verdicts.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::{Clock as _, SystemClock};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::task::{block_in_place, spawn_blocking};

use super::kinds::{Control, start_store};
use crate::{
    chaos::{
        history::HistoryEntry,
        nemesis::{FaultKind, Nemesis},
        referee::Referee,
        run::{LOCKS, RunPlan},
        verdict::{Limits, Promise, Verdict, Violation, judge},
        worker_group::{GroupSettings, WorkerGroup},
        worker_settings::WorkerSettings,
    },
    report::ControlFigures,
};

/// The plan of one run: the control, its faults and its duration.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ControlPlan {
    pub(super) control: Control,
    pub(super) faults: Vec<FaultKind>,
    pub(super) seconds: u64,
    pub(super) seed: u64,
}

impl ControlPlan {
    /// Returns the command that repeats the faults, for the control and its twin.
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

    /// Returns the plan of the twin: distlock under the same conditions.
    pub(super) fn twin_plan(&self) -> RunPlan {
        let mut plan = RunPlan::for_store(self.control.store(), self.seconds, self.seed);
        plan.faults.clone_from(&self.faults);
        plan.brief_tasks = 0;
        plan.ttl_ms = self.control.ttl_ms();
        plan
    }
}

/// Runs the plan to its end, and returns the verdict with the whole history.
///
/// # Errors
/// Returns an error if the servers or a worker cannot be started, or if a worker crashes. A crash
/// is a defect of the lab, because workers handle every error that a control returns.
pub(super) async fn run_control(plan: &ControlPlan) -> Result<(Verdict, Vec<HistoryEntry>)> {
    // The control takes every setting of its twin, so only the lock differs.
    let twin = plan.twin_plan();
    let folder = tempfile::tempdir().context("a folder for the run")?;
    let (control, path) = (plan.control, folder.path().to_owned());
    let settable_clock = plan.faults.contains(&FaultKind::StepClock);
    let starting = spawn_blocking(move || start_store(control, &path, settable_clock));
    let mut running_store = starting.await??;
    let socket = folder.path().join("referee");
    let referee = Arc::new(Referee::start(&socket, false)?);
    let group_settings = GroupSettings {
        settings: WorkerSettings {
            worker: 0,
            socket,
            url: String::new(),
            records_url: None,
            server_state: None,
            seed: plan.seed,
            names: (0..LOCKS).map(|at| format!("lock {at}")).collect(),
            quiet_names: Vec::new(),
            ttl_ms: twin.ttl_ms,
            hold_ms: twin.hold_ms,
            clients: 1,
            tasks: twin.tasks,
            brief_tasks: 0,
            single_threaded: false,
            checks_leftovers: false,
            workloads: Vec::new(),
            bug: None,
            control: Some(control),
        },
        workers: twin.workers,
    };
    let longest_ttl = Duration::from_millis(twin.ttl_ms.1);
    let mut worker_group =
        WorkerGroup::start(group_settings, Arc::clone(&referee), &running_store).await?;
    let rng = Rng::with_seed(plan.seed);
    let mut nemesis = Nemesis::new(rng, plan.faults.clone(), longest_ttl);
    let until = SystemClock.now() + Duration::from_secs(plan.seconds);
    while SystemClock.now() < until {
        nemesis
            .step(&mut worker_group, &mut running_store, None)
            .await?;
        worker_group.replace_crashed(&running_store).await?;
    }
    nemesis
        .heal_all(&mut worker_group, &mut running_store)
        .await?;
    let history = referee.history();
    // The servers must end before the folder with their data is removed.
    block_in_place(|| drop((worker_group, running_store)));
    let verdict = judge_control(&history, longest_ttl)?;
    Ok((verdict, history))
}

/// Returns the verdict, with only those violations that apply to a lock without tokens, tickets and
/// notices.
fn judge_control(history: &[HistoryEntry], longest_ttl: Duration) -> Result<Verdict> {
    let limits = Limits {
        ttl_us: u64::try_from(longest_ttl.as_micros()).unwrap_or_default(),
        notice_us: 0,
        failover_us: 0,
        record_failover_us: 0,
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

/// Promises that no control makes, because it has no tokens, notices, tickets or records.
pub(super) const NOT_APPLICABLE: [Promise; 5] = [
    Promise::TokensRise,
    Promise::FencedUpdates,
    Promise::LossIsTold,
    Promise::TicketsOnce,
    Promise::Linearizable,
];

/// Returns the results of a control. All its violations count, because an excuse holds for distlock
/// only.
pub(super) fn control_figures(verdict: &Verdict) -> ControlFigures {
    let all = &verdict.violations;
    let excusable = all.iter().filter(|it| it.excused_by.is_some());
    ControlFigures {
        violations: all.len(),
        after_documented: excusable.count(),
        fenced_lost: None,
        example: all.first().map(|it| it.detail.clone()),
        ..shared_figures(verdict)
    }
}

/// Returns the results of a twin. Its excused violations are counted apart.
pub(super) fn twin_figures(verdict: &Verdict) -> ControlFigures {
    let broken = verdict.broken().count();
    let fenced = verdict
        .violations
        .iter()
        .filter(|it| it.promise == Promise::FencedUpdates);
    ControlFigures {
        violations: broken,
        after_documented: verdict.violations.len() - broken,
        fenced_lost: Some(fenced.count()),
        example: verdict.broken().next().map(|it| it.detail.clone()),
        ..shared_figures(verdict)
    }
}

/// Returns the results that a control and its twin count in the same way.
fn shared_figures(verdict: &Verdict) -> ControlFigures {
    ControlFigures {
        operations: verdict.operations,
        grants: verdict.grants,
        faults: verdict.faults.values().sum(),
        violations: 0,
        after_documented: 0,
        longest_overlap_us: verdict.longest_overlap_us,
        unfenced_lost: verdict.unfenced_lost,
        fenced_lost: None,
        example: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::verdict::Violation;

    fn verdict(promise: Promise, excused_by: Option<&str>) -> Verdict {
        Verdict {
            violations: vec![Violation {
                promise,
                at: 1,
                detail: "two at once".into(),
                excused_by: excused_by.map(Into::into),
            }],
            ..Verdict::default()
        }
    }

    #[test]
    fn an_excused_violation_counts_for_a_control_and_separately_for_a_twin() {
        let wiped = verdict(Promise::Exclusion, Some("wipe-server of redis"));
        let (control, twin) = (control_figures(&wiped), twin_figures(&wiped));
        assert_eq!((control.violations, control.after_documented), (1, 1));
        assert_eq!((twin.violations, twin.after_documented), (0, 1));
        assert_eq!((control.fenced_lost, twin.fenced_lost), (None, Some(0)));
        let broken = twin_figures(&verdict(Promise::FencedUpdates, None));
        assert_eq!((broken.violations, broken.fenced_lost), (1, Some(1)));
    }
}
