//! HTTP/1.1 on a listener.
//!
//! This module owns the accepted connections until their last answer is sent. No body of a request
//! takes longer than the listener allows. A stop must never drop a request in progress.

use axum::{
    Router,
    extract::{ConnectInfo, Request},
};
use hyper::{body::Incoming, service::service_fn};
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
pub(crate) async fn serve_http(
    mut listener: ConnectionListener,
    routes: Router,
    stop: CancellationToken,
) {
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
