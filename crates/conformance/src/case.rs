//! One case of the suite, and how cases are run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    Failure, Outcome, Subject,
    cases::ALL,
    spec::{Needs, Spec},
    support::{Context, now, within},
};

/// A case that takes longer hangs. The slowest take about 15 s on an idle machine.
const TOO_LONG: Duration = Duration::from_secs(90);

/// One promise of the contract, ready to be put to the test against one subject.
#[derive(Clone, Debug)]
pub struct Case {
    /// `exclusion::two_tasks_never_overlap`.
    pub name: &'static str,
    /// The property it belongs to: `exclusion`.
    pub property: &'static str,
    /// What must hold, in one sentence.
    pub promise: &'static str,
    /// Why it cannot be asked of this subject, if that is known before it runs. A few cases find
    /// out while they run: see [`Status::NotApplicable`].
    pub not_applicable: Option<&'static str>,
    spec: &'static Spec,
    subject: Subject,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The promise was broken, or the store failed.
    Failed,
    /// It cannot be asked of this subject.
    NotApplicable,
    /// The promise held.
    Passed,
}

/// The result of one case.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseResult {
    /// The case.
    pub name: &'static str,
    /// Its property.
    pub property: &'static str,
    /// What must hold.
    pub promise: &'static str,
    /// How it ended.
    pub status: Status,
    /// How long it took.
    pub duration: Duration,
    /// What went wrong, or why it does not apply.
    pub detail: Option<String>,
}

impl CaseResult {
    /// Whether the promise was broken.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.status == Status::Failed
    }
}

/// All cases for a subject, in a fixed order. A case whose promise the subject does not make is
/// [not applicable](Case::not_applicable). One case for each feature that a store may lack asks for
/// it all the same where it is missing: the right answer is then
/// [`ErrorKind::Unsupported`](distlock_core::ErrorKind::Unsupported).
#[must_use]
pub fn cases(subject: &Subject) -> Vec<Case> {
    ALL.iter()
        .flat_map(|property| property.iter())
        .map(|spec| Case {
            name: spec.name,
            property: spec.name.split("::").next().unwrap_or(spec.name),
            promise: spec.promise,
            not_applicable: spec.needs.iter().find_map(|needs| needs.obstacle(subject)),
            spec,
            subject: subject.clone(),
        })
        .collect()
}

impl Case {
    /// Runs it, catches its panics, and removes what it left in the store.
    ///
    /// # Cancel safety
    /// Dropping the future may leave locks with short leases and a few records, under names that start with
    /// `conformance-`.
    pub async fn run(&self) -> CaseResult {
        let start = now();
        let (status, detail) = match self.not_applicable {
            Some(reason) => (Status::NotApplicable, Some(reason.to_owned())),
            None => match self.attempt().await {
                Ok(()) => (Status::Passed, None),
                Err(failure) if failure.is_not_applicable() => {
                    (Status::NotApplicable, Some(failure.message().to_owned()))
                }
                Err(failure) => (Status::Failed, Some(failure.to_string())),
            },
        };
        CaseResult {
            name: self.name,
            property: self.property,
            promise: self.promise,
            status,
            duration: now().since(start),
            detail,
        }
    }

    async fn attempt(&self) -> Outcome {
        let context = Context::new(self.subject.clone());
        // A task of its own, so that a panic is a result.
        let mut body = tokio::spawn((self.spec.body)(context.clone()));
        let outcome = match within(TOO_LONG, &mut body).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => Err(Failure::new(format!("the case ended early: {error}"))),
            None => {
                body.abort();
                Err(Failure::new(format!("not finished after {TOO_LONG:?}")))
            }
        };
        let tidied = match within(Duration::from_secs(15), context.tidy()).await {
            Some(tidied) => tidied,
            None => Err(Failure::new("clean-up hangs")),
        };
        outcome.and(tidied)
    }
}

/// Runs all cases whose names contain `filter`, four at a time.
///
/// # Cancel safety
/// As [`Case::run`].
pub async fn run(subject: &Subject, filter: Option<&str>) -> Vec<CaseResult> {
    run_with(subject, &Options::default().filter(filter), |_| {}).await
}

/// How to run the suite.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Only cases whose names contain this text.
    pub filter: Option<String>,
    /// How many run at a time.
    pub at_a_time: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            filter: None,
            at_a_time: 4,
        }
    }
}

impl Options {
    /// Only cases whose names contain this text.
    #[must_use]
    pub fn filter(mut self, filter: Option<&str>) -> Self {
        self.filter = filter.map(Into::into);
        self
    }

    /// How many run at a time.
    #[must_use]
    pub const fn at_a_time(mut self, at_a_time: usize) -> Self {
        self.at_a_time = at_a_time;
        self
    }
}

/// As [`run`], with options, and with a look at each result as it comes. The answer is in the order of [`cases`].
///
/// # Cancel safety
/// As [`Case::run`].
pub async fn run_with(
    subject: &Subject,
    options: &Options,
    mut observe: impl FnMut(&CaseResult),
) -> Vec<CaseResult> {
    let chosen = cases(subject).into_iter().filter(|case| {
        options
            .filter
            .as_ref()
            .is_none_or(|filter| case.name.contains(filter.as_str()))
    });
    let places = Arc::new(Semaphore::new(options.at_a_time.max(1)));
    // Several processes at once already load the machine: such cases run one at a time.
    let processes = Arc::new(Semaphore::new(1));
    let mut running = JoinSet::new();
    for (index, case) in chosen.enumerate() {
        let (places, processes) = (Arc::clone(&places), Arc::clone(&processes));
        running.spawn(async move {
            let _only = if case.spec.needs.contains(&Needs::Processes) {
                processes.acquire_owned().await.ok()
            } else {
                None
            };
            let _place = places.acquire_owned().await;
            (index, case.run().await)
        });
    }
    let mut results = BTreeMap::new();
    while let Some(Ok((index, result))) = running.join_next().await {
        observe(&result);
        results.insert(index, result);
    }
    results.into_values().collect()
}
