//! `distlock-lab bench --workload counters`: measures unread counters in each way that the store
//! supports, side by side.

use std::sync::Arc;

use distlock::{Store, Target};
use distlock_recipes::unread::{
    Counter, LockedCounters, OptimisticCounters, RedisCounters, SqlCounters, UnreadCounters,
};
use distlock_report::{Arm, Counters, CountingStore, Options, Report, Subject, Workload, measure};

use distlock_cli::program::{self, Context, Failure, Outcome, Sharing, code};

/// The user whose counters all callers change, unless `--name` gives another user. Each run uses
/// the same user, so only a few small records remain in the store.
const USER: &str = "bench:counters";
const CONVERSATIONS: usize = 8;
/// The average number of increments between two clears of a conversation.
const INCREMENTS: u64 = 4;

/// A way of counting. A cycle is an increment, and one cycle in four also clears the conversation.
struct Way {
    name: &'static str,
    counters: Arc<dyn UnreadCounters>,
    /// The store that counts calls; `None` for a way that does not use this store.
    calls: Option<Arc<CountingStore>>,
    user: String,
}

impl Subject for Way {
    type Held = Counter;
    type Error = distlock::Error;

    async fn acquire(&self, _name: &str) -> distlock::Result<Counter> {
        let at = fastrand::usize(..CONVERSATIONS);
        let counter = Counter::new(self.user.as_str(), format!("conversation-{at}"))?;
        self.counters.increment(&counter, 1).await?;
        Ok(counter)
    }

    async fn release(&self, counter: Counter) -> distlock::Result<()> {
        if fastrand::u64(..INCREMENTS) == 0 {
            self.counters.clear(&counter).await?;
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters {
            operations: self.calls.as_ref().map(|store| store.calls()),
            retries: Some(self.counters.retries()),
            ..Counters::default()
        }
    }
}

impl Way {
    /// Whether the total of the user is the sum of the conversations.
    async fn total_is_right(&self) -> Outcome<bool> {
        let (mut sum, mut totals) = (0, Vec::new());
        for at in 0..CONVERSATIONS {
            let counter = Counter::new(self.user.as_str(), format!("conversation-{at}"))?;
            match self.counters.read(&counter).await {
                Ok(unread) => {
                    sum += unread.conversation;
                    totals.push(unread.total);
                }
                // The counter does not exist yet.
                Err(error) if error.kind() == distlock::ErrorKind::InvalidArgument => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(totals.iter().all(|total| *total == sum))
    }
}

/// Opens the store and measures all ways.
pub(super) async fn measure_store(context: &Context, options: &Options) -> Outcome<Report> {
    let target = context.target(Sharing::Optional)?;
    let store = program::open(target.clone()).await?;
    program::print_message(format_args!(
        "measuring each way for {:.1} s",
        options.duration.as_secs_f64()
    ));
    let report = measure_ways(&target, &store, options).await;
    store.close().await;
    report
}

/// Measures each way that the store supports. Fails if a total is wrong at the end.
pub(crate) async fn measure_ways(
    target: &Target,
    store: &Store,
    options: &Options,
) -> Outcome<Report> {
    let user = options.name.clone().unwrap_or_else(|| USER.into());
    Counter::new(user.as_str(), "any")?;
    let ways: Vec<_> = open_ways(target, store, &user)
        .await?
        .into_iter()
        .map(Arc::new)
        .collect();
    let arms: Vec<_> = ways
        .iter()
        .map(|way| Arm::shared(way.name, Arc::clone(way)))
        .collect();
    let report = measure(&arms, Workload::Counters, options).await?;
    for way in &ways {
        if !way.total_is_right().await? {
            let says = format!(
                "{}: the total of {user:?} is not the sum of its conversations",
                way.name
            );
            return Err(Failure::new(code::FAILED, says));
        }
    }
    Ok(report)
}

/// Opens each way of counting that the store supports.
async fn open_ways(target: &Target, store: &Store, user: &str) -> Outcome<Vec<Way>> {
    let counted = [(); 2].map(|()| Arc::new(CountingStore::new(store)));
    let [locked, optimistic] = &counted;
    let way = |name, counters, calls| Way {
        name,
        counters,
        calls,
        user: user.to_owned(),
    };
    let mut ways = vec![
        way(
            "lock",
            Arc::new(LockedCounters::new(&locked.store())) as Arc<dyn UnreadCounters>,
            Some(Arc::clone(locked)),
        ),
        way(
            "optimistic",
            Arc::new(OptimisticCounters::new(&optimistic.store())),
            Some(Arc::clone(optimistic)),
        ),
    ];
    let whole = target.reveal_url();
    // The options of the URL are cut off, because they belong to the lock store.
    let url = whole.split('?').next().unwrap_or_default();
    match target.scheme().as_deref() {
        Some("redis" | "rediss") => {
            let url = whole.as_str();
            ways.push(way("watch", Arc::new(RedisCounters::watching(url)?), None));
            ways.push(way("script", Arc::new(RedisCounters::scripted(url)?), None));
        }
        Some("sqlite" | "mysql" | "mariadb" | "postgres" | "postgresql") => {
            ways.push(way(
                "transaction",
                Arc::new(SqlCounters::open(url).await?),
                None,
            ));
        }
        _ => {}
    }
    Ok(ways)
}
