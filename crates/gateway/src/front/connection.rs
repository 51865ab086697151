//! One connection from its first frame to its end: the same for every front.

use std::{collections::VecDeque, sync::Arc};

use super::{
    FrameReader, FrameWriter, Front, Incoming, close::LAST_WORDS, conversation::Conversation,
    login::greet,
};
use crate::listen::LineHandle;

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
                front.within(patience, words).await;
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
