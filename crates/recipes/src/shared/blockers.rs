//! The slots for which the head of the line contends.
//!
//! Invariant: the head contends for several slots at a time. With one only, a holder that lives
//! would hide a dead one behind it.

use std::collections::HashMap;

use distlock_core::{Guard, LockBuilder};
use futures_util::{
    StreamExt as _,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::FuturesUnordered,
};

use super::{enter::Enter, record::EntryId};

/// The number of slots for which the head contends at a time.
const CONTENDED: usize = 16;

/// The wait for one slot. No guard after a failure of the store: the next look contends again.
type Contention = BoxFuture<'static, (EntryId, Option<Guard>)>;

/// The slots for which the head contends. The store wakes it when one is free: its holder has left,
/// or is dead.
#[derive(Default)]
pub(super) struct Blockers {
    contended: HashMap<EntryId, AbortHandle>,
    waits: FuturesUnordered<Abortable<Contention>>,
    /// Where the turn begins, if there are more blockers than are contended for at a time.
    turn: usize,
}

impl Blockers {
    /// Contends for the slots of these holders, and no longer for others.
    pub(super) fn watch(&mut self, enter: &Enter<'_>, mut ids: Vec<EntryId>) {
        let count = ids.len().max(1);
        ids.rotate_left(self.turn % count);
        ids.truncate(CONTENDED);
        self.contended.retain(|id, wait| {
            let stays = ids.contains(id);
            if !stays {
                wait.abort();
            }
            stays
        });
        for id in ids {
            if self.contended.contains_key(&id) {
                continue;
            }
            let Ok(lock) = enter.slot_of(&id) else {
                continue;
            };
            let (handle, registration) = AbortHandle::new_pair();
            let wait = contend(lock, id.clone());
            self.waits.push(Abortable::new(wait, registration));
            self.contended.insert(id, handle);
        }
    }

    /// The next slot that is free. `None`: there is nothing to wait for.
    pub(super) async fn next_free(&mut self) -> Option<(EntryId, Guard)> {
        while let Some(ended) = self.waits.next().await {
            // An aborted wait was forgotten before.
            let Ok((id, guard)) = ended else { continue };
            self.contended.remove(&id);
            if let Some(guard) = guard {
                return Some((id, guard));
            }
        }
        None
    }

    pub(super) fn next_turn(&mut self) {
        if self.contended.len() >= CONTENDED {
            self.turn += CONTENDED;
        }
    }
}

fn contend(lock: LockBuilder, id: EntryId) -> Contention {
    Box::pin(async move {
        let guard = lock.wait_forever().acquire().await.ok();
        (id, guard)
    })
}
