//! A connection with a session, until it ends.
//!
//! Invariant of this module: one request of the client is in progress at a time, so the answers
//! come in order. During a request, the connection reads acknowledgements, and up to `MAX_EARLY`
//! other frames. A request must never wait for an acknowledgement that the connection does not
//! read.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use distlock_core::Moment;
use distlock_kickout::{Code, Offline, Session};
use futures_util::future::{BoxFuture, FutureExt as _};

use super::{
    FrameReader, FrontContext, Incoming, deliver_kept,
    frames::{ErrorCode, Frame, FrameError, Inbound, Outbound},
    login::MAX_EARLY,
    outbox::Outbox,
    send,
};

/// Time that a client's request may take in addition to the heartbeat. Deliveries end much sooner,
/// so a longer request means that the client does not read its answers.
const REQUEST_LIMIT: Duration = Duration::from_secs(15);

/// A connection with a session.
pub(super) struct SessionConnection<R> {
    pub(super) session: Arc<Session>,
    /// The version of the protocol that the client speaks.
    pub(super) version: u64,
    pub(super) front: FrontContext,
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
        let session = Arc::clone(&self.session);
        // This runs in a separate task: messages that arrived must be removed from the store, even
        // if the session ends meanwhile.
        let kept = self.front.connections.spawn(deliver_kept::deliver_kept(
            self.front.clone(),
            Arc::clone(&session),
            outbox.replies(),
        ));
        let kept = async {
            let _ = kept.await;
        };
        // One request of the client is in progress at a time, and the next request is read after
        // the answer. Acknowledgements are no requests. Otherwise two clients that send to each
        // other would each wait for the other's acknowledgement.
        let acks = session.acknowledges();
        let mut work: Option<BoxFuture<'static, ()>> = (!acks).then(|| kept.boxed());
        let mut last_heard = self.front.clock.now();
        loop {
            let patience = if work.is_some() {
                REQUEST_LIMIT
            } else {
                Duration::ZERO
            };
            let silence = self.silence_left(last_heard + patience);
            let busy = work.is_some();
            let may_read = !busy || (acks && self.early.len() < MAX_EARLY);
            tokio::select! {
                biased;
                notice = session.superseded() => return EndReason::Notified(notice),
                () = outbox.until_closed() => return EndReason::Unwritable,
                () = wait_for_work(&mut work) => {
                    work = None;
                    last_heard = self.front.clock.now();
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
                    match self.start_request(incoming, outbox) {
                        Ok(next) => work = next,
                        Err(ending) => return ending,
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

    fn silence_left(&self, last_heard: Moment) -> Duration {
        (last_heard + self.front.heartbeat).since(self.front.clock.now())
    }

    fn start_request(
        &self,
        incoming: Incoming,
        outbox: &Outbox,
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
            Ok(Inbound::Bye | Inbound::Logout) => return Err(EndReason::Bye),
            Ok(Inbound::Send(frame)) => Some(Box::pin(send::answer_send(
                self.front.clone(),
                Arc::clone(&self.session),
                self.version,
                frame,
                outbox.replies(),
            ))),
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

/// Waits for the request in progress. Without a request, the call never returns.
async fn wait_for_work(work: &mut Option<BoxFuture<'static, ()>>) {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}
