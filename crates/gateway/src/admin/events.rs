//! The changes of presence as a stream: `GET /v1/events`.
//!
//! Invariant of this module: a stream has every change of this node's sessions in order, or names
//! the gap. A reader that does not read costs a bounded memory for a bounded time, and no login
//! waits for it. A stream must never outlive the access of its reader by more than [`HEARTBEAT`]
//! and [`SLOW_READER`].

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, header},
    middleware,
    response::{IntoResponse as _, Response},
    routing::get,
};
use distlock_core::{Clock, at_most};
use distlock_kickout::{ChangeId, ChangeReader, Gap, KickOut, NextChanges};
use distlock_listen::ConnectionHandle;
use futures_util::stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{
    OwnedSemaphorePermit, Semaphore,
    mpsc::{self, Sender},
};
use tokio_util::sync::CancellationToken;

use super::{
    Right,
    http::{HttpError, http_error},
    server::{AdminContext, authorise},
    turn::{SLOW_READER, cut_off},
};
use crate::metering;

/// Most streams of a node.
const MAX_STREAMS: usize = 64;
/// Pieces of a stream that wait for its reader, each with up to 64 changes.
const PIECES_AHEAD: usize = 2;
/// Time between two comments that show both sides that the other one is there. With each comment
/// the access of the reader is checked again.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// The header in which a reader that comes back names the last event that it has.
const LAST_EVENT_ID: &str = "last-event-id";

/// The streams of this node.
#[derive(Clone)]
struct EventStreams {
    admin: AdminContext,
    clock: Arc<dyn Clock>,
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

/// The route of the streams, which end at `stop`.
pub(super) fn routes(admin: AdminContext, stop: CancellationToken) -> Router {
    let streams = EventStreams {
        clock: admin.locker.clock(),
        admin: admin.clone(),
        places: Arc::new(Semaphore::new(MAX_STREAMS)),
        stop,
    };
    Router::new()
        .route("/v1/events", get(stream_events))
        .with_state(streams)
        .route_layer(middleware::from_fn_with_state(
            (admin, Right::Read),
            authorise,
        ))
}

/// `GET /v1/events`: server-sent events about this node's sessions, without end.
async fn stream_events(
    State(streams): State<EventStreams>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let after = last_event_id(&headers)?;
    let place = Arc::clone(&streams.places).try_acquire_owned();
    let place = place.map_err(|_| {
        let why = format!("{MAX_STREAMS} streams of events are open, the most of a node");
        http_error(StatusCode::SERVICE_UNAVAILABLE, &why)
    })?;
    let reader = Reader {
        connection,
        headers,
        changes: streams.admin.kick.changes(after),
    };
    let (pieces, waiting) = mpsc::channel(PIECES_AHEAD);
    tokio::spawn(streams.serve(reader, pieces, place));
    let body = stream::unfold(waiting, async |mut waiting| {
        let piece = waiting.recv().await?;
        Some((Ok::<_, Infallible>(piece), waiting))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// The event after which the reader continues; `None` for a new reader.
fn last_event_id(headers: &HeaderMap) -> Result<Option<ChangeId>, HttpError> {
    let Some(id) = headers.get(LAST_EVENT_ID).filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let id = id.to_str().ok().and_then(|id| id.parse().ok());
    id.map(Some).ok_or_else(|| {
        let why = "Last-Event-ID is none that a node gave: leave it out, and read the presence of \
                   your accounts";
        http_error(StatusCode::BAD_REQUEST, why)
    })
}

/// The reader of one stream.
struct Reader {
    /// What the reader showed when it opened the stream.
    headers: HeaderMap,
    connection: ConnectionHandle,
    changes: ChangeReader,
}

impl EventStreams {
    /// Sends the changes to one reader until the reader leaves, stops reading, loses its access, or
    /// the node stops.
    async fn serve(self, reader: Reader, pieces: Sender<Bytes>, _place: OwnedSemaphorePermit) {
        let _open = metering::count_event_stream();
        let Reader {
            headers,
            connection,
            mut changes,
        } = reader;
        let mut next = Some(self.first_piece(&mut changes));
        let mut beat = self.clock.sleep(HEARTBEAT);
        loop {
            if let Some(piece) = next.take() {
                let sending = pieces.send(piece.into());
                match at_most(&*self.clock, SLOW_READER, sending).await {
                    Some(Ok(())) => {}
                    Some(Err(_)) => return,
                    None => {
                        cut_off(&connection, "the next events");
                        metering::count_cut_event_stream();
                        return;
                    }
                }
            }
            next = tokio::select! {
                // The check of the access comes first, because a reader may always be behind. The
                // stop comes after the changes, because the node's sessions have ended just before.
                biased;
                () = &mut beat => {
                    beat = self.clock.sleep(HEARTBEAT);
                    if !self.admin.access.still_admits(&headers) {
                        return;
                    }
                    Some(":\n\n".to_owned())
                }
                changes = changes.next() => Some(self.piece(changes)),
                () = self.stop.cancelled() => return,
                () = pieces.closed() => return,
            };
        }
    }

    /// The first event: the place where the stream begins, or the gap before it.
    fn first_piece(&self, changes: &mut ChangeReader) -> String {
        let before = changes.position();
        match changes.try_next() {
            Some(gap @ NextChanges::Gap(_)) => self.piece(gap),
            Some(next) => event("start", before, &self.node()) + &self.piece(next),
            None => event("start", before, &self.node()),
        }
    }

    fn piece(&self, next: NextChanges) -> String {
        match next {
            NextChanges::Gap(Gap {
                after,
                next,
                position,
                ..
            }) => {
                let mut data = self.node();
                data["after"] = json!(after.to_string());
                data["next"] = json!(next.to_string());
                event("gap", position, &data)
            }
            NextChanges::Changes(changes) => changes
                .iter()
                .map(|change| {
                    let name = if change.online { "online" } else { "offline" };
                    event(name, change.id, &**change)
                })
                .collect(),
            _ => String::new(),
        }
    }

    fn node(&self) -> Value {
        let kick: &KickOut = &self.admin.kick;
        json!({"node": kick.node(), "boot": kick.boot()})
    }
}

/// One event as a reader gets it.
fn event(name: &str, id: ChangeId, data: &impl Serialize) -> String {
    // This JSON has no line break, so it is one line of data. Texts and numbers always have a JSON.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("id: {id}\nevent: {name}\ndata: {data}\n\n")
}
