//! Strangers cost the store nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Contender, Deleted, DistLock, Entry, Expect,
    FencingToken, Forced, Grant, HandOver, Health, Lease, LockInfo, LockName, RecordKey, Records,
    ReleaseOutcome, Renewal, Renewed, Result, Store, Version, Written,
};
use serde_json::json;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::net::{Net, login};

/// A store that counts what it is asked, apart from scans: those are the sweeper's.
#[derive(Clone, Debug)]
struct Counting {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    asked: Arc<AtomicU64>,
}

impl Counting {
    fn count(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl DistLock for Counting {
    fn capabilities(&self) -> &Capabilities {
        self.lock.capabilities()
    }

    async fn reopen(&self) -> Result<Arc<dyn DistLock>> {
        Ok(Arc::new(self.clone()))
    }

    async fn try_acquire(&self, request: &AcquireRequest) -> Result<Attempt<Grant>> {
        self.count();
        self.lock.try_acquire(request).await
    }

    async fn contend(&self, request: &AcquireRequest) -> Result<Box<dyn Contender>> {
        self.count();
        self.lock.contend(request).await
    }

    async fn renew(&self, lease: &Lease, renewal: &Renewal) -> Result<Renewed> {
        self.count();
        self.lock.renew(lease, renewal).await
    }

    async fn release(&self, lease: &Lease) -> Result<ReleaseOutcome> {
        self.count();
        self.lock.release(lease).await
    }

    async fn hand_over(&self, lease: &Lease, next: &AcquireRequest) -> Result<HandOver> {
        self.count();
        self.lock.hand_over(lease, next).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        self.count();
        self.lock.inspect(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Result<Vec<LockInfo>> {
        self.count();
        self.lock.list(prefix, after, limit).await
    }

    async fn force_release(&self, name: &LockName, expected: FencingToken) -> Result<Forced> {
        self.count();
        self.lock.force_release(name, expected).await
    }

    async fn health(&self) -> Result<Health> {
        self.count();
        self.lock.health().await
    }

    async fn close(&self) {}
}

#[async_trait]
impl Records for Counting {
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
        self.count();
        self.records.get(key).await
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.count();
        self.records.get_many(keys).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.count();
        self.records.put(key, value, expect).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.count();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_ask_nothing_of_the_store() {
    let net = Net::new();
    let counting = Arc::new(Counting {
        lock: net.memory.lock(),
        records: net.memory.records(),
        asked: Arc::default(),
    });
    let store = Store::new(counting.clone(), counting.clone());
    let n1 = net
        .node_over("n1", store, |config| {
            // Nothing of the node's own falls into the time of the test.
            config.node_lease = Duration::from_secs(3600);
            config.sweep = Duration::from_secs(3600);
        })
        .await;
    let before = counting.asked.load(Ordering::SeqCst);
    for _ in 0..20 {
        let mut crowd = Vec::new();
        for _ in 0..5 {
            crowd.push(TcpStream::connect(n1.listen).await.unwrap());
        }
        for mut stranger in crowd {
            // It may have been refused by now.
            let _ = stranger.write_all(b"GET /ws HTTP/1.1\r\n").await;
        }
        drop(n1.connect().await);
        for bad in [
            Message::text("garbage"),
            Message::text(json!({"type": "login", "token": "x", "device": "phone"}).to_string()),
            Message::text(json!({"type": "send", "to": "otto", "body": 1, "id": "m"}).to_string()),
        ] {
            let mut client = n1.connect().await;
            client.send_raw(bad).await;
            client.rest().await;
        }
    }
    assert_eq!(counting.asked.load(Ordering::SeqCst), before);
    let mut client = n1.connect().await;
    client.send(&login("anna", "phone")).await;
    assert_eq!(client.frame().await["type"], "login_ok");
    assert!(counting.asked.load(Ordering::SeqCst) > before);
}
