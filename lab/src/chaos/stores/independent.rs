//! Redis servers that do not know each other: the members of a quorum or of a ring, or the servers
//! of a control that asks a majority by itself.
//!
//! This module knows which servers a quorum must do without: a member that has forgotten its
//! leases, or may have, is silent for a while. A run takes at most a minority away, so that locks
//! are still granted; the faults that take more away say so.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{
    Clock as _, Moment, Registry, SystemClock,
    ring::{self, Terms},
};
use distlock_harness::servers::redis::RedisServer;
use tokio::{runtime::Handle, time::timeout};

/// Number of servers.
const SERVERS: usize = 5;
/// The longest lease of the quorum. It is short, so that silent members soon vote again.
const MAX_LEASE: Duration = Duration::from_secs(4);
/// Time for which a member that has forgotten its leases does not vote: the documented 1.25 times
/// the longest lease, and the time until a client has noticed.
const SILENCE: Duration = Duration::from_secs(6);
/// The times of the ring: how long a view is used, and the longest lease. They are short, so that
/// names that move are soon free: after 1.45 s.
const TERMS: Terms = Terms {
    validity: Duration::from_millis(400),
    max_lease: Duration::from_secs(1),
};
/// What a ring store needs whose longest lease is two seconds or less.
const SETTINGS: [&str; 1] = ["appendfsync always"];
/// Time for which an operator tries to change the members. The ring store may be away.
const PATIENCE: Duration = Duration::from_secs(3);
/// The least number of active members of the ring.
const LEAST: usize = 2;
/// The server whose clock a run puts forward. It is always the same, so that no two clocks are
/// wrong at a time.
const CLOCK: usize = 0;

/// The servers.
#[derive(Debug)]
pub(super) struct IndependentServers {
    servers: Vec<RedisServer>,
    /// The time until which each server does not vote in a quorum.
    silent_until: Vec<Moment>,
    together: Together,
}

/// What the servers are together.
#[derive(Debug)]
enum Together {
    /// The servers of a control.
    Nothing,
    /// A quorum, with its records in this file.
    Quorum { records: PathBuf },
    /// A ring. The first server has its view.
    Ring,
}

impl IndependentServers {
    /// Starts the servers. `settable_clock` means that [`Self::put_clock_forward`] will be called.
    pub(super) fn start(settable_clock: bool) -> Result<Self> {
        let start = |at| match settable_clock && at == CLOCK {
            true => RedisServer::with_clock(&SETTINGS),
            false => RedisServer::with(&SETTINGS),
        };
        Ok(Self {
            servers: (0..SERVERS).map(start).collect::<Result<_>>()?,
            silent_until: vec![SystemClock.now(); SERVERS],
            together: Together::Nothing,
        })
    }

    /// Makes the servers the members of a quorum. The function blocks.
    pub(super) fn make_quorum(&mut self, records: PathBuf) -> Result<()> {
        self.together = Together::Quorum { records };
        let (url, registry) = (self.url(), Registry::builtin());
        let making = distlock::quorum::init(url, registry.drivers(), false);
        Handle::current().block_on(making).context("a new quorum")?;
        Ok(())
    }

    /// Makes the servers a new ring. The function blocks.
    pub(super) fn make_ring(&mut self) -> Result<()> {
        self.together = Together::Ring;
        let (url, registry) = (self.url(), Registry::builtin());
        let making = ring::init(url, registry.drivers(), TERMS, true);
        Handle::current().block_on(making).context("a new ring")?;
        Ok(())
    }

    /// Adds a member to the ring, or removes one, as an operator does, and returns what was done.
    /// `None` if nothing was changed: the ring store may be away, or the member that is added.
    ///
    /// One operator in eight is killed in the middle of it. Then nobody knows what was done.
    pub(super) async fn change_ring(&self, pick: usize) -> Option<String> {
        let (url, registry) = (self.url(), Registry::builtin());
        let drivers = registry.drivers();
        let (choice, luck) = (pick % 8, pick / 8);
        let change = async {
            let report = ring::show(url.as_str(), drivers).await.ok()?;
            let member = &report.members[choice % report.members.len()];
            let active = report.members.iter().filter(|it| it.active).count();
            let changed = match member.active {
                true if active <= LEAST => return None,
                true => ring::remove(url.as_str(), drivers, &member.name).await,
                false => ring::add(url.as_str(), drivers, &member.name).await,
            };
            changed.ok()?;
            let what = if member.active { "removed" } else { "added" };
            Some(format!("{what} member {}", member.name))
        };
        if luck == 0 {
            // A change takes about as long.
            let killed = Duration::from_millis(4) * u32::try_from(choice).unwrap_or_default();
            let ended = timeout(killed, change).await;
            return ended.unwrap_or_else(|_| Some("an operator who was killed".to_owned()));
        }
        timeout(PATIENCE, change).await.ok()?
    }

    /// Returns the URL of the quorum or of the ring or, for a control, a list of URLs with commas.
    /// Each address is in it as it is, without escapes.
    pub(super) fn url(&self) -> String {
        let urls: Vec<_> = self.servers.iter().map(RedisServer::url).collect();
        // Passwords of the harness need no escaping.
        let member = |(at, url): (usize, &String)| format!("member=m{at}={url}");
        let members = urls.iter().enumerate().map(member);
        match &self.together {
            Together::Nothing => urls.join(","),
            Together::Quorum { .. } => {
                let members: Vec<_> = members.collect();
                let max_lease = MAX_LEASE.as_secs();
                format!("quorum:?{}&max_lease={max_lease}s", members.join("&"))
            }
            Together::Ring => {
                let members: Vec<_> = members.skip(1).collect();
                format!("ring:?records={}&{}", urls[0], members.join("&"))
            }
        }
    }

    /// Returns the URL of the store with the records of the quorum.
    pub(super) fn records_url(&self) -> Option<String> {
        match &self.together {
            Together::Quorum { records } => Some(format!("sqlite:{}", records.display())),
            Together::Nothing | Together::Ring => None,
        }
    }

    pub(super) fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns how many more servers can be lost while a majority still votes. A ring has no
    /// majority.
    pub(super) fn spare(&self) -> usize {
        if matches!(self.together, Together::Ring) {
            return usize::MAX;
        }
        let silent = (0..SERVERS).filter(|at| self.is_silent(*at)).count();
        ((SERVERS - 1) / 2).saturating_sub(silent)
    }

    /// Tells whether a server has no vote, because it may have forgotten its leases.
    pub(super) fn is_silent(&self, at: usize) -> bool {
        self.silent_until[at] > SystemClock.now()
    }

    /// Kills a server, and returns its index.
    pub(super) fn kill(&mut self, pick: usize) -> usize {
        let at = pick % SERVERS;
        self.servers[at].kill();
        at
    }

    /// Restarts a killed server on its data. Nobody can tell whether it kept all of them.
    pub(super) fn restart(&mut self, at: usize) -> Result<()> {
        self.servers[at].restart()?;
        self.note_silence(at);
        Ok(())
    }

    /// Restarts a server without its data.
    pub(super) fn wipe(&mut self, pick: usize) -> Result<()> {
        let at = pick % SERVERS;
        self.servers[at].restart_empty()?;
        self.note_silence(at);
        Ok(())
    }

    /// Deletes the data of a server that keeps running, so that its run id stays.
    pub(super) fn delete_data(&mut self, pick: usize) -> Result<()> {
        let at = pick % SERVERS;
        self.servers[at].command(&["FLUSHALL"])?;
        self.note_silence(at);
        Ok(())
    }

    pub(super) fn put_clock_forward(&self, by: Duration) -> Result<()> {
        self.servers[CLOCK].put_clock_forward(by)
    }

    pub(super) fn put_clock_back(&self, by: Duration) -> Result<()> {
        self.servers[CLOCK].put_clock_back(by)
    }

    /// Tells whether a member whose clock is ahead by this much is counted with the others, as
    /// documented.
    pub(super) fn counts_beside_others(ahead: Duration) -> bool {
        ahead <= MAX_LEASE / 4
    }

    fn note_silence(&mut self, at: usize) {
        self.silent_until[at] = SystemClock.now() + SILENCE;
    }
}
