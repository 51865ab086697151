//! A session of this node: its state machine, its notice and its queue.
//!
//! The phase only moves forward. A session that left `Active` can neither send nor receive. This
//! module never asks the store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Moment, micros, sync::Mutex};
use tokio::sync::{Notify, mpsc, watch};

use crate::{
    meters,
    model::{
        event::Event,
        ident::{Class, ClientInfo, Device, Generation, SessionKey, Uid},
        login::Login,
        notice::{Code, Offline},
        record::{Slot, SlotEntry, UserRecord},
    },
    state::{changes::Changes, incarnation::Incarnation, message::QueuedMessage},
};

/// Most messages in the queue of one session.
const QUEUE_CAPACITY: usize = 64;

/// The phase of a session. A phase only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// The login is in progress; the client has no answer yet.
    Pending,
    /// The session may send and receive.
    Active,
    /// The session has a notice for its client. The session may neither send nor receive.
    Superseded,
    /// The session is being removed from the directory.
    Closing,
    /// The session has ended.
    Closed,
}

/// A session of this node that is or was in the registry.
#[derive(Debug)]
pub(crate) struct LiveSession {
    pub(crate) uid: Uid,
    pub(crate) key: SessionKey,
    pub(crate) slot: Slot,
    pub(crate) device: Device,
    pub(crate) class: Class,
    /// Wall clock at login in milliseconds since 1970, for display.
    pub(crate) since_ms: u64,
    pub(crate) client: ClientInfo,
    /// Whether the session's client acknowledges messages.
    pub(crate) acks: bool,
    /// Whether the session's program says when it has saved.
    pub(crate) saves: bool,
    pub(crate) incarnation: Incarnation,
    /// Time of the client's last frame, in microseconds since the machine booted.
    last_heard: AtomicU64,
    state: Mutex<LiveState>,
    notice: watch::Sender<Option<Offline>>,
    /// A channel has room for 32 values from its start, so the values are small: boxes.
    queue: mpsc::Sender<Box<QueuedMessage>>,
    /// The order to hand out stored messages.
    hand_out: Notify,
    /// Whether the client has not acknowledged a message for which its sender waited.
    overdue: Arc<AtomicBool>,
}

#[derive(Debug)]
struct LiveState {
    phase: Phase,
    r#gen: Generation,
    /// Whether the directory may name this session. If so, the session's logout deletes it from the
    /// directory.
    listed: bool,
    /// Whether the session was ever active.
    admitted: bool,
    /// Whether the session's program has said that it has saved.
    saved: bool,
    /// Time until which logins wait for the program of the ended session.
    save_until: Option<Moment>,
}

impl LiveSession {
    /// A session for this slot entry, and the receiver of its queue.
    pub(crate) fn new(
        slot: Slot,
        entry: SlotEntry,
        login: &Login,
        incarnation: Incarnation,
    ) -> (Self, mpsc::Receiver<Box<QueuedMessage>>) {
        let (queue, messages) = mpsc::channel(QUEUE_CAPACITY);
        let live = Self {
            uid: login.uid.clone(),
            key: entry.key,
            slot,
            device: entry.device,
            class: entry.class,
            since_ms: entry.since_ms,
            client: entry.client,
            acks: login.acks,
            saves: login.saves,
            incarnation,
            last_heard: AtomicU64::new(0),
            state: Mutex::new(LiveState {
                phase: Phase::Pending,
                r#gen: Generation::default(),
                listed: false,
                admitted: false,
                saved: false,
                save_until: None,
            }),
            notice: watch::Sender::new(None),
            queue,
            hand_out: Notify::new(),
            overdue: Arc::default(),
        };
        (live, messages)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.lock().phase
    }

    pub(crate) fn generation(&self) -> Generation {
        self.state.lock().r#gen
    }

    /// Notes that the write of the grant is about to be sent. From now on the directory may name
    /// the session, so the session's logout has to delete it from the directory.
    pub(crate) fn mark_listed(&self, r#gen: Generation) {
        let mut state = self.state.lock();
        state.r#gen = r#gen;
        state.listed = true;
    }

    /// Pending -> Active, unless the session was superseded or the lease has ended. `Err` is the
    /// notice for the client.
    ///
    /// A change of presence is recorded under the state's lock. Otherwise a session that ends at
    /// once could go offline before it came online.
    pub(crate) fn activate(&self, changes: &Changes) -> Result<(), Offline> {
        let mut state = self.state.lock();
        if state.phase == Phase::Pending && self.incarnation.lease.is_valid() {
            state.phase = Phase::Active;
            state.admitted = true;
            changes.record_online(&self.uid, self.entry_of(state.r#gen));
            meters::count_session_start();
            return Ok(());
        }
        drop(state);
        Err(self.current_notice())
    }

    /// Whether the session may send and receive now. `Err` is the notice for the client.
    pub(crate) fn check(&self) -> Result<(), Offline> {
        if self.phase() == Phase::Active && self.incarnation.lease.is_valid() {
            return Ok(());
        }
        Err(self.current_notice())
    }

    /// Whether the session has a notice, or its node's lease has ended.
    pub(crate) fn must_go(&self) -> bool {
        self.notice.borrow().is_some() || !self.incarnation.lease.is_valid()
    }

    /// Notes that the client sent something.
    pub(crate) fn touch(&self, now: Moment) {
        self.last_heard
            .store(micros(now.since_boot()), Ordering::Relaxed);
    }

    /// Time since the client last sent something.
    pub(crate) fn idle_time(&self, now: Moment) -> Duration {
        let last_heard = Duration::from_micros(self.last_heard.load(Ordering::Relaxed));
        now.since_boot().saturating_sub(last_heard)
    }

    /// The notice for the client, if the account's record says that the session has to end.
    pub(crate) fn end_notice_in(&self, record: &UserRecord) -> Option<Offline> {
        if let Some(revocation) = record.revocations.iter().find(|it| it.key == self.key) {
            return Some(revocation.notice());
        }
        if record.slot_of(&self.key).is_some() || !record.is_over(&self.slot, self.generation()) {
            return None;
        }
        let by = record.slots.get(&self.slot).map(|it| it.device.clone());
        Some(Offline::new(Code::Superseded).superseded_by(by, Some(record.r#gen)))
    }

    /// Whether the account's record neither names the session nor says that the session has to end.
    pub(crate) fn is_missing_in(&self, record: &UserRecord) -> bool {
        record.slot_of(&self.key).is_none() && self.end_notice_in(record).is_none()
    }

    /// The session's entry in the account's record.
    pub(crate) fn entry(&self) -> SlotEntry {
        self.entry_of(self.generation())
    }

    /// The entry, for callers that have locked the state.
    fn entry_of(&self, r#gen: Generation) -> SlotEntry {
        SlotEntry {
            key: self.key.clone(),
            r#gen,
            device: self.device.clone(),
            class: self.class.clone(),
            since_ms: self.since_ms,
            client: self.client.clone(),
        }
    }

    /// Fills in the fields of an event that name this session.
    pub(crate) fn describe(&self, event: &mut Event) {
        event.uid = Some(self.uid.clone());
        event.set_session(&self.key);
        event.slot = Some(self.slot.clone());
        event.r#gen = Some(self.generation());
        event.device = Some(self.device.clone());
        event.class = Some(self.class.clone());
    }

    /// Pending or Active -> Superseded. `listed` says whether the directory may still name the
    /// session. Logins wait until `save_until` for the session's program. Returns true if this call
    /// changed the phase.
    pub(crate) fn supersede(
        &self,
        notice: Offline,
        listed: bool,
        save_until: Moment,
        changes: &Changes,
    ) -> bool {
        let mut state = self.state.lock();
        if state.phase > Phase::Active {
            return false;
        }
        self.record_offline(&state, Some(&notice), changes);
        state.phase = Phase::Superseded;
        state.listed &= listed;
        state.save_until = Some(save_until);
        // The notice is set under the state's lock. Otherwise a reader could see the new phase
        // without the notice.
        self.notice.send_replace(Some(notice));
        true
    }

    /// Records that the session goes offline, if it was online or the directory may name it: who
    /// asked for its account in between counts it as online.
    fn record_offline(&self, state: &LiveState, notice: Option<&Offline>, changes: &Changes) {
        let is_granted = state.phase == Phase::Pending && state.listed;
        if state.phase == Phase::Active || is_granted {
            changes.record_offline(&self.uid, self.entry_of(state.r#gen), notice);
        }
    }

    /// Notes that the session's program has saved.
    pub(crate) fn mark_saved(&self) {
        self.state.lock().saved = true;
    }

    /// Whether nothing of the session is left to save: its program has said so, or the session
    /// ended before its client was let in.
    pub(crate) fn is_saved(&self) -> bool {
        let state = self.state.lock();
        state.saved || (!state.admitted && state.phase > Phase::Active)
    }

    /// Whether the session has ended, and its program still has time to save.
    pub(crate) fn is_saving(&self, now: Moment) -> bool {
        if !self.saves || self.is_saved() {
            return false;
        }
        let state = self.state.lock();
        // After a logout nobody is left who could say that the program has saved.
        state.phase == Phase::Superseded && state.save_until.is_some_and(|until| now < until)
    }

    /// Any earlier phase -> Closing. Returns whether the directory may name the session; `None` if
    /// the phase was Closing or Closed already.
    pub(crate) fn begin_close(&self, changes: &Changes) -> Option<bool> {
        let mut state = self.state.lock();
        if state.phase >= Phase::Closing {
            return None;
        }
        self.record_offline(&state, None, changes);
        state.phase = Phase::Closing;
        Some(state.listed)
    }

    /// Any phase -> Closed. Counts the end of a session that was ever active.
    pub(crate) fn mark_closed(&self) {
        let mut state = self.state.lock();
        if state.admitted && state.phase < Phase::Closed {
            meters::count_session_end(self.notice.borrow().as_ref().map(|notice| notice.code));
        }
        state.phase = Phase::Closed;
    }

    /// Waits for the session's notice.
    pub(crate) async fn superseded(&self) -> Offline {
        let mut notices = self.notice.subscribe();
        let notice = notices.wait_for(Option::is_some).await;
        let notice = notice.ok().and_then(|notice| notice.clone());
        match notice {
            Some(notice) => notice,
            None => std::future::pending().await,
        }
    }

    /// Whether the client has left a message unacknowledged, and has acknowledged nothing since.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Notes that a sender has waited in vain for the client's acknowledgement.
    pub(crate) fn note_overdue(&self) {
        self.overdue.store(true, Ordering::Relaxed);
    }

    /// The mark that an acknowledgement of the client clears.
    pub(crate) fn overdue_mark(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.overdue)
    }

    /// Orders the session's connection to hand out stored messages.
    pub(crate) fn ask_for_hand_out(&self) {
        self.hand_out.notify_one();
    }

    /// Waits for such an order.
    pub(crate) async fn hand_out_asked(&self) {
        self.hand_out.notified().await;
    }

    /// Puts a message in the session's queue. The error returns the message, and says whether the
    /// queue was full or closed.
    pub(crate) fn enqueue(
        &self,
        message: QueuedMessage,
    ) -> Result<(), mpsc::error::TrySendError<Box<QueuedMessage>>> {
        self.queue.try_send(Box::new(message))
    }

    /// The notice of the session. Without a notice, the session has to end because its node's lease
    /// has just ended; the result is then the notice for that reason.
    fn current_notice(&self) -> Offline {
        let notice = self.notice.borrow().clone();
        notice.unwrap_or_else(|| Offline::new(Code::NodeFenced))
    }
}
