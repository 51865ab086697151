//! The part of a login after the account's lock: kicks of older sessions, and the confirmation.
//!
//! A client gets no confirmation before its session is in the directory. From the grant on every
//! failure logs the session out.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use distlock_core::{Moment, Result};

use crate::{
    model::{
        event::Transition,
        ident::{Generation, SessionKey},
        login::ConfirmedBy,
        notice::{Code, Offline},
        record::{Revocation, UserRecord},
        request::KickResult,
        settings::Confirm,
    },
    node::{
        grant::Granted,
        kick::settled_among,
        login::{LoginOutcome, LoginRun, denied_outcome, overtaken_outcome},
        session::Session,
    },
    state::{
        live_session::{LiveSession, Phase},
        login_queue::LoginTurn,
    },
    tasks::{jitter, retry_while},
};

/// The older sessions of an account that had to end before a login is answered.
struct OlderSessions {
    /// The account's record, as it was last read.
    record: UserRecord,
    /// The revocations of the sessions whose end was not confirmed when the login was granted.
    granted: Vec<Revocation>,
    /// The sessions that are known to have ended, each with the last answer of its node.
    ended: HashMap<SessionKey, KickResult>,
    /// Whether the login found sessions of dead nodes. Their programs said nothing.
    swept: bool,
}

impl OlderSessions {
    /// The sessions that this login knows of: those at its grant, and those in the record now.
    fn all(&self) -> impl Iterator<Item = &Revocation> {
        let later = |it: &&Revocation| !self.granted.iter().any(|known| known.key == it.key);
        let later = self.record.revocations.iter().filter(later);
        self.granted.iter().chain(later)
    }

    /// The sessions that have ended, and whose programs were saving at their nodes' last answers.
    /// A session may have saved and left since, and its node has removed the revocation. So a
    /// missing revocation does not end the wait: only one more answer tells what happened.
    fn saving(&self) -> Vec<Revocation> {
        let is_saving = |it: &&Revocation| self.ended.get(&it.key) == Some(&KickResult::Saving);
        self.all().filter(is_saving).cloned().collect()
    }

    /// The revoked sessions that are not known to have ended.
    fn silent(&self) -> Vec<Revocation> {
        let pending = self.record.revocations.iter();
        let silent = pending.filter(|it| !self.ended.contains_key(&it.key));
        silent.cloned().collect()
    }

    /// The weakest confirmation of the end of these sessions.
    fn confirmed_by(&self) -> ConfirmedBy {
        let of = |it: &Revocation| match self.ended.get(&it.key) {
            Some(result) => result.confirmed_by(),
            None if self.record.revocations.contains(it) => ConfirmedBy::Nobody,
            // Another node or login removed the revocation, so it knew of the session's end.
            None => ConfirmedBy::Node,
        };
        let dead = self.swept.then_some(ConfirmedBy::Node);
        let all = self.all().map(of).chain(dead);
        all.min().unwrap_or(ConfirmedBy::Program)
    }
}

impl LoginRun {
    /// Ends the older sessions, checks that this login is still the newest, and admits the client.
    pub(crate) async fn confirm(&self, granted: Granted, turn: LoginTurn) -> Result<LoginOutcome> {
        let node = &self.node;
        let Granted {
            live,
            messages,
            r#gen,
            written_at,
            removed,
            pending,
            swept,
        } = granted;
        // From here on every return path drops the session, and the drop logs it out.
        let session = Session::new(Arc::clone(node), Arc::clone(&live), messages);
        // The next login on this node may compete now. That login finds this one in the directory.
        drop(turn);

        let decided = (r#gen, written_at);
        let mut older = self.end_older(&live, decided, &removed, pending).await?;
        older.swept = swept;
        if !self.wait_for_older(&live, &mut older).await? {
            return Ok(self.busy_outcome());
        }
        Ok(self.admit(&live, session, r#gen, &older))
    }

    /// Kicks the sessions with a pending revocation, on this node and on others. `decided` is this
    /// login's generation and the moment of its write.
    async fn end_older(
        &self,
        live: &LiveSession,
        decided: (Generation, Moment),
        removed: &[Revocation],
        pending: Vec<Revocation>,
    ) -> Result<OlderSessions> {
        let node = &self.node;
        let uid = &self.login.uid;
        let granted = pending.clone();
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|it| node.this.owns(&it.key));
        let mut ended = Vec::new();
        for victim in &here {
            let kicked = node.end_revoked(uid, victim);
            if kicked.ended_now {
                self.measure_takeover("local");
            }
            ended.push((victim.key.clone(), kicked.result));
        }
        let here = settled_among(&ended);
        let mut gone = Vec::new();
        if !elsewhere.is_empty() {
            let budget = node.settings.timers.kick_budget;
            let kicks = node.kick_all(uid, &elsewhere, budget, Some(decided));
            let kicked = kicks.await;
            let is_kicked = |it: &Revocation| kicked.iter().any(|(key, _)| *key == it.key);
            if removed.iter().any(is_kicked) {
                self.measure_takeover("remote");
            }
            gone = settled_among(&kicked);
            ended.extend(kicked);
        }
        let settled = self.settle(live, &gone).await;
        let is_pending = |record: &UserRecord| {
            let mut pending = record.revocations.iter();
            pending.any(|it| !here.contains(&it.key))
        };
        if !settled.as_ref().is_ok_and(|record| !is_pending(record)) {
            node.keep_kicking(uid);
        }
        let mut record = settled?;
        record.settle(|key| here.contains(key));
        self.settle_in_background(here);
        Ok(OlderSessions {
            record,
            granted,
            ended: ended.into_iter().collect(),
            swept: false,
        })
    }

    /// Activates the session and answers the login. The account's record after the older sessions
    /// ended shows whether this login is still the newest.
    fn admit(
        &self,
        live: &LiveSession,
        mut session: Session,
        r#gen: Generation,
        older: &OlderSessions,
    ) -> LoginOutcome {
        let (node, record) = (&self.node, &older.record);
        if live.phase() == Phase::Pending && live.is_missing_in(record) {
            // The store has lost this login, and also the list of older sessions to kick.
            return self.busy_outcome();
        }
        if record.slot_of(&live.key).is_none() && live.phase() == Phase::Pending {
            let by = record.slots.get(&live.slot).map(|it| it.device.clone());
            let notice = Offline::new(Code::Superseded).superseded_by(by, Some(record.r#gen));
            node.end_session(live, notice, false, |_| {});
        }
        if let Err(notice) = live.activate(&node.changes) {
            return match notice.code {
                Code::Superseded | Code::Replaced => {
                    overtaken_outcome(notice.by_device, notice.r#gen)
                }
                code => denied_outcome(code, notice.by_device),
            };
        }
        session.old_confirmed = older.confirmed_by();
        node.events.emit(Transition::Admitted, |event| {
            live.describe(event);
            event.r#gen = Some(r#gen);
            event.result = Some(match session.old_confirmed {
                ConfirmedBy::Program => "every older session has saved or was gone".into(),
                ConfirmedBy::Node => "every older session is gone".into(),
                ConfirmedBy::Nobody => "an older session has no notice yet".into(),
            });
        });
        LoginOutcome::Admitted(session)
    }

    /// Removes the revocations of these sessions, and returns the record afterwards. The login is
    /// granted, and older sessions may have been kicked. So a short outage of the store must not
    /// end the login; this function tries again until the node's lease ends.
    async fn settle(&self, live: &LiveSession, gone: &[SessionKey]) -> Result<UserRecord> {
        let (node, uid) = (&self.node, &self.login.uid);
        let may_wait = || live.incarnation.lease.is_valid() && !self.caller_gone.is_cancelled();
        let settled = retry_while(&*node.clock, may_wait, || async move {
            if gone.is_empty() {
                Ok(node.directory.read(uid).await?.record)
            } else {
                node.settle(uid, gone).await
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
        let (node, uid) = (Arc::clone(&self.node), self.login.uid.clone());
        self.node.tasks.spawn(async move {
            if let Err(error) = node.settle(&uid, &gone).await {
                tracing::warn!(
                    ?uid, %error,
                    "sessions have ended; their revocations could not be removed, and are removed \
                     later"
                );
                node.keep_kicking(&uid);
            }
        });
    }

    /// Waits for the programs of older sessions to save, and under strict confirmation also for the
    /// nodes that did not answer. Such a node either finds the revocation by itself or loses its
    /// lease, so a wait of one node lease is long enough. Returns false if a session is still not
    /// known to have ended; the login is then given up.
    async fn wait_for_older(&self, live: &LiveSession, older: &mut OlderSessions) -> Result<bool> {
        let node = &self.node;
        let timers = &node.settings.timers;
        let strict = node.settings.confirm == Confirm::Strict;
        // A node answers `Saving` only within the time to save. The extra time is for its last
        // answer.
        let time_to_save = timers.save_budget + timers.peer_deadline;
        let mut saves_until = node.clock.now();
        let ended_until = saves_until + time_to_save + timers.node_lease + timers.kick_budget;
        let mut known = HashSet::new();
        loop {
            let (mut waiting, silent) = (older.saving(), older.silent());
            // A node that was silent at first has told its session later, and that session's
            // program has the whole time to save from then on.
            let before = known.len();
            known.extend(waiting.iter().map(|it| it.key.clone()));
            if known.len() > before {
                saves_until = (node.clock.now() + time_to_save).min(ended_until);
            }
            let may_be_alive = strict && !silent.is_empty();
            if strict {
                waiting.extend(silent);
            }
            if waiting.is_empty() || live.phase() != Phase::Pending {
                return Ok(true);
            }
            if self.caller_gone.is_cancelled() {
                return Ok(false);
            }
            let until = if may_be_alive {
                ended_until
            } else {
                saves_until
            };
            if node.clock.now() >= until {
                // The last read may be as old as this wait, and a newer login may have come since.
                older.record = self.settle(live, &[]).await?;
                return Ok(!may_be_alive);
            }
            let pause = Duration::from_millis(50);
            node.clock.sleep(pause + jitter(pause)).await;
            let uid = &self.login.uid;
            let budget = timers.peer_deadline;
            let kicked = node.kick_all(uid, &waiting, budget, None).await;
            let gone = settled_among(&kicked);
            older.ended.extend(kicked);
            if may_be_alive || !gone.is_empty() {
                older.record = self.settle(live, &gone).await?;
            }
        }
    }

    /// Records the time from the start of this login until an older session ended.
    fn measure_takeover(&self, path: &'static str) {
        let time = self.node.clock.now().since(self.started);
        metrics::histogram!("distlock_takeover_seconds", "path" => path).record(time.as_secs_f64());
    }
}
