//! Calling other nodes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{Clock, Moment};
use distlock_kickout::{
    DeliverRequest, DeliverResult, KickRequest, KickResult, NodeAddress, NodeId, PeerError, Peers,
    SessionKey, Uid,
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

use super::{
    KEEP_ALIVE, KEEP_ALIVE_TIMEOUT, MAX_MESSAGE,
    v1::{self, peer_client::PeerClient},
    wire::{delivered_from_wire, delivery_to_wire, idle_from_wire, kick_to_wire, kicked_from_wire},
};
use crate::token::TokenKey;

/// Beyond the flow's own deadlines: a connection that hangs must not collect calls for ever.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Time after which a channel that was not used may go.
const UNUSED: Duration = Duration::from_secs(60);

/// Channels to other nodes, opened at the first call and kept by address.
#[derive(Debug)]
pub(crate) struct GrpcPeers {
    node: NodeId,
    key: TokenKey,
    connect: Duration,
    clock: Arc<dyn Clock>,
    channels: Mutex<HashMap<NodeId, Open>>,
}

#[derive(Debug)]
struct Open {
    addr: String,
    channel: Channel,
    used: Moment,
}

impl GrpcPeers {
    pub(crate) fn new(
        node: NodeId,
        key: TokenKey,
        connect: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            node,
            key,
            connect,
            clock,
            channels: Mutex::default(),
        }
    }

    fn client(&self, to: &NodeAddress) -> Result<PeerClient<Channel>, PeerError> {
        let now = self.clock.now();
        let channel = {
            let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
            match channels.get_mut(&to.node) {
                Some(open) if open.addr == to.addr => {
                    open.used = now;
                    open.channel.clone()
                }
                _ => {
                    let channel = self.channel(&to.addr)?;
                    // Where nodes come under ever new names, those of long ago must not be kept. Calls under way go on.
                    channels.retain(|_, open| now.since(open.used) < UNUSED);
                    let open = Open {
                        addr: to.addr.clone(),
                        channel: channel.clone(),
                        used: now,
                    };
                    channels.insert(to.node.clone(), open);
                    channel
                }
            }
        };
        Ok(PeerClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    fn channel(&self, addr: &str) -> Result<Channel, PeerError> {
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))
            .map_err(|error| PeerError::NotSent(format!("address \"{addr}\": {error}")))?;
        Ok(endpoint
            .connect_timeout(self.connect)
            .timeout(CALL_LIMIT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .connect_lazy())
    }

    fn request<T>(&self, message: T) -> Result<Request<T>, PeerError> {
        let not_sent = |_| PeerError::NotSent("the call could not be signed".into());
        let token = self
            .key
            .mint_for_peers(self.node.as_str(), self.clock.wall())
            .map_err(|error| PeerError::NotSent(error.to_string()))?;
        let mut bearer: MetadataValue<Ascii> =
            format!("Bearer {token}").parse().map_err(not_sent)?;
        bearer.set_sensitive(true);
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", bearer);
        Ok(request)
    }
}

#[async_trait]
impl Peers for GrpcPeers {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        let request = self.request(kick_to_wire(request))?;
        let response = self
            .client(to)?
            .kick(request)
            .await
            .map_err(|status| not_answered(&status))?;
        kicked_from_wire(response.into_inner())
            .ok_or_else(|| PeerError::Unknown("an answer of another version".into()))
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        let request = self.request(delivery_to_wire(request))?;
        let response = self
            .client(to)?
            .deliver(request)
            .await
            .map_err(|status| not_answered(&status))?;
        Ok(delivered_from_wire(response.into_inner()))
    }

    async fn idle(
        &self,
        to: &NodeAddress,
        uid: &Uid,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        let request = self.request(v1::IdleRequest {
            uid: uid.to_string(),
        })?;
        let response = self
            .client(to)?
            .idle(request)
            .await
            .map_err(|status| not_answered(&status))?;
        idle_from_wire(response.into_inner()).map_err(|error| PeerError::Unknown(error.to_string()))
    }
}

fn not_answered(status: &Status) -> PeerError {
    let text = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        // The other side refused before it did anything, or there was no connection.
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Unauthenticated
        | Code::Unimplemented => PeerError::NotSent(text),
        _ if never_connected(status) => PeerError::NotSent(text),
        _ => PeerError::Unknown(text),
    }
}

/// Whether the connection could not even be made.
fn never_connected(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return io.kind() == std::io::ErrorKind::ConnectionRefused;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;
    use distlock_kickout::Boot;

    use super::*;

    #[tokio::test]
    async fn channels_to_nodes_of_long_ago_are_closed() {
        let clock = ManualClock::new();
        let peers = GrpcPeers::new(
            NodeId::new("n1").unwrap(),
            TokenKey::new(&[7; 32]).unwrap(),
            Duration::from_secs(1),
            Arc::new(clock.clone()),
        );
        for pod in 0..100 {
            let to = NodeAddress {
                node: NodeId::new(format!("pod-{pod}")).unwrap(),
                boot: Boot::new(1),
                addr: "127.0.0.1:1".into(),
            };
            for _ in 0..2 {
                drop(peers.client(&to).unwrap());
            }
            clock.advance(UNUSED / 2);
        }
        let open = peers.channels.lock().unwrap().len();
        assert!(open <= 3, "{open}");
    }
}
