//! Every message is delivered once, kept or reported: I18.

use std::collections::BTreeMap;

use crate::{Scene, history::What, report::Invariant::*};

#[derive(Default)]
struct Message<'a> {
    sender: Option<u64>,
    outcomes: Vec<&'a str>,
    received: usize,
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
            What::Message { id } => messages.entry(id).or_default().received += 1,
            What::Told { .. } | What::Leaves | What::Closed => {
                over.insert(seen.client);
            }
            _ => {}
        }
    }
    for (id, message) in messages {
        scene.report.expect(I18, message.received <= 1, || {
            format!("message {id} was received {} times", message.received)
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
