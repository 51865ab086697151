//! Fencing tokens, and the epoch that they belong to.
//!
//! Invariant: a token is between 1 and 2^53 - 1, so that JSON, JavaScript and Lua carry it exactly.
//! Tokens of different lock names must not be compared, unless the store declares
//! [`FencingScope::Global`](crate::FencingScope::Global).

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::types::error::{Error, ErrorKind, Result};

/// A number that rises with every grant of a lock name. A fenced resource refuses a lower one.
///
/// A token is always below 2^53, so that JSON, JavaScript and Lua carry it exactly. Tokens are
/// compared by value only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct FencingToken(u64);

impl FencingToken {
    /// The largest token plus one.
    pub const LIMIT: u64 = 1 << 53;

    /// Checks that a number can be a token.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 and for 2^53 and above.
    pub fn new(value: u64) -> Result<Self> {
        if (1..Self::LIMIT).contains(&value) {
            Ok(Self(value))
        } else {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("fencing token {value} is outside 1 to 2^53 - 1"),
            ))
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The hybrid rule: `max(previous + 1, clock in microseconds)`.
    ///
    /// The token strictly rises while the store keeps the counter. After the store lost the
    /// counter, the token still rises, unless the store's clock is behind by more than the time
    /// since the last grant. Each store computes the rule itself, in the step that grants.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when the counter has reached 2^53. Such a counter is corrupted,
    /// because the clock reaches 2^53 microseconds only in the year 2255.
    pub fn hybrid(previous: u64, clock_micros: u64) -> Result<Self> {
        Self::new(previous.saturating_add(1).max(clock_micros)).map_err(|_| {
            Error::new(
                ErrorKind::LimitExceeded,
                format!("no fencing token is left above {previous}"),
            )
        })
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = Error;

    fn try_from(value: u64) -> Result<Self> {
        Self::new(value)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// An opaque name of the store's history. Tokens of two epochs do not come from one continuous
/// counter.
///
/// Examples are a Redis run id with its last promotion, a Postgres timeline, an etcd cluster id,
/// and a server's boot. Equal epochs mean one history. Different epochs mean that the store may
/// have forgotten grants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epoch(Arc<str>);

impl Epoch {
    /// The epoch with this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A duration since 1970 in whole microseconds, the unit of tokens.
#[must_use]
pub fn micros(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_outside_1_to_2_pow_53_are_refused() {
        assert!(FencingToken::new(0).is_err());
        assert!(FencingToken::new(FencingToken::LIMIT).is_err());
        assert!(FencingToken::new(FencingToken::LIMIT - 1).is_ok());
        assert_eq!(
            FencingToken::hybrid(u64::MAX, 1).unwrap_err().kind(),
            ErrorKind::LimitExceeded
        );
    }

    proptest! {
        #[test]
        fn hybrid_tokens_rise_whatever_the_clock_reads(
            start in 0u64..1 << 52,
            clocks in prop::collection::vec(0u64..1 << 52, 1..50),
        ) {
            let mut last = start;
            for clock in clocks {
                let next = FencingToken::hybrid(last, clock).unwrap().get();
                prop_assert!(next > last && next >= clock);
                last = next;
            }
        }
    }
}
