//! The session of one handle, which is made again when it has ended.
//!
//! Invariant: a handle has one live session at most, and the numbers of its connections rise. One
//! caller connects at a time; the others wait for its outcome.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use distlock_backend_kit::{ConnectGate, RequestCount};
use distlock_core::{Clock, Error, HolderLabel, Result, at_most, sync::Mutex};
use distlock_wire::{
    FRAME_BYTES, VERSIONS,
    v1::{self, answer, lock_service_client::LockServiceClient, operation},
};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Request,
    metadata::{Ascii, MetadataValue},
};
use uuid::Uuid;

use crate::{
    config::{Host, RemoteConfig},
    dial::Dial,
    error::{BACKEND, invalid, no_answer, refused, unavailable},
    proofs::Proofs,
    session::{self, Reply, Session},
};

/// The link of one handle to its servers.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<LinkShared>,
    /// The runtime on which the handle was opened. Its connections belong to it.
    home: Handle,
    session: Mutex<Option<Arc<Session>>>,
    /// The caller that connects.
    turn: tokio::sync::Mutex<()>,
    /// The identity of this handle at the servers.
    client: Uuid,
    connections: AtomicU64,
    /// The server that the next attempt asks first.
    first: AtomicUsize,
}

/// What all handles of one opened store share.
#[derive(Debug)]
struct LinkShared {
    config: RemoteConfig,
    dial: Dial,
    clock: Arc<dyn Clock>,
    gate: Arc<ConnectGate>,
    count: RequestCount,
    proofs: Proofs,
    servers: Mutex<Servers>,
}

/// The servers with locks in their own memory that have served this store. Each grants what another
/// one has granted, so there is one at a time.
#[derive(Debug, Default)]
struct Servers {
    /// The ids of all, the present one last.
    known: Vec<Vec<u8>>,
    /// The live sessions of all handles with the present one.
    sessions: Vec<Weak<Session>>,
}

impl Servers {
    /// Takes the session of a server, unless another one serves this store, or has served it since
    /// this one did. A server that has lost its state is a new one.
    fn admit(&mut self, session: &Arc<Session>) -> bool {
        let id = &session.server;
        if id.is_empty() {
            return true;
        }
        self.sessions
            .retain(|it| it.upgrade().is_some_and(|it| it.is_live()));
        if self.known.last() != Some(id) {
            if self.known.contains(id) || !self.sessions.is_empty() {
                return false;
            }
            self.known.push(id.clone());
        }
        self.sessions.push(Arc::downgrade(session));
        true
    }
}

/// A session that nobody has taken yet. Its reader keeps it alive, so its drop ends it.
struct Unused {
    session: Arc<Session>,
    is_taken: bool,
}

impl Unused {
    fn take(mut self) -> Arc<Session> {
        self.is_taken = true;
        Arc::clone(&self.session)
    }
}

impl Drop for Unused {
    fn drop(&mut self) {
        if !self.is_taken {
            self.session.end("its opener has gone");
        }
    }
}

impl Link {
    /// The link of a store that is opened, with its first session.
    pub(crate) async fn open(config: RemoteConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let hosts: Vec<_> = config.hosts.iter().map(ToString::to_string).collect();
        let gate = ConnectGate::of(format!("{BACKEND}://{}", hosts.join(",")));
        let shared = LinkShared {
            dial: Dial::new(&config, Arc::clone(&clock))?,
            config,
            clock,
            gate,
            count: RequestCount::new(BACKEND),
            proofs: Proofs::default(),
            servers: Mutex::default(),
        };
        Self::connected(Arc::new(shared)).await
    }

    /// Another handle's link, with a session of its own on the calling runtime.
    pub(crate) async fn reopen(&self) -> Result<Arc<Self>> {
        Self::connected(Arc::clone(&self.shared)).await
    }

    async fn connected(shared: Arc<LinkShared>) -> Result<Arc<Self>> {
        let link = Arc::new(Self {
            shared,
            home: Handle::current(),
            session: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            client: Uuid::new_v4(),
            connections: AtomicU64::new(0),
            first: AtomicUsize::new(0),
        });
        link.session().await?;
        Ok(link)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    pub(crate) fn proofs(&self) -> &Proofs {
        &self.shared.proofs
    }

    pub(crate) fn requests(&self) -> u64 {
        self.shared.count.total()
    }

    /// The live session. Connects if there is none.
    ///
    /// # Errors
    /// Those of connecting. Nothing was sent.
    ///
    /// # Cancel safety
    /// Safe: a dropped attempt to connect sends no operation.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let _turn = self.turn.lock().await;
        if let Some(session) = self.live() {
            return Ok(session);
        }
        let clock = Arc::clone(&self.shared.clock);
        let former = self.session.lock().clone();
        if let Some(former) = former {
            // The server that stops still answers what was sent. A connection that is newer would
            // end that session, if it goes to the same server.
            let limit = self.shared.config.request_timeout;
            at_most(&*clock, limit, former.ended()).await;
        }
        let session = self.shared.gate.connect(&*clock, self.connect()).await?;
        *self.session.lock() = Some(Arc::clone(&session));
        Ok(session)
    }

    fn live(&self) -> Option<Arc<Session>> {
        let session = self.session.lock();
        session.as_ref().filter(|it| it.is_live()).cloned()
    }

    /// Connects to the first server that serves, on the runtime of the handle.
    async fn connect(self: &Arc<Self>) -> Result<Arc<Session>> {
        let link = Arc::clone(self);
        // The attempt goes on if this caller is dropped, and its session then ends unused.
        let connecting = self.home.spawn(async move {
            let session = link.connect_to_any().await?;
            Ok(Unused {
                session,
                is_taken: false,
            })
        });
        let connected = connecting
            .await
            .unwrap_or_else(|_| Err(unavailable("the runtime of this handle was shut down")));
        connected.map(Unused::take)
    }

    async fn connect_to_any(&self) -> Result<Arc<Session>> {
        let hosts = &self.shared.config.hosts;
        let first = self.first.load(Ordering::Relaxed);
        let limit = self.shared.config.connect_timeout;
        let mut failure: Option<Error> = None;
        for at in (first..first + hosts.len()).map(|at| at % hosts.len()) {
            let host = &hosts[at];
            // Each server gets its share of the time, so a silent one does not keep the others
            // from being asked.
            let share = limit / u32::try_from(hosts.len()).unwrap_or(u32::MAX);
            let session = at_most(&*self.shared.clock, share, self.connect_to(host)).await;
            let session = session.unwrap_or_else(|| {
                let late = format!("{host} did not serve a session within {share:.1?}");
                Err(unavailable(late))
            });
            match session {
                Ok(session) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(session);
                }
                // The error of a server that answers says more than that of one that is away.
                Err(error) => match &failure {
                    Some(earlier) if !earlier.is_retryable() => {}
                    _ => failure = Some(error),
                },
            }
        }
        Err(failure.unwrap_or_else(|| unavailable("no server is named")))
    }

    /// Makes one attempt, with the token that is read for it.
    async fn connect_to(&self, host: &Host) -> Result<Arc<Session>> {
        let dial = &self.shared.dial;
        dial.credentials
            .connect(async |shown| self.open_session(host, dial.header(&shown)?).await)
            .await
    }

    async fn open_session(
        &self,
        host: &Host,
        token: Option<MetadataValue<Ascii>>,
    ) -> Result<Arc<Session>> {
        let name = host.to_string();
        let channel = self.shared.dial.connect(host).await?;
        let (frames, receiver) = mpsc::unbounded_channel();
        let hello = v1::Hello {
            client: self.client.as_bytes().to_vec(),
            connection: self.connections.fetch_add(1, Ordering::Relaxed) + 1,
            versions: VERSIONS.to_vec(),
            label: HolderLabel::of_this_process().as_str().to_owned(),
        };
        let hello = v1::ClientFrame {
            hello: Some(hello),
            operations: Vec::new(),
        };
        let _ = frames.send(hello);
        self.shared.count.add(1);
        let mut client = LockServiceClient::new(channel)
            .max_decoding_message_size(FRAME_BYTES)
            .max_encoding_message_size(FRAME_BYTES);
        let mut call = Request::new(UnboundedReceiverStream::new(receiver));
        if let Some(token) = token {
            call.metadata_mut().insert("authorization", token);
        }
        let opened = client.session(call).await;
        let mut from_server = opened
            .map_err(|status| refused(&name, &status))?
            .into_inner();
        let first = from_server.message().await;
        let first = first.map_err(|status| refused(&name, &status))?;
        let welcome = first.and_then(|first| first.welcome);
        let welcome = welcome.ok_or_else(|| unavailable(format!("{name} sent no Welcome")))?;
        // Two of them have two tables of locks. Each would grant what the other one has granted.
        if welcome.start > 0 && self.shared.config.hosts.len() > 1 {
            return Err(invalid(format!(
                "{name} keeps its locks in its own memory, so no other server has them: name it \
                 alone"
            )));
        }
        let session = Arc::new(Session::new(name, &welcome, frames));
        if !self.shared.servers.lock().admit(&session) {
            let name = &session.host;
            session.end("another server serves this store");
            return Err(unavailable(format!(
                "{name} is another server than before, and each of the two keeps its locks in its \
                 own memory: one name must lead to one of them"
            )));
        }
        let reading = tokio::spawn(session::read(Arc::clone(&session), from_server));
        session.set_reader(reading.abort_handle());
        Ok(session)
    }

    /// Sends operations in one frame on this session, and waits for their answers.
    ///
    /// # Errors
    /// The outer error: nothing was sent. The inner one: the operation has no answer.
    pub(crate) async fn ask_all(
        &self,
        session: &Session,
        operations: impl IntoIterator<Item = operation::Operation>,
    ) -> Result<Vec<Result<answer::Answer>>> {
        let replies = session.send(operations)?;
        self.shared.count.add(1);
        Ok(self.answers(session, replies).await)
    }

    /// As [`ask_all`](Self::ask_all), for one operation on the live session.
    ///
    /// # Errors
    /// Those of connecting, and those of [`ask_all`](Self::ask_all), both in one.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        operation: operation::Operation,
    ) -> Result<answer::Answer> {
        let session = self.session().await?;
        let mut answers = self.ask_all(&session, [operation]).await?;
        answers.pop().unwrap_or_else(|| Err(no_answer("no answer")))
    }

    /// Waits for these answers. If one does not come in time, the session is ended: only then does
    /// the server end the operation before it serves the next connection, where the undo follows.
    pub(crate) async fn answers(
        &self,
        session: &Session,
        replies: Vec<Reply>,
    ) -> Vec<Result<answer::Answer>> {
        let limit = self.shared.config.request_timeout;
        let mut over = self.shared.clock.sleep(limit);
        let mut is_over = false;
        let mut answers = Vec::with_capacity(replies.len());
        for mut reply in replies {
            let answer = tokio::select! {
                biased;
                answer = &mut reply => answer,
                () = &mut over, if !is_over => {
                    is_over = true;
                    session.end(&format!("no answer came within {limit:?}"));
                    reply.await
                }
            };
            answers.push(answer.map_err(|_| {
                let why = session.why();
                no_answer(format!("the session with {} ended: {why}", session.host))
            }));
        }
        answers
    }

    /// Ends the session.
    pub(crate) fn close(&self) {
        let session = self.session.lock().take();
        if let Some(session) = session {
            session.end("this handle was closed");
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_with_locks_in_its_memory_serves_a_store_at_a_time() {
        let mut servers = Servers::default();
        let session = |server: &[u8]| {
            let welcome = v1::Welcome {
                server: server.to_vec(),
                ..v1::Welcome::default()
            };
            let (frames, _) = mpsc::unbounded_channel();
            Arc::new(Session::new("h".to_owned(), &welcome, frames))
        };
        let (first, again, second) = (session(b"a"), session(b"a"), session(b"b"));
        assert!(servers.admit(&first) && servers.admit(&again));
        assert!(!servers.admit(&second), "the first one serves");
        assert!(servers.admit(&session(b"")), "an agent has no locks");
        first.end("the server has gone");
        drop(again);
        assert!(servers.admit(&second), "it took the place of the first one");
        second.end("the server has gone");
        assert!(!servers.admit(&session(b"a")), "the two take turns");
        assert!(servers.admit(&session(b"b")));
    }
}
