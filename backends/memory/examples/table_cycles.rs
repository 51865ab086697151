//! Measures the speed of the lock table on one core, and the memory of held rows.
//!
//! Run it with `cargo run --release -p distlock-memory --example table_cycles`.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement is about real time, and shows what it found"
)]

use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::{
    AcquireRequest, Attempt, DistLock, HolderLabel, Lease, LockName, Locker, OwnerId, SystemClock,
    Ttl,
};
use distlock_memory::{Memory, Now, Table};

const CYCLES: u32 = 2_000_000;
const ROWS: usize = 1_000_000;

fn main() {
    let names: Vec<LockName> = (0..1024).map(name).collect();
    let requests: Vec<AcquireRequest> = names.iter().map(request).collect();

    let table = Table::new();
    measure_rate("table, acquire + release", CYCLES, |n| {
        let request = &requests[n as usize % requests.len()];
        let now = Now::of(&SystemClock);
        match table.try_acquire(now, request, None) {
            Ok(Attempt::Acquired(token)) => {
                let lease = Lease::new(request.name.clone(), request.owner, Some(token));
                black_box(table.release(now.boot, &lease));
            }
            answer => panic!("{answer:?}"),
        }
    });

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let lock = Memory::default().lock();
    measure_rate("backend, acquire + release", CYCLES, |n| {
        let request = &requests[n as usize % requests.len()];
        runtime.block_on(acquire_and_release(&*lock, request));
    });
    measure_rate("backend, join + acquire + release", CYCLES, |n| {
        let request = &requests[n as usize % requests.len()];
        runtime.block_on(join_acquire_and_release(&*lock, request));
    });
    let locker = Locker::new(Arc::clone(&lock));
    let cycles = CYCLES / 4;
    let start = Instant::now();
    runtime.block_on(async {
        for n in 0..cycles {
            let name = &names[n as usize % names.len()];
            let guard = locker.lock_named(name).acquire().await.expect("it is free");
            assert!(guard.release().await.is_clean());
        }
    });
    print_rate("locker, acquire + release", cycles, start.elapsed());
    drop(locker);

    let before = resident_bytes();
    let now = Now::of(&SystemClock);
    let holder = HolderLabel::of_this_process();
    let long = Ttl::MAX;
    for n in 0..ROWS {
        let request = AcquireRequest::new(name(n), OwnerId::new(), long, holder.clone());
        assert!(matches!(
            table.try_acquire(now, &request, None),
            Ok(Attempt::Acquired(_))
        ));
    }
    let after = resident_bytes();
    assert_eq!(table.rows(), ROWS);
    println!(
        "{ROWS} held rows with 32-byte names: {} MB more, {} MB in all",
        (after - before) / 1_000_000,
        after / 1_000_000
    );
}

async fn acquire_and_release(lock: &dyn DistLock, request: &AcquireRequest) {
    let Ok(Attempt::Acquired(grant)) = lock.try_acquire(request).await else {
        panic!("it is free");
    };
    let lease = Lease::new(request.name.clone(), request.owner, Some(grant.token));
    black_box(lock.release(&lease).await.expect("memory does not fail"));
}

async fn join_acquire_and_release(lock: &dyn DistLock, request: &AcquireRequest) {
    let mut contender = lock.contend(request).await.expect("memory does not fail");
    let Ok(Attempt::Acquired(grant)) = contender.attempt().await else {
        panic!("it is free");
    };
    let lease = Lease::new(request.name.clone(), request.owner, Some(grant.token));
    black_box(lock.release(&lease).await.expect("memory does not fail"));
}

fn measure_rate(what: &str, cycles: u32, mut cycle: impl FnMut(u32)) {
    let start = Instant::now();
    for n in 0..cycles {
        cycle(n);
    }
    print_rate(what, cycles, start.elapsed());
}

fn print_rate(what: &str, cycles: u32, took: Duration) {
    let rate = f64::from(cycles) / took.as_secs_f64();
    println!("{what}: {rate:.0} cycles/s, {:?} each", took / cycles);
}

fn name(n: usize) -> LockName {
    LockName::new(format!("{n:032}")).expect("digits")
}

fn request(name: &LockName) -> AcquireRequest {
    let ttl = Ttl::from_millis(10_000).expect("ten seconds");
    let holder = HolderLabel::of_this_process();
    AcquireRequest::new(name.clone(), OwnerId::new(), ttl, holder)
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes
        .and_then(|text| text.parse::<u64>().ok())
        .expect("a number")
        * 1024
}
