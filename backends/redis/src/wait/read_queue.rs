//! Reads the store queue of one lock, for people.
//!
//! Only `inspect` reads the queue: an acquire costs nothing for it. The reads change nothing, and
//! no contender depends on what they find.

use distlock_backend_kit::queue_entry::{ENTRY_LEASE, SHOWN_ENTRIES};
use distlock_core::{HolderInfo, Result};
use redis::Value;

use crate::{
    format::keys::{Bucket, QueueKeys},
    routing::{Call, Response, Router},
};

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
