use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, DistLock as _, ErrorKind, Expect, HolderLabel, LockName, ManualClock,
    OwnerId, RecordKey, Result, Ttl,
};
use distlock_kv::KvLock;
use distlock_memory::Memory;

use crate::text::is_bounded;

/// Checks the value of a lock over records. For every value, a lock that somebody may hold must be
/// held or corrupt, and never free.
pub fn kv_values(data: &[u8]) {
    let clock = ManualClock::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("no runtime: {error}"));
    let checked = runtime.block_on(check(data, &clock));
    checked.unwrap_or_else(|error| panic!("{error:?}"));
}

async fn check(data: &[u8], clock: &ManualClock) -> Result<()> {
    let memory = Memory::new(Arc::new(clock.clone()));
    let (records, name) = (memory.records(), LockName::new("a")?);
    let key = RecordKey::new("lock/a")?;
    if records.put(&key, data, Expect::Absent).await.is_err() {
        return Ok(()); // The store refuses a record above its size limit.
    }
    let lock = KvLock::new(records)?;
    let ttl = Ttl::from_millis(1000)?;
    let request = AcquireRequest::new(name, OwnerId::new(), ttl, HolderLabel::new("fuzzer")?);
    let seen = lock.inspect(&request.name).await;
    match lock.try_acquire(&request).await {
        Ok(Attempt::Acquired(_)) => panic!("what somebody else holds is granted"),
        Ok(Attempt::Busy(holder)) => assert_eq!(seen?.held, holder),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            is_bounded(&error, 0);
            let seen = seen.map_err(|error| error.kind());
            assert_eq!(seen, Err(ErrorKind::Corrupt));
            // The passage of time must not change the answer for a corrupt value.
            clock.advance(Duration::from_secs(3600 * 24 * 365));
            let later = lock.try_acquire(&request).await;
            assert!(later.is_err_and(|error| error.kind() == ErrorKind::Corrupt));
            return Ok(());
        }
    }
    // After ten years every lease has ended. The lock is free then, and its last token is still
    // known.
    clock.advance(Duration::from_secs(3600 * 24 * 365 * 10));
    let free = lock.inspect(&request.name).await?;
    assert!(free.held.is_none() && free.last_token.is_some(), "{free:?}");
    Ok(())
}
