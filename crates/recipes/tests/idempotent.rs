//! Effects that happen once per key, and the fence check before a step.

use std::{cell::Cell, future::pending, sync::Arc};

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{
    Epoch, Error, ErrorKind, Expect, Fence, FencingToken, RecordKey, Records, Result, Store,
    Version, Written, sync::Mutex,
};
use distlock_memory::Memory;
use distlock_recipes::{
    RecordsFence,
    idempotent::{Idempotent, Once},
};
use futures_util::FutureExt as _;
use uuid::Uuid;

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn store(memory: &Memory) -> Store {
    Store::new(memory.lock(), memory.records())
}

#[tokio::test]
async fn an_effect_happens_once_and_everybody_gets_its_result() {
    let memory = Memory::default();
    let paid = Cell::new(0);
    for (number, expected) in [
        (1, Once::Now(42)),
        (1, Once::Before(42)),
        (2, Once::Before(42)),
    ] {
        let once = Idempotent::new(&store(&memory));
        let pay = async || {
            paid.set(paid.get() + 1);
            Ok(42)
        };
        let got = once.once("order-7", token(number), pay).await.unwrap();
        assert_eq!(got, expected);
    }
    assert_eq!(paid.get(), 1);
}

#[tokio::test]
async fn an_effect_that_failed_is_made_by_the_next_call() {
    let memory = Memory::default();
    let once = Idempotent::new(&store(&memory));
    let fails = async || Err::<u32, _>(Error::new(ErrorKind::Unavailable, "no route"));
    let error = once.once("order-7", token(1), fails).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let got = once
        .once("order-7", token(1), async || Ok(1))
        .await
        .unwrap();
    assert_eq!(got.into_inner(), 1);
}

/// A caller dies after it has recorded the beginning of its effect, and before the end.
#[tokio::test]
async fn an_effect_without_an_end_has_an_unknown_outcome() {
    let memory = Memory::default();
    let once = Idempotent::new(&store(&memory));
    let dies = once.once("order-7", token(5), async || pending::<Result<u32>>().await);
    assert!(dies.now_or_never().is_none());
    for number in [5, 6] {
        let error = once
            .once("order-7", token(number), async || Ok(1))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
        assert!(error.to_string().contains("under token 5"), "{error}");
    }
    let error = once
        .once("order-7", token(4), async || Ok(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "an earlier holder: {error}");
    let again = once.retry_unfinished();
    let got = again
        .once("order-7", token(6), async || Ok(1))
        .await
        .unwrap();
    assert_eq!(got, Once::Now(1));
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_named_in_the_error() {
    let memory = Memory::default();
    let once = Idempotent::new(&store(&memory));
    once.once("text", token(1), async || Ok("seven".to_owned()))
        .await
        .unwrap();
    let error = once
        .once("text", token(1), async || Ok(7_u32))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("once/text"), "{error}");
    let key = RecordKey::new("once/newer").unwrap();
    let newer = br#"{"v":2,"token":1,"id":"00000000-0000-0000-0000-000000000000","state":"begun"}"#;
    memory
        .records()
        .put(&key, newer, Expect::Absent)
        .await
        .unwrap();
    let error = once
        .once("newer", token(1), async || Ok(7_u32))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("format 2"), "{error}");
}

/// A layer that loses the answer to one write. The number is the number of that write, counted from
/// 1.
#[derive(Clone, Debug)]
struct LosesOneReply(Arc<dyn Records>, Arc<Mutex<u32>>);

#[async_trait]
impl RecordsLayer for LosesOneReply {
    fn below(&self) -> &Arc<dyn Records> {
        &self.0
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        let written = self.0.put(key, value, expect).await;
        let mut left = self.1.lock();
        *left = left.wrapping_sub(1);
        if *left == 0 {
            return Err(Error::new(ErrorKind::OutcomeUnknown, "the reply was lost"));
        }
        written
    }
}

/// The first write records the beginning of the effect, the second one its end.
#[tokio::test]
async fn a_write_whose_reply_was_lost_is_recognised() {
    for write in [1, 2] {
        let memory = Memory::default();
        let records = LosesOneReply(memory.records(), Arc::new(Mutex::new(write)));
        let once = Idempotent::new(&Store::new(memory.lock(), records.into_records()));
        let got = once
            .once("order-7", token(1), async || Ok(1))
            .await
            .unwrap();
        assert_eq!(got, Once::Now(1));
        let got = once
            .once("order-7", token(2), async || Ok(2))
            .await
            .unwrap();
        assert_eq!(got, Once::Before(1));
    }
}

#[tokio::test]
async fn an_effect_without_a_result_happens_once_as_well() {
    let memory = Memory::default();
    let once = Idempotent::new(&store(&memory));
    for expected in [Once::Now(()), Once::Before(())] {
        let got = once
            .once("order-7", token(1), async || Ok(()))
            .await
            .unwrap();
        assert_eq!(got, expected);
    }
}

/// The earlier holder was paused. Meanwhile the later holder began the effect, and it failed.
#[tokio::test]
async fn an_earlier_holder_begins_nothing_after_a_later_one_has_failed() {
    let memory = Memory::default();
    let once = Idempotent::new(&store(&memory));
    let fails = async || Err::<u32, _>(Error::new(ErrorKind::Unavailable, "no route"));
    once.once("order-7", token(6), fails).await.unwrap_err();
    let error = once
        .once("order-7", token(5), async || Ok(1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let got = once
        .once("order-7", token(6), async || Ok(1))
        .await
        .unwrap();
    assert_eq!(got, Once::Now(1));
}

#[tokio::test]
async fn a_fence_refuses_earlier_holders_until_it_is_reset() {
    let memory = Memory::default();
    let gate = RecordsFence::new(&store(&memory));
    let fence = |number| Fence::new(token(number), Uuid::nil(), Epoch::new(""));
    for number in [7, 7, 8] {
        gate.admit("backup", &fence(number)).await.unwrap();
    }
    let refused = gate.admit("backup", &fence(7)).await.unwrap_err();
    assert!(refused.refusal().is_some(), "{refused}");
    gate.admit("other", &fence(1)).await.unwrap();
    assert_eq!(gate.highest("backup").await.unwrap(), Some(fence(8)));
    let records = LosesOneReply(memory.records(), Arc::new(Mutex::new(1)));
    let unsure = RecordsFence::new(&Store::new(memory.lock(), records.into_records()));
    unsure.admit("backup", &fence(9)).await.unwrap();
    gate.reset("backup").await.unwrap();
    assert_eq!(gate.highest("backup").await.unwrap(), None);
    gate.admit("backup", &fence(1)).await.unwrap();
    let key = RecordKey::new("fence/backup").unwrap();
    let entry = memory.records().get(&key).await.unwrap().unwrap();
    let garbage: Version = entry.version;
    memory
        .records()
        .put(&key, b"?", Expect::Version(garbage))
        .await
        .unwrap();
    let error = gate.admit("backup", &fence(2)).await.unwrap_err();
    assert!(
        error.refusal().is_none(),
        "it never counts as nobody seen: {error}"
    );
}
