//! Dead nodes, unanswered logins and bystanders: I12, I14, I15.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Boot, Code, NodeId, Uid};

use crate::{
    evidence::history::{Fact, What},
    report::{Invariant::*, micros},
    scene::Scene,
};

pub(crate) fn check(scene: &mut Scene<'_>) {
    dead_sessions_disappear(scene);
    every_login_is_answered(scene);
    bystanders_not_delayed(scene);
}

/// I12: the sessions of a dead incarnation are removed from the directory in time.
fn dead_sessions_disappear(scene: &mut Scene<'_>) {
    let cleanup = micros(scene.rules.cleanup());
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
            let ghost = over.is_some_and(|over| scene.history.calm_us(over, end) > cleanup);
            scene.report.require(I12, !ghost, || {
                format!("the record of {uid} still names {key}, whose node is dead")
            });
        }
    }
    let sessions = scene.sessions;
    for life in sessions.all() {
        let Some(over) = life.node_over else {
            continue;
        };
        match life.swept {
            Some(at) => {
                // A sweep needs a running node with its store, so only such time counts.
                let took = scene.history.calm_us(over, at);
                scene.report.expect(I12, took <= cleanup, || {
                    format!(
                        "{} was cleared away {took} us after its node's end",
                        life.name()
                    )
                });
            }
            // Its record was examined above. That was too early to tell, unless the history is long
            // enough.
            None if life.granted.is_some() && over + cleanup < end => {
                scene.report.occasion(I12);
            }
            None => {}
        }
    }
}

/// I14: each login is answered in time, even after a crash. A granted login is admitted or ends.
fn every_login_is_answered(scene: &mut Scene<'_>) {
    let mut waiting: BTreeMap<u64, &crate::Seen> = BTreeMap::new();
    for seen in &scene.history.clients {
        match seen.what {
            What::LoginSent => {
                waiting.insert(seen.client, seen);
            }
            What::Sent { .. }
            | What::Message { .. }
            | What::Acked { .. }
            | What::Outcome { .. }
            | What::Refused => {}
            // A client that gave up was not answered, and cannot be answered any more.
            What::Leaves => {
                waiting.remove(&seen.client);
            }
            What::Closed => {
                if let Some(sent) = waiting.remove(&seen.client) {
                    let killed = scene.history.killed_after(&sent.node, sent.at_us).is_some();
                    scene.report.expect(I14, killed, || {
                        format!(
                            "the login of {} as {} on {} was closed without an answer",
                            sent.device, sent.uid, sent.node
                        )
                    });
                }
            }
            _ => {
                if let Some(sent) = waiting.remove(&seen.client) {
                    answer_in_time(scene, sent, seen);
                }
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

/// I14: an answer comes within W + R + e. A crash delays a login by at most L more.
fn answer_in_time(scene: &mut Scene<'_>, sent: &crate::Seen, answer: &crate::Seen) {
    let rules = scene.rules;
    let name = || {
        format!(
            "the login of {} as {} on {}",
            sent.device, sent.uid, sent.node
        )
    };
    let took = scene
        .history
        .served_us(&sent.node, sent.at_us, answer.at_us);
    let allowed = micros(rules.answer());
    scene.report.expect(I14, took <= allowed, || {
        format!(
            "{} was answered after {took} us, and {allowed} us are allowed",
            name()
        )
    });
    let Some(crash) = scene.history.last_killed(answer.at_us) else {
        return;
    };
    let free = crash + micros(rules.stuck());
    // A login may also wait for a store that is away, or for a lock of a paused node. That delay is
    // not the crash's. After a store came back, its nodes wait for N.
    let before = sent
        .at_us
        .saturating_sub(micros(rules.node_lease + rules.stuck()));
    if !scene.history.is_calm(before, answer.at_us) {
        return;
    }
    let slack = micros(rules.slack + rules.store_away);
    match answer.what {
        What::Busy | What::Denied { code: Code::Denied } => {
            scene.report.expect(I14, sent.at_us < free + slack, || {
                format!(
                    "{} was turned away {} us after a crash",
                    name(),
                    answer.at_us - crash
                )
            });
        }
        _ => {
            let until = free.max(sent.at_us) + micros(rules.tell()) + slack;
            scene.report.expect(I14, answer.at_us <= until, || {
                format!(
                    "{} was let in {} us after a crash",
                    name(),
                    answer.at_us - crash
                )
            });
        }
    }
}

/// I15: an account without competing logins is admitted at once, whatever happens to others.
fn bystanders_not_delayed(scene: &mut Scene<'_>) {
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
                let from = sent.remove(&seen.client).unwrap_or(seen.at_us);
                times.entry(&seen.uid).or_default().push((from, seen.at_us));
            }
            What::Busy | What::Denied { .. } | What::Overtaken => {
                scene.report.require(I15, false, || {
                    format!(
                        "{} has nothing to do with the trouble, and its login on {} \
                         was turned away",
                        seen.uid, seen.node
                    )
                });
            }
            _ => {}
        }
    }
    for (uid, times) in times {
        compare_delays(scene, uid, &times);
    }
}

/// I15: a bystander's logins take about the same time, with and without trouble elsewhere.
fn compare_delays(scene: &mut Scene<'_>, uid: &Uid, times: &[(u64, u64)]) {
    let (mut calm, mut troubled) = (Vec::new(), Vec::new());
    for (from, to) in times {
        let in_trouble = scene.history.facts.iter().any(|fact| {
            matches!(fact, Fact::Trouble { from_us, to_us } if from_us <= to && to_us >= from)
        });
        let group = if in_trouble { &mut troubled } else { &mut calm };
        group.push(to.saturating_sub(*from));
    }
    let looks = troubled.len();
    // A comparison needs a login of both kinds.
    let (Some(calm), Some(troubled)) = (p99(calm), p99(troubled)) else {
        return;
    };
    for _ in 0..looks {
        scene.report.occasion(I15);
    }
    let allowed = calm * u64::from(scene.rules.isolation) + micros(scene.rules.slack);
    scene.report.require(I15, troubled <= allowed, || {
        format!(
            "logins of {uid} took {troubled} us at the 99th percentile while others were in \
             trouble, and {calm} us otherwise"
        )
    });
}

/// The value that at most one percent of the values exceed.
fn p99(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let rank = values.len() - values.len() / 100;
    values.get(rank.checked_sub(1)?).copied()
}
