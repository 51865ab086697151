//! One contender's entry in the store queue of a lock.
//!
//! Each entry has its own key, which is deleted when the contender leaves. A contender makes the
//! server track the key of the entry just ahead, so one departure wakes one contender. A contender
//! that dies no longer renews its entry, so the entry expires. The script removes expired entries
//! when it runs for another entry of the queue.
//!
//! The queue only decides which contender asks next. The queue never grants a lock.
//!
//! For people, `inspect` reads the whole queue. These reads change nothing, and no contender
//! depends on what they find.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::queue_entry::{
    ContendersAhead, ENTRY_LEASE, EntrySchedule, LearnsOfChange, SHOWN_ENTRIES,
};
use distlock_core::{AcquireRequest, Error, ErrorKind, HolderInfo, HolderLabel, Moment, Result};
use redis::Value;

use crate::{
    connection::RegisteredWaiter,
    error::BACKEND,
    format::keys::{Bucket, QueueKeys},
    routing::{Call, Response, Router},
    scripts,
    store::Store,
    wait::contender::{MAX_SPURIOUS, UNTRACKED_POLL},
};

/// The limit of renewals in a row, if each renewal finds another entry just ahead.
const MAX_RENEWALS: usize = 4;

#[derive(Debug)]
pub(crate) struct QueueEntry {
    store: Arc<Store>,
    bucket: Bucket,
    keys: QueueKeys,
    /// The waiter's id in the queue. This id must not be the owner id, because a client that knows
    /// the owner id can free the lock.
    waiter: String,
    /// The label of the waiter, which `inspect` shows.
    holder: HolderLabel,
    /// Whether the waiter makes no attempt without an entry.
    in_order: bool,
    position: EntrySchedule,
    ahead: Option<EntryAhead>,
    /// The moment of the last renewal.
    asked_at: Moment,
    /// The key of an entry that a push reported as gone. The key is kept until an answer of the
    /// server shows whether the entry is gone.
    departed: Option<String>,
    /// The number of spurious pushes in a row. A server with too many tracked keys reports a change
    /// for each entry that it removes from its table.
    spurious: u32,
    /// Whether the server may have an entry for this contender.
    may_exist: bool,
}

/// The entry just ahead in the queue.
#[derive(Debug)]
struct EntryAhead {
    key: RegisteredWaiter,
    /// Whether the server sends a push when the key of that entry is deleted.
    tracked: bool,
}

impl QueueEntry {
    pub(crate) fn new(store: Arc<Store>, request: &AcquireRequest) -> Self {
        let layout = &store.access().layout;
        let lock = layout.lock(&request.name);
        Self {
            bucket: lock.bucket,
            keys: layout.queue(&lock),
            waiter: request.owner.tag().simple().to_string(),
            holder: request.holder.clone(),
            in_order: request.in_order,
            position: EntrySchedule::new(LearnsOfChange::ByNotification),
            ahead: None,
            asked_at: store.clock().now(),
            departed: None,
            spurious: 0,
            may_exist: false,
            store,
        }
    }

    pub(crate) const fn position(&self) -> &EntrySchedule {
        &self.position
    }

    /// Returns whether the waiter may ask for the lock: no other is ahead of it, and if it comes in
    /// order, the server keeps its entry.
    pub(crate) const fn is_first(&self) -> bool {
        self.position.is_first(self.in_order)
    }

    /// Makes the entry due for renewal now.
    pub(crate) fn renew_soon(&mut self) {
        self.position.look_again();
    }

    /// Returns whether a push will come when the contender just ahead leaves.
    pub(crate) fn is_tracked(&self) -> bool {
        self.ahead.as_ref().is_none_or(|ahead| ahead.tracked)
    }

    /// Creates or renews the entry, and makes the server track the entry just ahead.
    ///
    /// # Cancel safety
    /// Safe: after a dropped future the entry is due for renewal again.
    pub(crate) async fn renew(&mut self) {
        let access = self.store.access();
        let now = self.store.clock().now();
        let mut contenders = ContendersAhead::default();
        self.asked_at = now;
        // Without this note, the answer would count as older than a departure before the request,
        // and the entry would be renewed again at once.
        self.position.note_request();
        for renewal in 1..=MAX_RENEWALS {
            let call = self.call(false);
            self.may_exist = true;
            let answer = access.router.ask(call).await;
            let (others, next) = match answer.as_ref().map_err(Error::clone).and_then(read) {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(
                        %error,
                        "this waiter has no entry in the store queue: it polls until it has one"
                    );
                    self.position.not_kept(now, &error, self.in_order);
                    return;
                }
            };
            contenders = others;
            if next.is_empty() {
                self.ahead = None;
                break;
            }
            let key = self.keys.entry(next);
            if self.ahead.as_ref().is_some_and(|ahead| ahead.is(&key)) {
                break;
            }
            // If the entry ahead is already gone, no push will come, so the queue is read again.
            let tracked = Call::plain(self.bucket, vec![]).tracking([&*key].into_iter());
            let mut ahead = EntryAhead {
                key: access.waiters.register(&key),
                tracked: false,
            };
            match access.router.ask(tracked).await {
                Ok(response) if response.replies == [Value::Int(0)] => {
                    self.forget(&key).await;
                    if renewal < MAX_RENEWALS {
                        continue;
                    }
                }
                Ok(response) => {
                    ahead.tracked = response.is_tracked && response.replies == [Value::Int(1)];
                }
                Err(_) => {}
            }
            self.spurious = match self.departed.take() {
                Some(left) if left == key => self.spurious.saturating_add(1),
                _ => 0,
            };
            self.ahead = Some(ahead);
            break;
        }
        self.position.kept(now, contenders);
    }

    /// Waits until the contender just ahead leaves.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn ahead_left(&mut self) {
        match &mut self.ahead {
            Some(ahead) => {
                ahead.key.notified().await;
                let existed = ahead.tracked;
                // The server tracks a key for only one push.
                self.departed = self.ahead.take().map(|ahead| ahead.key.key().to_owned());
                if existed && self.spurious == 0 {
                    self.position.presume_first();
                } else {
                    self.position.look_again();
                }
                if self.spurious >= MAX_SPURIOUS {
                    let clock = self.store.clock();
                    let pause = (self.asked_at + UNTRACKED_POLL).since(clock.now());
                    clock.sleep(pause).await;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Leaves the queue. If the request is lost, the entry expires with its lease.
    pub(crate) async fn leave(&mut self) {
        if !std::mem::take(&mut self.may_exist) {
            return;
        }
        if let Err(error) = self.store.access().router.ask(self.call(true)).await {
            tracing::debug!(%error, "a queue entry was not deleted: it expires by itself");
        }
    }

    /// Makes the server stop tracking the key of an entry that is gone. No other command would ever
    /// change this key, so the server would track it without end.
    async fn forget(&self, entry: &str) {
        let mut change = redis::cmd("SET");
        change.arg(entry).arg("").arg("PX").arg(1);
        let call = Call::plain(self.bucket, vec![change]);
        if let Err(error) = self.store.access().router.ask(call).await {
            tracing::debug!(%error, "the server goes on tracking the key of a deleted queue entry");
        }
    }

    /// Returns the call that creates, renews or deletes the entry.
    fn call(&self, leaves: bool) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&scripts::QUEUE_ENTRY.sha)
            .arg(2)
            .arg(&self.keys.queue)
            .arg(self.keys.entry(&self.waiter))
            .arg(&self.waiter)
            .arg(ENTRY_LEASE.as_millis().to_string())
            .arg(u8::from(leaves))
            .arg(self.holder.as_str());
        Call::script(self.bucket, command, &scripts::QUEUE_ENTRY)
    }
}

impl EntryAhead {
    /// Returns whether the server tracks this key already.
    fn is(&self, key: &str) -> bool {
        self.tracked && self.key.key() == key
    }
}

/// Returns the entries ahead, and the id of the waiter just ahead.
fn read(response: &Response) -> Result<(ContendersAhead, &str)> {
    let numbers = |count: i64, ended_in: i64| {
        Some(ContendersAhead {
            count: u32::try_from(count).ok()?,
            ended_in: Duration::from_millis(u64::try_from(ended_in).ok()?),
        })
    };
    let found = match &*response.replies {
        [Value::Array(reply)] => match &**reply {
            [
                Value::Int(count),
                Value::BulkString(next),
                Value::Int(ended_in),
            ] => numbers(*count, *ended_in).zip(str::from_utf8(next).ok()),
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| {
        let strange = "the reply to the script of a queue entry has an unknown form";
        Error::new(ErrorKind::OutcomeUnknown, strange).on(BACKEND)
    })
}

/// Returns the call that reads the queue with the server's time. An entry that nobody renewed stays
/// in the queue until another contender renews its own, so the reader drops the ended entries.
pub(crate) fn queue_call(bucket: Bucket, keys: &QueueKeys) -> Call {
    let mut queue = redis::cmd("GET");
    queue.arg(&keys.queue);
    Call::plain(bucket, vec![queue, redis::cmd("TIME")])
}

/// Returns the ids of the waiters in the queue, in its order; `None` for an answer that the server
/// never gives.
pub(crate) fn waiters_of(answer: &Response) -> Option<Vec<String>> {
    let [queue, Value::Array(time)] = &*answer.replies else {
        return None;
    };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = &**time else {
        return None;
    };
    let number = |digits: &[u8]| str::from_utf8(digits).ok()?.parse::<u64>().ok();
    let now = number(seconds)? * 1000 + number(micros)? / 1000;
    match queue {
        Value::Nil => Some(Vec::new()),
        Value::BulkString(queue) => Some(live_waiters(str::from_utf8(queue).ok()?, now)),
        _ => None,
    }
}

/// Returns the waiters whose entries live at `now`, by the rule of `queue_entry.lua`: an entry that
/// ends later than a whole lease from now was written before the server's clock went back.
fn live_waiters(queue: &str, now: u64) -> Vec<String> {
    let longest = u64::try_from(ENTRY_LEASE.as_millis()).unwrap_or(u64::MAX);
    let entries = queue.split(';').filter_map(|entry| entry.split_once(' '));
    entries
        .filter(|(_, ends)| {
            let ends = ends.parse().unwrap_or(0);
            ends > now && ends <= now.saturating_add(longest)
        })
        .map(|(waiter, _)| waiter.to_owned())
        .collect()
}

/// Reads the labels of the first waiters. A waiter that has left since is not in the answer.
pub(crate) async fn read_labels(
    router: &Router,
    bucket: Bucket,
    keys: &QueueKeys,
    waiters: &[String],
) -> Result<Vec<HolderInfo>> {
    if waiters.is_empty() {
        return Ok(Vec::new());
    }
    let mut labels = redis::cmd("MGET");
    for waiter in waiters.iter().take(SHOWN_ENTRIES) {
        labels.arg(keys.entry(waiter));
    }
    let answer = router.ask(Call::plain(bucket, vec![labels])).await?;
    let [Value::Array(labels)] = &*answer.replies else {
        return Ok(Vec::new());
    };
    let labels = labels.iter().filter_map(|label| match label {
        Value::BulkString(label) => Some(HolderInfo::new(String::from_utf8_lossy(label))),
        _ => None,
    });
    Ok(labels.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_living_entries_count_in_the_order_of_the_queue() {
        let queue = "aa 1001;bb 1000;cc 999;dd 5000;ee 5001;ff 1002;";
        assert_eq!(live_waiters(queue, 1000), ["aa", "dd", "ff"]);
        assert!(live_waiters("", 1000).is_empty());
        assert!(live_waiters("nothing of ours", 1000).is_empty());
    }
}
