//! The suite as tests of libtest-mimic, so that every test runner lists and filters each case.
//!
//! Invariant: each case has a runtime of its own, so tasks that one case leaves running cannot
//! disturb the next case.

use distlock_core::{Error, ErrorKind};
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use crate::{Case, Status, Subject, cases};

/// One trial for each case and subject, named `sqlite::exclusion::two_tasks_never_overlap`. A case
/// that does not apply is listed as ignored.
#[must_use]
pub fn trials(subjects: &[Subject]) -> Vec<Trial> {
    subjects
        .iter()
        .flat_map(|subject| {
            cases(subject)
                .into_iter()
                .map(|case| new_trial(subject.name(), case))
        })
        .collect()
}

/// Runs the trials that the arguments of a test binary choose.
pub fn mimic(subjects: &[Subject], arguments: &Arguments) -> Conclusion {
    libtest_mimic::run(arguments, trials(subjects))
}

fn new_trial(subject: &str, case: Case) -> Trial {
    let name = format!("{subject}::{}", case.name);
    let applies = case.not_applicable.is_none();
    Trial::ignorable_test(name, move || run_trial(&case)).with_ignored_flag(!applies)
}

fn run_trial(case: &Case) -> Result<Completion, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::new(ErrorKind::Internal, "no runtime").caused_by(error))?;
    let result = runtime.block_on(case.run());
    runtime.shutdown_background();
    let detail = result.detail.unwrap_or_default();
    match result.status {
        Status::Passed => Ok(Completion::Completed),
        Status::NotApplicable => Ok(Completion::ignored_with(detail)),
        Status::Failed => Err(format!("{detail}\n  promise: {}", result.promise).into()),
    }
}
