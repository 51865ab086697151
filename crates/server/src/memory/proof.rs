//! The proof of a lease, which its holder shows to a server that has forgotten the lease.
//!
//! Invariant: only a server with the key of the state file makes a proof that is accepted, and a
//! proof covers everything that is restored from it.

use std::time::Duration;

use distlock_core::{FencingToken, Lease, LockName, OwnerId, Ttl, micros};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use uuid::Uuid;

use super::state::{Key, is_unknown};

/// The bytes of each number: of the start, of the TTL, and of the token. The digest follows.
const NUMBER: usize = 8;
const LENGTH: usize = 3 * NUMBER + 32;

/// Makes and checks the proofs of one start of a server.
#[derive(Debug)]
pub(super) struct Prover {
    server: Uuid,
    start: u64,
    key: Key,
}

/// What a good proof says of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proven {
    pub(super) token: FencingToken,
    pub(super) ttl: Ttl,
}

/// Why a proof is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotProven {
    /// It is no proof of this lease by this server.
    Wrong,
    /// It was made by a start of this server that the state file does not know, so the file is an
    /// older copy.
    FromUnknownStart,
}

impl Prover {
    pub(super) const fn new(server: Uuid, start: u64, key: Key) -> Self {
        Self { server, start, key }
    }

    pub(super) const fn start(&self) -> u64 {
        self.start
    }

    pub(super) const fn server(&self) -> Uuid {
        self.server
    }

    /// The proof of a lease that was granted with this TTL.
    pub(super) fn prove(
        &self,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
        ttl: Duration,
    ) -> Vec<u8> {
        let ttl = micros(ttl);
        let mut proof = Vec::with_capacity(LENGTH);
        proof.extend(self.start.to_be_bytes());
        proof.extend(ttl.to_be_bytes());
        proof.extend(token.get().to_be_bytes());
        let digest = self.digest(self.start, ttl, name, owner, token);
        proof.extend(digest.finalize().into_bytes());
        proof
    }

    /// Checks a proof that came with a lease.
    pub(super) fn check(&self, proof: &[u8], lease: &Lease) -> Result<Proven, NotProven> {
        let ([start, micros, token], digest) = numbers(proof).ok_or(NotProven::Wrong)?;
        let token = FencingToken::new(token).map_err(|_| NotProven::Wrong)?;
        // A renewal that raises the token has a lease without one.
        if lease.token.is_some_and(|of_lease| of_lease != token) {
            return Err(NotProven::Wrong);
        }
        let expected = self.digest(start, micros, &lease.name, lease.owner, token);
        if expected.verify_slice(digest).is_err() {
            return Err(NotProven::Wrong);
        }
        if is_unknown(start, self.start) {
            return Err(NotProven::FromUnknownStart);
        }
        let ttl = Ttl::new(Duration::from_micros(micros)).map_err(|_| NotProven::Wrong)?;
        Ok(Proven { token, ttl })
    }

    fn digest(
        &self,
        start: u64,
        ttl: u64,
        name: &LockName,
        owner: OwnerId,
        token: FencingToken,
    ) -> Hmac<Sha256> {
        let Ok(mut digest) = Hmac::<Sha256>::new_from_slice(self.key.expose()) else {
            unreachable!("a key of any length can be used");
        };
        // Only the name has a variable length, and it comes last.
        digest.update(b"distlock lease 1");
        digest.update(self.server.as_bytes());
        digest.update(&start.to_be_bytes());
        digest.update(&ttl.to_be_bytes());
        digest.update(&token.get().to_be_bytes());
        digest.update(owner.as_uuid().as_bytes());
        digest.update(name.as_str().as_bytes());
        digest
    }
}

/// The numbers in front of the digest, and the digest.
fn numbers(proof: &[u8]) -> Option<([u64; 3], &[u8])> {
    let (start, rest) = proof.split_first_chunk::<NUMBER>()?;
    let (ttl, rest) = rest.split_first_chunk::<NUMBER>()?;
    let (token, digest) = rest.split_first_chunk::<NUMBER>()?;
    let numbers = [start, ttl, token].map(|it| u64::from_be_bytes(*it));
    Some((numbers, digest))
}

#[cfg(test)]
mod tests {
    use super::{
        super::state::{RANDOM_BITS, State},
        *,
    };

    #[test]
    fn a_proof_is_accepted_for_its_own_lease_only() {
        let state = State::new(Duration::from_secs(60));
        let prover =
            |start: u64| Prover::new(state.server, start << RANDOM_BITS, state.key.clone());
        let name = LockName::new("a").unwrap();
        let (owner, token) = (OwnerId::new(), FencingToken::new(9).unwrap());
        let ttl = Ttl::new(Duration::from_secs(10)).unwrap();
        let proof = prover(4).prove(&name, owner, token, ttl.duration());
        let lease = Lease::new(name.clone(), owner, Some(token));
        let proven = Ok(Proven { token, ttl });
        assert_eq!(prover(4).check(&proof, &lease), proven);
        assert_eq!(prover(5).check(&proof, &lease), proven, "a later start");
        let without_token = Lease::new(name.clone(), owner, None);
        assert_eq!(prover(5).check(&proof, &without_token), proven);
        let older_copy = prover(3).check(&proof, &lease);
        assert_eq!(older_copy, Err(NotProven::FromUnknownStart));
        // The state was put back, and this is the next start with it.
        let same_count = Prover::new(state.server, (4 << RANDOM_BITS) + 1, state.key.clone());
        let older_copy = same_count.check(&proof, &lease);
        assert_eq!(older_copy, Err(NotProven::FromUnknownStart));

        let wrong = Err(NotProven::Wrong);
        let other_token = Some(FencingToken::new(10).unwrap());
        for other in [
            Lease::new(LockName::new("b").unwrap(), owner, Some(token)),
            Lease::new(name.clone(), OwnerId::new(), Some(token)),
            Lease::new(name.clone(), owner, other_token),
        ] {
            assert_eq!(prover(5).check(&proof, &other), wrong, "{other:?}");
        }
        for at in 0..proof.len() {
            let mut changed = proof.clone();
            changed[at] ^= 1;
            assert!(prover(5).check(&changed, &lease).is_err(), "{at}");
            assert_eq!(prover(5).check(&proof[..at], &lease), wrong);
        }
        let another = State::new(Duration::from_secs(60));
        let other_server = Prover::new(another.server, 5, another.key);
        assert_eq!(other_server.check(&proof, &lease), wrong);
    }
}
