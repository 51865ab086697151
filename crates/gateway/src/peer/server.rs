//! The server for other nodes, and its answers to them.

use std::io;

use distlock_kickout::{KickOut, PeerError, Uid};
use futures_util::stream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, service::interceptor::InterceptedService, transport::Server,
};

use super::{
    KEEP_ALIVE, KEEP_ALIVE_TIMEOUT, MAX_MESSAGE, messages,
    v1::{
        self,
        messages_server::MessagesServer,
        peer_server::{Peer, PeerServer},
    },
    wire::{
        check_version, delivered_to_wire, delivery_from_wire, idle_to_wire, kick_from_wire,
        kicked_to_wire,
    },
};
use crate::{
    front::line::{LineHandle, LineListener},
    sender::Sender,
    token::TokenKey,
};

const STREAMS_PER_CONNECTION: u32 = 256;
const MAX_HEADERS: u32 = 16 * 1024;

/// Serves other nodes, and servers that send messages, until `stop`; calls under way are finished.
pub(crate) async fn serve_peers(
    kick: KickOut,
    key: TokenKey,
    sender: Sender,
    listener: LineListener,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = PeerServer::new(Service { kick, key })
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let messages = MessagesServer::new(messages::Service(sender.clone()))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let messages = InterceptedService::new(messages, move |request| {
        messages::authorise(&sender, request)
    });
    let lines = stream::unfold(listener, async |mut listener| {
        let (line, _) = listener.next().await;
        Some((io::Result::Ok(line), listener))
    });
    Server::builder()
        // The library's own default is without a limit.
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .add_service(service)
        .add_service(messages)
        .serve_with_incoming_shutdown(lines, stop.cancelled_owned())
        .await
}

struct Service {
    kick: KickOut,
    key: TokenKey,
}

impl Service {
    /// Only nodes that know the common key may call.
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        let refused = || Status::unauthenticated("a peer token is needed");
        let bearer = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .ok_or_else(refused)?;
        self.key.verify_peer(bearer).map_err(|error| {
            tracing::warn!(%error, "a call of another node was refused");
            refused()
        })?;
        if let Some(line) = request.extensions().get::<LineHandle>() {
            line.logged_in();
        }
        Ok(request.into_inner())
    }
}

#[tonic::async_trait]
impl Peer for Service {
    async fn kick(
        &self,
        request: Request<v1::KickRequest>,
    ) -> Result<Response<v1::KickResponse>, Status> {
        let request = kick_from_wire(self.admit(request)?).map_err(invalid)?;
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
        let request = self.admit(request)?;
        let version = check_version(&request).map_err(Status::failed_precondition)?;
        let request = delivery_from_wire(request).map_err(invalid)?;
        let result = self.kick.handle_deliver(request).await;
        Ok(Response::new(delivered_to_wire(result, version)))
    }

    async fn idle(
        &self,
        request: Request<v1::IdleRequest>,
    ) -> Result<Response<v1::IdleResponse>, Status> {
        let uid = Uid::new(self.admit(request)?.uid).map_err(invalid)?;
        Ok(Response::new(idle_to_wire(self.kick.handle_idle(&uid))))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "shaped for map_err")]
pub(super) fn invalid(error: distlock_core::Error) -> Status {
    Status::invalid_argument(error.message().to_owned())
}
