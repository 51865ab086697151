//! The queue of one receiver.
//!
//! Invariant of this module: the events that wait, and those under way, are never more than the
//! queue allows. Each event that the receiver wants leaves the queue once: delivered, or counted as
//! dropped.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use distlock_core::Moment;
use distlock_kickout::{AccountChange, Change, ChangeReader, KickOut, NextChanges};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;

use super::{
    event::Happened,
    sender::{Attempt, LONGEST_PAUSE, Sender},
};
use crate::metering::HookDrop;

/// Most attempts at the same time.
const CONCURRENT: usize = 16;
/// Longest pause after the first attempt; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// An event on its way to the receiver.
struct Pending {
    happened: Happened,
    since: Moment,
    /// Number of attempts that have failed.
    failed: u32,
}

/// Gives the events of a node to one receiver.
pub(super) struct Receiver {
    sender: Arc<Sender>,
    sessions: ChangeReader<Change>,
    accounts: ChangeReader<AccountChange>,
    /// The events that wait, by the time of their next attempt, and then in their order.
    waiting: BTreeMap<(Moment, u64), Pending>,
    running: FuturesUnordered<BoxFuture<'static, (Pending, Attempt)>>,
    /// Number of events so far.
    accepted: u64,
    /// The receiver has asked for a pause until this time.
    pause_until: Option<Moment>,
    /// Whether the node stops: each event gets one more attempt.
    stopping: bool,
    /// Whether the log says that the receiver fails, or that events are dropped.
    says_failing: bool,
    says_dropping: bool,
}

enum Step {
    Attempted(Pending, Attempt),
    Sessions(NextChanges<Change>),
    Accounts(NextChanges<AccountChange>),
    Due,
    Stop,
}

impl Receiver {
    /// A receiver of everything that happens from now on.
    pub(super) fn new(sender: Arc<Sender>, kick: &KickOut) -> Self {
        sender.meter.set_waiting(0);
        Self {
            sessions: kick.changes(None),
            accounts: kick.account_changes(None),
            sender,
            waiting: BTreeMap::new(),
            running: FuturesUnordered::new(),
            accepted: 0,
            pause_until: None,
            stopping: false,
            says_failing: false,
            says_dropping: false,
        }
    }

    /// Sends until `stop`, and then once more what waits.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            if self.stopping {
                self.accept_the_last();
                if self.is_done() {
                    return;
                }
            }
            self.start_due();
            self.sender
                .meter
                .set_waiting(self.waiting.len() + self.running.len());
            match self.next_step(&stop).await {
                Step::Attempted(pending, attempt) => self.finish(pending, attempt),
                Step::Sessions(next) => self.accept_all(next, Happened::Session),
                Step::Accounts(next) => self.accept_all(next, Happened::Account),
                Step::Due => {}
                Step::Stop => self.stopping = true,
            }
        }
    }

    async fn next_step(&mut self, stop: &CancellationToken) -> Step {
        let due = self.next_due();
        let clock = &*self.sender.clock;
        let due = async {
            match due {
                Some(due) => clock.sleep(due.since(clock.now())).await,
                None => std::future::pending().await,
            }
        };
        // Without an order between them, neither a receiver that always answers nor a node on which
        // much happens keeps the other one waiting.
        tokio::select! {
            Some((pending, attempt)) = self.running.next() => Step::Attempted(pending, attempt),
            next = self.sessions.next() => Step::Sessions(next),
            next = self.accounts.next() => Step::Accounts(next),
            () = due => Step::Due,
            () = stop.cancelled(), if !self.stopping => Step::Stop,
        }
    }

    /// Takes over what happened until now, without waiting.
    fn accept_the_last(&mut self) {
        while let Some(next) = self.sessions.try_next() {
            self.accept_all(next, Happened::Session);
        }
        while let Some(next) = self.accounts.try_next() {
            self.accept_all(next, Happened::Account);
        }
    }

    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    fn accept_all<T>(&mut self, next: NextChanges<T>, happened: fn(Arc<T>) -> Happened) {
        match next {
            NextChanges::Changes(changes) => {
                for change in changes {
                    self.accept(happened(change));
                }
            }
            NextChanges::Gap(gap) => {
                // This task did not run while very much happened. Nobody knows how much of it the
                // receiver wants.
                self.drop_events(HookDrop::Missed, gap.next.between(gap.after));
            }
            _ => {}
        }
    }

    fn accept(&mut self, happened: Happened) {
        if !self.sender.wants(&happened) {
            return;
        }
        if self.sender.is_gone() {
            return self.drop_events(HookDrop::Gone, 1);
        }
        if self.waiting.len() + self.running.len() >= self.sender.queue {
            return self.drop_events(HookDrop::Full, 1);
        }
        let since = self.sender.clock.now();
        let pending = Pending {
            happened,
            since,
            failed: 0,
        };
        self.wait_until(since, pending);
    }

    fn wait_until(&mut self, due: Moment, pending: Pending) {
        self.accepted += 1;
        self.waiting.insert((due, self.accepted), pending);
    }

    /// The time of the next attempt; `None` if there is nothing to attempt, or no more attempts are
    /// allowed now.
    fn next_due(&self) -> Option<Moment> {
        if self.running.len() >= CONCURRENT {
            return None;
        }
        let ((due, _), pending) = self.waiting.first_key_value()?;
        if self.stopping {
            // No pause counts any more.
            return Some(pending.since);
        }
        Some(self.pause_until.map_or(*due, |pause| pause.max(*due)))
    }

    fn start_due(&mut self) {
        let now = self.sender.clock.now();
        while self.next_due().is_some_and(|due| due <= now)
            && let Some((_, pending)) = self.waiting.pop_first()
        {
            if self.sender.is_gone() {
                self.drop_events(HookDrop::Gone, 1);
            } else if now.since(pending.since) > self.sender.give_up_after {
                self.drop_events(HookDrop::Expired, 1);
            } else {
                let sender = Arc::clone(&self.sender);
                let attempting = async move {
                    let attempt = sender.attempt(&pending.happened).await;
                    (pending, attempt)
                };
                self.running.push(attempting.boxed());
            }
        }
    }

    fn finish(&mut self, mut pending: Pending, attempt: Attempt) {
        let (name, at) = (&self.sender.name, self.sender.authority());
        match attempt {
            // While events wait, a receiver that fails now and then, or is too slow, would fill the
            // log.
            Attempt::Delivered if !self.waiting.is_empty() => {}
            Attempt::Delivered => {
                if self.says_failing || self.says_dropping {
                    tracing::info!(
                        hook = name,
                        at,
                        "a receiver of web hooks takes events again"
                    );
                }
                (self.says_failing, self.says_dropping) = (false, false);
            }
            Attempt::Gone => {
                tracing::error!(
                    hook = name,
                    at,
                    "a receiver of web hooks answered 410 Gone: it gets no events until HUP"
                );
                self.drop_events(HookDrop::Gone, 1 + self.waiting.len() as u64);
                self.waiting.clear();
            }
            Attempt::Failed { why, pause } => {
                if !self.says_failing {
                    tracing::warn!(
                        hook = name,
                        at,
                        "a receiver of web hooks {why}: events are sent again"
                    );
                    self.says_failing = true;
                }
                if self.sender.is_gone() {
                    return self.drop_events(HookDrop::Gone, 1);
                }
                if self.stopping {
                    return self.drop_events(HookDrop::Stopped, 1);
                }
                let now = self.sender.clock.now();
                if let Some(pause) = pause {
                    self.pause_until = self.pause_until.max(Some(now + pause));
                }
                let due = now + pause_after(pending.failed, fastrand::f64());
                pending.failed += 1;
                if due.since(pending.since) > self.sender.give_up_after {
                    return self.drop_events(HookDrop::Expired, 1);
                }
                self.wait_until(due, pending);
            }
        }
    }

    fn drop_events(&mut self, why: HookDrop, events: u64) {
        if events == 0 {
            return;
        }
        self.sender.meter.count_dropped(why, events);
        if !self.says_dropping {
            self.says_dropping = true;
            let (hook, reason) = (&self.sender.name, why.name());
            tracing::error!(
                hook,
                reason,
                "events of a web hook are dropped: distlock_hook_dropped_total counts them"
            );
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let left = self.waiting.len() + self.running.len();
        self.drop_events(HookDrop::Stopped, left as u64);
        self.sender.meter.set_waiting(0);
    }
}

/// The pause after an attempt that failed, when `failed` had failed before it. `random` spreads the
/// pauses, so that the attempts of many events do not come together.
fn pause_after(failed: u32, random: f64) -> Duration {
    let longest = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(failed));
    longest.min(LONGEST_PAUSE).mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_one() {
        let longest = |failed| pause_after(failed, 1.0);
        assert_eq!(longest(0), FIRST_PAUSE);
        assert_eq!(longest(3), FIRST_PAUSE * 8);
        assert_eq!(longest(9), LONGEST_PAUSE);
        assert_eq!(longest(u32::MAX), LONGEST_PAUSE);
        assert_eq!(pause_after(3, 0.0), FIRST_PAUSE * 4);
    }
}
