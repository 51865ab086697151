use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{
    Deleted, Entry, Error, ErrorKind, Expect, ManualClock, RecordKey, Records, Result, Store,
    Version, Written, sync::Mutex,
};
use distlock_memory::Memory as MemoryStore;
use uuid::Uuid;

use super::{MIN_COMPARED, ROUNDS_PER_PASS, RoundState};
use crate::{
    directory::accounts::CONCURRENT_CHANGES,
    flow::kick_out::KickOut,
    model::{
        ident::{Class, Device, NodeId, Uid},
        login::Login,
        record::Ban,
        settings::Timers,
    },
    node::{login::LoginOutcome, session::Session},
    state::incarnation::{Incarnation, Lease},
};

/// A node with this number of sessions. Its node lease is so long that the node's own rounds start
/// only after the test, so only the test runs rounds.
async fn busy_node(sessions: usize) -> (KickOut, Vec<Session>, Arc<dyn Records>) {
    let memory = MemoryStore::default();
    let records = memory.records();
    let store = Store::new(memory.lock(), Arc::clone(&records));
    let (kick, admitted) = busy_node_on(store, sessions).await;
    (kick, admitted, records)
}

async fn busy_node_on(store: Store, sessions: usize) -> (KickOut, Vec<Session>) {
    let kick = node_on(store, "n1").await;
    let admitted = admit_many(&kick, sessions).await;
    (kick, admitted)
}

async fn node_on(store: Store, name: &str) -> KickOut {
    let long = Duration::from_secs(3600);
    let timers = Timers {
        node_lease: long,
        sweep: long,
        ..Timers::default()
    };
    let builder = KickOut::builder(store, NodeId::new(name).unwrap()).timers(timers);
    builder.start().await.unwrap()
}

async fn admit_many(kick: &KickOut, sessions: usize) -> Vec<Session> {
    let mut admitted = Vec::new();
    for number in 0..sessions {
        let uid = Uid::new(format!("u{number}")).unwrap();
        admitted.push(admit(kick, uid).await);
    }
    admitted
}

async fn admit(kick: &KickOut, uid: Uid) -> Session {
    let login = Login::new(uid, Device::new("phone").unwrap(), Class::none());
    match kick.login(login).await.unwrap() {
        LoginOutcome::Admitted(session) => session,
        other => panic!("{other}"),
    }
}

/// Records that a test can lock. Reads succeed, and writes fail, hang or take long.
#[derive(Clone, Debug)]
struct LockableRecords {
    records: Arc<dyn Records>,
    state: Arc<LockState>,
}

#[derive(Debug, Default)]
struct LockState {
    writes: Mutex<Writes>,
    /// If true, reads of single records fail.
    unreadable: AtomicBool,
    /// Number of writes since the records were locked.
    tried: AtomicUsize,
}

#[derive(Clone, Debug, Default)]
enum Writes {
    #[default]
    Done,
    Refused,
    HeldUp,
    /// Each write takes this much time.
    Slow(Duration, Arc<ManualClock>),
}

impl LockableRecords {
    fn new(memory: &MemoryStore) -> Self {
        Self {
            records: memory.records(),
            state: Arc::default(),
        }
    }

    fn set_writes(&self, writes: Writes) {
        *self.state.writes.lock() = writes;
    }

    fn blocked_writes(&self) -> usize {
        self.state.tried.load(Ordering::Relaxed)
    }

    /// Applies the locked state to a write.
    async fn apply_lock(&self) -> Result<()> {
        let writes = self.state.writes.lock().clone();
        if matches!(writes, Writes::Done) {
            return Ok(());
        }
        self.state.tried.fetch_add(1, Ordering::Relaxed);
        match writes {
            Writes::HeldUp => std::future::pending().await,
            Writes::Slow(time, clock) => {
                clock.advance(time);
                return Ok(());
            }
            Writes::Done | Writes::Refused => {}
        }
        Err(Error::new(ErrorKind::Unavailable, "the row is locked"))
    }
}

#[async_trait]
impl RecordsLayer for LockableRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        if self.state.unreadable.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
        self.records.get(key).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.apply_lock().await?;
        self.records.put(key, value, expect).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.apply_lock().await?;
        self.records.delete(key, expect).await
    }
}

/// If this failure counted as a failure of the store, a single locked row would make every round
/// compare all sessions.
#[tokio::test]
async fn a_failed_write_of_one_account_does_not_count_as_an_unreachable_store() {
    let memory = MemoryStore::default();
    let records = LockableRecords::new(&memory);
    let store = Store::new(memory.lock(), records.clone().into_records());
    let (kick, sessions) = busy_node_on(store, 1).await;
    delete_records(&*records.records, &sessions).await;
    records.set_writes(Writes::Refused);
    let (own, mut state) = (
        kick.node.this.current_incarnation().unwrap(),
        RoundState::default(),
    );
    kick.node.reconcile(&own, &mut state).await.unwrap();
    records.set_writes(Writes::Done);
    kick.node.reconcile(&own, &mut state).await.unwrap();
    assert_listed(&kick, &sessions).await;
}

/// In a short outage of the store, the read of one account may be the only request that fails. The
/// store may have lost writes of other nodes in that outage, so the round has to fail.
#[tokio::test]
async fn a_failed_read_of_one_account_counts_as_an_unreachable_store() {
    let memory = MemoryStore::default();
    let records = LockableRecords::new(&memory);
    let store = Store::new(memory.lock(), records.clone().into_records());
    let (kick, sessions) = busy_node_on(store, 1).await;
    let (node, session) = (&kick.node, &sessions[0]);
    let own = node.this.current_incarnation().unwrap();
    // The ban record shows whether the ban still holds, so this round has to read it.
    let banned = node.directory.update(session.uid(), |record| {
        record.ban = Some(Ban {
            id: Uuid::nil(),
            reason: None,
            ttl_ms: None,
            until_ms: None,
        });
        record.remove(session.key()).is_some()
    });
    banned.await.unwrap();
    records.state.unreadable.store(true, Ordering::Relaxed);
    let round = node.reconcile(&own, &mut RoundState::default()).await;
    assert_eq!(round.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(session.check().is_ok());
}

#[tokio::test]
async fn a_round_stops_after_a_batch_of_which_every_write_failed() {
    let memory = MemoryStore::default();
    let records = LockableRecords::new(&memory);
    let store = Store::new(memory.lock(), records.clone().into_records());
    let (kick, sessions) = busy_node_on(store, CONCURRENT_CHANGES * 3).await;
    delete_records(&*records.records, &sessions).await;
    records.set_writes(Writes::Refused);
    let (own, mut state) = (
        kick.node.this.current_incarnation().unwrap(),
        RoundState::default(),
    );
    let failed = kick.node.reconcile(&own, &mut state).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(records.blocked_writes(), CONCURRENT_CHANGES);
    records.set_writes(Writes::Done);
    kick.node.reconcile(&own, &mut state).await.unwrap();
    assert_listed(&kick, &sessions).await;
}

#[tokio::test]
async fn a_round_with_slow_writes_stops_when_the_next_round_is_due() {
    let clock = Arc::new(ManualClock::new());
    let memory = MemoryStore::new(clock.clone());
    let records = LockableRecords::new(&memory);
    let store = Store::with_clock(memory.lock(), records.clone().into_records(), clock.clone());
    let kick = node_on(store, "n1").await;
    let sessions = admit_many(&kick, CONCURRENT_CHANGES * 3).await;
    delete_records(&*records.records, &sessions).await;
    let times = u32::try_from(CONCURRENT_CHANGES).unwrap();
    records.set_writes(Writes::Slow(
        kick.node.settings.timers.reconcile_period() / times,
        clock,
    ));
    let (own, mut state) = (
        kick.node.this.current_incarnation().unwrap(),
        RoundState::default(),
    );
    let failed = kick.node.reconcile(&own, &mut state).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(records.blocked_writes(), CONCURRENT_CHANGES);
    records.set_writes(Writes::Done);
    state.store_was_away = true;
    kick.node.reconcile(&own, &mut state).await.unwrap();
    assert_listed(&kick, &sessions).await;
}

#[tokio::test]
async fn a_superseded_session_gets_its_notice_while_writes_hang() {
    let memory = MemoryStore::default();
    let records = LockableRecords::new(&memory);
    let store = Store::new(memory.lock(), records.clone().into_records());
    let (kick, mut sessions) = busy_node_on(store, CONCURRENT_CHANGES * 2).await;
    // The session that is compared last loses its slot; the other sessions have to be written
    // again.
    sessions.sort_by_key(|session| session.key().session);
    let superseded = sessions.pop().unwrap();
    delete_records(&*records.records, &sessions).await;
    let elsewhere = node_on(Store::new(memory.lock(), memory.records()), "n2").await;
    let _newer = admit(&elsewhere, superseded.uid().clone()).await;
    let (node, mut state) = (&kick.node, RoundState::default());
    let own = node.this.current_incarnation().unwrap();
    records.set_writes(Writes::HeldUp);
    let told = async {
        superseded.superseded().await;
        // The writes do not wait for each other.
        while records.blocked_writes() < CONCURRENT_CHANGES {
            tokio::task::yield_now().await;
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(20), told);
    tokio::select! {
        told = told => told.expect("a write keeps it from being told"),
        _ = node.reconcile(&own, &mut state) => unreachable!("nothing can be written"),
    }
}

/// Deletes the records of these sessions' accounts, like a store that loses data.
async fn delete_records(records: &dyn Records, sessions: &[Session]) {
    for session in sessions {
        let key = session.uid().record_key().unwrap();
        let entry = records.get(&key).await.unwrap().unwrap();
        records.delete(&key, entry.version).await.unwrap();
    }
}

/// Fails unless the directory names all these sessions.
async fn assert_listed(kick: &KickOut, sessions: &[Session]) {
    for session in sessions {
        let seen = kick.node.directory.read(session.uid()).await.unwrap();
        assert!(seen.record.slot_of(session.key()).is_some());
    }
}

/// Compares the next sessions, and makes the writes that the comparison needs.
async fn compare_and_write(kick: &KickOut, state: &mut RoundState) {
    let node = &kick.node;
    node.compare_sessions(state).await.unwrap();
    let (left, written) = node.write_all(mem::take(&mut state.writes)).await;
    assert!(left.is_empty());
    written.unwrap();
}

#[tokio::test]
async fn after_a_failed_round_every_session_is_compared() {
    let (kick, sessions, records) = busy_node(MIN_COMPARED + 476).await;
    let mut state = RoundState::default();
    compare_and_write(&kick, &mut state).await;
    delete_records(&*records, &sessions).await;
    state.store_was_away = true;
    compare_and_write(&kick, &mut state).await;
    assert_listed(&kick, &sessions).await;
}

#[tokio::test]
async fn after_a_failover_without_a_failed_request_every_session_is_compared() {
    let (kick, sessions, records) = busy_node(MIN_COMPARED + 476).await;
    let mut state = RoundState::default();
    let own = kick.node.this.current_incarnation().unwrap();
    for _ in 0..2 {
        kick.node.reconcile(&own, &mut state).await.unwrap();
        state.store_was_away = false;
    }
    delete_records(&*records, &sessions).await;
    // This lease is from another store, so it has another epoch.
    let other = MemoryStore::default();
    let locker = Store::new(other.lock(), other.records()).locker();
    let lease = locker.lock("node/n1").acquire().await.unwrap();
    let after = Incarnation {
        boot: own.boot,
        lease: Lease::new(kick.node.clock.clone(), lease.watch()),
    };
    kick.node.reconcile(&after, &mut state).await.unwrap();
    assert_listed(&kick, &sessions).await;
}

#[tokio::test]
async fn every_session_is_compared_within_one_node_lease() {
    for (sessions, within) in [(MIN_COMPARED, 1), (MIN_COMPARED * 3 + 100, ROUNDS_PER_PASS)] {
        let (kick, sessions, records) = busy_node(sessions).await;
        let mut state = RoundState::default();
        for _ in 0..within {
            compare_and_write(&kick, &mut state).await;
        }
        delete_records(&*records, &sessions).await;
        for _ in 0..within {
            compare_and_write(&kick, &mut state).await;
        }
        assert_listed(&kick, &sessions).await;
    }
}
