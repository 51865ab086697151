//! Every message is delivered once, kept or reported: I18.

use std::collections::BTreeMap;

use distlock_kickout::{Transition, Uid};

use crate::{Scene, history::What, report::Invariant::*};

#[derive(Default)]
struct Message<'a> {
    sender: Option<u64>,
    outcomes: Vec<&'a str>,
    received: usize,
    /// The connections that got it.
    receivers: Vec<u64>,
    /// Nobody was in, so it was kept: for whom, and since when.
    kept: Option<(&'a Uid, u64)>,
}

pub(crate) fn check(scene: &mut Scene<'_>) {
    let mut messages: BTreeMap<&str, Message<'_>> = BTreeMap::new();
    let mut over = std::collections::BTreeSet::new();
    for seen in &scene.history.clients {
        match &seen.what {
            What::Sent { id } => messages.entry(id).or_default().sender = Some(seen.client),
            What::Outcome { id, outcome } => {
                messages.entry(id).or_default().outcomes.push(outcome);
            }
            What::Message { id } => {
                let message = messages.entry(id).or_default();
                message.received += 1;
                message.receivers.push(seen.client);
            }
            What::Told { .. } | What::Leaves | What::Closed => {
                over.insert(seen.client);
            }
            _ => {}
        }
    }
    for event in &scene.history.nodes {
        if let (Transition::Stored, Some(id), Some(uid)) =
            (event.event, event.message.as_deref(), &event.uid)
        {
            messages.entry(id).or_default().kept = Some((uid, event.boot_us));
        }
    }
    for (id, mut message) in messages {
        message.receivers.sort_unstable();
        message.receivers.dedup();
        // What was kept is handed out anew when a session ends while it is being handed out to it.
        let each_once = message.received == message.receivers.len();
        let again = message.kept.is_some()
            && each_once
            && message
                .receivers
                .iter()
                .filter(|it| !over.contains(it))
                .count()
                <= 1;
        scene
            .report
            .expect(I18, message.received <= 1 || again, || {
                format!("message {id} was received {} times", message.received)
            });
        // Whoever came after it was kept, and is still there, has it by now: a history ends in peace.
        let waits = message.kept.filter(|(uid, since)| {
            message.received == 0
                && message.outcomes == ["stored"]
                && scene.history.clients.iter().any(|seen| {
                    matches!(seen.what, What::LoginOk { .. })
                        && seen.uid == **uid
                        && seen.at_us > *since
                        && !over.contains(&seen.client)
                })
        });
        scene.report.expect(I18, waits.is_none(), || {
            format!("message {id} was kept, and never handed out to those who came")
        });
        let reported = match message.outcomes.as_slice() {
            // The sender's session ended before it could be told.
            [] => message.sender.is_none_or(|sender| over.contains(&sender)),
            ["delivered"] => message.received == 1,
            ["stored" | "failed"] => true,
            _ => false,
        };
        scene.report.expect(I18, reported, || {
            format!(
                "message {id} was received {} times, and its sender was told {:?}",
                message.received, message.outcomes
            )
        });
    }
}
