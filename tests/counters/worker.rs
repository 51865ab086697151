//! A process that changes counters in every way until it is killed.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use tokio::{runtime::Builder, task::JoinSet};

use crate::{
    counter,
    ways::{CONVERSATIONS, USERS, ways},
};

/// The variable with the URL of the store. A process that has this variable is a worker.
pub(crate) const URL: &str = "DISTLOCK_COUNTERS_WORKER";

/// The pause between two attempts to open the store.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(url: &str) -> Result<()> {
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            // A fault may break the connection while the store is being opened.
            let ways = loop {
                match ways(url).await {
                    Ok(ways) => break ways,
                    Err(_) => SystemClock.sleep(PAUSE).await,
                }
            };
            let mut tasks = JoinSet::new();
            for way in ways {
                tasks.spawn(async move {
                    loop {
                        let user = way.user(fastrand::usize(..USERS));
                        let conversation = CONVERSATIONS[fastrand::usize(..CONVERSATIONS.len())];
                        let counter = counter(&user, conversation);
                        // The change may fail. The total and the conversations must agree in both
                        // cases.
                        let _ = if fastrand::u8(..3) == 0 {
                            way.counters.clear(&counter).await
                        } else {
                            way.counters.increment(&counter, fastrand::i64(1..5)).await
                        };
                    }
                });
            }
            tasks.join_all().await;
            Ok(())
        })
}
