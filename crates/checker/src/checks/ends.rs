//! Ends of connections: I9, I10, I11.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Event, Transition};

use crate::{
    context::CheckContext,
    evidence::history::{Fact, What},
    report::{Invariant::*, micros},
};

#[derive(Default)]
struct Ending {
    inside: Option<u64>,
    told: Option<u64>,
    leaves: Option<u64>,
    closed: Option<u64>,
}

pub(crate) fn check(context: &mut CheckContext<'_>) {
    let allowed = micros(context.rules.grace + context.rules.slack);
    let mut cut = BTreeSet::new();
    for fact in &context.history.facts {
        match fact {
            Fact::Cut { client } => {
                cut.insert(*client);
            }
            Fact::Lingering { node, sockets } => {
                // Only a connection that the node ended can leave a socket in TIME_WAIT.
                let cut = |it: &Event| it.event == Transition::Cut && it.node == *node;
                if context.history.nodes.iter().any(cut) {
                    context.report.count_occasion(I10);
                }
                context.report.require(I10, *sockets == 0, || {
                    format!("{sockets} connections linger on the port of {node}")
                });
            }
            _ => {}
        }
    }
    let mut endings: BTreeMap<u64, (&crate::Seen, Ending)> = BTreeMap::new();
    for seen in &context.history.clients {
        let (_, ending) = endings
            .entry(seen.client)
            .or_insert_with(|| (seen, Ending::default()));
        match seen.what {
            What::LoginOk { .. } => ending.inside = Some(seen.at_us),
            What::Told { .. } => ending.told = ending.told.or(Some(seen.at_us)),
            What::Leaves => ending.leaves = ending.leaves.or(Some(seen.at_us)),
            What::Closed => ending.closed = ending.closed.or(Some(seen.at_us)),
            _ => {}
        }
    }
    let end = context.history.end_us();
    for (client, (seen, ending)) in endings {
        let Ending {
            inside,
            told,
            leaves,
            closed,
        } = ending;
        // The client got a notice, or the server closed the connection. A client that left by
        // itself is not checked here.
        let over = told.or(closed.filter(|_| leaves.is_none()));
        if let (Some(inside), Some(_)) = (inside, over) {
            // A node that is killed during the session sends no notice, and a cut connection
            // carries none.
            let killed = context.history.killed_after(&seen.node, inside).is_some();
            let excused = cut.contains(&client) || killed;
            let in_time = told.is_some_and(|told| closed.is_none_or(|closed| told <= closed));
            context.report.expect(I9, excused || in_time, || {
                format!(
                    "{} of {} on {} was disconnected without a word",
                    seen.device, seen.uid, seen.node
                )
            });
        }
        if let Some(told) = told {
            let over = leaves.or(closed);
            let open = context
                .history
                .awake_us(&seen.node, told, over.unwrap_or(end));
            // A connection that is open, and may still be, proves nothing yet.
            if over.is_some() || open > allowed {
                context.report.count_occasion(I11);
            }
            context.report.require(I11, open <= allowed, || {
                format!(
                    "the connection of {} of {} stayed open for {open} us after it was told",
                    seen.device, seen.uid
                )
            });
        }
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        if let (Some(at), Some(_)) = (life.cut, life.superseded) {
            let excused = life.client.is_some_and(|client| cut.contains(&client))
                || context.history.was_paused(life.node, at, at);
            let told = life.told.is_some_and(|told| told <= at);
            context.report.expect(I9, told || excused, || {
                format!("{} was cut off without having been told", life.describe())
            });
        }
        if let Some(superseded) = life.superseded {
            // A node that lost its lease may be killed before it has closed every connection.
            let killed = context.history.killed_after(life.node, superseded.at);
            let over = life.closed.is_some()
                || life.node_over.is_some_and(|at| at >= superseded.at)
                || killed.is_some_and(|at| at <= superseded.at + allowed)
                || life.client_gone.is_some();
            let early = end < superseded.at + allowed;
            if over || !early {
                context.report.count_occasion(I11);
            }
            context.report.require(I11, over || early, || {
                format!("{} was superseded and never closed", life.describe())
            });
        }
    }
}
