//! One connection from its first frame to its end, the same for every front: frames in, frames out.
//!
//! This module keeps this order: one login, then the session, then the end. This module must never
//! let a connection reach a session without a confirmed login.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::Clock;
use distlock_kickout::{Class, KickOut};
use distlock_listen::ConnectionHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    SendLimits,
    close::LAST_FRAME_TIME,
    frames::{ErrorCode, Frame},
    login::log_in,
    session_connection::SessionConnection,
};
use crate::{
    config::ClientAddress,
    inbox::OfflineStore,
    services::{MaySend, WebSaver},
    token::LoginKeys,
};

/// The parts of a node that the task of each session needs.
#[derive(Debug)]
pub(crate) struct FrontContext {
    pub(crate) kick: KickOut,
    pub(crate) keys: Arc<LoginKeys>,
    /// The classes that a client may name; `None` = any.
    pub(crate) classes: Option<Arc<[Class]>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) inbox: Arc<dyn OfflineStore>,
    pub(crate) limits: SendLimits,
    /// The check of each message; without this check every account may send to every account.
    pub(crate) may_send: Option<Arc<dyn MaySend>>,
    /// The service that saves after each session; without it clients may save by themselves.
    pub(crate) saver: Option<WebSaver>,
    pub(crate) heartbeat: Duration,
    pub(crate) grace: Duration,
    pub(crate) login_timeout: Duration,
    pub(crate) max_frame: usize,
    pub(crate) connections: TaskTracker,
    /// Ends every connection at once.
    pub(crate) abort_all: CancellationToken,
    /// Whether a proxy is in front, and how it names the client.
    pub(crate) client_address: ClientAddress,
}

impl FrontContext {
    /// Returns the output of a future, or `None` after the time limit. The timer is polled first.
    /// Otherwise a future that is always ready would use up the task's budget, and the timer would
    /// never be polled.
    pub(super) async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.clock.sleep(limit) => None,
            output = future => Some(output),
        }
    }
}

/// An event from a client.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The text of a frame, and the message id before the text if the front has message ids.
    Frame(String, Option<u16>),
    /// A sign that the client is alive, without a frame.
    Alive,
    /// Bytes that are no frame. Bytes that follow cannot be read as frames. After a frame over the
    /// limit, even the end of the connection may not be seen.
    Bad(ErrorCode, &'static str),
    /// The client announced that it closes; the connection is still open.
    Closing,
    /// The connection has ended.
    Gone,
}

/// The reading half of a connection.
#[async_trait]
pub(crate) trait FrameReader: Send + 'static {
    /// Returns the next event. After [`Incoming::Gone`] every later call returns `Gone`.
    ///
    /// Cancel safety: safe; nothing that arrived is lost.
    async fn next(&mut self) -> Incoming;
}

/// The writing half of a connection.
#[async_trait]
pub(crate) trait FrameWriter: Send + 'static {
    /// Writes a frame and flushes it.
    async fn send(&mut self, frame: &Frame) -> std::io::Result<()>;

    /// Sends a closing frame, if the front has closing frames.
    async fn close(&mut self, code: u16, reason: &str) -> std::io::Result<()>;
}

/// Serves one connection.
pub(crate) async fn serve<R: FrameReader, W: FrameWriter>(
    front: Arc<FrontContext>,
    reader: R,
    writer: W,
    connection: ConnectionHandle,
) {
    connection.mark_open();
    let aborted = front.abort_all.clone();
    let handle = connection.clone();
    let aborted = async move {
        aborted.cancelled().await;
        // The reset must be set in this branch, because the select drops the other branch together
        // with the connection.
        handle.abort_on_drop();
    };
    tokio::select! {
        biased;
        () = aborted => {}
        () = Box::pin(log_in_and_serve(front, reader, writer, connection.clone())) => {}
    }
}

async fn log_in_and_serve<R: FrameReader, W: FrameWriter>(
    front: Arc<FrontContext>,
    mut reader: R,
    mut writer: W,
    connection: ConnectionHandle,
) {
    let mut early = VecDeque::new();
    let address = connection.peer().ip().to_canonical();
    let login = log_in(&front, &mut reader, &mut writer, &mut early, address);
    let session = match Box::pin(login).await {
        Ok(session) => session,
        Err(failure) => {
            connection.abort_on_drop();
            if let Some(failure) = failure {
                let last_frame = async {
                    if writer.send(&failure.frame).await.is_ok()
                        && writer.close(failure.code, failure.reason).await.is_ok()
                    {
                        // The loop waits for the client's own close.
                        while !matches!(reader.next().await, Incoming::Gone) {}
                    }
                };
                // A reset discards bytes that have not arrived, so the client first gets time to
                // read the frame.
                let patience = if failure.authenticated {
                    front.grace
                } else {
                    LAST_FRAME_TIME
                };
                front.within(patience, last_frame).await;
            }
            return;
        }
    };
    connection.mark_logged_in();
    let mut session_connection = SessionConnection {
        session: Arc::new(session),
        logged_out: false,
        front,
        reader,
        early,
    };
    let clean = session_connection.run(writer).await;
    if !clean {
        connection.abort_on_drop();
    }
    // This value must be dropped last: its half of the connection may be the last half, and the
    // drop of the last half ends the connection.
    drop(session_connection);
}
