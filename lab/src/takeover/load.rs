//! Measures takeovers and messages. Each player is an account whose devices take over from each
//! other.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use distlock::{Clock as _, Moment, SystemClock};
use distlock_core::sync::Mutex;
use distlock_gateway::Uid;
use distlock_report::{Sample, Workload};
use futures_util::future::{Either, select};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    client::{Client, within_limit},
    group::{Group, SharedStore},
};

/// The pause after an error, in which a failing store can recover.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// The arms of a report. The times of a login count from its sending or, with a rate, from the
/// moment at which it was due.
pub(super) const CONFIRMED: &str = "confirmed";
/// Until the old client, on the same node or on another one, had read its notice.
pub(super) const TOLD: [&str; 2] = ["local-told", "cross-told"];
/// Until both sides had closed the connection of the old client.
pub(super) const GONE: [&str; 2] = ["local-gone", "cross-gone"];
/// From sending a message until its outcome was known.
pub(super) const MESSAGE: &str = "message";

/// One account, with its device that is logged in.
#[derive(Debug)]
pub(super) struct Player {
    number: usize,
    uid: Uid,
    token: String,
    /// The number of takeovers so far. It determines the node of the next device: each node is used
    /// twice in a row.
    step: usize,
    client: Option<Client>,
}

/// How long takeovers run, and at which rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) time: Duration,
    /// Logins per second of all players together. With `None` each login follows the previous login
    /// at once.
    pub(super) rate: Option<f64>,
}

/// The samples of a round, by their arms. All players share them: a histogram takes a quarter of a
/// megabyte, which is too much for each player.
pub(super) type Samples = BTreeMap<&'static str, Sample>;

type SharedSamples = Mutex<Samples>;

fn empty_samples(arms: impl IntoIterator<Item = &'static str>, callers: usize) -> SharedSamples {
    let arms = arms.into_iter();
    Mutex::new(
        arms.map(|arm| (arm, Sample::new(arm, Workload::Takeover, callers)))
            .collect(),
    )
}

fn record_failure(samples: &SharedSamples, arm: &'static str, error: &anyhow::Error) {
    if let Some(sample) = samples.lock().get_mut(arm) {
        sample.record_failure(&format!("{error:#}"));
    }
}

/// Takes the samples, whose time began at `start`.
fn take_samples(samples: &SharedSamples, start: Moment, end: Moment) -> Samples {
    let mut samples = std::mem::take(&mut *samples.lock());
    for sample in samples.values_mut() {
        sample.elapsed_ns = u64::try_from(end.since(start).as_nanos()).unwrap_or(u64::MAX);
    }
    samples
}

/// The players of one group.
#[derive(Debug)]
pub(super) struct Players {
    nodes: Arc<[SocketAddr]>,
    players: Vec<Player>,
}

impl Players {
    /// Creates players, whose accounts are not logged in.
    pub(super) fn new(
        shared_store: &SharedStore,
        group: &Group,
        name: &str,
        callers: u32,
    ) -> Result<Self> {
        let player = |number| {
            let (uid, token) = shared_store.new_account(&format!("{name}{number}"))?;
            Ok(Player {
                number: usize::try_from(number).unwrap_or(0),
                uid,
                token,
                step: 0,
                client: None,
            })
        };
        Ok(Self {
            nodes: group.addresses().into(),
            players: (0..callers).map(player).collect::<Result<_>>()?,
        })
    }

    /// Runs takeovers for a while. Each player uses each node twice in a row, so every second
    /// takeover is within one node.
    pub(super) async fn take_over(&mut self, pace: Pace) -> Samples {
        let mut running = JoinSet::new();
        let players = u32::try_from(self.players.len()).unwrap_or(u32::MAX);
        let nodes = Arc::clone(&self.nodes);
        // All accounts log in before the measured time begins.
        let mut first = JoinSet::new();
        for mut player in self.players.drain(..) {
            let nodes = Arc::clone(&nodes);
            first.spawn(async move {
                let entered = player.log_in_if_absent(&nodes).await;
                (player, entered)
            });
        }
        let arms = [CONFIRMED].into_iter().chain(TOLD).chain(GONE);
        let seen = Arc::new(empty_samples(arms, first.len()));
        let mut ready = Vec::new();
        for (player, entered) in first.join_all().await {
            if let Err(error) = entered {
                record_failure(&seen, CONFIRMED, &error);
            }
            ready.push(player);
        }
        let start = SystemClock.now();
        for (number, mut player) in (0_u32..).zip(ready) {
            let nodes = Arc::clone(&nodes);
            // Each player has its share of the rate, and begins at its own point within the period.
            let turns = pace.rate.map(|rate| {
                let period = Duration::from_secs_f64(f64::from(players) / rate);
                (
                    start + period.mul_f64(f64::from(number) / f64::from(players)),
                    period,
                )
            });
            let seen = Arc::clone(&seen);
            running.spawn(async move {
                player
                    .keep_taking_over(&nodes, start + pace.time, turns, &seen)
                    .await;
                (player, SystemClock.now())
            });
        }
        let end = self.take_back(running).await;
        take_samples(&seen, start, end)
    }

    /// Lets each player send messages to the next player, one at a time.
    pub(super) async fn exchange_messages(&mut self, time: Duration) -> Samples {
        let start = SystemClock.now();
        let uids: Vec<Uid> = self
            .players
            .iter()
            .map(|player| player.uid.clone())
            .collect();
        let mut running = JoinSet::new();
        let seen = Arc::new(empty_samples([MESSAGE], uids.len()));
        for (number, mut player) in self.players.drain(..).enumerate() {
            let to = uids[(number + 1) % uids.len()].clone();
            let seen = Arc::clone(&seen);
            running.spawn(async move {
                player.keep_sending(&to, start + time, &seen).await;
                (player, SystemClock.now())
            });
        }
        let end = self.take_back(running).await;
        take_samples(&seen, start, end)
    }

    /// Waits for all players and stores them again. Returns the moment when the last player had
    /// finished.
    async fn take_back(&mut self, running: JoinSet<(Player, Moment)>) -> Moment {
        let mut last = SystemClock.now();
        for (at, (player, ended)) in running.join_all().await.into_iter().enumerate() {
            last = if at == 0 { ended } else { last.max(ended) };
            self.players.push(player);
        }
        last
    }

    /// Closes all sessions.
    pub(super) async fn leave(self) {
        let leaving = self.players.into_iter().map(|mut player| async move {
            if let Some(mut client) = player.client.take() {
                let _ = client.leave().await;
            }
        });
        futures_util::future::join_all(leaving).await;
    }
}

impl Player {
    /// The node of the current step. Each node is used twice in a row.
    fn current_node(&self, nodes: &[SocketAddr]) -> SocketAddr {
        nodes[(self.step / 2) % nodes.len()]
    }

    /// Logs a device in, unless one is logged in.
    async fn log_in_if_absent(&mut self, nodes: &[SocketAddr]) -> Result<()> {
        if self.client.is_none() {
            let mut client = Client::connect(self.current_node(nodes)).await?;
            client.send_login(&self.token, "device").await?;
            client.wait_until_in().await?;
            self.client = Some(client);
        }
        Ok(())
    }

    /// Runs takeovers until the end. `turns` are the moment of the first one and the period.
    async fn keep_taking_over(
        &mut self,
        nodes: &[SocketAddr],
        until: Moment,
        turns: Option<(Moment, Duration)>,
        seen: &SharedSamples,
    ) {
        let mut due = turns.map(|(first, _)| first);
        while due.unwrap_or_else(|| SystemClock.now()) < until {
            if let Err(error) = self.take_over(nodes, due, seen).await {
                record_failure(seen, CONFIRMED, &error);
                self.client = None;
                SystemClock.sleep(ERROR_PAUSE).await;
            }
            if let (Some(due), Some((_, period))) = (&mut due, turns) {
                *due = *due + period;
            }
        }
    }

    /// Runs one takeover. If the previous takeover took too long, the time still counts from the
    /// moment when this takeover was due.
    async fn take_over(
        &mut self,
        nodes: &[SocketAddr],
        due: Option<Moment>,
        seen: &SharedSamples,
    ) -> Result<()> {
        self.log_in_if_absent(nodes).await?;
        let from = self.current_node(nodes);
        self.step += 1;
        let to = self.current_node(nodes);
        let mut new = Client::connect(to).await?;
        if let Some(due) = due {
            SystemClock.sleep(due.since(SystemClock.now())).await;
        }
        let Some(mut old) = self.client.take() else {
            bail!("nobody is there to be taken over");
        };
        let start = due.unwrap_or_else(|| SystemClock.now());
        new.send_login(&self.token, "device").await?;
        let answering = Box::pin(async {
            new.wait_until_in().await?;
            Ok::<_, anyhow::Error>(SystemClock.now())
        });
        let ending = Box::pin(async {
            let told = old.wait_for_notice().await?;
            Ok::<_, anyhow::Error>((told, old.leave().await?))
        });
        // A refused login ends no session, so the code waits for the answer and for the notice at
        // the same time. Waiting for the notice first would hide the refusal.
        let (confirmed, (told, gone)) = match select(answering, ending).await {
            Either::Left((confirmed, ending)) => (confirmed?, ending.await?),
            Either::Right((ended, answering)) => (answering.await?, ended?),
        };
        self.client = Some(new);
        let place = usize::from(from != to);
        let times = [
            (CONFIRMED, confirmed),
            (TOLD[place], told),
            (GONE[place], gone),
        ];
        let mut seen = seen.lock();
        for (arm, at) in times {
            if let Some(sample) = seen.get_mut(arm) {
                sample.record(self.number, at.since(start));
            }
        }
        Ok(())
    }

    /// Sends messages until the end, or until one fails.
    async fn keep_sending(&mut self, to: &Uid, until: Moment, seen: &SharedSamples) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut number = 0_u64;
        while SystemClock.now() < until {
            number += 1;
            let start = SystemClock.now();
            match send_and_wait(client, to, &number.to_string()).await {
                Ok(()) => {
                    let time = SystemClock.now().since(start);
                    if let Some(sample) = seen.lock().get_mut(MESSAGE) {
                        sample.record(self.number, time);
                    }
                }
                Err(error) => {
                    record_failure(seen, MESSAGE, &error);
                    self.client = None;
                    break;
                }
            }
        }
    }
}

/// Sends a message and waits for its outcome.
async fn send_and_wait(client: &mut Client, to: &Uid, id: &str) -> Result<()> {
    let frame = json!({"type": "send", "to": to, "body": "hello", "id": id});
    client.send(&frame.to_string()).await?;
    loop {
        let Some(frame) =
            within_limit("wait for a message's outcome", client.next_frame()).await??
        else {
            bail!("the connection ended before a message's outcome was told");
        };
        match frame.kind.as_str() {
            "sent" if frame.id.as_deref() == Some(id) => {
                return match frame.outcome.as_deref() {
                    Some("written") => Ok(()),
                    other => bail!("a message was {}", other.unwrap_or("lost")),
                };
            }
            "message" => {}
            _ => bail!("a message was answered {frame}"),
        }
    }
}
