//! Sends calls to the primaries that serve their keys, and follows the servers' instructions: load
//! a script, go to another server, try again.
//!
//! A call with an unknown outcome is never sent again here. A later refusal never replaces an
//! unknown outcome.

use std::{sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Result};
use futures_util::future::{join, join_all};
use redis::{Pipeline, Value};

use crate::{
    config::Endpoint,
    connection::Connection,
    error::{self, BACKEND},
    routing::{
        call::{Call, CallResult, Refusal, SlotMigrating, refusal},
        router::Router,
    },
};

/// The limit of attempts for one call, when servers ask for another attempt.
const MAX_ATTEMPTS: u32 = 6;

/// The replies to a call's commands, and the connection that they came from.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) replies: Vec<Value>,
    pub(crate) connection: Arc<Connection>,
    /// Whether the server sends a push when one of the tracked keys changes.
    pub(crate) is_tracked: bool,
    /// Whether the server has only some of the call's keys. Then nothing was done, and there are no
    /// replies.
    pub(crate) slot_migrating: bool,
}

/// Calls for one primary, each with its position among all calls.
type Group = Vec<(usize, Call)>;

impl Router {
    /// Sends one call.
    ///
    /// # Errors
    /// The server's refusal of any of the call's commands, or the reason why the server cannot be
    /// asked or does not answer.
    pub(crate) async fn ask(&self, call: Call) -> Result<Response> {
        let mut response = self.ask_all(vec![call]).await;
        response.pop().unwrap_or_else(|| Err(no_answer()))
    }

    /// Sends calls. The calls for one primary share a pipeline. Each call has its own answer, in
    /// the same order.
    pub(crate) async fn ask_all(&self, calls: Vec<Call>) -> Vec<Result<Response>> {
        let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
        let mut waiting: Group = calls.into_iter().enumerate().collect();
        for round in 0..MAX_ATTEMPTS {
            if round > 1 {
                // The second attempt follows without a pause. Further attempts mean that the
                // cluster is still changing.
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

    /// Sends calls once. Returns the calls that must be sent again. Their present answers are kept
    /// until a later attempt replaces them.
    async fn send_round(&self, calls: Group, answers: &mut [Option<Result<Response>>]) -> Group {
        let named: Vec<_> = calls
            .iter()
            .filter_map(|(_, call)| call.moved_to())
            .collect();
        let groups = self.groups(calls, answers).await;
        let sent = groups.into_iter().map(|group| self.send(group));
        let mut again = Group::new();
        // The slot map is read again at the same time. Without that, an answer from a server that
        // the map does not name would be attributed to the old epoch.
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
                            // If an earlier attempt of the call has an unknown outcome, the call
                            // must not be reported as not done.
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
        // A call that only tracks keys sends nothing while its slot migrates, so the pipeline may
        // be empty.
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

    /// Groups calls by their primary. If the slot map cannot be read, all calls that need it are
    /// answered here with one error. One look-up for each call would cost one time-out for each
    /// call.
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

    /// Prepares a refused call for another attempt. Returns whether the call must be sent again.
    fn prepare_retry(&self, call: &mut Call, refusal: &Refusal, connection: &Connection) -> bool {
        let (code, detail) = error::code_and_detail(&refusal.says);
        let target = || {
            let (_, address) = detail.split_once(' ')?;
            // A server may leave out the host or write `?`. Both mean the server's own host.
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
            // Any part of the preamble may have been refused, including `CLIENT TRACKING ON`.
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
            // The next attempt goes to the slot's old server. Only an `ASK` of the old server,
            // which means that a key is no longer there, leads to the new server.
            "TRYAGAIN" => match std::mem::replace(&mut call.slot_migrating, SlotMigrating::Retry) {
                SlotMigrating::Retry | SlotMigrating::Split => true,
                SlotMigrating::SendInstead(command) => {
                    (call.commands, call.script) = (vec![command], None);
                    true
                }
            },
            "READONLY" | "MASTERDOWN" | "LOADING" => {
                // The server is not the primary now. When it becomes the primary again, it has
                // another epoch, and it may have closed no connection in between.
                connection.invalidate_epoch();
                self.mark_stale(connection);
                false
            }
            "CLUSTERDOWN" => {
                self.mark_stale(connection);
                false
            }
            // Another request of this connection was to switch tracking on. That request was
            // refused, or the server has not processed it yet. So this request is sent again with
            // its own preamble.
            "ERR" => detail.contains("CLIENT CACHING"),
            _ => false,
        }
    }
}

/// Stores the answer of the latest attempt. An unknown outcome of an earlier attempt is kept if the
/// latest attempt was refused.
fn record_answer(answer: &mut Option<Result<Response>>, latest: Result<Response>) {
    if latest.is_ok() || !is_in_doubt(answer) {
        *answer = Some(latest);
    }
}

fn is_in_doubt(answer: &Option<Result<Response>>) -> bool {
    matches!(answer, Some(Err(before)) if before.kind() == ErrorKind::OutcomeUnknown)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Internal, "a request was sent to no server").on(BACKEND)
}
