//! The sessions of this node, by session and by account.
//!
//! A removal compares the whole identity, so it never removes another session of the account.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use distlock_core::{Moment, sync::Mutex};

use crate::{
    model::ident::{Generation, SessionId, SessionKey, Uid},
    state::live_session::{LiveSession, Phase},
};

/// The sessions of this node.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<Maps>);

#[derive(Debug, Default)]
struct Maps {
    by_session: BTreeMap<SessionId, Arc<LiveSession>>,
    by_uid: HashMap<Uid, Vec<Arc<LiveSession>>>,
    /// The last sessions that were removed after they were saved.
    saved: VecDeque<SessionId>,
}

/// Most removed sessions that are remembered as saved. A login learns the outcome of a save by
/// another kick up to 100 ms later, and the session may have left meanwhile. A node that removes
/// more sessions than this in that time answers that the session has ended, and no more.
const MAX_SAVED: usize = 1024;

impl Registry {
    /// Adds a new session.
    pub(crate) fn insert(&self, live: Arc<LiveSession>) {
        let mut maps = self.0.lock();
        maps.by_uid
            .entry(live.uid.clone())
            .or_default()
            .push(Arc::clone(&live));
        maps.by_session.insert(live.key.session, live);
    }

    /// Removes exactly this session. Another session of the same account stays.
    pub(crate) fn remove(&self, live: &LiveSession) {
        let mut maps = self.0.lock();
        maps.by_session.remove(&live.key.session);
        if live.is_saved() {
            if maps.saved.len() == MAX_SAVED {
                maps.saved.pop_front();
            }
            maps.saved.push_back(live.key.session);
        }
        if let Some(of_uid) = maps.by_uid.get_mut(&live.uid) {
            of_uid.retain(|it| it.key != live.key);
            if of_uid.is_empty() {
                maps.by_uid.remove(&live.uid);
            }
        }
    }

    /// The session with exactly this identity and account.
    pub(crate) fn get(&self, uid: &Uid, key: &SessionKey) -> Option<Arc<LiveSession>> {
        self.0
            .lock()
            .by_session
            .get(&key.session)
            .filter(|live| live.key == *key && live.uid == *uid)
            .cloned()
    }

    /// Whether this session was saved and then removed. Only the last sessions are remembered.
    pub(crate) fn was_saved(&self, session: SessionId) -> bool {
        self.0.lock().saved.contains(&session)
    }

    /// The account's sessions on this node, in any phase.
    pub(crate) fn sessions_of(&self, uid: &Uid) -> Vec<Arc<LiveSession>> {
        self.0.lock().by_uid.get(uid).cloned().unwrap_or_default()
    }

    /// The generation of the account's newest pending or active session on this node, if it is
    /// higher than `than`.
    pub(crate) fn newest_above(&self, uid: &Uid, than: Generation) -> Option<Generation> {
        self.sessions_of(uid)
            .iter()
            .filter(|live| live.phase() <= Phase::Active)
            .map(|live| live.generation())
            .max()
            .filter(|r#gen| *r#gen > than)
    }

    /// The idle times of the account's active sessions on this node.
    pub(crate) fn idle_times(&self, uid: &Uid, now: Moment) -> Vec<(SessionKey, Duration)> {
        self.sessions_of(uid)
            .iter()
            .filter(|live| live.phase() == Phase::Active)
            .map(|live| (live.key.clone(), live.idle_time(now)))
            .collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<LiveSession>> {
        self.0.lock().by_session.values().cloned().collect()
    }

    /// At most `limit` sessions that follow the session `after`, in the order of their ids.
    pub(crate) fn page(&self, after: Option<SessionId>, limit: usize) -> Vec<Arc<LiveSession>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0
            .lock()
            .by_session
            .range((from, Bound::Unbounded))
            .take(limit)
            .map(|(_, live)| Arc::clone(live))
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().by_session.len()
    }
}
