//! Nodes whose locks are in another store than their records.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_conformance::{LockLayer, RecordsLayer};
use distlock_core::{
    DistLock, Entry, Epoch, Error, ErrorKind, Lease, LockInfo, LockName, LossReason, RecordKey,
    Records, Renewal, Renewed, Result, Store, sync::Mutex,
};
use distlock_kickout::{Code, LoginOutcome, Session, Timers, Transition, Uid};
use distlock_memory::Memory;

use crate::cluster::{Cluster, Node, eventually, login, notice_of, timers, uid};

/// Nodes with their records in the memory of the cluster, and their locks in another one.
struct TwoStores {
    cluster: Cluster,
    locks: Memory,
    faults: Layer,
}

/// The locks of one of the two stores, with the faults that a test wants.
#[derive(Clone, Debug)]
struct Layer {
    lock: Arc<dyn DistLock>,
    /// The epoch that the store tells, in place of its own.
    epoch: Arc<Mutex<Option<Epoch>>>,
    /// If true, no lock is granted, and held locks stay held.
    is_full: Arc<AtomicBool>,
}

impl Layer {
    fn over(memory: &Memory) -> Self {
        Self {
            lock: memory.lock(),
            epoch: Arc::default(),
            is_full: Arc::default(),
        }
    }
}

#[async_trait]
impl LockLayer for Layer {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock)
    }

    async fn before(&self, method: &'static str) -> Result<()> {
        let grants = ["try_acquire", "contend", "hand_over"];
        if self.is_full.load(Ordering::SeqCst) && grants.contains(&method) {
            return Err(Error::new(ErrorKind::LimitExceeded, "the store is full"));
        }
        Ok(())
    }

    /// This store does not record forced releases, so a lock that was freed by one looks deleted.
    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        Ok(match self.lock.renew(lease, renewal).await? {
            Renewed::NotHeld(LossReason::ForceReleased) => Renewed::NotHeld(LossReason::Removed),
            renewed => renewed,
        })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        let mut info = self.lock.inspect(name).await?;
        if let Some(epoch) = &*self.epoch.lock() {
            info.epoch = Some(epoch.clone());
        }
        Ok(info)
    }

    async fn close(&self) {}
}

/// Records of a store that fails over while it reads the record of an account.
#[derive(Clone, Debug)]
struct FailsOver {
    records: Arc<dyn Records>,
    /// The epoch that the locks beside the records tell.
    epoch: Arc<Mutex<Option<Epoch>>>,
    is_due: Arc<AtomicBool>,
}

#[async_trait]
impl RecordsLayer for FailsOver {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        if key.as_str().starts_with("sess/") && self.is_due.swap(false, Ordering::SeqCst) {
            // Whatever the node asks beside this read is answered by the old primary.
            for _ in 0..16 {
                tokio::task::yield_now().await;
            }
            lose(&*self.records, key).await;
            *self.epoch.lock() = Some(Epoch::new("after the failover"));
        }
        self.records.get(key).await
    }
}

/// Deletes a record, as a failover may lose it.
async fn lose(records: &dyn Records, key: &RecordKey) {
    let entry = records.get(key).await.unwrap().unwrap();
    records.delete(key, entry.version).await.unwrap();
}

impl TwoStores {
    fn new() -> Self {
        let (cluster, locks) = (Cluster::new(), Memory::default());
        let faults = Layer::over(&locks);
        Self {
            cluster,
            locks,
            faults,
        }
    }

    /// A node, and the layer over the locks of the store that keeps its records.
    async fn start_node(&self, name: &str, timers: &Timers) -> (Node, Layer) {
        let of_records = Layer::over(&self.cluster.memory);
        let records = self.cluster.memory.records();
        let node = self.start_node_on(name, timers, &of_records, records).await;
        (node, of_records)
    }

    async fn start_node_on(
        &self,
        name: &str,
        timers: &Timers,
        of_records: &Layer,
        records: Arc<dyn Records>,
    ) -> Node {
        let records = Store::new(of_records.clone().into_lock(), records);
        let locks = Store::new(self.faults.clone().into_lock(), self.locks.records());
        let store = locks.with_records_of(&records);
        let with = |builder: distlock_kickout::Builder| builder.timers(timers.clone());
        self.cluster.start_node_on(name, store, with).await
    }

    /// Deletes the record of an account.
    async fn lose_record(&self, uid: &Uid) {
        let key = RecordKey::new(format!("sess/{uid}")).unwrap();
        lose(&*self.cluster.memory.records(), &key).await;
    }
}

/// Logs a device in as soon as the node grants logins again.
async fn admit_later(node: &Node, uid: &Uid, device: &str) -> Session {
    let admitted: Mutex<Option<Session>> = Mutex::default();
    eventually("the login to be granted", || async {
        match node.login(uid, device).await {
            LoginOutcome::Admitted(session) => *admitted.lock() = Some(session),
            LoginOutcome::Busy { .. } => {}
            other => panic!("{other:?}"),
        }
        admitted.lock().is_some()
    })
    .await;
    admitted.into_inner().unwrap()
}

#[tokio::test]
async fn a_login_ends_the_old_session_with_locks_and_records_in_two_stores() {
    let stores = TwoStores::new();
    let (n1, _) = stores.start_node("n1", &timers()).await;
    let (n2, _) = stores.start_node("n2", &timers()).await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let pc = n2.admit(&anna, "pc").await;
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
    assert!(pc.check().is_ok() && pc.generation() > phone.generation());
    let record = stores.cluster.record(&anna).await.unwrap();
    assert!(record.slot_of(pc.key()).is_some());
    let beside = stores.locks.records().scan("", None, 10).await.unwrap();
    assert!(beside.is_empty(), "records beside the locks: {beside:?}");
    let elsewhere = stores.cluster.memory.lock();
    let leases = elsewhere.list("", None, 10).await.unwrap();
    assert!(leases.is_empty(), "locks beside the records: {leases:?}");
}

/// The locks know nothing of the failover, so their epoch stays.
#[tokio::test]
async fn after_a_failover_of_the_records_no_login_overlooks_a_lost_session() {
    let stores = TwoStores::new();
    let (n1, of_n1) = stores.start_node("n1", &timers()).await;
    let (n2, of_n2) = stores.start_node("n2", &timers()).await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    stores.lose_record(&anna).await;
    for layer in [&of_n1, &of_n2] {
        *layer.epoch.lock() = Some(Epoch::new("after the failover"));
    }
    let early = n2.login(&anna, "pc").await;
    assert!(matches!(early, LoginOutcome::Busy { .. }), "{early:?}");
    eventually("the session to be listed again", || async {
        let record = stores.cluster.record(&anna).await;
        record.is_some_and(|record| record.slot_of(phone.key()).is_some())
    })
    .await;
    assert!(phone.check().is_ok());
    let pc = admit_later(&n2, &anna, "pc").await;
    assert_eq!(notice_of(&phone).await.code, Code::Superseded);
    assert!(pc.check().is_ok());
}

#[tokio::test]
async fn a_failover_of_the_records_in_the_middle_of_a_login_is_noticed_by_that_login() {
    let stores = TwoStores::new();
    let (n1, _) = stores.start_node("n1", &timers()).await;
    let of_records = Layer::over(&stores.cluster.memory);
    let fails_over = FailsOver {
        records: stores.cluster.memory.records(),
        epoch: Arc::clone(&of_records.epoch),
        is_due: Arc::default(),
    };
    let records = fails_over.clone().into_records();
    let n2 = stores
        .start_node_on("n2", &timers(), &of_records, records)
        .await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    fails_over.is_due.store(true, Ordering::SeqCst);
    let early = n2.login(&anna, "pc").await;
    assert!(matches!(early, LoginOutcome::Busy { .. }), "{early:?}");
    assert!(phone.check().is_ok());
}

/// Redis keeps its epoch when its keys are deleted, and the roster is in the other store.
#[tokio::test]
async fn after_the_loss_of_all_leases_nothing_is_granted_for_one_node_lease() {
    let stores = TwoStores::new();
    let mut timers = timers();
    timers.node_lease = Duration::from_secs(5);
    let (mut n1, _) = stores.start_node("n1", &timers).await;
    let anna = uid("anna");
    let phone = n1.admit(&anna, "phone").await;
    let name = LockName::new("node/n1").unwrap();
    let lock = stores.locks.lock();
    let held = lock.inspect(&name).await.unwrap().held.unwrap();
    lock.force_release(&name, held.token.unwrap())
        .await
        .unwrap();
    n1.next_event(Transition::NodeFenced).await;
    n1.next_event(Transition::NodeUp).await;
    assert_eq!(notice_of(&phone).await.code, Code::NodeFenced);
    let early = n1.login(&anna, "phone").await;
    assert!(matches!(early, LoginOutcome::Busy { .. }), "{early:?}");
    assert!(admit_later(&n1, &anna, "phone").await.check().is_ok());
}

#[tokio::test]
async fn a_store_of_locks_that_refuses_changes_is_told_from_that_of_the_records() {
    let stores = TwoStores::new();
    let (n1, _) = stores.start_node("n1", &timers()).await;
    let phone = n1.admit(&uid("anna"), "phone").await;
    assert!(n1.kick.store_takes_changes());
    stores.faults.is_full.store(true, Ordering::SeqCst);
    let error = n1.kick.login(login(&uid("otto"), "pc")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert!(!n1.kick.store_takes_changes());
    // This changes a record, which says nothing of the locks.
    phone.logout().await;
    assert!(!n1.kick.store_takes_changes());
    stores.faults.is_full.store(false, Ordering::SeqCst);
    // No login tells the node.
    eventually("the node to notice", || async {
        n1.kick.store_takes_changes()
    })
    .await;
    eventually("the probe to be released", || async {
        let name = LockName::new("probe/n1").unwrap();
        stores
            .locks
            .lock()
            .inspect(&name)
            .await
            .unwrap()
            .held
            .is_none()
    })
    .await;
}
