//! The steps of a run: as one hash to compare two runs, and as lines to read.

use std::{
    collections::VecDeque,
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    time::Duration,
};

use super::executor::{Owner, PolledStep};

/// Number of lines that are kept to explain a failure.
const KEPT_LINES: usize = 30;

/// One line.
#[derive(Clone, Debug, Hash)]
pub(super) struct TraceLine {
    pub(super) at: Duration,
    pub(super) owner: Owner,
    pub(super) what: &'static str,
    /// The lock, the call and the grant that the line is about, if there are any.
    pub(super) about: About,
}

/// The number of a lock, of a call, of a grant among all grants of that lock, and of a store.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct About {
    pub(super) lock: Option<usize>,
    pub(super) call: Option<u64>,
    pub(super) grant: Option<u64>,
    pub(super) store: Option<usize>,
}

/// The trace of one run.
#[derive(Debug)]
pub(super) struct Trace {
    hasher: DefaultHasher,
    steps: u64,
    all: bool,
    lines: VecDeque<TraceLine>,
}

impl Trace {
    /// Starts a trace. `all` keeps every line, with a line for each poll.
    pub(super) fn new(all: bool) -> Self {
        Self {
            hasher: DefaultHasher::new(),
            steps: 0,
            all,
            lines: VecDeque::new(),
        }
    }

    /// Counts a poll, and adds a line for it if the trace keeps every line.
    pub(super) fn add_poll(&mut self, at: Duration, step: PolledStep) {
        self.steps += 1;
        (at, step).hash(&mut self.hasher);
        if self.all {
            self.keep(TraceLine {
                at,
                owner: step.owner,
                what: step.what,
                about: About::default(),
            });
        }
    }

    /// Adds a line about an event.
    pub(super) fn add_trace_line(&mut self, line: TraceLine) {
        line.hash(&mut self.hasher);
        self.keep(line);
    }

    /// Keeps a line. A trace of the last lines drops its oldest line.
    fn keep(&mut self, line: TraceLine) {
        if !self.all && self.lines.len() == KEPT_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Returns the number of polls until now.
    pub(super) const fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the hash of all steps: two runs have the same hash if the same steps happened.
    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// Returns the kept lines as text.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for TraceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Process(number) => format!("p{number}"),
            Owner::Network => "net".into(),
            Owner::Course => "run".into(),
        };
        write!(
            f,
            "{:>12.6} {owner:<4} {}",
            self.at.as_secs_f64(),
            self.what
        )?;
        if let Some(lock) = self.about.lock {
            write!(f, " lock {lock}")?;
        }
        if let Some(call) = self.about.call {
            write!(f, " call {call}")?;
        }
        if let Some(grant) = self.about.grant {
            write!(f, " grant {grant}")?;
        }
        if let Some(store) = self.about.store {
            write!(f, " store {store}")?;
        }
        Ok(())
    }
}
