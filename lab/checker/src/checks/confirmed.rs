//! Checks of a confirmed login and of later frames: I7, I8, I17.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Generation, Transition};

use crate::{
    check::CheckContext,
    evidence::history::{Fact, What},
    report::{Invariant::*, micros},
};

/// Longest time for which a delivery is in flight. The sender's node gives up a delivery after
/// three times the deadline of one call, which is less.
const IN_FLIGHT_US: u64 = 1_000_000;

pub(crate) fn check(context: &mut CheckContext<'_>) {
    written_before_confirmed(context);
    lookups_find_confirmed(context);
    nothing_received_after_end(context);
    nothing_sent_after_end(context);
    strict_waits_for_older(context);
    no_false_success(context);
}

/// I7: an admitted session was written to the directory before.
fn written_before_confirmed(context: &mut CheckContext<'_>) {
    let sessions = context.sessions;
    for life in sessions.all() {
        if let Some(admitted) = life.admitted {
            let before = life.granted.is_some_and(|granted| granted <= admitted);
            context.report.expect(I7, before, || {
                format!("{} was confirmed before it was written", life.describe())
            });
        }
    }
}

/// I7: a look-up that began after a confirmation finds the confirmed login or a newer login.
fn lookups_find_confirmed(context: &mut CheckContext<'_>) {
    for fact in &context.history.facts {
        let Fact::Lookup {
            uid,
            from_us,
            r#gen,
            session,
            ..
        } = fact
        else {
            continue;
        };
        let mut confirmed: Option<(Generation, u64)> = None;
        let mut left = BTreeSet::new();
        for seen in &context.history.clients {
            if seen.uid != *uid {
                continue;
            }
            match seen.what {
                What::LoginOk { r#gen, .. } if seen.at_us < *from_us => {
                    confirmed = confirmed.max(Some((r#gen, seen.client)));
                }
                What::Leaves | What::Told { .. } | What::Closed => {
                    left.insert(seen.client);
                }
                _ => {}
            }
        }
        let Some((newest, client)) = confirmed else {
            continue;
        };
        context.report.expect(I7, *r#gen >= newest, || {
            format!("a lookup of {uid} found generation {gen}, and {newest} had been confirmed")
        });
        if *r#gen == newest && !left.contains(&client) {
            context.report.expect(I7, session.is_some(), || {
                format!(
                    "a lookup of {uid} found nobody, and the login of generation {newest} stands"
                )
            });
        }
    }
}

/// I8: a client gets no frame after its notice. A client whose session was superseded gets no frame
/// except the notice.
fn nothing_received_after_end(context: &mut CheckContext<'_>) {
    let slack = micros(context.rules.slack);
    let superseded: BTreeMap<_, _> = context
        .sessions
        .all()
        .filter_map(|life| Some((life.client?, life.superseded?.at)))
        .collect();
    let mut told = BTreeSet::new();
    for seen in &context.history.clients {
        let got = match &seen.what {
            What::Told { .. } => {
                told.insert(seen.client);
                continue;
            }
            What::LoginOk { .. } => "login_ok".to_owned(),
            What::Message { id } => format!("message {id}"),
            What::Outcome { id, .. } => format!("the outcome of message {id}"),
            _ => continue,
        };
        context
            .report
            .require(I8, !told.contains(&seen.client), || {
                format!(
                    "{} of {} got {got} after it was told to go",
                    seen.device, seen.uid
                )
            });
        if let Some(&at) = superseded.get(&seen.client) {
            // A frame that was written before the session's end may still be in flight.
            let late = seen.at_us > at + slack + IN_FLIGHT_US;
            let excused = context.history.was_paused(&seen.node, at, seen.at_us);
            context.report.require(I8, !late || excused, || {
                format!(
                    "{} of {} got {got} {} us after it was superseded",
                    seen.device,
                    seen.uid,
                    seen.at_us - at
                )
            });
        }
    }
    // The events of the nodes must agree: no message is delivered to a superseded session.
    for event in &context.history.nodes {
        if event.event != Transition::Delivered {
            continue;
        }
        let life = event.session.and_then(|it| context.sessions.get(it));
        if let Some(superseded) = life.and_then(|life| life.superseded) {
            // The sender's node records the event, later than the delivery.
            let late = event.clock_us > superseded.at + slack + IN_FLIGHT_US;
            let excused = context
                .history
                .was_paused(&event.node, superseded.at, event.clock_us);
            context.report.require(I8, !late || excused, || {
                format!(
                    "a message was delivered to {} {} us after it was superseded",
                    life.map(crate::evidence::sessions::SessionLife::describe)
                        .unwrap_or_default(),
                    event.clock_us - superseded.at
                )
            });
        }
    }
}

/// I8: messages from a superseded client that is still connected are refused. A message to the
/// account in that time counts as an occasion, because the superseded client could have got it.
fn nothing_sent_after_end(context: &mut CheckContext<'_>) {
    let sessions = context.sessions;
    let handled: Vec<_> = context
        .history
        .nodes
        .iter()
        .filter(|it| matches!(it.event, Transition::Delivered | Transition::Stored))
        .collect();
    for life in sessions.all() {
        let (Some(client), Some(superseded)) = (life.client, life.superseded) else {
            continue;
        };
        let of_client = || {
            context
                .history
                .clients
                .iter()
                .filter(|it| it.client == client)
        };
        let gone = of_client().find(|it| matches!(it.what, What::Leaves | What::Closed));
        let gone = gone.map_or(u64::MAX, |it| it.at_us);
        let meanwhile = |at: u64| superseded.at < at && at < gone;
        for event in &handled {
            if event.uid.as_ref() == Some(life.uid) && meanwhile(event.clock_us) {
                context.report.count_occasion(I8);
            }
        }
        for seen in of_client().filter(|it| meanwhile(it.at_us)) {
            if let What::Sent { id, .. } = &seen.what {
                let taken = handled
                    .iter()
                    .any(|it| it.message.as_deref() == Some(id.as_str()));
                context.report.expect(I8, !taken, || {
                    format!(
                        "message {id} of {} was taken after it was superseded",
                        life.describe()
                    )
                });
            }
        }
    }
}

/// I8 with strict confirmation: a login is confirmed only after every older session has ended.
fn strict_waits_for_older(context: &mut CheckContext<'_>) {
    if !context.rules.strict {
        return;
    }
    let sessions = context.sessions;
    for (_, lives) in sessions.by_uid() {
        for newer in &lives {
            let Some(at) = newer.admitted else {
                continue;
            };
            let older = lives
                .iter()
                .filter(|it| it.r#gen < newer.r#gen && it.admitted.is_some());
            for older in older {
                let ended = older.ended_at().is_some_and(|end| end <= at)
                    // The older session's node was paused until after the end of its lease. The
                    // node reports the end of the lease only when it runs again.
                    || context.history.was_paused(older.node, at, at);
                context.report.expect(I8, ended, || {
                    format!(
                        "{} was confirmed while {} was active",
                        newer.describe(),
                        older.describe()
                    )
                });
            }
        }
    }
}

/// I17: if a client got a success, the events of a node show that success.
fn no_false_success(context: &mut CheckContext<'_>) {
    let delivered: BTreeSet<&str> = context
        .history
        .nodes
        .iter()
        .filter(|event| event.event == Transition::Delivered)
        .filter_map(|event| event.message.as_deref())
        .collect();
    for seen in &context.history.clients {
        match &seen.what {
            What::LoginOk { session, r#gen } => {
                let life = context.sessions.get(*session);
                let killed = context
                    .history
                    .killed_after(&seen.node, seen.at_us)
                    .is_some();
                let admitted =
                    life.is_some_and(|life| life.admitted.is_some() && life.r#gen == *r#gen);
                context.report.expect(I17, admitted || killed, || {
                    format!(
                        "{} of {} was told that it is in as {session}, generation {gen}, \
                         and {} does not know of it",
                        seen.device, seen.uid, seen.node
                    )
                });
            }
            What::Outcome { id, outcome, .. }
                if matches!(outcome.as_str(), "delivered" | "written") =>
            {
                let killed = context
                    .history
                    .killed_after(&seen.node, seen.at_us)
                    .is_some();
                let known = delivered.contains(id.as_str()) || killed;
                context.report.expect(I17, known, || {
                    format!(
                        "the sender of message {id} was told that it was delivered, \
                         and no node knows of it"
                    )
                });
            }
            _ => {}
        }
    }
}
