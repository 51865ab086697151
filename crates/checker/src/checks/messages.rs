//! Every message is delivered once to each device that it is for, kept or reported: I18.

use std::collections::BTreeMap;

use distlock_kickout::{Device, NodeId, Transition, Uid};

use crate::{
    evidence::history::{DeviceOutcome, Seen, What},
    report::Invariant::*,
    scene::Scene,
};

#[derive(Default)]
struct Message<'a> {
    sender: Option<u64>,
    /// The node that its sender is connected to.
    node: Option<&'a NodeId>,
    /// Whom it is for, and when it was sent.
    to: Option<(&'a Uid, u64)>,
    outcomes: Vec<&'a str>,
    /// What its sender heard of each device, and when.
    devices: Option<(&'a [DeviceOutcome], u64)>,
    received: usize,
    /// Devices that acknowledged it.
    acked: Vec<&'a Device>,
    /// The connections that got it.
    receivers: Vec<u64>,
    /// It was kept: for whom, for which device if for one only, and since when.
    kept: Option<(&'a Uid, Option<&'a Device>, u64)>,
}

pub(crate) fn check(scene: &mut Scene<'_>) {
    let mut messages: BTreeMap<&str, Message<'_>> = BTreeMap::new();
    let mut over = std::collections::BTreeSet::new();
    for seen in &scene.history.clients {
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
    for event in &scene.history.nodes {
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
        acknowledged_is_reported(scene, id, &message);
        each_device_has_an_outcome(scene, id, &message);
        // What was kept is handed out anew when a session ends while it is being handed out to it.
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
        scene.report.expect(I18, once || again, || {
            format!("message {id} was received {} times", message.received)
        });
        // Whoever came after it was kept, and is still there, has it by now: a history ends in peace.
        let waits = message.kept.filter(|(uid, device, since)| {
            message.received == 0
                && message.outcomes == ["stored"]
                && scene.history.clients.iter().any(|seen| {
                    matches!(seen.what, What::LoginOk { .. })
                        && seen.uid == **uid
                        && device.is_none_or(|device| seen.device == *device)
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
            ["delivered"] if message.devices.is_some() => true,
            ["delivered"] => message.received == 1,
            ["written"] => message.devices.is_some(),
            ["stored" | "failed"] => true,
            ["throttled" | "not_allowed"] => message.received == 0 && message.kept.is_none(),
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

/// A device of which the sender was told that the message was delivered has acknowledged it.
fn acknowledged_is_reported(scene: &mut Scene<'_>, id: &str, message: &Message<'_>) {
    let devices = message.devices.map_or(&[][..], |(devices, _)| devices);
    for it in devices.iter().filter(|it| it.outcome == "delivered") {
        scene
            .report
            .expect(I18, message.acked.contains(&&it.device), || {
                format!(
                    "message {id} was delivered to {}, its sender was told, and that has not acknowledged it",
                    it.device
                )
            });
    }
}

/// Who was in while a message was on its way is among the devices of which its sender was told.
/// A session whose place another one had taken is no current one, also if it could not be told.
fn each_device_has_an_outcome(scene: &mut Scene<'_>, id: &str, message: &Message<'_>) {
    let (Some((to, sent)), Some((devices, heard))) = (message.to, message.devices) else {
        return;
    };
    // Without the directory nobody knows who is in: the sender hears that it failed, of no device.
    let has_store = |node: &NodeId| scene.history.served_us(node, sent, heard) == heard - sent;
    let honest = devices.is_empty() && message.outcomes == ["failed"];
    if honest && !message.node.is_none_or(has_store) {
        return;
    }
    let over = |client: u64| {
        let mut ends = scene
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
        let revoked = scene.sessions.get(session).and_then(|it| it.revoked);
        seen.uid == *to
            && seen.at_us < sent
            && revoked.is_none_or(|revoked| revoked.boot_us > heard)
    };
    let forgotten: Vec<_> = scene
        .history
        .clients
        .iter()
        .filter(current)
        .filter(|it| !over(it.client) && devices.iter().all(|told| told.device != it.device))
        .map(|it| it.device.to_string())
        .collect();
    scene.report.expect(I18, forgotten.is_empty(), || {
        format!(
            "the sender of message {id} heard nothing of {}, which was in all the time",
            forgotten.join(" and ")
        )
    });
}

fn is_over(seen: &Seen) -> bool {
    matches!(seen.what, What::Told { .. } | What::Leaves | What::Closed)
}
