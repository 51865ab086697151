//! Writes one counter after the other, as a simple first version does. Each single write is right,
//! but a reader or a crash between two writes sees a wrong total.

use std::sync::Arc;

use async_trait::async_trait;
use distlock::{Error, ErrorKind, Expect, RecordKey, Records, Result, Version, Written};
use distlock_recipes::unread::{Counter, MOST, Unread, UnreadCounters};

#[derive(Debug)]
pub(crate) struct Naive(pub(crate) Arc<dyn Records>);

impl Naive {
    async fn count(&self, key: &str) -> Result<Option<(Version, u64)>> {
        let entry = self.0.get(&RecordKey::new(key)?).await?;
        let count = |value: Vec<u8>| String::from_utf8(value).unwrap().parse().unwrap();
        Ok(entry.map(|it| (it.version, count(it.value))))
    }

    async fn set(&self, key: &str, to: impl Fn(u64) -> u64) -> Result<u64> {
        loop {
            let before = self.count(key).await?;
            let expect = before.map_or(Expect::Absent, |(version, _)| Expect::Version(version));
            let after = to(before.map_or(0, |(_, count)| count));
            let value = after.to_string().into_bytes();
            let written = self.0.put(&RecordKey::new(key)?, &value, expect).await?;
            if matches!(written, Written::Stored(_)) {
                return Ok(after);
            }
        }
    }
}

fn keys(counter: &Counter) -> (String, String) {
    let user = counter.user();
    let conversation = counter.conversation();
    (
        format!("naive/{user}/of/{conversation}"),
        format!("naive/{user}/total"),
    )
}

#[async_trait]
impl UnreadCounters for Naive {
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread> {
        let (conversation, total) = keys(counter);
        let by = u64::try_from(by).unwrap().min(MOST);
        Ok(Unread {
            conversation: self.set(&conversation, |count| count + by).await?,
            total: self.set(&total, |count| count + by).await?,
        })
    }

    async fn clear(&self, counter: &Counter) -> Result<Unread> {
        let unread = self.read(counter).await?;
        let (conversation, total) = keys(counter);
        self.set(&conversation, |_| 0).await?;
        let lower = |total: u64| total.saturating_sub(unread.conversation);
        Ok(Unread {
            conversation: 0,
            total: self.set(&total, lower).await?,
        })
    }

    async fn read(&self, counter: &Counter) -> Result<Unread> {
        let (conversation, total) = keys(counter);
        let Some((_, conversation)) = self.count(&conversation).await? else {
            return Err(Error::new(ErrorKind::InvalidArgument, "unknown"));
        };
        let total = self.count(&total).await?.map_or(0, |(_, total)| total);
        Ok(Unread {
            conversation,
            total,
        })
    }

    fn retries(&self) -> u64 {
        0
    }
}
