//! The devices of a run: each logs in on any node, stays for a while, sends messages, and leaves in
//! one of several ways.

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
    client::{Client, ClientState, Observations},
    node::{KEY, look_up},
    node_group::NodeAddresses,
};

/// Pause of a refused client before its next login.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The values that all devices of a run share.
#[derive(Clone, Debug)]
pub(super) struct DeviceContext {
    pub(super) observations: Arc<Observations>,
    pub(super) addresses: NodeAddresses,
    pub(super) accounts: Arc<Vec<Uid>>,
    numbers: Arc<AtomicU64>,
}

/// The longest stay of a device, and its longest pause between two logins.
#[derive(Clone, Copy, Debug)]
pub(super) struct StayTimes {
    pub(super) stays_ms: u64,
    pub(super) pauses_ms: u64,
}

/// Devices that end each other's sessions all the time.
pub(super) const SHORT_STAYS: StayTimes = StayTimes {
    stays_ms: 2_500,
    pauses_ms: 400,
};
/// Devices that stay longer than the lease of a node. A missing kick shows only in such a long
/// session.
pub(super) const LONG_STAYS: StayTimes = StayTimes {
    stays_ms: 15_000,
    pauses_ms: 4_000,
};

/// One device of an account.
#[derive(Debug)]
pub(super) struct TestDevice {
    pub(super) stay_times: StayTimes,
    pub(super) context: DeviceContext,
    pub(super) uid: Uid,
    pub(super) device: Device,
    pub(super) rng: Rng,
}

impl DeviceContext {
    pub(super) fn new(
        observations: Arc<Observations>,
        addresses: NodeAddresses,
        accounts: Vec<Uid>,
    ) -> Self {
        Self {
            observations,
            addresses,
            accounts: Arc::new(accounts),
            numbers: Arc::default(),
        }
    }

    /// Returns a number that no other client or message of the run has.
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl TestDevice {
    /// Logs in and out again and again until `stop` becomes true.
    pub(super) async fn log_in_repeatedly(mut self, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            if let Some(client) = self.connect_to_random_node().await {
                self.use_session(client, &mut stop).await;
            }
            self.pause(self.stay_times.pauses_ms).await;
        }
    }

    /// Connects to a random node. `None` means that the node cannot be reached.
    async fn connect_to_random_node(&mut self) -> Option<Client> {
        let address = self.context.addresses.random(&mut self.rng)?;
        let key = TokenKey::new(KEY.as_bytes()).ok()?;
        let token = mint(&key, &self.uid, Duration::from_secs(3600)).ok()?;
        let stamp = Seen {
            at_us: 0,
            client: self.context.next_number(),
            uid: self.uid.clone(),
            device: self.device.clone(),
            node: NodeId::new(&address.name).ok()?,
            what: What::LoginSent,
        };
        let observations = Arc::clone(&self.context.observations);
        Client::connect(address.listen, &token, stamp, observations)
            .await
            .ok()
    }

    /// Waits for the answer to the login, uses the session for a while, and leaves.
    async fn use_session(&mut self, mut client: Client, stop: &mut watch::Receiver<bool>) {
        if self.rng.u32(..20) == 0 {
            // Some devices leave before the node has answered.
            self.pause(20).await;
            return;
        }
        // Half of the logins have a short time-out, after which the device tries another node.
        let patience = match self.rng.bool() {
            true => Duration::from_millis(self.rng.u64(500..2_000)),
            false => Duration::MAX,
        };
        let answer = tokio::select! {
            answer = client.wait_for_answer() => answer,
            () = SystemClock.sleep(patience) => ClientState::LoggedOut,
            _ = stop.wait_for(|stop| *stop) => ClientState::LoggedOut,
        };
        if !matches!(answer, ClientState::LoggedIn(..)) {
            return;
        }
        if self.rng.u32(..4) == 0 {
            self.look_up_own_account().await;
        }
        for _ in 0..self.rng.u32(..4) {
            self.send_to_random_account(&client);
            self.pause(100).await;
        }
        let stays = Duration::from_millis(self.rng.u64(..self.stay_times.stays_ms));
        tokio::select! {
            () = client.wait_until_logged_out() => return,
            () = SystemClock.sleep(stays) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
        // In the other cases the connection breaks without a logout.
        if self.rng.u32(..3) > 0 {
            client.log_out().await;
        }
    }

    /// Sends a message to a random account of the run.
    fn send_to_random_account(&mut self, client: &Client) {
        let accounts = Arc::clone(&self.context.accounts);
        let to = &accounts[self.rng.usize(..accounts.len())];
        client.send(to, format!("m{}", self.context.next_number()));
    }

    /// Asks a random node for the session of this account. A failed request proves nothing, so the
    /// device does not record it.
    async fn look_up_own_account(&mut self) {
        if let Some(address) = self.context.addresses.random(&mut self.rng)
            && let Ok(fact) = look_up(address.admin, &self.uid).await
        {
            self.context.observations.record_fact(fact);
        }
    }

    /// Pauses for a random time of at most `most_ms` milliseconds.
    async fn pause(&mut self, most_ms: u64) {
        SystemClock
            .sleep(Duration::from_millis(self.rng.u64(..=most_ms)))
            .await;
    }

    /// Logs in after the last fault, with as many attempts as needed.
    ///
    /// # Errors
    /// Returns an error if the account cannot log in within the given time.
    pub(super) async fn log_in(&mut self, within: Duration) -> Result<Client> {
        let until = SystemClock.now() + within;
        while SystemClock.now() < until {
            if let Some(mut client) = self.connect_to_random_node().await
                && matches!(client.wait_for_answer().await, ClientState::LoggedIn(..))
            {
                return Ok(client);
            }
            SystemClock.sleep(RETRY_PAUSE).await;
        }
        anyhow::bail!("{} cannot log in any more", self.uid)
    }
}
