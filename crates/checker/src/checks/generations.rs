//! Generations rise, and a login with a lost lock writes nothing: I4, I13.

use std::collections::BTreeMap;

use distlock_kickout::{NodeId, Transition, Uid};

use crate::{
    evidence::{history::What, sessions::SessionLife},
    report::{Invariant::*, micros},
    scene::Scene,
};

pub(crate) fn check(scene: &mut Scene<'_>) {
    let sessions = scene.sessions;
    for (uid, lives) in sessions.by_uid() {
        let granted: Vec<_> = lives.iter().filter(|it| it.granted.is_some()).collect();
        for pair in granted.windows(2) {
            tokens_rise_with_generations(scene, pair[0], pair[1]);
        }
        for life in &granted {
            let at_least = life.token.unwrap_or_default();
            scene.report.expect(I4, life.r#gen.get() >= at_least, || {
                format!("{} is below its lock's token {at_least}", life.name())
            });
        }
        for older in &lives {
            late_admission(scene, older, &lives);
        }
        if let (Some(record), Some(last)) = (scene.history.records.get(uid), granted.last()) {
            scene.report.expect(I4, record.r#gen >= last.r#gen, || {
                format!(
                    "the record of {uid} has generation {}, and {} was granted",
                    record.r#gen,
                    last.name()
                )
            });
        }
    }
    // I13 was at risk only where a login noticed in time that its lock or its read was outdated.
    for event in &scene.history.nodes {
        if event.event == Transition::WriteGivenUp {
            scene.report.occasion(I13);
        }
    }
    clients_see_rising_generations(scene);
    boots_rise(scene);
}

/// The fencing tokens of the locks rise in the order of generations.
fn tokens_rise_with_generations(
    scene: &mut Scene<'_>,
    older: &SessionLife<'_>,
    newer: &SessionLife<'_>,
) {
    scene.report.expect(I4, older.r#gen < newer.r#gen, || {
        format!(
            "{} and {} have the same generation",
            older.name(),
            newer.name()
        )
    });
    if let (Some(before), Some(after)) = (older.token, newer.token) {
        // A login that wrote twice under one lock would show the same token.
        scene.report.require(I13, before < after, || {
            format!(
                "{} wrote under token {after}, after {} wrote under token {before}",
                newer.name(),
                older.name()
            )
        });
    }
}

/// A login that wrote with a lost lock finds itself in the directory when it looks before its
/// confirmation. So it is admitted after a newer login. I13 is broken if the older login was also
/// granted after the newer one; a login that was granted earlier may be admitted late.
fn late_admission(scene: &mut Scene<'_>, older: &SessionLife<'_>, lives: &[&SessionLife<'_>]) {
    let slack = micros(scene.rules.slack);
    let Some(at) = older.admitted else {
        return;
    };
    for newer in lives.iter().filter(|it| it.r#gen > older.r#gen) {
        let Some(before) = newer.admitted else {
            continue;
        };
        let late = at > before + slack && !scene.history.paused(older.node, before, at);
        scene
            .report
            .require(I13, !late || older.granted < newer.granted, || {
                format!(
                    "{} was written and let in {} us after the newer {}",
                    older.name(),
                    at - before,
                    newer.name()
                )
            });
    }
}

/// A login that was sent after another one was confirmed has a higher generation.
fn clients_see_rising_generations(scene: &mut Scene<'_>) {
    let mut highest: BTreeMap<&Uid, Vec<(u64, u64)>> = BTreeMap::new();
    let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
    let mut clients: Vec<_> = scene.history.clients.iter().collect();
    clients.sort_by_key(|it| it.at_us);
    for seen in clients {
        match &seen.what {
            What::LoginSent => {
                sent.insert(seen.client, seen.at_us);
            }
            What::LoginOk { r#gen, .. } => {
                let confirmed = highest.entry(&seen.uid).or_default();
                let asked = sent.get(&seen.client).copied().unwrap_or_default();
                let before = confirmed
                    .iter()
                    .filter(|(at, _)| *at < asked)
                    .map(|(_, r#gen)| *r#gen)
                    .max();
                scene
                    .report
                    .expect(I4, before.is_none_or(|before| before < r#gen.get()), || {
                        format!(
                            "{} logged in as {} with generation {gen} after generation {} \
                             had been confirmed",
                            seen.device,
                            seen.uid,
                            before.unwrap_or_default()
                        )
                    });
                confirmed.push((seen.at_us, r#gen.get()));
            }
            _ => {}
        }
    }
}

/// The incarnations of a node rise, and an ended incarnation admits no login.
fn boots_rise(scene: &mut Scene<'_>) {
    let mut last: BTreeMap<&NodeId, (u64, bool)> = BTreeMap::new();
    let mut events: Vec<_> = scene.history.nodes.iter().collect();
    events.sort_by_key(|it| (it.boot, it.boot_us));
    for event in events {
        let boot = event.boot.get();
        let (before, over) = last.get(&event.node).copied().unwrap_or_default();
        match event.event {
            Transition::NodeUp => {
                scene.report.expect(I4, boot > before, || {
                    format!("node {} came up as {boot} after {before}", event.node)
                });
                last.insert(&event.node, (boot, false));
            }
            Transition::NodeFenced | Transition::NodeDown => {
                last.insert(&event.node, (boot, true));
            }
            Transition::Admitted if before == boot => {
                scene.report.expect(I4, !over, || {
                    format!(
                        "node {} let somebody in as {boot}, which was over",
                        event.node
                    )
                });
            }
            _ => {}
        }
    }
}
