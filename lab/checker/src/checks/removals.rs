//! Removal of sessions from the directory, and their end after it: I5, I6, I11, I17.

use std::collections::BTreeMap;

use distlock_kickout::{Generation, SessionId, Transition};
use uuid::Uuid;

use crate::{
    check::CheckContext,
    evidence::sessions::{SessionLife, Superseded},
    report::{Invariant::*, micros},
};

pub(crate) fn check(context: &mut CheckContext<'_>) {
    let sessions = context.sessions;
    for life in sessions.all() {
        removed_once(context, life);
        running_session_stays(context, life);
        swept_only_when_dead(context, life);
        node_learns_in_time(context, life);
        removed_session_ends(context, life);
    }
    kicks_name_the_revoked_session(context);
}

/// I5: a session is removed from the directory once, by its own logout or by a newer login. A
/// second removal finds nothing to remove, unless the store has lost the first removal.
fn removed_once(context: &mut CheckContext<'_>, life: &SessionLife<'_>) {
    if life.deleted.is_none() && life.revoked.is_none() {
        return;
    }
    let forgotten = life
        .revoked
        .is_some_and(|revoked| context.history.may_store_have_lost_write(revoked.clock_us));
    let twice = life.deleted.is_some() && life.revoked.is_some() && !life.registered && !forgotten;
    if life.deleted.is_some() && life.revoked.is_some() {
        context.report.count_occasion(I5);
    }
    context.report.require(I5, !twice, || {
        format!(
            "{} had lost its place, and its logout took something out of the directory",
            life.describe()
        )
    });
}

/// I5: no removal removes a running session.
fn running_session_stays(context: &mut CheckContext<'_>, life: &SessionLife<'_>) {
    if life.deleted.is_some() {
        let over = life.ended_at().is_some() || life.admitted.is_none() || life.registered;
        context.report.require(I5, over, || {
            format!(
                "{} was taken out of the directory, and is in",
                life.describe()
            )
        });
    }
}

/// I5: a swept session belongs to a dead incarnation.
fn swept_only_when_dead(context: &mut CheckContext<'_>, life: &SessionLife<'_>) {
    let Some(at) = life.swept else {
        return;
    };
    let over = life
        .node_over
        .is_some_and(|over| over <= at + slack_us(context));
    // The session's node was paused until after the end of its lease. The node reports the end of
    // the lease only when it runs again.
    let stopped = context.history.was_paused(life.node, at, at);
    // The lease of the session's node was freed by hand, and the node has not noticed the loss yet.
    let freed = life
        .admitted
        .is_some_and(|since| context.history.was_lease_freed(life.node, since, at));
    context.report.expect(I5, over || stopped || freed, || {
        format!("{} was cleared away, and its node lives", life.describe())
    });
}

/// I11: a session that lost its slot gets its notice, or ends for another reason, in bounded time.
fn node_learns_in_time(context: &mut CheckContext<'_>, life: &SessionLife<'_>) {
    let (Some(revoked), Some(_)) = (life.revoked, life.admitted) else {
        return;
    };
    let end = life.ended_at().unwrap_or_else(|| context.history.end_us());
    let took = context.history.awake_us(life.node, revoked.clock_us, end);
    let in_time =
        context
            .history
            .is_notice_in_time(context.rules, life.node, revoked.clock_us, end);
    context.report.expect(I11, in_time, || {
        format!(
            "{} went on for {took} us after it had lost its place",
            life.describe()
        )
    });
}

/// I17: a session that is reported as ended has ended.
fn removed_session_ends(context: &mut CheckContext<'_>, life: &SessionLife<'_>) {
    let (Some(at), Some(_)) = (life.settled, life.admitted) else {
        return;
    };
    let gone = life
        .ended_at()
        .is_some_and(|end| end <= at + slack_us(context));
    let excused = context.history.was_paused(life.node, at, at);
    context.report.expect(I17, gone || excused, || {
        format!("{} was said to be gone, and was not", life.describe())
    });
}

/// I6: on every node, a kick names the session that was revoked with the kick. A kick ends no newer
/// session.
fn kicks_name_the_revoked_session(context: &mut CheckContext<'_>) {
    let mut revoked: BTreeMap<Uuid, (SessionId, Option<Generation>)> = BTreeMap::new();
    for event in &context.history.nodes {
        if let (Transition::Revoked, Some(kick), Some(session)) =
            (event.event, event.kick_id, event.session)
        {
            revoked.insert(kick, (session, event.gen_max));
        }
    }
    for event in &context.history.nodes {
        let of_kick = matches!(
            event.event,
            Transition::KickSent | Transition::KickReceived | Transition::StaleKickRefused
        );
        let meant = event.kick_id.and_then(|kick| revoked.get(&kick));
        if let (true, Some((meant, _))) = (of_kick, meant) {
            context
                .report
                .expect(I6, Some(*meant) == event.session, || {
                    format!(
                        "a kick that was meant for session {meant} named another one on {}",
                        event.node
                    )
                });
        }
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        let Some(Superseded {
            kick: Some(kick), ..
        }) = life.superseded
        else {
            continue;
        };
        let Some((meant, most)) = revoked.get(&kick) else {
            continue;
        };
        let newer = most.is_some_and(|most| life.r#gen > most);
        context
            .report
            .expect(I6, *meant == life.session && !newer, || {
                format!(
                    "{} was ended by a kick that was meant for session {meant}",
                    life.describe()
                )
            });
    }
}

/// The time that is allowed for the scheduling of a busy machine.
fn slack_us(context: &CheckContext<'_>) -> u64 {
    micros(context.rules.slack)
}
