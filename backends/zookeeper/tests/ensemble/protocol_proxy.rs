//! A proxy in front of one server that reads ZooKeeper's protocol.
//!
//! The proxy can give a client another session without reporting it, end a session of a client,
//! hold answers back, and lose one answer.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

use distlock_core::sync::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// The id and the password with which a client connects to its session again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    id: [u8; 8],
    password: Vec<u8>,
}

impl Session {
    /// The session's id, as in the stat of its nodes.
    pub(crate) fn id(&self) -> i64 {
        i64::from_be_bytes(self.id)
    }
}

/// The proxy. The drop of this value cuts all connections.
pub(crate) struct ProtocolProxy {
    pub(crate) address: SocketAddr,
    server: SocketAddr,
    shared: Arc<ProxyState>,
    disconnects: watch::Sender<u32>,
    acceptor: JoinHandle<()>,
}

#[derive(Default)]
struct ProxyState {
    opened: Mutex<Vec<Session>>,
    /// A client that reconnects with this session gets another session.
    replaced_session: Mutex<Option<[u8; 8]>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    /// The answer to the next request that this filter accepts is lost.
    lose_answer_to: Mutex<Option<RequestFilter>>,
    hold_answers: watch::Sender<bool>,
    /// Whether new connections have to wait.
    shut: watch::Sender<bool>,
}

/// Returns whether a request is one of those that a test selects.
type RequestFilter = fn(Request) -> bool;

/// A request that a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The number of the connection on which the request came.
    pub(crate) connection: usize,
    /// The number of the operation in the protocol.
    pub(crate) operation: i32,
}

impl Request {
    /// Returns whether the request creates a node.
    pub(crate) const fn is_creation(self) -> bool {
        matches!(self.operation, 1 | 15)
    }

    /// Returns whether the request asks if a node exists, with or without a watch.
    pub(crate) const fn is_existence_check(self) -> bool {
        self.operation == 3
    }

    /// Returns whether the request is a multi-request. Each proof is one.
    pub(crate) const fn is_multi(self) -> bool {
        self.operation == 14
    }

    /// Returns whether the request lists the children of a node.
    pub(crate) const fn is_listing(self) -> bool {
        matches!(self.operation, 8 | 12)
    }
}

// Positions in a request: its number, which is negative for pings, and its operation. An answer
// starts with the number of its request.
const NUMBER: std::ops::Range<usize> = 0..4;
const OPERATION: std::ops::Range<usize> = 4..8;

// Positions in the first message of a client. Its fields are: protocol, last transaction, timeout,
// session id, length of the password, password.
const ASKED_ID: std::ops::Range<usize> = 16..24;
const ASKED_PASSWORD: std::ops::RangeFrom<usize> = 28..;
// Positions in the server's answer to that message. Its fields are: protocol, timeout, session id,
// length of the password, password.
const GIVEN_ID: std::ops::Range<usize> = 8..16;
const GIVEN_PASSWORD: std::ops::RangeFrom<usize> = 20..;
/// The length of a session's password.
const PASSWORD: usize = 16;

impl ProtocolProxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("has an address");
        let shared = Arc::<ProxyState>::default();
        let (disconnects, seen) = watch::channel(0);
        let state = Arc::clone(&shared);
        let acceptor = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (state, mut seen) = (Arc::clone(&state), seen.clone());
                seen.mark_unchanged();
                connections.spawn(async move {
                    tokio::select! {
                        _ = forward_connection(client, server, &state) => {}
                        _ = seen.changed() => {}
                    }
                });
            }
        });
        Self {
            address,
            server,
            shared,
            disconnects,
            acceptor,
        }
    }

    /// Returns the session that was opened last.
    pub(crate) fn newest_session(&self) -> Session {
        let opened = self.shared.opened.lock();
        opened.last().expect("one was opened").clone()
    }

    /// Cuts all connections. A client that reconnects with the newest session gets a new session.
    pub(crate) fn swap_session(&self) {
        let replaced_session = self.newest_session().id;
        *self.shared.replaced_session.lock() = Some(replaced_session);
        self.disconnects.send_modify(|count| *count += 1);
    }

    /// Returns the requests that clients have sent for their sessions, without pings.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().clone()
    }

    /// Holds answers back (`true`), or lets them pass again.
    pub(crate) fn hold_answers(&self, hold: bool) {
        self.shared.hold_answers.send_replace(hold);
    }

    /// Loses the answer to the next request that `to` accepts, and cuts its connection. From then
    /// on no client can connect.
    pub(crate) fn lose_next_answer(&self, to: RequestFilter) {
        *self.shared.lose_answer_to.lock() = Some(to);
    }

    /// Waits until the answer chosen by `lose_next_answer` was lost.
    pub(crate) async fn wait_for_lost_answer(&self) {
        let mut shut = self.shared.shut.subscribe();
        let _ = shut.wait_for(|shut| *shut).await;
    }

    /// Lets clients connect again.
    pub(crate) fn accept_again(&self) {
        self.shared.shut.send_replace(false);
    }

    /// Connects to the server with a session's id and password, and ends the session. Returns an
    /// error when the server closes the connection without an answer.
    pub(crate) async fn end_session(&self, session: &Session) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.server).await?;
        let timeout = 5_000i32;
        let greeting = [
            &[0; 4][..],
            &[0; 8],
            &timeout.to_be_bytes(),
            &session.id,
            &16i32.to_be_bytes(),
            &session.password,
            &[0],
        ];
        send(&mut stream, &greeting.concat()).await?;
        let answer = receive(&mut stream).await?;
        if answer[GIVEN_ID] == [0; 8] {
            // The session has ended already.
            return Ok(());
        }
        assert_eq!(
            answer[GIVEN_ID], session.id,
            "the server gave another session"
        );
        // The first request of this connection: number 1, operation -11, which closes a session.
        let goodbye = [1i32.to_be_bytes(), (-11i32).to_be_bytes()];
        send(&mut stream, &goodbye.concat()).await?;
        receive(&mut stream).await?;
        Ok(())
    }
}

impl Drop for ProtocolProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn forward_connection(
    mut client: TcpStream,
    server: SocketAddr,
    shared: &ProxyState,
) -> io::Result<()> {
    let _ = shared.shut.subscribe().wait_for(|shut| !*shut).await;
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut greeting = receive(&mut client).await?;
    let replaced_session = *shared.replaced_session.lock();
    if replaced_session.is_some_and(|session| greeting[ASKED_ID] == session) {
        greeting[ASKED_ID].fill(0);
        greeting[ASKED_PASSWORD][..PASSWORD].fill(0);
    }
    send(&mut server, &greeting).await?;
    let answer = receive(&mut server).await?;
    let session = Session {
        id: answer[GIVEN_ID].try_into().map_err(io::Error::other)?,
        password: answer[GIVEN_PASSWORD][..PASSWORD].to_vec(),
    };
    shared.opened.lock().push(session);
    send(&mut client, &answer).await?;
    let connection = shared.connections.fetch_add(1, Ordering::SeqCst);
    // The number of the request whose answer must not arrive; 0 = none.
    let lost = AtomicI32::new(0);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        forward_requests(from_client, to_server, shared, connection, &lost),
        forward_answers(from_server, to_client, shared, &lost),
    )?;
    Ok(())
}

async fn forward_requests(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &ProxyState,
    connection: usize,
    lost: &AtomicI32,
) -> io::Result<()> {
    loop {
        let frame = receive(&mut from).await?;
        let (sent, operation) = (
            read_number(&frame, NUMBER)?,
            read_number(&frame, OPERATION)?,
        );
        if sent >= 0 {
            let request = Request {
                connection,
                operation,
            };
            let mut lose = shared.lose_answer_to.lock();
            if lose.take_if(|is_it| is_it(request)).is_some() {
                lost.store(sent, Ordering::SeqCst);
            }
            drop(lose);
            let mut requests = shared.requests.lock();
            requests.push(request);
        }
        send(&mut to, &frame).await?;
    }
}

async fn forward_answers(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &ProxyState,
    lost: &AtomicI32,
) -> io::Result<()> {
    let mut hold = shared.hold_answers.subscribe();
    loop {
        let frame = receive(&mut from).await?;
        let answered = read_number(&frame, NUMBER)?;
        if answered > 0 && answered == lost.load(Ordering::SeqCst) {
            shared.shut.send_replace(true);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let _ = hold.wait_for(|hold| !*hold).await;
        send(&mut to, &frame).await?;
    }
}

fn read_number(frame: &[u8], at: std::ops::Range<usize>) -> io::Result<i32> {
    let bytes = frame.get(at).ok_or(io::ErrorKind::InvalidData)?;
    Ok(i32::from_be_bytes(
        bytes.try_into().map_err(io::Error::other)?,
    ))
}

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    let mut frame = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), frame].concat())
        .await
}
