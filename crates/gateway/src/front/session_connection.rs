//! A connection with a session, until it ends.
//!
//! Invariant of this module: a frame waits for no receiver of a message. A message is in progress
//! beside the frames that follow it ([`SendsInProgress`]); any other frame is answered before the
//! next one is read. While the connection reads no further frames, it still reads acknowledgements,
//! and up to `MAX_EARLY` other frames. A message must never wait for an acknowledgement that the
//! connection does not read.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use distlock_core::Moment;
use distlock_kickout::{Code, Offline, Session};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

use super::{
    FrameReader, FrontContext, Incoming, deliver_kept,
    frames::{ErrorCode, Frame, FrameError, Inbound, Outbound},
    login::MAX_EARLY,
    outbox::Outbox,
    send::SendsInProgress,
};

/// Time that a client's request may take in addition to the heartbeat. Deliveries end much sooner,
/// so a longer request means that the client does not read its answers.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// A connection with a session.
pub(super) struct SessionConnection<R> {
    pub(super) session: Arc<Session>,
    /// Whether the logout has begun.
    pub(super) logged_out: bool,
    pub(super) front: Arc<FrontContext>,
    pub(super) reader: R,
    /// Frames that the client sent after its login, or after a request without an answer yet.
    pub(super) early: VecDeque<Incoming>,
}

/// The reason why a connection with a session ends.
pub(super) enum EndReason {
    /// The client's connection has ended.
    Gone,
    /// Nothing more can be written to the client.
    Unwritable,
    /// The client closes.
    Closing,
    /// The client sent a `bye` or `logout` frame, and will close.
    Bye,
    /// The client sent bytes that are no frame, so later bytes cannot be read as frames.
    Broken(ErrorCode, &'static str),
    /// The session must end, with this notice.
    Notified(Offline),
}

/// Returns the next frame of the client. Early frames come first, unless `only_new` is true.
///
/// Cancel safety: the same as that of the reader.
pub(super) async fn next_incoming<R: FrameReader>(
    early: &mut VecDeque<Incoming>,
    reader: &mut R,
    only_new: bool,
) -> Incoming {
    match early.pop_front_if(|_| !only_new) {
        Some(incoming) => incoming,
        None => reader.next().await,
    }
}

impl<R: FrameReader> SessionConnection<R> {
    pub(super) async fn serve_requests(&mut self, outbox: &Outbox) -> EndReason {
        let mut sends = SendsInProgress::new(
            self.front.clone(),
            Arc::clone(&self.session),
            outbox.replies(),
        );
        let reason = self.serve_until_end(outbox, &mut sends).await;
        if !sends.is_empty() {
            self.front.connections.spawn(sends.finish());
        }
        reason
    }

    async fn serve_until_end(&mut self, outbox: &Outbox, sends: &mut SendsInProgress) -> EndReason {
        let session = Arc::clone(&self.session);
        let acks = session.acknowledges();
        let mut handing_out = Some(self.hand_out(outbox));
        // A client that does not acknowledge gets the stored messages before an answer. A hand-out
        // to a client that acknowledges lasts until its acknowledgements are read.
        let mut waits_for_kept = !acks;
        let mut reply: Option<BoxFuture<'static, ()>> = None;
        // The end of the connection, and the moment at which it comes at the latest. The slot of
        // the account stays taken until the logout, so a slow receiver must not delay that for
        // long.
        let mut ending: Option<(EndReason, Moment)> = None;
        let mut last_heard = self.front.clock.now();
        loop {
            // A client may leave right after a message. The message is still delivered, and
            // answered if the client reads on.
            let now = self.front.clock.now();
            if let Some((reason, _)) = ending.take_if(|(_, at)| sends.is_empty() || now >= *at) {
                return reason;
            }
            let leaves_in = ending
                .as_ref()
                .map_or(REQUEST_LIMIT, |(_, at)| at.since(now));
            let busy = reply.is_some() || sends.is_full() || ending.is_some() || waits_for_kept;
            let patience = if busy { REQUEST_LIMIT } else { Duration::ZERO };
            let silence = self.silence_left(last_heard + patience);
            let may_read = !busy || (acks && self.early.len() < MAX_EARLY);
            tokio::select! {
                biased;
                () = self.front.clock.sleep(leaves_in), if ending.is_some() => {}
                notice = session.superseded() => return EndReason::Notified(notice),
                () = outbox.until_closed() => return EndReason::Unwritable,
                () = wait_for_reply(&mut reply) => {
                    reply = None;
                    last_heard = self.front.clock.now();
                }
                () = sends.next_done() => {
                    if busy {
                        last_heard = self.front.clock.now();
                    }
                }
                () = wait_for_hand_out(&mut handing_out) => {
                    handing_out = None;
                    waits_for_kept = false;
                    last_heard = self.front.clock.now();
                }
                () = session.hand_out_asked(), if handing_out.is_none() => {
                    handing_out = Some(self.hand_out(outbox));
                }
                incoming = next_incoming(&mut self.early, &mut self.reader, busy), if may_read => {
                    last_heard = self.front.clock.now();
                    if busy {
                        match acknowledged_number(&incoming) {
                            Some(seq) => outbox.note_acknowledged(seq),
                            None => self.early.push_back(incoming),
                        }
                        continue;
                    }
                    match self.start_request(incoming, outbox, sends) {
                        Ok(next) => reply = next,
                        Err(reason) => {
                            ending = Some((reason, self.front.clock.now() + REQUEST_LIMIT));
                        }
                    }
                }
                () = self.front.clock.sleep(silence) => {
                    if self.silence_left(last_heard + patience).is_zero() {
                        session.end(Code::HeartbeatLost);
                    }
                }
            }
        }
    }

    /// Hands out the messages that were stored for the account. This runs in a separate task:
    /// messages that arrived must be removed from the store, even if the session ends meanwhile.
    fn hand_out(&self, outbox: &Outbox) -> JoinHandle<()> {
        self.front.connections.spawn(deliver_kept::deliver_kept(
            self.front.clone(),
            Arc::clone(&self.session),
            outbox.replies(),
        ))
    }

    fn silence_left(&self, last_heard: Moment) -> Duration {
        (last_heard + self.front.heartbeat).since(self.front.clock.now())
    }

    /// Starts the client's request. Returns the answer if it waits for room in the outbox.
    fn start_request(
        &self,
        incoming: Incoming,
        outbox: &Outbox,
        sends: &mut SendsInProgress,
    ) -> Result<Option<BoxFuture<'static, ()>>, EndReason> {
        let reply = |frame: Frame| -> Option<BoxFuture<'static, ()>> {
            let replies = outbox.replies();
            Some(Box::pin(async move {
                // A send fails if the outbox is closed, and the connection's own loop notices the
                // closed outbox.
                let _ = replies.send(frame.into()).await;
            }))
        };
        let error = |code, reason: &str, id: Option<&str>| {
            reply(
                Outbound::Error {
                    code,
                    reason,
                    id,
                    retry_after_ms: None,
                }
                .to_frame(),
            )
        };
        let (text, id) = match incoming {
            Incoming::Frame(text, id) => (text, id),
            Incoming::Alive => return Ok(None),
            Incoming::Bad(code, reason) => return Err(EndReason::Broken(code, reason)),
            Incoming::Closing => return Err(EndReason::Closing),
            Incoming::Gone => return Err(EndReason::Gone),
        };
        Ok(match Inbound::parse(&text, id) {
            Err(FrameError::Garbage) => {
                return Err(EndReason::Broken(
                    ErrorCode::BadFrame,
                    "not a frame of this protocol",
                ));
            }
            Err(FrameError::Value { why, id }) => error(ErrorCode::BadValue, &why, id.as_deref()),
            Ok(Inbound::Login(_)) => error(ErrorCode::LoggedIn, "there was a login already", None),
            Ok(Inbound::Ping) => reply(Outbound::Pong.to_frame()),
            Ok(Inbound::Ack(ack)) => {
                outbox.note_acknowledged(ack.seq);
                None
            }
            Ok(Inbound::Saved) => {
                let why = "saved is an answer to offline: the session has not ended";
                error(ErrorCode::BadValue, why, None)
            }
            Ok(Inbound::Bye | Inbound::Logout) => return Err(EndReason::Bye),
            Ok(Inbound::Send(frame)) => {
                sends.push(frame);
                None
            }
        })
    }
}

/// The number of the message that a frame acknowledges; `None` for another frame.
fn acknowledged_number(incoming: &Incoming) -> Option<u64> {
    let Incoming::Frame(text, id) = incoming else {
        return None;
    };
    match Inbound::parse(text, *id) {
        Ok(Inbound::Ack(ack)) => Some(ack.seq),
        _ => None,
    }
}

/// Waits until the answer is in the outbox. Without an answer, the call never returns.
async fn wait_for_reply(reply: &mut Option<BoxFuture<'static, ()>>) {
    match reply {
        Some(reply) => reply.await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of the hand-out. Without a hand-out, the call never returns.
async fn wait_for_hand_out(handing_out: &mut Option<JoinHandle<()>>) {
    match handing_out {
        Some(task) => {
            let _ = task.await;
        }
        None => std::future::pending().await,
    }
}
