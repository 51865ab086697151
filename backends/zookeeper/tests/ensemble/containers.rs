//! Containers: the parents of contenders. The servers may remove an empty container at any time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::fixtures::{container_path, hold, locker, pause, raw_client, release_cleanly, within};

/// One client removes the container whenever it is empty, as the servers may do. Two other clients
/// acquire and release the lock all the time, and each token is higher than the last.
pub(crate) async fn a_lock_works_while_its_container_is_removed(ensemble: &ZooKeeper) {
    const NAME: &str = "removed again and again";
    const CYCLES: u32 = 100;
    const OFTEN: u32 = 10;
    let lockers = [
        locker(&ensemble.servers()).await,
        locker(&ensemble.servers()).await,
    ];
    let client = raw_client(&ensemble.servers()).await;
    let path = container_path(NAME);
    let removed = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&removed);
    let remover = tokio::spawn(async move {
        loop {
            match client.delete(&path, None).await {
                Ok(()) => {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                Err(zk::Error::NotEmpty | zk::Error::NoNode | zk::Error::ConnectionLoss) => {}
                Err(error) => return error,
            }
            // The pause leaves processor time to the other tasks.
            pause(Duration::from_millis(1)).await;
        }
    });
    let newest = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for locker in &lockers {
        let (locker, newest) = (locker.clone(), Arc::clone(&newest));
        let removed = Arc::clone(&removed);
        tasks.spawn(async move {
            let mut cycles = 0;
            while cycles < CYCLES || removed.load(Ordering::SeqCst) < OFTEN {
                cycles += 1;
                let guard = hold(&locker, NAME).await;
                let token = guard.token().get();
                let before = newest.swap(token, Ordering::SeqCst);
                assert!(before < token, "{token} after {before}");
                release_cleanly(guard).await;
                // The pause makes the queue empty from time to time.
                pause(Duration::from_millis(fastrand::u64(0..4))).await;
            }
        });
    }
    let all = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    };
    within("all cycles", all).await;
    assert!(!remover.is_finished(), "{}", remover.await.unwrap());
    remover.abort();
    for locker in lockers {
        locker.close().await;
    }
}
