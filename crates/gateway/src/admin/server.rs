//! The server of the admin HTTP, with its routes.
//!
//! Invariant of this module: an order that has begun is completed and recorded, even if its sender
//! leaves. This module must never execute an order without a token that has the right for it, or a
//! pass for such a token.

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use distlock_core::Locker;
use distlock_kickout::KickOut;
use distlock_listen::{ConnectionListener, MetricsPage, Tls, serve_http};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    AdminAccess, AuditLog, Right, audit, events,
    http::{client_ip, http_error, mark_logged_in},
    lists, orders, presence, send,
};
use crate::{accounts::Turns, health::health, send_api::SendApi};

/// Longest body of an order in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Serves administrators until `stop`, and then waits for the orders in progress.
pub(crate) async fn serve_admin(
    admin: AdminContext,
    page: Router,
    listener: ConnectionListener,
    stop: CancellationToken,
) {
    let orders = TaskTracker::new();
    let completed =
        |routes: Router<AdminContext>| {
            routes.layer(DefaultBodyLimit::max(MAX_BODY)).route_layer(
                middleware::from_fn_with_state(orders.clone(), run_to_completion),
            )
        };
    let guarded = |routes: Router<AdminContext>, needed| {
        let guard = (admin.clone(), needed);
        routes.route_layer(middleware::from_fn_with_state(guard, authorise))
    };
    let lists = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/v1/users/{uid}", get(orders::show_user))
        .route("/v1/sessions", get(lists::list_sessions))
        .route("/v1/bans", get(lists::list_bans))
        .route("/v1/revocations", get(lists::list_revocations))
        .route("/v1/nodes", get(orders::list_nodes))
        .route("/v1/audit", get(audit::list_audit))
        // A question about many accounts changes nothing, and its body is longer.
        .route("/v1/presence", post(presence::show_presence));
    let usual = Router::new()
        .route("/v1/kick", post(orders::kick))
        .route("/v1/ban", post(orders::ban).delete(orders::unban))
        .route("/v1/users/{uid}/message", post(orders::send_message))
        .route("/v1/drain", post(orders::drain).delete(orders::undrain));
    let by_force = Router::new().route("/v1/force-release", post(orders::force_release));
    let guarded = guarded(lists, Right::Read)
        .merge(guarded(completed(usual), Right::Operate))
        .merge(guarded(completed(by_force), Right::Admin));
    let routes = Router::new()
        .route(
            "/healthz",
            get(async |State(admin): State<AdminContext>| health(&admin.kick)),
        )
        .merge(guarded)
        .with_state(admin.clone())
        .merge(send::routes(admin.sender.clone()))
        .merge(events::routes(admin, stop.clone()))
        .merge(page)
        .fallback(|| async { http_error(StatusCode::NOT_FOUND, "this path does not exist") })
        .method_not_allowed_fallback(|| async {
            http_error(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path needs another method",
            )
        });
    serve_http(listener, routes, stop).await;
    orders.close();
    orders.wait().await;
}

/// Runs an order and the write of its audit entry in a separate task. Otherwise a sender that
/// leaves before the answer would cancel the order or the write.
async fn run_to_completion(
    State(orders): State<TaskTracker>,
    request: Request,
    next: Next,
) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    let answer = orders.spawn(next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let code = StatusCode::INTERNAL_SERVER_ERROR;
        http_error(
            code,
            "the order broke off: look in the audit log whether it had an effect",
        )
        .into_response()
    })
}

/// Lets a request through whose token, or whose pass for a token, has the right that is needed. The
/// request then knows its administrator.
pub(super) async fn authorise(
    State((admin, needed)): State<(AdminContext, Right)>,
    mut request: Request,
    next: Next,
) -> Response {
    let from = client_ip(&request);
    let Some(administrator) = admin.access.identify(request.headers(), from).await else {
        let why = "a bearer token is needed: an admin token of this node";
        return http_error(StatusCode::UNAUTHORIZED, why).into_response();
    };
    mark_logged_in(&request);
    if let Err(why) = administrator.check(needed) {
        tracing::warn!(target: "distlock::audit", %from, why, "a request was refused");
        return http_error(StatusCode::FORBIDDEN, &why).into_response();
    }
    request.extensions_mut().insert(administrator);
    next.run(request).await
}

/// `GET /metrics`: all metrics in the text format of Prometheus. Values that change by themselves
/// are read for each answer.
async fn show_metrics(State(admin): State<AdminContext>) -> Response {
    admin.tls.record_expiry();
    admin.metrics.answer()
}

/// The parts that the handlers share.
#[derive(Clone)]
pub(crate) struct AdminContext {
    pub(crate) kick: KickOut,
    pub(crate) locker: Locker,
    pub(crate) audit: AuditLog,
    pub(crate) metrics: MetricsPage,
    pub(crate) tls: Arc<Tls>,
    pub(crate) access: AdminAccess,
    pub(crate) sender: SendApi,
    /// The turns of questions about many accounts.
    pub(crate) turns: Turns,
}

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, net::SocketAddr, sync::Arc, time::Duration};

    use distlock_core::{Clock, ManualClock, Store, SystemClock};
    use distlock_kickout::{Class, Device, KickOut, Login, NodeId, Uid};
    use distlock_listen::{ConnectionBounds, ConnectionQuota, Tls};
    use distlock_memory::Memory;
    use futures_util::future::join_all;
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpSocket, TcpStream},
        time::timeout,
    };

    use super::*;
    use crate::{
        admin::{AdminAccess, AdminTokens, AuditLog},
        config::{GatewayConfig, Secret},
        front::fixtures,
        inbox::RecordsInbox,
        page::{self, PageContext},
        peer::GrpcPeers,
        takeovers::RecentTakeovers,
        token::TokenKey,
    };

    /// A time-out that a run without a bug never reaches.
    const LONG: Duration = Duration::from_secs(20);
    /// The time between two looks at an answer that has not come.
    const SHORT: Duration = Duration::from_millis(20);

    /// Sends a request and keeps the connection open. Returns the first twelve characters of the
    /// answer, or an empty text if the connection ended.
    async fn ask(stream: &mut TcpStream, path: &str, token: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: n1\r\nauthorization: Bearer {token}\r\n\r\n");
        let mut buffer = vec![0; 64 * 1024];
        let read = async {
            stream.write_all(request.as_bytes()).await?;
            stream.read(&mut buffer).await
        };
        let read = timeout(LONG, read).await.unwrap().unwrap_or(0);
        String::from_utf8_lossy(&buffer[..read.min(12)]).into_owned()
    }

    /// A listener with one place for strangers, and its clock.
    struct Served {
        address: SocketAddr,
        clock: ManualClock,
        /// The clock of questions that wait for their turn.
        turns: ManualClock,
        stop: CancellationToken,
        kick: KickOut,
    }

    const LIMIT: Duration = Duration::from_secs(10);

    async fn serve() -> Served {
        let tokens = Arc::new(AdminTokens::of(Secret::new("open sesame")));
        serve_with(tokens, Arc::new(SystemClock)).await
    }

    /// `delays`: the clock of the delay after a wrong token.
    async fn serve_with(tokens: Arc<AdminTokens>, delays: Arc<dyn Clock>) -> Served {
        let memory = Memory::default();
        let (manual, turns) = (ManualClock::new(), ManualClock::new());
        let store = Store::new(memory.lock(), memory.records());
        let node = NodeId::new("n1").unwrap();
        let kick = KickOut::builder(store.clone(), node.clone());
        let kick = kick.start().await.unwrap();
        let access = AdminAccess::new(&node, tokens, delays, false);
        let stop = CancellationToken::new();
        let inbox = Arc::new(RecordsInbox::new(memory.records()));
        let sender = SendApi::new(fixtures::front_context(&kick, inbox), None);
        let no_files = GatewayConfig::default().tls_files().unwrap();
        let tls = Arc::new(Tls::read(no_files, Arc::new(SystemClock)).await.unwrap());
        let page = PageContext {
            tls: Arc::clone(&tls),
            kick: kick.clone(),
            key: TokenKey::new(&[7; 32]).unwrap(),
            access: access.clone(),
            node_lease: LONG,
            recent: RecentTakeovers::new(kick.clone()),
            peers: Arc::new(GrpcPeers::new(
                node.clone(),
                TokenKey::new(&[7; 32]).unwrap().peers().unwrap(),
                Duration::from_secs(1),
                Arc::new(SystemClock),
            )),
        };
        // The flow needs a real clock. Connections and streams are on the manual one.
        let orders = Store::with_clock(memory.lock(), memory.records(), Arc::new(manual.clone()));
        let admin = AdminContext {
            tls,
            kick: kick.clone(),
            locker: orders.locker(),
            audit: AuditLog::new(node, store.records(), Arc::new(SystemClock)),
            metrics: MetricsPage::install(),
            access,
            sender,
            turns: Turns::new(Arc::new(turns.clone())),
        };
        let socket = TcpSocket::new_v4().unwrap();
        // The connections of this listener have the same small buffer, which fills soon.
        socket.set_send_buffer_size(4096).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let address = listener.local_addr().unwrap();
        let clock = manual;
        let shared = Arc::new(clock.clone());
        let places = ConnectionQuota::new(ConnectionBounds {
            all: 9,
            pending: 1,
            all_per_address: 9,
            pending_per_address: 9,
        });
        let listener = ConnectionListener::new(listener, places, shared, LIMIT);
        tokio::spawn(serve_admin(
            admin,
            page::routes(page),
            listener,
            stop.clone(),
        ));
        Served {
            address,
            clock,
            turns,
            stop,
            kick,
        }
    }

    /// A connection whose own buffer is small, too.
    async fn connect_narrow(to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(to).await.unwrap()
    }

    #[tokio::test]
    async fn a_connection_without_a_token_ends() {
        let Served {
            address,
            clock,
            stop,
            ..
        } = serve().await;
        let mut friend = TcpStream::connect(address).await.unwrap();
        let answer = ask(&mut friend, "/v1/nodes", "open sesame").await;
        assert_eq!(answer, "HTTP/1.1 200");
        let mut stranger = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut stranger, "/", "guess").await, "HTTP/1.1 401");
        // The node refuses this connection, and the connect itself may already fail.
        if let Ok(mut refused) = TcpStream::connect(address).await {
            assert_eq!(ask(&mut refused, "/healthz", "").await, "");
        }
        clock.advance(LIMIT);
        let mut rest = Vec::new();
        // A reset ends the connection as well.
        let _ = timeout(LONG, stranger.read_to_end(&mut rest))
            .await
            .unwrap();
        let answer = ask(&mut friend, "/v1/nodes", "open sesame").await;
        assert_eq!(answer, "HTTP/1.1 200");
        stop.cancel();
    }

    /// One more login of each of these accounts, on another device than the one before.
    async fn log_in_all(kick: &KickOut, round: u32) {
        let logins = (0..16).map(async |number| {
            let uid = Uid::new(format!("u{number}")).unwrap();
            let device = Device::new(format!("d{}", round % 2)).unwrap();
            kick.login(Login::new(uid, device, Class::none())).await
        });
        for outcome in join_all(logins).await {
            outcome.unwrap();
        }
    }

    #[tokio::test]
    async fn a_reader_of_events_that_does_not_read_is_cut_off() {
        let served = serve().await;
        let mut deaf = connect_narrow(served.address).await;
        let request = "GET /v1/events HTTP/1.1\r\nhost: n1\r\n\
                       authorization: Bearer open sesame\r\n\r\n";
        deaf.write_all(request.as_bytes()).await.unwrap();
        let cut = async {
            // Once the node has reset the connection, a write fails.
            for round in 0.. {
                log_in_all(&served.kick, round).await;
                if round % 16 == 0 {
                    served.clock.advance(Duration::from_secs(1));
                    if deaf.write_all(b"x").await.is_err() {
                        return;
                    }
                }
            }
        };
        timeout(LONG * 3, cut).await.unwrap();
        let mut friend = TcpStream::connect(served.address).await.unwrap();
        let answer = ask(&mut friend, "/v1/events", "open sesame").await;
        assert_eq!(answer, "HTTP/1.1 200");
        served.stop.cancel();
    }

    /// A question about these accounts.
    fn presence_of(uids: &[String]) -> String {
        let body = json!({"uids": uids}).to_string();
        format!(
            "POST /v1/presence HTTP/1.1\r\nhost: n1\r\nauthorization: Bearer open sesame\r\n\
             connection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    /// Reads an answer while `clock` goes on. Returns its status and its body.
    async fn answer_while(clock: &ManualClock, stream: &mut TcpStream) -> (String, Value) {
        let began = async {
            while timeout(SHORT, stream.readable()).await.is_err() {
                clock.advance(Duration::from_secs(1));
            }
        };
        timeout(LONG, began).await.unwrap();
        let mut answer = String::new();
        let read = timeout(LONG, stream.read_to_string(&mut answer)).await;
        read.unwrap().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head[9..12].to_owned(), serde_json::from_str(body).unwrap())
    }

    /// The answers to these readers are in memory until they are read, so they keep their turns. A
    /// fifth answer is not even made.
    #[tokio::test]
    async fn readers_that_do_not_read_keep_their_turns_for_a_bounded_time() {
        let served = serve().await;
        // The answer is far longer than the buffers of its connection.
        let uids: Vec<_> = (0..1000).map(|number| format!("{number:0>128}")).collect();
        let question = presence_of(&uids);
        let mut deaf = Vec::new();
        for _ in 0..4 {
            let mut reader = connect_narrow(served.address).await;
            reader.write_all(question.as_bytes()).await.unwrap();
            // The answer has begun, so it has its turn.
            timeout(LONG, reader.readable()).await.unwrap().unwrap();
            deaf.push(reader);
        }
        let one = presence_of(&["anna".to_owned()]);
        let mut friend = TcpStream::connect(served.address).await.unwrap();
        friend.write_all(one.as_bytes()).await.unwrap();
        let (status, answer) = answer_while(&served.turns, &mut friend).await;
        assert_eq!(status, "503", "{answer}");
        // Nobody gives up this turn, but the readers lose theirs.
        let mut friend = TcpStream::connect(served.address).await.unwrap();
        friend.write_all(one.as_bytes()).await.unwrap();
        let (status, answer) = answer_while(&served.clock, &mut friend).await;
        assert_eq!(status, "200", "{answer}");
        for mut reader in deaf {
            let mut rest = Vec::new();
            let read = timeout(LONG, reader.read_to_end(&mut rest)).await.unwrap();
            assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        // A reader that reads has the whole answer, which comes in many pieces.
        let mut friend = connect_narrow(served.address).await;
        friend.write_all(question.as_bytes()).await.unwrap();
        let (status, answer) = answer_while(&served.turns, &mut friend).await;
        assert_eq!(status, "200", "{answer}");
        let accounts = answer["accounts"].as_array().unwrap().iter();
        assert!(accounts.map(|it| &it["uid"]).eq(&uids));
        served.stop.cancel();
    }

    /// The reader showed a good token, so it is not treated like somebody who guesses.
    #[tokio::test]
    async fn a_stream_ends_without_a_delay_when_the_token_of_its_reader_is_withdrawn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let mut config = GatewayConfig::default();
        let file = path.to_str().unwrap();
        config.set("admin_token_file", file).unwrap();
        let shown = "hunter2-hunter2-1";
        std::fs::write(&path, format!("anna read {shown}\n")).unwrap();
        let tokens = Arc::new(AdminTokens::open(&config).await.unwrap());
        // A delay on this clock never ends.
        let delays = Arc::new(ManualClock::new());
        let served = serve_with(Arc::clone(&tokens), delays).await;
        let mut reader = TcpStream::connect(served.address).await.unwrap();
        let request = format!(
            "GET /v1/events HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\
             authorization: Bearer {shown}\r\n\r\n"
        );
        reader.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = reader.read_exact(&mut status);
        timeout(LONG, read).await.unwrap().unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        std::fs::write(&path, "otto read hunter2-hunter2-2\n").unwrap();
        tokens.reload().await.unwrap();
        let mut rest = String::new();
        let ends = async {
            let mut read = Box::pin(reader.read_to_string(&mut rest));
            loop {
                served.clock.advance(Duration::from_secs(1));
                if timeout(SHORT, &mut read).await.is_ok() {
                    return;
                }
            }
        };
        timeout(LONG, ends).await.unwrap();
        served.stop.cancel();
    }

    #[tokio::test]
    async fn a_body_with_the_right_token_has_a_time_limit() {
        let served = serve().await;
        for path in ["/v1/kick", "/page/token"] {
            let mut stream = TcpStream::connect(served.address).await.unwrap();
            // The connection has shown the token, so it has no other limit any more.
            let answer = ask(&mut stream, "/v1/nodes", "open sesame").await;
            assert_eq!(answer, "HTTP/1.1 200");
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: n1\r\nauthorization: Bearer open sesame\r\n\
                 content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let read = async {
                // The clock advances until the node has begun to wait for the body. A byte now and
                // then gives no more time.
                while timeout(SHORT, stream.readable()).await.is_err() {
                    let _ = stream.write_all(b" ").await;
                    served.clock.advance(LIMIT / 4);
                }
                stream.read_to_string(&mut answer).await
            };
            let read = timeout(LONG, read).await;
            assert!(
                answer.starts_with("HTTP/1.1 408"),
                "{path}: {read:?} {answer}"
            );
            assert!(answer.contains("did not arrive within 10s"), "{answer}");
        }
        served.stop.cancel();
    }
}
