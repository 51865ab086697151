use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{Deleted, Entry, ErrorKind, Expect, Records, Store, Written};
use distlock_memory::Memory as MemoryStore;

use super::{
    compare::{COMPARED, PASS},
    *,
};
use crate::{
    Timers,
    flow::KickOut,
    ident::{Class, Device, NodeId},
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
