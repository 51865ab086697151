//! Redis servers that do not know each other: the members of a quorum, or the servers of a control
//! that asks a majority by itself.
//!
//! This module knows which servers a quorum must do without: a member that has forgotten its
//! leases, or may have, is silent for a while. A run takes at most a minority away, so that locks
//! are still granted; the faults that take more away say so.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, Moment, Registry, SystemClock};
use distlock_harness::servers::redis::RedisServer;
use tokio::runtime::Handle;

/// Number of servers.
const SERVERS: usize = 5;
/// The longest lease of the quorum. It is short, so that silent members soon vote again.
const MAX_LEASE: Duration = Duration::from_secs(4);
/// Time for which a member that has forgotten its leases does not vote: the documented 1.25 times
/// the longest lease, and the time until a client has noticed.
const SILENCE: Duration = Duration::from_secs(6);
/// The server whose clock a run puts forward. It is always the same, so that no two clocks are
/// wrong at a time.
const CLOCK: usize = 0;

/// The servers.
#[derive(Debug)]
pub(super) struct IndependentServers {
    servers: Vec<RedisServer>,
    /// The time until which each server does not vote in a quorum.
    silent_until: Vec<Moment>,
    /// The file with the records of the quorum. `None` means that the servers are those of a
    /// control.
    records: Option<PathBuf>,
}

impl IndependentServers {
    /// Starts the servers. `settable_clock` means that [`Self::put_clock_forward`] will be called.
    pub(super) fn start(settable_clock: bool) -> Result<Self> {
        let start = |at| match settable_clock && at == CLOCK {
            true => RedisServer::with_clock(),
            false => RedisServer::start(),
        };
        Ok(Self {
            servers: (0..SERVERS).map(start).collect::<Result<_>>()?,
            silent_until: vec![SystemClock.now(); SERVERS],
            records: None,
        })
    }

    /// Makes the servers the members of a quorum. The function blocks.
    pub(super) fn make_quorum(&mut self, records: PathBuf) -> Result<()> {
        self.records = Some(records);
        let (url, registry) = (self.url(), Registry::builtin());
        let making = distlock::quorum::init(url, registry.drivers(), false);
        Handle::current().block_on(making).context("a new quorum")?;
        Ok(())
    }

    /// Returns the URL of the quorum or, for a control, a list of URLs with commas. Each address is
    /// in it as it is, without escapes.
    pub(super) fn url(&self) -> String {
        let urls: Vec<_> = self.servers.iter().map(RedisServer::url).collect();
        if self.records.is_none() {
            return urls.join(",");
        }
        let named = urls.iter().enumerate();
        // Passwords of the harness need no escaping.
        let members = named.map(|(at, url)| format!("member=m{at}={url}&"));
        let members: String = members.collect();
        format!("quorum:?{members}max_lease={}s", MAX_LEASE.as_secs())
    }

    /// Returns the URL of the store with the records of the quorum.
    pub(super) fn records_url(&self) -> Option<String> {
        let path = self.records.as_ref()?;
        Some(format!("sqlite:{}", path.display()))
    }

    pub(super) fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns how many more servers can be lost while a majority still votes.
    pub(super) fn spare(&self) -> usize {
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
