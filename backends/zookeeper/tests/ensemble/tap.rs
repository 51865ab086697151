//! A line to one server that knows how sessions are opened and what requests are: it can give a client another session
//! than its own without saying so, end one from somewhere else, hold answers back, and lose one.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// What opens a session again: its number and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    id: [u8; 8],
    password: Vec<u8>,
}

impl Session {
    /// Its number, as in the stat of its nodes.
    pub(crate) fn id(&self) -> i64 {
        i64::from_be_bytes(self.id)
    }
}

/// The line. It is cut when it is dropped.
pub(crate) struct Tap {
    pub(crate) address: SocketAddr,
    server: SocketAddr,
    shared: Arc<Shared>,
    hang_ups: watch::Sender<u32>,
    acceptor: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    opened: Mutex<Vec<Session>>,
    /// Whoever comes back with it is given another one.
    forgotten: Mutex<Option<[u8; 8]>>,
    requests: Mutex<Vec<Request>>,
    lines: AtomicUsize,
    /// The answer to the next request of this kind is lost.
    lose: Mutex<Option<Kind>>,
    hold_answers: watch::Sender<bool>,
    /// Whether whoever comes has to wait.
    shut: watch::Sender<bool>,
}

/// Whether a request is of some kind.
type Kind = fn(Request) -> bool;

/// What a client has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Which connection it came on.
    pub(crate) line: usize,
    /// What it asks for, by its number in the protocol.
    pub(crate) operation: i32,
}

impl Request {
    /// Of a sequential node among others.
    pub(crate) const fn creates(self) -> bool {
        matches!(self.operation, 1 | 15)
    }

    /// Whether a node exists, and maybe a watch on it.
    pub(crate) const fn checks(self) -> bool {
        self.operation == 3
    }

    /// That what the server knows is no older than what its leader knows.
    pub(crate) const fn proves(self) -> bool {
        self.operation == 14
    }

    /// The children of a node.
    pub(crate) const fn lists(self) -> bool {
        matches!(self.operation, 8 | 12)
    }
}

// Where things are in a request and its answer: number (of ours; below zero are pings and such), operation or transaction.
const NUMBER: std::ops::Range<usize> = 0..4;
const OPERATION: std::ops::Range<usize> = 4..8;

// Where things are in a client's greeting: protocol, last transaction, timeout, session, length of the password, password.
const ASKED_ID: std::ops::Range<usize> = 16..24;
const ASKED_PASSWORD: std::ops::RangeFrom<usize> = 28..;
/// And in the server's answer: protocol, timeout, session, length of the password, password.
const GIVEN_ID: std::ops::Range<usize> = 8..16;
const GIVEN_PASSWORD: std::ops::RangeFrom<usize> = 20..;
const PASSWORD: usize = 16;

impl Tap {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let address = listener.local_addr().expect("has an address");
        let shared = Arc::<Shared>::default();
        let (hang_ups, seen) = watch::channel(0);
        let line = Arc::clone(&shared);
        let acceptor = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (line, mut seen) = (Arc::clone(&line), seen.clone());
                seen.mark_unchanged();
                connections.spawn(async move {
                    tokio::select! {
                        _ = carry(client, server, &line) => {}
                        _ = seen.changed() => {}
                    }
                });
            }
        });
        Self {
            address,
            server,
            shared,
            hang_ups,
            acceptor,
        }
    }

    /// The session that was opened last.
    pub(crate) fn session(&self) -> Session {
        let opened = self.shared.opened.lock().expect("nobody panics with it");
        opened.last().expect("one was opened").clone()
    }

    /// Cuts the line; whoever comes back with the session that was opened last is given a new one.
    pub(crate) fn swap_session(&self) {
        let forgotten = self.session().id;
        *self.shared.forgotten.lock().expect("nobody panics with it") = Some(forgotten);
        self.hang_ups.send_modify(|count| *count += 1);
    }

    /// What has come from clients and belongs to their sessions, pings left out.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let requests = self.shared.requests.lock();
        requests.expect("nobody panics with it").clone()
    }

    /// Whether answers wait.
    pub(crate) fn hold_answers(&self, hold: bool) {
        self.shared.hold_answers.send_replace(hold);
    }

    /// Loses the answer to the next such request, together with its connection. Nobody can connect from then on.
    pub(crate) fn lose_answer(&self, to: Kind) {
        *self.shared.lose.lock().expect("nobody panics with it") = Some(to);
    }

    /// Waits until that has happened.
    pub(crate) async fn has_lost_it(&self) {
        let mut shut = self.shared.shut.subscribe();
        let _ = shut.wait_for(|shut| *shut).await;
    }

    /// Lets clients connect again.
    pub(crate) fn let_in(&self) {
        self.shared.shut.send_replace(false);
    }

    /// Comes to the server with a session's number and password, and ends it. A server may hang up on such a visitor instead
    /// of answering.
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
            // It has ended already.
            return Ok(());
        }
        assert_eq!(answer[GIVEN_ID], session.id, "the session can be had");
        // The first request of this connection, of the kind that ends a session.
        let goodbye = [1i32.to_be_bytes(), (-11i32).to_be_bytes()];
        send(&mut stream, &goodbye.concat()).await?;
        receive(&mut stream).await?;
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, shared: &Shared) -> io::Result<()> {
    let _ = shared.shut.subscribe().wait_for(|shut| !*shut).await;
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut greeting = receive(&mut client).await?;
    let forgotten = *shared.forgotten.lock().expect("nobody panics with it");
    if forgotten.is_some_and(|session| greeting[ASKED_ID] == session) {
        greeting[ASKED_ID].fill(0);
        greeting[ASKED_PASSWORD][..PASSWORD].fill(0);
    }
    send(&mut server, &greeting).await?;
    let answer = receive(&mut server).await?;
    let session = Session {
        id: answer[GIVEN_ID].try_into().map_err(io::Error::other)?,
        password: answer[GIVEN_PASSWORD][..PASSWORD].to_vec(),
    };
    shared
        .opened
        .lock()
        .expect("nobody panics with it")
        .push(session);
    send(&mut client, &answer).await?;
    let line = shared.lines.fetch_add(1, Ordering::SeqCst);
    // The number of the request whose answer must not arrive; 0 is nobody's.
    let lost = AtomicI32::new(0);
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        there(from_client, to_server, shared, line, &lost),
        back(from_server, to_client, shared, &lost),
    )?;
    Ok(())
}

async fn there(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    line: usize,
    lost: &AtomicI32,
) -> io::Result<()> {
    loop {
        let frame = receive(&mut from).await?;
        let (sent, operation) = (number(&frame, NUMBER)?, number(&frame, OPERATION)?);
        if sent >= 0 {
            let request = Request { line, operation };
            let mut lose = shared.lose.lock().expect("nobody panics with it");
            if lose.take_if(|is_it| is_it(request)).is_some() {
                lost.store(sent, Ordering::SeqCst);
            }
            drop(lose);
            let mut requests = shared.requests.lock().expect("nobody panics with it");
            requests.push(request);
        }
        send(&mut to, &frame).await?;
    }
}

async fn back(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    shared: &Shared,
    lost: &AtomicI32,
) -> io::Result<()> {
    let mut hold = shared.hold_answers.subscribe();
    loop {
        let frame = receive(&mut from).await?;
        let answered = number(&frame, NUMBER)?;
        if answered > 0 && answered == lost.load(Ordering::SeqCst) {
            shared.shut.send_replace(true);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let _ = hold.wait_for(|hold| !*hold).await;
        send(&mut to, &frame).await?;
    }
}

fn number(frame: &[u8], at: std::ops::Range<usize>) -> io::Result<i32> {
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
