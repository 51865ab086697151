use distlock_core::{AcquireRequest, ErrorKind, FencingToken, HolderLabel, LockName, Meta};
use distlock_core::{OwnerId, RecordKey, Ttl};
use distlock_redis::fuzzing as redis;
use distlock_zookeeper::fuzzing as zookeeper;

use crate::text::is_bounded;

/// The offset of each part of a lock's value on Redis.
const TOKEN: usize = 33;
const MICROS: usize = 50;
const TICKET: usize = 67;

/// Checks values of locks and records on Redis. A value that is read must equal the stored value. A
/// value that cannot be read must give the error `Corrupt`, so that no such lock counts as free.
pub fn redis_values(data: &[u8]) {
    let (Ok(name), Ok(key)) = (LockName::new("a"), RecordKey::new("a")) else {
        unreachable!("these are names");
    };
    match redis::holder(&name, data, 1500) {
        Ok(holder) => {
            let label = match &holder.meta {
                Some(meta) => format!("{}\n{meta}", holder.holder),
                None => holder.holder.clone(),
            };
            let token = holder.token.map(FencingToken::get).unwrap_or_default();
            assert!(token > 0);
            assert_eq!(data[TOKEN..MICROS - 1], *format!("{token:016}").as_bytes());
            let ticket = if data[TICKET] == b'-' { 1 } else { 32 };
            assert_eq!(&data[TICKET + ticket + 1..], label.as_bytes());
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            is_bounded(&error, 0);
        }
    }
    match redis::entry(&key, data, u64::MAX) {
        Ok(entry) => {
            let version = entry.version.get();
            assert!(data.starts_with(format!("{version:016}").as_bytes()));
            assert_eq!(entry.value, data[32..]);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
}

/// Checks data and names of nodes in ZooKeeper: written data is read again unchanged, data of other
/// programs is shown, and two contenders agree on their order.
pub fn zookeeper_values(data: &[u8]) {
    let token = FencingToken::new(7).unwrap_or_else(|_| unreachable!("seven is a token"));
    let holder = zookeeper::parse_holder(data, token);
    assert_eq!(holder.token, Some(token));
    // The owner is new and random, so the fuzzer cannot know it, and no input may name it.
    let owner = OwnerId::new();
    assert!(!zookeeper::is_owned_by(data, owner));
    match zookeeper::decode_record(data.to_vec()) {
        Ok(Some(value)) => assert_eq!(value, data[1..]),
        Ok(None) => assert_eq!(data, [0]),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt),
    }
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    let (one, other) = text.split_once('\n').unwrap_or((text, ""));
    let order = (
        zookeeper::is_before(one, other),
        zookeeper::is_before(other, one),
    );
    // Two contenders must never both come before each other. Equal numbers have no order.
    assert!(order != (Some(true), Some(true)), "{one:?} {other:?}");
    let (Ok(name), Ok(ttl)) = (LockName::new("a"), Ttl::from_millis(1000)) else {
        unreachable!("these are a name and a TTL");
    };
    let Ok(label) = HolderLabel::new(one) else {
        return;
    };
    let mut request = AcquireRequest::new(name, owner, ttl, label);
    request.meta = Meta::new(other).ok();
    let written = zookeeper::encode_holder(&request);
    let read = zookeeper::parse_holder(&written, token);
    assert_eq!(read.holder, one);
    assert_eq!(
        read.meta.as_deref(),
        request.meta.as_ref().map(Meta::as_str)
    );
    assert!(zookeeper::is_owned_by(&written, owner));
}
