//! Takeovers and messages: every seat is an account whose devices take over from each other.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Result, bail};
use distlock::{Clock as _, Moment, SystemClock};
use distlock_gateway::Uid;
use distlock_report::TakeoverSample;
use futures_util::future::{Either, select};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    client::{Client, soon},
    group::{Ground, Group},
};

/// Lets a failing store breathe.
const AFTER_ERROR: Duration = Duration::from_millis(20);

/// One account: the device that is in, and how often it was taken over.
#[derive(Debug)]
pub(super) struct Seat {
    uid: Uid,
    token: String,
    /// Over which node its present device is connected, counted on.
    step: usize,
    client: Option<Client>,
}

/// When takeovers are due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) time: Duration,
    /// Logins per second of all seats together; `None` = the next one as soon as the last one is over.
    pub(super) rate: Option<f64>,
}

/// What all seats of a round see: one for all, because a histogram takes a quarter of a megabyte.
#[derive(Debug, Default)]
struct Notes(Mutex<TakeoverSample>);

impl Notes {
    fn take(&self) -> MutexGuard<'_, TakeoverSample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The seats of one group.
#[derive(Debug)]
pub(super) struct Seats {
    nodes: Arc<[SocketAddr]>,
    seats: Vec<Seat>,
}

impl Seats {
    /// Accounts that nobody is logged in to.
    pub(super) fn new(ground: &Ground, group: &Group, name: &str, callers: u32) -> Result<Self> {
        let seat = |number| {
            let (uid, token) = ground.account(&format!("{name}{number}"))?;
            Ok(Seat {
                uid,
                token,
                step: 0,
                client: None,
            })
        };
        Ok(Self {
            nodes: group.addresses().into(),
            seats: (0..callers).map(seat).collect::<Result<_>>()?,
        })
    }

    /// Takeovers for a while. Each seat goes round the nodes so that every other takeover is within a node.
    pub(super) async fn take_over(&mut self, pace: Pace) -> TakeoverSample {
        let mut running = JoinSet::new();
        let seats = u32::try_from(self.seats.len()).unwrap_or(u32::MAX);
        let nodes = Arc::clone(&self.nodes);
        // Everybody is in before the time begins.
        let mut first = JoinSet::new();
        for mut seat in self.seats.drain(..) {
            let nodes = Arc::clone(&nodes);
            first.spawn(async move {
                let entered = seat.enter(&nodes).await;
                (seat, entered)
            });
        }
        let seen = Arc::new(Notes::default());
        let mut ready = Vec::new();
        for (seat, entered) in first.join_all().await {
            if let Err(error) = entered {
                seen.take().failed(&format!("{error:#}"));
            }
            ready.push(seat);
        }
        let start = SystemClock.now();
        for (number, mut seat) in (0_u32..).zip(ready) {
            let nodes = Arc::clone(&nodes);
            // Each seat has its share of the rate, and its turn within the period.
            let turns = pace.rate.map(|rate| {
                let period = Duration::from_secs_f64(f64::from(seats) / rate);
                (
                    start + period.mul_f64(f64::from(number) / f64::from(seats)),
                    period,
                )
            });
            let seen = Arc::clone(&seen);
            running.spawn(async move {
                seat.keep_taking_over(&nodes, start + pace.time, turns, &seen)
                    .await;
                (seat, SystemClock.now())
            });
        }
        let end = self.sit_down(running).await;
        let mut all = std::mem::take(&mut *seen.take());
        all.elapsed_ns = nanos(end.since(start));
        all
    }

    /// Messages from each seat's device to the next one's, one at a time.
    pub(super) async fn talk(&mut self, time: Duration) -> TakeoverSample {
        let start = SystemClock.now();
        let uids: Vec<Uid> = self.seats.iter().map(|seat| seat.uid.clone()).collect();
        let mut running = JoinSet::new();
        let seen = Arc::new(Notes::default());
        for (number, mut seat) in self.seats.drain(..).enumerate() {
            let to = uids[(number + 1) % uids.len()].clone();
            let seen = Arc::clone(&seen);
            running.spawn(async move {
                seat.keep_talking(&to, start + time, &seen).await;
                (seat, SystemClock.now())
            });
        }
        let end = self.sit_down(running).await;
        let mut all = std::mem::take(&mut *seen.take());
        all.messages_elapsed_ns = nanos(end.since(start));
        all
    }

    /// Waits for everybody, and says when the last one was done.
    async fn sit_down(&mut self, running: JoinSet<(Seat, Moment)>) -> Moment {
        let mut last = SystemClock.now();
        for (at, (seat, ended)) in running.join_all().await.into_iter().enumerate() {
            last = if at == 0 { ended } else { last.max(ended) };
            self.seats.push(seat);
        }
        last
    }

    /// Everybody leaves.
    pub(super) async fn leave(self) {
        let leaving = self.seats.into_iter().map(|mut seat| async move {
            if let Some(mut client) = seat.client.take() {
                let _ = client.leave().await;
            }
        });
        futures_util::future::join_all(leaving).await;
    }
}

impl Seat {
    /// The node of the present step: each is used twice in a row.
    fn node(&self, nodes: &[SocketAddr]) -> SocketAddr {
        nodes[(self.step / 2) % nodes.len()]
    }

    /// Has a device in, if there is none.
    async fn enter(&mut self, nodes: &[SocketAddr]) -> Result<()> {
        if self.client.is_none() {
            let mut client = Client::connect(self.node(nodes)).await?;
            client.ask(&self.token, "device").await?;
            client.is_in().await?;
            self.client = Some(client);
        }
        Ok(())
    }

    async fn keep_taking_over(
        &mut self,
        nodes: &[SocketAddr],
        until: Moment,
        turns: Option<(Moment, Duration)>,
        seen: &Notes,
    ) {
        let mut due = turns.map(|(first, _)| first);
        while due.unwrap_or_else(|| SystemClock.now()) < until {
            if let Err(error) = self.take_over(nodes, due, seen).await {
                seen.take().failed(&format!("{error:#}"));
                self.client = None;
                SystemClock.sleep(AFTER_ERROR).await;
            }
            if let (Some(due), Some((_, period))) = (&mut due, turns) {
                *due = *due + period;
            }
        }
    }

    /// One takeover. What is late because the one before took long counts from when it was due.
    async fn take_over(
        &mut self,
        nodes: &[SocketAddr],
        due: Option<Moment>,
        seen: &Notes,
    ) -> Result<()> {
        self.enter(nodes).await?;
        let from = self.node(nodes);
        self.step += 1;
        let to = self.node(nodes);
        let mut new = Client::connect(to).await?;
        if let Some(due) = due {
            SystemClock.sleep(due.since(SystemClock.now())).await;
        }
        let Some(mut old) = self.client.take() else {
            bail!("nobody is there to be taken over");
        };
        let start = due.unwrap_or_else(|| SystemClock.now());
        new.ask(&self.token, "device").await?;
        let answering = Box::pin(async {
            new.is_in().await?;
            Ok::<_, anyhow::Error>(SystemClock.now())
        });
        let ending = Box::pin(async {
            let told = old.told().await?;
            Ok::<_, anyhow::Error>((told, old.leave().await?))
        });
        // A login that is not let in takes nobody over, so its answer comes first then.
        let (confirmed, (told, gone)) = match select(answering, ending).await {
            Either::Left((confirmed, ending)) => (confirmed?, ending.await?),
            Either::Right((ended, answering)) => (answering.await?, ended?),
        };
        self.client = Some(new);
        let mut seen = seen.take();
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

    async fn keep_talking(&mut self, to: &Uid, until: Moment, seen: &Notes) {
        let Some(client) = &mut self.client else {
            return;
        };
        let mut number = 0_u64;
        while SystemClock.now() < until {
            number += 1;
            let start = SystemClock.now();
            match talk(client, to, &number.to_string()).await {
                Ok(()) => {
                    let mut seen = seen.take();
                    seen.message.record(SystemClock.now().since(start));
                    seen.messages += 1;
                }
                Err(error) => {
                    seen.take().failed(&format!("{error:#}"));
                    self.client = None;
                    break;
                }
            }
        }
    }
}

/// Sends a message and waits until its outcome is told.
async fn talk(client: &mut Client, to: &Uid, id: &str) -> Result<()> {
    let frame = json!({"type": "send", "to": to, "body": "hello", "id": id});
    client.send(&frame.to_string()).await?;
    loop {
        let Some(frame) = soon("wait for a message's outcome", client.next()).await?? else {
            bail!("the connection ended before a message's outcome was told");
        };
        match frame.kind.as_str() {
            "sent" if frame.id.as_deref() == Some(id) => {
                return match frame.outcome.as_deref() {
                    Some("delivered") => Ok(()),
                    other => bail!("a message was {}", other.unwrap_or("lost")),
                };
            }
            "message" => {}
            _ => bail!("a message was answered {frame}"),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
