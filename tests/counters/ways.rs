//! The ways of counting over one store.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use distlock_recipes::unread::{
    LockedCounters, OptimisticCounters, RedisCounters, SqlCounters, UnreadCounters,
};

use crate::naive::Naive;

pub(crate) const CONVERSATIONS: [&str; 4] = ["family", "work", "news", "chess"];
/// The number of users of each way whose counters the processes change.
pub(crate) const USERS: usize = 3;
/// The TTL of the lock. It is short, so that the lock of a killed process expires soon.
const TTL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) counters: Arc<dyn UnreadCounters>,
    /// The owner of the counters in the user's name. Two ways that can be used on the same counters
    /// have the same owner.
    kept_by: &'static str,
    pub(crate) is_naive: bool,
}

impl Way {
    fn new(
        name: &'static str,
        kept_by: &'static str,
        counters: impl UnreadCounters + 'static,
    ) -> Self {
        Self {
            name,
            counters: Arc::new(counters),
            kept_by,
            is_naive: name == "naive",
        }
    }

    pub(crate) fn user(&self, number: usize) -> String {
        format!("{}-{number}", self.kept_by)
    }
}

pub(crate) async fn ways(url: &str) -> Result<Vec<Way>> {
    let store = distlock::open(url).await?;
    let mut ways = vec![
        Way::new("naive", "naive", Naive(store.records())),
        Way::new("lock", "records", LockedCounters::new(&store).ttl(TTL)),
        Way::new("optimistic", "records", OptimisticCounters::new(&store)),
    ];
    match url.split_once(':').unwrap_or_default().0 {
        "redis" => {
            ways.push(Way::new("watch", "server", RedisCounters::watching(url)?));
            ways.push(Way::new("script", "server", RedisCounters::scripted(url)?));
        }
        "zookeeper" => {}
        _ => ways.push(Way::new(
            "transaction",
            "server",
            SqlCounters::open(url).await?,
        )),
    }
    Ok(ways)
}
