//! What devices do: they log in on any node, stay for a while, send messages, and go in one of
//! several ways.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use distlock_checker::{Seen, What};
use distlock_gateway::{TokenKey, mint};
use distlock_kickout::{Device, NodeId, Uid};
use fastrand::Rng;
use tokio::sync::watch;

use super::{
    admin::look_up,
    client::{Client, Notes, State},
    group::Roster,
    node::KEY,
};

/// How long a client that was turned away waits before it comes again.
const AGAIN: Duration = Duration::from_millis(200);

/// What all devices of a run share.
#[derive(Clone, Debug)]
pub(super) struct Crowd {
    pub(super) notes: Arc<Notes>,
    pub(super) roster: Roster,
    pub(super) accounts: Arc<Vec<Uid>>,
    numbers: Arc<AtomicU64>,
}

/// How long a device of an account stays, and how soon it comes again, at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) stays_ms: u64,
    pub(super) pauses_ms: u64,
}

/// Devices that throw each other out all the time.
pub(super) const HASTY: Pace = Pace {
    stays_ms: 2_500,
    pauses_ms: 400,
};
/// Devices that stay for longer than a node's lease: what nobody is ever told shows only there.
pub(super) const STEADY: Pace = Pace {
    stays_ms: 15_000,
    pauses_ms: 4_000,
};

/// One device of an account.
#[derive(Debug)]
pub(super) struct Handset {
    pub(super) pace: Pace,
    pub(super) crowd: Crowd,
    pub(super) uid: Uid,
    pub(super) device: Device,
    pub(super) rng: Rng,
}

impl Crowd {
    pub(super) fn new(notes: Arc<Notes>, roster: Roster, accounts: Vec<Uid>) -> Self {
        Self {
            notes,
            roster,
            accounts: Arc::new(accounts),
            numbers: Arc::default(),
        }
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Handset {
    /// Comes and goes until it is told to stop.
    pub(super) async fn come_and_go(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            if let Some(client) = self.comes().await {
                self.visit(client, &mut stop).await;
            }
            self.pause(self.pace.pauses_ms).await;
        }
    }

    /// Connects to some node. `None` = it cannot be reached.
    async fn comes(&mut self) -> Option<Client> {
        let place = self.crowd.roster.any(&mut self.rng)?;
        let key = TokenKey::new(KEY.as_bytes()).ok()?;
        let token = mint(&key, &self.uid, Duration::from_secs(3600)).ok()?;
        let stamp = Seen {
            at_us: 0,
            client: self.crowd.number(),
            uid: self.uid.clone(),
            device: self.device.clone(),
            node: NodeId::new(&place.name).ok()?,
            what: What::LoginSent,
        };
        let notes = Arc::clone(&self.crowd.notes);
        Client::connect(place.listen, &token, stamp, notes)
            .await
            .ok()
    }

    async fn visit(&mut self, mut client: Client, stop: &mut watch::Receiver<bool>) {
        if self.rng.u32(..20) == 0 {
            // It gives up before it has an answer.
            self.pause(20).await;
            return;
        }
        // Half of them try another node soon.
        let patience = match self.rng.bool() {
            true => Duration::from_millis(self.rng.u64(500..2_000)),
            false => Duration::MAX,
        };
        let answer = tokio::select! {
            answer = client.answered() => answer,
            () = SystemClock.sleep(patience) => State::Out,
            _ = stop.wait_for(|stop| *stop) => State::Out,
        };
        if !matches!(answer, State::In(..)) {
            return;
        }
        if self.rng.u32(..4) == 0 {
            self.look().await;
        }
        for _ in 0..self.rng.u32(..4) {
            self.writes_to_somebody(&client);
            self.pause(100).await;
        }
        let stays = Duration::from_millis(self.rng.u64(..self.pace.stays_ms));
        tokio::select! {
            () = client.is_out() => return,
            () = SystemClock.sleep(stays) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        // Otherwise its connection breaks off.
        if self.rng.u32(..3) > 0 {
            client.leave().await;
        }
    }

    fn writes_to_somebody(&mut self, client: &Client) {
        let accounts = Arc::clone(&self.crowd.accounts);
        let to = &accounts[self.rng.usize(..accounts.len())];
        client.send(to, format!("m{}", self.crowd.number()));
    }

    /// Asks some node where an account is. What cannot be said shows nothing.
    async fn look(&mut self) {
        if let Some(place) = self.crowd.roster.any(&mut self.rng)
            && let Ok(fact) = look_up(place.admin, &self.uid).await
        {
            self.crowd.notes.fact(fact);
        }
    }

    async fn pause(&mut self, most_ms: u64) {
        SystemClock
            .sleep(Duration::from_millis(self.rng.u64(..=most_ms)))
            .await;
    }

    /// After the last fault: logs in, as often as it takes.
    ///
    /// # Errors
    /// When the account is stuck.
    pub(super) async fn gets_in(&mut self, within: Duration) -> Result<Client> {
        let until = SystemClock.now() + within;
        while SystemClock.now() < until {
            if let Some(mut client) = self.comes().await
                && matches!(client.answered().await, State::In(..))
            {
                return Ok(client);
            }
            SystemClock.sleep(AGAIN).await;
        }
        anyhow::bail!("{} cannot log in any more", self.uid)
    }
}
