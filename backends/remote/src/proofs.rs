//! The proofs of leases, by which a server that has crashed knows them again.
//!
//! The handles of one opened store share this map: one handle acquires a lock, and the handle of
//! the keeper thread renews it. Invariant: the map holds the newest proof of a lease, and forgets
//! the leases that have ended.

use std::{collections::HashMap, time::Duration};

use distlock_core::{Clock, LockName, Moment, OwnerId, sync::Mutex};

/// The number of proofs at which those of ended leases are removed.
const SWEEP_AT: usize = 256;

/// The proofs of one opened store.
#[derive(Debug, Default)]
pub(crate) struct Proofs(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    proofs: HashMap<(LockName, OwnerId), Proof>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Proof {
    /// The start of the server that made the proof.
    start: u64,
    bytes: Vec<u8>,
    /// The lease has ended by then.
    until: Moment,
}

impl Proofs {
    /// Stores the newest proof of a lease; an empty one means that the server needs none.
    pub(crate) fn put(
        &self,
        (name, owner): (&LockName, OwnerId),
        (start, bytes): (u64, Vec<u8>),
        valid_for: Duration,
        clock: &dyn Clock,
    ) {
        if bytes.is_empty() {
            return;
        }
        let now = clock.now();
        let mut known = self.0.lock();
        if known.proofs.len() >= known.sweep_at.max(SWEEP_AT) {
            known.proofs.retain(|_, proof| proof.until > now);
            known.sweep_at = known.proofs.len() * 2;
        }
        let proof = Proof {
            start,
            bytes,
            until: now + valid_for,
        };
        known.proofs.insert((name.clone(), owner), proof);
    }

    /// The proof of a lease, if the server was started again since it was made.
    pub(crate) fn needed(&self, name: &LockName, owner: OwnerId, start: u64) -> Vec<u8> {
        let known = self.0.lock();
        let proof = known.proofs.get(&(name.clone(), owner));
        let proof = proof.filter(|proof| proof.start != start);
        proof.map_or_else(Vec::new, |proof| proof.bytes.clone())
    }

    pub(crate) fn forget(&self, name: &LockName, owner: OwnerId) {
        let mut known = self.0.lock();
        if !known.proofs.is_empty() {
            known.proofs.remove(&(name.clone(), owner));
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;

    #[test]
    fn a_proof_is_needed_after_another_start_and_forgotten_with_its_lease() {
        let (proofs, clock) = (Proofs::default(), ManualClock::new());
        let (name, owner) = (LockName::new("a").unwrap(), OwnerId::new());
        let lease = Duration::from_secs(10);
        let put = |start, byte| proofs.put((&name, owner), (start, vec![byte]), lease, &clock);
        put(1, 7);
        assert!(proofs.needed(&name, owner, 1).is_empty());
        assert_eq!(proofs.needed(&name, owner, 2), [7]);
        put(2, 8);
        assert!(proofs.needed(&name, owner, 2).is_empty());
        assert_eq!(proofs.needed(&name, owner, 3), [8]);
        proofs.put((&name, owner), (3, Vec::new()), lease, &clock);
        assert_eq!(proofs.needed(&name, owner, 3), [8], "none came");
        assert!(proofs.needed(&name, OwnerId::new(), 3).is_empty());
        proofs.forget(&name, owner);
        assert!(proofs.needed(&name, owner, 3).is_empty());

        put(1, 7);
        clock.advance(lease);
        for number in 0..SWEEP_AT {
            let other = LockName::new(number.to_string()).unwrap();
            proofs.put((&other, owner), (1, vec![1]), lease, &clock);
        }
        assert!(proofs.needed(&name, owner, 3).is_empty(), "it has ended");
    }
}
