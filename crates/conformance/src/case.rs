//! Choosing and running cases.
//!
//! This module owns the run of a case: its own task, the time limit, the clean-up and the result.
//! Invariant: every chosen case ends with exactly one [`Status`]; a panic or a hang of a case is a
//! failure of that case and never stops the run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    Failure, Outcome, Subject,
    cases::ALL,
    spec::{Needs, Spec},
    support::{Context, now, within},
};

/// The time limit of a case. A case that takes longer is aborted and fails. The slowest cases take
/// about 15 s on an idle machine.
const TOO_LONG: Duration = Duration::from_secs(90);

/// One promise of the contract, ready to be tested against one subject.
#[derive(Clone, Debug)]
pub struct Case {
    /// The name: `exclusion::two_tasks_never_overlap`.
    pub name: &'static str,
    /// The property that the case belongs to: `exclusion`.
    pub property: &'static str,
    /// The promise, in one sentence.
    pub promise: &'static str,
    /// The reason why the case cannot run on this subject, if the reason is known before the run. A
    /// few cases learn the reason only from an answer of the store: then the result is
    /// [`Status::NotApplicable`].
    pub not_applicable: Option<&'static str>,
    spec: &'static Spec,
    subject: Subject,
}

/// The end of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The promise was broken, or the store failed.
    Failed,
    /// The case cannot run on this subject.
    NotApplicable,
    /// The promise held.
    Passed,
}

/// The result of one case.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseResult {
    /// The name of the case.
    pub name: &'static str,
    /// The property of the case.
    pub property: &'static str,
    /// The promise.
    pub promise: &'static str,
    /// The end of the case.
    pub status: Status,
    /// The time that the case took.
    pub duration: Duration,
    /// The failure, or the reason why the case does not apply.
    pub detail: Option<String>,
}

impl CaseResult {
    /// Whether the promise was broken.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.status == Status::Failed
    }
}

/// All cases for a subject, in a fixed order. A case is [not applicable](Case::not_applicable)
/// where the subject does not make the promise. For each feature that a store may lack, one case
/// requests the feature on the stores that lack it. The right answer is then
/// [`ErrorKind::Unsupported`](distlock_core::ErrorKind::Unsupported).
#[must_use]
pub fn cases(subject: &Subject) -> Vec<Case> {
    ALL.iter()
        .flat_map(|property| property.iter())
        .map(|spec| Case {
            name: spec.name,
            property: spec.name.split("::").next().unwrap_or(spec.name),
            promise: spec.promise,
            not_applicable: spec
                .needs
                .iter()
                .find_map(|needs| needs.unmet_reason(subject)),
            spec,
            subject: subject.clone(),
        })
        .collect()
}

impl Case {
    /// Runs the case, catches its panics, and removes its leftovers from the store.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the case, because the case runs in a task of its own. No
    /// clean-up follows, so locks may stay until their leases end, and a few records may stay for
    /// ever. Their names start with `conformance-`. Only the locks of
    /// `names::bare_special_names_work` have other names, such as `.` and `/`.
    pub async fn run(&self) -> CaseResult {
        let start = now();
        let (status, detail) = match self.not_applicable {
            Some(reason) => (Status::NotApplicable, Some(reason.to_owned())),
            None => match self.run_and_clean_up().await {
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

    /// Runs the code of the case with a time limit, and removes its leftovers from the store.
    async fn run_and_clean_up(&self) -> Outcome {
        let context = Context::new(self.subject.clone());
        // The case runs in a task of its own, so that a panic becomes a result.
        let mut body = tokio::spawn((self.spec.body)(context.clone()));
        let outcome = match within(TOO_LONG, &mut body).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => Err(Failure::new(format!("the case ended early: {error}"))),
            None => {
                body.abort();
                Err(Failure::new(format!("not finished after {TOO_LONG:?}")))
            }
        };
        let cleaned = match within(Duration::from_secs(15), context.clean_up()).await {
            Some(cleaned) => cleaned,
            None => Err(Failure::new("clean-up hangs")),
        };
        outcome.and(cleaned)
    }
}

/// Runs all cases with `filter` in their names, four at a time.
///
/// # Cancel safety
/// As [`Case::run`].
pub async fn run(subject: &Subject, filter: Option<&str>) -> Vec<CaseResult> {
    run_with(subject, &Options::default().filter(filter), |_| {}).await
}

/// The options of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Only cases with this text in their names run.
    pub filter: Option<String>,
    /// The number of cases that run at the same time.
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
    /// Limits the run to the cases with this text in their names.
    #[must_use]
    pub fn filter(mut self, filter: Option<&str>) -> Self {
        self.filter = filter.map(Into::into);
        self
    }

    /// Sets the number of cases that run at the same time.
    #[must_use]
    pub const fn at_a_time(mut self, at_a_time: usize) -> Self {
        self.at_a_time = at_a_time;
        self
    }
}

/// Like [`run`], with options. `run_with` calls `observe` with each result as soon as the case has
/// ended. The returned results are in the order of [`cases`].
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
    let slots = Arc::new(Semaphore::new(options.at_a_time.max(1)));
    // A case with worker processes loads the machine heavily, so such cases run one at a time.
    let processes = Arc::new(Semaphore::new(1));
    let mut running = JoinSet::new();
    for (index, case) in chosen.enumerate() {
        let (slots, processes) = (Arc::clone(&slots), Arc::clone(&processes));
        running.spawn(async move {
            let _alone = if case.spec.needs.contains(&Needs::Processes) {
                processes.acquire_owned().await.ok()
            } else {
                None
            };
            let _slot = slots.acquire_owned().await;
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
