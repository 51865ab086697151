//! An arm: a subject with a name, ready to be measured.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use super::{
    round::{Round, run_round},
    subject::Subject,
};
use crate::results::sample::Sample;

/// A named subject, ready to be measured together with others.
pub struct Arm {
    name: String,
    run: Box<dyn Fn(Round) -> RunningRound + Send + Sync>,
}

/// A running round of one arm.
type RunningRound = Pin<Box<dyn Future<Output = Sample> + Send>>;

impl Arm {
    /// Gives a subject its name in the report.
    pub fn new<S: Subject>(name: impl Into<String>, subject: S) -> Self {
        Self::shared(name, Arc::new(subject))
    }

    /// As [`new`](Self::new), for a subject that the caller still uses.
    pub fn shared<S: Subject>(name: impl Into<String>, subject: Arc<S>) -> Self {
        Self {
            name: name.into(),
            run: Box::new(move |round| Box::pin(run_round(Arc::clone(&subject), round))),
        }
    }

    /// The name of the arm.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs one round, and returns its sample.
    pub(crate) async fn run(&self, round: Round) -> Sample {
        (self.run)(round).await
    }
}

impl fmt::Debug for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arm").field(&self.name).finish()
    }
}
