//! Dead nodes, stuck accounts and bystanders: I12, I14, I15.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Boot, NodeId};

use crate::{
    Scene,
    history::{Fact, What},
    report::Invariant::*,
};

pub(crate) fn check(scene: &mut Scene<'_>) {
    ghosts(scene);
    stuck(scene);
    bystanders(scene);
}

/// I12: when everything has settled, the directory names no incarnation that is over.
fn ghosts(scene: &mut Scene<'_>) {
    let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let cleanup = micros(scene.rules.cleanup + scene.rules.slack);
    let end = scene.history.end_us();
    let mut dead: BTreeMap<(&NodeId, Boot), u64> = BTreeMap::new();
    for life in scene.sessions.all() {
        if let Some(over) = life.node_over {
            dead.insert((life.node, life.boot), over);
        }
    }
    for (uid, record) in &scene.history.records {
        let keys = record.slots.values().map(|entry| &entry.key);
        for key in keys.chain(record.revocations.iter().map(|it| &it.key)) {
            let over = dead.get(&(&key.node, key.boot)).copied();
            let ghost = over.is_some_and(|over| over + cleanup < end);
            scene.report.expect(I12, !ghost, || {
                format!("the record of {uid} still names {key}, whose node is dead")
            });
        }
    }
}

/// I14: whoever asks to log in gets an answer, and whoever was granted a place is let in or ends.
fn stuck(scene: &mut Scene<'_>) {
    let mut waiting: BTreeMap<u64, &crate::Seen> = BTreeMap::new();
    for seen in &scene.history.clients {
        match seen.what {
            What::LoginSent => {
                waiting.insert(seen.client, seen);
            }
            What::Sent { .. } | What::Message { .. } | What::Outcome { .. } => {}
            _ => {
                waiting.remove(&seen.client);
                scene.report.expect(I14, true, String::new);
            }
        }
    }
    for seen in waiting.values() {
        scene.report.expect(I14, false, || {
            format!(
                "the login of {} as {} on {} was never answered",
                seen.device, seen.uid, seen.node
            )
        });
    }
    let sessions = scene.sessions;
    for life in sessions.all() {
        if life.granted.is_some() {
            let settled = life.admitted.is_some() || life.end().is_some();
            scene.report.expect(I14, settled, || {
                format!("{} was granted and nothing became of it", life.name())
            });
        }
    }
}

/// I15: accounts that nobody fights over are let in at once, whatever happens to others.
fn bystanders(scene: &mut Scene<'_>) {
    let mut quiet = BTreeSet::new();
    for fact in &scene.history.facts {
        if let Fact::Bystander { uid } = fact {
            quiet.insert(uid);
        }
    }
    for seen in &scene.history.clients {
        if !quiet.contains(&seen.uid) {
            continue;
        }
        match seen.what {
            What::LoginOk { .. } => scene.report.expect(I15, true, String::new),
            What::Busy | What::Denied { .. } | What::Overtaken => {
                scene.report.expect(I15, false, || {
                    format!(
                        "{} has nothing to do with the trouble, and its login on {} was turned away",
                        seen.uid, seen.node
                    )
                });
            }
            _ => {}
        }
    }
}
