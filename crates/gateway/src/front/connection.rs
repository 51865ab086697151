//! One connection from its first frame to its end: the same for every front.

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
    let cut = front.cut.clone();
    let handle = connection.clone();
    let cut = async move {
        cut.cancelled().await;
        // Here, because the connection is dropped with the other branch.
        handle.abort_on_drop();
    };
    tokio::select! {
        biased;
        () = cut => {}
        () = Box::pin(converse(front, reader, writer, connection.clone())) => {}
    }
}

async fn converse<R: FrameReader, W: FrameWriter>(
    front: FrontContext,
    mut reader: R,
    mut writer: W,
    connection: ConnectionHandle,
) {
    let mut early = VecDeque::new();
    let login = log_in(&front, &mut reader, &mut writer, &mut early);
    let (session, version) = match Box::pin(login).await {
        Ok(logged_in) => logged_in,
        Err(failure) => {
            connection.abort_on_drop();
            if let Some(failure) = failure {
                let words = async {
                    if writer.send(&failure.frame).await.is_ok()
                        && writer.close(failure.code, failure.reason).await.is_ok()
                    {
                        // The client's own closing, if it comes at once.
                        while !matches!(reader.next().await, Incoming::Gone) {}
                    }
                };
                // A reset throws away what is on its way.
                let patience = if failure.known {
                    front.grace
                } else {
                    LAST_FRAME_TIME
                };
                front.within(patience, words).await;
            }
            return;
        }
    };
    connection.mark_logged_in();
    let mut connected = SessionConnection {
        session: Arc::new(session),
        version,
        front,
        reader,
        early,
    };
    let clean = connected.run(writer).await;
    if !clean {
        connection.abort_on_drop();
    }
    // Only now: its half of the connection may be the last one.
    drop(connected);
}
