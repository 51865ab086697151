//! Measures the kick-out flow as `distlock-lab bench --workload takeover` does.

use std::time::Duration;

use anyhow::{Result, bail};
use distlock_cli::program::{Outcome, Progress};
use distlock_report::compare::Measure;

use super::{plan::ComparisonRun, rounds::RoundResult};
use crate::{
    counts::as_f64,
    takeover::{self, Load, SharedStore},
};

/// The extra time of a round for starting nodes, for the first logins, and for closing.
const EXTRA_TIME: Duration = Duration::from_secs(30);

impl ComparisonRun {
    /// Measures takeovers one after the other, and then as many as possible, in rounds.
    pub(super) async fn measure_kick_out(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring the kick-out flow");
        let (rounds, accounts, time) = (self.plan.rounds, self.plan.accounts, self.plan.time);
        let expected = time * 3 + EXTRA_TIME;
        self.interleave("takeover", rounds, expected, |store, _| {
            let shared_store = SharedStore::new(store.target.clone(), &store.store);
            Some(async move { Box::pin(kick_out_round(&shared_store, accounts, time)).await })
        })
        .await
    }

    /// Measures the memory of a node per idle session.
    pub(super) async fn measure_idle_sessions(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring idle sessions");
        let sessions = self.plan.sessions;
        let expected = EXTRA_TIME + Duration::from_millis(20) * sessions;
        self.interleave("sessions", 1, expected, |store, _| {
            let shared_store = SharedStore::new(store.target.clone(), &store.store);
            Some(async move {
                let progress = Progress::silent();
                let idle = Box::pin(takeover::measure_idle(&shared_store, sessions, &progress));
                let kib = as_f64(idle.await?.bytes_per_session) / 1024.0;
                Ok(RoundResult::of("sessions", [(Measure::Memory, kib)]))
            })
        })
        .await
    }
}

/// Runs one round: one account alone, and then many accounts.
async fn kick_out_round(
    shared_store: &SharedStore,
    accounts: u32,
    time: Duration,
) -> Result<RoundResult> {
    let load = |callers| Load {
        callers,
        nodes: 2,
        processes: false,
        rate: None,
        time,
        rounds: 1,
    };
    let alone = takeover::measure(shared_store, &load(1)).await?;
    let crowd = takeover::measure(shared_store, &load(accounts)).await?;
    let mut figures = alone.figures.iter().chain(&crowd.figures);
    if let Some(failed) = figures.find(|it| it.errors > 0) {
        let first = failed.first_error.as_deref().unwrap_or("unknown");
        bail!(
            "{} takeovers or messages failed, the first: {first}",
            failed.errors
        );
    }
    let mut result = RoundResult::default();
    for (experiment, report, arm) in [
        ("takeover-local", &alone, "local-told"),
        ("takeover-local-gone", &alone, "local-gone"),
        ("takeover-cross", &alone, "cross-told"),
        ("takeover-cross-gone", &alone, "cross-gone"),
        ("takeovers", &crowd, "confirmed"),
        ("messages", &crowd, "message"),
    ] {
        let Some(it) = report.arm(arm) else { continue };
        for (measure, value) in [
            (Measure::Rate, it.cycles_per_second.map(|it| it.median)),
            (Measure::P50, it.p50_us.map(|it| it.median)),
            (Measure::P99, it.p99_us.map(|it| it.median)),
            (Measure::Operations, it.operations_per_cycle),
        ] {
            let value = value.map(|value| (experiment.to_owned(), measure, value));
            result.values.extend(value);
        }
    }
    Ok(result)
}
