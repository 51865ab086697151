//! Measures takeovers and messages. Each player is an account whose devices take over from each
//! other.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Result, bail};
use distlock::{Clock as _, Moment, SystemClock};
use distlock_core::sync::Mutex;
use distlock_gateway::Uid;
use distlock_report::TakeoverSample;
use futures_util::future::{Either, select};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    client::{Client, within_limit},
    group::{Group, SharedStore},
};

/// The pause after an error, in which a failing store can recover.
const ERROR_PAUSE: Duration = Duration::from_millis(20);

/// One account, with its device that is logged in.
#[derive(Debug)]
pub(super) struct Player {
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

/// The sample of a round, which all players share. A histogram takes a quarter of a megabyte, which
/// is too much for each player.
#[derive(Debug, Default)]
struct SharedSample(Mutex<TakeoverSample>);

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
    pub(super) async fn take_over(&mut self, pace: Pace) -> TakeoverSample {
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
        let seen = Arc::new(SharedSample::default());
        let mut ready = Vec::new();
        for (player, entered) in first.join_all().await {
            if let Err(error) = entered {
                seen.0.lock().record_failure(&format!("{error:#}"));
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
        let mut all = std::mem::take(&mut *seen.0.lock());
        all.elapsed_ns = nanos(end.since(start));
        all
    }

    /// Lets each player send messages to the next player, one at a time.
    pub(super) async fn exchange_messages(&mut self, time: Duration) -> TakeoverSample {
        let start = SystemClock.now();
        let uids: Vec<Uid> = self
            .players
            .iter()
            .map(|player| player.uid.clone())
            .collect();
        let mut running = JoinSet::new();
        let seen = Arc::new(SharedSample::default());
        for (number, mut player) in self.players.drain(..).enumerate() {
            let to = uids[(number + 1) % uids.len()].clone();
            let seen = Arc::clone(&seen);
            running.spawn(async move {
                player.keep_sending(&to, start + time, &seen).await;
                (player, SystemClock.now())
            });
        }
        let end = self.take_back(running).await;
        let mut all = std::mem::take(&mut *seen.0.lock());
        all.messages_elapsed_ns = nanos(end.since(start));
        all
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
        seen: &SharedSample,
    ) {
        let mut due = turns.map(|(first, _)| first);
        while due.unwrap_or_else(|| SystemClock.now()) < until {
            if let Err(error) = self.take_over(nodes, due, seen).await {
                seen.0.lock().record_failure(&format!("{error:#}"));
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
        seen: &SharedSample,
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
        let mut seen = seen.0.lock();
        seen.takeovers += 1;
        seen.confirmed.record(confirmed.since(start));
        let ended = if from == to {
            &mut seen.local
        } else {
            &mut seen.cross
        };
        ended.told.record(told.since(start));
        ended.gone.record(gone.since(start));
        Ok(())
    }

    /// Sends messages until the end, or until one fails.
    async fn keep_sending(&mut self, to: &Uid, until: Moment, seen: &SharedSample) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut number = 0_u64;
        while SystemClock.now() < until {
            number += 1;
            let start = SystemClock.now();
            match send_and_wait(client, to, &number.to_string()).await {
                Ok(()) => {
                    let mut seen = seen.0.lock();
                    seen.message.record(SystemClock.now().since(start));
                    seen.messages += 1;
                }
                Err(error) => {
                    seen.0.lock().record_failure(&format!("{error:#}"));
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

/// A duration in whole nanoseconds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
