//! Creating, changing, reading and deleting records.

use distlock_core::{
    Deleted, ErrorKind, Expect, MAX_VALUE_BYTES, RecordKey, Records, Store, Written,
};
use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId, Uid};
use distlock_kv::KvLock;

use super::*;

fn key(text: &str) -> RecordKey {
    RecordKey::new(text).unwrap()
}

async fn put(
    records: &Arc<dyn Records>,
    text: &str,
    value: &[u8],
    expect: Expect,
) -> distlock_core::Version {
    match records.put(&key(text), value, expect).await.unwrap() {
        Written::Stored(version) => version,
        Written::Conflict => panic!("{text} was not as expected"),
    }
}

#[tokio::test]
async fn every_change_is_conditional_on_the_version() {
    let place = Place::new();
    let records = place.open().await.records();
    let (one, two) = (records.clone(), place.open().await.records());
    assert_eq!(one.get(&key("a")).await.unwrap(), None);
    let first = put(&one, "a", b"1", Expect::Absent).await;
    assert_eq!(
        two.put(&key("a"), b"2", Expect::Absent).await.unwrap(),
        Written::Conflict
    );
    let second = put(&two, "a", b"2", Expect::Version(first)).await;
    assert!(second > first);
    let stale = Expect::Version(first);
    assert_eq!(
        one.put(&key("a"), b"3", stale).await.unwrap(),
        Written::Conflict
    );
    assert_eq!(
        one.delete(&key("a"), first).await.unwrap(),
        Deleted::Conflict
    );
    let entry = one.get(&key("a")).await.unwrap().unwrap();
    assert_eq!((entry.version, &*entry.value), (second, &b"2"[..]));
    assert_eq!(two.delete(&key("a"), second).await.unwrap(), Deleted::Done);
    assert_eq!(one.get(&key("a")).await.unwrap(), None);
    assert_eq!(
        one.delete(&key("a"), second).await.unwrap(),
        Deleted::Conflict
    );
    let again = Expect::Version(second);
    assert_eq!(
        one.put(&key("a"), b"4", again).await.unwrap(),
        Written::Conflict
    );
    assert!(put(&one, "a", b"5", Expect::Absent).await > second);
}

#[tokio::test]
async fn versions_rise_after_a_delete_with_the_clock_set_back() {
    let place = Place::new();
    let (clock, shared) = manual();
    clock.advance(Duration::from_secs(3600));
    let store = place.open_at(shared).await;
    let records = store.records();
    let first = put(&records, "a", b"1", Expect::Absent).await;
    records.delete(&key("a"), first).await.unwrap();
    close(&store).await;
    let (_, earlier) = manual();
    let records = place.open_at(earlier).await.records();
    let next = put(&records, "a", b"2", Expect::Absent).await;
    assert_eq!(next.get(), first.get() + 1);
}

#[tokio::test]
async fn values_are_bytes_of_any_kind_up_to_the_limit() {
    let place = Place::new();
    let records = place.open().await.records();
    let large = vec![0xff; MAX_VALUE_BYTES];
    let values: [&[u8]; 5] = [b"", b"\0", b"text", &[0xff, 0xfe, 0], &large];
    // The writes are sent at the same time, so that they share batches.
    let keys: Vec<_> = (0..values.len()).map(|id| key(&format!("k{id}"))).collect();
    let puts = keys.iter().zip(values);
    let written = join_all(puts.map(|(key, value)| records.put(key, value, Expect::Absent))).await;
    let read = records.get_many(&keys).await.unwrap();
    for ((entry, written), value) in read.into_iter().zip(written).zip(values) {
        let entry = entry.expect("stored");
        assert_eq!(Written::Stored(entry.version), written.unwrap());
        assert_eq!(entry.value, value);
    }
    let error = records
        .put(&key("a"), &vec![0; MAX_VALUE_BYTES + 1], Expect::Absent)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[tokio::test]
async fn several_records_are_read_in_the_requested_order() {
    let place = Place::new();
    let records = place.open().await.records();
    put(&records, "a", b"1", Expect::Absent).await;
    put(&records, "b", b"2", Expect::Absent).await;
    let keys = [key("b"), key("x"), key("a"), key("b")];
    let found = records.get_many(&keys).await.unwrap();
    let values: Vec<_> = found
        .iter()
        .map(|entry| entry.as_ref().map(|entry| &*entry.value))
        .collect();
    assert_eq!(
        values,
        [Some(&b"2"[..]), None, Some(&b"1"[..]), Some(&b"2"[..])]
    );
    assert_eq!(records.get_many(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn the_age_of_a_record_comes_from_the_clock_since_boot() {
    let place = Place::new();
    let (clock, shared) = manual();
    let records = place.open_at(shared).await.records();
    assert!(records.tells_ages());
    put(&records, "a", b"1", Expect::Absent).await;
    clock.advance(Duration::from_secs(90));
    let entry = records.get(&key("a")).await.unwrap().unwrap();
    assert_eq!(entry.age, Some(Duration::from_secs(90)));
    place.reboot().await;
    let entry = records.get(&key("a")).await.unwrap().unwrap();
    assert_eq!(entry.age, None, "how long it was off is not known");
    put(&records, "a", b"2", Expect::Version(entry.version)).await;
    let entry = records.get(&key("a")).await.unwrap().unwrap();
    assert_eq!(entry.age, Some(Duration::ZERO));
}

#[tokio::test]
async fn a_lock_over_records_is_free_after_a_reboot() {
    let place = Place::new();
    let records = place.open().await.records();
    let lock: Arc<dyn DistLock> = Arc::new(KvLock::new(Arc::clone(&records)).unwrap());
    let before = take(&lock, &request("a")).await;
    refused(&lock, &request("a")).await;
    place.reboot().await;
    let info = lock.inspect(&name("a")).await.unwrap();
    assert!(info.held.is_none(), "{info:?}");
    let after = take(&lock, &request("a")).await;
    assert!(after.token > before.token);
}

#[tokio::test]
async fn a_ban_stays_after_a_reboot() {
    let place = Place::new();
    let store = place.open().await;
    let node = NodeId::new("n1").unwrap();
    let flow = async || {
        let store = Store::new(store.lock(), store.records());
        KickOut::builder(store, node.clone()).start().await.unwrap()
    };
    let (anna, otto) = (Uid::new("anna").unwrap(), Uid::new("otto").unwrap());
    let login = |uid: &Uid| Login::new(uid.clone(), Device::new("pc").unwrap(), Class::none());
    let kick = flow().await;
    let day = Duration::from_secs(24 * 3600);
    kick.ban(&anna, Some(day), None).await.unwrap();
    kick.ban(&otto, Some(Duration::from_millis(1)), None)
        .await
        .unwrap();
    kick.shutdown().await;
    place.reboot().await;
    let kick = flow().await;
    let outcome = kick.login(login(&anna)).await.unwrap();
    assert!(matches!(outcome, LoginOutcome::Denied(_)), "{outcome:?}");
    assert!(
        kick.view(&anna)
            .await
            .unwrap()
            .record
            .unwrap()
            .ban
            .is_some()
    );
    // A ban that had ended does not come back.
    until("the short ban to end", async || {
        matches!(
            kick.login(login(&otto)).await,
            Ok(LoginOutcome::Admitted(_))
        )
    })
    .await;
    kick.shutdown().await;
}

#[tokio::test]
async fn a_scan_is_paged_and_in_byte_order() {
    let place = Place::new();
    let records = place.open().await.records();
    for text in [
        "node:b",
        "node:a",
        "node:%",
        "nodf",
        "node",
        "node:\u{10ffff}z",
    ] {
        put(&records, text, text.as_bytes(), Expect::Absent).await;
    }
    let gone = put(&records, "node:gone", b"", Expect::Absent).await;
    records.delete(&key("node:gone"), gone).await.unwrap();
    let keys = async |after: Option<&str>, limit| -> Vec<String> {
        let after = after.map(key);
        let found = records.scan("node:", after.as_ref(), limit).await.unwrap();
        found.iter().map(|(key, _)| key.to_string()).collect()
    };
    assert_eq!(
        keys(None, 9).await,
        ["node:%", "node:a", "node:b", "node:\u{10ffff}z"]
    );
    assert_eq!(keys(Some("node:%"), 2).await, ["node:a", "node:b"]);
    assert_eq!(records.scan("", None, 99).await.unwrap().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_counters_lose_nothing() {
    let place = Place::new();
    let stores = [place.open().await, place.open().await];
    let tasks: Vec<_> = (0..8)
        .map(|id| {
            let records = stores[id % 2].records();
            tokio::spawn(async move {
                let mut done = 0;
                while done < 20 {
                    let entry = records.get(&key("n")).await.unwrap();
                    let (count, expect) = match &entry {
                        None => (0, Expect::Absent),
                        Some(entry) => {
                            let text = std::str::from_utf8(&entry.value).unwrap();
                            (text.parse::<u32>().unwrap(), Expect::Version(entry.version))
                        }
                    };
                    let value = (count + 1).to_string();
                    match records.put(&key("n"), value.as_bytes(), expect).await {
                        Ok(Written::Stored(_)) => done += 1,
                        Ok(Written::Conflict) => {}
                        // On a slow disk, one handle may wait for the other handle for too long.
                        Err(error) => assert!(error.did_not_happen() && error.is_retryable()),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let entry = stores[0].records().get(&key("n")).await.unwrap().unwrap();
    assert_eq!(entry.value, b"160");
}

#[tokio::test]
async fn an_unreadable_record_is_corrupt() {
    let place = Place::new();
    let records = place.open().await.records();
    put(&records, "a", b"1", Expect::Absent).await;
    place
        .sql("PRAGMA ignore_check_constraints = ON; UPDATE distributed_record SET version = -3")
        .await;
    let error = records.get(&key("a")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
