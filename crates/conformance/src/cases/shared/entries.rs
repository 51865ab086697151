//! What holders leave behind when they die, give up or lose the lock.

use std::fmt::Write as _;

use distlock_core::{ErrorKind, FencingToken, LossReason};
use distlock_recipes::shared::RwLock;

use super::steps::{SETTLED, die, leave, refused, take, write};
use crate::{
    Outcome,
    failure::{ensure, ensure_eq, expect_error},
    spec::{Spec, case},
    support::{Context, SOON, eventually, poll_at_most, soon, start, within},
};

pub(super) const CASES: &[Spec] = &[
    case!(
        shared::a_dead_reader_keeps_no_writer_out,
        "a writer gets in once the lease of a dead reader has ended, and removes its entry"
    ),
    case!(
        shared::a_dead_writer_keeps_no_reader_out,
        "a reader gets in once the lease of a dead writer has ended"
    ),
    case!(
        shared::an_attempt_gets_past_the_dead,
        "an attempt that does not wait gets in if only dead holders exclude it"
    ),
    case!(
        shared::dead_readers_do_not_pile_up,
        "a reader removes entries of dead readers, although they do not exclude it"
    ),
    case!(
        shared::a_full_list_takes_nobody,
        "one holder more than 4,000 is refused, and the list stays as it is"
    ),
    case!(
        shared::a_dead_waiter_keeps_nobody_out,
        "others get in once the place in the line of a dead waiter has ended"
    ),
    case!(
        shared::an_attempt_gets_past_a_dead_waiter,
        "an attempt that does not wait gets in although a dead waiter had said that it waits"
    ),
    case!(
        shared::nobody_leaves_an_entry,
        "after its last holder has left, a lock has no record"
    ),
    case!(
        shared::a_dropped_acquire_leaves_nothing,
        "an acquire that was dropped at any step keeps nobody out"
    ),
    case!(
        shared::a_waiter_that_gives_up_lets_others_pass,
        "a reader gets in beside readers after a waiting writer has given up"
    ),
    case!(
        shared::a_guard_whose_entry_is_gone_is_lost,
        "a guard whose entry was deleted is lost within its lease"
    ),
    case!(
        shared::a_dropped_guard_is_released,
        "the drop of a guard releases the lock"
    ),
    case!(
        shared::a_corrupt_record_is_an_error,
        "a record that nobody can have written is an error, not a free lock"
    ),
    case!(
        shared::names_follow_the_rules,
        "a name that no lock may have is refused before any request"
    ),
];

async fn a_dead_reader_keeps_no_writer_out(cx: Context) -> Outcome {
    let (dying, store) = (cx.store().await?, cx.store().await?);
    let reader = RwLock::new(&dying, &cx.name("lock"))?;
    let reader = take(reader.read().ttl(cx.short_ttl())).await?;
    die(&dying, reader).await;
    let wait = cx.freed_within(cx.short_ttl()) + SOON;
    let lock = RwLock::new(&store, &cx.name("lock"))?;
    let writer = lock.write().wait(wait).acquire().await?;
    leave(writer).await?;
    let key = cx.shared_key("rw", "lock")?;
    eventually("the record is gone", SOON, || async {
        Ok(store.records().get(&key).await?.is_none())
    })
    .await
}

async fn a_dead_writer_keeps_no_reader_out(cx: Context) -> Outcome {
    let dying = cx.store().await?;
    let writer = RwLock::new(&dying, &cx.name("lock"))?;
    let writer = take(writer.write().ttl(cx.short_ttl())).await?;
    let token = writer.token();
    die(&dying, writer).await;
    let wait = cx.freed_within(cx.short_ttl()) + SOON;
    let lock = cx.rw("lock").await?;
    let (one, two) = tokio::join!(
        lock.read().wait(wait).acquire(),
        lock.read().wait(wait).acquire()
    );
    for reader in [one?, two?] {
        ensure!(reader.token() > token, "{reader:?} after {token}");
        leave(reader).await?;
    }
    Ok(())
}

async fn an_attempt_gets_past_the_dead(cx: Context) -> Outcome {
    let dying = cx.store().await?;
    let writer = RwLock::new(&dying, &cx.name("lock"))?;
    let writer = take(writer.write().ttl(cx.short_ttl())).await?;
    die(&dying, writer).await;
    let lock = cx.rw("lock").await?;
    let time = cx.freed_within(cx.short_ttl()) + SOON;
    eventually("an attempt gets in", time, || async {
        match lock.read().try_acquire().await?.acquired() {
            Some(reader) => leave(reader).await.map(|()| true),
            None => Ok(false),
        }
    })
    .await
}

async fn dead_readers_do_not_pile_up(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let key = cx.shared_key("rw", "lock")?;
    let mut entries = String::new();
    for dead in 0..66 {
        let comma = if dead == 0 { "" } else { "," };
        let _ = write!(entries, r#"{comma}["{}{dead}",1,"r"]"#, cx.name("dead"));
    }
    write(&store, &key, &format!(r#"{{"v":1,"entries":[{entries}]}}"#)).await?;
    let reader = take(cx.rw("lock").await?.read()).await?;
    let record = store.records().get(&key).await?;
    let text = record.map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
    let left = text
        .as_deref()
        .unwrap_or_default()
        .matches(r#",1,"r"]"#)
        .count();
    ensure_eq!(left, 58, "dead readers in {text:?}");
    leave(reader).await
}

async fn a_full_list_takes_nobody(cx: Context) -> Outcome {
    let (store, run) = (cx.store().await?, fastrand::u32(..));
    let key = cx.shared_key("rw", "lock")?;
    // Whoever gets one of these slots has a lower token, which proves nothing about the holder.
    let token = FencingToken::LIMIT - 1;
    let mut entries = String::new();
    for holder in 0..4000 {
        let comma = if holder == 0 { "" } else { "," };
        let _ = write!(entries, r#"{comma}["{run:08x}-{holder}",{token},"r"]"#);
    }
    let text = format!(r#"{{"v":1,"entries":[{entries}]}}"#);
    write(&store, &key, &text).await?;
    let full = cx.rw("lock").await?.read().acquire().await;
    expect_error("a reader too many", full, &[ErrorKind::LimitExceeded])?;
    let record = store.records().get(&key).await?;
    let is_same = record.is_some_and(|entry| entry.value == text.as_bytes());
    ensure!(is_same, "the list has changed");
    Ok(())
}

async fn a_dead_waiter_keeps_nobody_out(cx: Context) -> Outcome {
    let (dying, lock) = (cx.store().await?, cx.rw("lock").await?);
    let reader = take(lock.read()).await?;
    let waiter = RwLock::new(&dying, &cx.name("lock"))?;
    let waiting = start(async move { take(waiter.write()).await });
    cx.until_waited_for("rw", "lock").await?;
    dying.close().await;
    waiting.abort();
    let second = take(lock.read()).await?;
    ensure!(reader.is_valid(), "the first reader is lost");
    leave(second).await?;
    leave(reader).await
}

async fn an_attempt_gets_past_a_dead_waiter(cx: Context) -> Outcome {
    let store = cx.store().await?;
    // Written as by the head of a line that was killed.
    write(&store, &cx.shared_key("waiting/rw", "lock")?, r#"{"v":1}"#).await?;
    let lock = cx.rw("lock").await?;
    eventually("an attempt gets in", SOON, || async {
        match lock.write().try_acquire().await?.acquired() {
            Some(writer) => leave(writer).await.map(|()| true),
            None => Ok(false),
        }
    })
    .await
}

async fn nobody_leaves_an_entry(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let (one, two) = (take(here.read()).await?, take(there.read()).await?);
    let waiter = there.clone();
    let waiting = start(async move { take(waiter.write()).await });
    cx.until_waited_for("rw", "lock").await?;
    leave(one).await?;
    leave(two).await?;
    let writer = soon("the writer", waiting).await?;
    leave(writer.map_err(|error| error.to_string())??).await?;
    for kind in ["rw", "waiting/rw"] {
        let key = cx.shared_key(kind, "lock")?;
        eventually("the record is gone", SOON, || async {
            Ok(store.records().get(&key).await?.is_none())
        })
        .await?;
    }
    Ok(())
}

async fn a_dropped_acquire_leaves_nothing(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    for polls in 0..12 {
        let acquire = here.write().acquire();
        if let Some(guard) = poll_at_most(polls, acquire).await {
            leave(guard?).await?;
        }
        leave(take(there.write()).await?).await?;
    }
    Ok(())
}

async fn a_waiter_that_gives_up_lets_others_pass(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    let reader = take(here.read()).await?;
    let waiting = within(SETTLED, there.write().acquire()).await;
    ensure!(waiting.is_none(), "a writer beside a reader: {waiting:?}");
    let second = take(here.read()).await?;
    refused("a writer beside readers", there.write()).await?;
    leave(second).await?;
    leave(reader).await
}

async fn a_guard_whose_entry_is_gone_is_lost(cx: Context) -> Outcome {
    let (store, ttl) = (cx.store().await?, cx.kept_ttl());
    let lock = cx.rw("lock").await?;
    let reader = take(lock.read().ttl(ttl)).await?;
    let key = cx.shared_key("rw", "lock")?;
    if let Some(entry) = store.records().get(&key).await? {
        store.records().delete(&key, entry.version).await?;
    }
    let lost = within(ttl + SOON, reader.lost()).await;
    ensure_eq!(lost, Some(LossReason::HistoryChanged), "the loss");
    expect_error("a lost guard", reader.check(), &[ErrorKind::Lost])?;
    ensure!(!reader.is_valid(), "a lost guard is valid");
    drop(reader);
    leave(take(lock.write()).await?).await
}

async fn a_dropped_guard_is_released(cx: Context) -> Outcome {
    let (here, there) = (cx.rw("lock").await?, cx.rw("lock").await?);
    for _ in 0..3 {
        drop(take(here.write()).await?);
        drop(take(there.read()).await?);
    }
    leave(take(here.write()).await?).await
}

async fn a_corrupt_record_is_an_error(cx: Context) -> Outcome {
    let store = cx.store().await?;
    let key = cx.shared_key("rw", "lock")?;
    let lock = cx.rw("lock").await?;
    for text in [
        "",
        "{}",
        r#"{"v":9,"entries":[]}"#,
        r#"{"v":1,"entries":[["a",1,"w"],["b",1,"w"]]}"#,
    ] {
        write(&store, &key, text).await?;
        let read = lock.read().acquire().await;
        expect_error(text, read, &[ErrorKind::Corrupt])?;
    }
    write(&store, &key, r#"{"v":1,"entries":[]}"#).await?;
    leave(take(lock.read()).await?).await
}

async fn names_follow_the_rules(cx: Context) -> Outcome {
    let store = cx.store().await?;
    for name in ["", "a\nb", &"x".repeat(256)] {
        expect_error(
            "a name",
            RwLock::new(&store, name),
            &[ErrorKind::InvalidName],
        )?;
    }
    Ok(())
}
