//! What is asked, and what was found.

use std::{collections::BTreeMap, fmt, time::Duration};

/// The times and limits that a history is held against.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rules {
    /// Sessions per account that the policy allows.
    pub limit: usize,
    /// Whether a login is confirmed only when every older session is gone.
    pub strict: bool,
    /// How long more sessions than that may believe in themselves: the kick budget and some slack where nodes reach each other,
    /// one node lease otherwise.
    pub settle: Duration,
    /// Time a client has to leave before it is cut off.
    pub grace: Duration,
    /// One node lease and one period of the sweeper.
    pub cleanup: Duration,
    /// By how much the p99 of a bystander's logins may be higher while others are in trouble.
    pub isolation: u32,
    /// On top of every time, for a busy machine.
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
    /// How often each invariant had something to look at: one that never had was not tested.
    pub looked_at: BTreeMap<Invariant, usize>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            limit: 1,
            strict: false,
            settle: Duration::from_millis(1250),
            grace: Duration::from_secs(2),
            cleanup: Duration::from_secs(12),
            isolation: 3,
            slack: Duration::from_millis(250),
        }
    }
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

    /// How often an invariant had something to look at.
    #[must_use]
    pub fn looked_at(&self, invariant: Invariant) -> usize {
        self.looked_at.get(&invariant).copied().unwrap_or_default()
    }

    /// Counts one look, and notes what is wrong if `holds` does not.
    pub(crate) fn expect(
        &mut self,
        invariant: Invariant,
        holds: bool,
        what: impl FnOnce() -> String,
    ) {
        *self.looked_at.entry(invariant).or_default() += 1;
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
