//! Runs a round: sends the requests that [`Round`] asks for, and brings it the answers.
//!
//! Each request is a task of its own. So a round ends when a majority is confirmed, and a late
//! answer still finds the round: a grant that comes after a failed round is released by the task
//! that receives it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, Error, ErrorKind, FencingToken, Lease, Moment, Renewal, Renewed,
    at_most, sync::Mutex,
};
use tokio::sync::Notify;

use crate::{
    admission,
    leases::Course,
    marker::Standing,
    round::{Granted, Outcome, Round, Step},
    shared::Shared,
    wait::Place,
};

/// The time after which a member that has not answered is given up, also if the round fails without
/// it. It passes twice at most: a second time if another member must be raised in its place.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time after which a member that has not answered is replaced by one that has. The round looks
/// for such a member again and again, each time after this time.
const SLOW: Duration = Duration::from_millis(250);

/// A round in progress, shared by its tasks.
struct Running {
    shared: Arc<Shared>,
    request: AcquireRequest,
    /// The member that is asked before the others.
    first: Option<usize>,
    /// Whether the others are asked.
    rest_asked: AtomicBool,
    course: Arc<Course>,
    round: Mutex<Round>,
    decided: Notify,
    begun: Moment,
    /// The moment at which every lease of this round has ended.
    over: Moment,
}

/// Gives the round up when the caller goes away before it has the outcome. The outcome may be
/// decided by then: a lock that nobody takes would stay held until its lease ends.
struct AbandonOnDrop {
    running: Arc<Running>,
    taken: bool,
}

/// Runs one round. The request has an owner of its own and a TTL of at most the longest lease. All
/// members are asked at once; with a `first` member, the others are asked only after its answer,
/// unless the lock is busy there. The member of the `place` is asked with that place. The lease
/// that the round gets has the same `course`.
///
/// # Cancel safety
/// Safe: a round that is dropped is given up, and what was granted is released in the background.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    request: AcquireRequest,
    first: Option<usize>,
    place: Option<Place>,
    course: &Arc<Course>,
) -> Outcome {
    let members = shared.members.all().len();
    let now = shared.clock.now();
    let running = Arc::new(Running {
        round: Mutex::new(Round::new(members, shared.agreement.max_lease)),
        decided: Notify::new(),
        begun: now,
        // The last grant may reach a member late, at the end of a request timeout.
        over: now + request.ttl.duration() * 2,
        first,
        rest_asked: AtomicBool::new(first.is_none()),
        course: Arc::clone(course),
        shared: Arc::clone(shared),
        request,
    });
    match first {
        Some(at) => (shared.spawn)(Box::pin(Arc::clone(&running).ask(at, place.clone()))),
        None => running.ask_all_but(None, place.as_ref()),
    }
    let mut abandon = AbandonOnDrop {
        running,
        taken: false,
    };
    let running = &abandon.running;
    let mut give_up = [now + PATIENCE, now + PATIENCE * 2].into_iter().peekable();
    while let Some(&late) = give_up.peek() {
        let decided = running.decided.notified();
        if at_most(&*shared.clock, SLOW, decided).await.is_some() {
            break;
        }
        // The first member may have stopped a moment ago, and the others can grant without it.
        if let Some(at) = first {
            running.ask_rest(at, place.as_ref());
        }
        if shared.clock.now() < late {
            running.note(Round::pass_by_slow);
        } else {
            running.note(Round::give_up_late);
            give_up.next();
        }
    }
    let outcome = running.round.lock().outcome().cloned();
    abandon.taken = outcome.is_some();
    outcome.unwrap_or(Outcome::Abandoned)
}

impl Running {
    fn lease(&self) -> Lease {
        // No token: a raise changes the token, and a repeated request would not find the lock.
        Lease::new(self.request.name.clone(), self.request.owner, None)
    }

    /// Brings an answer to the round, and starts the requests that follow from it.
    fn note(self: &Arc<Self>, answer: impl FnOnce(&mut Round) -> Vec<Step>) {
        let (steps, decided) = {
            let mut round = self.round.lock();
            let steps = answer(&mut round);
            (steps, round.outcome().is_some())
        };
        for step in steps {
            let running = Arc::clone(self);
            (self.shared.spawn)(match step {
                Step::Raise(at, token) => Box::pin(running.raise(at, token)),
                Step::RaiseLater(at) => Box::pin(running.raise_later(at)),
                Step::Release(at) => Box::pin(running.release(at, false)),
                Step::ReleaseLate(at) => Box::pin(running.release(at, true)),
            });
        }
        if decided {
            self.decided.notify_one();
        }
    }

    /// Asks the members beside the first one, unless that has happened or the round is decided.
    fn ask_rest(self: &Arc<Self>, first: usize, place: Option<&Place>) {
        let is_decided = self.round.lock().outcome().is_some();
        if !is_decided && !self.rest_asked.swap(true, Ordering::SeqCst) {
            self.ask_all_but(Some(first), place);
        }
    }

    fn ask_all_but(self: &Arc<Self>, first: Option<usize>, place: Option<&Place>) {
        for at in (0..self.shared.members.all().len()).filter(|&at| Some(at) != first) {
            let place = place.filter(|place| place.at == at).cloned();
            (self.shared.spawn)(Box::pin(Arc::clone(self).ask(at, place)));
        }
    }

    /// Asks one member for the lock, and reads its marker after a grant.
    async fn ask(self: Arc<Self>, at: usize, place: Option<Place>) {
        let (sent, request) = (self.shared.clock.now(), &self.request);
        self.course.sent(at, request.ttl);
        let answer = self.shared.try_acquire(at, request, place.as_ref()).await;
        self.course.answered(at, request.ttl, &answer);
        if self.first == Some(at) {
            match answer {
                Ok(Attempt::Busy(holder)) if !self.rest_asked.swap(true, Ordering::SeqCst) => {
                    return self.note(|round| round.refused(holder));
                }
                _ => self.ask_rest(at, place.as_ref()),
            }
        }
        // The waiter may have gone away, and its place ends with the last that has it.
        drop(place);
        let may_hold = match &answer {
            Ok(Attempt::Acquired(_)) => true,
            Ok(Attempt::Busy(_)) => false,
            Err(error) => !error.did_not_happen(),
        };
        // A short lease can be over before a slow member has answered. Its release may have passed
        // the member before the grant.
        if may_hold && self.course.is_ending() {
            return self.release(at, answer.is_err()).await;
        }
        let grant = match answer {
            Ok(Attempt::Acquired(grant)) => grant,
            Ok(Attempt::Busy(holder)) => return self.note(|round| round.busy(at, holder)),
            Err(error) => return self.note(|round| round.failed(at, error)),
        };
        let granted = Granted {
            token: grant.token,
            from: grant.counts_from.map_or(sent, |from| from.min(sent)),
            valid_for: grant.valid_for,
        };
        self.note(|round| round.granted(at, granted));
        // Sent after the grant was answered: a member that restarted in between would be counted
        // by a marker from before its restart, although its grant is from after it.
        let mut standing = self.shared.standing(at, &grant.epoch).await;
        match &mut standing {
            Ok(Standing::Blank | Standing::Restarted) => admission::readmit(&self.shared),
            // The markers are read at different moments. Their clocks are compared as they were
            // when the round began.
            Ok(Standing::Votes(clock)) => {
                *clock = clock.saturating_sub(self.shared.clock.now().since(self.begun));
            }
            _ => {}
        }
        self.note(|round| round.marker(at, standing));
    }

    /// Raises the token of a member that is not counted, if the lease lasts for a moment. A lock
    /// that is held for a shorter time costs no such request.
    async fn raise_later(self: Arc<Self>, at: usize) {
        self.shared.clock.sleep(SLOW).await;
        if let Some(held) = self.shared.leases.of(self.request.owner) {
            held.raise(&self.shared, at).await;
        }
    }

    async fn release(self: Arc<Self>, at: usize, may_arrive: bool) {
        self.shared
            .release_until(at, &self.lease(), self.over, may_arrive)
            .await;
    }

    async fn raise(self: Arc<Self>, at: usize, token: FencingToken) {
        let ttl = self.request.ttl;
        let renewal = Renewal::raising(ttl, token);
        self.course.sent(at, ttl);
        let answer = self.shared.renew(at, &self.lease(), &renewal).await;
        self.course.answered(at, ttl, &answer);
        let raised = match answer {
            Ok(Renewed::Extended { token, .. }) => Ok(token),
            Ok(Renewed::NotHeld(reason)) => {
                let problem = format!("it lost the lock while it was being granted: {reason}");
                let error = Error::new(ErrorKind::Unavailable, problem);
                Err(self.shared.member(at).of_this(error))
            }
            Err(error) => Err(error),
        };
        self.note(|round| round.raised(at, raised));
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if !self.taken {
            self.running.note(Round::abandon);
        }
    }
}
