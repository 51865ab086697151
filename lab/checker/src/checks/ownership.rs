//! Owners and winners of an account: I1, I2, I3.

use distlock_kickout::Uid;

use crate::{
    check::CheckContext,
    evidence::{history::Fact, sessions::SessionLife},
    report::{Invariant::*, micros},
};

pub(crate) fn check(context: &mut CheckContext<'_>) {
    let sessions = context.sessions;
    for (uid, lives) in sessions.by_uid() {
        sessions_do_not_overlap(context, &lives);
        last_grants_are_left(context, uid, &lives);
        for fact in &context.history.facts {
            if let Fact::Quiet { uid: quiet, at_us } = fact
                && quiet == uid
            {
                last_grant_wins_at_quiet_moment(context, &lives, *at_us);
            }
        }
    }
    for (uid, record) in &context.history.records {
        let named = record.slots.len();
        context.report.expect(I1, named <= context.rules.limit, || {
            format!("the record of {uid} names {named} sessions")
        });
    }
}

/// I1: after the settle time no more sessions are active than the policy allows.
fn sessions_do_not_overlap(context: &mut CheckContext<'_>, lives: &[&SessionLife<'_>]) {
    let allowed = micros(context.rules.settle_time());
    for newcomer in lives {
        let Some(from) = newcomer.admitted else {
            continue;
        };
        let still = |life: &SessionLife<'_>| {
            let to = life.ended_at().unwrap_or(u64::MAX);
            life.admitted.is_some_and(|at| at <= from)
                && to > from
                && !context
                    .history
                    .is_notice_in_time(context.rules, life.node, from, to)
        };
        let together: Vec<_> = lives.iter().filter(|life| still(life)).collect();
        context
            .report
            .expect(I1, together.len() <= context.rules.limit, || {
                let names: Vec<_> = together.iter().map(|life| life.describe()).collect();
                format!(
                    "active at the same time for longer than {allowed} us: {}",
                    names.join(", ")
                )
            });
    }
}

/// I2 and I3, after all logins were answered: at most `limit` sessions are left, and no other login
/// ended the last granted session. With a limit of one, only the last granted session may be left.
fn last_grants_are_left(context: &mut CheckContext<'_>, uid: &Uid, lives: &[&SessionLife<'_>]) {
    let limit = context.rules.limit;
    let left: Vec<_> = lives
        .iter()
        .filter(|life| life.admitted.is_some() && life.ended_at().is_none())
        .collect();
    context.report.expect(I2, left.len() <= limit, || {
        let names: Vec<_> = left.iter().map(|life| life.describe()).collect();
        format!("{} sessions are left: {}", left.len(), names.join(", "))
    });
    let record = context.history.records.get(uid);
    let Some(last) = lives.last().filter(|life| life.granted.is_some()) else {
        return;
    };
    // A node that was killed right after its write could not report the grant. The record then has
    // a higher generation than any event.
    let is_grant_unreported = record.is_some_and(|record| record.r#gen > last.r#gen);
    context
        .report
        .expect(I2, is_grant_unreported || !last.was_overtaken(), || {
            format!(
                "{} was overtaken, and nobody has a higher generation: no winner",
                last.describe()
            )
        });
    if limit == 1 && !is_grant_unreported {
        for life in left {
            context.report.expect(I3, life.session == last.session, || {
                format!(
                    "{} is left, and {} was granted later",
                    life.describe(),
                    last.describe()
                )
            });
        }
    }
    if let Some(record) = record
        && last.admitted.is_some()
        && last.ended_at().is_none()
    {
        let named = record
            .sessions()
            .any(|(_, session)| session == last.session);
        context.report.expect(I3, named, || {
            format!(
                "{} is active, and the record does not name it",
                last.describe()
            )
        });
    }
}

/// I2: at a quiet moment of an account, no other login has ended the last granted session, because
/// no login is newer. Each quiet moment is checked. If only the end were checked, a later login
/// would hide that no session had won.
fn last_grant_wins_at_quiet_moment(
    context: &mut CheckContext<'_>,
    lives: &[&SessionLife<'_>],
    at_us: u64,
) {
    let granted = |life: &&&SessionLife<'_>| life.granted.is_some_and(|at| at <= at_us);
    let Some(last) = lives.iter().rfind(granted) else {
        return;
    };
    let beaten = last.was_overtaken() && last.superseded.is_some_and(|it| it.at <= at_us);
    // A node that was killed right after its write could not report a newer grant.
    let killed = context.history.was_any_killed(last.began_at(), at_us);
    context.report.expect(I2, !beaten || killed, || {
        format!(
            "at {at_us} us nobody was left: {} was overtaken, and nobody newer had been granted",
            last.describe()
        )
    });
}
