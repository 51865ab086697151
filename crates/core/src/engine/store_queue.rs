//! Several tasks of one process in the queue of a first-come-first-served store.
//!
//! With only one of them there, each hand-over inside the process would cost the round trip in which the next one lines
//! up. With all of them there, a thousand waiting tasks would be a thousand places in the store. So a few line up ahead,
//! each as soon as the one before it was sent: the store takes them in together. Where one of them has to ask twice (the
//! connection is being opened, or the name is new), those few may come to stand in another order than they asked in.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{engine::local_queue::Seat, types::name::LockName};

/// How many wait at the store before the next one has to wait in the process.
const AHEAD: u32 = 2;

/// Who is lined up at the store, by name.
#[derive(Default)]
pub(crate) struct LineUps(Mutex<HashMap<LockName, AtStore>>);

#[derive(Default)]
struct AtStore {
    waiting: u32,
    /// The process's seat, while enough wait at the store.
    parked: Option<Seat>,
}

impl LineUps {
    /// A task has its place at the store: the next one may take its own, now or as soon as one of those there has gone.
    pub(crate) fn join(self: &Arc<Self>, name: &LockName, seat: Seat) -> LinedUp {
        let mut names = self.names();
        let at_store = names.entry(name.clone()).or_default();
        at_store.waiting += 1;
        let passed_on = if at_store.waiting > AHEAD {
            at_store.parked.replace(seat)
        } else {
            Some(seat)
        };
        drop(names);
        // Outside of the mutex: it takes the queue's.
        drop(passed_on);
        LinedUp {
            all: Arc::clone(self),
            name: name.clone(),
        }
    }

    fn names(&self) -> MutexGuard<'_, HashMap<LockName, AtStore>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One task's place at the store, as long as it waits. Dropping it lets the next one line up.
pub(crate) struct LinedUp {
    all: Arc<LineUps>,
    name: LockName,
}

impl Drop for LinedUp {
    fn drop(&mut self) {
        let mut names = self.all.names();
        let Some(at_store) = names.get_mut(&self.name) else {
            return;
        };
        at_store.waiting -= 1;
        let seat = at_store.parked.take();
        if at_store.waiting == 0 {
            names.remove(&self.name);
        }
        drop(names);
        drop(seat);
    }
}

impl fmt::Debug for LinedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinedUp({:?})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        contract::AcquireRequest,
        engine::local_queue::{Entered, Place, Queues, Turn},
        types::{
            ident::{HolderLabel, OwnerId},
            ttl::Ttl,
        },
    };

    fn enter(queues: &Arc<Queues>) -> Result<Seat, Place> {
        let request = AcquireRequest::new(
            LockName::new("a").unwrap(),
            OwnerId::new(),
            Ttl::new(Duration::from_secs(1)).unwrap(),
            HolderLabel::new("test").unwrap(),
        );
        match queues.enter(&request) {
            Entered::First(seat) => Ok(seat),
            Entered::Behind(place) => Err(place),
        }
    }

    async fn turn(place: Place) -> Seat {
        match place.await {
            Turn::Ask { seat, .. } => seat,
            _ => panic!("nothing was handed over"),
        }
    }

    #[tokio::test]
    async fn a_few_line_up_and_the_next_when_one_has_gone() {
        let (queues, all) = (Queues::new(), Arc::<LineUps>::default());
        let name = LockName::new("a").unwrap();
        let first = enter(&queues).unwrap_or_else(|_| panic!("nobody is there"));
        let mut places: Vec<_> = (0..4).map(|_| enter(&queues).err().unwrap()).collect();
        let mut lined_up = vec![all.join(&name, first)];
        for _ in 0..AHEAD {
            lined_up.push(all.join(&name, turn(places.remove(0)).await));
        }
        let mut next = places.remove(0);
        tokio::select! {
            biased;
            _ = &mut next => panic!("enough are there"),
            () = std::future::ready(()) => {}
        }
        lined_up.remove(0);
        lined_up.push(all.join(&name, turn(next).await));
        // Those who leave out of order count as well; in the end nothing is kept.
        lined_up.pop();
        lined_up.push(all.join(&name, turn(places.remove(0)).await));
        drop(lined_up);
        assert!(all.names().is_empty());
        assert_eq!(queues.len(), 0);
    }
}
