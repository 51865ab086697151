//! One connection from its first frame to its end, the same for every front.
//!
//! This module keeps this order: one login, then the session, then the end. This module must never
//! let a connection reach a session without a confirmed login.

use std::{collections::VecDeque, sync::Arc};

use super::{
    FrameReader, FrameWriter, FrontContext, Incoming, close::LAST_FRAME_TIME, login::log_in,
    session_connection::SessionConnection,
};
use crate::listen::ConnectionHandle;

/// Serves one connection.
pub(crate) async fn serve<R: FrameReader, W: FrameWriter>(
    front: FrontContext,
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
    front: FrontContext,
    mut reader: R,
    mut writer: W,
    connection: ConnectionHandle,
) {
    let mut early = VecDeque::new();
    let login = log_in(&front, &mut reader, &mut writer, &mut early);
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
