//! Several attempts to connect, of which the first success counts.

use std::{future::Future, time::Duration};

use distlock_core::{Clock, Error, ErrorKind, Result};
use futures_util::{StreamExt as _, stream::FuturesUnordered};

/// An attempt, with the address that it tries, for messages.
pub(super) struct Attempt<F> {
    pub(super) label: String,
    pub(super) trying: F,
}

/// The times of several attempts.
pub(super) struct Trying<'a> {
    /// The time without a success after which the next attempt begins too. Each attempt must have a
    /// share of `connect_timeout`.
    pub(super) pause: Duration,
    /// The time after which an attempt fails. It ends before `connect_timeout`, so that the error
    /// names each server.
    pub(super) limit: Duration,
    pub(super) clock: &'a dyn Clock,
}

/// Makes the attempts in their order. The next one begins when an earlier one has failed, or after
/// a pause; the earlier ones go on. A success drops all others.
pub(super) async fn first_success<T, F>(attempts: Vec<Attempt<F>>, trying: &Trying<'_>) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let Trying {
        pause,
        limit,
        clock,
    } = *trying;
    let mut attempts: Vec<_> = attempts.into_iter().rev().collect();
    if attempts.len() == 1
        && let Some(only) = attempts.pop()
    {
        return only.trying.await;
    }
    let mut running = FuturesUnordered::new();
    let mut failures = Vec::new();
    while let Some(next) = attempts.pop() {
        running.push(async move {
            let outcome = tokio::select! {
                outcome = next.trying => outcome,
                () = clock.sleep(limit) => Err(no_answer()),
            };
            (next.label, outcome)
        });
        let is_last = attempts.is_empty();
        let patience = async {
            if is_last {
                std::future::pending::<()>().await;
            } else {
                clock.sleep(pause).await;
            }
        };
        tokio::pin!(patience);
        loop {
            let (label, outcome) = tokio::select! {
                biased;
                ended = running.next() => match ended {
                    Some(ended) => ended,
                    None => break,
                },
                () = &mut patience => break,
            };
            match outcome {
                Ok(success) => return Ok(success),
                Err(error) => failures.push((label, error)),
            }
            if !is_last {
                break;
            }
        }
    }
    Err(all_failed(&failures))
}

pub(super) fn no_answer() -> Error {
    let problem = "no answer in time (option `connect_timeout`)";
    Error::new(ErrorKind::Unavailable, problem)
}

/// One error for several failed attempts. Its kind is that of all of them. If they differ, it is
/// `Unavailable`: the trouble of one server may pass.
fn all_failed(failures: &[(String, Error)]) -> Error {
    let mut kinds = failures.iter().map(|(_, error)| error.kind());
    let first = kinds.next().unwrap_or(ErrorKind::Unavailable);
    let kind = if kinds.all(|kind| kind == first) {
        first
    } else {
        ErrorKind::Unavailable
    };
    let each = failures
        .iter()
        .map(|(label, error)| format!("{label}: {error}"));
    Error::new(kind, each.collect::<Vec<_>>().join("; "))
}
