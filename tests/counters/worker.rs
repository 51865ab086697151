//! A process that changes counters by every way until it is killed.

use std::time::Duration;

use anyhow::Result;
use distlock::{Clock as _, SystemClock};
use tokio::{runtime::Builder, task::JoinSet};

use crate::{
    counter,
    ways::{CONVERSATIONS, USERS, ways},
};

/// The variable that names the store; a process that has it is a worker.
pub(crate) const URL: &str = "DISTLOCK_COUNTERS_WORKER";

/// Pause before the next try to open the store.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(url: &str) -> Result<()> {
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async {
            // The connection may be cut, like any other.
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
                        // Whether the change succeeds or not, the counters must agree.
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
