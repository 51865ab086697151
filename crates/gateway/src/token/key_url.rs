//! Keys that are read from a URL: at the start, on request, and after a token named another key.
//!
//! Invariant of this module: no login waits for a read. However many tokens name unknown keys, one
//! read begins in [`PAUSE`], and nothing is kept for any of them. A read that fails must never
//! remove a key.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use distlock_core::{Clock, Error, ErrorKind, Moment, Result, sync::RwLock};
use futures_util::FutureExt as _;
use tokio::sync::{Mutex, Notify};

use super::key_set::KeySet;
use crate::{metering, services::WebDocument};

/// Shortest time between the beginnings of two reads that tokens cause.
const PAUSE: Duration = Duration::from_secs(30);
/// Time of a usual read, after which a client may try again, and the range of the random time that
/// spreads such clients.
const USUAL_READ: Duration = Duration::from_secs(1);
const SPREAD: Duration = Duration::from_secs(2);

/// The keys at a URL.
#[derive(Debug)]
pub(super) struct KeyUrl {
    document: WebDocument,
    clock: Arc<dyn Clock>,
    state: RwLock<State>,
    /// Held during a read.
    turn: Mutex<()>,
    /// A token named a key that is not known. However often this happens, one read follows.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    keys: Arc<KeySet>,
    /// When the last read that succeeded began.
    read_at: Option<SystemTime>,
    /// When the last read began, and whether it goes on.
    began: Option<Moment>,
    reading: bool,
}

impl KeyUrl {
    /// Reads the keys for the first time. A URL that cannot be read is logged, and read again
    /// later: the node must start without it, because its other clients need no such key.
    pub(super) async fn open(document: WebDocument, clock: Arc<dyn Clock>) -> Self {
        let keys = Self {
            document,
            clock,
            state: RwLock::default(),
            turn: Mutex::default(),
            wanted: Notify::new(),
        };
        if let Err(error) = keys.reload().await {
            tracing::error!(
                %error,
                "no login key is known yet, so logins with such tokens get busy; \
                 the next try follows in {PAUSE:?}"
            );
        }
        keys
    }

    /// The keys that are known now, and when they were read.
    pub(super) fn known(&self) -> (Arc<KeySet>, Option<SystemTime>) {
        let state = self.state.read();
        (Arc::clone(&state.keys), state.read_at)
    }

    /// Notes that a token named a key that is not known. Returns the time after which the key may
    /// be known.
    pub(super) fn want(&self) -> Duration {
        self.wanted.notify_one();
        let reading = self.state.read().reading;
        let left = if reading { None } else { self.pause_left() };
        left.unwrap_or_default() + USUAL_READ + SPREAD.mul_f64(fastrand::f64())
    }

    /// Reads the keys now. After a failure the next read follows by itself, in [`PAUSE`].
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the URL does not answer with keys; the known keys stay.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn reload(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.read().await
    }

    /// Reads the keys each time when tokens have named others, and after a read that failed, at
    /// most once in [`PAUSE`].
    pub(super) async fn follow_tokens(&self) {
        loop {
            self.wanted.notified().await;
            let turn = loop {
                let turn = self.turn.lock().await;
                // Meanwhile an administrator may have asked for a read.
                let Some(left) = self.pause_left() else {
                    break turn;
                };
                drop(turn);
                self.clock.sleep(left).await;
            };
            // This read answers all tokens that came until now.
            let _ = self.wanted.notified().now_or_never();
            if let Err(error) = self.read().await {
                tracing::warn!(
                    %error,
                    "login keys could not be read: the known keys stay, and the next try follows \
                     in {PAUSE:?}"
                );
            }
            drop(turn);
        }
    }

    /// The time until tokens may cause another read.
    fn pause_left(&self) -> Option<Duration> {
        let began = self.state.read().began?;
        let left = PAUSE.saturating_sub(self.clock.now().since(began));
        (!left.is_zero()).then_some(left)
    }

    /// Reads the keys; the caller holds the turn.
    async fn read(&self) -> Result<()> {
        /// Ends the mark of a read, also if the read is cancelled.
        struct Mark<'a>(&'a RwLock<State>);
        impl Drop for Mark<'_> {
            fn drop(&mut self) {
                self.0.write().reading = false;
            }
        }
        let began = self.clock.wall();
        {
            let mut state = self.state.write();
            state.began = Some(self.clock.now());
            state.reading = true;
        }
        let _mark = Mark(&self.state);
        let read = self.document.fetch().await.and_then(|body| {
            KeySet::parse(&body).map_err(|problem| {
                let at = self.document.authority();
                let says = format!("the document at {at} {problem}");
                Error::new(ErrorKind::Unavailable, says)
            })
        });
        metering::count_login_key_read(read.is_ok());
        let read = read.map_err(|error| {
            self.wanted.notify_one();
            error.during("read login keys")
        })?;
        if !read.ignored.is_empty() {
            let ignored = read.ignored.join("; ");
            tracing::warn!(
                ignored,
                "some keys of the login keys' document are not used"
            );
        }
        let keys = read.keys.len();
        metering::set_login_keys(keys, began);
        tracing::info!(keys, "login keys were read");
        let mut state = self.state.write();
        state.keys = Arc::new(read.keys);
        state.read_at = Some(began);
        Ok(())
    }
}
