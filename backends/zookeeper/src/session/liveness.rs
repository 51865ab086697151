//! Computes the moment until which a session can be trusted, from the requests that were answered.
//!
//! Invariant: no leader ends the session before `trusted_until`. This module must never count an
//! answer that does not prove this.
//!
//! # Why an answer alone proves nothing
//! The leader ends a session when it has learned of no request of that session for the session
//! timeout. Two facts about the servers (read in the source of 3.8) limit the meaning of an answer:
//!
//! - A leader without followers still answers reads and `sync` until `syncLimit` ticks have passed
//!   (ZOOKEEPER-1675). Only a committed write shows that a quorum still followed the leader.
//! - A request extends its session at the server that received it. The leader learns of the request
//!   from that server's next answer to a ping, and the leader sends a ping every half tick. A write
//!   that passes the leader does not extend the session at the leader.
//!
//! # The chain
//! So a proof is a chain of three requests on one connection:
//!
//! - **A** is answered.
//! - **W1** passes the leader. It is sent a tick after A's answer, and is answered.
//! - **W2** is a write. It is sent after W1's answer, and is committed.
//!
//! In the tick after A, the leader has sent a ping. The links between servers keep the order of
//! messages. So W1's answer reached our server after that ping, and W2 went to the leader after the
//! answer to the ping. The answer to the ping reported A to the leader. W2's commit shows that this
//! leader still led. This leader keeps the session for the whole timeout, counted from the sending
//! of A or later. A later leader begins after W2 was sent, and again gives every session the whole
//! timeout.
//!
//! When a client opens a session, or reconnects to its session, the leader itself extends the
//! session. Then neither A nor W1 is needed. The leader extends the session after the last answer
//! on the earlier connection.

use std::{collections::VecDeque, time::Duration};

use distlock_core::Moment;

/// The limit of stored requests for one session timeout.
const REMEMBERED: u32 = 64;

/// The answered requests of one connection, and what they prove.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// The time for which the leader keeps a session without any reported request.
    timeout: Duration,
    /// The servers' tick or a longer time.
    tick: Duration,
    /// A moment at or before the one at which the leader itself extended the session, when the
    /// present connection was opened.
    opened: Moment,
    /// Requests that passed the leader, oldest first.
    answered: VecDeque<AnsweredRequest>,
    /// The time at which the newest answered request was sent, on any connection.
    newest_answered: Moment,
    /// The time at which the newest committed write was sent.
    newest_committed: Moment,
    trusted_until: Moment,
}

/// The times of a request that passed the leader.
#[derive(Clone, Copy, Debug)]
struct AnsweredRequest {
    sent_at: Moment,
    answered_at: Moment,
}

impl Liveness {
    /// Creates the state for a session that was just opened, at `opened` or later, by a committed
    /// request.
    pub(crate) fn new(timeout: Duration, tick: Duration, opened: Moment) -> Self {
        Self {
            timeout,
            tick,
            opened,
            answered: VecDeque::new(),
            newest_answered: opened,
            newest_committed: opened,
            trusted_until: opened + max_trust(timeout),
        }
    }

    /// Records a new connection: a chain cannot span two connections.
    pub(crate) fn note_reconnect(&mut self) {
        // The requests before may have gone to another server, whose answers to pings are not
        // ordered with those of the present one.
        self.answered.clear();
        // The leader extends the session at some moment of the reconnect, which the client library
        // does not report. That moment is after the last answer on the old connection, and so
        // after this sending.
        self.opened = self.newest_answered;
    }

    /// Records the answer, at `now`, to a request that passed the leader and was sent at `sent`.
    /// `committed` = the request was a write.
    pub(crate) fn note_answer(&mut self, sent: Moment, now: Moment, committed: bool) {
        if committed {
            self.newest_committed = self.newest_committed.max(sent);
            // The last tenth allows for a leader whose clock runs faster than this host's.
            let extended = self.proven_extension(sent) + self.timeout * 9 / 10;
            let until = extended.min(sent + max_trust(self.timeout));
            // Two writes may be in flight, and the answer to the one with the older chain may come
            // last. It proves less and takes nothing back.
            self.trusted_until = self.trusted_until.max(until);
        }
        self.newest_answered = self.newest_answered.max(sent);
        // Only now, because a request cannot be A or W1 of its own chain.
        self.remember(sent, now);
    }

    /// Returns the time at which the newest answered request was sent.
    pub(crate) const fn newest_answered(&self) -> Moment {
        self.newest_answered
    }

    /// Returns the time at which the newest committed write was sent.
    pub(crate) const fn newest_committed(&self) -> Moment {
        self.newest_committed
    }

    /// Returns the moment until which the session can be trusted.
    pub(crate) const fn trusted_until(&self) -> Moment {
        self.trusted_until
    }

    /// Returns the time in which one request must pass the leader, so that every write can complete
    /// a chain.
    pub(crate) fn period(&self) -> Duration {
        // Each of A and W1 may be sent up to one period too early. So two of eight parts are lost
        // at most, and `longest_lease` counts on the other six.
        self.spare() / 8
    }

    /// Returns the shortest time of trust that is worth a grant. Regular requests keep the session
    /// trusted for longer, unless the process or the servers stood still.
    pub(crate) fn least_trust(&self) -> Duration {
        self.spare() / 4
    }

    /// Returns the pause before the next write, after which that write proves the session for
    /// `needed`.
    pub(crate) fn pause_before_write(&self, now: Moment, needed: Duration) -> Duration {
        let ready = |it: &AnsweredRequest| now.max(it.answered_at + self.tick);
        let serves =
            |it: &&AnsweredRequest| it.sent_at + self.timeout * 9 / 10 > ready(it) + needed;
        let begun = self.answered.iter().find(serves);
        // If no request can begin such a chain, the next write is sent at once and begins one.
        begun.map_or(Duration::ZERO, |it| ready(it).since(now))
    }

    /// Returns a moment at or before the leader's last extension of the session. The proof is a
    /// committed write that was sent at `sent`.
    fn proven_extension(&self, sent: Moment) -> Moment {
        let newest_before = |limit: Moment| {
            let answered = self.answered.iter().rev();
            // Only the answer counts: a request that was sent in time and answered later may have
            // been processed after `limit`.
            answered.into_iter().find(|it| it.answered_at <= limit)
        };
        let chain = newest_before(sent).and_then(|w1| newest_before(w1.sent_at - self.tick));
        // The opening of the connection is a proof as well, and may be newer than A.
        chain.map_or(self.opened, |a| a.sent_at.max(self.opened))
    }

    /// Stores a request for later chains, unless another request was sent just before it.
    fn remember(&mut self, sent_at: Moment, answered_at: Moment) {
        let newest = self.answered.back().map(|newest| newest.sent_at);
        // Answers may come in another order than requests: an older sending is not stored either,
        // so the list stays sorted.
        if newest.is_some_and(|newest| sent_at < newest + self.timeout / REMEMBERED) {
            return;
        }
        self.answered.push_back(AnsweredRequest {
            sent_at,
            answered_at,
        });
        // The first request is dropped when the second one can begin every later chain in its
        // place. The last request may be answered after the next write is sent, and is then no W1.
        // So the request before it must be able to be W1.
        while let [_, second, .., before, _] = self.answered.make_contiguous()
            && second.answered_at + self.tick <= before.sent_at
        {
            self.answered.pop_front();
        }
    }

    /// Returns the part of a session timeout that remains after waiting for a chain.
    fn spare(&self) -> Duration {
        (self.timeout * 9 / 10).saturating_sub(self.tick)
    }
}

/// Returns the longest lease of any grant.
///
/// Regular requests always prove at least this much, so each renewal grants about the same lease.
/// The chain of a write has two earlier requests. These two requests are a tick apart, and each was
/// sent at most one [period](Liveness::period) before it was needed. A new connection proves more,
/// but the next renewal would not.
pub(crate) fn longest_lease(timeout: Duration, tick: Duration) -> Duration {
    let regular = (timeout * 9 / 10).saturating_sub(tick) * 3 / 4;
    let millis = max_trust(timeout).min(regular).as_millis();
    // Leases are whole milliseconds.
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// The longest time that a session is trusted after the sending of a write.
pub(crate) fn max_trust(timeout: Duration) -> Duration {
    timeout * 2 / 3
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const TICK: Duration = Duration::from_secs(2);

    fn at(ms: u64) -> Moment {
        Moment::from_boot(Duration::from_millis(1_000_000 + ms))
    }

    fn chain() -> Liveness {
        Liveness::new(TIMEOUT, TICK, at(0))
    }

    /// Records a request that was sent at this millisecond and answered 10 ms later.
    fn answer(chain: &mut Liveness, sent: u64, committed: bool) {
        chain.note_answer(at(sent), at(sent + 10), committed);
    }

    #[test]
    fn an_opened_session_is_trusted() {
        let mut chain = chain();
        assert_eq!(
            chain.trusted_until(),
            at(6_666) + Duration::from_micros(666) + Duration::from_nanos(666)
        );
        answer(&mut chain, 5_000, true);
        assert_eq!(chain.trusted_until(), at(9_000));
    }

    #[test]
    fn reads_prove_nothing() {
        let mut chain = chain();
        let before = chain.trusted_until();
        for sent in (0..60).map(|second| second * 1_000) {
            answer(&mut chain, sent, false);
        }
        assert_eq!(chain.trusted_until(), before);
    }

    #[test]
    fn a_write_needs_a_request_a_tick_before_another_one() {
        let mut chain = chain();
        answer(&mut chain, 20_000, false);
        answer(&mut chain, 21_000, false);
        // No request was sent a tick after the answer to another one.
        answer(&mut chain, 21_500, true);
        assert_eq!(chain.trusted_until(), at(9_000));
        answer(&mut chain, 22_010, false);
        answer(&mut chain, 22_015, true);
        // The last write was sent before the answer to the request that would be its W1.
        assert_eq!(chain.trusted_until(), at(9_000));
        answer(&mut chain, 22_020, true);
        assert_eq!(
            chain.trusted_until(),
            at(22_020) + max_trust(TIMEOUT).min(Duration::from_millis(6_980))
        );
    }

    #[test]
    fn a_write_that_follows_a_long_silence_proves_little() {
        let mut chain = chain();
        answer(&mut chain, 97_000, false);
        answer(&mut chain, 100_000, false);
        // The process stood still for 9.5 s. Then its write commits.
        answer(&mut chain, 109_500, true);
        assert_eq!(chain.trusted_until(), at(106_000));
    }

    #[test]
    fn a_chain_does_not_reach_over_to_the_next_connection() {
        let mut chain = chain();
        answer(&mut chain, 20_000, false);
        answer(&mut chain, 24_000, false);
        chain.note_reconnect();
        // The leader extended the session when the connection was opened, after the last answer on
        // the connection before.
        answer(&mut chain, 29_000, true);
        assert_eq!(chain.trusted_until(), at(33_000));
        answer(&mut chain, 30_000, true);
        assert_eq!(chain.trusted_until(), at(33_000));
        answer(&mut chain, 31_050, false);
        answer(&mut chain, 31_070, true);
        assert!(chain.trusted_until() > at(37_500), "{chain:?}");
    }

    #[test]
    fn regular_requests_keep_a_session_trusted() {
        for (timeout, tick) in [
            (10_000, 2_000),
            (4_000, 2_000),
            (5_000, 250),
            (60_000, 2_000),
        ] {
            let mut chain = Liveness::new(
                Duration::from_millis(timeout),
                Duration::from_millis(tick),
                at(0),
            );
            let period = u64::try_from(chain.period().as_millis()).unwrap();
            for step in 1..2_000 {
                let sent = step * period;
                answer(&mut chain, sent, step % 2 == 0);
                if step > 50 && step % 2 == 0 {
                    let lease = chain.trusted_until().since(at(sent));
                    // Each of the three requests took a while.
                    let longest = longest_lease(chain.timeout, chain.tick);
                    let least = longest - Duration::from_millis(30);
                    assert!(lease >= least, "{timeout} {tick} {step}: {lease:?}");
                }
                let left = chain.trusted_until().since(at(sent + 10));
                if step > 50 {
                    assert!(
                        left >= chain.least_trust(),
                        "{timeout} {tick} {step}: {left:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn few_of_many_requests_are_stored() {
        let mut chain = chain();
        for sent in 0..60_000 {
            chain.note_answer(at(sent), at(sent + 3), sent % 3 == 0);
        }
        assert!(
            chain.answered.len() < REMEMBERED as usize,
            "{}",
            chain.answered.len()
        );
        assert!(chain.trusted_until() >= at(65_000));
    }

    #[test]
    fn after_a_silence_the_next_proof_takes_a_tick() {
        let mut chain = chain();
        let needed = chain.least_trust();
        assert_eq!(
            chain.pause_before_write(at(100_000), needed),
            Duration::ZERO
        );
        answer(&mut chain, 100_000, true);
        assert_eq!(chain.pause_before_write(at(100_010), needed), TICK);
        assert_eq!(
            chain.pause_before_write(at(102_010), needed),
            Duration::ZERO
        );
        answer(&mut chain, 102_010, true);
        answer(&mut chain, 102_020, true);
        assert!(chain.trusted_until() >= at(102_030) + needed, "{chain:?}");
    }
}
