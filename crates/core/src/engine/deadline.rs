//! When a guard stops believing: pure arithmetic, counted from the moment of sending.

use std::time::Duration;

use crate::{engine::clock::Moment, types::ttl::margin};

/// The local deadline of one lease.
///
/// It is always earlier than the store's expiry of the same lease: the store starts counting when it *receives* a request,
/// this starts when the request is *sent*, and a margin is taken off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Moment,
    /// When the store has let go at the latest, if it received everything about when that was sent.
    latest: Moment,
    /// The shortest TTL among requests of this owner (renewals, and attempts before the one that was granted) whose outcome
    /// was never learned. Such a request may still reach the store late and cut a longer lease short, so no later
    /// confirmation is believed beyond it.
    cap: Option<Duration>,
}

impl Deadline {
    /// Of a fresh grant.
    pub(crate) fn granted(sent: Moment, valid_for: Duration) -> Self {
        Self {
            at: end(sent, valid_for),
            latest: sent + valid_for,
            cap: None,
        }
    }

    /// As it is, but believed no longer than if it had been sent then.
    pub(crate) fn counted_from(mut self, from: Moment, valid_for: Duration) -> Self {
        self.at = self.at.min(end(from, valid_for));
        self
    }

    /// When it falls.
    pub(crate) const fn at(&self) -> Moment {
        self.at
    }

    /// When the store has let go, whatever became of what was never answered.
    pub(crate) const fn latest(&self) -> Moment {
        self.latest
    }

    /// A renewal is about to be sent: it may shorten the lease, and whether it did may stay unknown.
    pub(crate) fn sending(&mut self, sent: Moment, ttl: Duration) {
        self.at = self.at.min(end(sent, ttl));
        self.latest = self.latest.max(sent + ttl);
    }

    /// The store confirmed it: the only way up.
    pub(crate) fn confirmed(&mut self, sent: Moment, valid_for: Duration) {
        self.at = end(sent, self.believed(valid_for));
        let latest = sent + valid_for;
        self.latest = match self.cap {
            None => latest,
            Some(_) => latest.max(self.latest),
        };
    }

    /// What is believed of a renewal that the store confirms for this long.
    pub(crate) fn believed(&self, valid_for: Duration) -> Duration {
        self.cap.map_or(valid_for, |cap| cap.min(valid_for))
    }

    /// What a request that was never answered may still cut the lease to.
    pub(crate) const fn cap(&self) -> Option<Duration> {
        self.cap
    }

    /// Nothing was heard of it.
    pub(crate) fn unknown(&mut self, ttl: Duration) {
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
    fn counted_from_sending_less_the_margin() {
        assert_eq!(Deadline::granted(at(1000), MS(10_000)).at(), at(10_000));
        assert_eq!(Deadline::granted(at(1000), MS(200)).at(), at(1150));
        assert_eq!(Deadline::granted(at(1000), MS(60)).at(), at(1030));
    }

    #[test]
    fn counted_from_before_sending_where_the_store_says_so() {
        let deadline = |from| {
            let granted = Deadline::granted(at(5000), MS(10_000));
            granted.counted_from(at(from), MS(10_000))
        };
        assert_eq!(deadline(4000).at(), at(13_000));
        assert_eq!(deadline(6000).at(), at(14_000));
        assert_eq!(
            deadline(4000).latest(),
            at(15_000),
            "the store lets go later"
        );
    }

    #[test]
    fn sending_only_lowers_and_confirming_raises() {
        let mut deadline = Deadline::granted(at(0), MS(10_000));
        deadline.sending(at(3000), MS(10_000));
        assert_eq!(deadline.at(), at(9000));
        deadline.sending(at(4000), MS(1000));
        assert_eq!(deadline.at(), at(4900));
        deadline.confirmed(at(4000), MS(1000));
        assert_eq!(deadline.at(), at(4900));
        deadline.sending(at(4500), MS(10_000));
        assert_eq!(deadline.at(), at(4900));
        deadline.confirmed(at(4500), MS(10_000));
        assert_eq!(deadline.at(), at(13_500));
    }

    /// A store that applies requests in any order at any later time, some of them never, and whose answers may be lost.
    #[derive(Clone, Debug)]
    struct Step {
        ttl: u64,
        pause: u64,
        delay: u64,
        /// 0 = applied and answered, 1 = applied in time but unanswered, 2 = applied much later, 3 = never applied.
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
        /// Whatever was sent, lost or delayed: as long as the guard believes, the store has not let go.
        #[test]
        fn the_store_never_lets_go_first(first in 100u64..20_000, steps in steps()) {
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
                    break; // lost: it is sticky, the guard stops here
                }
                prop_assert!(now < expiry, "believed at {now}, gone at {expiry}");
                deadline.sending(at(now), MS(step.ttl));
                let arrives = now + step.delay;
                match step.fate {
                    0 => {
                        if arrives < expiry {
                            expiry = arrives + step.ttl;
                            now = arrives;
                            if at(now) < deadline.at() {
                                deadline.confirmed(at(arrives - step.delay), MS(step.ttl));
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
                        deadline.unknown(MS(step.ttl));
                    }
                    2 => {
                        late.push((now + step.pause * 3, step.ttl));
                        deadline.unknown(MS(step.ttl));
                    }
                    _ => deadline.unknown(MS(step.ttl)),
                }
                prop_assert!(deadline.at() <= at(expiry));
            }
        }
    }
}
