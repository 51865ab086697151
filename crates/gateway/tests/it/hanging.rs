//! A store that stops answering.

use std::sync::Arc;

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{RecordKey, Records, Result, Store};
use serde_json::json;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;

use crate::net::Net;

/// Records that answer no call while they hang.
#[derive(Clone, Debug)]
struct HangingRecords {
    records: Arc<dyn Records>,
    hangs: watch::Sender<bool>,
}

#[async_trait]
impl RecordsLayer for HangingRecords {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn before(&self) -> Result<()> {
        // `self` holds the sender of the channel, so this wait cannot fail.
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
        Ok(())
    }
}

#[tokio::test]
async fn connections_end_while_the_store_hangs_and_no_logout_is_lost() {
    let net = Net::new();
    let (hangs, _) = watch::channel(false);
    let records = HangingRecords {
        records: net.memory.records(),
        hangs: hangs.clone(),
    };
    let store = Store::new(net.memory.lock(), records.into_records());
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
    // When a node shuts down, its connections do not wait for the store either, but the node waits
    // for the logouts.
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
