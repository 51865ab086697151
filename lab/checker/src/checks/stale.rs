//! Late and repeated actions: I5, I6, I16.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{SessionId, Transition};
use uuid::Uuid;

use crate::{check::CheckContext, report::Invariant::*};

pub(crate) fn check(context: &mut CheckContext<'_>) {
    late_delete_removes_nothing(context);
    kick_ends_only_its_session(context);
    each_step_happens_once(context);
}

/// I5: the logout of a superseded session deletes nothing. The directory no longer names such a
/// session. So a delete that removed an entry must have removed the entry of another session. Only
/// a late delete counts as an occasion.
fn late_delete_removes_nothing(context: &mut CheckContext<'_>) {
    for event in &context.history.nodes {
        if event.event == Transition::StaleDeleteRefused {
            context.report.count_occasion(I5);
        }
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        let Some((at, result)) = life.closed else {
            continue;
        };
        let erased = result == "Deleted";
        context
            .report
            .require(I5, !(erased && life.was_overtaken()), || {
                format!(
                    "{} had lost its place, and its logout at {at} still deleted something",
                    life.describe()
                )
            });
    }
}

/// I6: a kick ends only the session that it names. A session ends because of another login only if
/// the account has a newer session.
fn kick_ends_only_its_session(context: &mut CheckContext<'_>) {
    let mut named: BTreeMap<Uuid, BTreeSet<SessionId>> = BTreeMap::new();
    for event in &context.history.nodes {
        if let (
            Transition::KickSent | Transition::KickReceived | Transition::StaleKickRefused,
            Some(kick),
            Some(session),
        ) = (event.event, event.kick_id, event.session)
        {
            named.entry(kick).or_default().insert(session);
        }
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        let Some(superseded) = life.superseded else {
            continue;
        };
        if let Some(kick) = superseded.kick
            && let Some(meant) = named.get(&kick)
        {
            context
                .report
                .expect(I6, meant.contains(&life.session), || {
                    format!("kick {kick} did not name {}, and ended it", life.describe())
                });
        }
    }
    for (_, lives) in sessions.by_uid() {
        for (at, life) in lives.iter().enumerate() {
            let newest = at + 1 == lives.len();
            let known = context.history.records.get(life.uid);
            let is_grant_unreported = known.is_some_and(|record| record.r#gen > life.r#gen);
            if life.was_overtaken() && life.granted.is_some() {
                context
                    .report
                    .expect(I6, !newest || is_grant_unreported, || {
                        format!("{} was kicked for nobody", life.describe())
                    });
            }
        }
    }
}

/// I16: each transition of a session happens once, and a kick ends one session once.
fn each_step_happens_once(context: &mut CheckContext<'_>) {
    let mut seen: BTreeMap<(SessionId, &'static str), usize> = BTreeMap::new();
    let mut ended: BTreeMap<Uuid, BTreeSet<SessionId>> = BTreeMap::new();
    for event in &context.history.nodes {
        let Some(session) = event.session else {
            continue;
        };
        let name = match event.event {
            Transition::Granted => "granted",
            Transition::Admitted => "admitted",
            Transition::Superseded => "superseded",
            Transition::Closed => "closed",
            _ => continue,
        };
        *seen.entry((session, name)).or_default() += 1;
        if let (Transition::Superseded, Some(kick)) = (event.event, event.kick_id) {
            ended.entry(kick).or_default().insert(session);
        }
    }
    for ((session, name), times) in seen {
        context.report.expect(I16, times == 1, || {
            format!("session {session} was {name} {times} times")
        });
    }
    for (kick, sessions) in ended {
        context.report.expect(I16, sessions.len() == 1, || {
            format!("kick {kick} ended {} sessions", sessions.len())
        });
    }
}
