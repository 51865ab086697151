//! One connection from its first frame to its end: the same machine behind every front.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use distlock_core::Moment;
use distlock_kickout::{Code, Offline, Session};
use futures_util::future::{BoxFuture, FutureExt as _};
use tokio_util::task::AbortOnDropHandle;

use super::{
    FrameReader, FrameWriter, Front, Incoming,
    frames::{ErrorCode, Frame, Inbound, Outbound, Refused},
    greet::{EARLY, greet},
    outbox::{Outbox, Urgent},
    send,
};
use crate::listen::LineHandle;

/// Time for the last words of a connection to get on the wire before it is reset.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How much longer than the heartbeat a client's request may take: deliveries end long before, so beyond this the client does
/// not read its answers.
const WORK: Duration = Duration::from_secs(15);

/// Close codes of RFC 6455 for what is not about a session.
const NORMAL: u16 = 1000;
pub(super) const POLICY_VIOLATION: u16 = 1008;
const TOO_BIG: u16 = 1009;

/// Serves one connection.
pub(crate) async fn serve<R: FrameReader, W: FrameWriter>(
    front: Front,
    reader: R,
    writer: W,
    line: LineHandle,
) {
    line.opened();
    let cut = front.cut.clone();
    let handle = line.clone();
    let cut = async move {
        cut.cancelled().await;
        // Here, because the connection is dropped with the other branch.
        handle.abort_on_drop();
    };
    tokio::select! {
        biased;
        () = cut => {}
        () = Box::pin(converse(front, reader, writer, line.clone())) => {}
    }
}

async fn converse<R: FrameReader, W: FrameWriter>(
    front: Front,
    mut reader: R,
    mut writer: W,
    line: LineHandle,
) {
    let mut early = VecDeque::new();
    let greeting = greet(&front, &mut reader, &mut writer, &mut early);
    let (session, version) = match Box::pin(greeting).await {
        Ok(greeted) => greeted,
        Err(farewell) => {
            line.abort_on_drop();
            if let Some(farewell) = farewell {
                let words = async {
                    if writer.send(&farewell.frame).await.is_ok()
                        && writer.close(farewell.code, farewell.reason).await.is_ok()
                    {
                        // The client's own closing, if it comes at once.
                        while !matches!(reader.next().await, Incoming::Gone) {}
                    }
                };
                // A reset throws away what is on its way.
                let patience = if farewell.known {
                    front.grace
                } else {
                    LAST_WORDS
                };
                within(&front, patience, words).await;
            }
            return;
        }
    };
    line.logged_in();
    let mut conversation = Conversation {
        session: Arc::new(session),
        version,
        front,
        reader,
        early,
    };
    let clean = conversation.hold(writer).await;
    if !clean {
        line.abort_on_drop();
    }
    // Only now: its half of the connection may be the last one.
    drop(conversation);
}

/// A connection with a session.
struct Conversation<R> {
    session: Arc<Session>,
    /// The version of the protocol that its client speaks.
    version: u64,
    front: Front,
    reader: R,
    /// What the client sent behind its login, or behind a request that is not answered yet.
    early: VecDeque<Incoming>,
}

/// Why a conversation ends.
enum Ending {
    /// The client is gone.
    Gone,
    /// Nothing more can be written to it.
    Unwritable,
    /// The client closes.
    Closing,
    /// The client said goodbye; it closes.
    Bye,
    /// What came cannot be trusted.
    Broken(ErrorCode, &'static str),
    /// The session must go.
    Told(Offline),
}

/// What the client sent next: first what came early, unless only new things are wanted.
///
/// Cancel safety: as the reader's own.
async fn next<R: FrameReader>(
    early: &mut VecDeque<Incoming>,
    reader: &mut R,
    only_new: bool,
) -> Incoming {
    match early.pop_front_if(|_| !only_new) {
        Some(incoming) => incoming,
        None => reader.next().await,
    }
}

impl<R: FrameReader> Conversation<R> {
    /// Holds the conversation and ends it. Answers whether the client closed the connection first.
    async fn hold<W: FrameWriter>(&mut self, writer: W) -> bool {
        let inbox = Arc::clone(&self.front.inbox);
        let (outbox, writing) = Outbox::open(writer, Arc::clone(&self.session), inbox);
        let writing = AbortOnDropHandle::new(tokio::spawn(writing));
        let ending = self.converse(&outbox).await;
        // On its own: neither does the directory wait for the client's leave-taking, nor the end of the connection for a store
        // that does not answer.
        let session = Arc::clone(&self.session);
        self.front.connections.spawn(async move {
            session.logout().await;
        });
        let clean = self.part(&outbox, ending).await;
        drop(writing);
        clean
    }

    async fn converse(&mut self, outbox: &Outbox) -> Ending {
        let session = Arc::clone(&self.session);
        // A task of its own: what was handed out is forgotten, also when the session ends meanwhile.
        let kept = self.front.connections.spawn(send::hand_out_kept(
            self.front.clone(),
            Arc::clone(&session),
            outbox.replies(),
        ));
        let kept = async {
            let _ = kept.await;
        };
        // One request of the client at a time: the next one is looked at when this one is answered.
        // Acknowledgements are not requests: two clients that send to each other would wait for
        // each other.
        let acks = session.acknowledges();
        let mut work: Option<BoxFuture<'static, ()>> = (!acks).then(|| kept.boxed());
        let mut heard = self.front.clock.now();
        loop {
            let patience = if work.is_some() { WORK } else { Duration::ZERO };
            let silence = self.silence_left(heard + patience);
            let busy = work.is_some();
            let may_read = !busy || (acks && self.early.len() < EARLY);
            tokio::select! {
                biased;
                notice = session.superseded() => return Ending::Told(notice),
                () = outbox.over() => return Ending::Unwritable,
                () = async { match &mut work { Some(work) => work.await, None => std::future::pending().await } } => {
                    work = None;
                    heard = self.front.clock.now();
                }
                incoming = next(&mut self.early, &mut self.reader, busy), if may_read => {
                    heard = self.front.clock.now();
                    if busy {
                        match acknowledged(&incoming) {
                            Some(seq) => outbox.acknowledged(seq),
                            None => self.early.push_back(incoming),
                        }
                        continue;
                    }
                    match self.answer(incoming, outbox) {
                        Ok(next) => work = next,
                        Err(ending) => return ending,
                    }
                }
                () = self.front.clock.sleep(silence) => {
                    if self.silence_left(heard + patience).is_zero() {
                        session.end(Code::HeartbeatLost);
                    }
                }
            }
        }
    }

    fn silence_left(&self, heard: Moment) -> Duration {
        (heard + self.front.heartbeat).since(self.front.clock.now())
    }

    fn answer(
        &self,
        incoming: Incoming,
        outbox: &Outbox,
    ) -> Result<Option<BoxFuture<'static, ()>>, Ending> {
        let reply = |frame: Frame| -> Option<BoxFuture<'static, ()>> {
            let replies = outbox.replies();
            Some(Box::pin(async move {
                // A closed outbox is noticed by the conversation.
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
            Incoming::Bad(code, reason) => return Err(Ending::Broken(code, reason)),
            Incoming::Closing => return Err(Ending::Closing),
            Incoming::Gone => return Err(Ending::Gone),
        };
        Ok(match Inbound::parse(&text, id) {
            Err(Refused::Garbage) => {
                return Err(Ending::Broken(
                    ErrorCode::BadFrame,
                    "not a frame of this protocol",
                ));
            }
            Err(Refused::Value { why, id }) => error(ErrorCode::BadValue, &why, id.as_deref()),
            Ok(Inbound::Login(_)) => error(ErrorCode::LoggedIn, "there was a login already", None),
            Ok(Inbound::Ping) => reply(Outbound::Pong.to_frame()),
            Ok(Inbound::Ack(ack)) => {
                outbox.acknowledged(ack.seq);
                None
            }
            Ok(Inbound::Bye | Inbound::Logout) => return Err(Ending::Bye),
            Ok(Inbound::Send(frame)) => Some(Box::pin(send::send(
                self.front.clone(),
                Arc::clone(&self.session),
                self.version,
                frame,
                outbox.replies(),
            ))),
        })
    }

    /// Takes leave: what is to be said goes out before anything is closed, and the client gets the time to close first.
    async fn part(&mut self, outbox: &Outbox, ending: Ending) -> bool {
        let (code, reason) = match &ending {
            Ending::Gone => return true,
            Ending::Unwritable => return false,
            Ending::Closing => return self.after_closing().await,
            Ending::Bye => (NORMAL, "goodbye"),
            Ending::Broken(code, reason) => {
                let frame = Outbound::Error {
                    code: *code,
                    reason,
                    id: None,
                    retry_after_ms: None,
                };
                outbox.urgent(Urgent::Last(frame.to_frame()));
                (close_code(*code), *reason)
            }
            Ending::Told(notice) => {
                outbox.urgent(Urgent::Last(Outbound::Offline(notice).to_frame()));
                (notice.code.websocket(), notice.code.text())
            }
        };
        let until = self.front.clock.now() + self.front.grace;
        let mut patient = !matches!(ending, Ending::Broken(..));
        while patient {
            let left = until.since(self.front.clock.now());
            // Also for a client that always has something to say.
            if left.is_zero() {
                break;
            }
            let next = next(&mut self.early, &mut self.reader, false);
            match within(&self.front, left, next).await {
                Some(Incoming::Gone) => return true,
                Some(Incoming::Closing) => return self.after_closing().await,
                Some(Incoming::Frame(text, id)) => {
                    let sent = match Inbound::parse(&text, id) {
                        Ok(Inbound::Send(frame)) => Some(frame.id),
                        Ok(Inbound::Login(_)) => None,
                        _ => continue,
                    };
                    let frame = Outbound::Error {
                        code: ErrorCode::Superseded,
                        reason: "the session is over",
                        id: sent.as_deref(),
                        retry_after_ms: None,
                    };
                    outbox.urgent(Urgent::Frame(frame.to_frame()));
                }
                Some(Incoming::Bad(..)) | None => patient = false,
                Some(Incoming::Alive) => {}
            }
        }
        self.cut_off(outbox, until, code, reason).await
    }

    /// Ends the connection of a client that stays or cannot be understood. What was said to it last has the time until `until`
    /// to be written, because a reset throws away what still waits here, and then a moment to arrive.
    async fn cut_off(
        &mut self,
        outbox: &Outbox,
        until: Moment,
        code: u16,
        reason: &'static str,
    ) -> bool {
        outbox.urgent(Urgent::Close(code, reason));
        let front = self.front.clone();
        let reader = &mut self.reader;
        let said = async {
            let left = until.since(front.clock.now());
            within(&front, left, outbox.over()).await;
            front.clock.sleep(LAST_WORDS).await;
        };
        // It is heard meanwhile: a client may read only when it has sent everything.
        let answered = async {
            let closed = loop {
                match reader.next().await {
                    Incoming::Gone => break true,
                    Incoming::Closing => break false,
                    _ => {}
                }
            };
            outbox.over().await;
            closed
        };
        let closed = tokio::select! {
            biased;
            () = said => false,
            closed = answered => closed,
        };
        metrics::counter!("distlock_forced_close_total").increment(1);
        self.session.cut_off();
        closed
    }

    /// Both sides have said that they close (the library answers a closing frame by itself): the connection is only to be
    /// taken down, by the client if it does so at once.
    async fn after_closing(&mut self) -> bool {
        let front = self.front.clone();
        within(&front, LAST_WORDS, async {
            while !matches!(self.reader.next().await, Incoming::Gone) {}
        })
        .await;
        front.clock.sleep(LAST_WORDS / 2).await;
        false
    }
}

pub(super) const fn close_code(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::TooLong => TOO_BIG,
        _ => POLICY_VIOLATION,
    }
}

/// The message that a client acknowledges.
fn acknowledged(incoming: &Incoming) -> Option<u64> {
    let Incoming::Frame(text, id) = incoming else {
        return None;
    };
    match Inbound::parse(text, *id) {
        Ok(Inbound::Ack(ack)) => Some(ack.seq),
        _ => None,
    }
}

/// What a future gives within a time. The time is looked at first: a future that reads on and on would use up what its task may
/// do in one go, and with it the look at the time.
pub(super) async fn within<F: Future>(
    front: &Front,
    limit: Duration,
    future: F,
) -> Option<F::Output> {
    tokio::select! {
        biased;
        () = front.clock.sleep(limit) => None,
        output = future => Some(output),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, io};

    use async_trait::async_trait;
    use distlock_core::{Clock as _, SystemClock};
    use distlock_kickout::Uid;
    use distlock_memory::Memory;
    use tokio::time::timeout;

    use super::{
        super::stage::{LONG, Reads, admitted, front, kick},
        *,
    };
    use crate::inbox::RecordsInbox;

    /// A client that sends this, and stays.
    struct Sends(VecDeque<Incoming>);

    #[async_trait]
    impl FrameReader for Sends {
        async fn next(&mut self) -> Incoming {
            match self.0.pop_front() {
                Some(incoming) => incoming,
                None => std::future::pending().await,
            }
        }
    }

    /// A client that reads, and takes its time.
    struct Slow(Reads);

    #[async_trait]
    impl FrameWriter for Slow {
        async fn send(&mut self, frame: &Frame) -> io::Result<()> {
            SystemClock.sleep(LAST_WORDS * 3).await;
            self.0.send(frame).await
        }

        async fn close(&mut self, code: u16, reason: &str) -> io::Result<()> {
            self.0.close(code, reason).await
        }
    }

    #[tokio::test]
    async fn what_is_said_last_is_written_also_to_a_slow_client() {
        let memory = Memory::default();
        let kick = kick(&memory).await;
        let bad = || Incoming::Bad(ErrorCode::BadFrame, "no frame");
        for (code, wanted) in [(None, "error"), (Some(Code::Superseded), "offline")] {
            let anna = Uid::new("anna").unwrap();
            let session = Arc::new(admitted(&kick, &anna).await);
            let mut conversation = Conversation {
                early: VecDeque::new(),
                session: Arc::clone(&session),
                version: 1,
                front: front(&kick, Arc::new(RecordsInbox::new(memory.records()))),
                reader: Sends([bad()].into()),
            };
            if let Some(code) = code {
                session.end(code);
            }
            let (client, read) = Reads::up_to(9);
            let held = timeout(LONG, conversation.hold(Slow(client))).await;
            assert!(!held.unwrap(), "it stayed");
            let read = read.borrow();
            let last: serde_json::Value = serde_json::from_str(&read[0].json).unwrap();
            assert_eq!((&last["type"], read.len()), (&wanted.into(), 1));
        }
    }
}
