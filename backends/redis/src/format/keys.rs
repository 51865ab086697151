//! Translates names of locks and records into keys, and keys back into names.
//!
//! Every key starts with the prefix and a hash tag. The hash of a name chooses one of [`BUCKETS`]
//! buckets, and the tag puts all keys of a bucket into one slot of a cluster. Only plain bytes of a
//! name appear in a key; all others are encoded. So a name can neither choose its slot nor act as a
//! glob.
//!
//! | key | value |
//! |---|---|
//! | `{b017}:counter` | the bucket's counter: its last token or version; never expires |
//! | `{b017}:lock:NAME` | a held lock |
//! | `{b017}:queue:NAME` | the store queue of this lock |
//! | `{b017}:queue-entry:NAME:WAITER` | one entry of the queue: the label of its waiter |
//! | `{b017}:record:KEY` | a record |
//! | `{b017}:record-index` | the keys of the bucket's records, in order |

use distlock_core::{LockName, RecordKey, decode, encode};

/// The number of buckets. This number is a part of the format: two clients with different numbers
/// would not exclude each other.
pub(crate) const BUCKETS: u16 = 1024;

/// The kind of a lock's key.
const LOCK: &str = "lock:";

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16384;

/// One of [`BUCKETS`] groups of names that share a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bucket(u16);

impl Bucket {
    /// Returns the bucket of a name: FNV-1a over its bytes, folded. The hash is a part of the
    /// format.
    pub(crate) fn of(name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let folded = (hash >> 32) ^ hash;
        // The remainder is below 1024, so the conversion cannot fail.
        Self(u16::try_from(folded % u64::from(BUCKETS)).unwrap_or(0))
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..BUCKETS).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the slot of a cluster that has the bucket's keys.
    pub(crate) fn slot(self) -> u16 {
        crc16(format!("b{:03x}", self.0).as_bytes()) % SLOTS
    }
}

/// The key of a lock or a record, and its bucket.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) key: String,
    pub(crate) bucket: Bucket,
}

/// The keys of one lock's store queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueKeys {
    pub(crate) queue: String,
    entries: String,
}

impl QueueKeys {
    /// Returns the key of one waiter's entry. An encoded name has no colon, so this key belongs to
    /// no other lock.
    pub(crate) fn entry(&self, waiter: &str) -> String {
        format!("{}{waiter}", self.entries)
    }
}

/// The keys of one store.
#[derive(Clone, Debug)]
pub(crate) struct KeyLayout {
    /// The prefix and the start of the tag: `distlock:{b`.
    head: Box<str>,
}

impl KeyLayout {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            head: format!("{prefix}{{b").into(),
        }
    }

    pub(crate) fn lock(&self, name: &LockName) -> Target {
        self.target(LOCK, name.as_str())
    }

    pub(crate) fn record(&self, key: &RecordKey) -> Target {
        self.target("record:", key.as_str())
    }

    /// Returns the keys of a lock's store queue.
    pub(crate) fn queue(&self, lock: &Target) -> QueueKeys {
        let kind = self.head.len() + "000}:".len();
        let (start, name) = (&lock.key[..kind], &lock.key[kind + LOCK.len()..]);
        QueueKeys {
            queue: format!("{start}queue:{name}"),
            entries: format!("{start}queue-entry:{name}:"),
        }
    }

    /// Writes the key of a bucket's counter into `key`.
    pub(crate) fn counter(&self, bucket: Bucket, key: &mut Vec<u8>) {
        key.clear();
        self.push_head(key, bucket, "counter");
    }

    /// Writes the key of a bucket's index of records into `key`.
    pub(crate) fn index(&self, bucket: Bucket, key: &mut Vec<u8>) {
        key.clear();
        self.push_head(key, bucket, "record-index");
    }

    /// Returns a glob that matches the keys of all locks whose names start with `prefix`, and no
    /// key of another store.
    ///
    /// Neither the store's prefix nor an encoded name has a special character of globs.
    pub(crate) fn locks_like(&self, prefix: &str) -> String {
        format!("{}???}}:{LOCK}{}*", self.head, encode(prefix))
    }

    /// Returns the name of the lock with this key; `None` unless the key is that of a lock of this
    /// store, with the bucket of its name.
    pub(crate) fn lock_of(&self, key: &str) -> Option<LockName> {
        let rest = key.strip_prefix(&*self.head)?;
        let (bucket, rest) = rest.split_at_checked(3)?;
        let name = rest.strip_prefix("}:")?.strip_prefix(LOCK)?;
        let name = LockName::new(decode(name)?).ok()?;
        (u16::from_str_radix(bucket, 16).ok()? == Bucket::of(name.as_str()).0).then_some(name)
    }

    fn target(&self, kind: &str, name: &str) -> Target {
        let bucket = Bucket::of(name);
        let mut key = Vec::with_capacity(self.head.len() + 12 + name.len() + 16);
        self.push_head(&mut key, bucket, kind);
        push_encoded(&mut key, name);
        let key = text(key);
        Target { key, bucket }
    }

    fn push_head(&self, key: &mut Vec<u8>, bucket: Bucket, kind: &str) {
        key.extend_from_slice(self.head.as_bytes());
        let [high, middle, low] = [8, 4, 0].map(|shift| hex(bucket.0 >> shift));
        key.extend_from_slice(&[high, middle, low, b'}', b':']);
        key.extend_from_slice(kind.as_bytes());
    }
}

/// The prefix is valid UTF-8, and everything else in a key is ASCII.
fn text(key: Vec<u8>) -> String {
    String::from_utf8(key).unwrap_or_default()
}

/// Appends an encoded name, like [`encode`] but without a new string. Every operation runs this,
/// and most bytes of a name need no encoding.
fn push_encoded(key: &mut Vec<u8>, name: &str) {
    let mut rest = name.as_bytes();
    loop {
        let special = rest.iter().position(|byte| !PLAIN[usize::from(*byte)]);
        let (plain, encoded) = rest.split_at(special.unwrap_or(rest.len()));
        key.extend_from_slice(plain);
        let Some((&byte, after)) = encoded.split_first() else {
            return;
        };
        let byte = u16::from(byte);
        key.extend_from_slice(&[b'~', hex(byte >> 4), hex(byte)]);
        rest = after;
    }
}

/// The bytes that are not encoded.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        byte += 1;
    }
    plain
};

fn hex(digit: u16) -> u8 {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    DIGITS[usize::from(digit & 15)]
}

/// CRC-16/XMODEM, as the cluster specification requires.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use redis::cluster_routing::Slot;

    use super::*;

    fn layout() -> KeyLayout {
        KeyLayout::new("distlock:")
    }

    #[test]
    fn keys_are_as_documented() {
        let name = LockName::new("order:42").unwrap();
        // The hash is a part of the format: with another hash, two versions of the library could
        // hold one lock.
        let lock = layout().lock(&name);
        assert_eq!(lock.key, "distlock:{b137}:lock:order~3a42");
        let queue = layout().queue(&lock);
        assert_eq!(queue.queue, "distlock:{b137}:queue:order~3a42");
        assert_eq!(
            queue.entry("17"),
            "distlock:{b137}:queue-entry:order~3a42:17"
        );
        let mut key = b"something else".to_vec();
        layout().counter(Bucket::of("order:42"), &mut key);
        assert_eq!(key, b"distlock:{b137}:counter");
        layout().index(Bucket(0x3ff), &mut key);
        assert_eq!(key, b"distlock:{b3ff}:record-index");
        assert_eq!(
            layout().locks_like("order:"),
            "distlock:{b???}:lock:order~3a*"
        );
    }

    #[test]
    fn a_foreign_key_is_not_read_as_a_lock() {
        for key in [
            "",
            "distlock:{b137}:lock:",
            "distlock:{b137}:record:order~3a42",
            "distlock:{b138}:lock:order~3a42",
            "distlock:{b137}:lock:order:42",
            "distlock:{bé}:lock:a",
            "other:{b137}:lock:order~3a42",
        ] {
            assert_eq!(layout().lock_of(key), None, "{key}");
        }
    }

    #[test]
    fn names_spread_over_the_buckets() {
        let buckets: BTreeSet<_> = (0..4096)
            .map(|n| Bucket::of(&format!("order:{n}")))
            .collect();
        assert!(buckets.len() > 950, "{} of 1024", buckets.len());
        let slots: BTreeSet<_> = Bucket::all().map(Bucket::slot).collect();
        assert!(slots.len() > 950, "{} slots", slots.len());
        let first_third = slots.iter().filter(|slot| **slot < 5461).count();
        assert!((250..450).contains(&first_third), "{first_third}");
    }

    #[test]
    fn all_keys_of_a_bucket_are_in_one_slot() {
        let name = LockName::new("{user}:*").unwrap();
        let bucket = Bucket::of(name.as_str());
        let (mut counter, mut index) = (Vec::new(), Vec::new());
        layout().counter(bucket, &mut counter);
        layout().index(bucket, &mut index);
        for key in [
            layout().lock(&name).key.into_bytes(),
            counter,
            index,
            layout()
                .record(&RecordKey::new(name.as_str()).unwrap())
                .key
                .into_bytes(),
        ] {
            assert_eq!(
                Some(Slot::for_key(&key)),
                Slot::new(bucket.slot()),
                "{}",
                key.escape_ascii()
            );
        }
    }

    proptest! {
        #[test]
        fn no_special_character_of_a_name_reaches_a_key(name in "[ -~é\u{1F512}]{1,60}") {
            let name = LockName::new(name).unwrap();
            let key = layout().lock(&name).key;
            prop_assert!(key.ends_with(&encode(name.as_str())));
            let tail = key.strip_prefix("distlock:{b").unwrap();
            let tail = tail[3..].strip_prefix("}:lock:").unwrap();
            prop_assert!(tail.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-~".contains(&b)));
            prop_assert_eq!(layout().lock_of(&key), Some(name));
        }
    }
}
