//! Measures single layers: the driver, the backend, and a locker over the backend.
//!
//! ```sh
//! cargo run --release -p distlock-redis --example redis_cycles -- redis://127.0.0.1:6379 lock 1 3
//! ```
//!
//! Arguments: the server, the layer (`inspect`, `lock`, `locker`), the number of callers (each with
//! its own lock name), and the seconds.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures real time, and its results go to stdout"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use distlock_core::{
    AcquireRequest, Attempt, DistLock, HolderLabel, Lease, LockName, Locker, OwnerId, Result,
    SystemClock, Ttl,
};
use distlock_redis::{Redis, RedisConfig};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_default();
    let layer = arguments.next().unwrap_or_else(|| "locker".into());
    let callers: usize = arguments.next().map_or(1, |text| text.parse().unwrap_or(1));
    let seconds: f64 = arguments
        .next()
        .map_or(3.0, |text| text.parse().unwrap_or(3.0));
    let threads = if callers == 1 { 1 } else { 2 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build();
    let Ok(runtime) = runtime else { return Ok(()) };
    runtime.block_on(measure(
        url,
        layer,
        callers,
        Duration::from_secs_f64(seconds),
    ))
}

async fn measure(url: String, layer: String, callers: usize, time: Duration) -> Result<()> {
    let store = Redis::open(RedisConfig::from_url(&url)?, Arc::new(SystemClock)).await?;
    let locker = Locker::new(store.lock());
    locker.ready().await?;
    let until = Instant::now() + time;
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (lock, locker) = (store.lock(), locker.clone());
            let (layer, name) = (layer.clone(), format!("throughput:{caller:05}"));
            tokio::spawn(async move {
                let mut times = Vec::new();
                while Instant::now() < until {
                    let start = Instant::now();
                    match &*layer {
                        "lock" => raw(&*lock, &name).await?,
                        "inspect" => drop(locker.inspect(&name).await?),
                        _ => {
                            let guard = locker.lock(&name).acquire().await?;
                            let _ = guard.release().await;
                        }
                    }
                    times.push(start.elapsed());
                }
                Ok::<_, distlock_core::Error>(times)
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap_or_else(|_| Ok(Vec::new()))?);
    }
    times.sort_unstable();
    let at = |share: usize| {
        times
            .get(times.len() * share / 100)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{layer}, {callers} callers: {} cycles/s, p50 {:?}, p90 {:?}, p99 {:?}",
        u128::try_from(times.len()).unwrap_or(0) * 1000 / time.as_millis(),
        at(50),
        at(90),
        at(99)
    );
    locker.close().await;
    Ok(())
}

async fn raw(lock: &dyn DistLock, name: &str) -> Result<()> {
    let request = AcquireRequest::new(
        LockName::new(name)?,
        OwnerId::new(),
        Ttl::from_millis(10_000)?,
        HolderLabel::new("me@host:1")?,
    );
    if let Attempt::Acquired(grant) = lock.try_acquire(&request).await? {
        let lease = Lease::new(request.name, request.owner, Some(grant.token));
        lock.release(&lease).await?;
    }
    Ok(())
}
