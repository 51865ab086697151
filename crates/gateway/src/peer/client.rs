//! The client for calls to other nodes.
//!
//! Invariant of this module: each call is sent once, with a token of its own. This module must
//! never report a call as not sent if the other node may have executed it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Clock, Moment, at_most, sync::Mutex};
use distlock_kickout::{
    DeliverRequest, DeliverResult, KickRequest, KickResult, NodeAddress, NodeId, PeerError, Peers,
    SessionKey, Uid,
};
use distlock_listen::Tls;
use prost::Message;
use tonic::{
    Code, Request, Response, Status,
    metadata::{Ascii, MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};

use super::{
    connect::{FirstAnswer, connector, find_failure},
    v1::{self, peer_client::PeerClient},
    wire::{
        CALLS_HEADER, CALLS_VERSION, KEEP_ALIVE, KEEP_ALIVE_TIMEOUT, MAX_MESSAGE,
        delivered_from_wire, delivery_to_wire, idle_from_wire, kick_to_wire, kicked_from_wire,
        report_from_wire,
    },
};
use crate::{
    takeovers::NodeReport,
    token::{Call, PeerKey},
};

/// Upper bound in addition to the flow's own deadlines, so that a hanging connection does not
/// collect calls for ever.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Time after which an unused channel may be closed.
const UNUSED_LIMIT: Duration = Duration::from_secs(60);

const KICK_METHOD: &str = "/distlock.v1.Peer/Kick";
const DELIVER_METHOD: &str = "/distlock.v1.Peer/Deliver";
const IDLE_METHOD: &str = "/distlock.v1.Peer/Idle";
const HAND_OUT_METHOD: &str = "/distlock.v1.Peer/HandOut";
const TAKEOVERS_METHOD: &str = "/distlock.v1.Peer/Takeovers";

/// Channels to other nodes, opened at the first call and kept by node.
#[derive(Debug)]
pub(crate) struct GrpcPeers {
    node: NodeId,
    key: PeerKey,
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
    tls: Option<Arc<Tls>>,
    channels: Mutex<HashMap<NodeId, PeerChannel>>,
}

#[derive(Debug)]
struct PeerChannel {
    addr: String,
    channel: Channel,
    /// Why the channel's newest connection carried no call.
    first: FirstAnswer,
    used: Moment,
}

impl GrpcPeers {
    pub(crate) fn new(
        node: NodeId,
        key: PeerKey,
        connect_timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            node,
            key,
            connect_timeout,
            clock,
            tls: None,
            channels: Mutex::default(),
        }
    }

    /// Calls other nodes by TLS if `peer_tls_ca` is set.
    pub(crate) fn with_tls(mut self, tls: Arc<Tls>) -> Self {
        self.tls = Some(tls);
        self
    }

    fn client_for(
        &self,
        to: &NodeAddress,
    ) -> Result<(PeerClient<Channel>, FirstAnswer), PeerError> {
        let now = self.clock.now();
        let mut channels = self.channels.lock();
        let (channel, first) = match channels.get_mut(&to.node) {
            Some(known) if known.addr == to.addr => {
                known.used = now;
                (known.channel.clone(), known.first.clone())
            }
            _ => {
                let (channel, first) = self.open_channel(&to.addr)?;
                // If nodes get a new name at each start, channels to old names would accumulate.
                // Calls in progress continue.
                channels.retain(|_, known| now.since(known.used) < UNUSED_LIMIT);
                let known = PeerChannel {
                    addr: to.addr.clone(),
                    channel: channel.clone(),
                    first: first.clone(),
                    used: now,
                };
                channels.insert(to.node.clone(), known);
                (channel, first)
            }
        };
        drop(channels);
        let client = PeerClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Ok((client, first))
    }

    /// The report of a node for this node's page. The call waits only as long as a connect may
    /// take, because a page waits for the answer.
    pub(crate) async fn report(&self, to: &NodeAddress) -> Result<NodeReport, PeerError> {
        let send = async |mut client: PeerClient<_>, request| client.takeovers(request).await;
        let message = v1::TakeoversRequest {};
        let asked = self.call(to, TAKEOVERS_METHOD, message, send);
        let answer = at_most(&*self.clock, self.connect_timeout, asked)
            .await
            .unwrap_or_else(|| Err(PeerError::Unknown("no answer in time".into())))?;
        report_from_wire(&to.node, answer).map_err(|error| PeerError::Unknown(error.to_string()))
    }

    fn open_channel(&self, addr: &str) -> Result<(Channel, FirstAnswer), PeerError> {
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))
            .map_err(|error| PeerError::NotSent(format!("address \"{addr}\": {error}")))?;
        let endpoint = endpoint
            .timeout(CALL_LIMIT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let (first, clock) = (FirstAnswer::default(), Arc::clone(&self.clock));
        let (tls, addr) = (self.tls.clone(), addr.to_owned());
        let connector = connector(tls, addr, self.connect_timeout, clock, first.clone());
        Ok((endpoint.connect_with_connector_lazy(connector), first))
    }

    /// A request that carries a token for this one call.
    fn sign_request<T: Message>(
        &self,
        to: &NodeAddress,
        method: &str,
        message: T,
    ) -> Result<Request<T>, PeerError> {
        let (from, to) = (self.node.as_str(), to.node.as_str());
        let call = Call { from, to, method };
        let token = self
            .key
            .sign(call, &wire_bytes(&message), self.clock.wall());
        let token = token.map_err(|error| PeerError::NotSent(error.to_string()))?;
        let mut bearer: MetadataValue<Ascii> = format!("Bearer {token}")
            .parse()
            .map_err(|_| PeerError::NotSent("the call could not be signed".into()))?;
        bearer.set_sensitive(true);
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", bearer);
        Ok(request)
    }

    /// Makes one call. Neither this function nor the channel repeats a request, so no token reaches
    /// a node twice.
    async fn call<T: Message, A>(
        &self,
        to: &NodeAddress,
        method: &str,
        message: T,
        send: impl AsyncFnOnce(PeerClient<Channel>, Request<T>) -> Result<Response<A>, Status>,
    ) -> Result<A, PeerError> {
        let (client, first) = self.client_for(to)?;
        let request = self.sign_request(to, method, message)?;
        let status = match send(client, request).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => status,
        };
        // An error with a source comes from this side: the node has sent no answer.
        let unanswered = std::error::Error::source(&status).is_some();
        let failure = find_failure(&status).or_else(|| first.failure().filter(|_| unanswered));
        Err(match failure {
            Some(failure) => PeerError::NotSent(failure.to_string()),
            None => peer_error(&status),
        })
    }
}

/// The difference of versions, if a node refused a token because of it.
fn version_mismatch(says: &MetadataMap) -> Option<String> {
    let Some(version) = says.get(CALLS_HEADER) else {
        return Some(format!(
            "the answer has no {CALLS_HEADER}, so it is not the answer of a node: check \
             peer_advertise there, and proxies between the nodes"
        ));
    };
    (version != CALLS_VERSION).then(|| {
        format!(
            "the node reads tokens of version {version:?} ({CALLS_HEADER}), and this one \
             signs those of version {CALLS_VERSION}: run the same version of distlock on both"
        )
    })
}

/// A message in the form that is sent: a flag for no compression, the length, then the bytes.
pub(super) fn wire_bytes(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    // A message over the limit is not sent, so the length always fits.
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(&body);
    framed
}

#[async_trait]
impl Peers for GrpcPeers {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        let send = async |mut client: PeerClient<_>, request| client.kick(request).await;
        let answer = self
            .call(to, KICK_METHOD, kick_to_wire(request), send)
            .await?;
        kicked_from_wire(answer)
            .ok_or_else(|| PeerError::Unknown("an answer of another version".into()))
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        let send = async |mut client: PeerClient<_>, request| client.deliver(request).await;
        let message = delivery_to_wire(request);
        let answer = self.call(to, DELIVER_METHOD, message, send).await?;
        Ok(delivered_from_wire(answer))
    }

    async fn idle(
        &self,
        to: &NodeAddress,
        uid: &Uid,
    ) -> Result<Vec<(SessionKey, Duration)>, PeerError> {
        let uid = uid.to_string();
        let send = async |mut client: PeerClient<_>, request| client.idle(request).await;
        let message = v1::IdleRequest { uid };
        let answer = self.call(to, IDLE_METHOD, message, send).await?;
        idle_from_wire(answer).map_err(|error| PeerError::Unknown(error.to_string()))
    }

    async fn hand_out(&self, to: &NodeAddress, uids: &[Uid]) -> Result<(), PeerError> {
        let uids = uids.iter().map(Uid::to_string).collect();
        let send = async |mut client: PeerClient<_>, request| client.hand_out(request).await;
        let message = v1::HandOutRequest { uids };
        self.call(to, HAND_OUT_METHOD, message, send)
            .await
            .map(drop)
    }
}

fn peer_error(status: &Status) -> PeerError {
    let text = format!("{:?}: {}", status.code(), status.message());
    match status.code() {
        Code::Unauthenticated => {
            PeerError::NotSent(version_mismatch(status.metadata()).unwrap_or_else(|| {
                format!(
                    "it refused the token of the call: compare the clocks, which may differ by 30 \
                     s, and token_key on both nodes ({})",
                    status.message()
                )
            }))
        }
        // The other side refused the call before any effect.
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Unimplemented => PeerError::NotSent(text),
        _ => PeerError::Unknown(text),
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;
    use distlock_kickout::Boot;

    use super::*;
    use crate::token::TokenKey;

    #[tokio::test]
    async fn unused_channels_to_old_nodes_are_closed() {
        let clock = ManualClock::new();
        let peers = GrpcPeers::new(
            NodeId::new("n1").unwrap(),
            TokenKey::new(&[7; 32]).unwrap().peers().unwrap(),
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
                drop(peers.client_for(&to).unwrap());
            }
            clock.advance(UNUSED_LIMIT / 2);
        }
        let open = peers.channels.lock().len();
        assert!(open <= 3, "{open}");
    }
}
