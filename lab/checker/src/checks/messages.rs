//! I18: each message is delivered once to each of its devices, or stored, or reported as failed.

use std::collections::{BTreeMap, BTreeSet};

use distlock_kickout::{Device, NodeId, Transition, Uid};

use crate::{
    check::CheckContext,
    evidence::history::{DeviceOutcome, History, Seen, What},
    report::Invariant::*,
};

/// The observations of one message.
#[derive(Default)]
struct Message<'a> {
    /// The connection that sent the message.
    sender: Option<u64>,
    /// The node of the sender's connection.
    node: Option<&'a NodeId>,
    /// The receiving account, and the time of sending.
    to: Option<(&'a Uid, u64)>,
    /// The outcomes that the sender got.
    outcomes: Vec<&'a str>,
    /// The outcome for each device that the sender got, and the time at which the sender got them.
    devices: Option<(&'a [DeviceOutcome], u64)>,
    /// Number of times that clients received the message.
    received: usize,
    /// Devices that acknowledged the message.
    acked: Vec<&'a Device>,
    /// The connections that received the message.
    receivers: Vec<u64>,
    /// The account of a stored message, the device if the message is for one device only, and the
    /// time of the storing.
    kept: Option<(&'a Uid, Option<&'a Device>, u64)>,
}

pub(crate) fn check(context: &mut CheckContext<'_>) {
    let history = context.history;
    let over: BTreeSet<u64> = history
        .clients
        .iter()
        .filter(|seen| is_over(seen))
        .map(|seen| seen.client)
        .collect();
    for (id, message) in messages_of(history) {
        acknowledged_is_reported(context, id, &message);
        each_device_has_an_outcome(context, id, &message);
        received_once(context, id, &message, &over);
        stored_message_arrives(context, id, &message, &over);
        outcome_fits(context, id, &message, &over);
    }
}

/// The messages of a history by their ids.
fn messages_of(history: &History) -> BTreeMap<&str, Message<'_>> {
    let mut messages: BTreeMap<&str, Message<'_>> = BTreeMap::new();
    for seen in &history.clients {
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
            _ => {}
        }
    }
    for event in &history.nodes {
        if let (Transition::Stored, Some(id), Some(uid)) =
            (event.event, event.message.as_deref(), &event.uid)
        {
            let kept = (uid, event.device.as_ref(), event.clock_us);
            messages.entry(id).or_default().kept = Some(kept);
        }
    }
    for message in messages.values_mut() {
        message.receivers.sort_unstable();
        message.receivers.dedup();
    }
    messages
}

/// Each device receives a message once. A stored message is delivered again if its session ends
/// during the delivery, so the message may also have reached sessions that have ended.
fn received_once(
    context: &mut CheckContext<'_>,
    id: &str,
    message: &Message<'_>,
    over: &BTreeSet<u64>,
) {
    let each_once = message.received == message.receivers.len();
    let devices = message
        .devices
        .map_or(1, |(devices, _)| devices.len().max(1));
    let present = message.receivers.iter().filter(|it| !over.contains(it));
    let again = message.kept.is_some() && each_once && present.count() <= devices;
    let once = each_once && message.received <= devices;
    context.report.expect(I18, once || again, || {
        format!("message {id} was received {} times", message.received)
    });
}

/// A stored message reaches a session that started after the message was stored. A history ends
/// without faults, so a session that is active at the end must have received the message.
fn stored_message_arrives(
    context: &mut CheckContext<'_>,
    id: &str,
    message: &Message<'_>,
    over: &BTreeSet<u64>,
) {
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
}

/// The sender gets one outcome, and the receivers' observations do not contradict it.
fn outcome_fits(
    context: &mut CheckContext<'_>,
    id: &str,
    message: &Message<'_>,
    over: &BTreeSet<u64>,
) {
    let reported = match message.outcomes.as_slice() {
        // The sender's session ended before it could get the outcome.
        [] => message.sender.is_none_or(|sender| over.contains(&sender)),
        // A written message reaches its client: no scenario breaks a client's network.
        ["delivered" | "written"] => message.devices.is_some_and(|(devices, _)| {
            let told = |it: &&DeviceOutcome| matches!(&*it.outcome, "delivered" | "written");
            message.received >= devices.iter().filter(told).count()
        }),
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

/// I18: if the sender got the outcome `delivered` for a device, that device has acknowledged the
/// message.
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

/// I18: the report to the sender names every device that was logged in from the sending until the
/// report. A revoked session no longer counts, even if its client has no notice yet.
fn each_device_has_an_outcome(context: &mut CheckContext<'_>, id: &str, message: &Message<'_>) {
    let (Some((to, sent)), Some((devices, heard))) = (message.to, message.devices) else {
        return;
    };
    // A node that cannot read the directory does not know the sessions. Such a node reports a
    // failure without devices.
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
            && revoked.is_none_or(|revoked| revoked.clock_us > heard)
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

/// Whether this observation shows that the client's session has ended.
fn is_over(seen: &Seen) -> bool {
    matches!(seen.what, What::Told { .. } | What::Leaves | What::Closed)
}
