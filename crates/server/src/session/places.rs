//! The places of waiters: how many there may be, in all and for one lock.
//!
//! Invariant: a place is given back when its waiter ends, so the counts never drift.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use distlock_core::{Error, ErrorKind, LockName, Result, sync::Mutex};

use crate::meters;

/// The places of all waiters of a server.
#[derive(Debug)]
pub(crate) struct WaiterPlaces {
    most: usize,
    most_of_one_name: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    names: HashMap<LockName, usize>,
}

/// The place of one waiter, until its drop.
#[derive(Debug)]
pub(crate) struct WaiterPlace {
    places: Arc<WaiterPlaces>,
    name: LockName,
}

impl WaiterPlaces {
    pub(crate) fn new(most: usize, most_of_one_name: usize) -> Self {
        Self {
            most,
            most_of_one_name,
            taken: Mutex::default(),
        }
    }

    /// A place in the queue of this lock.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`], which may pass, if there is none.
    pub(crate) fn take(self: &Arc<Self>, name: &LockName) -> Result<WaiterPlace> {
        let mut taken = self.taken.lock();
        let Taken { all, names } = &mut *taken;
        if *all >= self.most {
            meters::count_refusal("waiters");
            return Err(full(format!(
                "{} callers wait for locks of this server, and no more may",
                self.most
            )));
        }
        let of_name = names.entry(name.clone()).or_default();
        if *of_name >= self.most_of_one_name {
            meters::count_refusal("waiters_of_name");
            return Err(full(format!(
                "{} callers wait for this lock, and no more may",
                self.most_of_one_name
            )));
        }
        *of_name += 1;
        *all += 1;
        Ok(WaiterPlace {
            places: Arc::clone(self),
            name: name.clone(),
        })
    }

    /// How many places are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.lock().all
    }
}

fn full(problem: String) -> Error {
    Error::new(ErrorKind::LimitExceeded, problem).passing()
}

impl Drop for WaiterPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        if let Entry::Occupied(mut of_name) = taken.names.entry(self.name.clone()) {
            *of_name.get_mut() -= 1;
            if *of_name.get() == 0 {
                of_name.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_in_all_and_for_one_lock_and_are_given_back() {
        let places = Arc::new(WaiterPlaces::new(3, 2));
        let name = |name: &str| LockName::new(name).unwrap();
        let says = |taken: Result<WaiterPlace>| taken.unwrap_err().to_string();
        let first = places.take(&name("a")).unwrap();
        let _second = places.take(&name("a")).unwrap();
        assert!(says(places.take(&name("a"))).contains("2 callers wait for this lock"));
        let other = places.take(&name("b")).unwrap();
        assert!(says(places.take(&name("c"))).contains("3 callers wait for locks"));
        drop(first);
        let _third = places.take(&name("a")).unwrap();
        drop(other);
        let taken = places.taken.lock();
        assert_eq!((taken.all, taken.names.len()), (2, 1));
    }
}
