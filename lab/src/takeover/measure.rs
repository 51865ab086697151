//! Measures takeovers and messages of one or several ways of routing, in interleaved rounds.

use std::time::Duration;

use anyhow::Result;
use distlock_report::{TakeoverReport, TakeoverSample};

use super::{
    group::{Group, SharedStore},
    load::{Pace, Players},
};

/// The time before each round that is not measured: nodes connect to each other and buffers grow in
/// it.
const WARMUP: Duration = Duration::from_millis(300);

/// The share of each round that is spent on messages.
const MESSAGE_SHARE: f64 = 0.25;

/// The ways in which nodes route messages. The first one is the base of the comparison.
pub(crate) const ROUTES: [&str; 2] = ["fenced", "locked"];

/// The options of one measurement.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// The number of accounts whose sessions are taken over at the same time.
    pub(crate) callers: u32,
    /// The number of nodes in a group.
    pub(crate) nodes: u32,
    /// Whether each node is a process.
    pub(crate) processes: bool,
    /// The ways of routing, each with a group of nodes of its own.
    pub(crate) routes: &'static [&'static str],
    /// Logins per second; `None` = as many as possible.
    pub(crate) rate: Option<f64>,
    /// The time for each way of routing, over all rounds.
    pub(crate) time: Duration,
    pub(crate) rounds: u32,
}

/// One group of nodes and its clients.
struct Arm {
    route: &'static str,
    group: Group,
    players: Players,
}

/// Measures ways of routing, in interleaved rounds. Dropping the future ends the nodes.
pub(crate) async fn measure(shared_store: &SharedStore, load: &Load) -> Result<TakeoverReport> {
    let mut arms = Vec::new();
    for route in load.routes {
        let settings = [("route", *route)];
        let group =
            Group::start(shared_store, route, load.nodes, load.processes, &settings).await?;
        let players = Players::new(shared_store, &group, route, load.callers)?;
        arms.push(Arm {
            route,
            group,
            players,
        });
    }
    let mut samples = Vec::new();
    for round in 0..load.rounds {
        // Every other round runs in reverse order, so that no arm always runs after the same
        // neighbour.
        let mut order: Vec<usize> = (0..arms.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            samples.push(arms[at].run_round(round, load).await);
        }
    }
    samples.sort_by_key(|sample| load.routes.iter().position(|route| *route == sample.arm));
    for arm in arms {
        arm.players.leave().await;
        arm.group.stop().await;
    }
    shared_store.remove_records().await?;
    let mut report = TakeoverReport::new(shared_store.backend(), samples);
    report.nodes = load.nodes;
    report.processes = load.processes;
    report.callers = load.callers;
    report.rate = load.rate;
    Ok(report)
}

impl Arm {
    /// Runs one round: a warm-up, takeovers, and then messages.
    async fn run_round(&mut self, round: u32, load: &Load) -> TakeoverSample {
        let time = load.time / load.rounds;
        let pace = |time| Pace {
            time,
            rate: load.rate,
        };
        self.players.take_over(pace(WARMUP.min(time))).await;
        let before = self.group.calls();
        let mut sample = self
            .players
            .take_over(pace(time.mul_f64(1.0 - MESSAGE_SHARE)))
            .await;
        let after = self.group.calls();
        let talked = self
            .players
            .exchange_messages(time.mul_f64(MESSAGE_SHARE))
            .await;
        sample.add(&talked);
        sample.arm = self.route.to_owned();
        sample.round = round;
        sample.operations = after.zip(before).map(|(after, before)| after - before);
        sample.messages_elapsed_ns = talked.messages_elapsed_ns;
        sample
    }
}
