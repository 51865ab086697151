//! The contenders of this process in the store queue of each name.
//!
//! This module limits the number of tasks of one process that wait at the store. With one
//! contender, each change of holder inside the process would cost a round trip in which the next
//! task joins. With all tasks as contenders, a thousand waiting tasks would be a thousand entries
//! at the store. So a few tasks join ahead. Each joins as soon as the request of the task before it
//! was sent, so their requests are in flight together. A task may have to send its request twice,
//! because its connection is being opened or the name is new. Then these few tasks may enter the
//! queue in another order than they asked.
//!
//! Invariant: a parked turn is passed on when a contender leaves. The module sends nothing to the
//! store.

use std::{collections::HashMap, fmt, sync::Arc};

use crate::{engine::local_queue::LocalTurn, sync::Mutex, types::name::LockName};

/// The number of contenders behind the first one that may wait at the store. Further tasks wait in
/// the local queue.
const AHEAD: u32 = 2;

/// The contenders of this process, by name.
#[derive(Default)]
pub(crate) struct StoreQueues(Mutex<HashMap<LockName, OwnContenders>>);

#[derive(Default)]
struct OwnContenders {
    waiting: u32,
    /// The local turn, kept here while enough contenders wait at the store.
    parked_turn: Option<LocalTurn>,
}

impl StoreQueues {
    /// Counts a task that has joined the store queue. The turn passes to the next task now, or,
    /// above the limit, as soon as a contender has left.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, turn: LocalTurn) -> StorePlace {
        let mut names = self.0.lock();
        let contenders = names.entry(name.clone()).or_default();
        contenders.waiting += 1;
        let passed_on = if contenders.waiting > AHEAD {
            contenders.parked_turn.replace(turn)
        } else {
            Some(turn)
        };
        drop(names);
        // The turn is dropped after this mutex is released, because its drop locks the local
        // queue's mutex.
        drop(passed_on);
        StorePlace {
            all: Arc::clone(self),
            name: name.clone(),
        }
    }
}

/// One task in the store queue, as long as the task waits. The drop of this value lets the next
/// task join.
pub(crate) struct StorePlace {
    all: Arc<StoreQueues>,
    name: LockName,
}

impl Drop for StorePlace {
    fn drop(&mut self) {
        let mut names = self.all.0.lock();
        let Some(contenders) = names.get_mut(&self.name) else {
            return;
        };
        contenders.waiting -= 1;
        let turn = contenders.parked_turn.take();
        if contenders.waiting == 0 {
            names.remove(&self.name);
        }
        drop(names);
        drop(turn);
    }
}

impl fmt::Debug for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorePlace({:?})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        contract::AcquireRequest,
        engine::local_queue::{Entered, LocalPlace, LocalQueues, NextStep},
        types::{
            ident::{HolderLabel, OwnerId},
            ttl::Ttl,
        },
    };

    fn enter(queues: &Arc<LocalQueues>) -> Result<LocalTurn, LocalPlace> {
        let request = AcquireRequest::new(
            LockName::new("a").unwrap(),
            OwnerId::new(),
            Ttl::new(Duration::from_secs(1)).unwrap(),
            HolderLabel::new("test").unwrap(),
        );
        match queues.enter(&request) {
            Entered::First(turn) => Ok(turn),
            Entered::Behind(place) => Err(place),
        }
    }

    async fn turn(place: LocalPlace) -> LocalTurn {
        match place.await {
            NextStep::Ask { turn, .. } => turn,
            _ => panic!("nothing was handed over"),
        }
    }

    #[tokio::test]
    async fn a_few_tasks_join_ahead_and_the_next_joins_when_one_has_left() {
        let (queues, all) = (LocalQueues::new(), Arc::<StoreQueues>::default());
        let name = LockName::new("a").unwrap();
        let first = enter(&queues).unwrap_or_else(|_| panic!("the queue was empty"));
        let mut places: Vec<_> = (0..4).map(|_| enter(&queues).err().unwrap()).collect();
        let mut store_place = vec![all.join(&name, first)];
        for _ in 0..AHEAD {
            store_place.push(all.join(&name, turn(places.remove(0)).await));
        }
        let mut next = places.remove(0);
        tokio::select! {
            biased;
            _ = &mut next => panic!("no more contenders may join"),
            () = std::future::ready(()) => {}
        }
        store_place.remove(0);
        store_place.push(all.join(&name, turn(next).await));
        // The last contender leaves before the others. The next task joins after that, too. When
        // all contenders have left, no entry is kept.
        store_place.pop();
        store_place.push(all.join(&name, turn(places.remove(0)).await));
        drop(store_place);
        assert!(all.0.lock().is_empty());
        assert_eq!(queues.len(), 0);
    }
}
