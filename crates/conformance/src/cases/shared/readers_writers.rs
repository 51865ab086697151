//! Readers hold a lock together, and a writer holds it alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use distlock_core::{ErrorKind, FenceGuard};
use distlock_recipes::shared::{Semaphore, SharedMode};
use tokio::{sync::mpsc, task::JoinSet};

use super::steps::{SETTLED, again_and_again, leave, refused, take};
use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error},
    spec::{Spec, case},
    support::{Context, SOON, acquire_free, join, release_clean, sleep, soon, start},
};

pub(super) const CASES: &[Spec] = &[
    case!(
        shared::readers_hold_together,
        "readers of two clients hold a lock at the same time, and no writer beside them"
    ),
    case!(
        shared::a_writer_holds_alone,
        "beside a writer there is neither a reader nor another writer"
    ),
    case!(
        shared::tokens_rise_over_all_modes,
        "a writer's token is higher than those of all before it, and lower than those after it"
    ),
    case!(
        shared::fences_order_readers_and_writers,
        "a resource that checks readers and writers refuses an earlier writer after a reader"
    ),
    case!(
        shared::endless_readers_do_not_starve_a_writer,
        "a writer gets in although readers come again and again"
    ),
    case!(
        shared::endless_writers_do_not_starve_a_reader,
        "a reader gets in although writers come again and again"
    ),
    case!(
        shared::readers_that_waited_hold_together,
        "readers that waited for a writer hold the lock together, not one after the other"
    ),
    case!(
        shared::an_attempt_does_not_pass_a_waiter,
        "an attempt that does not wait is refused while somebody waits who came earlier"
    ),
    case!(
        shared::nobody_writes_between_writer_and_reader,
        "no waiting writer gets in while a writer becomes a reader"
    ),
    case!(
        shared::a_downgrade_lets_readers_in,
        "once a writer is a reader, a waiting reader gets in"
    ),
    case!(
        shared::a_reader_does_not_become_a_writer,
        "there is no upgrade, and no downgrade of a reader: the answer is an error"
    ),
    case!(
        shared::no_wake_up_is_missed,
        "whoever waits gets in soon after each of many releases"
    ),
    case!(
        shared::three_locks_of_one_name,
        "an exclusive lock, a lock of readers and writers, and a semaphore of one name are three"
    ),
    case!(
        shared::holders_are_compatible_in_a_storm,
        "tasks of three clients that read and write never hold against the rules"
    ),
];

async fn readers_hold_together(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let (one, two) = (take(here.read()).await?, take(there.read()).await?);
    ensure!(one.is_valid() && two.is_valid(), "{one:?} {two:?}");
    ensure_eq!(one.mode(), SharedMode::Read, "the mode");
    refused("a writer beside readers", here.write()).await?;
    let waiting = there.write().wait(SETTLED).acquire().await;
    expect_error("a writer beside readers", waiting, &[ErrorKind::Timeout])?;
    leave(one).await?;
    refused("a writer beside a reader", here.write()).await?;
    leave(two).await
}

async fn a_writer_holds_alone(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let writer = take(here.write()).await?;
    ensure_eq!(writer.mode(), SharedMode::Write, "the mode");
    for lock in [&here, &there] {
        refused("a reader beside a writer", lock.read()).await?;
        refused("a writer beside a writer", lock.write()).await?;
    }
    leave(writer).await?;
    leave(take(there.write()).await?).await
}

async fn tokens_rise_over_all_modes(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let mut last = None;
    for round in 0..4 {
        let lock = if round % 2 == 0 { &here } else { &there };
        let readers = [take(here.read()).await?, take(there.read()).await?];
        for reader in readers {
            let token = reader.token();
            ensure!(last < Some(token), "reader {token} after writer {last:?}");
            leave(reader).await?;
        }
        let writer = take(lock.write()).await?;
        ensure!(last < Some(writer.token()), "{writer:?} after {last:?}");
        last = Some(writer.token());
        leave(writer).await?;
    }
    Ok(())
}

async fn fences_order_readers_and_writers(cx: Context) -> Outcome {
    let lock = cx.rw("lock").await?;
    let mut resource = FenceGuard::new();
    let first = take(lock.write()).await?;
    let early = first.fence();
    leave(first).await?;
    let (one, two) = (take(lock.read()).await?, take(lock.read()).await?);
    for fence in [two.fence(), one.fence()] {
        let passes = resource.check_read(&fence);
        ensure!(passes.is_ok(), "a reader is refused: {passes:?}");
    }
    ensure!(resource.check(&early).is_err(), "an earlier writer passes");
    let reader = one.fence();
    leave(one).await?;
    leave(two).await?;
    let writer = take(lock.write()).await?;
    let passes = resource.check(&writer.fence());
    ensure!(passes.is_ok(), "a later writer is refused: {passes:?}");
    ensure!(
        resource.check_read(&reader).is_err(),
        "a former reader passes"
    );
    leave(writer).await
}

async fn endless_readers_do_not_starve_a_writer(cx: Context) -> Outcome {
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let lock = cx.rw("lock").await?;
        readers.spawn(again_and_again(move || lock.read()));
    }
    sleep(SETTLED).await;
    let writer = take(cx.rw("lock").await?.write()).await?;
    leave(writer).await?;
    readers.shutdown().await;
    Ok(())
}

async fn endless_writers_do_not_starve_a_reader(cx: Context) -> Outcome {
    let mut writers = JoinSet::new();
    for _ in 0..3 {
        let lock = cx.rw("lock").await?;
        writers.spawn(again_and_again(move || lock.write()));
    }
    sleep(SETTLED).await;
    let reader = take(cx.rw("lock").await?.read()).await?;
    leave(reader).await?;
    writers.shutdown().await;
    Ok(())
}

async fn readers_that_waited_hold_together(cx: Context) -> Outcome {
    let writer = take(cx.rw("lock").await?.write()).await?;
    let (sender, mut entered) = mpsc::channel(8);
    let mut readers = JoinSet::new();
    for client in 0..2 {
        let lock = cx.rw("lock").await?;
        for task in 0..3 {
            let (lock, sender) = (lock.clone(), sender.clone());
            readers.spawn(async move {
                let reader = take(lock.read()).await;
                let failure = match &reader {
                    Ok(reader) => reader.check().err().map(|error| error.to_string()),
                    Err(failure) => Some(format!("{failure:?}")),
                };
                let _ = sender.send((client, task, failure)).await;
                // Held until all have entered.
                std::future::pending::<()>().await;
                drop(reader);
            });
        }
    }
    cx.until_waited_for("rw", "lock").await?;
    let early = entered.try_recv();
    ensure!(early.is_err(), "a reader did not wait: {early:?}");
    leave(writer).await?;
    for _ in 0..6 {
        let reader = soon("a reader", entered.recv()).await?;
        let holds = matches!(reader, Some((_, _, None)));
        ensure!(holds, "{reader:?}");
    }
    readers.shutdown().await;
    Ok(())
}

async fn an_attempt_does_not_pass_a_waiter(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let reader = take(here.read()).await?;
    let waiter = there.clone();
    let waiting = start(async move { take(waiter.write()).await });
    cx.until_waited_for("rw", "lock").await?;
    sleep(SETTLED).await;
    refused("a reader behind a waiting writer", here.read()).await?;
    leave(reader).await?;
    for writer in join([waiting]).await? {
        leave(writer).await?;
    }
    leave(take(here.read()).await?).await
}

async fn nobody_writes_between_writer_and_reader(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let writer = take(here.write()).await?;
    let waiting = start(async move { take(there.write()).await });
    cx.until_waited_for("rw", "lock").await?;
    let before = writer.token();
    let reader = writer.downgrade().await?;
    ensure_eq!(reader.mode(), SharedMode::Read, "the mode");
    ensure!(reader.token() > before, "{reader:?} after {before}");
    sleep(SETTLED).await;
    ensure!(reader.is_valid(), "the reader is lost");
    ensure!(!waiting.is_finished(), "a writer beside a reader");
    let before = reader.token();
    leave(reader).await?;
    for writer in join([waiting]).await? {
        ensure!(writer.token() > before, "{writer:?} after {before}");
        leave(writer).await?;
    }
    Ok(())
}

async fn a_downgrade_lets_readers_in(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let writer = take(here.write()).await?;
    let waiting = start(async move { take(there.read()).await });
    cx.until_waited_for("rw", "lock").await?;
    let reader = writer.downgrade().await?;
    for other in join([waiting]).await? {
        ensure!(
            other.is_valid() && reader.is_valid(),
            "{other:?} {reader:?}"
        );
        leave(other).await?;
    }
    leave(reader).await
}

async fn a_reader_does_not_become_a_writer(cx: Context) -> Outcome {
    let lock = cx.rw("lock").await?;
    let reader = take(lock.read()).await?;
    let kinds = [ErrorKind::InvalidArgument];
    expect_error("a reader", reader.downgrade().await, &kinds)?;
    // The guard is dropped, so its lock is released.
    leave(take(lock.write()).await?).await
}

async fn no_wake_up_is_missed(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    for round in 0..8 {
        let writer = take(here.write()).await?;
        let other = there.clone();
        let waiting = start(async move {
            let wanted = if round % 2 == 0 {
                other.read()
            } else {
                other.write()
            };
            take(wanted).await
        });
        sleep(Duration::from_millis(round * 7)).await;
        leave(writer).await?;
        for next in soon("the next holder", join([waiting])).await?? {
            leave(next).await?;
        }
    }
    Ok(())
}

async fn three_locks_of_one_name(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let name = cx.name("lock");
    let guard = acquire_free(&store.locker(), &name, cx.long_ttl()).await?;
    let writer = take(cx.rw("lock").await?.write()).await?;
    let permit = take(Semaphore::new(&store, &name, 1)?.permits(1)).await?;
    ensure!(
        guard.is_valid() && writer.is_valid() && permit.is_valid(),
        "one is lost"
    );
    release_clean(guard).await?;
    leave(writer).await?;
    leave(permit).await
}

/// The holders of a storm.
#[derive(Default)]
struct Holders {
    readers: AtomicU32,
    writers: AtomicU32,
}

async fn holders_are_compatible_in_a_storm(cx: Context) -> Outcome {
    let holders = Arc::new(Holders::default());
    let mut tasks = Vec::new();
    for client in 0..3 {
        let lock = cx.rw("lock").await?;
        for task in 0..4 {
            let (lock, holders) = (lock.clone(), Arc::clone(&holders));
            tasks.push(start(async move {
                for round in 0..4 {
                    let writes = (client + task + round) % 4 == 0;
                    let wanted = if writes { lock.write() } else { lock.read() };
                    let guard = wanted.wait(SOON * 4).acquire().await?;
                    let (own, other) = if writes {
                        (&holders.writers, &holders.readers)
                    } else {
                        (&holders.readers, &holders.writers)
                    };
                    let before = own.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(2)).await;
                    let others = other.load(Ordering::SeqCst);
                    own.fetch_sub(1, Ordering::SeqCst);
                    ensure!(!writes || before == 0, "two writers");
                    ensure_eq!(others, 0, "holders beside {guard:?}");
                    leave(guard).await?;
                }
                Ok(())
            }));
        }
    }
    join(tasks).await?;
    Ok(())
}
