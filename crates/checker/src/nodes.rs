//! Dead nodes, stuck accounts and bystanders: I12, I14, I15.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Boot, NodeId, Uid};

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
    let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
    let mut times: BTreeMap<&Uid, Vec<(u64, u64)>> = BTreeMap::new();
    for seen in &scene.history.clients {
        if !quiet.contains(&seen.uid) {
            continue;
        }
        match seen.what {
            What::LoginSent => {
                sent.insert(seen.client, seen.at_us);
            }
            What::LoginOk { .. } => {
                scene.report.expect(I15, true, String::new);
                let from = sent.remove(&seen.client).unwrap_or(seen.at_us);
                times.entry(&seen.uid).or_default().push((from, seen.at_us));
            }
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
    for (uid, times) in times {
        delayed(scene, uid, &times);
    }
}

/// I15: while others are in trouble, a bystander's logins take about as long as otherwise.
fn delayed(scene: &mut Scene<'_>, uid: &Uid, times: &[(u64, u64)]) {
    let (mut calm, mut troubled) = (Vec::new(), Vec::new());
    for (from, to) in times {
        let in_trouble = scene.history.facts.iter().any(|fact| {
            matches!(fact, Fact::Trouble { from_us, to_us } if from_us <= to && to_us >= from)
        });
        let group = if in_trouble { &mut troubled } else { &mut calm };
        group.push(to.saturating_sub(*from));
    }
    let (Some(calm), Some(troubled)) = (p99(calm), p99(troubled)) else {
        return;
    };
    let slack = u64::try_from(scene.rules.slack.as_micros()).unwrap_or(u64::MAX);
    let allowed = calm * u64::from(scene.rules.isolation) + slack;
    scene.report.expect(I15, troubled <= allowed, || {
        format!(
            "logins of {uid} took {troubled} us at the 99th percentile while others were in trouble, and {calm} us otherwise"
        )
    });
}

/// The value that at most one of a hundred is above.
fn p99(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let rank = values.len() - values.len() / 100;
    values.get(rank.checked_sub(1)?).copied()
}
