//! Measures takeovers and messages of one group of nodes, in rounds.

use std::time::Duration;

use anyhow::Result;
use distlock_report::Report;

use super::{
    group::{Group, SharedStore},
    load::{CONFIRMED, Pace, Players, Samples},
};

/// The time before each round that is not measured: nodes connect to each other and buffers grow in
/// it.
const WARMUP: Duration = Duration::from_millis(300);

/// The share of each round that is spent on messages.
const MESSAGE_SHARE: f64 = 0.25;

/// The options of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The number of accounts whose sessions are taken over at the same time.
    pub(crate) callers: u32,
    /// The number of nodes in a group.
    pub(crate) nodes: u32,
    /// Whether each node is a process.
    pub(crate) processes: bool,
    /// Logins per second; `None` = as many as possible.
    pub(crate) rate: Option<f64>,
    /// The time for all rounds together.
    pub(crate) time: Duration,
    pub(crate) rounds: u32,
}

/// Measures takeovers and messages. Dropping the future ends the nodes.
pub(crate) async fn measure(shared_store: &SharedStore, load: &Load) -> Result<Report> {
    let group = Group::start(shared_store, "takeover", load.nodes, load.processes, &[]).await?;
    let mut players = Players::new(shared_store, &group, "takeover", load.callers)?;
    let mut samples = Vec::new();
    for round in 0..load.rounds {
        let done = run_round(&group, &mut players, round, load).await;
        samples.extend(
            done.into_values()
                .filter(|it| it.cycles() > 0 || it.errors > 0),
        );
    }
    players.leave().await;
    group.stop().await;
    shared_store.remove_records().await?;
    let mut report = Report::new(samples);
    // The arms are times of the same logins, so their ratios say nothing.
    report.ratios.clear();
    Ok(report)
}

/// Runs one round: a warm-up, takeovers, and then messages.
async fn run_round(group: &Group, players: &mut Players, round: u32, load: &Load) -> Samples {
    let time = load.time / load.rounds;
    let pace = |time| Pace {
        time,
        rate: load.rate,
    };
    players.take_over(pace(WARMUP.min(time))).await;
    let before = group.calls();
    let mut samples = players
        .take_over(pace(time.mul_f64(1.0 - MESSAGE_SHARE)))
        .await;
    let after = group.calls();
    if let Some(logins) = samples.get_mut(CONFIRMED) {
        // Calls to the store, with the nodes' own renewals and without their scans.
        logins.operations = after.zip(before).map(|(after, before)| after - before);
    }
    samples.extend(players.exchange_messages(time.mul_f64(MESSAGE_SHARE)).await);
    samples.values_mut().for_each(|sample| sample.round = round);
    samples
}
