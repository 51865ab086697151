//! The turns of questions about many accounts, and the readers of their answers.
//!
//! Invariant of this module: no more of these answers are in memory than there are turns. A reader
//! that does not read keeps its turn for a bounded time.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse as _, Response},
};
use distlock_core::{Clock, Result, at_most};
use distlock_listen::ConnectionHandle;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::AdminContext;

/// Longest wait for a reader: until it has taken an answer, or the next piece of a stream.
pub(super) const SLOW_READER: Duration = Duration::from_secs(30);
/// Most bytes of an answer that its connection gets at once. The connection asks for the next piece
/// when about as much waits for the reader.
const PIECE: usize = 16 * 1024;

/// The turn of a question, and the connection that asks.
pub(super) struct Turn {
    permit: OwnedSemaphorePermit,
    reader: ConnectionHandle,
    clock: Arc<dyn Clock>,
}

impl Turn {
    /// Waits for a turn.
    ///
    /// # Errors
    /// The same as for [`Turns::take`](crate::accounts::Turns::take).
    pub(super) async fn take(admin: &AdminContext, reader: ConnectionHandle) -> Result<Self> {
        Ok(Self {
            permit: admin.turns.take().await?,
            reader,
            clock: admin.locker.clock(),
        })
    }

    /// Answers in JSON. The turn lasts until the connection has all but the last pieces of the
    /// answer, or has ended. A reader that takes longer than [`SLOW_READER`] is cut off.
    pub(super) fn answer(self, answer: &impl Serialize) -> Response {
        let Self {
            permit,
            reader,
            clock,
        } = self;
        // Texts and numbers always have a JSON.
        let json = Bytes::from(serde_json::to_vec(answer).unwrap_or_default());
        let headers = [
            (header::CONTENT_TYPE, "application/json".to_owned()),
            (header::CONTENT_LENGTH, json.len().to_string()),
        ];
        let taken = CancellationToken::new();
        let body = stream::unfold(
            (json, permit, taken.clone().drop_guard()),
            async |(mut rest, permit, guard)| {
                let piece = rest.split_to(rest.len().min(PIECE));
                // A part of the answer would keep the whole answer in memory, so it is copied.
                let piece = Bytes::copy_from_slice(&piece);
                (!piece.is_empty()).then(|| (Ok::<_, Infallible>(piece), (rest, permit, guard)))
            },
        );
        tokio::spawn(async move {
            let reading = at_most(&*clock, SLOW_READER, taken.cancelled());
            if reading.await.is_none() {
                cut_off(&reader, "an answer");
            }
        });
        (headers, Body::from_stream(body)).into_response()
    }
}

/// Resets the connection of a reader. The bytes that wait for the reader would otherwise stay in
/// memory as long as its connection.
pub(super) fn cut_off(reader: &ConnectionHandle, of: &str) {
    reader.cut_off();
    let from = reader.peer().ip();
    tracing::warn!(
        %from,
        "a reader has not taken {of} within {SLOW_READER:?}, so its connection was closed: it can \
         ask again, and must read faster"
    );
}
