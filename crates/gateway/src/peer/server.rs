//! The server for other nodes and for sending servers.
//!
//! This module must never let a stranger use more memory than the smallest windows of HTTP/2 allow.

use std::io;

use axum::{
    extract::{self, State},
    middleware,
};
use distlock_kickout::{KickOut, PeerError, Uid};
use distlock_listen::{BodyTime, ConnectionListener};
use futures_util::stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes, transport::Server};

use super::{
    call_check::{CallChecker, Caller, address_of, check_call, log_refused_call},
    messages,
    v1::{
        self,
        messages_server::MessagesServer,
        peer_server::{Peer, PeerServer},
    },
    wire::{
        KEEP_ALIVE, KEEP_ALIVE_TIMEOUT, MAX_MESSAGE, check_version, delivered_to_wire,
        delivery_from_wire, idle_to_wire, invalid_status, kick_from_wire, kicked_to_wire,
        report_to_wire,
    },
};
use crate::{send_api::SendApi, takeovers::RecentTakeovers, token::PeerKey};

/// The number of calls that a node may have in progress to another node: 64 kicks and 64
/// deliveries.
const STREAMS_PER_CONNECTION: u32 = 128;
const MAX_HEADERS: u32 = 16 * 1024;
/// Bytes that a caller may send before the reader takes them: for each call, and for all calls of a
/// connection. This is the lowest value that HTTP/2 allows for a connection. The value is low,
/// because strangers get it, too.
const WINDOW: u32 = 65_535;

/// Serves other nodes, and servers that send messages, until `stop`; calls in progress are
/// finished.
pub(crate) async fn serve_peers(
    kick: KickOut,
    recent: RecentTakeovers,
    key: PeerKey,
    sender: SendApi,
    listener: ConnectionListener,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let checker = CallChecker::new(kick.node().clone(), key);
    let service = PeerServer::new(PeerService { kick, recent })
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let service = Routes::new(service)
        .into_axum_router()
        .layer(middleware::from_fn_with_state(checker, check_call));
    let messages = MessagesServer::new(messages::MessagesService(sender.clone()))
        .max_decoding_message_size(MAX_MESSAGE);
    let messages = Routes::new(messages)
        .into_axum_router()
        .reset_fallback()
        .layer(middleware::from_fn_with_state(sender, messages::authorise));
    let calls = service
        .merge(messages)
        .layer(middleware::map_request_with_state(
            listener.body_time(),
            limit_body,
        ));
    let connections = stream::unfold(listener, async |mut listener| {
        let connection = listener.accept().await;
        Some((io::Result::Ok(connection), listener))
    });
    Server::builder()
        // The library's own default is unlimited.
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .add_routes(Routes::from(calls))
        .serve_with_incoming_shutdown(connections, stop.cancelled_owned())
        .await
}

async fn limit_body(State(time): State<BodyTime>, call: extract::Request) -> extract::Request {
    call.map(|body| time.limit(body))
}

pub(super) struct PeerService {
    pub(super) kick: KickOut,
    pub(super) recent: RecentTakeovers,
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn kick(
        &self,
        request: Request<v1::KickRequest>,
    ) -> Result<Response<v1::KickResponse>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let address = address_of(request.extensions());
        let request = kick_from_wire(request.into_inner()).map_err(invalid_status)?;
        if let Some(Caller(caller)) = caller.filter(|it| it.0 != request.from.as_str()) {
            let why = "the kick names another node than its token";
            log_refused_call(Some(&caller), address, &why);
            return Err(Status::permission_denied(why));
        }
        match self.kick.handle_kick(&request) {
            Ok(result) => Ok(Response::new(kicked_to_wire(result))),
            Err(PeerError::NotSent(why)) => Err(Status::failed_precondition(why)),
            Err(error) => Err(Status::unavailable(error.to_string())),
        }
    }

    async fn deliver(
        &self,
        request: Request<v1::DeliverRequest>,
    ) -> Result<Response<v1::DeliverResponse>, Status> {
        let request = request.into_inner();
        check_version(&request).map_err(Status::failed_precondition)?;
        let request = delivery_from_wire(request).map_err(invalid_status)?;
        let result = self.kick.handle_deliver(request).await;
        Ok(Response::new(delivered_to_wire(result)))
    }

    async fn idle(
        &self,
        request: Request<v1::IdleRequest>,
    ) -> Result<Response<v1::IdleResponse>, Status> {
        let uid = Uid::new(request.into_inner().uid).map_err(invalid_status)?;
        Ok(Response::new(idle_to_wire(self.kick.handle_idle(&uid))))
    }

    async fn hand_out(
        &self,
        request: Request<v1::HandOutRequest>,
    ) -> Result<Response<v1::HandOutResponse>, Status> {
        let uids = request.into_inner().uids.into_iter().map(Uid::new);
        let uids = uids
            .collect::<Result<Vec<_>, _>>()
            .map_err(invalid_status)?;
        self.kick.handle_hand_out(&uids);
        Ok(Response::new(v1::HandOutResponse {}))
    }

    async fn takeovers(
        &self,
        _: Request<v1::TakeoversRequest>,
    ) -> Result<Response<v1::TakeoversResponse>, Status> {
        Ok(Response::new(report_to_wire(self.recent.report())))
    }
}
