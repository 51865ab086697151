//! Until when a session can be trusted, computed from the requests that were answered.
//!
//! Invariant: no leader ends the session before `trusted_until`. This module must never count an
//! answer that does not prove that.
//!
//! # Why an answer alone proves nothing
//! The leader ends a session when it has heard nothing of the session for the session timeout. Two
//! facts of the servers (read in the source of 3.8) limit what an answer tells a client:
//!
//! - A leader that its followers have left goes on answering reads and `sync` until `syncLimit`
//!   ticks are over (ZOOKEEPER-1675). Only a committed write shows that a quorum still followed it.
//! - A request extends its session at the server that received it. The leader learns of it from
//!   that server's next answer to a ping, and the leader sends a ping every half tick. A write that
//!   passes the leader does not extend the session at the leader.
//!
//! # The chain
//! So a proof is a chain of three requests on one connection:
//!
//! - **A** is answered.
//! - **W1** passes the leader. It is sent a tick after A's answer, and is answered.
//! - **W2** is a write. It is sent after W1's answer, and is committed.
//!
//! In the tick after A, the leader has sent a ping. The links between servers keep their order. So
//! W1's answer reached our server after that ping, and W2 went to the leader after the answer to
//! the ping. That answer to the ping told the leader of A. W2's commit shows that this leader still
//! led. It keeps the session for the whole timeout, counted from the sending of A or later. A later
//! leader gives every session the whole timeout again, and begins after W2 was sent.
//!
//! Opening a session, and coming back to it on another connection, need no A and no W1, because the
//! leader itself extends the session then. That happens after the last answer on the connection
//! before.

use std::{collections::VecDeque, time::Duration};

use distlock_core::Moment;

/// How many answered requests are remembered for each session timeout at most.
const REMEMBERED: u32 = 64;

/// The answered requests of one connection, and what they prove.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// How long the leader keeps a session that it hears nothing of.
    timeout: Duration,
    /// The servers' tick, or longer.
    tick: Duration,
    /// The leader itself extended the session at this moment or later, when the present connection
    /// was opened.
    opened: Moment,
    /// Requests that passed the leader, oldest first.
    answered: VecDeque<Answered>,
    /// When the newest answered request was sent, on any connection.
    heard: Moment,
    /// When the newest committed write was sent.
    committed: Moment,
    trusted_until: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    sent: Moment,
    answered: Moment,
}

impl Liveness {
    /// The state right after a session was opened, at `opened` or later, by a committed request.
    pub(crate) fn new(timeout: Duration, tick: Duration, opened: Moment) -> Self {
        Self {
            timeout,
            tick,
            opened,
            answered: VecDeque::new(),
            heard: opened,
            committed: opened,
            trusted_until: opened + trust(timeout),
        }
    }

    /// Notes a new connection: a chain cannot span two connections.
    pub(crate) fn reconnected(&mut self) {
        self.answered.clear();
        self.opened = self.heard;
    }

    /// Notes the answer to a request that passed the leader. `committed` = it was a write.
    pub(crate) fn answered(&mut self, sent: Moment, now: Moment, committed: bool) {
        if committed {
            self.committed = self.committed.max(sent);
            let extended = self.extended_before(sent) + self.timeout * 9 / 10;
            let until = extended.min(sent + trust(self.timeout));
            self.trusted_until = self.trusted_until.max(until);
        }
        self.heard = self.heard.max(sent);
        self.remember(sent, now);
    }

    /// When the newest answered request was sent.
    pub(crate) const fn heard(&self) -> Moment {
        self.heard
    }

    /// When the newest committed write was sent.
    pub(crate) const fn committed(&self) -> Moment {
        self.committed
    }

    pub(crate) const fn trusted_until(&self) -> Moment {
        self.trusted_until
    }

    /// How often a request must pass the leader, so that every write can complete a chain.
    pub(crate) fn period(&self) -> Duration {
        self.spare() / 8
    }

    /// The shortest trust that is worth a grant. Less remains only after the process or the servers
    /// stood still.
    pub(crate) fn least_trust(&self) -> Duration {
        self.spare() / 4
    }

    /// How long to wait before the next write, so that its proof lasts for `needed` from then on.
    pub(crate) fn next_write_in(&self, now: Moment, needed: Duration) -> Duration {
        let ready = |it: &Answered| now.max(it.answered + self.tick);
        let serves = |it: &&Answered| it.sent + self.timeout * 9 / 10 > ready(it) + needed;
        let begun = self.answered.iter().find(serves);
        // No request can begin a chain, so the next write becomes the first request of one.
        begun.map_or(Duration::ZERO, |it| ready(it).since(now))
    }

    /// A moment at or before the leader's last extension of the session, as proven by a committed
    /// write that was sent at `sent`.
    fn extended_before(&self, sent: Moment) -> Moment {
        let newest_before = |limit: Moment| {
            let answered = self.answered.iter().rev();
            answered.into_iter().find(|it| it.answered <= limit)
        };
        let chain = newest_before(sent).and_then(|w1| newest_before(w1.sent - self.tick));
        chain.map_or(self.opened, |a| a.sent.max(self.opened))
    }

    fn remember(&mut self, sent: Moment, answered: Moment) {
        let newest = self.answered.back().map(|newest| newest.sent);
        if newest.is_some_and(|newest| sent < newest + self.timeout / REMEMBERED) {
            return;
        }
        self.answered.push_back(Answered { sent, answered });
        // The first request is useless when the second one can begin every chain to come. The
        // newest request may be answered only after the next write is sent, so the one before it
        // counts.
        while let [_, second, .., before, _] = self.answered.make_contiguous()
            && second.answered + self.tick <= before.sent
        {
            self.answered.pop_front();
        }
    }

    /// The part of a session timeout that is left after waiting for a chain.
    fn spare(&self) -> Duration {
        (self.timeout * 9 / 10).saturating_sub(self.tick)
    }
}

/// The longest lease that a grant has.
///
/// Regular requests keep at least this much proven, so a guard shows about the same lease each
/// time. Two earlier requests prove a write. They are a tick apart, and each was sent at most one
/// [period](Liveness::period) before it was needed. A new connection proves more, but the next
/// renewal would not.
pub(crate) fn longest_lease(timeout: Duration, tick: Duration) -> Duration {
    let regular = (timeout * 9 / 10).saturating_sub(tick) * 3 / 4;
    let millis = trust(timeout).min(regular).as_millis();
    // Leases are whole milliseconds.
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// How long a write is trusted after it was sent, at most.
pub(crate) fn trust(timeout: Duration) -> Duration {
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

    /// Each request takes 10 ms.
    fn answer(chain: &mut Liveness, sent: u64, committed: bool) {
        chain.answered(at(sent), at(sent + 10), committed);
    }

    #[test]
    fn opening_a_session_proves_it() {
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
        // Neither of the two was sent a tick after the answer to another one.
        answer(&mut chain, 21_500, true);
        assert_eq!(chain.trusted_until(), at(9_000));
        answer(&mut chain, 22_010, false);
        answer(&mut chain, 22_015, true);
        // The write was sent before the answer to the request that would be W1.
        assert_eq!(chain.trusted_until(), at(9_000));
        answer(&mut chain, 22_020, true);
        assert_eq!(
            chain.trusted_until(),
            at(22_020) + trust(TIMEOUT).min(Duration::from_millis(6_980))
        );
    }

    #[test]
    fn a_write_that_follows_a_long_silence_proves_little() {
        let mut chain = chain();
        answer(&mut chain, 97_000, false);
        answer(&mut chain, 100_000, false);
        // The process stood still for 9.5 s; then its write commits.
        answer(&mut chain, 109_500, true);
        assert_eq!(chain.trusted_until(), at(106_000));
    }

    #[test]
    fn a_chain_does_not_reach_over_to_the_next_connection() {
        let mut chain = chain();
        answer(&mut chain, 20_000, false);
        answer(&mut chain, 24_000, false);
        chain.reconnected();
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
    fn little_is_remembered_of_many_requests() {
        let mut chain = chain();
        for sent in 0..60_000 {
            chain.answered(at(sent), at(sent + 3), sent % 3 == 0);
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
        assert_eq!(chain.next_write_in(at(100_000), needed), Duration::ZERO);
        answer(&mut chain, 100_000, true);
        assert_eq!(chain.next_write_in(at(100_010), needed), TICK);
        assert_eq!(chain.next_write_in(at(102_010), needed), Duration::ZERO);
        answer(&mut chain, 102_010, true);
        answer(&mut chain, 102_020, true);
        assert!(chain.trusted_until() >= at(102_030) + needed, "{chain:?}");
    }
}
