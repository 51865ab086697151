//! A chat server of one's own around the kick-out flow: axum and WebSockets for clients, plain HTTP between nodes. Every
//! account has one session on a phone and one elsewhere, over all nodes of the same store.
//!
//! ```sh
//! cargo run -p distlock --example axum_chat --features sqlite -- n1 127.0.0.1:8081 sqlite:/tmp/chat.db
//! cargo run -p distlock --example axum_chat --features sqlite -- n2 127.0.0.1:8082 sqlite:/tmp/chat.db
//! ```
//!
//! Then connect twice, to different nodes: `ws://127.0.0.1:8081/ws?uid=anna&device=laptop&class=pc`, and
//! `ws://127.0.0.1:8082/ws?uid=anna&device=tablet&class=pc`. A text frame `otto hello` sends otto a message.

use std::{error::Error, sync::Arc};

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    extract::{Query, State, WebSocketUpgrade, ws::Message as Frame, ws::WebSocket},
    http::{Request, StatusCode},
    response::Response,
    routing::{get, post},
};
use distlock_kickout::{
    Class, DeliverRequest, DeliverResult, Device, KickOut, KickRequest, KickResult, Login,
    LoginOutcome, Message, NodeAddress, NodeId, PeerError, Peers, Policy, PolicyName, Session, Uid,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [node, listen, backend] = args.as_slice() else {
        return Err("usage: axum_chat NODE HOST:PORT BACKEND_URL".into());
    };
    let store = distlock::open(backend.as_str()).await?;
    let kick = KickOut::builder(store.clone(), NodeId::new(node)?)
        .advertise(listen)
        .policy(Policy::named(PolicyName::PhoneAndPc))
        .peers(Arc::new(HttpPeers(
            Client::builder(TokioExecutor::new()).build_http(),
        )))
        .start()
        .await?;
    let routes = Router::new()
        .route("/ws", get(connect))
        // In earnest: on a listener of their own, with a secret that only nodes know.
        .route("/peer/kick", post(end_session))
        .route("/peer/deliver", post(hand_over))
        .with_state(kick.clone());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    axum::serve(listener, routes)
        .with_graceful_shutdown(async move {
            let _ = tokio::signal::ctrl_c().await;
            kick.shutdown().await; // tells every client to go elsewhere, and gives the node's lease back
        })
        .await?;
    store.close().await;
    Ok(())
}

/// Who connects. In earnest the account comes from a token that was checked.
#[derive(Deserialize)]
struct Who {
    uid: Uid,
    device: Device,
    class: Class,
}

async fn connect(
    State(kick): State<KickOut>,
    Query(who): Query<Who>,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade.on_upgrade(move |mut socket| async move {
        let login = Login::new(who.uid, who.device, who.class);
        let no = match kick.login(login).await {
            Ok(LoginOutcome::Admitted(session)) => return converse(&kick, &session, socket).await,
            Ok(LoginOutcome::Busy { retry_after }) => format!("busy, come back in {retry_after:?}"),
            Ok(LoginOutcome::Denied(denied)) => format!("denied: {}", denied.reason),
            Ok(other) => format!("not admitted: {other:?}"),
            Err(error) => error.to_string(),
        };
        let _ = socket.send(Frame::text(no)).await;
    })
}

/// One connection: it takes messages out, lets the client's in, and ends when it is told to.
async fn converse(kick: &KickOut, session: &Session, mut socket: WebSocket) {
    loop {
        tokio::select! {
            notice = session.superseded() => {
                let _ = socket.send(Frame::text(format!("offline: {}", notice.reason))).await;
                break;
            }
            message = session.next_message() => {
                let text = format!("{}: {}", message.message().from, message.message().body);
                if socket.send(Frame::text(text)).await.is_err() {
                    break;
                }
                message.delivered();
            }
            frame = socket.recv() => {
                let Some(Ok(frame)) = frame else { break };
                let Ok(text) = frame.to_text() else { continue };
                // Asked before anything that the client sends is acted upon.
                if let (Some((to, body)), Ok(())) = (text.split_once(' '), session.check()) {
                    let from = session.uid().clone();
                    let message = Message { from, id: String::new(), body: body.into() };
                    let outcome = match Uid::new(to) {
                        Ok(to) => kick.deliver(&to, message).await.map(|it| format!("{it:?}")),
                        Err(error) => Err(error),
                    };
                    let said = outcome.unwrap_or_else(|error| error.to_string());
                    let _ = socket.send(Frame::text(said)).await;
                }
            }
        }
    }
    session.logout().await;
}

/// The other nodes, over HTTP at the address that they advertised.
#[derive(Debug)]
struct HttpPeers(Client<HttpConnector, Body>);

#[async_trait::async_trait]
impl Peers for HttpPeers {
    async fn kick(&self, to: &NodeAddress, request: KickRequest) -> Result<KickResult, PeerError> {
        self.ask(to, "kick", &request).await
    }

    async fn deliver(
        &self,
        to: &NodeAddress,
        request: DeliverRequest,
    ) -> Result<DeliverResult, PeerError> {
        self.ask(to, "deliver", &request).await
    }
}

impl HttpPeers {
    /// The flow brings deadlines and retries; this only has to say what may have been executed.
    async fn ask<T: DeserializeOwned>(
        &self,
        to: &NodeAddress,
        what: &str,
        body: &impl Serialize,
    ) -> Result<T, PeerError> {
        let not_sent = |error: &dyn Error| PeerError::NotSent(error.to_string());
        let unknown = |error: &dyn Error| PeerError::Unknown(error.to_string());
        let body = serde_json::to_vec(body).map_err(|error| not_sent(&error))?;
        let request = Request::post(format!("http://{}/peer/{what}", to.addr))
            .header("content-type", "application/json")
            .body(Body::from(body))
            .map_err(|error| not_sent(&error))?;
        let response = match self.0.request(request).await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return Err(not_sent(&error)),
            Err(error) => return Err(unknown(&error)),
        };
        if response.status() == StatusCode::CONFLICT {
            return Err(PeerError::NotSent("this is another node".into()));
        }
        let body = to_bytes(Body::new(response.into_body()), 65_536).await;
        serde_json::from_slice(&body.map_err(|error| unknown(&error))?)
            .map_err(|error| unknown(&error))
    }
}

async fn end_session(
    State(kick): State<KickOut>,
    Json(request): Json<KickRequest>,
) -> Result<Json<KickResult>, StatusCode> {
    kick.handle_kick(&request)
        .map(Json)
        .map_err(|_| StatusCode::CONFLICT)
}

async fn hand_over(
    State(kick): State<KickOut>,
    Json(request): Json<DeliverRequest>,
) -> Json<DeliverResult> {
    Json(kick.handle_deliver(request).await)
}
