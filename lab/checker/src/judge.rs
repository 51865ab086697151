//! A check of logins while they happen, for runs whose history would be too long to keep.
//!
//! The memory grows with the number of accounts, never with the length of the run.

use std::collections::HashMap;

use distlock_kickout::{Generation, SessionId, Uid, UserRecord};

use crate::{
    evidence::history::{Seen, What},
    report::{Invariant, Report, Rules, micros},
};

/// Checks the observations of clients against I1 to I4 during the run.
///
/// The clients of an account compete with logins until all logins are answered. Then the caller
/// marks a quiet moment with [`mark_quiet`](Self::mark_quiet). The judge keeps the current sessions
/// and the highest generation of each account. Times are microseconds of any clock. With a clock
/// that stops while the machine does not run, a pause of the machine causes no false violation.
///
/// ```
/// use distlock_checker::{Judge, Rules};
/// let judge = Judge::new(Rules::default());
/// assert!(judge.report().is_clean());
/// ```
#[derive(Debug, Default)]
pub struct Judge {
    rules: Rules,
    accounts: HashMap<Uid, Account>,
    report: Report,
}

#[derive(Debug, Default)]
struct Account {
    /// The sessions whose clients are logged in.
    inside: Vec<PresentSession>,
    /// The highest generation that any client got.
    highest: Generation,
    /// The highest generation at the last quiet moment.
    floor: Generation,
    /// Whether the next quiet moment needs a session.
    occupied: bool,
}

#[derive(Debug)]
struct PresentSession {
    client: u64,
    session: SessionId,
    r#gen: Generation,
    /// Time since which the account has had as many newer sessions as the policy allows. From this
    /// time on, this session has to end.
    overtaken: Option<u64>,
}

impl Judge {
    /// Makes a judge without observations. The judge applies only two of the rules:
    /// [`Rules::limit`] and [`Rules::settle_time`].
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// The report so far.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Number of the account's clients that count as logged in.
    #[must_use]
    pub fn logged_in(&self, uid: &Uid) -> usize {
        self.accounts.get(uid).map_or(0, |it| it.inside.len())
    }

    /// Adds an observation of a client.
    pub fn observe(&mut self, seen: &Seen) {
        let account = self.accounts.entry(seen.uid.clone()).or_default();
        match &seen.what {
            What::LoginOk { session, r#gen } => {
                let unique = account.inside.iter().all(|it| it.r#gen != *r#gen);
                self.report
                    .expect(Invariant::I4, unique && *r#gen > account.floor, || {
                        format!(
                            "{} of {} was given generation {}, and {} were given before",
                            seen.device, seen.uid, r#gen, account.highest
                        )
                    });
                account.highest = account.highest.max(*r#gen);
                account.occupied = true;
                account.inside.push(PresentSession {
                    client: seen.client,
                    session: *session,
                    r#gen: *r#gen,
                    overtaken: None,
                });
                account.note_overtaken(seen.at_us, self.rules.limit);
            }
            What::Overtaken => account.occupied = true,
            What::Told { .. } | What::Closed | What::Leaves => {
                if let Some(at) = account
                    .inside
                    .iter()
                    .position(|it| it.client == seen.client)
                {
                    let gone = account.inside.remove(at);
                    self.check_end(&seen.uid, &gone, seen.at_us);
                }
                // If the last client left by itself, the account needs no session at the next quiet
                // moment.
                if matches!(seen.what, What::Leaves) && self.logged_in(&seen.uid) == 0 {
                    let account = self.accounts.entry(seen.uid.clone()).or_default();
                    account.occupied = false;
                }
            }
            _ => {}
        }
    }

    /// Marks a quiet moment: all logins of the account are answered, and the settle time has passed
    /// or is not needed. `record` is the account's record at this moment.
    pub fn mark_quiet(&mut self, uid: &Uid, at_us: u64, record: Option<&UserRecord>) {
        let limit = self.rules.limit;
        let account = self.accounts.entry(uid.clone()).or_default();
        let inside = std::mem::take(&mut account.inside);
        let (highest, occupied) = (account.highest, account.occupied);
        account.floor = highest;
        let names = |inside: &[PresentSession]| {
            let names: Vec<_> = inside
                .iter()
                .map(|it| format!("{} (generation {})", it.session, it.r#gen))
                .collect();
            names.join(", ")
        };
        let report = &mut self.report;
        report.expect(Invariant::I1, inside.len() <= limit, || {
            format!(
                "at {at_us} us {uid} has more than {limit}: {}",
                names(&inside)
            )
        });
        report.expect(Invariant::I2, !occupied || !inside.is_empty(), || {
            format!("at {at_us} us nobody is left of the clients of {uid}: no winner")
        });
        if let Some(newest) = inside.iter().map(|it| it.r#gen).max() {
            report.expect(Invariant::I3, newest == highest, || {
                format!(
                    "at {at_us} us generation {newest} of {uid} is left, and {highest} was granted"
                )
            });
        }
        if let Some(record) = record {
            report.expect(Invariant::I4, record.r#gen >= highest, || {
                format!(
                    "the record of {uid} is of generation {}, and {highest} was granted",
                    record.r#gen
                )
            });
            let mut named: Vec<_> = record.sessions().map(|(_, session)| session).collect();
            let mut left: Vec<_> = inside.iter().map(|it| it.session).collect();
            named.sort();
            left.sort();
            report.expect(Invariant::I3, named == left, || {
                let named: Vec<_> = named.iter().map(ToString::to_string).collect();
                format!(
                    "at {at_us} us the record of {uid} names [{}], and in are [{}]",
                    named.join(", "),
                    names(&inside)
                )
            });
        }
        if let Some(account) = self.accounts.get_mut(uid) {
            account.inside = inside;
        }
    }

    /// Checks I1 for an ended session: the session was not active beside newer sessions for longer
    /// than the settle time.
    fn check_end(&mut self, uid: &Uid, gone: &PresentSession, at_us: u64) {
        let allowed = micros(self.rules.settle_time());
        let beside = gone
            .overtaken
            .map_or(0, |since| at_us.saturating_sub(since));
        self.report.expect(Invariant::I1, beside <= allowed, || {
            format!(
                "session {} of {uid} (generation {}) stayed in for {beside} us beside newer ones",
                gone.session, gone.r#gen
            )
        });
    }
}

impl Account {
    /// Notes for each session the time at which the policy stopped allowing it.
    fn note_overtaken(&mut self, at_us: u64, limit: usize) {
        let generations: Vec<_> = self.inside.iter().map(|it| it.r#gen).collect();
        for it in &mut self.inside {
            let newer = generations
                .iter()
                .filter(|other| **other > it.r#gen)
                .count();
            if newer >= limit {
                it.overtaken.get_or_insert(at_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock_kickout::{Code, Device, NodeId};
    use uuid::Uuid;

    use super::*;

    fn session(number: u64) -> SessionId {
        SessionId::from_uuid(Uuid::from_u128(u128::from(number)))
    }

    fn seen(at_us: u64, client: u64, what: What) -> Seen {
        Seen {
            at_us,
            client,
            uid: uid(),
            device: Device::new(format!("device{client}")).unwrap(),
            node: NodeId::new("n1").unwrap(),
            what,
        }
    }

    fn uid() -> Uid {
        Uid::new("anna").unwrap()
    }

    /// The client's login is confirmed. The client's number is also the number of its generation
    /// and of its session.
    fn logged_in(at_us: u64, client: u64) -> Seen {
        let r#gen = Generation::new(client);
        let session = session(client);
        seen(at_us, client, What::LoginOk { session, r#gen })
    }

    fn got_notice(at_us: u64, client: u64) -> Seen {
        let code = Code::Superseded;
        seen(at_us, client, What::Told { code })
    }

    /// A record with this generation, which names one session.
    fn record(r#gen: u64, named: u64) -> UserRecord {
        let text = format!(
            r#"{{"v":1,"gen":{gen},"slots":{{"main":{{
                "node":"n1","boot":1,"session":"{}","gen":{gen},
                "device":"d","class":"","since_ms":0}}}}}}"#,
            session(named)
        );
        UserRecord::parse(&uid(), text.as_bytes()).unwrap()
    }

    /// The violations of a sequence of observations, followed by these quiet moments.
    fn violations_of(story: &[Seen], settled: &[(u64, Option<UserRecord>)]) -> Vec<Invariant> {
        let mut judge = Judge::new(Rules::default());
        story.iter().for_each(|seen| judge.observe(seen));
        for (at, record) in settled {
            judge.mark_quiet(&uid(), *at, record.as_ref());
        }
        judge.report().violated()
    }

    #[test]
    fn a_correct_sequence_has_no_violation() {
        let story = [
            logged_in(10, 1),
            logged_in(20, 3),
            got_notice(30, 1),
            seen(40, 2, What::Overtaken),
            logged_in(50, 4),
            got_notice(60, 3),
            seen(70, 9, What::Busy),
        ];
        assert_eq!(violations_of(&story, &[(80, Some(record(4, 4)))]), []);
        // An account whose login was refused needs no winner.
        assert_eq!(violations_of(&[seen(1, 1, What::Busy)], &[(2, None)]), []);
        // An account whose client left needs no winner either.
        assert_eq!(
            violations_of(&[logged_in(1, 1), seen(2, 1, What::Leaves)], &[(3, None)]),
            []
        );
    }

    #[test]
    fn two_sessions_at_a_quiet_moment_break_i1() {
        let story = [logged_in(10, 1), logged_in(20, 2)];
        assert_eq!(violations_of(&story, &[(30, None)]), [Invariant::I1]);
    }

    #[test]
    fn a_notice_that_comes_too_late_breaks_i1() {
        let rules = Rules::default();
        let late = u64::try_from((rules.settle_time() + rules.slack).as_micros()).unwrap();
        let story = [logged_in(10, 1), logged_in(20, 2), got_notice(20 + late, 1)];
        assert_eq!(violations_of(&story, &[(20 + late, None)]), [Invariant::I1]);
        let story = [
            logged_in(10, 1),
            logged_in(20, 2),
            got_notice(20 + late / 2, 1),
        ];
        assert_eq!(violations_of(&story, &[(20 + late, None)]), []);
        assert!(rules.settle_time() > Duration::ZERO);
    }

    #[test]
    fn an_account_without_a_session_left_breaks_i2() {
        let story = [
            logged_in(10, 1),
            logged_in(20, 2),
            got_notice(30, 1),
            got_notice(40, 2),
        ];
        assert_eq!(violations_of(&story, &[(50, None)]), [Invariant::I2]);
        let story = [seen(10, 1, What::Overtaken), seen(20, 2, What::Busy)];
        assert_eq!(violations_of(&story, &[(50, None)]), [Invariant::I2]);
    }

    #[test]
    fn a_session_that_is_not_the_last_granted_one_breaks_i3() {
        let story = [logged_in(10, 1), logged_in(20, 2), got_notice(30, 2)];
        assert_eq!(violations_of(&story, &[(50, None)]), [Invariant::I3]);
        let story = [logged_in(10, 1), logged_in(20, 2), got_notice(30, 1)];
        assert_eq!(
            violations_of(&story, &[(50, Some(record(2, 7)))]),
            [Invariant::I3]
        );
    }

    #[test]
    fn generations_that_fall_break_i4() {
        let mut judge = Judge::new(Rules::default());
        judge.observe(&logged_in(10, 5));
        judge.mark_quiet(&uid(), 20, None);
        judge.observe(&got_notice(30, 5));
        judge.observe(&logged_in(40, 3));
        assert_eq!(judge.report().violated(), [Invariant::I4]);
        let story = [logged_in(10, 5)];
        assert_eq!(
            violations_of(&story, &[(20, Some(record(4, 5)))]),
            [Invariant::I4]
        );
    }
}
