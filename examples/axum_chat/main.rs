//! A chat server around the kick-out flow: axum and WebSockets for clients, plain HTTP between
//! nodes (`peers.rs`). Over all nodes of the same store, an account has at most one session on a
//! phone and one session on another device.
//!
//! ```sh
//! cargo run -p distlock --example axum_chat --features sqlite -- \
//!     n1 127.0.0.1:8081 sqlite:/tmp/chat.db
//! ```
//! Run n2 on port 8082 in another terminal. Then connect to both nodes, with a different device
//! each: `ws://127.0.0.1:8081/ws/anna/laptop/pc`. The text frame `otto hello` sends a message to
//! otto.

mod peers;
#[cfg(test)]
mod tests;

use axum::extract::ws::{Message as Frame, Utf8Bytes, WebSocket};
use axum::extract::{Path, State, WebSocketUpgrade};
use axum::{response::Response, routing::get};
use distlock_kickout::{
    Class, Device, KickOut, Login, LoginOutcome, Message, NodeId, Policy, PolicyName, Receipt,
    Session, Uid,
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::sync::Arc;
use tokio::net::TcpListener;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [node, listen, backend] = args.as_slice() else {
        return Err("usage: axum_chat NODE HOST:PORT BACKEND_URL".into());
    };
    serve(node, TcpListener::bind(listen).await?, backend).await
}

async fn serve(node: &str, listener: TcpListener, backend: &str) -> Result<(), Failure> {
    let store = distlock::open(backend).await?;
    let kick = KickOut::builder(store.clone(), NodeId::new(node)?)
        .advertise(listener.local_addr()?.to_string())
        .policy(Policy::named(PolicyName::PhoneAndPc))
        .peers(Arc::new(peers::HttpPeers::default()))
        .start()
        .await?;
    let routes = peers::routes().route("/ws/{uid}/{device}/{class}", get(connect));
    axum::serve(listener, routes.with_state(kick.clone()))
        .with_graceful_shutdown(async move {
            let _ = tokio::signal::ctrl_c().await;
            // The shutdown sends every client to another node, and releases the node's lease.
            kick.shutdown().await;
        })
        .await?;
    store.close().await;
    Ok(())
}

/// The account, the device and its class, from the path. A real server takes the account from a
/// token that it has checked.
type Identity = (Uid, Device, Class);

async fn connect(
    kick: State<KickOut>,
    identity: Path<Identity>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let (State(kick), Path((uid, device, class))) = (kick, identity);
    upgrade.on_upgrade(move |mut socket| async move {
        let refusal = match kick.login(Login::new(uid, device, class)).await {
            Ok(LoginOutcome::Admitted(session)) => {
                return serve_client(&kick, session, socket).await;
            }
            Ok(refusal) => refusal.to_string(),
            Err(error) => error.to_string(),
        };
        let _ = socket.send(Frame::text(refusal)).await;
    })
}

/// Serves one connection until the session ends or the client disconnects. Sends messages to the
/// client, and forwards the messages of the client.
async fn serve_client(kick: &KickOut, session: Session, mut socket: WebSocket) {
    let mut sending = FuturesUnordered::new();
    loop {
        tokio::select! {
            notice = session.superseded() => {
                let _ = socket.send(Frame::text(format!("offline: {}", notice.reason))).await;
                break;
            }
            message = session.next_message() => {
                let text = format!("{}: {}", message.message().from, message.message().body);
                if socket.send(Frame::text(text)).await.is_err() { break }
                message.delivered();
            }
            Some(outcome) = sending.next() => {
                let text = Result::unwrap_or_else(outcome, |no: Failure| no.to_string());
                if socket.send(Frame::text(text)).await.is_err() { break }
            }
            frame = socket.recv(), if sending.len() < 8 => {
                let Some(Ok(frame)) = frame else { break };
                if let Frame::Text(text) = frame {
                    sending.push(send_message(kick, &session, text));
                }
            }
        }
    }
    session.logout().await;
}

/// Sends a message of a client, `ACCOUNT TEXT`, unless the client's session has ended. Returns the
/// text about the delivery that the client gets.
async fn send_message(
    kick: &KickOut,
    session: &Session,
    text: Utf8Bytes,
) -> Result<String, Failure> {
    session.check().map_err(|notice| notice.reason)?;
    let (to, body) = text.split_once(' ').ok_or("ACCOUNT TEXT is wanted")?;
    let message = Message::new(session.uid().clone(), body);
    let receipts = kick.deliver(&Uid::new(to)?, message).await?;
    let said: Vec<_> = receipts.iter().map(Receipt::to_string).collect();
    Ok(match said[..] {
        [] => "not delivered: nobody is logged in".into(),
        _ => said.join("; "),
    })
}
