//! HTTP/1.1 on a listener.
//!
//! This module owns the accepted connections until their last answer is sent. No body of a request
//! takes longer than the listener allows. The right token must never lift that limit: a caller that
//! stops in the middle of a body would otherwise keep its place for ever. A stop must never drop a
//! request in progress.

use std::{
    error::Error,
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Request},
};
use distlock_core::{Clock, Sleep};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

use super::ConnectionListener;

/// Longest head of a request; a longer head is answered 431. The value is also the read buffer for
/// a body.
const MAX_HEAD: usize = 16 * 1024;

/// Serves until `stop`, and then finishes the requests in progress. Handlers find a
/// [`ConnectionHandle`](super::ConnectionHandle) as [`ConnectInfo`].
pub async fn serve_http(mut listener: ConnectionListener, routes: Router, stop: CancellationToken) {
    let mut protocol = auto::Builder::new(TokioExecutor::new()).http1_only();
    protocol.http1().max_buf_size(MAX_HEAD);
    let (graceful, connections) = (GracefulShutdown::new(), TaskTracker::new());
    let body_time = listener.body_time();
    loop {
        let connection = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (handle, routes) = (connection.handle(), routes.clone());
        let body_time = body_time.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request: Request = request.map(|body| body_time.limit(body));
            request.extensions_mut().insert(ConnectInfo(handle.clone()));
            // A router needs no `poll_ready`, because a router is always ready.
            routes.clone().call(request)
        });
        let serving = protocol.serve_connection_with_upgrades(TokioIo::new(connection), service);
        let serving = graceful.watch(serving.into_owned());
        connections.spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
    // Closing the socket first refuses new connections while the remaining requests finish.
    drop(listener);
    graceful.shutdown().await;
}

/// Limits the time in which a whole body must arrive.
#[derive(Clone, Debug)]
pub struct BodyTime {
    clock: Arc<dyn Clock>,
    limit: Duration,
}

impl BodyTime {
    pub(crate) fn new(clock: Arc<dyn Clock>, limit: Duration) -> Self {
        Self { clock, limit }
    }

    /// The same body, which fails if it has not arrived within the limit. The time begins when a
    /// reader waits for the first time.
    pub fn limit<B>(&self, body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        Body::new(TimedBody {
            body: Body::new(body),
            time: self.clone(),
            deadline: None,
        })
    }
}

/// Whether an error says that a body did not arrive in time.
pub fn is_late_body(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<LateBody>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The whole body did not arrive within this time.
#[derive(Debug)]
struct LateBody(Duration);

impl fmt::Display for LateBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body did not arrive within {:?}", self.0)
    }
}

impl Error for LateBody {}

struct TimedBody {
    body: Body,
    time: BodyTime,
    /// Absent until a reader had to wait. Most bodies arrive together with their head.
    deadline: Option<Sleep>,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let BodyTime { clock, limit } = &this.time;
        let deadline = this.deadline.get_or_insert_with(|| clock.sleep(*limit));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Some(Err(axum::Error::new(LateBody(*limit)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
