//! The frames of one session.
//!
//! Everything that is ready goes into one frame, so many answers share one write. While the client
//! does not read, nothing more is carried out for it; then it is cut off. When the server stops, or
//! the client's token expires, the client is told, and has a moment to go: what it has sent before
//! is still carried out, so no operation is left without an answer.
//!
//! Invariant: what a session keeps in memory is bounded, whatever its client sends: one frame of
//! the client, the allowed operations without an answer, and a few frames of answers.

use std::{
    collections::{HashMap, HashSet},
    pin::Pin,
    sync::Arc,
    time::Duration,
    vec,
};

use distlock_core::{Error, ErrorKind, HolderLabel, Moment, at_most};
use distlock_listen::ConnectionHandle;
use distlock_wire::{
    check_versions,
    v1::{self, answer, operation::Operation as Asked, push, waiter_step},
};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::sync::mpsc::{self, Sender, UnboundedReceiver, UnboundedSender};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Code, Status, Streaming};
use uuid::Uuid;

use super::{
    Clients, Outgoing, WaiterPlaces,
    clients::Place,
    held_names::HeldNames,
    outgoing::NextFrame,
    waiter::{Step, Waiter, no_waiter},
};
use crate::{
    ServerLimits,
    access::{Access, Gate},
    calls::Calls,
    operations::{Caller, Operations, missing},
};

/// Frames that wait until the connection takes them.
const FRAMES_AHEAD: usize = 2;

/// The steps of one waiter that wait until it takes them. A client makes a few while an attempt of
/// the waiter is in progress.
const STEPS_AHEAD: usize = 1024;

/// The time that a client has to end its session after it was told that the session ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// What the sessions of a server share.
#[derive(Debug)]
pub(crate) struct SessionContext {
    pub(crate) operations: Arc<Operations>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) limits: ServerLimits,
    /// Checks the tokens of clients.
    pub(crate) gate: Gate,
    pub(crate) waiters: Arc<WaiterPlaces>,
    /// The holder of a lease that a unary call restores: it names nobody.
    pub(crate) unnamed: HolderLabel,
    pub(crate) stop: CancellationToken,
    /// The sessions that have not ended.
    pub(crate) tasks: TaskTracker,
}

type ServerFrames = Sender<Result<v1::ServerFrame, Status>>;
type Running = Pin<Box<dyn Future<Output = (u64, answer::Answer)> + Send>>;

/// Serves these frames of a client, and returns the frames of the server.
pub(crate) fn start(
    context: Arc<SessionContext>,
    frames: Streaming<v1::ClientFrame>,
    connection: Option<ConnectionHandle>,
    access: Access,
) -> ReceiverStream<Result<v1::ServerFrame, Status>> {
    let (out, receiver) = mpsc::channel(FRAMES_AHEAD);
    let tasks = context.tasks.clone();
    // A task of its own: the operations must end also if the connection breaks, because a dropped
    // operation may still reach the store, after one of the client's next connection.
    tasks.spawn(async move {
        if let Err(status) = serve(&context, frames, connection.as_ref(), access, &out).await {
            tracing::debug!(%status, "a session ended");
            let clock = context.operations.clock();
            let limit = context.limits.slow_reader;
            let told = at_most(&**clock, limit, out.send(Err(status))).await;
            // What waits for this client would stay in memory as long as the client does.
            if told.is_none()
                && let Some(connection) = connection
            {
                connection.cut_off();
            }
        }
    });
    ReceiverStream::new(receiver)
}

async fn serve(
    context: &Arc<SessionContext>,
    mut frames: Streaming<v1::ClientFrame>,
    connection: Option<&ConnectionHandle>,
    access: Access,
    out: &ServerFrames,
) -> Result<(), Status> {
    // A client that says nothing must not keep the server from its orderly stop.
    let first = tokio::select! {
        biased;
        () = context.stop.cancelled() => return Err(Status::unavailable("the server stops")),
        first = frames.message() => first.map_err(unreadable)?,
    };
    let first = first.ok_or_else(|| Status::invalid_argument("the stream ended before Hello"))?;
    let hello = first.hello;
    let hello = hello.ok_or_else(|| Status::invalid_argument("the first frame is not Hello"))?;
    if !first.operations.is_empty() {
        return Err(Status::invalid_argument("the first frame has operations"));
    }
    let version = check_versions(&hello.versions);
    let version = version.map_err(|error| Status::failed_precondition(error.to_string()))?;
    // A label breaks no session: it is for people.
    let label = HolderLabel::new(hello.label).unwrap_or_else(|_| HolderLabel::of_this_process());
    let client = Uuid::from_slice(&hello.client);
    let client = client.map_err(|_| Status::invalid_argument("the client's id needs 16 bytes"))?;
    if let Some(connection) = connection {
        connection.mark_logged_in();
    }
    let place = context.clients.admit(client, hello.connection).await?;
    let (sender, outgoing) = mpsc::unbounded_channel();
    let most_held = Some(context.limits.names_per_session).filter(|most| *most > 0);
    let held = most_held.map(|most| {
        let clock = Arc::clone(context.operations.clock());
        HeldNames::new(most, context.operations.max_lease(), clock)
    });
    let mut session = Session {
        context: Arc::clone(context),
        out,
        place: &place,
        label,
        access,
        held,
        frame: NextFrame::default(),
        read: (Vec::new().into_iter(), context.operations.clock().now()),
        running: FuturesUnordered::new(),
        ids: HashSet::new(),
        waiters: HashMap::new(),
        tasks: TaskTracker::new(),
        sender,
        outgoing,
    };
    session.welcome(version).await?;
    let ended = session.run(&mut frames).await;
    // Nothing more is read, but what was read is carried out to its end.
    drop(frames);
    session.finish(ended.is_ok()).await;
    drop(place);
    ended
}

/// The status of a frame that cannot be read. tonic calls it a bug of its own.
fn unreadable(status: Status) -> Status {
    if status.code() != Code::Internal {
        return status;
    }
    Status::invalid_argument(format!("a frame cannot be read: {}", status.message()))
}

/// The end of a session whose client has connected again.
fn replaced() -> Status {
    Status::aborted("a newer connection of the same client has replaced this one")
}

struct Session<'a> {
    context: Arc<SessionContext>,
    out: &'a ServerFrames,
    place: &'a Place,
    /// Who has connected.
    label: HolderLabel,
    access: Access,
    /// The names of this session, if their number is limited.
    held: Option<HeldNames>,
    frame: NextFrame,
    /// The operations of the last frame that have not begun, and the moment of its receipt.
    read: (vec::IntoIter<v1::Operation>, Moment),
    running: FuturesUnordered<Running>,
    /// The ids of the operations without an answer.
    ids: HashSet<u64>,
    waiters: HashMap<u64, Sender<Step>>,
    /// The tasks of the waiters.
    tasks: TaskTracker,
    sender: UnboundedSender<Outgoing>,
    outgoing: UnboundedReceiver<Outgoing>,
}

impl Session<'_> {
    async fn welcome(&mut self, version: u32) -> Result<(), Status> {
        let operations = &self.context.operations;
        let capabilities = operations.capabilities();
        let limit = |most: usize| u32::try_from(most).unwrap_or(u32::MAX);
        let welcome = v1::Welcome {
            version,
            capabilities: Some(v1::Capabilities::new(
                &capabilities,
                operations.tells_ages(),
            )),
            limits: Some(v1::Limits {
                frame_bytes: limit(self.context.limits.frame_bytes),
                operations: limit(self.context.limits.operations),
            }),
            start: operations.start_number(),
            server: operations.server_id(),
        };
        let frame = v1::ServerFrame {
            welcome: Some(welcome),
            ..v1::ServerFrame::default()
        };
        self.send(frame).await
    }

    /// Serves until the client or the server ends the session.
    async fn run(&mut self, frames: &mut Streaming<v1::ClientFrame>) -> Result<(), Status> {
        let (context, place) = (Arc::clone(&self.context), self.place);
        let clock = Arc::clone(context.operations.clock());
        let mut is_closing = false;
        // The end of the token, and then that of the farewell.
        let until = self.access.until();
        let mut end = until.map(|until| clock.sleep(until.since(clock.now())));
        let mut was_full = false;
        loop {
            let begins = self.begin_operations()?;
            self.gather();
            self.flush().await?;
            if begins && !place.is_replaced() {
                continue;
            }
            if !self.has_room() && !was_full {
                context.operations.meters().full.increment(1);
            }
            was_full = !self.has_room();
            let over = async {
                match &mut end {
                    Some(end) => end.await,
                    None => std::future::pending().await,
                }
            };
            let reads = self.read.0.as_slice().is_empty() && self.has_room();
            tokio::select! {
                biased;
                () = place.replaced() => return Err(replaced()),
                () = over => {
                    if is_closing {
                        return Ok(());
                    }
                    self.add(Outgoing::Push(push::Push::Closing(true)));
                    (is_closing, end) = (true, Some(clock.sleep(FAREWELL)));
                }
                () = context.stop.cancelled(), if !is_closing => {
                    self.add(Outgoing::Push(push::Push::Closing(true)));
                    (is_closing, end) = (true, Some(clock.sleep(FAREWELL)));
                }
                Some((id, answer)) = self.running.next() => {
                    self.add(Outgoing::Answer(id, answer));
                }
                Some(outgoing) = self.outgoing.recv() => self.add(outgoing),
                frame = frames.message(), if reads => match frame.map_err(unreadable)? {
                    Some(frame) if frame.hello.is_some() => {
                        return Err(Status::invalid_argument("a second Hello"));
                    }
                    Some(frame) => {
                        let received = context.operations.clock().now();
                        self.read = (frame.operations.into_iter(), received);
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    fn has_room(&self) -> bool {
        self.ids.len() < self.context.limits.operations
    }

    /// Begins operations that were read, as long as there is room for them and for their answers.
    /// Returns whether more can begin once the answers are sent.
    fn begin_operations(&mut self) -> Result<bool, Status> {
        while !self.frame.is_full() && self.has_room() {
            match self.read.0.next() {
                Some(operation) => self.begin(operation)?,
                None => return Ok(false),
            }
        }
        Ok(self.has_room() && !self.read.0.as_slice().is_empty())
    }

    /// Ends all waiters, and waits for the operations that were read. `answers`: the client may
    /// still read their answers.
    async fn finish(mut self, answers: bool) {
        self.waiters.clear();
        self.tasks.close();
        let mut answers = answers;
        loop {
            tokio::select! {
                biased;
                Some((id, answer)) = self.running.next() => {
                    self.add(Outgoing::Answer(id, answer));
                }
                Some(outgoing) = self.outgoing.recv() => self.add(outgoing),
                () = self.tasks.wait(), if self.running.is_empty() => break,
            }
            self.gather();
            answers = answers && self.flush().await.is_ok();
            if !answers {
                drop(self.frame.take());
            }
        }
        self.gather();
        if answers {
            let _ = self.flush().await;
        }
    }

    /// Adds everything that is ready to the frame, as long as there is room.
    fn gather(&mut self) {
        while !self.frame.is_full() {
            if let Some(Some((id, answer))) = self.running.next().now_or_never() {
                self.add(Outgoing::Answer(id, answer));
            } else if let Ok(outgoing) = self.outgoing.try_recv() {
                self.add(outgoing);
            } else {
                return;
            }
        }
    }

    fn add(&mut self, outgoing: Outgoing) {
        if let Outgoing::Answer(id, _) = &outgoing {
            self.ids.remove(id);
        }
        self.frame.add(outgoing);
    }

    async fn flush(&mut self) -> Result<(), Status> {
        match self.frame.take() {
            Some(frame) => self.send(frame).await,
            None => Ok(()),
        }
    }

    async fn send(&mut self, frame: v1::ServerFrame) -> Result<(), Status> {
        let clock = self.context.operations.clock();
        let limit = self.context.limits.slow_reader;
        let sent = tokio::select! {
            biased;
            // Nobody reads the connection that was given up, and the newer one waits for its end.
            () = self.place.replaced() => return Err(replaced()),
            sent = at_most(&**clock, limit, self.out.send(Ok(frame))) => sent,
        };
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(Status::cancelled("the connection has ended")),
            None => {
                self.context.operations.meters().cut.increment(1);
                let why = format!("the client has read nothing for {limit:?}");
                Err(Status::resource_exhausted(why))
            }
        }
    }

    fn begin(&mut self, v1::Operation { id, operation }: v1::Operation) -> Result<(), Status> {
        let received = self.read.1;
        let Some(operation) = operation else {
            let why = "this server does not know the operation";
            self.refuse(id, &Error::new(ErrorKind::Unsupported, why));
            return Ok(());
        };
        if let Asked::Step(step) = operation {
            return self.step(id, &step, received);
        }
        self.note_id(id)?;
        if let Err(error) = self.may(&operation) {
            self.refuse(id, &error);
            return Ok(());
        }
        if let Asked::Join(join) = operation {
            if let Err(error) = self.join(id, join) {
                self.refuse(id, &error);
            }
            return Ok(());
        }
        let operations = Arc::clone(&self.context.operations);
        let (sender, label) = (self.sender.clone(), self.label.clone());
        let (access, held) = (self.access.clone(), self.held.clone());
        let mut running: Running = Box::pin(async move {
            let caller = Caller {
                losses: Some(&sender),
                label: &label,
                subject: access.subject(),
            };
            let name = held.as_ref().and_then(|_| HeldNames::name_of(&operation));
            let answer = operations.run(operation, received, caller).await;
            if let (Some(held), Some((name, _))) = (held, name) {
                held.note(&name, &answer);
            }
            (id, answer)
        });
        // A store in memory answers at once.
        match (&mut running).now_or_never() {
            Some((id, answer)) => self.add(Outgoing::Answer(id, answer)),
            None => self.running.push(running),
        }
        Ok(())
    }

    fn refuse(&mut self, id: u64, error: &Error) {
        self.add(Outgoing::Answer(id, answer::Answer::Error(error.into())));
    }

    /// Whether the client may do this now.
    fn may(&self, operation: &Asked) -> Result<(), Error> {
        self.access.check(operation)?;
        match (&self.held, HeldNames::name_of(operation)) {
            (Some(held), Some((name, true))) => held.admit(&name),
            _ => Ok(()),
        }
    }

    /// Refuses an id that an operation without an answer has.
    fn note_id(&mut self, id: u64) -> Result<(), Status> {
        if self.ids.insert(id) {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "operation {id} has no answer yet, and another one has its id"
        )))
    }

    fn join(&mut self, id: u64, join: v1::JoinQueue) -> Result<(), Error> {
        let context = &self.context;
        let request = join.request.ok_or_else(|| missing("request"))?;
        let request = context.operations.request(request)?;
        if self.waiters.contains_key(&join.waiter) {
            let why = format!("waiter {} has joined already", join.waiter);
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let place = context.waiters.take(&request.name)?;
        let (steps, receiver) = mpsc::channel(STEPS_AHEAD);
        let waiter = Waiter {
            id: join.waiter,
            operations: Arc::clone(&context.operations),
            steps: receiver,
            out: self.sender.clone(),
            held: self.held.clone(),
            _place: place,
        };
        self.waiters.insert(join.waiter, steps);
        self.tasks.spawn(waiter.run(id, request));
        Ok(())
    }

    fn step(&mut self, id: u64, wire: &v1::WaiterStep, received: Moment) -> Result<(), Status> {
        let step = match wire.step() {
            waiter_step::Step::Attempt => match wire.read_owner() {
                Ok(owner) => Step::Attempt(id, received, owner),
                Err(error) => {
                    self.refuse(id, &error);
                    return Ok(());
                }
            },
            waiter_step::Step::Wait => Step::Wait,
            waiter_step::Step::Pause => Step::Pause,
            waiter_step::Step::Leave => Step::Leave(id),
            waiter_step::Step::Unspecified => {
                return Err(Status::invalid_argument("a waiter's step is not known"));
            }
        };
        let is_answered = matches!(step, Step::Attempt(..) | Step::Leave(_));
        if is_answered {
            self.note_id(id)?;
        }
        let waiter = match step {
            // The task of the waiter answers, and then it is gone.
            Step::Leave(_) => self.waiters.remove(&wire.waiter),
            _ => self.waiters.get(&wire.waiter).cloned(),
        };
        let sent = waiter.map(|waiter| waiter.try_send(step));
        if let Some(Err(mpsc::error::TrySendError::Full(_))) = sent {
            return Err(Status::resource_exhausted(format!(
                "waiter {} has {STEPS_AHEAD} steps ahead",
                wire.waiter
            )));
        }
        if !matches!(sent, Some(Ok(()))) && is_answered {
            self.refuse(id, &no_waiter(wire.waiter));
        }
        Ok(())
    }
}
