//! The state of one entry, which its guards, their watches and the hub share, and what each guard
//! has of its own.
//!
//! Invariant: an entry is valid only while the lease of its slot is, and only for one lease after
//! the sending of the last request that showed it. After "not valid", the answer stays so. The end
//! of a guard says nothing about the others of its entry.

use std::{
    future::pending,
    sync::{Arc, OnceLock},
    time::Duration,
};

use distlock_core::{
    Clock, Ended, Epoch, Error, ErrorKind, FencingToken, Guard, LockName, LockWatch, LossReason,
    Moment, Result, margin, sync::Mutex,
};
use tokio::sync::Notify;

use super::record::{EntryId, Mode};

pub(super) struct Holder {
    name: LockName,
    id: EntryId,
    slot: LockWatch,
    clock: Arc<dyn Clock>,
    fields: Mutex<Fields>,
    changed: Notify,
}

struct Fields {
    token: FencingToken,
    mode: Mode,
    /// The epoch of the token, if the records are in another store than the locks.
    epoch: Option<Epoch>,
    ttl: Duration,
    /// When the last request was sent that showed the entry.
    seen: Moment,
    /// The deadline by that request.
    until: Moment,
    loss: Option<LossReason>,
}

impl Holder {
    /// A holder that is about to enter.
    pub(super) fn new(
        name: &LockName,
        id: EntryId,
        slot: &Guard,
        clock: &Arc<dyn Clock>,
    ) -> Arc<Self> {
        let now = clock.now();
        let ttl = slot.ttl().duration();
        Arc::new(Self {
            name: name.clone(),
            fields: Mutex::new(Fields {
                token: id.token,
                mode: Mode::Read,
                epoch: None,
                ttl,
                seen: now,
                until: deadline(now, ttl),
                loss: None,
            }),
            id,
            slot: slot.watch(),
            clock: Arc::clone(clock),
            changed: Notify::new(),
        })
    }

    pub(super) const fn id(&self) -> &EntryId {
        &self.id
    }

    pub(super) const fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn token(&self) -> FencingToken {
        self.fields.lock().token
    }

    pub(super) fn mode(&self) -> Mode {
        self.fields.lock().mode.clone()
    }

    /// The epoch of the token, if the records are in another store than the locks.
    pub(super) fn epoch_of_records(&self) -> Option<Epoch> {
        self.fields.lock().epoch.clone()
    }

    /// A write that was sent then has put the entry into the record.
    pub(super) fn entered(
        &self,
        token: FencingToken,
        mode: Mode,
        epoch: Option<Epoch>,
        sent: Moment,
    ) {
        let mut fields = self.fields.lock();
        (fields.token, fields.mode, fields.epoch) = (token, mode, epoch);
        fields.has_seen(sent);
    }

    /// A request that was sent then has shown the entry.
    pub(super) fn seen(&self, sent: Moment) {
        let mut fields = self.fields.lock();
        // A guard that was not valid for a moment must not become valid again.
        if fields.loss_at(self.clock.now()).is_none() && fields.seen < sent {
            fields.has_seen(sent);
        }
    }

    /// The slot has a new TTL. A shorter one counts from the next look: the last one may be longer
    /// ago.
    pub(super) fn set_ttl(&self, ttl: Duration) {
        let mut fields = self.fields.lock();
        fields.ttl = ttl;
        fields.until = fields.until.max(deadline(fields.seen, ttl));
        drop(fields);
        self.changed.notify_waiters();
    }

    /// When the entry is to be looked for again.
    pub(super) fn look_at(&self) -> Moment {
        let fields = self.fields.lock();
        fields.seen + fields.ttl / 3
    }

    /// When the guard ends unless its entry is seen again.
    pub(super) fn entry_until(&self) -> Moment {
        self.fields.lock().until
    }

    pub(super) fn lose(&self, reason: LossReason) {
        self.fields.lock().loss.get_or_insert(reason);
        self.changed.notify_waiters();
    }

    /// The reason if the lock is lost by now.
    pub(super) fn loss(&self) -> Option<LossReason> {
        let mut fields = self.fields.lock();
        let loss = fields
            .loss_at(self.clock.now())
            .or_else(|| self.slot.loss());
        fields.loss = loss;
        loss
    }

    pub(super) fn is_valid(&self) -> bool {
        self.loss().is_none() && self.slot.is_valid()
    }

    /// Whether so much of the lease is left as after a renewal that did not fail.
    pub(super) fn is_fresh(&self) -> bool {
        let ttl = self.fields.lock().ttl;
        self.remaining() >= ttl / 2
    }

    fn remaining(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        let until = self.fields.lock().until;
        until.since(self.clock.now()).min(self.slot.remaining())
    }

    fn deadline(&self) -> Moment {
        let until = self.fields.lock().until;
        until.min(self.slot.deadline())
    }

    /// Resolves when the lock is lost.
    async fn lost(&self) -> LossReason {
        loop {
            let changed = self.changed.notified();
            if let Some(reason) = self.loss() {
                return reason;
            }
            let until = self.fields.lock().until;
            let slot_lost = async {
                if self.slot.ended().await == Ended::Released {
                    // Its guards have left.
                    pending::<()>().await;
                }
            };
            tokio::select! {
                () = slot_lost => {}
                () = changed => {}
                () = self.clock.sleep(until.since(self.clock.now())) => {}
            }
        }
    }
}

/// What one guard and its watches share. Readers of one process may have guards of one entry.
pub(super) struct Hold {
    entry: Arc<Holder>,
    /// Set by the end of the guard, with the reason if the lock had been lost before.
    left: OnceLock<Option<LossReason>>,
    ended: Notify,
}

impl Hold {
    pub(super) fn new(entry: &Arc<Holder>) -> Arc<Self> {
        Arc::new(Self {
            entry: Arc::clone(entry),
            left: OnceLock::new(),
            ended: Notify::new(),
        })
    }

    pub(super) const fn entry(&self) -> &Arc<Holder> {
        &self.entry
    }

    pub(super) fn name(&self) -> &LockName {
        self.entry.name()
    }

    /// The caller gives the lock up. Returns the reason if it was lost before.
    pub(super) fn leave(&self) -> Option<LossReason> {
        let loss = *self.left.get_or_init(|| self.entry.loss());
        self.ended.notify_waiters();
        loss
    }

    /// The reason if the lock is lost by now, or was before the guard ended.
    pub(super) fn loss(&self) -> Option<LossReason> {
        let left = self.left.get().copied();
        left.unwrap_or_else(|| self.entry.loss())
    }

    pub(super) fn is_valid(&self) -> bool {
        self.left.get().is_none() && self.entry.is_valid()
    }

    pub(super) fn remaining(&self) -> Duration {
        match self.left.get() {
            Some(_) => Duration::ZERO,
            None => self.entry.remaining(),
        }
    }

    pub(super) fn deadline(&self) -> Moment {
        self.entry.deadline()
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.loss() {
            Some(reason) => {
                let problem = format!("the lock was lost: {reason}");
                Err(Error::new(ErrorKind::Lost, problem).about(self.name()))
            }
            // The slot is released later, or not at all.
            None if self.left.get().is_some() => {
                let problem = "the lock was released";
                Err(Error::new(ErrorKind::NotHeld, problem).about(self.name()))
            }
            None => self.entry.slot.check(),
        }
    }

    /// Resolves when the guard has ended or the lock is lost.
    pub(super) async fn ended(&self) -> Ended {
        let ended = self.ended.notified();
        let of_the_guard = |loss: Option<LossReason>| loss.map_or(Ended::Released, Ended::Lost);
        if let Some(loss) = self.left.get() {
            return of_the_guard(*loss);
        }
        tokio::select! {
            // What the entry lost after the guard had ended is none of its losses.
            reason = self.entry.lost() => {
                let left = self.left.get().copied();
                of_the_guard(left.unwrap_or(Some(reason)))
            }
            () = ended => of_the_guard(self.loss()),
        }
    }
}

impl Fields {
    fn has_seen(&mut self, sent: Moment) {
        (self.seen, self.until) = (sent, deadline(sent, self.ttl));
    }

    fn loss_at(&self, now: Moment) -> Option<LossReason> {
        self.loss
            .or_else(|| (self.until <= now).then_some(LossReason::Unreachable))
    }
}

/// The deadline of a holder whose entry was seen then.
fn deadline(seen: Moment, ttl: Duration) -> Moment {
    seen + ttl.saturating_sub(margin(ttl))
}
