//! The arithmetic of the local deadline of one lease.
//!
//! This module owns the rule that turns answers of the store into a deadline. Invariant: the
//! deadline is never later than the end of the lease at the store, even if requests or answers are
//! lost or delayed. The module must never read a clock: callers pass every moment in.

use std::time::Duration;

use crate::{clock::Moment, types::ttl::margin};

/// The local deadline of one lease.
///
/// The deadline is always earlier than the store's expiry of the same lease. The store counts from
/// the moment at which it *receives* a request, the deadline counts from the moment at which the
/// request was *sent*, and the margin is taken off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Moment,
    /// The latest moment at which the store ends the lease, if every request reached the store at
    /// about the moment of its sending.
    latest: Moment,
    /// The shortest TTL of all requests of this owner with an unknown outcome: renewals, and
    /// attempts before the granted one. Such a request may still reach the store late and shorten a
    /// longer lease. So a later confirmation counts for this TTL at most.
    cap: Option<Duration>,
}

impl Deadline {
    /// The deadline of a new grant.
    pub(crate) fn granted(sent: Moment, valid_for: Duration) -> Self {
        Self {
            at: end(sent, valid_for),
            latest: sent + valid_for,
            cap: None,
        }
    }

    /// Lowers the deadline to that of a request that was sent at `from`, if that is earlier.
    pub(crate) fn counted_from(mut self, from: Moment, valid_for: Duration) -> Self {
        self.at = self.at.min(end(from, valid_for));
        self
    }

    /// The deadline itself.
    pub(crate) const fn at(&self) -> Moment {
        self.at
    }

    /// The moment at which the store has ended the lease at the latest, also if unanswered requests
    /// reached the store.
    pub(crate) const fn latest(&self) -> Moment {
        self.latest
    }

    /// Records that a renewal is about to be sent. A renewal with a short TTL lowers the deadline
    /// at once: the store may apply the renewal although no answer comes.
    pub(crate) fn note_sending(&mut self, sent: Moment, ttl: Duration) {
        self.at = self.at.min(end(sent, ttl));
        self.latest = self.latest.max(sent + ttl);
    }

    /// Records that the store confirmed a renewal. Only this call moves the deadline to a later
    /// moment.
    pub(crate) fn note_confirmed(&mut self, sent: Moment, valid_for: Duration) {
        self.at = end(sent, self.believed(valid_for));
        let latest = sent + valid_for;
        self.latest = match self.cap {
            None => latest,
            Some(_) => latest.max(self.latest),
        };
    }

    /// The part of a confirmed lease that counts: no longer than the shortest TTL among requests
    /// with an unknown outcome.
    pub(crate) fn believed(&self, valid_for: Duration) -> Duration {
        self.cap.map_or(valid_for, |cap| cap.min(valid_for))
    }

    /// The shortest TTL to which an unanswered request may still shorten the lease.
    pub(crate) const fn cap(&self) -> Option<Duration> {
        self.cap
    }

    /// Records that a request with this TTL got no answer.
    pub(crate) fn note_unanswered(&mut self, ttl: Duration) {
        self.cap = Some(self.cap.map_or(ttl, |cap| cap.min(ttl)));
    }
}

fn end(sent: Moment, valid_for: Duration) -> Moment {
    sent + (valid_for - margin(valid_for))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn at(ms: u64) -> Moment {
        Moment::from_boot(MS(ms))
    }

    #[test]
    fn a_deadline_is_counted_from_the_sending_less_the_margin() {
        assert_eq!(Deadline::granted(at(1000), MS(10_000)).at(), at(10_000));
        assert_eq!(Deadline::granted(at(1000), MS(200)).at(), at(1150));
        assert_eq!(Deadline::granted(at(1000), MS(60)).at(), at(1030));
    }

    #[test]
    fn a_deadline_is_counted_from_an_earlier_moment_that_the_store_names() {
        let deadline = |from| {
            let granted = Deadline::granted(at(5000), MS(10_000));
            granted.counted_from(at(from), MS(10_000))
        };
        assert_eq!(deadline(4000).at(), at(13_000));
        assert_eq!(deadline(6000).at(), at(14_000));
        assert_eq!(
            deadline(4000).latest(),
            at(15_000),
            "the store counts from the sending, so its lease ends later"
        );
    }

    #[test]
    fn a_sent_renewal_lowers_the_deadline_and_a_confirmation_raises_it() {
        let mut deadline = Deadline::granted(at(0), MS(10_000));
        deadline.note_sending(at(3000), MS(10_000));
        assert_eq!(deadline.at(), at(9000));
        deadline.note_sending(at(4000), MS(1000));
        assert_eq!(deadline.at(), at(4900));
        deadline.note_confirmed(at(4000), MS(1000));
        assert_eq!(deadline.at(), at(4900));
        deadline.note_sending(at(4500), MS(10_000));
        assert_eq!(deadline.at(), at(4900));
        deadline.note_confirmed(at(4500), MS(10_000));
        assert_eq!(deadline.at(), at(13_500));
    }

    /// One renewal against a simulated store. The simulated store applies requests late, out of
    /// order or never, and answers may be lost.
    #[derive(Clone, Debug)]
    struct Step {
        ttl: u64,
        pause: u64,
        delay: u64,
        /// The fate of the renewal: 0 = applied and answered, 1 = applied in time but unanswered, 2
        /// = applied much later, 3 = never applied.
        fate: u8,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = (100u64..20_000, 1u64..5_000, 0u64..50, 0u8..4).prop_map(
            |(ttl, pause, delay, fate)| Step {
                ttl,
                pause,
                delay,
                fate,
            },
        );
        prop::collection::vec(step, 1..12)
    }

    proptest! {
        /// In every sequence of sent, lost and delayed renewals, the store's lease ends at the
        /// deadline or later.
        #[test]
        fn the_stores_lease_never_ends_before_the_deadline(
            first in 100u64..20_000,
            steps in steps(),
        ) {
            let mut now = 1_000u64;
            let mut deadline = Deadline::granted(at(now), MS(first));
            let mut expiry = now + first;
            let mut late: Vec<(u64, u64)> = Vec::new(); // (arrives, ttl)
            for step in steps {
                now += step.pause;
                late.sort_unstable();
                late.retain(|&(arrives, ttl)| {
                    let due = arrives <= now;
                    if due && arrives < expiry {
                        expiry = arrives + ttl;
                    }
                    !due
                });
                if at(now) >= deadline.at() {
                    break; // The guard is lost for good, and renews no more.
                }
                prop_assert!(now < expiry, "believed at {now}, gone at {expiry}");
                deadline.note_sending(at(now), MS(step.ttl));
                let arrives = now + step.delay;
                match step.fate {
                    0 => {
                        if arrives < expiry {
                            expiry = arrives + step.ttl;
                            now = arrives;
                            if at(now) < deadline.at() {
                                deadline.note_confirmed(at(arrives - step.delay), MS(step.ttl));
                            } else {
                                break;
                            }
                        } else {
                            break;
                        }
                    }
                    1 => {
                        if arrives < expiry {
                            expiry = arrives + step.ttl;
                        }
                        now = arrives;
                        deadline.note_unanswered(MS(step.ttl));
                    }
                    2 => {
                        late.push((now + step.pause * 3, step.ttl));
                        deadline.note_unanswered(MS(step.ttl));
                    }
                    _ => deadline.note_unanswered(MS(step.ttl)),
                }
                prop_assert!(deadline.at() <= at(expiry));
            }
        }
    }
}
