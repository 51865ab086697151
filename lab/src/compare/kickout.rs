//! Measures the kick-out flow as `distlock-lab bench --workload takeover` does.

use std::time::Duration;

use distlock_cli::program::{Outcome, Progress};
use distlock_report::{Quantiles, Spread, TakeoverReport, compare::Measure};

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
            Some(async move {
                Box::pin(kick_out_round(&shared_store, accounts, time))
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(format!("{error:#}")))
            })
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
                match Box::pin(takeover::measure_idle(
                    &shared_store,
                    sessions,
                    &Progress::silent(),
                ))
                .await
                {
                    Ok(idle) => RoundResult {
                        values: vec![(Measure::Memory, as_f64(idle.bytes_per_session) / 1024.0)],
                        ..RoundResult::default()
                    },
                    Err(error) => RoundResult::failed(format!("{error:#}")),
                }
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
) -> anyhow::Result<RoundResult> {
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
    if let Some(error) = [&alone, &crowd].into_iter().find_map(first_error) {
        return Ok(RoundResult::failed(error));
    }
    let mut beside = Vec::new();
    let mut add = |experiment: &str, measure, value: Option<f64>| {
        beside.extend(value.map(|value| (experiment.to_owned(), measure, value)));
    };
    let p50 = |quantiles: Option<Quantiles>| quantiles.map(|it| it.p50_us);
    let p99 = |quantiles: Option<Quantiles>| quantiles.map(|it| it.p99_us);
    let median = |spread: Option<Spread>| spread.map(|it| it.median);
    let it = &alone.figures;
    for (experiment, quantiles) in [
        ("takeover-local", it.local_told),
        ("takeover-local-gone", it.local_gone),
        ("takeover-cross", it.cross_told),
        ("takeover-cross-gone", it.cross_gone),
    ] {
        add(experiment, Measure::P50, p50(quantiles));
        add(experiment, Measure::P99, p99(quantiles));
    }
    let it = &crowd.figures;
    add("takeovers", Measure::Rate, median(it.logins_per_second));
    add("takeovers", Measure::Operations, it.operations_per_takeover);
    add("messages", Measure::Rate, median(it.messages_per_second));
    add("messages", Measure::P50, p50(it.message));
    add("messages", Measure::P99, p99(it.message));
    Ok(RoundResult {
        beside,
        ..RoundResult::default()
    })
}

/// Describes the first failure of a report, if there is one.
fn first_error(report: &TakeoverReport) -> Option<String> {
    let failed = Some(&report.figures).filter(|it| it.errors > 0)?;
    Some(format!(
        "{} takeovers or messages failed, the first: {}",
        failed.errors,
        failed.first_error.as_deref().unwrap_or("unknown")
    ))
}
