//! The pull path: a node looks for kicks that never reached it, so that a lost call heals by itself.

use std::{collections::HashMap, sync::Arc};

use distlock_core::{Epoch, Error, Moment, RecordKey, Result, Version};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::{
    directory::{Hint, Seen},
    event::Transition,
    flow::Inner,
    ident::{SessionId, SessionKey, Uid},
    live::{Incarnation, Live, Phase},
    offline::{Code, Offline},
    record::SlotEntry,
};

const HINT_PAGE: u32 = 256;
/// Sessions compared with the directory per round at least; after the store was away, all of them.
const COMPARED: usize = 1024;
/// Rounds within which every session has its turn: as many as there are in a node lease.
const PASS: usize = 3;
const COMPARE_PAGE: usize = 128;
/// Records that are written at a time: one that is held up costs the others little.
const SETTLED_AT_ONCE: usize = 16;

/// Notes without a revocation, and since when: the login that wrote one may be about to write the record. A note that was
/// written again is another one.
type Idle = HashMap<(RecordKey, Version), Moment>;

/// What the rounds remember.
#[derive(Debug, Default)]
struct Memory {
    /// Where the comparison goes on.
    cursor: Option<SessionId>,
    idle: Idle,
    /// Sessions that were told in this round and must be taken out of their account's record.
    told: Vec<(Uid, Vec<SessionKey>)>,
    /// The last round failed, or the store's history is another: it was away, and may have forgotten something.
    store_was_away: bool,
    /// The store's history, as the node's own lease knows it.
    epoch: Option<Epoch>,
}

impl Inner {
    /// Rounds at the pace of lease renewals.
    pub(crate) async fn pull(self: Arc<Self>) {
        let mut memory = Memory::default();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.clock.sleep(self.timers.tick()) => {}
            }
            let Some(own) = self.own.now() else {
                continue;
            };
            metrics::gauge!("distlock_lease_remaining_seconds")
                .set(own.lease.remaining().as_secs_f64());
            let round = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                round = self.round(&own, &mut memory) => round,
            };
            if let Err(error) = &round {
                tracing::warn!(node = %self.node, %error, "the directory could not be read");
            }
            memory.store_was_away = round.is_err();
        }
    }

    /// Whatever fails for one account is tried again in the next round, keeps no other account from its turn in this one, and is
    /// no failure of the round: the store serves.
    async fn round(&self, own: &Incarnation, memory: &mut Memory) -> Result<()> {
        let epoch = own.lease.fence().epoch;
        if memory.epoch.as_ref() != Some(&epoch) {
            // A failover may be over before any request has failed.
            memory.epoch = Some(epoch);
            memory.store_was_away = true;
        }
        let read = self.read_hints(own, memory).await;
        let compared = self.compare_sessions(memory).await;
        // Last, because a write may be held up for long, and by then everybody was told.
        self.settle_told(memory).await;
        read.and(compared)
    }

    async fn read_hints(&self, own: &Incarnation, memory: &mut Memory) -> Result<()> {
        let mut idle = Idle::new();
        let mut after = None;
        loop {
            let page = self
                .directory
                .hints(&self.node, own.boot, after.as_ref(), HINT_PAGE)
                .await;
            let page = match page {
                Ok(page) => page,
                Err(error) => {
                    memory.idle.extend(idle);
                    return Err(error);
                }
            };
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.key.clone());
            for hint in page {
                let this = (hint.key.clone(), hint.version);
                let before = memory.idle.get(&this).copied();
                let since = match self.act_on(&hint, before, &mut memory.told).await {
                    Ok(since) => since,
                    Err(error) => {
                        later(&hint.uid, &error);
                        before
                    }
                };
                idle.extend(since.map(|since| (this, since)));
            }
        }
        memory.idle = idle;
        Ok(())
    }

    /// Answers since when the note has been idle, if it is and stays.
    async fn act_on(
        &self,
        hint: &Hint,
        idle: Option<Moment>,
        told: &mut Vec<(Uid, Vec<SessionKey>)>,
    ) -> Result<Option<Moment>> {
        // The note alone decides nothing: the record does.
        let record = match self.directory.read(&hint.uid).await {
            Ok(seen) => seen.record,
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::error!(uid = ?hint.uid, %error, "a kick cannot be looked up");
                return Ok(None);
            }
        };
        let (gone, ended) = self.apply_all(&hint.uid, &record);
        if let Some(age) = hint.age {
            for _ in 0..ended {
                metrics::histogram!("distlock_takeover_seconds", "path" => "pull")
                    .record(age.as_secs_f64());
            }
        }
        if !gone.is_empty() {
            told.push((hint.uid.clone(), gone));
            return Ok(None);
        }
        // Written before its record, so a record without a revocation may only be a moment away. A login that takes longer
        // than this has lost its lock.
        let now = self.clock.now();
        let since = idle.unwrap_or(now);
        if now.since(since) > self.timers.lock_ttl * 2 {
            self.directory.drop_hint(hint).await?;
            return Ok(None);
        }
        Ok(Some(since))
    }

    async fn settle_told(&self, memory: &mut Memory) {
        for some in std::mem::take(&mut memory.told).chunks(SETTLED_AT_ONCE) {
            let settling = some.iter().map(async |(uid, gone)| {
                if let Err(error) = self.settle(uid, gone).await {
                    later(uid, &error);
                }
            });
            join_all(settling).await;
        }
    }

    /// Compares active sessions with the directory: what it names elsewhere is superseded, what it forgot is written again.
    async fn compare_sessions(&self, memory: &mut Memory) -> Result<()> {
        let here = self.registry.len();
        let mut left = if memory.store_was_away {
            memory.cursor = None;
            here.max(COMPARED)
        } else {
            here.div_ceil(PASS).max(COMPARED)
        };
        // The pass before may have ended with the last session of its last page.
        let mut may_begin_anew = memory.cursor.is_some();
        while left > 0 {
            let page = self.registry.page(memory.cursor, COMPARE_PAGE.min(left));
            memory.cursor = page.last().map(|live| live.key.session);
            if page.is_empty() {
                if std::mem::take(&mut may_begin_anew) {
                    continue;
                }
                break;
            }
            may_begin_anew = false;
            left -= page.len();
            let active: Vec<_> = page
                .into_iter()
                .filter(|live| live.phase() == Phase::Active)
                .collect();
            if active.is_empty() {
                continue;
            }
            let uids: Vec<_> = active.iter().map(|live| live.uid.clone()).collect();
            let records = self.directory.read_many(&uids).await?;
            for (live, seen) in active.iter().zip(records) {
                match seen {
                    Ok(seen) => {
                        if let Err(error) = self.compare(live, &seen, &mut memory.told).await {
                            later(&live.uid, &error);
                        }
                    }
                    Err(error) => {
                        tracing::error!(uid = ?live.uid, %error, "a session cannot be compared");
                    }
                }
                self.count_duplicates(live);
            }
        }
        Ok(())
    }

    async fn compare(
        &self,
        live: &Arc<Live>,
        seen: &Seen,
        told: &mut Vec<(Uid, Vec<SessionKey>)>,
    ) -> Result<()> {
        let record = &seen.record;
        if record.slot_of(&live.key).is_some() || live.phase() != Phase::Active {
            return Ok(());
        }
        if let Some(revocation) = record.revocations.iter().find(|it| it.key == live.key) {
            self.apply(&live.uid, revocation);
            told.push((live.uid.clone(), vec![revocation.key.clone()]));
            return Ok(());
        }
        if !record.is_over(&live.slot, live.generation()) {
            let ban = match &record.ban {
                Some(_) => self.standing_ban(&live.uid).await?,
                None => None,
            };
            let Some(ban) = ban else {
                let ended = record.ban.as_ref().map(|mark| mark.id);
                return self.register_again(live, ended).await;
            };
            // Whoever set it could not see this session.
            let mut notice = Offline::new(Code::Banned);
            if let Some(reason) = ban.reason {
                notice = notice.reason(reason);
            }
            self.end(live, notice, false, |_| {});
            return Ok(());
        }
        let by = record.slots.get(&live.slot).map(|it| it.device.clone());
        let notice = Offline::new(Code::Superseded).by(by, Some(record.r#gen));
        self.end(live, notice, false, |event| {
            event.result = Some("the directory names another session".into());
        });
        Ok(())
    }

    /// The store lost its memory of this session (a failover to a replica that lagged behind). `ended` is the ban of the
    /// record that is known to have ended, if there is one.
    async fn register_again(&self, live: &Arc<Live>, ended: Option<Uuid>) -> Result<()> {
        let (registered, _) = self
            .directory
            .update(&live.uid, |record| {
                let banned = record.ban.as_ref().map(|mark| mark.id);
                if live.phase() != Phase::Active
                    || banned.is_some_and(|ban| Some(ban) != ended)
                    || record.is_over(&live.slot, live.generation())
                    || record.slot_of(&live.key).is_some()
                {
                    return false;
                }
                record.restore(
                    &live.slot,
                    SlotEntry {
                        key: live.key.clone(),
                        r#gen: live.generation(),
                        device: live.device.clone(),
                        class: live.class.clone(),
                        since: live.since,
                    },
                );
                true
            })
            .await?;
        if registered {
            self.events
                .emit(Transition::Registered, |event| event.of(live));
        }
        if live.phase() >= Phase::Closing {
            // It logged out in between and may have found nothing to delete.
            self.delete(&live.uid, &live.key).await?;
        }
        Ok(())
    }

    fn count_duplicates(&self, live: &Live) {
        let active = self
            .registry
            .of(&live.uid)
            .iter()
            .filter(|other| other.slot == live.slot && other.check().is_ok())
            .count();
        if active > 1 {
            metrics::counter!("distlock_duplicates_detected_total").increment(1);
            tracing::error!(uid = ?live.uid, "two sessions are active in one slot");
        }
    }
}

fn later(uid: &Uid, error: &Error) {
    tracing::warn!(?uid, %error, "an account's sessions are looked after later");
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        time::Duration,
    };

    use async_trait::async_trait;
    use distlock_core::{Deleted, Entry, ErrorKind, Expect, Records, Store, Written};
    use distlock_memory::Memory as MemoryStore;

    use super::*;
    use crate::{
        Timers,
        flow::KickOut,
        ident::{Class, Device, NodeId, Uid},
        login::{Login, LoginOutcome},
        session::Session,
    };

    #[tokio::test]
    async fn a_note_that_was_written_again_is_a_new_one() {
        let memory = MemoryStore::default();
        let store = Store::new(memory.lock(), memory.records());
        // Its own rounds are far away.
        let long = Duration::from_secs(3600);
        let timers = Timers {
            lock_ttl: Duration::from_millis(50),
            node_lease: long,
            sweep: long,
            ..Timers::default()
        };
        let builder = KickOut::builder(store, NodeId::new("n1").unwrap()).timers(timers.clone());
        let kick = builder.start().await.unwrap();
        let inner = &kick.inner;
        let own = inner.own.now().unwrap();
        let anna = Uid::new("anna").unwrap();
        let mut rounds = Memory::default();
        for _ in 0..3 {
            let noted = inner.directory.leave_hint(&inner.node, own.boot, &anna);
            noted.await.unwrap();
            inner.read_hints(&own, &mut rounds).await.unwrap();
            let hints = inner.directory.all_hints(None, 10).await.unwrap();
            assert_eq!(hints.len(), 1, "its login may be about to write the record");
            inner.clock.sleep(timers.lock_ttl * 3).await;
        }
        inner.read_hints(&own, &mut rounds).await.unwrap();
        let hints = inner.directory.all_hints(None, 10).await.unwrap();
        assert!(hints.is_empty(), "{hints:?}");
    }

    /// A node with so many sessions, whose own rounds are far away.
    async fn busy_node(sessions: usize) -> (KickOut, Vec<Session>, Arc<dyn Records>) {
        let memory = MemoryStore::default();
        let records = memory.records();
        let store = Store::new(memory.lock(), Arc::clone(&records));
        let (kick, admitted) = busy_node_on(store, sessions).await;
        (kick, admitted, records)
    }

    async fn busy_node_on(store: Store, sessions: usize) -> (KickOut, Vec<Session>) {
        let long = Duration::from_secs(3600);
        let timers = Timers {
            node_lease: long,
            sweep: long,
            ..Timers::default()
        };
        let builder = KickOut::builder(store, NodeId::new("n1").unwrap()).timers(timers);
        let kick = builder.start().await.unwrap();
        let mut admitted = Vec::new();
        for number in 0..sessions {
            let uid = Uid::new(format!("u{number}")).unwrap();
            let login = Login::new(uid, Device::new("phone").unwrap(), Class::none());
            match kick.login(login).await.unwrap() {
                LoginOutcome::Admitted(session) => admitted.push(session),
                other => panic!("{other}"),
            }
        }
        (kick, admitted)
    }

    /// Somebody keeps all rows locked from some time on: they can be read, and not written.
    #[derive(Clone, Debug)]
    struct Locked {
        records: Arc<dyn Records>,
        since: Arc<AtomicBool>,
    }

    #[async_trait]
    impl Records for Locked {
        fn backend(&self) -> &'static str {
            self.records.backend()
        }

        fn tells_ages(&self) -> bool {
            self.records.tells_ages()
        }

        async fn reopen(&self) -> Result<Arc<dyn Records>> {
            Ok(Arc::new(self.clone()))
        }

        async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
            self.records.get(key).await
        }

        async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
            self.records.get_many(keys).await
        }

        async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
            if self.since.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Unavailable, "the row is locked"));
            }
            self.records.put(key, value, expect).await
        }

        async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
            self.records.delete(key, expect).await
        }

        async fn scan(
            &self,
            prefix: &str,
            after: Option<&RecordKey>,
            limit: u32,
        ) -> Result<Vec<(RecordKey, Entry)>> {
            self.records.scan(prefix, after, limit).await
        }

        async fn close(&self) {}
    }

    /// Or one locked row would have every round compare all sessions.
    #[tokio::test]
    async fn an_account_that_cannot_be_written_does_not_pass_for_a_store_that_is_away() {
        let memory = MemoryStore::default();
        let records = Locked {
            records: memory.records(),
            since: Arc::default(),
        };
        let store = Store::new(memory.lock(), Arc::new(records.clone()));
        let (kick, sessions) = busy_node_on(store, 1).await;
        forget(&*records.records, &sessions).await;
        records.since.store(true, Ordering::Relaxed);
        let (own, mut rounds) = (kick.inner.own.now().unwrap(), Memory::default());
        kick.inner.round(&own, &mut rounds).await.unwrap();
        records.since.store(false, Ordering::Relaxed);
        kick.inner.round(&own, &mut rounds).await.unwrap();
        assert_named(&kick, &sessions).await;
    }

    async fn forget(records: &dyn Records, sessions: &[Session]) {
        for session in sessions {
            let key = session.uid().record().unwrap();
            let entry = records.get(&key).await.unwrap().unwrap();
            records.delete(&key, entry.version).await.unwrap();
        }
    }

    async fn assert_named(kick: &KickOut, sessions: &[Session]) {
        for session in sessions {
            let seen = kick.inner.directory.read(session.uid()).await.unwrap();
            assert!(seen.record.slot_of(session.key()).is_some());
        }
    }

    #[tokio::test]
    async fn after_the_store_was_away_every_session_is_compared() {
        let (kick, sessions, records) = busy_node(COMPARED + 476).await;
        let mut rounds = Memory::default();
        kick.inner.compare_sessions(&mut rounds).await.unwrap();
        forget(&*records, &sessions).await;
        rounds.store_was_away = true;
        kick.inner.compare_sessions(&mut rounds).await.unwrap();
        assert_named(&kick, &sessions).await;
    }

    #[tokio::test]
    async fn after_a_failover_that_nobody_noticed_every_session_is_compared() {
        let (kick, sessions, records) = busy_node(COMPARED + 476).await;
        let mut rounds = Memory::default();
        let own = kick.inner.own.now().unwrap();
        for _ in 0..2 {
            kick.inner.round(&own, &mut rounds).await.unwrap();
            rounds.store_was_away = false;
        }
        forget(&*records, &sessions).await;
        // A lease in another history.
        let other = MemoryStore::default();
        let locker = Store::new(other.lock(), other.records()).locker();
        let lease = locker.lock("node/n1").acquire().await.unwrap();
        let after = Incarnation {
            boot: own.boot,
            lease: lease.watch(),
        };
        kick.inner.round(&after, &mut rounds).await.unwrap();
        assert_named(&kick, &sessions).await;
    }

    #[tokio::test]
    async fn every_session_has_its_turn_within_a_lease() {
        for (sessions, within) in [(COMPARED, 1), (COMPARED * 3 + 100, PASS)] {
            let (kick, sessions, records) = busy_node(sessions).await;
            let mut rounds = Memory::default();
            for _ in 0..within {
                kick.inner.compare_sessions(&mut rounds).await.unwrap();
            }
            forget(&*records, &sessions).await;
            for _ in 0..within {
                kick.inner.compare_sessions(&mut rounds).await.unwrap();
            }
            assert_named(&kick, &sessions).await;
        }
    }
}
