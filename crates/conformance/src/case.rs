//! One case of the suite, and how cases are run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use distlock_core::{Clock as _, Reach, SystemClock};
use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    Failure, Outcome, Subject,
    cases::ALL,
    context::{Context, within},
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
    /// Why it cannot be asked of this subject, if it cannot.
    pub not_applicable: Option<&'static str>,
    spec: &'static Spec,
    subject: Subject,
}

/// A case as its file declares it.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) promise: &'static str,
    pub(crate) needs: Needs,
    pub(crate) body: fn(Context) -> BoxFuture<'static, Outcome>,
}

/// What a case cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Worker processes.
    Processes,
}

/// Declares a case: `case!(exclusion::two_tasks_never_overlap, "promise")`, with `, Processes` when it starts some.
macro_rules! case {
    ($property:ident :: $name:ident, $promise:literal) => {
        case!($property::$name, $promise, Nothing)
    };
    ($property:ident :: $name:ident, $promise:literal, $needs:ident) => {
        $crate::case::Spec {
            name: concat!(stringify!($property), "::", stringify!($name)),
            promise: $promise,
            needs: $crate::case::Needs::$needs,
            body: |cx| Box::pin($name(cx)),
        }
    };
}
pub(crate) use case;

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

/// All cases for a subject, in a fixed order. A feature the subject does not have is asked for all the same: the right
/// answer is then [`ErrorKind::Unsupported`](distlock_core::ErrorKind::Unsupported).
#[must_use]
pub fn cases(subject: &Subject) -> Vec<Case> {
    ALL.iter()
        .flat_map(|property| property.iter())
        .map(|spec| Case {
            name: spec.name,
            property: spec.name.split("::").next().unwrap_or(spec.name),
            promise: spec.promise,
            not_applicable: obstacle(spec.needs, subject),
            spec,
            subject: subject.clone(),
        })
        .collect()
}

fn obstacle(needs: Needs, subject: &Subject) -> Option<&'static str> {
    match needs {
        Needs::Processes if subject.capabilities().reach == Reach::Process => {
            Some("reach is process: no other process can share this store")
        }
        Needs::Processes if subject.workers().is_none() => Some("no worker processes were given"),
        Needs::Nothing | Needs::Processes => None,
    }
}

impl Case {
    /// Runs it, catches its panics, and removes what it left in the store.
    ///
    /// # Cancel safety
    /// Dropping the future may leave locks with short leases and a few records, under names that start with
    /// `conformance-`.
    pub async fn run(&self) -> CaseResult {
        let start = SystemClock.now();
        let (status, detail) = match self.not_applicable {
            Some(reason) => (Status::NotApplicable, Some(reason.to_owned())),
            None => match self.attempt().await {
                Ok(()) => (Status::Passed, None),
                Err(failure) => (Status::Failed, Some(failure.to_string())),
            },
        };
        CaseResult {
            name: self.name,
            property: self.property,
            promise: self.promise,
            status,
            duration: SystemClock.now().since(start),
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
            let _only = match case.spec.needs {
                Needs::Processes => processes.acquire_owned().await.ok(),
                Needs::Nothing => None,
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
