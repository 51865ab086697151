//! Callers that give up faster than the servers delete their nodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_harness::servers::zookeeper::ZooKeeper;
use tokio::task::JoinSet;

use crate::fixtures::{contenders, eventually, locker, now, pause, raw_client, release_cleanly};

const NAMES: [&str; 3] = ["one", "two", "three"];
const TASKS: u64 = 24;
const CANCELLATIONS: u32 = 20_000;

/// The limit of nodes at any time, for all names together.
const MOST_NODES: usize = 100;

/// The limit of the growth of memory. The allocator keeps some memory after a busy time.
const MOST_GROWTH: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_acquires_leave_little_behind() {
    let ensemble = ZooKeeper::start().unwrap();
    let client = raw_client(&ensemble.servers()).await;
    let locker = locker(&ensemble.servers()).await;
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SEED={seed}");
    let (left, cancelled) = (
        Arc::new(AtomicU32::new(CANCELLATIONS)),
        Arc::new(AtomicU32::new(0)),
    );
    let mut most = 0;
    let watch = async {
        loop {
            let mut nodes = 0;
            for name in NAMES {
                nodes += contenders(&client, name).await.len();
            }
            most = most.max(nodes);
            pause(Duration::from_millis(2)).await;
        }
    };
    let before = resident_bytes();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(task));
        let (locker, left, cancelled) = (locker.clone(), Arc::clone(&left), Arc::clone(&cancelled));
        tasks.spawn(async move {
            let another = |left: u32| left.checked_sub(1);
            while left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, another)
                .is_ok()
            {
                let name = NAMES[random.usize(..NAMES.len())];
                let patience = Duration::from_micros(random.u64(..12_000));
                tokio::select! {
                    biased;
                    acquired = locker.lock(name).acquire() => {
                        drop(acquired.unwrap().release().await);
                    }
                    () = pause(patience) => {
                        cancelled.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
    }
    let began = now();
    let storm = async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        let over = now();
        for name in NAMES {
            release_cleanly(locker.lock(name).acquire().await.unwrap()).await;
        }
        (over.since(began), now().since(over))
    };
    let (took, waited) = tokio::select! {
        () = watch => unreachable!("it goes on"),
        times = storm => times,
    };
    let cancelled = cancelled.load(Ordering::SeqCst);
    let grown = resident_bytes().saturating_sub(before);
    eprintln!(
        "{cancelled} cancelled in {took:?}, {most} nodes at the most, {waited:?}, {grown} bytes"
    );
    assert!(cancelled > CANCELLATIONS / 2, "{cancelled} were cancelled");
    assert!(most > 0 && most <= MOST_NODES, "{most} nodes at a time");
    assert!(
        waited < Duration::from_secs(1),
        "obtainable after {waited:?}"
    );
    assert!(grown < MOST_GROWTH, "{grown} bytes more");
    eventually("no node is left", async || {
        for name in NAMES {
            if !contenders(&client, name).await.is_empty() {
                return None;
            }
        }
        Some(())
    })
    .await;
    locker.close().await;
}

/// Returns the resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok())
        .expect("a number")
        * 1024
}
