//! A store that stops answering.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_core::{Deleted, Entry, Expect, RecordKey, Records, Result, Store, Version, Written};
use serde_json::json;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;

use crate::net::Net;

/// Records that nobody gets an answer about while they hang.
#[derive(Clone, Debug)]
struct Hanging {
    records: Arc<dyn Records>,
    hangs: watch::Sender<bool>,
}

impl Hanging {
    async fn answers(&self) -> &dyn Records {
        // Its other end is in `self`.
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
        &*self.records
    }
}

#[async_trait]
impl Records for Hanging {
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
        self.answers().await.get(key).await
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.answers().await.get_many(keys).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.answers().await.put(key, value, expect).await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.answers().await.delete(key, expect).await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.answers().await.scan(prefix, after, limit).await
    }

    async fn close(&self) {
        self.records.close().await;
    }
}

#[tokio::test]
async fn connections_end_while_the_store_hangs_and_no_logout_is_lost() {
    let net = Net::new();
    let (hangs, _) = watch::channel(false);
    let records = Hanging {
        records: net.memory.records(),
        hangs: hangs.clone(),
    };
    let store = Store::new(net.memory.lock(), Arc::new(records));
    let mut n1 = net.node_over("n1", store, |_| {}).await;
    let (mut broken, _) = n1.login("anna", "phone").await;
    let (mut bye, _) = n1.login("otto", "phone").await;
    let (mut stays, _) = n1.login("emil", "phone").await;
    hangs.send_replace(true);
    broken.send_raw(Message::text("garbage")).await;
    bye.send(&json!({"type": "bye"})).await;
    for client in [&mut broken, &mut bye] {
        client.rest().await;
    }
    // Nor do those of a node that shuts down wait; it waits for the logouts.
    let ends = async {
        assert_eq!(stays.frame().await["type"], "offline");
        stays.rest().await;
        assert!(*hangs.borrow());
        hangs.send_replace(false);
    };
    tokio::join!(n1.shut_down(), ends);
    for uid in ["anna", "otto", "emil"] {
        let key = RecordKey::new(format!("sess/{uid}")).unwrap();
        let entry = net.memory.records().get(&key).await.unwrap().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        assert_eq!(record["slots"], json!({}), "{uid}");
    }
}
