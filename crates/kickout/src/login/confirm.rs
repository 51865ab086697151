//! The part of a login after the account's lock: kicks of older sessions, and the confirmation.
//!
//! A client gets no confirmation before its session is in the directory. From the grant on every
//! failure logs the session out.

use std::{sync::Arc, time::Duration};

use distlock_core::{Moment, Result};

use crate::{
    login::{
        context::LoginRun,
        grant::Granted,
        outcome::{LoginOutcome, denied_outcome, overtaken_outcome},
        queue::LoginTurn,
    },
    model::{
        event::Transition,
        ident::{Generation, SessionKey},
        notice::{Code, Offline},
        record::{Revocation, UserRecord},
        settings::Confirm,
    },
    session::{
        handle::Session,
        live::{LiveSession, Phase},
    },
    wait::{jitter, retry_while},
};

impl LoginRun {
    /// Ends the older sessions, checks that this login is still the newest, and admits the client.
    pub(crate) async fn confirm(&self, granted: Granted, turn: LoginTurn) -> Result<LoginOutcome> {
        let parts = &self.parts;
        let Granted {
            live,
            messages,
            r#gen,
            written_at,
            removed,
            pending,
        } = granted;
        // From here on every return path drops the session, and the drop logs it out.
        let session = Session::new(
            Arc::clone(&parts.logouts),
            Arc::clone(&parts.ender),
            Arc::clone(&live),
            messages,
        );
        // The next login on this node may compete now. That login finds this one in the directory.
        drop(turn);

        let decided = (r#gen, written_at);
        let mut record = self.end_older(&live, decided, &removed, pending).await?;
        if parts.settings.confirm == Confirm::Strict {
            let Some(now) = self.wait_until_all_gone(&live, record).await? else {
                return Ok(self.busy_outcome());
            };
            record = now;
        }
        Ok(self.admit(&live, session, r#gen, &record))
    }

    /// Kicks the sessions with a pending revocation, on this node and on others. `decided` is this
    /// login's generation and the moment of its write. Returns the account's record afterwards,
    /// without the revocations of this node's sessions.
    async fn end_older(
        &self,
        live: &LiveSession,
        decided: (Generation, Moment),
        removed: &[Revocation],
        pending: Vec<Revocation>,
    ) -> Result<UserRecord> {
        let parts = &self.parts;
        let uid = &self.login.uid;
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|it| parts.this.owns(&it.key));
        for victim in &here {
            if parts.revoker.end_revoked(uid, victim) {
                self.measure_takeover("local");
            }
        }
        let here: Vec<_> = here.into_iter().map(|it| it.key).collect();
        let mut gone = Vec::new();
        if !elsewhere.is_empty() {
            let budget = parts.settings.timers.kick_budget;
            let kicks = parts.kicks.kick_all(uid, &elsewhere, budget, Some(decided));
            gone = kicks.await;
            if removed.iter().any(|it| gone.contains(&it.key)) {
                self.measure_takeover("remote");
            }
        }
        let settled = self.settle(live, &gone).await;
        let is_pending = |record: &UserRecord| {
            let mut pending = record.revocations.iter();
            pending.any(|it| !here.contains(&it.key))
        };
        if !settled.as_ref().is_ok_and(|record| !is_pending(record)) {
            parts.kicks.keep_kicking(uid);
        }
        let mut record = settled?;
        record.settle(|key| here.contains(key));
        self.settle_in_background(here);
        Ok(record)
    }

    /// Activates the session and answers the login. `record` is the account's record after the
    /// older sessions ended; it shows whether this login is still the newest.
    fn admit(
        &self,
        live: &LiveSession,
        mut session: Session,
        r#gen: Generation,
        record: &UserRecord,
    ) -> LoginOutcome {
        let parts = &self.parts;
        if live.phase() == Phase::Pending && live.is_missing_in(record) {
            // The store has lost this login, and also the list of older sessions to kick.
            return self.busy_outcome();
        }
        if record.slot_of(&live.key).is_none() && live.phase() == Phase::Pending {
            let by = record.slots.get(&live.slot).map(|it| it.device.clone());
            let notice = Offline::new(Code::Superseded).superseded_by(by, Some(record.r#gen));
            parts.ender.end(live, notice, false, |_| {});
        }
        if let Err(notice) = live.activate() {
            return match notice.code {
                Code::Superseded | Code::Replaced => {
                    overtaken_outcome(notice.by_device, notice.r#gen)
                }
                code => denied_outcome(code, notice.by_device),
            };
        }
        session.old_confirmed = record.revocations.is_empty();
        parts.events.emit(Transition::Admitted, |event| {
            live.describe(event);
            event.r#gen = Some(r#gen);
            event.result = Some(if session.old_confirmed {
                "every older session is gone".into()
            } else {
                "an older session could not be told yet".into()
            });
        });
        LoginOutcome::Admitted(session)
    }

    /// Removes the revocations of these sessions, and returns the record afterwards. The login is
    /// granted, and older sessions may have been kicked. So a short outage of the store must not
    /// end the login; this function tries again until the node's lease ends.
    async fn settle(&self, live: &LiveSession, gone: &[SessionKey]) -> Result<UserRecord> {
        let (parts, uid) = (&self.parts, &self.login.uid);
        let may_wait = || live.incarnation.lease.is_valid() && !self.caller_gone.is_cancelled();
        let settled = retry_while(&*parts.clock, may_wait, || async move {
            if gone.is_empty() {
                Ok(parts.directory.read(uid).await?.record)
            } else {
                parts.removals.settle(uid, gone).await
            }
        });
        settled.await
    }

    /// Removes the revocations of ended sessions of this node. The client does not wait for the
    /// removal.
    fn settle_in_background(&self, gone: Vec<SessionKey>) {
        if gone.is_empty() {
            return;
        }
        let (parts, uid) = (Arc::clone(&self.parts), self.login.uid.clone());
        self.parts.tasks.spawn(async move {
            if let Err(error) = parts.removals.settle(&uid, &gone).await {
                tracing::warn!(?uid, %error, "the directory is told later that sessions are gone");
                parts.kicks.keep_kicking(&uid);
            }
        });
    }

    /// Waits until no revocation is pending, for strict confirmation. A node that answers no peer
    /// either finds the revocation by itself or loses its lease, so a wait of one node lease is
    /// long enough. Returns `None` if a session is still not known to have ended; the login is then
    /// given up.
    async fn wait_until_all_gone(
        &self,
        live: &LiveSession,
        mut record: UserRecord,
    ) -> Result<Option<UserRecord>> {
        let parts = &self.parts;
        let until = parts.clock.now()
            + parts.settings.timers.node_lease
            + parts.settings.timers.kick_budget;
        while !record.revocations.is_empty() {
            if parts.clock.now() >= until || self.caller_gone.is_cancelled() {
                return Ok(None);
            }
            parts
                .clock
                .sleep(Duration::from_millis(50) + jitter(Duration::from_millis(50)))
                .await;
            let pending = record.revocations.clone();
            let gone = parts
                .kicks
                .kick_all(
                    &self.login.uid,
                    &pending,
                    parts.settings.timers.peer_deadline,
                    None,
                )
                .await;
            record = self.settle(live, &gone).await?;
        }
        Ok(Some(record))
    }

    /// Records the time from the start of this login until an older session ended.
    fn measure_takeover(&self, path: &'static str) {
        let time = self.parts.clock.now().since(self.started);
        metrics::histogram!("distlock_takeover_seconds", "path" => path).record(time.as_secs_f64());
    }
}
