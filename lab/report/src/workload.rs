//! Workloads, and the options of a run.

use std::{fmt, str::FromStr, time::Duration};

use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The work of the callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Workload {
    /// One caller, one name.
    Uncontended,
    /// Many callers, each with a name of its own.
    Independent,
    /// Many callers, one name, nothing done while holding.
    Contended,
    /// As `Contended`, but the measured time is from a release to the next caller's grant.
    Handoff,
    /// Many callers change the unread counters of one user.
    Counters,
    /// Many callers want one value of a cache.
    Cache,
    /// Many accounts whose devices take over from each other.
    Takeover,
}

impl Workload {
    /// The workloads of acquiring and releasing.
    pub const LOCKS: [Self; 4] = [
        Self::Uncontended,
        Self::Independent,
        Self::Contended,
        Self::Handoff,
    ];

    /// The name on the command line and in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Independent => "independent",
            Self::Contended => "contended",
            Self::Handoff => "handoff",
            Self::Counters => "counters",
            Self::Cache => "cache",
            Self::Takeover => "takeover",
        }
    }

    /// The number of callers by default.
    #[must_use]
    pub const fn default_concurrency(self) -> u32 {
        match self {
            Self::Uncontended => 1,
            Self::Independent | Self::Cache | Self::Takeover => 64,
            Self::Contended | Self::Counters => 16,
            Self::Handoff => 2,
        }
    }

    /// Whether all callers want the same name.
    #[must_use]
    pub const fn shares_one_name(self) -> bool {
        matches!(
            self,
            Self::Contended | Self::Handoff | Self::Counters | Self::Cache
        )
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Workload {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::LOCKS
            .into_iter()
            .find(|workload| workload.as_str() == text)
            .ok_or_else(|| {
                invalid_argument(format!(
                    "unknown workload \"{text}\": there are uncontended, independent, contended, \
                     handoff"
                ))
            })
    }
}

/// How a workload is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many callers; `None` = [`Workload::default_concurrency`].
    pub concurrency: Option<u32>,
    /// How long each arm is measured, over all rounds together.
    pub duration: Duration,
    /// How often the arms take turns.
    pub rounds: u32,
    /// How long each arm runs uncounted before each of its rounds.
    pub warmup: Duration,
    /// The name of the lock that all callers want, in a workload of one name. Runs of several
    /// processes with the same name compete for one lock. `None` = a name that only this run uses.
    pub name: Option<String>,
    /// How long each lock is held. It is part of a cycle.
    pub hold: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: None,
            duration: Duration::from_secs(5),
            rounds: 5,
            warmup: Duration::from_millis(200),
            name: None,
            hold: Duration::ZERO,
        }
    }
}

impl Options {
    /// The largest number of callers.
    pub const MAX_CONCURRENCY: u32 = 10_000;

    /// Checks that the options fit `workload`, and returns the number of callers.
    pub fn checked_callers(&self, workload: Workload) -> Result<u32> {
        let callers = self
            .concurrency
            .unwrap_or_else(|| workload.default_concurrency());
        if workload == Workload::Uncontended && callers != 1 {
            return Err(invalid_argument(format!(
                "uncontended has one caller, not {callers}: use independent or contended for more"
            )));
        }
        if workload.shares_one_name() && callers < 2 && self.name.is_none() {
            return Err(invalid_argument(format!(
                "{workload} needs at least 2 callers"
            )));
        }
        if let Some(name) = &self.name
            && !workload.shares_one_name()
        {
            return Err(invalid_argument(format!(
                "the name \"{name}\" is for contended and handoff, whose callers share one lock, \
                 and for counters and cache, not for {workload}"
            )));
        }
        if !(1..=Self::MAX_CONCURRENCY).contains(&callers) {
            return Err(invalid_argument(format!(
                "concurrency {callers} is outside 1 to {}",
                Self::MAX_CONCURRENCY
            )));
        }
        if self.rounds == 0 || (self.duration / self.rounds) < Duration::from_millis(1) {
            return Err(invalid_argument(format!(
                "{:?} in {} rounds leaves less than 1 ms for one",
                self.duration, self.rounds
            )));
        }
        Ok(callers)
    }
}

fn invalid_argument(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_each_workload_is_parsed_back() {
        for workload in Workload::LOCKS {
            assert_eq!(workload.as_str().parse::<Workload>().unwrap(), workload);
        }
        assert!("contend".parse::<Workload>().is_err());
    }

    #[test]
    fn options_must_fit_the_workload() {
        let options = Options::default();
        assert_eq!(options.checked_callers(Workload::Uncontended).unwrap(), 1);
        assert_eq!(options.checked_callers(Workload::Independent).unwrap(), 64);
        let callers = |callers| Options {
            concurrency: Some(callers),
            ..Options::default()
        };
        let (mut no_round, mut no_time) = (options.clone(), options);
        no_round.rounds = 0;
        no_time.duration = Duration::ZERO;
        for (options, workload) in [
            (callers(2), Workload::Uncontended),
            (callers(1), Workload::Handoff),
            (callers(0), Workload::Independent),
            (callers(10_001), Workload::Contended),
            (no_round, Workload::Contended),
            (no_time, Workload::Contended),
        ] {
            assert_eq!(
                options.checked_callers(workload).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{options:?}"
            );
        }
    }
}
