//! What is asked, and what was found.

use std::{collections::BTreeMap, fmt, time::Duration};

/// The times and limits that a history is held against: what the nodes were configured with. Every
/// bound of the checker is derived from these, as docs/gateway.md states it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Sessions per account that the policy allows.
    pub limit: usize,
    /// Whether a login is confirmed only when every older session is gone.
    pub strict: bool,
    /// Whether the first login wins: a dead node's session keeps others out for as long as its
    /// lease.
    pub deny: bool,
    /// Whether every node reaches every other one, and none is stopped.
    pub reachable: bool,
    /// L: TTL of an account's lock.
    pub lock_ttl: Duration,
    /// W: longest wait for an account's lock.
    pub lock_wait: Duration,
    /// R: time for telling older sessions before a login is answered.
    pub kick_budget: Duration,
    /// N: TTL of a node's lease.
    pub node_lease: Duration,
    /// G: time a client has to leave before it is cut off.
    pub grace: Duration,
    /// S: period of the sweeper.
    pub sweep: Duration,
    /// By how much the p99 of a bystander's logins may be higher while others are in trouble.
    pub isolation: u32,
    /// How long the store itself was away: nobody logs in meanwhile, and nobody is told.
    pub store_away: Duration,
    /// e: on top of every time, for the scheduling of a busy machine.
    pub slack: Duration,
}

/// The invariants of the flow, as the design numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// The history itself: without gaps. Not one of the flow's.
    Complete,
    /// Single owner.
    I1,
    /// Exactly one winner.
    I2,
    /// The last grant wins.
    I3,
    /// Generations never fall.
    I4,
    /// No stale erase.
    I5,
    /// No stale kick.
    I6,
    /// A confirmed login is readable.
    I7,
    /// A superseded session is mute.
    I8,
    /// Told before closed.
    I9,
    /// The client closes first, and nothing lingers on the server's port.
    I10,
    /// No superseded connection stays open.
    I11,
    /// A dead node's sessions vanish.
    I12,
    /// A lost lock writes nothing.
    I13,
    /// No account is stuck.
    I14,
    /// Others are not disturbed.
    I15,
    /// Everything once.
    I16,
    /// No success is reported that was none.
    I17,
    /// Every message has an account.
    I18,
}

/// One thing that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// What it broke.
    pub invariant: Invariant,
    /// Who, when and how.
    pub what: String,
}

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Everything that is wrong.
    pub violations: Vec<Violation>,
    /// How often each invariant could have been broken: one that never could was not tested.
    pub looked_at: BTreeMap<Invariant, usize>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            limit: 1,
            strict: false,
            deny: false,
            reachable: true,
            lock_ttl: Duration::from_secs(5),
            lock_wait: Duration::from_secs(3),
            kick_budget: Duration::from_secs(1),
            node_lease: Duration::from_secs(9),
            grace: Duration::from_secs(2),
            sweep: Duration::from_secs(3),
            isolation: 3,
            store_away: Duration::ZERO,
            slack: Duration::from_millis(250),
        }
    }
}

impl Rules {
    /// How long more sessions than allowed may believe in themselves: R + e where nodes reach each
    /// other, N + e otherwise (I1, I11).
    #[must_use]
    pub fn settle(&self) -> Duration {
        let told = if self.reachable {
            self.kick_budget
        } else {
            self.node_lease
        };
        told + self.store_away + self.slack
    }

    /// How long a login waits for an answer at most: W for the lock, then R for telling older
    /// sessions. Strict confirmation waits for the lease of a node that does not answer (I14).
    #[must_use]
    pub fn answer(&self) -> Duration {
        self.lock_wait + self.tell() + self.store_away + self.slack
    }

    /// How long a login takes at most that need not wait for the account's lock.
    #[must_use]
    pub fn tell(&self) -> Duration {
        let strict = if self.strict {
            self.node_lease
        } else {
            Duration::ZERO
        };
        self.kick_budget + strict
    }

    /// How long a crash keeps an account out at most: L, and N where the first login wins (I14).
    #[must_use]
    pub const fn stuck(&self) -> Duration {
        if self.deny {
            self.node_lease
        } else {
            self.lock_ttl
        }
    }

    /// When a dead node's sessions are gone from the directory: N + S + e (I12).
    #[must_use]
    pub fn cleanup(&self) -> Duration {
        self.node_lease + self.sweep + self.slack
    }
}

/// Microseconds, as the history counts.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Invariant {
    /// What it says, in a few words.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Complete => "the history has no gaps",
            Self::I1 => "single owner",
            Self::I2 => "exactly one winner",
            Self::I3 => "the last grant wins",
            Self::I4 => "generations never fall",
            Self::I5 => "no stale erase",
            Self::I6 => "no stale kick",
            Self::I7 => "a confirmed login is readable",
            Self::I8 => "a superseded session is mute",
            Self::I9 => "told before closed",
            Self::I10 => "nothing lingers on the server's port",
            Self::I11 => "no superseded connection stays open",
            Self::I12 => "a dead node's sessions vanish",
            Self::I13 => "a lost lock writes nothing",
            Self::I14 => "no account is stuck",
            Self::I15 => "others are not disturbed",
            Self::I16 => "everything once",
            Self::I17 => "no success is reported that was none",
            Self::I18 => "every message has an account",
        }
    }
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// The invariants that were broken, each once.
    #[must_use]
    pub fn violated(&self) -> Vec<Invariant> {
        let mut violated: Vec<_> = self.violations.iter().map(|it| it.invariant).collect();
        violated.sort_unstable();
        violated.dedup();
        violated
    }

    /// How often an invariant could have been broken.
    #[must_use]
    pub fn looked_at(&self, invariant: Invariant) -> usize {
        self.looked_at.get(&invariant).copied().unwrap_or_default()
    }

    /// Counts an occasion on which the invariant could have been broken, and notes what is wrong if
    /// `holds` does not.
    pub(crate) fn expect(
        &mut self,
        invariant: Invariant,
        holds: bool,
        what: impl FnOnce() -> String,
    ) {
        self.occasion(invariant);
        self.require(invariant, holds, what);
    }

    /// Counts an occasion on which the invariant could have been broken.
    pub(crate) fn occasion(&mut self, invariant: Invariant) {
        *self.looked_at.entry(invariant).or_default() += 1;
    }

    /// As [`expect`](Self::expect), for what also holds where nothing put the invariant at risk: it
    /// proves nothing, so it does not count.
    pub(crate) fn require(
        &mut self,
        invariant: Invariant,
        holds: bool,
        what: impl FnOnce() -> String,
    ) {
        if !holds {
            self.violations.push(Violation {
                invariant,
                what: what(),
            });
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, what } = self;
        write!(f, "{invariant} ({}): {what}", invariant.text())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        for (invariant, times) in &self.looked_at {
            write!(f, "{invariant}:{times} ")?;
        }
        Ok(())
    }
}
