//! Callers that take and free locks all the time, and guards that are held meanwhile.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use distlock::{Guard, Locker, Released};
use distlock_harness::eventually;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::support::SOON;

const TTL: Duration = Duration::from_secs(12);

/// The callers. A failed acquire of one of them ends the test.
pub(crate) struct Load {
    runtime: Runtime,
    locker: Locker,
    held: Vec<Guard>,
    cycles: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(url: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let (cycles, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (locker, held, tasks) = runtime.block_on(async {
            let locker = distlock::connect(url).await.unwrap();
            let mut held = Vec::new();
            for number in 0..3 {
                let lock = locker.lock(format!("held {number}")).ttl(TTL);
                held.push(lock.acquire().await.unwrap());
            }
            let mut tasks = JoinSet::new();
            for number in 0..8 {
                let (locker, cycles) = (locker.clone(), Arc::clone(&cycles));
                let over = Arc::clone(&over);
                tasks.spawn(async move {
                    while !over.load(SeqCst) {
                        let lock = locker.lock(format!("contended {}", number % 5)).ttl(TTL);
                        let guard = lock.wait(SOON).acquire().await;
                        let guard = guard.unwrap_or_else(|error| panic!("not acquired: {error}"));
                        cycles.fetch_add(1, SeqCst);
                        // An unconfirmed release goes on in the background.
                        if let Released::AlreadyLost(reason) = guard.release().await {
                            panic!("lost: {reason}");
                        }
                    }
                });
            }
            (locker, held, tasks)
        });
        Self {
            runtime,
            locker,
            held,
            cycles,
            over,
            tasks,
        }
    }

    /// Waits until locks were taken, and checks that no caller has failed.
    pub(crate) fn goes_on(&self) {
        let before = self.cycles.load(SeqCst);
        eventually("locks are taken", SOON, || {
            self.cycles.load(SeqCst) > before + 100
        })
        .unwrap();
        assert!(self.held.iter().all(Guard::is_valid));
    }

    pub(crate) fn end(mut self) {
        self.goes_on();
        self.over.store(true, SeqCst);
        self.runtime.block_on(async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.unwrap();
            }
            for guard in self.held {
                let released = guard.release().await;
                assert!(released.is_clean(), "{released:?}");
            }
            self.locker.close().await;
        });
    }
}
