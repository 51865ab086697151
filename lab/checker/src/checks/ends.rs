//! Ends of connections: I9, I10, I11.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Event, Transition};

use crate::{
    check::CheckContext,
    evidence::{
        history::{Fact, History, Seen, What},
        sessions::SessionLife,
    },
    report::{Invariant::*, micros},
};

/// The times of the last steps of a client's connection.
#[derive(Default)]
struct Ending {
    logged_in: Option<u64>,
    told: Option<u64>,
    leaves: Option<u64>,
    closed: Option<u64>,
}

pub(crate) fn check(context: &mut CheckContext<'_>) {
    no_socket_lingers(context);
    let cut: BTreeSet<u64> = context
        .history
        .facts
        .iter()
        .filter_map(|fact| match fact {
            Fact::Cut { client } => Some(*client),
            _ => None,
        })
        .collect();
    for (client, (seen, ending)) in endings_by_client(context.history) {
        notice_before_close(context, seen, &ending, cut.contains(&client));
        connection_ends_after_notice(context, seen, &ending);
    }
    let sessions = context.sessions;
    for life in sessions.all() {
        cut_only_after_notice(context, life, &cut);
        superseded_session_closes(context, life);
    }
}

/// I10: no connection of an ended session stays in TIME_WAIT on the server's port.
fn no_socket_lingers(context: &mut CheckContext<'_>) {
    for fact in &context.history.facts {
        if let Fact::Lingering { node, sockets } = fact {
            // Only a connection that the node reset can leave a socket in TIME_WAIT.
            let cut = |it: &Event| it.event == Transition::Cut && it.node == *node;
            if context.history.nodes.iter().any(cut) {
                context.report.count_occasion(I10);
            }
            context.report.require(I10, *sockets == 0, || {
                format!("{sockets} connections linger on the port of {node}")
            });
        }
    }
}

/// The ending of each client's connection, with the client's first observation.
fn endings_by_client(history: &History) -> BTreeMap<u64, (&Seen, Ending)> {
    let mut endings: BTreeMap<u64, (&Seen, Ending)> = BTreeMap::new();
    for seen in &history.clients {
        let (_, ending) = endings
            .entry(seen.client)
            .or_insert_with(|| (seen, Ending::default()));
        match seen.what {
            What::LoginOk { .. } => ending.logged_in = Some(seen.at_us),
            What::Told { .. } => ending.told = ending.told.or(Some(seen.at_us)),
            What::Leaves => ending.leaves = ending.leaves.or(Some(seen.at_us)),
            What::Closed => ending.closed = ending.closed.or(Some(seen.at_us)),
            _ => {}
        }
    }
    endings
}

/// I9: a client gets its notice before the server closes the connection. A client that left by
/// itself is not checked here. If the test cut the connection, `was_cut` is true.
fn notice_before_close(
    context: &mut CheckContext<'_>,
    seen: &Seen,
    ending: &Ending,
    was_cut: bool,
) {
    let Ending { told, closed, .. } = *ending;
    let over = told.or(closed.filter(|_| ending.leaves.is_none()));
    if let (Some(logged_in), Some(_)) = (ending.logged_in, over) {
        // A node that is killed during the session sends no notice, and a cut connection cannot
        // carry a notice.
        let killed = context.history.killed_after(&seen.node, logged_in);
        let excused = was_cut || killed.is_some();
        let in_time = told.is_some_and(|told| closed.is_none_or(|closed| told <= closed));
        context.report.expect(I9, excused || in_time, || {
            format!(
                "{} of {} on {} was disconnected without a word",
                seen.device, seen.uid, seen.node
            )
        });
    }
}

/// I11: a connection ends within the grace period after its client got the notice.
fn connection_ends_after_notice(context: &mut CheckContext<'_>, seen: &Seen, ending: &Ending) {
    let Some(told) = ending.told else {
        return;
    };
    let allowed = allowed_us(context);
    let end = context.history.end_us();
    let over = ending.leaves.or(ending.closed);
    let open = context
        .history
        .awake_us(&seen.node, told, over.unwrap_or(end));
    // A connection that is still open at the end of the history, within the allowed time, proves
    // nothing.
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

/// I9: a node cuts the connection of a superseded session only after its notice was written.
fn cut_only_after_notice(
    context: &mut CheckContext<'_>,
    life: &SessionLife<'_>,
    cut: &BTreeSet<u64>,
) {
    if let (Some(at), Some(_)) = (life.cut, life.superseded) {
        let excused = life.client.is_some_and(|client| cut.contains(&client))
            || context.history.was_paused(life.node, at, at);
        let told = life.told.is_some_and(|told| told <= at);
        context.report.expect(I9, told || excused, || {
            format!("{} was cut off without having been told", life.describe())
        });
    }
}

/// I11: a superseded session closes, or its node or its client ends.
fn superseded_session_closes(context: &mut CheckContext<'_>, life: &SessionLife<'_>) {
    let Some(superseded) = life.superseded else {
        return;
    };
    let allowed = allowed_us(context);
    // A node that lost its lease may be killed before it has closed every connection.
    let killed = context.history.killed_after(life.node, superseded.at);
    let over = life.closed.is_some()
        || life.node_over.is_some_and(|at| at >= superseded.at)
        || killed.is_some_and(|at| at <= superseded.at + allowed)
        || life.client_gone.is_some();
    let early = context.history.end_us() < superseded.at + allowed;
    if over || !early {
        context.report.count_occasion(I11);
    }
    context.report.require(I11, over || early, || {
        format!("{} was superseded and never closed", life.describe())
    });
}

/// Longest time for which a connection may stay open after the notice.
fn allowed_us(context: &CheckContext<'_>) -> u64 {
    micros(context.rules.grace + context.rules.slack)
}
