//! Owners and winners of an account: I1, I2, I3.

use distlock_kickout::Uid;

use crate::{
    evidence::{history::Fact, sessions::SessionLife},
    report::{Invariant::*, micros},
    scene::Scene,
};

pub(crate) fn check(scene: &mut Scene<'_>) {
    let sessions = scene.sessions;
    for (uid, lives) in sessions.by_uid() {
        no_overlap(scene, &lives);
        right_survivors(scene, uid, &lives);
        for fact in &scene.history.facts {
            if let Fact::Quiet { uid: quiet, at_us } = fact
                && quiet == uid
            {
                last_grant_survives(scene, &lives, *at_us);
            }
        }
    }
    for (uid, record) in &scene.history.records {
        let named = record.slots.len();
        scene.report.expect(I1, named <= scene.rules.limit, || {
            format!("the record of {uid} names {named} sessions")
        });
    }
}

/// I1: after the settle time no more sessions are active than the policy allows.
fn no_overlap(scene: &mut Scene<'_>, lives: &[&SessionLife<'_>]) {
    let allowed = micros(scene.rules.settle());
    for newcomer in lives {
        let Some(from) = newcomer.admitted else {
            continue;
        };
        let still = |life: &SessionLife<'_>| {
            let to = life.end().unwrap_or(u64::MAX);
            life.admitted.is_some_and(|at| at <= from)
                && to > from
                && !scene
                    .history
                    .hears_in_time(scene.rules, life.node, from, to)
        };
        let together: Vec<_> = lives.iter().filter(|life| still(life)).collect();
        scene
            .report
            .expect(I1, together.len() <= scene.rules.limit, || {
                let names: Vec<_> = together.iter().map(|life| life.name()).collect();
                format!(
                    "active at the same time for longer than {allowed} us: {}",
                    names.join(", ")
                )
            });
    }
}

/// I2 and I3: the right sessions are left after all logins were answered.
fn right_survivors(scene: &mut Scene<'_>, uid: &Uid, lives: &[&SessionLife<'_>]) {
    let limit = scene.rules.limit;
    let left: Vec<_> = lives
        .iter()
        .filter(|life| life.admitted.is_some() && life.end().is_none())
        .collect();
    scene.report.expect(I2, left.len() <= limit, || {
        let names: Vec<_> = left.iter().map(|life| life.name()).collect();
        format!("{} sessions are left: {}", left.len(), names.join(", "))
    });
    let record = scene.history.records.get(uid);
    let Some(last) = lives.last().filter(|life| life.granted.is_some()) else {
        return;
    };
    // A node that was killed right after its write reported no grant.
    let untold = record.is_some_and(|record| record.r#gen > last.r#gen);
    scene
        .report
        .expect(I2, untold || !last.was_overtaken(), || {
            format!(
                "{} was overtaken, and nobody has a higher generation: no winner",
                last.name()
            )
        });
    if limit == 1 && !untold {
        for life in left {
            scene.report.expect(I3, life.session == last.session, || {
                format!(
                    "{} is left, and {} was granted later",
                    life.name(),
                    last.name()
                )
            });
        }
    }
    if let Some(record) = record
        && last.admitted.is_some()
        && last.end().is_none()
    {
        let named = record
            .sessions()
            .any(|(_, session)| session == last.session);
        scene.report.expect(I3, named, || {
            format!("{} is active, and the record does not name it", last.name())
        });
    }
}

/// I2: at each quiet moment of an account, its last granted login had not been ended by another
/// login, because no login was newer. This looks at each quiet moment, because a later login would
/// hide that no session had won.
fn last_grant_survives(scene: &mut Scene<'_>, lives: &[&SessionLife<'_>], at_us: u64) {
    let granted = |life: &&&SessionLife<'_>| life.granted.is_some_and(|at| at <= at_us);
    let Some(last) = lives.iter().rfind(granted) else {
        return;
    };
    let beaten = last.was_overtaken() && last.superseded.is_some_and(|it| it.at <= at_us);
    // A node that was killed right after its write reported no grant.
    let killed = scene.history.killed_between(last.begin(), at_us);
    scene.report.expect(I2, !beaten || killed, || {
        format!(
            "at {at_us} us nobody was left: {} was overtaken, and nobody newer had been granted",
            last.name()
        )
    });
}
