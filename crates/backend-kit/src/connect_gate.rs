//! The attempts of this process to connect to one server.
//!
//! While a server is away, every waiter, poller and renewal of the process meets a broken
//! connection and wants a new one. Without a common pace, a server that starts would have to refuse
//! hundreds of attempts a second. So all handles on a server share one [`ConnectGate`].
//!
//! - While an attempt is in progress, other callers wait for its outcome, for
//!   [`LONGEST_WAIT`] at most, and for [`SHORTEST_INTERVAL`] after a success. After a success they
//!   connect too. After a failure they get its error.
//! - A failed attempt is followed by a pause, which grows up to [`LONGEST_PAUSE`]. Each error tells
//!   the rest of the pause ([`Error::retry_pause`]), and callers that wait for a lock try again
//!   then. So the process makes about one attempt a second, and one that succeeds at most about a
//!   second after the return of the server.
//! - A caller that cannot wait that long is not held back by the rest of the pause, after the first
//!   [`SHORTEST_INTERVAL`]: a renewal would lose its lease, and a caller that does not wait wants
//!   to know whether the server is back. The failure of such an attempt leaves the end of the pause
//!   as it is.
//!
//! Invariant: a server whose last attempt succeeded is reached after [`SHORTEST_INTERVAL`] at the
//! latest, also while an attempt of another caller hangs. This module never repeats an attempt by
//! itself.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, LazyLock, Weak},
    time::Duration,
};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result, at_most, sync::Mutex};
use tokio::sync::watch;

/// The pause after the first failed attempt. Each further failure doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause after a failed attempt, before its random variation by a fifth.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time after a failed attempt in which nobody may try again.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

/// The longest wait of a caller for another caller's attempt. A server that accepts a connection
/// and stays silent, or a runtime that is blocked, would otherwise hold up the whole process.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

static GATES: LazyLock<Mutex<HashMap<String, Weak<ConnectGate>>>> = LazyLock::new(Mutex::default);

/// The gate through which every attempt of this process to connect to one server goes.
#[derive(Debug, Default)]
pub struct ConnectGate {
    state: watch::Sender<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// The number of attempts that have begun.
    begun: u64,
    /// The number of outcomes so far. An attempt that began before the last outcome says nothing
    /// about the server since then, unless it succeeds.
    outcomes: u64,
    /// The attempt that other callers wait for.
    awaited: Option<AwaitedAttempt>,
    /// The failure of the last attempt; `None` = it succeeded.
    failure: Option<Failure>,
    /// The moment of the last success.
    answered: Option<Moment>,
}

#[derive(Debug)]
struct AwaitedAttempt {
    number: u64,
    /// The end of the others' wait.
    until: Moment,
}

#[derive(Debug)]
struct Failure {
    error: Error,
    /// The number of pauses in a row.
    failures: u32,
    /// No attempt begins before this moment.
    closed_until: Moment,
    /// The end of the pause.
    next: Moment,
}

/// The decision on a caller that wants to connect.
enum Admission {
    /// The caller connects now; the number of its attempt, and the number of outcomes before it.
    Connect(u64, u64),
    Wait(Duration),
    Refused(Error),
}

impl ConnectGate {
    /// Returns the gate of a server: every caller in this process with the same `key` gets the same
    /// gate. The key contains the server's address, and every option on which the errors of an
    /// attempt depend.
    #[must_use]
    pub fn of(key: String) -> Arc<Self> {
        let mut gates = GATES.lock();
        gates.retain(|_, gate| gate.strong_count() > 0);
        if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        let gate = Arc::<Self>::default();
        gates.insert(key, Arc::downgrade(&gate));
        gate
    }

    /// Connects with this attempt, or returns the error of another caller's attempt. `attempt` has
    /// a time limit of its own.
    ///
    /// # Errors
    /// The error of the attempt. If the error is retryable, it has the pause before the next
    /// attempt.
    ///
    /// # Cancel safety
    /// Safe: a dropped future gives the turn to the next caller.
    pub async fn connect<T>(
        &self,
        clock: &dyn Clock,
        attempt: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let running = self.admitted(clock).await?;
        // No operation of a caller was sent, whatever the set-up of the connection did. With
        // another kind, every caller that gets this error would count its operation as sent.
        let outcome = attempt.await.map_err(|error| match error.kind() {
            ErrorKind::OutcomeUnknown => {
                Error::new(ErrorKind::Unavailable, "the connection was not set up").caused_by(error)
            }
            _ => error,
        });
        // A permanent error is an answer: the server is there, and another attempt may have other
        // credentials. So only a retryable error closes the gate.
        let failure = outcome.as_ref().err().filter(|error| error.is_retryable());
        let pause = running.end(clock.now(), failure);
        outcome.map_err(|error| match pause {
            Some(pause) => error.retry_in(pause),
            None => error,
        })
    }

    /// Whether an attempt has succeeded within the last second, and none has failed since.
    #[must_use]
    pub fn answered_lately(&self, now: Moment) -> bool {
        let state = self.state.borrow();
        let answered = state.answered.filter(|_| state.failure.is_none());
        answered.is_some_and(|answered| now.since(answered) < LONGEST_PAUSE)
    }

    /// Waits until this caller may connect.
    async fn admitted(&self, clock: &dyn Clock) -> Result<RunningAttempt<'_>> {
        // The subscription comes before the first look, so no outcome in between is missed.
        let mut outcomes = self.state.subscribe();
        let mut waiting_since = None;
        loop {
            let mut admission = Admission::Wait(Duration::ZERO);
            self.state.send_if_modified(|state| {
                admission = state.admit(clock.now(), waiting_since);
                waiting_since.get_or_insert(state.outcomes);
                // Nobody waits for the beginning of an attempt.
                false
            });
            match admission {
                Admission::Connect(number, outcomes) => {
                    return Ok(RunningAttempt {
                        gate: self,
                        number,
                        outcomes,
                    });
                }
                Admission::Refused(error) => return Err(error),
                Admission::Wait(pause) => {
                    // `changed` cannot fail, because `self` owns the sender.
                    let _ = at_most(clock, pause, outcomes.changed()).await;
                }
            }
        }
    }
}

impl GateState {
    /// Decides on a caller that has waited since this number of outcomes; `None` = it has just
    /// come.
    fn admit(&mut self, now: Moment, waiting_since: Option<u64>) -> Admission {
        if waiting_since.is_some_and(|outcomes| outcomes < self.outcomes) {
            return match &self.failure {
                Some(failure) => Admission::Refused(failure.error_at(now)),
                // The server has just answered. All callers that waited for that connect now, side
                // by side: a queue of them would delay the last ones.
                None => self.begin(),
            };
        }
        if let Some(left) = self.awaited.as_ref().and_then(|it| left(it.until, now)) {
            return Admission::Wait(left);
        }
        if let Some(failure) = &self.failure
            && left(failure.closed_until, now).is_some()
        {
            return Admission::Refused(failure.error_at(now));
        }
        let begun = self.begin();
        // After a success only a connection broke, and the server is probably there. A renewal must
        // not lose its lease behind an attempt whose caller is stopped. A second attempt that gets
        // no answer either shows that the server is silent.
        let longest = match (&self.failure, &self.awaited) {
            (None, None) => SHORTEST_INTERVAL,
            _ => LONGEST_WAIT,
        };
        self.awaited = Some(AwaitedAttempt {
            number: self.begun,
            until: now + longest,
        });
        begun
    }

    fn begin(&mut self) -> Admission {
        self.begun += 1;
        Admission::Connect(self.begun, self.outcomes)
    }

    /// Notes the outcome of an attempt that began after `outcomes` outcomes. Returns the rest of
    /// the pause after a failure.
    fn note(&mut self, now: Moment, outcomes: u64, failure: Option<&Error>) -> Option<Duration> {
        let Some(error) = failure else {
            self.outcomes += 1;
            self.failure = None;
            // Nobody waits for an older attempt that still hangs.
            self.awaited = None;
            self.answered = Some(now);
            return None;
        };
        // Of several attempts that fail together, only the first lengthens the pause.
        if outcomes == self.outcomes {
            self.outcomes += 1;
            let last = self.failure.take();
            let in_pause = last.as_ref().and_then(|it| left(it.next, now));
            let failures = last.as_ref().map_or(0, |it| it.failures);
            self.failure = Some(match (last, in_pause) {
                // The attempt of a caller in a hurry. Another end of the pause would have the
                // callers that know the old one, and those that learn the new one, come at two
                // moments in each pause from then on.
                (Some(last), Some(rest)) => Failure {
                    error: error.clone(),
                    closed_until: now + rest.min(SHORTEST_INTERVAL),
                    ..last
                },
                _ => {
                    let pause = pause_after(failures + 1);
                    Failure {
                        error: error.clone(),
                        failures: failures + 1,
                        closed_until: now + pause.min(SHORTEST_INTERVAL),
                        next: now + pause,
                    }
                }
            });
        }
        let failure = self.failure.as_ref();
        failure.map(|failure| failure.next.since(now))
    }
}

impl Failure {
    fn error_at(&self, now: Moment) -> Error {
        self.error.clone().retry_in(self.next.since(now))
    }
}

/// An attempt in progress.
struct RunningAttempt<'a> {
    gate: &'a ConnectGate,
    number: u64,
    /// The number of outcomes when the attempt began.
    outcomes: u64,
}

impl RunningAttempt<'_> {
    fn end(&self, now: Moment, failure: Option<&Error>) -> Option<Duration> {
        let mut pause = None;
        self.gate.state.send_modify(|state| {
            pause = state.note(now, self.outcomes, failure);
        });
        pause
    }
}

impl Drop for RunningAttempt<'_> {
    fn drop(&mut self) {
        // An attempt without an outcome was dropped by its caller. The callers that wait for it
        // wake up, and the first of them makes the next attempt.
        self.gate.state.send_if_modified(|state| {
            let awaited = state.awaited.take_if(|it| it.number == self.number);
            awaited.is_some()
        });
    }
}

/// The time from `now` to a moment that is ahead. Handles with different clocks share a gate in
/// tests. A moment that is further ahead than any pause comes from another clock, and counts as
/// passed.
fn left(until: Moment, now: Moment) -> Option<Duration> {
    let left = until.since(now);
    (!left.is_zero() && left <= LONGEST_PAUSE * 2).then_some(left)
}

/// The pause after this number of failures in a row. The random variation keeps the processes that
/// lost the same server from asking it at the same moments.
fn pause_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(10);
    let pause = (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE);
    pause.mul_f64(0.8 + 0.4 * fastrand::f64())
}

#[cfg(test)]
mod tests;
