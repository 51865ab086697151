//! Generations rise, and a login with a lost lock writes nothing: I4, I13.

use std::collections::BTreeMap;

use distlock_kickout::{NodeId, Transition, Uid};

use crate::{
    check::CheckContext,
    evidence::{history::What, sessions::SessionLife},
    report::{Invariant::*, micros},
};

pub(crate) fn check(context: &mut CheckContext<'_>) {
    let sessions = context.sessions;
    for (uid, lives) in sessions.by_uid() {
        let granted: Vec<_> = lives.iter().filter(|it| it.granted.is_some()).collect();
        for pair in granted.windows(2) {
            tokens_rise_with_generations(context, pair[0], pair[1]);
        }
        for life in &granted {
            let at_least = life.token.unwrap_or_default();
            context.report.expect(I4, life.r#gen.get() >= at_least, || {
                format!("{} is below its lock's token {at_least}", life.describe())
            });
        }
        for older in &lives {
            late_admission_was_granted_first(context, older, &lives);
        }
        if let (Some(record), Some(last)) = (context.history.records.get(uid), granted.last()) {
            context.report.expect(I4, record.r#gen >= last.r#gen, || {
                format!(
                    "the record of {uid} has generation {}, and {} was granted",
                    record.r#gen,
                    last.describe()
                )
            });
        }
    }
    // A login gives up its write if its lock was lost or its read was outdated. Only such a login
    // could break I13, so only such a login counts as an occasion.
    for event in &context.history.nodes {
        if event.event == Transition::WriteGivenUp {
            context.report.count_occasion(I13);
        }
    }
    later_logins_have_higher_generations(context);
    boots_rise(context);
}

/// I4, I13: two successive grants have different generations, and the fencing tokens of their locks
/// rise in the same order.
fn tokens_rise_with_generations(
    context: &mut CheckContext<'_>,
    older: &SessionLife<'_>,
    newer: &SessionLife<'_>,
) {
    context.report.expect(I4, older.r#gen < newer.r#gen, || {
        format!(
            "{} and {} have the same generation",
            older.describe(),
            newer.describe()
        )
    });
    if let (Some(before), Some(after)) = (older.token, newer.token) {
        // Two writes under one acquisition of the lock would show the same token.
        context.report.require(I13, before < after, || {
            format!(
                "{} wrote under token {after}, after {} wrote under token {before}",
                newer.describe(),
                older.describe()
            )
        });
    }
}

/// I13: if a login is admitted after a newer login, it was granted before the newer login. If it
/// was granted later, it wrote after the loss of its lock, and replaced the newer login.
fn late_admission_was_granted_first(
    context: &mut CheckContext<'_>,
    older: &SessionLife<'_>,
    lives: &[&SessionLife<'_>],
) {
    let slack = micros(context.rules.slack);
    let Some(at) = older.admitted else {
        return;
    };
    for newer in lives.iter().filter(|it| it.r#gen > older.r#gen) {
        let Some(before) = newer.admitted else {
            continue;
        };
        let late = at > before + slack && !context.history.was_paused(older.node, before, at);
        context
            .report
            .require(I13, !late || older.granted < newer.granted, || {
                format!(
                    "{} was written and let in {} us after the newer {}",
                    older.describe(),
                    at - before,
                    newer.describe()
                )
            });
    }
}

/// I4: a login that was sent after another login was confirmed has a higher generation than the
/// confirmed login.
fn later_logins_have_higher_generations(context: &mut CheckContext<'_>) {
    let mut highest: BTreeMap<&Uid, Vec<(u64, u64)>> = BTreeMap::new();
    let mut sent: BTreeMap<u64, u64> = BTreeMap::new();
    let mut clients: Vec<_> = context.history.clients.iter().collect();
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
                context
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

/// I4: the boot numbers of a node rise, and an ended incarnation admits no login.
fn boots_rise(context: &mut CheckContext<'_>) {
    let mut last: BTreeMap<&NodeId, (u64, bool)> = BTreeMap::new();
    let mut events: Vec<_> = context.history.nodes.iter().collect();
    events.sort_by_key(|it| (it.boot, it.clock_us));
    for event in events {
        let boot = event.boot.get();
        let (before, over) = last.get(&event.node).copied().unwrap_or_default();
        match event.event {
            Transition::NodeUp => {
                context.report.expect(I4, boot > before, || {
                    format!("node {} came up as {boot} after {before}", event.node)
                });
                last.insert(&event.node, (boot, false));
            }
            Transition::NodeFenced | Transition::NodeDown => {
                last.insert(&event.node, (boot, true));
            }
            Transition::Admitted if before == boot => {
                context.report.expect(I4, !over, || {
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
