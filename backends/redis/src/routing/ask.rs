//! Requests to whatever primaries serve them, and what servers ask for in between: a script that is not loaded, a slot that
//! moved.

use std::{sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::{join, join_all};
use redis::{Pipeline, Value};

use crate::{
    config::Endpoint,
    connection::Connection,
    error::{self, BACKEND},
    routing::router::Router,
};

use crate::routing::call::{Call, CallResult, Refusal, SlotMigrating, refusal};

/// How often a request is sent again because a server asked for it.
const ROUNDS: u32 = 6;

/// The replies to a call's commands, and who gave them.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) replies: Vec<Value>,
    pub(crate) connection: Arc<Connection>,
    /// Whether the server says so when one of the keys that were to be tracked changes.
    pub(crate) is_tracked: bool,
    /// Nothing was done, and there are no replies: the server has some of the keys and not others.
    pub(crate) slot_migrating: bool,
}

/// Calls that go to one primary in one go, with their places among all.
type Group = Vec<(usize, Call)>;

impl Router {
    /// Sends one call.
    ///
    /// # Errors
    /// The server's refusal of any of its commands, and what keeps it from being asked or from answering.
    pub(crate) async fn ask(&self, call: Call) -> Result<Response> {
        let mut response = self.ask_all(vec![call]).await;
        response.pop().unwrap_or_else(|| Err(no_answer()))
    }

    /// Sends calls, those for one primary in one go. Each has an answer of its own, in the same order.
    pub(crate) async fn ask_all(&self, calls: Vec<Call>) -> Vec<Result<Response>> {
        let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
        let mut waiting: Group = calls.into_iter().enumerate().collect();
        for round in 0..ROUNDS {
            if round > 1 {
                // A redirect that leads nowhere yet.
                let pause = Duration::from_millis(10 << round);
                self.connector.clock().sleep(pause).await;
            }
            waiting = self.send_round(waiting, &mut answers).await;
            if waiting.is_empty() {
                break;
            }
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(no_answer())))
            .collect()
    }

    /// Sends calls once. Returns those that must be sent again; the present answers to them stand until then.
    async fn send_round(&self, calls: Group, answers: &mut [Option<Result<Response>>]) -> Group {
        let named: Vec<_> = calls
            .iter()
            .filter_map(|(_, call)| call.moved_to())
            .collect();
        let groups = self.groups(calls, answers).await;
        let sent = groups.into_iter().map(|group| self.send(group));
        let mut again = Group::new();
        // The answer of a server that the map does not name would be told as of the history before.
        let (sent, ()) = join(join_all(sent), self.renew_map(&named)).await;
        for (group, outcome) in sent {
            match outcome {
                Err(error) => {
                    for (at, _) in group {
                        record_answer(&mut answers[at], Err(error.clone()));
                    }
                }
                Ok((connection, replies)) => {
                    for ((at, mut call), replies) in group.into_iter().zip(replies) {
                        let answer = match replies {
                            Ok(replies) => Ok(Response {
                                replies,
                                connection: Arc::clone(&connection),
                                is_tracked: call.tracking_read().is_some(),
                                slot_migrating: false,
                            }),
                            // What may have been carried out before must not pass for not done.
                            Err(refusal)
                                if call.splits_on(&refusal) && !is_in_doubt(&answers[at]) =>
                            {
                                Ok(Response {
                                    replies: Vec::new(),
                                    connection: Arc::clone(&connection),
                                    is_tracked: false,
                                    slot_migrating: true,
                                })
                            }
                            Err(refusal) => {
                                if self.prepare_retry(&mut call, &refusal, &connection) {
                                    again.push((at, call));
                                }
                                Err(refusal.into_error(&connection.address))
                            }
                        };
                        record_answer(&mut answers[at], answer);
                    }
                }
            }
        }
        again
    }

    async fn send(&self, group: Group) -> (Group, Result<(Arc<Connection>, Vec<CallResult>)>) {
        let outcome = self.send_group(&group).await;
        (group, outcome)
    }

    async fn send_group(&self, group: &Group) -> Result<(Arc<Connection>, Vec<CallResult>)> {
        let Some((_, first)) = group.first() else {
            return Err(no_answer());
        };
        let connection = match &first.redirect {
            Some((endpoint, _)) => self.connection_at(endpoint).await?,
            None => self.connection(first.bucket).await?,
        };
        if let [(_, call)] = &**group
            && let Some(command) = call.only_command()
        {
            let reply = connection.send_one(command).await;
            let reply = reply.inspect_err(|_| self.mark_stale(&connection))?;
            let replies = match refusal(&reply) {
                Some(says) => Err(Refusal::of_all(says)),
                None => Ok(vec![reply]),
            };
            return Ok((connection, vec![replies]));
        }
        let mut pipeline = Pipeline::with_capacity(group.len());
        let preambles: Vec<_> = group
            .iter()
            .map(|(_, call)| call.write(&mut pipeline, &connection))
            .collect();
        let mut replies = Vec::new();
        // A look that is to be remembered, and cannot be, leaves nothing to send.
        if !pipeline.is_empty() {
            let sent = connection.send(&pipeline).await;
            replies = sent.inspect_err(|_| self.mark_stale(&connection))?;
        }
        let mut replies = replies.into_iter();
        let read = group
            .iter()
            .zip(preambles)
            .map(|((_, call), preamble)| call.read(preamble, &mut replies))
            .collect();
        Ok((connection, read))
    }

    /// Puts together what goes to one primary. Those whose primary nobody can be asked for are answered here: all at once,
    /// because whoever looked for one after the other would keep them all waiting for as many times as there are.
    async fn groups(&self, calls: Group, answers: &mut [Option<Result<Response>>]) -> Vec<Group> {
        if !self.is_cluster() {
            return vec![calls];
        }
        let (mut ready, straight): (Group, Group) = calls
            .into_iter()
            .partition(|(_, call)| call.redirect.is_some());
        let mut map = None;
        if !straight.is_empty() {
            match self.map().await {
                Ok(known) => {
                    map = known;
                    ready.extend(straight);
                }
                Err(error) => {
                    for (at, _) in straight {
                        record_answer(&mut answers[at], Err(error.clone()));
                    }
                }
            }
        }
        let mut groups: Vec<(Option<Endpoint>, Group)> = Vec::new();
        for (at, call) in ready {
            let primary = match (&call.redirect, &map) {
                (Some((endpoint, _)), _) => Some(endpoint),
                (None, Some(map)) => map.primary_of(call.bucket),
                (None, None) => None,
            };
            match groups.iter_mut().find(|(known, group)| {
                known.as_ref() == primary
                    && group[0].1.redirect.is_some() == call.redirect.is_some()
            }) {
                Some((_, group)) => group.push((at, call)),
                None => groups.push((primary.cloned(), vec![(at, call)])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Whether to send a call again after this refusal, and where to.
    fn prepare_retry(&self, call: &mut Call, refusal: &Refusal, connection: &Connection) -> bool {
        let (code, detail) = error::said(&refusal.says);
        let target = || {
            let (_, address) = detail.split_once(' ')?;
            // A server may leave out the host, or not know it: then it is its own.
            let own_host = Endpoint::parse(&connection.address, 0)?.host;
            let port = address.strip_prefix('?').unwrap_or(address);
            let endpoint = match port.strip_prefix(':') {
                Some(port) => Endpoint::new(own_host, port.parse().ok()?),
                None => Endpoint::parse(address, 0)?,
            };
            Some(endpoint)
        };
        call.redirect = None;
        if refusal.of_preamble {
            // Whatever it was that it refused: it may not have been told to remember.
            connection.forget_tracking();
        }
        match code {
            "NOSCRIPT" => {
                call.send_source();
                true
            }
            "MOVED" if self.is_cluster() => {
                self.mark_stale(connection);
                call.redirect = target().map(|endpoint| (endpoint, false));
                true
            }
            "ASK" if self.is_cluster() => {
                call.redirect = target().map(|endpoint| (endpoint, true));
                true
            }
            // Back to where the slot comes from: only its word that a key has gone leads to the new place.
            "TRYAGAIN" => match std::mem::replace(&mut call.slot_migrating, SlotMigrating::Retry) {
                SlotMigrating::Retry | SlotMigrating::Split => true,
                SlotMigrating::SendInstead(command) => {
                    (call.commands, call.script) = (vec![command], None);
                    true
                }
            },
            "READONLY" | "MASTERDOWN" | "LOADING" => {
                // It is not the primary any more, or not yet. When it is again, it has begun another history, and may have
                // closed no connection.
                connection.invalidate_epoch();
                self.mark_stale(connection);
                false
            }
            "CLUSTERDOWN" => {
                self.mark_stale(connection);
                false
            }
            // It was to be told by another request, which was refused or comes later.
            "ERR" => detail.contains("CLIENT CACHING"),
            _ => false,
        }
    }
}

/// What a call came to when it was sent once more. What may have been carried out before stays in doubt if this was refused.
fn record_answer(answer: &mut Option<Result<Response>>, latest: Result<Response>) {
    if latest.is_ok() || !is_in_doubt(answer) {
        *answer = Some(latest);
    }
}

fn is_in_doubt(answer: &Option<Result<Response>>) -> bool {
    matches!(answer, Some(Err(before)) if before.kind() == ErrorKind::OutcomeUnknown)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Internal, "a request was sent nowhere").on(BACKEND)
}
