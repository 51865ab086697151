//! Tests of calls between nodes, over real connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, ManualClock, Store, SystemClock};
use distlock_harness::FaultProxy;
use distlock_kickout::{
    Boot, Code, DeliverRequest, DeliverResult, Generation, KickOut, KickRequest, KickResult,
    Message, NodeAddress, NodeId, PeerError, Peers, SessionKey, Uid,
};
use distlock_listen::{ConnectionBounds, ConnectionListener, ConnectionQuota};
use distlock_memory::Memory;
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service as _;
use uuid::Uuid;

use super::{
    GrpcPeers, client, serve_peers, server, v1,
    wire::{self, CALLS_HEADER, CALLS_VERSION, KEEP_ALIVE},
};
use crate::{
    bearer::BearerToken,
    config::Secret,
    front::fixtures,
    inbox::RecordsInbox,
    send_api::SendApi,
    takeovers::RecentTakeovers,
    token::{Call, TokenKey},
};

/// Longest wait of a test. A run without a bug takes far less.
const PATIENCE: Duration = Duration::from_secs(20);
const SEND_TOKEN: &str = "a token for those who send";

fn quota(pending: usize) -> ConnectionQuota {
    ConnectionQuota::new(ConnectionBounds {
        all: 9,
        pending,
        all_per_address: 9,
        pending_per_address: 9,
    })
}

async fn start_node(key: &TokenKey) -> (KickOut, NodeAddress, CancellationToken) {
    start_node_with(key, quota(9), Arc::new(SystemClock), Some(SEND_TOKEN)).await
}

async fn start_node_with(
    key: &TokenKey,
    quota: ConnectionQuota,
    clock: Arc<dyn Clock>,
    send_token: Option<&str>,
) -> (KickOut, NodeAddress, CancellationToken) {
    let memory = Memory::default();
    let store = Store::new(memory.lock(), memory.records());
    let name = NodeId::new("n1").unwrap();
    let kick = KickOut::builder(store, name.clone()).start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = NodeAddress {
        node: name,
        boot: kick.boot().unwrap(),
        addr: listener.local_addr().unwrap().to_string(),
    };
    let stop = CancellationToken::new();
    let listener =
        ConnectionListener::new(listener, quota, Arc::clone(&clock), Duration::from_secs(10));
    let inbox = Arc::new(RecordsInbox::new(memory.records()));
    let sender = SendApi::new(
        fixtures::front_context(&kick, inbox),
        send_token.map(|it| BearerToken::for_senders(Secret::new(it), clock)),
    );
    let serving = serve_peers(
        kick.clone(),
        RecentTakeovers::new(kick.clone()),
        key.peers().unwrap(),
        sender,
        listener,
        stop.clone(),
    );
    tokio::spawn(async move { serving.await.unwrap() });
    (kick, to, stop)
}

fn kick_request(to: &NodeAddress, boot: Boot) -> KickRequest {
    KickRequest::new(
        Uid::new("anna").unwrap(),
        SessionKey {
            node: to.node.clone(),
            boot,
            session: Uuid::new_v4().to_string().parse().unwrap(),
        },
        Generation::new(1),
        Code::Superseded,
        Uuid::new_v4(),
        NodeId::new("n2").unwrap(),
    )
}

#[tokio::test]
async fn only_nodes_with_the_common_key_are_answered() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, to, stop) = start_node(&key).await;
    let n2 = NodeId::new("n2").unwrap();
    let second = Duration::from_secs(1);
    let good = GrpcPeers::new(
        n2.clone(),
        key.peers().unwrap(),
        second,
        Arc::new(SystemClock),
    );
    let answer = good.kick(&to, kick_request(&to, to.boot)).await;
    assert_eq!(answer, Ok(KickResult::AlreadyGone));
    let later = Boot::new(to.boot.get() + 1);
    let answer = good.kick(&to, kick_request(&to, later)).await;
    assert!(matches!(answer, Err(PeerError::NotSent(_))), "{answer:?}");
    let request = kick_request(&to, to.boot);
    let message = Message::new(Uid::new("otto").unwrap(), "1");
    let request = DeliverRequest::new(request.uid, request.key, message, second);
    let answer = good.deliver(&to, request).await;
    assert_eq!(answer, Ok(DeliverResult::NotCurrent));

    let stranger = GrpcPeers::new(
        n2,
        TokenKey::new(&[8; 32]).unwrap().peers().unwrap(),
        second,
        Arc::new(SystemClock),
    );
    let answer = stranger.kick(&to, kick_request(&to, to.boot)).await;
    assert!(matches!(answer, Err(PeerError::NotSent(_))), "{answer:?}");
    stop.cancel();
}

/// Pings keep an idle connection known to firewalls and load balancers, which would forget it.
#[tokio::test]
async fn a_call_after_idle_time_is_answered_at_once() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, mut to, stop) = start_node(&key).await;
    let proxy = FaultProxy::start(to.addr.parse().unwrap()).await.unwrap();
    to.addr = proxy.address().to_string();
    let idle = KEEP_ALIVE + Duration::from_secs(1);
    proxy.forget_idle(idle);
    let peers = GrpcPeers::new(
        NodeId::new("n2").unwrap(),
        key.peers().unwrap(),
        Duration::from_secs(1),
        Arc::new(SystemClock),
    );
    for pause in [Duration::ZERO, idle * 2] {
        SystemClock.sleep(pause).await;
        let call = peers.kick(&to, kick_request(&to, to.boot));
        let answer = timeout(Duration::from_millis(500), call).await;
        let answer = answer.unwrap_or_else(|_| panic!("no answer after {pause:?}"));
        assert_eq!(answer, Ok(KickResult::AlreadyGone), "after {pause:?}");
    }
    stop.cancel();
}

/// A call with a wrong token is refused before its body is decoded.
#[tokio::test]
async fn calls_are_refused_before_their_body_is_decoded() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, to, stop) = start_node(&key).await;
    let peers = key.peers().unwrap();
    let wall = SystemClock.wall();
    let call = |from: &str, to: &str, method: &str, body: &[u8], wall| {
        let call = Call { from, to, method };
        Some(peers.sign(call, body, wall).unwrap())
    };
    let (kick, garbage) = (
        "/distlock.v1.Peer/Kick",
        &b"\x00\x00\x00\x00\x02\xff\xff"[..],
    );
    let days = Duration::from_secs(6 * 24 * 3600);
    let login = crate::token::mint(&key, &Uid::new("anna").unwrap(), days / 24).unwrap();
    let channel = Endpoint::try_from(format!("http://{}", to.addr));
    let mut channel = channel.unwrap().connect().await.unwrap();
    for (token, code) in [
        (call("n2", "n1", kick, garbage, wall), tonic::Code::Internal),
        (None, tonic::Code::Unauthenticated),
        (Some("guess".into()), tonic::Code::Unauthenticated),
        (Some(login), tonic::Code::Unauthenticated),
        (
            call("n2", "n3", kick, garbage, wall),
            tonic::Code::Unauthenticated,
        ),
        (
            call("n2", "n1", "/distlock.v1.Peer/Idle", garbage, wall),
            tonic::Code::Unauthenticated,
        ),
        (
            call("n2", "n1", kick, b"another", wall),
            tonic::Code::Unauthenticated,
        ),
        (
            call("n2", "n1", kick, garbage, wall - days),
            tonic::Code::Unauthenticated,
        ),
    ] {
        let mut request = axum::http::Request::post(format!("http://{}{kick}", to.addr))
            .header("content-type", "application/grpc");
        if let Some(token) = &token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = tonic::body::Body::new(axum::body::Body::from(garbage));
        std::future::poll_fn(|context| channel.poll_ready(context))
            .await
            .unwrap();
        let answer = channel.call(request.body(body).unwrap());
        let answer = answer.await.unwrap();
        let status = answer.headers().get("grpc-status").unwrap().to_str();
        let expected = (code as i32).to_string();
        assert_eq!(status.unwrap(), expected, "{token:?}");
    }
    stop.cancel();
}

/// A node may send kicks only in its own name.
#[tokio::test]
async fn a_kick_names_the_node_whose_token_it_shows() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, to, stop) = start_node(&key).await;
    let peers = key.peers().unwrap();
    let (n3, second) = (NodeId::new("n3").unwrap(), Duration::from_secs(1));
    let calls = GrpcPeers::new(n3, peers, second, Arc::new(SystemClock));
    // The kick names n2, but the token is of n3.
    let answer = calls.kick(&to, kick_request(&to, to.boot)).await;
    let Err(PeerError::NotSent(why)) = answer else {
        panic!("{answer:?}");
    };
    assert!(why.contains("another node"), "{why}");
    stop.cancel();
}

fn with_token<T>(message: T, token: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let token = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", token);
    request
}

async fn peer_client(to: &NodeAddress) -> v1::peer_client::PeerClient<Channel> {
    let channel = Endpoint::try_from(format!("http://{}", to.addr));
    v1::peer_client::PeerClient::new(channel.unwrap().connect().await.unwrap())
}

#[tokio::test]
async fn a_refusal_names_the_version_of_tokens_that_the_node_reads() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, to, stop) = start_node(&key).await;
    let request = wire::kick_to_wire(kick_request(&to, to.boot));
    let request = with_token(request, "of another version");
    let refused = peer_client(&to).await.kick(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    assert_eq!(refused.metadata().get(CALLS_HEADER).unwrap(), CALLS_VERSION);
    assert!(refused.message().contains("distlock-calls: 1"), "{refused}");
    stop.cancel();
}

/// If a node reads another version of tokens, the error names that node, and no second call is
/// made.
#[tokio::test]
async fn a_refusal_for_another_token_version_names_the_node_to_upgrade() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (kicks, to, stop) = start_node(&key).await;
    for (version, says) in [
        (None, ["distlock-calls", "peer_advertise", "proxies"]),
        (Some("2"), ["version \"2\"", "version 1", "on both"]),
    ] {
        let calls = Arc::new(AtomicU32::new(0));
        let counts = Arc::clone(&calls);
        let refuses = move |_: tonic::Request<()>| {
            counts.fetch_add(1, Ordering::SeqCst);
            let mut refusal = tonic::Status::unauthenticated("a peer token is needed");
            if let Some(version) = version {
                let version = version.parse().unwrap();
                refusal.metadata_mut().insert(CALLS_HEADER, version);
            }
            Err(refusal)
        };
        let service = server::PeerService {
            kick: kicks.clone(),
            recent: RecentTakeovers::new(kicks.clone()),
        };
        let service = v1::peer_server::PeerServer::with_interceptor(service, refuses);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut at = to.clone();
        at.addr = listener.local_addr().unwrap().to_string();
        let connections = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tonic::transport::Server::builder().add_service(service);
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(serving.serve_with_incoming_shutdown(connections, stopped));
        let (n2, second) = (NodeId::new("n2").unwrap(), Duration::from_secs(1));
        let clock = Arc::new(SystemClock);
        let peers = GrpcPeers::new(n2, key.peers().unwrap(), second, clock);
        let answer = peers.kick(&at, kick_request(&at, to.boot)).await;
        let Err(PeerError::NotSent(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(says.iter().all(|it| why.contains(it)), "{why}");
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
    stop.cancel();
}

/// Somebody who listens on the network cannot repeat a call.
#[tokio::test]
async fn a_message_that_is_sent_again_with_its_token_is_delivered_once() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (kick, to, stop) = start_node(&key).await;
    let anna = Uid::new("anna").unwrap();
    let session = fixtures::log_in_device(&kick, &anna).await;
    let message = Message::new(Uid::new("otto").unwrap(), "1");
    let request = DeliverRequest::new(anna, session.key().clone(), message, PATIENCE);
    let body = wire::delivery_to_wire(request);
    let call = Call {
        from: "n2",
        to: "n1",
        method: "/distlock.v1.Peer/Deliver",
    };
    let sign = || {
        let peers = key.peers().unwrap();
        peers.sign(call, &client::wire_bytes(&body), SystemClock.wall())
    };
    let token = sign().unwrap();
    let peer = peer_client(&to).await;
    let deliver = async |token: &str| {
        let request = with_token(body.clone(), token);
        let answer = peer.clone().deliver(request).await?;
        Ok::<_, tonic::Status>(answer.into_inner().result())
    };
    let delivered = Ok(v1::deliver_response::Result::Written);
    let reads = async || session.next_message().await.delivered();
    let (answer, _) = tokio::join!(deliver(&token), reads());
    assert_eq!(answer.map_err(|status| status.code()), delivered);
    tokio::select! {
        refused = deliver(&token) => {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unauthenticated);
            assert!(refused.message().contains("used before"), "{refused}");
        }
        _ = session.next_message() => panic!("it was delivered twice"),
    }
    // The same message with a new token is another call.
    let again = sign().unwrap();
    let (answer, _) = tokio::join!(deliver(&again), reads());
    assert_eq!(answer.map_err(|status| status.code()), delivered);
    stop.cancel();
}

#[tokio::test]
async fn no_server_sends_without_a_send_token_of_the_node() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, to, stop) = start_node_with(&key, quota(9), Arc::new(SystemClock), None).await;
    let channel = Endpoint::try_from(format!("http://{}", to.addr));
    let channel = channel.unwrap().connect().await.unwrap();
    let mut client = v1::messages_client::MessagesClient::new(channel);
    let mut request = tonic::Request::new(v1::SendRequest::default());
    let shown = format!("Bearer {SEND_TOKEN}").parse().unwrap();
    request.metadata_mut().insert("authorization", shown);
    let refused = client.send(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    stop.cancel();
}

#[tokio::test]
async fn servers_send_messages_with_the_send_token() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (kick, to, stop) = start_node(&key).await;
    let anna = Uid::new("anna").unwrap();
    let session = fixtures::log_in_device(&kick, &anna).await;
    session.logout().await;
    let channel = Endpoint::try_from(format!("http://{}", to.addr));
    let channel = channel.unwrap().connect().await.unwrap();
    let mut client = v1::messages_client::MessagesClient::new(channel);
    let good = v1::SendRequest {
        from: "the shop".into(),
        to: vec!["anna".into(), "nobody".into(), "anna".into()],
        body: r#"{"paid": 5}"#.into(),
        id: Some("m1".into()),
        ..Default::default()
    };
    let mut ask = async |token: &str, request: v1::SendRequest| {
        let mut request = tonic::Request::new(request);
        let shown = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", shown);
        client.send(request).await.map(tonic::Response::into_inner)
    };
    let answer = ask(SEND_TOKEN, good.clone()).await.unwrap();
    let outcomes = answer.accounts.iter().map(|it| (&*it.uid, it.outcome()));
    let expected = [
        ("anna", v1::Outcome::Stored),
        ("nobody", v1::Outcome::Failed),
    ];
    assert_eq!(answer.id, "m1");
    assert_eq!(outcomes.collect::<Vec<_>>(), expected);
    let call = Call {
        from: "n2",
        to: "n1",
        method: "/distlock.v1.Messages/Send",
    };
    let body = client::wire_bytes(&good);
    let peer = key.peers().unwrap();
    let peer = peer.sign(call, &body, SystemClock.wall()).unwrap();
    for token in ["guess", &peer] {
        let refused = ask(token, good.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated);
    }
    let broken: [(fn(&mut v1::SendRequest), _, _); 6] = [
        (
            |it| it.to = vec!["anna".into(), String::new()],
            tonic::Code::InvalidArgument,
            "uid is empty",
        ),
        (
            |it| it.to = vec!["anna".into(); 1001],
            tonic::Code::InvalidArgument,
            "more than 1000 accounts",
        ),
        (
            |it| it.version = 1,
            tonic::Code::FailedPrecondition,
            "version 1 of Send",
        ),
        (
            |it| it.body = "no JSON".into(),
            tonic::Code::InvalidArgument,
            "body is no JSON",
        ),
        (
            |it| it.from = String::new(),
            tonic::Code::InvalidArgument,
            "uid is empty",
        ),
        (
            |it| it.id = Some("x".repeat(129)),
            tonic::Code::InvalidArgument,
            "128 bytes",
        ),
    ];
    for (spoil, code, says) in broken {
        let mut request = good.clone();
        spoil(&mut request);
        let refused = ask(SEND_TOKEN, request).await.unwrap_err();
        assert_eq!(refused.code(), code);
        assert!(refused.message().contains(says), "{refused}");
    }
    stop.cancel();
}

#[tokio::test]
async fn a_connection_without_a_token_ends() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let clock = ManualClock::new();
    let clocked = Arc::new(clock.clone());
    let (_kick, to, stop) = start_node_with(&key, quota(2), clocked, Some(SEND_TOKEN)).await;
    let (n2, second) = (NodeId::new("n2").unwrap(), Duration::from_secs(1));
    let peers = GrpcPeers::new(n2, key.peers().unwrap(), second, Arc::new(SystemClock));
    let answer = peers.kick(&to, kick_request(&to, to.boot)).await;
    assert_eq!(answer, Ok(KickResult::AlreadyGone));
    let ended = async |stream: &mut TcpStream| {
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        // The first bytes of the server are not part of this test.
        let _ = timeout(Duration::from_secs(20), read).await.unwrap();
    };
    for _ in 0..2 {
        let silent = TcpStream::connect(&to.addr).await.unwrap();
        let silent_too = TcpStream::connect(&to.addr).await.unwrap();
        // The connect itself may already fail.
        if let Ok(mut refused) = TcpStream::connect(&to.addr).await {
            ended(&mut refused).await;
        }
        // No permit is left for another connection, so the node uses the connection over which it
        // showed its token.
        let answer = peers.kick(&to, kick_request(&to, to.boot)).await;
        assert_eq!(answer, Ok(KickResult::AlreadyGone));
        clock.advance(Duration::from_secs(10));
        for mut stranger in [silent, silent_too] {
            ended(&mut stranger).await;
        }
    }
    stop.cancel();
}

#[tokio::test]
async fn nodes_accept_each_other_only_if_their_clocks_are_close() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let (_kick, to, stop) = start_node(&key).await;
    let (seconds, day) = (Duration::from_secs, Duration::from_secs(24 * 3600));
    let clocks = [(); 4].map(|()| ManualClock::new());
    let years = SystemClock.wall().duration_since(clocks[0].wall());
    let years = years.unwrap();
    let accepted = [
        (years - seconds(20), true),
        (years + seconds(20), true),
        // A token that somebody read on the network days ago is refused.
        (years - day * 6, false),
        (years + seconds(60), false),
    ];
    for (clock, (time, accepted)) in clocks.into_iter().zip(accepted) {
        clock.advance(time);
        let wall = clock.wall();
        let second = Duration::from_secs(1);
        let n2 = NodeId::new("n2").unwrap();
        let peers = GrpcPeers::new(n2, key.peers().unwrap(), second, Arc::new(clock));
        let answer = peers.kick(&to, kick_request(&to, to.boot)).await;
        assert_eq!(answer == Ok(KickResult::AlreadyGone), accepted, "{wall:?}");
    }
    stop.cancel();
}

#[tokio::test]
async fn a_call_to_an_unreachable_node_is_reported_as_not_sent() {
    let key = TokenKey::new(&[7; 32]).unwrap();
    let peers: Arc<dyn Peers> = Arc::new(GrpcPeers::new(
        NodeId::new("n2").unwrap(),
        key.peers().unwrap(),
        Duration::from_secs(1),
        Arc::new(SystemClock),
    ));
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut to = NodeAddress {
        node: NodeId::new("n1").unwrap(),
        boot: Boot::new(1),
        addr: free.local_addr().unwrap().to_string(),
    };
    drop(free);
    let answer = peers.kick(&to, kick_request(&to, to.boot)).await;
    assert!(matches!(answer, Err(PeerError::NotSent(_))), "{answer:?}");
    to.addr = "not an address".into();
    let answer = peers.kick(&to, kick_request(&to, to.boot)).await;
    assert!(matches!(answer, Err(PeerError::NotSent(_))), "{answer:?}");
}
