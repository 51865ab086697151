//! The end of a connection that has a session.
//!
//! This module keeps this order: the notice is written first, then the client gets the grace to
//! close, and a reset comes last. A connection must never close while its notice is not written and
//! the grace lasts.

use std::{sync::Arc, time::Duration};

use distlock_core::Moment;
use tokio_util::task::AbortOnDropHandle;

use super::{
    FrameReader, FrameWriter, Incoming,
    frames::{ErrorCode, Inbound, Outbound},
    outbox::{Outbox, Urgent},
    session_connection::{EndReason, SessionConnection, next_incoming},
};

/// Time for the last frame of a connection to be sent before the reset.
pub(super) const LAST_FRAME_TIME: Duration = Duration::from_millis(100);

impl<R: FrameReader> SessionConnection<R> {
    /// Serves the connection and ends it. Returns true if the client closed the connection first.
    pub(super) async fn run<W: FrameWriter>(&mut self, writer: W) -> bool {
        let inbox = Arc::clone(&self.front.inbox);
        let (outbox, writing) = Outbox::open(writer, Arc::clone(&self.session), inbox);
        let writing = AbortOnDropHandle::new(tokio::spawn(writing));
        let ending = self.serve_requests(&outbox).await;
        // A logout ends the wait of a newer login for the save. A client says that it has saved
        // only after its notice.
        let client_saves = self.session.saves() && self.front.saver.is_none();
        if !(client_saves && matches!(ending, EndReason::Notified(_))) {
            self.log_out();
        }
        let clean = self.close(&outbox, ending).await;
        self.log_out();
        drop(writing);
        clean
    }

    /// Logs out, after the service has saved if there is one. Only the first call has an effect.
    ///
    /// The logout runs in a separate task. So the directory does not wait until the client has
    /// left, and the connection does not stay open while the store does not answer.
    fn log_out(&mut self) {
        if std::mem::replace(&mut self.logged_out, true) {
            return;
        }
        let (session, saver) = (Arc::clone(&self.session), self.front.saver.clone());
        self.front.connections.spawn(async move {
            if let Some(saver) = saver {
                saver.save(&session).await;
            }
            session.logout().await;
        });
    }

    /// Ends the connection: the last frame is written first, and then the client gets the grace to
    /// close the connection itself.
    pub(super) async fn close(&mut self, outbox: &Outbox, ending: EndReason) -> bool {
        let mut grace = self.front.grace;
        let (code, reason) = match &ending {
            EndReason::Gone => return true,
            EndReason::Unwritable => return false,
            EndReason::Closing => return self.wait_for_tcp_end().await,
            EndReason::Bye => (NORMAL, "goodbye"),
            EndReason::Broken(code, reason) => {
                let frame = Outbound::Error {
                    code: *code,
                    reason,
                    id: None,
                    retry_after_ms: None,
                };
                outbox.queue_urgent(Urgent::LastFrame(frame.to_frame()));
                (close_code(*code), *reason)
            }
            EndReason::Notified(notice) => {
                // A client that saves has more time.
                grace = Duration::from_millis(notice.grace_ms);
                outbox.queue_urgent(Urgent::LastFrame(Outbound::Offline(notice).to_frame()));
                (notice.code.websocket(), notice.code.text())
            }
        };
        let until = self.front.clock.now() + grace;
        let mut patient = !matches!(ending, EndReason::Broken(..));
        while patient {
            let left = until.since(self.front.clock.now());
            // This check also ends the wait for a client that never stops sending.
            if left.is_zero() {
                break;
            }
            let next = next_incoming(&mut self.early, &mut self.reader, false);
            match self.front.within(left, next).await {
                Some(Incoming::Gone) => return true,
                Some(Incoming::Closing) => return self.wait_for_tcp_end().await,
                Some(Incoming::Frame(text, id)) => {
                    let sent = match Inbound::parse(&text, id) {
                        Ok(Inbound::Send(frame)) => Some(frame.id),
                        Ok(Inbound::Login(_)) => None,
                        Ok(Inbound::Saved) => {
                            self.session.saved();
                            self.log_out();
                            continue;
                        }
                        _ => continue,
                    };
                    let frame = Outbound::Error {
                        code: ErrorCode::Superseded,
                        reason: "the session is over",
                        id: sent.as_deref(),
                        retry_after_ms: None,
                    };
                    outbox.queue_urgent(Urgent::Frame(frame.to_frame()));
                }
                Some(Incoming::Bad(..)) | None => patient = false,
                Some(Incoming::Alive) => {}
            }
        }
        self.disconnect(outbox, until, code, reason).await
    }

    /// Ends the connection of a client that does not leave, or that sends no frames of this
    /// protocol. The last frame may be written until `until`, because a reset discards bytes that
    /// are not sent yet. Afterwards the frame gets a short time to arrive.
    async fn disconnect(
        &mut self,
        outbox: &Outbox,
        until: Moment,
        code: u16,
        reason: &'static str,
    ) -> bool {
        outbox.queue_urgent(Urgent::Close(code, reason));
        let front = self.front.clone();
        let reader = &mut self.reader;
        let written = async {
            let left = until.since(front.clock.now());
            front.within(left, outbox.until_closed()).await;
            front.clock.sleep(LAST_FRAME_TIME).await;
        };
        // The connection is still read meanwhile, because some clients read only after they have
        // sent everything. After a frame over the limit the reader reads nothing, and this branch
        // never ends.
        let client_closed = async {
            let closed = loop {
                match reader.next().await {
                    Incoming::Gone => break true,
                    Incoming::Closing => break false,
                    _ => {}
                }
            };
            outbox.until_closed().await;
            closed
        };
        let closed = tokio::select! {
            biased;
            () = written => false,
            closed = client_closed => closed,
        };
        metrics::counter!("distlock_connections_cut_total").increment(1);
        self.session.cut_off();
        closed
    }

    /// Waits after both closing frames; the library answers a closing frame by itself. Only the TCP
    /// connection is left, and the client may end it first if the client does so at once.
    async fn wait_for_tcp_end(&mut self) -> bool {
        let front = self.front.clone();
        front
            .within(LAST_FRAME_TIME, async {
                while !matches!(self.reader.next().await, Incoming::Gone) {}
            })
            .await;
        front.clock.sleep(LAST_FRAME_TIME / 2).await;
        false
    }
}

/// Close codes of RFC 6455.
pub(super) const NORMAL: u16 = 1000;
pub(super) const POLICY_VIOLATION: u16 = 1008;
const TOO_BIG: u16 = 1009;

pub(super) const fn close_code(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::TooLong => TOO_BIG,
        _ => POLICY_VIOLATION,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, io};

    use async_trait::async_trait;
    use distlock_core::{Clock as _, SystemClock};
    use distlock_kickout::{Code, Uid};
    use distlock_memory::Memory;
    use tokio::time::timeout;

    use super::{
        super::{
            fixtures::{LONG, ReadingClient, front_context, log_in_device, start_kickout},
            frames::Frame,
        },
        *,
    };
    use crate::inbox::RecordsInbox;

    /// A client that sends these frames, and then keeps its connection.
    struct SendingClient(VecDeque<Incoming>);

    #[async_trait]
    impl FrameReader for SendingClient {
        async fn next(&mut self) -> Incoming {
            match self.0.pop_front() {
                Some(incoming) => incoming,
                None => std::future::pending().await,
            }
        }
    }

    /// A client that reads slowly.
    struct SlowClient(ReadingClient);

    #[async_trait]
    impl FrameWriter for SlowClient {
        async fn send(&mut self, frame: &Frame) -> io::Result<()> {
            SystemClock.sleep(LAST_FRAME_TIME * 3).await;
            self.0.send(frame).await
        }

        async fn close(&mut self, code: u16, reason: &str) -> io::Result<()> {
            self.0.close(code, reason).await
        }
    }

    #[tokio::test]
    async fn the_last_frame_is_written_even_to_a_slow_client() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let bad = || Incoming::Bad(ErrorCode::BadFrame, "no frame");
        for (code, wanted) in [(None, "error"), (Some(Code::Superseded), "offline")] {
            let anna = Uid::new("anna").unwrap();
            let session = Arc::new(log_in_device(&kick, &anna).await);
            let mut session_connection = SessionConnection {
                early: VecDeque::new(),
                session: Arc::clone(&session),
                logged_out: false,
                front: front_context(&kick, Arc::new(RecordsInbox::new(memory.records()))),
                reader: SendingClient([bad()].into()),
            };
            if let Some(code) = code {
                session.end(code);
            }
            let (client, read) = ReadingClient::up_to(9);
            let held = timeout(LONG, session_connection.run(SlowClient(client))).await;
            assert!(!held.unwrap(), "it stayed");
            let read = read.borrow();
            let last: serde_json::Value = serde_json::from_str(&read[0].json).unwrap();
            assert_eq!((&last["type"], read.len()), (&wanted.into(), 1));
        }
    }
}
