//! Requests between nodes: JSON over HTTP, at the address that each node advertises.

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, StatusCode},
    routing::post,
};
use distlock_kickout::{
    DeliverRequest, DeliverResult, KickOut, KickRequest, KickResult, NodeAddress, PeerError, Peers,
    Uid,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Serialize, de::DeserializeOwned};

/// The routes for requests of other nodes. A real server serves them on a listener of its own, and
/// asks for a secret that only nodes know.
pub(crate) fn routes() -> Router<KickOut> {
    Router::new()
        .route("/peer/kick", post(kick))
        .route("/peer/deliver", post(deliver))
        .route("/peer/hand_out", post(hand_out))
}

async fn kick(
    State(kick): State<KickOut>,
    Json(request): Json<KickRequest>,
) -> Result<Json<KickResult>, StatusCode> {
    let result = kick.handle_kick(&request);
    result.map(Json).map_err(|_| StatusCode::CONFLICT)
}

async fn deliver(
    State(kick): State<KickOut>,
    Json(request): Json<DeliverRequest>,
) -> Json<DeliverResult> {
    Json(kick.handle_deliver(request).await)
}

async fn hand_out(State(kick): State<KickOut>, Json(uids): Json<Vec<Uid>>) -> Json<()> {
    kick.handle_hand_out(&uids);
    Json(())
}

/// Sends requests to other nodes.
#[derive(Debug)]
pub(crate) struct HttpPeers(Client<HttpConnector, Body>);

impl Default for HttpPeers {
    fn default() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }
}

#[async_trait::async_trait]
impl Peers for HttpPeers {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        self.send_request(to, "kick", &request).await
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        self.send_request(to, "deliver", &request).await
    }

    async fn hand_out(&self, to: &NodeAddress, uids: &[Uid]) -> Result<(), PeerError> {
        self.send_request(to, "hand_out", &uids).await
    }
}

impl HttpPeers {
    /// Sends a request and returns the answer. An error says whether the other node may have
    /// executed the request. The kick-out flow adds deadlines and retries.
    async fn send_request<T: DeserializeOwned>(
        &self,
        to: &NodeAddress,
        what: &str,
        question: &impl Serialize,
    ) -> Result<T, PeerError> {
        let question = serde_json::to_vec(question).map_err(PeerError::not_sent)?;
        let request = Request::post(format!("http://{}/peer/{what}", to.addr))
            .header("content-type", "application/json")
            .body(question.into())
            .map_err(PeerError::not_sent)?;
        let response = match self.0.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Err(PeerError::not_sent(error)),
            Err(error) => return Err(PeerError::unknown(error)),
        };
        if response.status() == StatusCode::CONFLICT {
            return Err(PeerError::not_sent("this is another node"));
        }
        let answer = to_bytes(Body::new(response.into_body()), 65_536).await;
        serde_json::from_slice(&answer.map_err(PeerError::unknown)?).map_err(PeerError::unknown)
    }
}
