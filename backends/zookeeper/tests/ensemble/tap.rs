//! A line to one server that knows how sessions are opened: it can give a client another session than its own without
//! saying so, and end one from somewhere else.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

/// What opens a session again: its number and its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    id: [u8; 8],
    password: Vec<u8>,
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
    swap: AtomicBool,
}

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

    /// Cuts the line; whoever comes back with a session is given a new one, once.
    pub(crate) fn swap_session(&self) {
        self.shared.swap.store(true, Ordering::SeqCst);
        self.hang_ups.send_modify(|count| *count += 1);
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

async fn carry(mut client: TcpStream, server: SocketAddr, line: &Shared) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut greeting = receive(&mut client).await?;
    if greeting[ASKED_ID] != [0; 8] && line.swap.swap(false, Ordering::SeqCst) {
        greeting[ASKED_ID].fill(0);
        greeting[ASKED_PASSWORD][..PASSWORD].fill(0);
    }
    send(&mut server, &greeting).await?;
    let answer = receive(&mut server).await?;
    let session = Session {
        id: answer[GIVEN_ID].try_into().map_err(io::Error::other)?,
        password: answer[GIVEN_PASSWORD][..PASSWORD].to_vec(),
    };
    line.opened
        .lock()
        .expect("nobody panics with it")
        .push(session);
    send(&mut client, &answer).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

async fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    let mut frame = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    stream.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn send(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes(), frame].concat())
        .await
}
