//! The rules of a check, and its report.

use std::{collections::BTreeMap, fmt, time::Duration};

/// The times and limits of a check: the configuration of the nodes. Every bound of the checker
/// follows from these values, as docs/gateway.md states.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Sessions per account that the policy allows.
    pub limit: usize,
    /// Whether a login is confirmed only after every older session has ended.
    pub strict: bool,
    /// Whether the first login wins. The session of a dead node then prevents other logins until
    /// the lease of the node ends.
    pub deny: bool,
    /// Whether every node reaches every other node, and no node is paused.
    pub reachable: bool,
    /// L: TTL of an account's lock.
    pub lock_ttl: Duration,
    /// W: longest wait for an account's lock.
    pub lock_wait: Duration,
    /// R: time for the kicks of older sessions before a login is answered.
    pub kick_budget: Duration,
    /// N: TTL of a node's lease.
    pub node_lease: Duration,
    /// G: time for a client to leave before its connection is cut.
    pub grace: Duration,
    /// S: period of the sweeper.
    pub sweep: Duration,
    /// Factor by which the 99th percentile of a bystander's login times may rise during faults of
    /// other accounts and nodes.
    pub isolation: u32,
    /// Time for which the store was unreachable. In that time no client logs in and no session
    /// ends.
    pub store_away: Duration,
    /// e: the time that is added to every bound, for the delays of a busy machine.
    pub slack: Duration,
}

/// The invariants of the kick-out flow, by their numbers in the design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// The history has no gaps. Unlike the others, this is a condition for the check and no
    /// invariant of the kick-out flow.
    Complete,
    /// Single owner.
    I1,
    /// Exactly one winner.
    I2,
    /// The last grant wins.
    I3,
    /// Generations never fall.
    I4,
    /// A late removal removes nothing.
    I5,
    /// A late kick ends no session.
    I6,
    /// A confirmed login is readable.
    I7,
    /// A superseded session neither sends nor receives.
    I8,
    /// A notice comes before the end of a connection.
    I9,
    /// The client closes first, and no socket stays in TIME_WAIT on the server's port.
    I10,
    /// No superseded connection stays open.
    I11,
    /// A dead node's sessions disappear.
    I12,
    /// A login that lost its lock writes nothing.
    I13,
    /// Every account can log in again in time.
    I14,
    /// Other accounts are not slowed down.
    I15,
    /// A repeated step changes nothing.
    I16,
    /// A reported success has happened.
    I17,
    /// Every message has a known outcome.
    I18,
}

/// One violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The broken invariant.
    pub invariant: Invariant,
    /// The sessions, the time and the values.
    pub what: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// All violations.
    pub violations: Vec<Violation>,
    /// Number of occasions on which each invariant could have been broken. An invariant without an
    /// occasion was not tested.
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
    /// Longest time for which more sessions than allowed may be active: R + e if nodes reach each
    /// other, N + e otherwise, and the time without the store (I1, I11).
    #[must_use]
    pub fn settle_time(&self) -> Duration {
        let told = if self.reachable {
            self.kick_budget
        } else {
            self.node_lease
        };
        told + self.store_away + self.slack
    }

    /// Longest time until a login is answered: W for the lock, then R for the kicks, then e and the
    /// time without the store. With strict confirmation N is added, for the lease of a node that
    /// does not answer (I14).
    #[must_use]
    pub fn longest_answer(&self) -> Duration {
        self.lock_wait + self.longest_unlocked_login() + self.store_away + self.slack
    }

    /// Longest duration of a login that gets the account's lock at once: R, and N with strict
    /// confirmation.
    #[must_use]
    pub fn longest_unlocked_login(&self) -> Duration {
        let strict = if self.strict {
            self.node_lease
        } else {
            Duration::ZERO
        };
        self.kick_budget + strict
    }

    /// Longest time for which a crash prevents an account's logins: L, or N if the first login wins
    /// (I14).
    #[must_use]
    pub const fn longest_lockout(&self) -> Duration {
        if self.deny {
            self.node_lease
        } else {
            self.lock_ttl
        }
    }

    /// Longest time until a dead node's sessions are removed from the directory: N + S + e (I12).
    #[must_use]
    pub fn longest_cleanup(&self) -> Duration {
        self.node_lease + self.sweep + self.slack
    }
}

/// A duration in microseconds, the unit of the history.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Invariant {
    /// The invariant in a few words.
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
    /// Whether there is no violation.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// The broken invariants, each once.
    #[must_use]
    pub fn violated(&self) -> Vec<Invariant> {
        let mut violated: Vec<_> = self.violations.iter().map(|it| it.invariant).collect();
        violated.sort_unstable();
        violated.dedup();
        violated
    }

    /// Number of occasions on which an invariant could have been broken.
    #[must_use]
    pub fn looked_at(&self, invariant: Invariant) -> usize {
        self.looked_at.get(&invariant).copied().unwrap_or_default()
    }

    /// Counts an occasion of this invariant, and adds a violation unless `holds` is true. `what`
    /// describes the violation.
    pub(crate) fn expect(
        &mut self,
        invariant: Invariant,
        holds: bool,
        what: impl FnOnce() -> String,
    ) {
        self.count_occasion(invariant);
        self.require(invariant, holds, what);
    }

    /// Counts an occasion on which the invariant could have been broken.
    pub(crate) fn count_occasion(&mut self, invariant: Invariant) {
        *self.looked_at.entry(invariant).or_default() += 1;
    }

    /// Adds a violation unless `holds` is true. Unlike [`expect`](Self::expect), this counts no
    /// occasion, because the step could hardly break the invariant.
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
