//! Late and repeated actions: I5, I6, I16.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{SessionId, Transition};
use uuid::Uuid;

use crate::{report::Invariant::*, scene::Scene};

pub(crate) fn check(scene: &mut Scene<'_>) {
    no_stale_delete(scene);
    no_stale_kick(scene);
    each_step_once(scene);
}

/// I5: a superseded session is not in the directory any more. So its delete that removed something
/// removed another session's entry. Only a late delete puts another session at risk.
fn no_stale_delete(scene: &mut Scene<'_>) {
    for event in &scene.history.nodes {
        if event.event == Transition::StaleDeleteRefused {
            scene.report.occasion(I5);
        }
    }
    let sessions = scene.sessions;
    for life in sessions.all() {
        let Some((at, result)) = life.closed else {
            continue;
        };
        let erased = result == "Deleted";
        scene
            .report
            .require(I5, !(erased && life.was_overtaken()), || {
                format!(
                    "{} had lost its place, and its logout at {at} still deleted something",
                    life.name()
                )
            });
    }
}

/// I6: a kick ends the session that it names or none, and only in favour of a newer one.
fn no_stale_kick(scene: &mut Scene<'_>) {
    let mut named: BTreeMap<Uuid, BTreeSet<SessionId>> = BTreeMap::new();
    for event in &scene.history.nodes {
        if let (
            Transition::KickSent | Transition::KickReceived | Transition::StaleKickRefused,
            Some(kick),
            Some(session),
        ) = (event.event, event.kick_id, event.session)
        {
            named.entry(kick).or_default().insert(session);
        }
    }
    let sessions = scene.sessions;
    for life in sessions.all() {
        let Some(superseded) = life.superseded else {
            continue;
        };
        if let Some(kick) = superseded.kick
            && let Some(meant) = named.get(&kick)
        {
            scene.report.expect(I6, meant.contains(&life.session), || {
                format!("kick {kick} did not name {}, and ended it", life.name())
            });
        }
    }
    for (_, lives) in sessions.by_uid() {
        for (at, life) in lives.iter().enumerate() {
            let newest = at + 1 == lives.len();
            let known = scene.history.records.get(life.uid);
            let untold = known.is_some_and(|record| record.r#gen > life.r#gen);
            if life.was_overtaken() && life.granted.is_some() {
                scene.report.expect(I6, !newest || untold, || {
                    format!("{} was kicked for nobody", life.name())
                });
            }
        }
    }
}

/// I16: each transition of a session happens once, and a kick ends one session once.
fn each_step_once(scene: &mut Scene<'_>) {
    let mut seen: BTreeMap<(SessionId, &'static str), usize> = BTreeMap::new();
    let mut ended: BTreeMap<Uuid, BTreeSet<SessionId>> = BTreeMap::new();
    for event in &scene.history.nodes {
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
        scene.report.expect(I16, times == 1, || {
            format!("session {session} was {name} {times} times")
        });
    }
    for (kick, sessions) in ended {
        scene.report.expect(I16, sessions.len() == 1, || {
            format!("kick {kick} ended {} sessions", sessions.len())
        });
    }
}
