//! The rows of one shard, by name.
//!
//! Invariant: the index has the place of each row exactly once, and no row has the name of another.
//!
//! The rows lie one after the other without gaps, and an index of four bytes a bucket leads to
//! them. A hash map of rows would be half empty when it has just grown, and would take half as much
//! memory again for a million rows.

use std::hash::BuildHasher as _;

use distlock_core::LockName;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::row::Row;

#[derive(Debug)]
pub(crate) struct Rows {
    rows: Vec<(LockName, Row)>,
    /// The place of each row in `rows`, by the hash of its name.
    index: HashTable<u32>,
    hasher: RandomState,
}

impl Rows {
    pub(crate) const fn new(hasher: RandomState) -> Self {
        Self {
            rows: Vec::new(),
            index: HashTable::new(),
            hasher,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.rows.len()
    }

    /// The number of rows for which there is memory.
    pub(crate) fn capacity(&self) -> usize {
        self.rows.capacity()
    }

    pub(crate) fn get(&self, name: &LockName) -> Option<&Row> {
        let at = self.place(self.hasher.hash_one(name), name)?;
        Some(&self.rows[at].1)
    }

    pub(crate) fn get_mut(&mut self, name: &LockName) -> Option<&mut Row> {
        let at = self.place(self.hasher.hash_one(name), name)?;
        Some(&mut self.rows[at].1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(LockName, Row)> {
        self.rows.iter()
    }

    /// Adds a row, or replaces the row of this name.
    pub(crate) fn insert(&mut self, name: &LockName, row: Row) {
        let hash = self.hasher.hash_one(name);
        if let Some(at) = self.place(hash, name) {
            self.rows[at].1 = row;
            return;
        }
        if self.rows.len() == self.rows.capacity() {
            // A vector that grows by itself would double, and be half empty then.
            self.rows.reserve_exact(self.rows.len() / 8 + 8);
        }
        let place = as_place(self.rows.len());
        self.index
            .insert_unique(hash, place, hash_of(&self.rows, &self.hasher));
        self.rows.push((name.clone(), row));
    }

    pub(crate) fn remove(&mut self, name: &LockName) {
        let has_name = |at: &u32| self.rows[*at as usize].0 == *name;
        let hash = self.hasher.hash_one(name);
        let Ok(entry) = self.index.find_entry(hash, has_name) else {
            return;
        };
        let (gap, _) = entry.remove();
        self.rows.swap_remove(gap as usize);
        // The last row has filled the gap, unless it was the removed one.
        if let Some((moved, _)) = self.rows.get(gap as usize) {
            let before = as_place(self.rows.len());
            let place = self
                .index
                .find_mut(self.hasher.hash_one(moved), |at| *at == before);
            if let Some(place) = place {
                *place = gap;
            }
        }
    }

    /// Removes the rows for which `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Row) -> bool) {
        self.rows.retain(|(_, row)| keep(row));
        self.index.clear();
        for (at, (name, _)) in self.rows.iter().enumerate() {
            let hash = self.hasher.hash_one(name);
            self.index
                .insert_unique(hash, as_place(at), hash_of(&self.rows, &self.hasher));
        }
    }

    /// Returns the memory of all but this many rows to the allocator.
    pub(crate) fn shrink_to(&mut self, rows: usize) {
        self.rows.shrink_to(rows);
        self.index
            .shrink_to(rows, hash_of(&self.rows, &self.hasher));
    }

    fn place(&self, hash: u64, name: &LockName) -> Option<usize> {
        let has_name = |at: &u32| self.rows[*at as usize].0 == *name;
        let at = self.index.find(hash, has_name)?;
        Some(*at as usize)
    }
}

fn hash_of(rows: &[(LockName, Row)], hasher: &RandomState) -> impl Fn(&u32) -> u64 {
    |at| hasher.hash_one(&rows[*at as usize].0)
}

/// The place of a row, as the index stores it.
fn as_place(at: usize) -> u32 {
    u32::try_from(at).expect("a shard has fewer than 2^32 rows, which no memory could hold")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use distlock_core::{AcquireRequest, FencingToken, HolderLabel, Moment, OwnerId, Ttl};
    use proptest::prelude::*;

    use super::*;
    use crate::Now;

    fn name(number: u8) -> LockName {
        LockName::new(format!("name-{number}")).expect("a valid name")
    }

    fn row(number: u8, token: u64) -> Row {
        let ttl = Ttl::from_millis(10_000).expect("a valid TTL");
        let holder = HolderLabel::of_this_process();
        let now = Now {
            boot: Moment::from_boot(Duration::ZERO),
            wall_micros: 0,
        };
        let request = AcquireRequest::new(name(number), OwnerId::new(), ttl, holder);
        Row::new(now, FencingToken::new(token).expect("not zero"), &request)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u64),
        Remove(u8),
        KeepAbove(u64),
        ShrinkTo(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..40u8, 1..99u64).prop_map(|(name, token)| Step::Insert(name, token)),
            6 => (0..40u8).prop_map(Step::Remove),
            1 => (1..99u64).prop_map(Step::KeepAbove),
            1 => (0..40usize).prop_map(Step::ShrinkTo),
        ]
    }

    proptest! {
        #[test]
        fn rows_are_found_like_those_of_a_map(steps in prop::collection::vec(step(), 0..100)) {
            let mut rows = Rows::new(RandomState::default());
            let mut map = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(number, token) => {
                        rows.insert(&name(number), row(number, token));
                        map.insert(number, token);
                    }
                    Step::Remove(number) => {
                        rows.remove(&name(number));
                        map.remove(&number);
                    }
                    Step::KeepAbove(floor) => {
                        rows.retain(|row| row.token().get() > floor);
                        map.retain(|_, token| *token > floor);
                    }
                    Step::ShrinkTo(most) => rows.shrink_to(most),
                }
            }
            prop_assert_eq!(rows.len(), map.len());
            for number in 0..40 {
                let found = rows.get(&name(number)).map(|row| row.token().get());
                prop_assert_eq!(found, map.get(&number).copied());
            }
        }
    }
}
