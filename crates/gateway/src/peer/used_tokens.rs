//! The used tokens: each token is valid for one call, once.
//!
//! This module remembers every call between nodes by the id of its token, until the token is
//! refused for its age: at most 70 s, usually 30 s to 40 s. This module must never forget a token
//! that is still valid. Its memory belongs to one start of a node. After a restart the node has
//! other sessions, so repeated calls about the earlier sessions have no effect.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tonic::Status;
use uuid::Uuid;

use crate::token::CheckedCall;

/// Most calls that are remembered at one time: 26,000 calls a second for 40 s. An entry takes at
/// most 40 bytes, so all entries take at most 42 MB.
const MAX_TOKENS: usize = 1 << 20;
/// Seconds whose tokens are forgotten together.
const SLOT_SECONDS: u64 = 10;

/// The ids of used tokens, by the time slot in which the last of them ends.
#[derive(Debug, Default)]
pub(super) struct UsedTokens(Mutex<BTreeMap<u64, HashSet<Uuid>>>);

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenRefusal {
    UsedBefore,
    TooMany,
}

impl UsedTokens {
    /// Records that a call was made with this token.
    pub(super) fn record(&self, token: &CheckedCall, now: SystemTime) -> Result<(), TokenRefusal> {
        self.record_with_limit(token.id, token.until, now, MAX_TOKENS)
    }

    fn record_with_limit(
        &self,
        id: Uuid,
        until: u64,
        now: SystemTime,
        limit: usize,
    ) -> Result<(), TokenRefusal> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot is removed after its last second. Until then its tokens may be valid.
        while let Some(first) = slots.first_entry()
            && *first.key() < now / SLOT_SECONDS
        {
            first.remove();
        }
        // Two slots cannot hold the same token, because the signature covers the token's time.
        let slot = until / SLOT_SECONDS;
        if slots.get(&slot).is_some_and(|ids| ids.contains(&id)) {
            return Err(TokenRefusal::UsedBefore);
        }
        if slots.values().map(HashSet::len).sum::<usize>() >= limit {
            return Err(TokenRefusal::TooMany);
        }
        slots.entry(slot).or_default().insert(id);
        Ok(())
    }
}

impl TokenRefusal {
    /// The answer to the caller. With either refusal, the call had no effect.
    pub(super) fn to_status(self) -> Status {
        let says = self.to_string();
        match self {
            Self::UsedBefore => Status::unauthenticated(says),
            Self::TooMany => Status::resource_exhausted(says),
        }
    }
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsedBefore => f.write_str("its token was used before: it is good for one call"),
            Self::TooMany => write!(f, "there were {MAX_TOKENS} calls within less than 70 s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: u64 = 1_000_005;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn a_token_is_remembered_exactly_as_long_as_it_is_valid() {
        let used = UsedTokens::default();
        let held = || -> usize { used.0.lock().unwrap().values().map(HashSet::len).sum() };
        for until in [NOW, NOW + 30, NOW + 60] {
            let id = Uuid::new_v4();
            let take = |second| used.record_with_limit(id, until, at(second), MAX_TOKENS);
            assert_eq!(take(NOW), Ok(()));
            for second in [NOW, until] {
                assert_eq!(
                    take(second),
                    Err(TokenRefusal::UsedBefore),
                    "{until} at {second}"
                );
            }
            used.record_with_limit(
                Uuid::new_v4(),
                until + 70,
                at(until + SLOT_SECONDS),
                MAX_TOKENS,
            )
            .unwrap();
            assert_eq!(held(), 1, "{until} is forgotten");
            *used.0.lock().unwrap() = BTreeMap::new();
        }
    }

    #[test]
    fn calls_beyond_the_memory_limit_are_refused() {
        let used = UsedTokens::default();
        let take = |now| used.record_with_limit(Uuid::new_v4(), now + 30, at(now), 3);
        for _ in 0..3 {
            assert_eq!(take(NOW), Ok(()));
        }
        assert_eq!(take(NOW), Err(TokenRefusal::TooMany));
        assert_eq!(take(NOW + 50), Ok(()), "the others have ended");
    }
}
