//! One of the processes that compete for the lock.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail, ensure};
use distlock_core::{Clock as _, ErrorKind, Locker, Moment, Released, SystemClock};
use distlock_report::hold_for;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines, Stdin},
    task::JoinSet,
};

use super::raw::open_backend;

const NAME: &str = "bench:passed-on";

/// Time between the start of the tasks and the first counted grant, so that all tasks wait for the
/// lock by then.
const UNCOUNTED_TIME: Duration = Duration::from_secs(2);

/// Time for which the tasks continue after the counted time. The requests that end the waits come
/// later and must not be counted.
const EXTRA_TIME: Duration = Duration::from_millis(300);

/// The main function of one process. The process reads the server's URL from its input, connects,
/// and prints `ready`. Then the process reads three numbers: the counted time in milliseconds, the
/// number of tasks, and the hold time of each task in microseconds. At the end the process prints
/// the number of its requests, and the times in which it held the lock.
pub(crate) async fn run_worker() -> anyhow::Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let url = next_line(&mut input).await?;
    let backend = open_backend(&url).await?;
    let locker = Locker::new(Arc::clone(&backend));
    locker.ready().await?;
    let sent = || {
        let sent = backend.requests_sent();
        sent.context("the store does not count its requests")
    };
    println!("ready");
    let order = next_line(&mut input).await?;
    let order: Vec<u64> = order
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("three numbers")?;
    let &[time, tasks, hold] = order.as_slice() else {
        bail!("not three numbers: {order:?}");
    };
    let counted_from = SystemClock.now() + UNCOUNTED_TIME;
    let until = counted_from + Duration::from_millis(time);
    let mut tasks_done = JoinSet::new();
    for _ in 0..tasks {
        let hold = Duration::from_micros(hold);
        tasks_done.spawn(acquire_repeatedly(locker.clone(), until + EXTRA_TIME, hold));
    }
    SystemClock.sleep(UNCOUNTED_TIME).await;
    let before = sent()?;
    SystemClock.sleep(until.since(SystemClock.now())).await;
    let counted = sent()? - before;
    let mut holds = Vec::new();
    while let Some(own) = tasks_done.join_next().await {
        holds.extend(own??);
    }
    holds.retain(|(granted, _)| (counted_from..until).contains(granted));
    println!("{counted}");
    locker.close().await;
    let nanos = |moment: &Moment| moment.since_boot().as_nanos();
    for (granted, released) in &holds {
        println!("{} {}", nanos(granted), nanos(released));
    }
    Ok(())
}

/// Takes and releases the lock until `until`. Returns the begin and the end of each hold.
async fn acquire_repeatedly(
    locker: Locker,
    until: Moment,
    hold: Duration,
) -> anyhow::Result<Vec<(Moment, Moment)>> {
    let mut holds = Vec::new();
    while SystemClock.now() < until {
        let left = until.since(SystemClock.now());
        let guard = match locker.lock(NAME).wait(left).acquire().await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Timeout => break,
            Err(error) => return Err(error.into()),
        };
        let granted = SystemClock.now();
        hold_for(hold.min(until.since(granted))).await;
        // The hold ends when the release is sent, because the next holder may get the lock before
        // the answer arrives.
        let releasing = SystemClock.now();
        let released = guard.release().await;
        ensure!(matches!(released, Released::Clean), "{released:?}");
        holds.push((granted, releasing));
    }
    Ok(holds)
}

/// Reads the next line of the input. The end of the input is an error.
async fn next_line(input: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<String> {
    input.next_line().await?.context("the input ended early")
}
