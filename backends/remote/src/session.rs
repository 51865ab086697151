//! One connection with its stream: the operations without an answer, and the pushes.
//!
//! Invariant: each operation that was sent gets its answer, or learns that the session has ended.
//! After the end of a session nothing is sent on it, and after the server has said that it stops
//! nothing new: what was sent before is still answered.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use distlock_core::{
    Capabilities, Error, LockName, LossFeed, LossReason, LossSender, OwnerId, Result, sync::Mutex,
};
use distlock_wire::v1::{self, answer, operation, push, waiter_step};
use tokio::{
    sync::{Notify, mpsc::UnboundedSender, oneshot},
    task::AbortHandle,
};
use tonic::Streaming;

use crate::error::{BACKEND, unavailable};

/// The answer to an operation; an error of the channel: the session ended before the answer.
pub(crate) type Reply = oneshot::Receiver<answer::Answer>;

/// The losses that are kept for grants whose callers have not read them yet.
const EARLY_LOSSES: usize = 1024;

/// One session with a server.
pub(crate) struct Session {
    /// The server, for messages.
    pub(crate) host: String,
    pub(crate) capabilities: Capabilities,
    /// Whether the records of the server's store tell their age.
    pub(crate) tells_ages: bool,
    /// The number of the server's start; 0 if its locks are in another store.
    pub(crate) start: u64,
    /// The id of the server; empty if its locks are in another store.
    pub(crate) server: Vec<u8>,
    state: Mutex<State>,
    over: Notify,
}

struct State {
    /// `None` after the end.
    frames: Option<UnboundedSender<v1::ClientFrame>>,
    /// The server ends the session soon.
    closing: bool,
    /// Why the session ended.
    why: Option<String>,
    last_id: u64,
    pending: HashMap<u64, oneshot::Sender<answer::Answer>>,
    waiters: HashMap<u64, Arc<Signal>>,
    losses: HashMap<(LockName, OwnerId), LossSender>,
    /// Losses without a sender, the newest last: the frame of a grant can have its loss as well,
    /// and the caller of the grant reads it after the frame.
    early: VecDeque<((LockName, OwnerId), LossReason)>,
    reader: Option<AbortHandle>,
}

/// The wake-ups of one waiter.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    woken: AtomicBool,
    notify: Notify,
}

impl Signal {
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// Forgets a wake-up that has not been taken.
    pub(crate) fn clear(&self) {
        self.woken.store(false, Ordering::Release);
    }

    /// Waits for a wake-up and takes it.
    ///
    /// # Cancel safety
    /// Safe: a wake-up that was not taken stays.
    pub(crate) async fn woken(&self) {
        while !self.woken.swap(false, Ordering::AcqRel) {
            // A permit of an older wake-up only causes one more look.
            self.notify.notified().await;
        }
    }
}

impl Session {
    /// The session that a server has opened with this welcome.
    pub(crate) fn new(
        host: String,
        welcome: &v1::Welcome,
        frames: UnboundedSender<v1::ClientFrame>,
    ) -> Self {
        let told = welcome.capabilities.clone().unwrap_or_default();
        Self {
            host,
            capabilities: told.read(BACKEND),
            tells_ages: told.record_ages,
            start: welcome.start,
            server: welcome.server.clone(),
            state: Mutex::new(State {
                frames: Some(frames),
                closing: false,
                why: None,
                last_id: 0,
                pending: HashMap::new(),
                waiters: HashMap::new(),
                losses: HashMap::new(),
                early: VecDeque::new(),
                reader: None,
            }),
            over: Notify::new(),
        }
    }

    /// Whether new operations can be sent.
    pub(crate) fn is_live(&self) -> bool {
        let state = self.state.lock();
        state.frames.is_some() && !state.closing
    }

    /// Waits for the end of the session.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn ended(&self) {
        loop {
            // Before the look at the state, so that an end in between is not missed.
            let over = self.over.notified();
            if self.state.lock().frames.is_none() {
                return;
            }
            over.await;
        }
    }

    /// Sends operations in one frame.
    ///
    /// # Errors
    /// [`Unavailable`](distlock_core::ErrorKind::Unavailable) after the end of the session: nothing
    /// was sent.
    pub(crate) fn send(
        &self,
        operations: impl IntoIterator<Item = operation::Operation>,
    ) -> Result<Vec<Reply>> {
        let mut state = self.state.lock();
        let frames = state.open_frames(&self.host)?;
        let mut replies = Vec::new();
        let operations = operations.into_iter().map(|operation| {
            state.last_id += 1;
            let id = state.last_id;
            let (answer, reply) = oneshot::channel();
            state.pending.insert(id, answer);
            replies.push(reply);
            let operation = Some(operation);
            v1::Operation { id, operation }
        });
        let frame = v1::ClientFrame {
            hello: None,
            operations: operations.collect(),
        };
        // Without a receiver the connection has ended. The reader notices it and answers.
        let _ = frames.send(frame);
        Ok(replies)
    }

    /// Registers a waiter. Returns its number.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn add_waiter(&self, signal: &Arc<Signal>) -> Result<u64> {
        let mut state = self.state.lock();
        state.open_frames(&self.host)?;
        state.last_id += 1;
        let waiter = state.last_id;
        state.waiters.insert(waiter, Arc::clone(signal));
        Ok(waiter)
    }

    /// Sends a step of a waiter that has no answer.
    pub(crate) fn step(&self, waiter: u64, step: waiter_step::Step) {
        let mut state = self.state.lock();
        let Some(frames) = state.frames.clone() else {
            return;
        };
        state.last_id += 1;
        let step = v1::WaiterStep {
            waiter,
            step: step.into(),
            owner: None,
        };
        let operation = v1::Operation {
            id: state.last_id,
            operation: Some(operation::Operation::Step(step)),
        };
        let _ = frames.send(v1::ClientFrame {
            hello: None,
            operations: vec![operation],
        });
    }

    pub(crate) fn remove_waiter(&self, waiter: u64) {
        self.state.lock().waiters.remove(&waiter);
    }

    /// The feed of the server's pushes about this lease.
    pub(crate) fn loss_feed(&self, name: &LockName, owner: OwnerId) -> LossFeed {
        let mut state = self.state.lock();
        if state.frames.is_none() {
            return LossFeed::silent();
        }
        let (sender, feed) = LossFeed::new();
        let lease = (name.clone(), owner);
        let early = state.early.iter().position(|(of, _)| *of == lease);
        match early.and_then(|at| state.early.remove(at)) {
            Some((_, reason)) => {
                drop(state);
                sender.lose(reason);
            }
            None => {
                state.losses.insert(lease, sender);
            }
        }
        feed
    }

    pub(crate) fn forget_loss(&self, name: &LockName, owner: OwnerId) {
        let mut state = self.state.lock();
        if !state.losses.is_empty() {
            state.losses.remove(&(name.clone(), owner));
        }
    }

    /// Ends the session. Operations without an answer get none.
    pub(crate) fn end(&self, why: &str) {
        let mut state = self.state.lock();
        if state.frames.take().is_none() {
            return;
        }
        state.why = Some(why.to_owned());
        let reader = state.reader.take();
        let pending = std::mem::take(&mut state.pending);
        let waiters = std::mem::take(&mut state.waiters);
        state.losses.clear();
        drop(state);
        self.over.notify_waiters();
        drop(pending);
        // A waiter asks again, and so learns of the end.
        waiters.values().for_each(|signal| signal.wake());
        if let Some(reader) = reader {
            reader.abort();
        }
    }

    /// Why the session ended, for messages.
    pub(crate) fn why(&self) -> String {
        let why = self.state.lock().why.clone();
        why.unwrap_or_else(|| "the connection ended".to_owned())
    }

    /// Sets the task that reads the frames of the server.
    pub(crate) fn set_reader(&self, reader: AbortHandle) {
        let mut state = self.state.lock();
        if state.frames.is_none() {
            drop(state);
            return reader.abort();
        }
        state.reader = Some(reader);
    }

    fn take(&self, frame: v1::ServerFrame) {
        let (mut answered, mut woken, mut lost) = (Vec::new(), Vec::new(), Vec::new());
        let mut closing = false;
        let mut state = self.state.lock();
        for v1::Answer { id, answer } in frame.answers {
            // The caller of an operation may have gone, and a step of a dropped waiter has none.
            if let (Some(sender), Some(answer)) = (state.pending.remove(&id), answer) {
                answered.push((sender, answer));
            }
        }
        for push in frame.pushes {
            match push.push {
                Some(push::Push::Wake(waiter)) => woken.extend(state.waiters.get(&waiter).cloned()),
                Some(push::Push::Lost(it)) => {
                    if let Ok((lease, reason)) = it.read() {
                        let lease = (lease.name, lease.owner);
                        match state.losses.remove(&lease) {
                            Some(sender) => lost.push((sender, reason)),
                            None => state.keep_early(lease, reason),
                        }
                    }
                }
                Some(push::Push::Closing(_)) => closing = true,
                None => {}
            }
        }
        if closing {
            state.closing = true;
            // Each waiter makes its next attempt on another session.
            woken.extend(state.waiters.values().cloned());
        }
        let is_done = state.closing && state.pending.is_empty();
        drop(state);
        if is_done {
            self.end("the server stops");
        }
        // Wakers and listeners run code of others, which may use this session.
        for (sender, answer) in answered {
            let _ = sender.send(answer);
        }
        woken.iter().for_each(|signal| signal.wake());
        for (sender, reason) in lost {
            sender.lose(reason);
        }
    }
}

impl State {
    fn open_frames(&self, host: &str) -> Result<UnboundedSender<v1::ClientFrame>> {
        let frames = self.frames.clone().filter(|_| !self.closing);
        frames.ok_or_else(|| self.ended(host))
    }

    /// Keeps a loss for the caller that reads the grant later. Of a released lease nobody reads it.
    fn keep_early(&mut self, lease: (LockName, OwnerId), reason: LossReason) {
        if self.early.len() >= EARLY_LOSSES {
            self.early.pop_front();
        }
        self.early.push_back((lease, reason));
    }

    fn ended(&self, host: &str) -> Error {
        let why = self.why.as_deref().unwrap_or("the server stops");
        unavailable(format!("the session with {host} has ended: {why}"))
    }
}

/// Reads the frames of the server until the session ends.
pub(crate) async fn read(session: Arc<Session>, mut frames: Streaming<v1::ServerFrame>) {
    let why = loop {
        match frames.message().await {
            Ok(Some(frame)) => session.take(frame),
            Ok(None) => break "the server ended it".to_owned(),
            Err(status) => break status.message().to_owned(),
        }
    };
    session.end(&why);
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("host", &self.host)
            .field("live", &self.is_live())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Lease;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn a_loss_in_the_frame_of_its_grant_is_told() {
        let (frames, _sent) = mpsc::unbounded_channel();
        let session = Session::new("h".to_owned(), &v1::Welcome::default(), frames);
        let (name, owner) = (LockName::new("a").unwrap(), OwnerId::new());
        let lost = |owner| {
            let lease = Lease::new(name.clone(), owner, None);
            let lost = v1::LeaseLost::new(&lease, LossReason::SessionLost);
            v1::Push {
                push: Some(push::Push::Lost(lost)),
            }
        };
        let asked = operation::Operation::Health(v1::CheckHealth {});
        let mut reply = session.send([asked]).unwrap().remove(0);
        // Those of leases that were released come as well.
        let mut pushes: Vec<_> = (0..EARLY_LOSSES * 2)
            .map(|_| lost(OwnerId::new()))
            .collect();
        pushes.push(lost(owner));
        session.take(v1::ServerFrame {
            answers: vec![v1::Answer {
                id: 1,
                answer: Some(answer::Answer::Acquire(v1::AcquireAnswer::default())),
            }],
            pushes,
            ..v1::ServerFrame::default()
        });
        // The caller reads the answer after the frame.
        assert!(reply.try_recv().is_ok());
        let (lose, mut told) = oneshot::channel();
        let feed = session.loss_feed(&name, owner);
        feed.on_loss(move |reason| lose.send(reason).unwrap());
        drop(feed);
        assert_eq!(told.try_recv(), Ok(LossReason::SessionLost));
        let state = session.state.lock();
        assert_eq!(state.early.len(), EARLY_LOSSES - 1);
        assert!(state.losses.is_empty());
    }
}
