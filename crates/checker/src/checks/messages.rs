//! Messages: each one is delivered once to each of its devices, stored or reported: I18.

use std::collections::BTreeMap;

use distlock_kickout::{Device, NodeId, Transition, Uid};

use crate::{
    context::CheckContext,
    evidence::history::{DeviceOutcome, Seen, What},
    report::Invariant::*,
};

#[derive(Default)]
struct Message<'a> {
    sender: Option<u64>,
    /// The node of its sender's connection.
    node: Option<&'a NodeId>,
    /// The receiving account, and the time of sending.
    to: Option<(&'a Uid, u64)>,
    outcomes: Vec<&'a str>,
    /// The outcome for each device that the sender was told, and the time.
    devices: Option<(&'a [DeviceOutcome], u64)>,
    received: usize,
    /// Devices that acknowledged it.
    acked: Vec<&'a Device>,
    /// The connections that received it.
    receivers: Vec<u64>,
    /// If it was stored: the account, the device if it is for one only, and the time.
    kept: Option<(&'a Uid, Option<&'a Device>, u64)>,
}

pub(crate) fn check(context: &mut CheckContext<'_>) {
    let mut messages: BTreeMap<&str, Message<'_>> = BTreeMap::new();
    let mut over = std::collections::BTreeSet::new();
    for seen in &context.history.clients {
        match &seen.what {
            What::Sent { id, to } => {
                let message = messages.entry(id).or_default();
                message.sender = Some(seen.client);
                message.node = Some(&seen.node);
                message.to = to.as_ref().map(|to| (to, seen.at_us));
            }
            What::Acked { id } => messages.entry(id).or_default().acked.push(&seen.device),
            What::Outcome {
                id,
                outcome,
                devices,
            } => {
                let message = messages.entry(id).or_default();
                message.outcomes.push(outcome);
                message.devices = devices.as_deref().map(|devices| (devices, seen.at_us));
            }
            What::Message { id } => {
                let message = messages.entry(id).or_default();
                message.received += 1;
                message.receivers.push(seen.client);
            }
            _ if is_over(seen) => {
                over.insert(seen.client);
            }
            _ => {}
        }
    }
    for event in &context.history.nodes {
        if let (Transition::Stored, Some(id), Some(uid)) =
            (event.event, event.message.as_deref(), &event.uid)
        {
            let kept = (uid, event.device.as_ref(), event.boot_us);
            messages.entry(id).or_default().kept = Some(kept);
        }
    }
    for (id, mut message) in messages {
        message.receivers.sort_unstable();
        message.receivers.dedup();
        acknowledged_is_reported(context, id, &message);
        each_device_has_an_outcome(context, id, &message);
        // A stored message is handed out again if its session ends during the hand-out.
        let each_once = message.received == message.receivers.len();
        let devices = message
            .devices
            .map_or(1, |(devices, _)| devices.len().max(1));
        let again = message.kept.is_some()
            && each_once
            && message
                .receivers
                .iter()
                .filter(|it| !over.contains(it))
                .count()
                <= devices;
        let once = each_once && message.received <= devices;
        context.report.expect(I18, once || again, || {
            format!("message {id} was received {} times", message.received)
        });
        // A session that started after the message was stored and is still there has the message by
        // now, because a history ends without faults.
        let waits = message.kept.filter(|(uid, device, since)| {
            message.received == 0
                && message.outcomes == ["stored"]
                && context.history.clients.iter().any(|seen| {
                    matches!(seen.what, What::LoginOk { .. })
                        && seen.uid == **uid
                        && device.is_none_or(|device| seen.device == *device)
                        && seen.at_us > *since
                        && !over.contains(&seen.client)
                })
        });
        context.report.expect(I18, waits.is_none(), || {
            format!("message {id} was kept, and never handed out to those who came")
        });
        let reported = match message.outcomes.as_slice() {
            // The sender's session ended before it could get the outcome.
            [] => message.sender.is_none_or(|sender| over.contains(&sender)),
            ["delivered"] if message.devices.is_some() => true,
            ["delivered"] => message.received == 1,
            ["written"] => message.devices.is_some(),
            ["stored" | "failed"] => true,
            ["throttled" | "not_allowed"] => message.received == 0 && message.kept.is_none(),
            _ => false,
        };
        context.report.expect(I18, reported, || {
            format!(
                "message {id} was received {} times, and its sender was told {:?}",
                message.received, message.outcomes
            )
        });
    }
}

/// A device has acknowledged a message that was reported as delivered to it.
fn acknowledged_is_reported(context: &mut CheckContext<'_>, id: &str, message: &Message<'_>) {
    let devices = message.devices.map_or(&[][..], |(devices, _)| devices);
    for it in devices.iter().filter(|it| it.outcome == "delivered") {
        context
            .report
            .expect(I18, message.acked.contains(&&it.device), || {
                format!(
                    "message {id} was delivered to {}, its sender was told, \
                     and that has not acknowledged it",
                    it.device
                )
            });
    }
}

/// The report names every device that was logged in while the message was on its way. A session
/// that lost its slot is not current, even if it has no notice yet.
fn each_device_has_an_outcome(context: &mut CheckContext<'_>, id: &str, message: &Message<'_>) {
    let (Some((to, sent)), Some((devices, heard))) = (message.to, message.devices) else {
        return;
    };
    // A node without the directory knows no session, so it reports one failure and no devices.
    let has_store = |node: &NodeId| context.history.served_us(node, sent, heard) == heard - sent;
    let honest = devices.is_empty() && message.outcomes == ["failed"];
    if honest && !message.node.is_none_or(has_store) {
        return;
    }
    let over = |client: u64| {
        let mut ends = context
            .history
            .clients
            .iter()
            .filter(|it| it.client == client);
        ends.any(|it| it.at_us <= heard && is_over(it))
    };
    let current = |seen: &&Seen| {
        let What::LoginOk { session, .. } = seen.what else {
            return false;
        };
        let revoked = context.sessions.get(session).and_then(|it| it.revoked);
        seen.uid == *to
            && seen.at_us < sent
            && revoked.is_none_or(|revoked| revoked.boot_us > heard)
    };
    let forgotten: Vec<_> = context
        .history
        .clients
        .iter()
        .filter(current)
        .filter(|it| !over(it.client) && devices.iter().all(|told| told.device != it.device))
        .map(|it| it.device.to_string())
        .collect();
    context.report.expect(I18, forgotten.is_empty(), || {
        format!(
            "the sender of message {id} heard nothing of {}, which was in all the time",
            forgotten.join(" and ")
        )
    });
}

fn is_over(seen: &Seen) -> bool {
    matches!(seen.what, What::Told { .. } | What::Leaves | What::Closed)
}
