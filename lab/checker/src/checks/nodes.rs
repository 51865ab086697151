//! Dead nodes, unanswered logins and bystanders: I12, I14, I15.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Boot, Code, NodeId, Uid};

use crate::{
    check::CheckContext,
    evidence::history::{Fact, What},
    report::{Invariant::*, micros},
};

pub(crate) fn check(context: &mut CheckContext<'_>) {
    dead_sessions_disappear(context);
    every_login_is_answered(context);
    check_bystanders(context);
}

/// I12: the sessions of a dead incarnation are removed from the directory in time.
fn dead_sessions_disappear(context: &mut CheckContext<'_>) {
    let cleanup = micros(context.rules.longest_cleanup());
    let end = context.history.end_us();
    let mut dead: BTreeMap<(&NodeId, Boot), u64> = BTreeMap::new();
    for life in context.sessions.all() {
        if let Some(over) = life.node_over {
            dead.insert((life.node, life.boot), over);
        }
    }
    for (uid, record) in &context.history.records {
        let keys = record.slots.values().map(|entry| &entry.key);
        for key in keys.chain(record.revocations.iter().map(|it| &it.key)) {
            let over = dead.get(&(&key.node, key.boot)).copied();
            let ghost = over.is_some_and(|over| context.history.calm_us(over, end) > cleanup);
            context.report.require(I12, !ghost, || {
                format!("the record of {uid} still names {key}, whose node is dead")
            });
        }
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        let Some(over) = life.node_over else {
            continue;
        };
        match life.swept {
            Some(at) => {
                // A sweep needs running nodes and a reachable store, so only the time in which both
                // exist is counted.
                let took = context.history.calm_us(over, at);
                context.report.expect(I12, took <= cleanup, || {
                    format!(
                        "{} was cleared away {took} us after its node's end",
                        life.describe()
                    )
                });
            }
            // The other checks examine the remaining records. This case counts as an occasion only
            // if the history continues for longer than a sweep may take.
            None if life.granted.is_some() && over + cleanup < end => {
                context.report.count_occasion(I12);
            }
            None => {}
        }
    }
}

/// I14: each login is answered in time, even after a crash. A granted login is admitted or ends.
fn every_login_is_answered(context: &mut CheckContext<'_>) {
    let mut waiting: BTreeMap<u64, &crate::Seen> = BTreeMap::new();
    for seen in &context.history.clients {
        match seen.what {
            What::LoginSent => {
                waiting.insert(seen.client, seen);
            }
            What::Sent { .. }
            | What::Message { .. }
            | What::Acked { .. }
            | What::Outcome { .. }
            | What::Refused => {}
            // A client that left before the answer cannot get an answer.
            What::Leaves => {
                waiting.remove(&seen.client);
            }
            What::Closed => {
                if let Some(sent) = waiting.remove(&seen.client) {
                    let killed = context
                        .history
                        .killed_after(&sent.node, sent.at_us)
                        .is_some();
                    context.report.expect(I14, killed, || {
                        format!(
                            "the login of {} as {} on {} was closed without an answer",
                            sent.device, sent.uid, sent.node
                        )
                    });
                }
            }
            _ => {
                if let Some(sent) = waiting.remove(&seen.client) {
                    answer_is_in_time(context, sent, seen);
                }
            }
        }
    }
    for seen in waiting.values() {
        context.report.expect(I14, false, || {
            format!(
                "the login of {} as {} on {} was never answered",
                seen.device, seen.uid, seen.node
            )
        });
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        if life.granted.is_some() {
            let settled = life.admitted.is_some() || life.ended_at().is_some();
            context.report.expect(I14, settled, || {
                format!("{} was granted and nothing became of it", life.describe())
            });
        }
    }
}

/// I14: a login is answered within [`Rules::longest_answer`](crate::Rules::longest_answer). A crash
/// delays a login by at most L more.
fn answer_is_in_time(context: &mut CheckContext<'_>, sent: &crate::Seen, answer: &crate::Seen) {
    let rules = context.rules;
    let name = || {
        format!(
            "the login of {} as {} on {}",
            sent.device, sent.uid, sent.node
        )
    };
    let took = context
        .history
        .served_us(&sent.node, sent.at_us, answer.at_us);
    let allowed = micros(rules.longest_answer());
    context.report.expect(I14, took <= allowed, || {
        format!(
            "{} was answered after {took} us, and {allowed} us are allowed",
            name()
        )
    });
    let Some(crash) = context.history.last_kill_before(answer.at_us) else {
        return;
    };
    let free = crash + micros(rules.longest_lockout());
    // A login may also wait for an unreachable store, or for a lock that a paused node holds. Such
    // a delay does not come from the crash. After the store is reachable again, grants may be
    // suspended for one node lease (N).
    let before = sent
        .at_us
        .saturating_sub(micros(rules.node_lease + rules.longest_lockout()));
    if !context.history.is_calm(before, answer.at_us) {
        return;
    }
    let slack = micros(rules.slack + rules.store_away);
    match answer.what {
        What::Busy | What::Denied { code: Code::Denied } => {
            context.report.expect(I14, sent.at_us < free + slack, || {
                format!(
                    "{} was turned away {} us after a crash",
                    name(),
                    answer.at_us - crash
                )
            });
        }
        _ => {
            let until = free.max(sent.at_us) + micros(rules.longest_unlocked_login()) + slack;
            context.report.expect(I14, answer.at_us <= until, || {
                format!(
                    "{} was let in {} us after a crash",
                    name(),
                    answer.at_us - crash
                )
            });
        }
    }
}

/// I15: a bystander has no competing logins. A bystander is never refused, and faults of other
/// accounts and nodes do not delay it.
fn check_bystanders(context: &mut CheckContext<'_>) {
    let mut quiet = BTreeSet::new();
    for fact in &context.history.facts {
        if let Fact::Bystander { uid } = fact {
            quiet.insert(uid);
        }
    }
    let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
    let mut times: BTreeMap<&Uid, Vec<(u64, u64)>> = BTreeMap::new();
    for seen in &context.history.clients {
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
                context.report.require(I15, false, || {
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
        trouble_does_not_slow_logins(context, uid, &times);
    }
}

/// I15: a bystander's logins take about the same time with and without faults of other accounts and
/// nodes.
fn trouble_does_not_slow_logins(context: &mut CheckContext<'_>, uid: &Uid, times: &[(u64, u64)]) {
    let (mut calm, mut troubled) = (Vec::new(), Vec::new());
    for (from, to) in times {
        let in_trouble = context.history.facts.iter().any(|fact| {
            matches!(fact, Fact::Trouble { from_us, to_us } if from_us <= to && to_us >= from)
        });
        let group = if in_trouble { &mut troubled } else { &mut calm };
        group.push(to.saturating_sub(*from));
    }
    let looks = troubled.len();
    // A comparison needs both kinds of logins.
    let (Some(calm), Some(troubled)) = (p99(calm), p99(troubled)) else {
        return;
    };
    for _ in 0..looks {
        context.report.count_occasion(I15);
    }
    let allowed = calm * u64::from(context.rules.isolation) + micros(context.rules.slack);
    context.report.require(I15, troubled <= allowed, || {
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
