//! One contender's place in the line that the server keeps for a lock.
//!
//! Each place has a key of its own, which is deleted when the place is given up. A contender has
//! the server track the key of the place right ahead of it, so that one departure wakes one
//! contender. The places of contenders that died are found by their leases, when a place behind
//! them is renewed.

use std::sync::Arc;

use distlock_core::{
    AcquireRequest, Error, ErrorKind, Moment, Result,
    line::{PLACE_LEASE, PlaceInLine, Told},
};
use redis::Value;

use crate::{
    connection::RegisteredWaiter,
    error::BACKEND,
    format::keys::{Bucket, QueueKeys},
    routing::{Call, Response},
    scripts,
    store::Store,
    wait::spurious_pushes::{MAX_SPURIOUS, UNTRACKED_POLL},
};

/// How often one look may find another place ahead than the one that is tracked.
const MAX_LOOKS: usize = 4;

#[derive(Debug)]
pub(crate) struct QueueEntry {
    store: Arc<Store>,
    bucket: Bucket,
    keys: QueueKeys,
    /// Who waits, as the server knows it: never the owner itself, which would free the lock.
    waiter: String,
    position: PlaceInLine,
    ahead: Option<EntryAhead>,
    /// When the server was asked last.
    asked_at: Moment,
    /// The key of a place that was told of as given up, until the server says whether it was.
    departed: Option<String>,
    /// How often in a row it was told of for nothing: a server that has too much to remember tells
    /// of everything that it forgets.
    spurious: u32,
    /// Whether the server may keep a place for it.
    may_exist: bool,
}

/// The place right ahead.
#[derive(Debug)]
struct EntryAhead {
    key: RegisteredWaiter,
    /// Whether the server tells when it is given up.
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
            position: PlaceInLine::new(Told::ByStore),
            ahead: None,
            asked_at: store.clock().now(),
            departed: None,
            spurious: 0,
            may_exist: false,
            store,
        }
    }

    pub(crate) const fn position(&self) -> &PlaceInLine {
        &self.position
    }

    /// The place is to be renewed now, or what was told may have been missed.
    pub(crate) fn look_again(&mut self) {
        self.position.look_again();
    }

    /// Whether the server tells when the one right ahead leaves.
    pub(crate) fn is_tracked(&self) -> bool {
        self.ahead.as_ref().is_none_or(|ahead| ahead.tracked)
    }

    /// Takes or renews the place, and has the server tell when the one right ahead leaves.
    ///
    /// # Cancel safety
    /// Safe: it is due again.
    pub(crate) async fn renew(&mut self) {
        let access = self.store.access();
        let now = self.store.clock().now();
        let mut count = 0;
        self.asked_at = now;
        for look in 1..=MAX_LOOKS {
            let call = self.call(false);
            self.may_exist = true;
            let answer = access.router.ask(call).await;
            let (others, next) = match answer.as_ref().map_err(Error::clone).and_then(read) {
                Ok(found) => found,
                Err(error) => {
                    tracing::debug!(%error, "no place in the line of those who wait");
                    self.position.not_kept(now, &error);
                    return;
                }
            };
            count = others;
            if next.is_empty() {
                self.ahead = None;
                break;
            }
            let key = self.keys.entry(next);
            if self.ahead.as_ref().is_some_and(|ahead| ahead.is(&key)) {
                break;
            }
            // A place that is gone already will not be told of: look again.
            let tracked = Call::plain(self.bucket, vec![]).tracking([&*key].into_iter());
            let mut ahead = EntryAhead {
                key: access.waiters.register(&key),
                tracked: false,
            };
            match access.router.ask(tracked).await {
                Ok(response) if response.replies == [Value::Int(0)] => {
                    self.forget(&key).await;
                    if look < MAX_LOOKS {
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
        self.position.kept(now, count);
    }

    /// Waits until the place right ahead is given up.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn ahead_left(&mut self) {
        match &mut self.ahead {
            Some(ahead) => {
                ahead.key.notified().await;
                // The server has forgotten that it was to tell.
                self.departed = self.ahead.take().map(|ahead| ahead.key.key().to_owned());
                self.position.look_again();
                if self.spurious >= MAX_SPURIOUS {
                    let clock = self.store.clock();
                    let pause = (self.asked_at + UNTRACKED_POLL).since(clock.now());
                    clock.sleep(pause).await;
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Gives the place up. What the server does not hear of ends with the place's lease.
    pub(crate) async fn leave(&mut self) {
        if !std::mem::take(&mut self.may_exist) {
            return;
        }
        if let Err(error) = self.store.access().router.ask(self.call(true)).await {
            tracing::debug!(%error, "a place in the line was not given up");
        }
    }

    /// Has the server forget a place that it is to tell of and that is gone already: nobody would
    /// change its key any more, so the server would remember it for good.
    async fn forget(&self, entry: &str) {
        let mut change = redis::cmd("SET");
        change.arg(entry).arg("").arg("PX").arg(1);
        let call = Call::plain(self.bucket, vec![change]);
        if let Err(error) = self.store.access().router.ask(call).await {
            tracing::debug!(%error, "the server still remembers a place that is gone");
        }
    }

    /// Takes or renews the place, or gives it up.
    fn call(&self, leaves: bool) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&scripts::QUEUE_ENTRY.sha)
            .arg(3)
            .arg(&self.keys.queue)
            .arg(self.keys.entry(&self.waiter))
            .arg(&self.keys.waiter_hint)
            .arg(&self.waiter)
            .arg(PLACE_LEASE.as_millis().to_string())
            .arg(u8::from(leaves));
        Call::script(self.bucket, command, &scripts::QUEUE_ENTRY)
    }
}

impl EntryAhead {
    /// Whether the server tells of this place already.
    fn is(&self, key: &str) -> bool {
        self.tracked && self.key.key() == key
    }
}

/// How many are ahead, and which waiter is right ahead.
fn read(response: &Response) -> Result<(u32, &str)> {
    let found = match &*response.replies {
        [Value::Array(reply)] => match &**reply {
            [Value::Int(ahead), Value::BulkString(next)] => {
                u32::try_from(*ahead).ok().zip(str::from_utf8(next).ok())
            }
            _ => None,
        },
        _ => None,
    };
    found.ok_or_else(|| {
        let strange = "the script of a place answered with something it never says";
        Error::new(ErrorKind::OutcomeUnknown, strange).on(BACKEND)
    })
}
