//! What the state file holds, and its text.
//!
//! Invariant: a text that was cut off or changed is noticed, and never read as another state.

use std::{fmt, fmt::Write as _, time::Duration};

use distlock_core::FencingToken;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// The first word of the text, and the version of its form.
const WORD: &str = "distlock-state";
const VERSION: &str = "1";

/// The random bits of the number of a start. After a state was put back, the next start has the
/// count of one that the state does not know: these bits tell the two apart.
pub(super) const RANDOM_BITS: u32 = 20;

/// Whether a start is not among those that led to the start `known`: it came later, or the state
/// was put back since.
pub(super) const fn is_unknown(start: u64, known: u64) -> bool {
    start != known && start >> RANDOM_BITS >= known >> RANDOM_BITS
}

/// What a server knows across its starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// The identity of the server, made at its first start.
    pub(super) server: Uuid,
    /// The number of this start: its count, and [`RANDOM_BITS`] random ones.
    pub(super) start: u64,
    /// The number of the history that the locks belong to. It rises when locks were forgotten.
    pub(super) history: u64,
    pub(super) key: Key,
    /// All tokens that were granted are below this number.
    pub(super) ceiling: u64,
    /// No lease that may still run is longer.
    longest_lease_ms: u64,
    /// The force-released locks whose leases may still run.
    pub(super) forced: Vec<ForcedLock>,
    /// How the locks of the last start were stored, if it stopped in order.
    pub(super) clean: Option<CleanStop>,
}

/// A lock that was force-released. Its holder cannot prove it any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForcedLock {
    pub(super) name: String,
    pub(super) token: FencingToken,
}

/// The file of the exported locks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CleanStop {
    /// The boot of the machine, on whose clock the leases count.
    pub(super) boot: String,
    /// The path of the state file. A copy at another path is not followed by the locks of there.
    pub(super) place: String,
    /// The digest of the file.
    pub(super) digest: String,
}

/// The secret key of proofs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key([u8; 32]);

/// Why a text is no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// It is the file of another program.
    Foreign,
    /// It was written by another version of this program.
    OtherVersion,
    /// A part of it is missing or was changed.
    Damaged,
}

impl State {
    /// The state of a server that starts for the first time.
    pub(super) fn new(longest_lease: Duration) -> Self {
        let mut state = Self {
            server: Uuid::new_v4(),
            start: 0,
            history: 0,
            key: Key::new(),
            ceiling: 0,
            longest_lease_ms: 0,
            forced: Vec::new(),
            clean: None,
        };
        state.set_longest_lease(longest_lease);
        state
    }

    /// Numbers the start after the one that wrote this state.
    pub(super) fn number_start(&mut self) {
        let count = (self.start >> RANDOM_BITS) + 1;
        let random = u64::from(Uuid::new_v4().as_fields().0) >> (32 - RANDOM_BITS);
        self.start = (count << RANDOM_BITS) + random;
    }

    pub(super) const fn longest_lease(&self) -> Duration {
        Duration::from_millis(self.longest_lease_ms)
    }

    pub(super) fn set_longest_lease(&mut self, lease: Duration) {
        self.longest_lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
    }

    pub(super) fn to_text(&self) -> serde_json::Result<String> {
        let body = serde_json::to_string_pretty(self)?;
        Ok(format!(
            "{WORD} {VERSION} {}\n{body}\n",
            digest(body.as_bytes())
        ))
    }

    pub(super) fn from_text(text: &str) -> Result<Self, Unreadable> {
        let (head, body) = text.split_once('\n').unwrap_or((text, ""));
        let mut words = head.split(' ');
        if words.next() != Some(WORD) {
            return Err(Unreadable::Foreign);
        }
        match words.next() {
            Some(VERSION) => {}
            Some(other) if !other.is_empty() => return Err(Unreadable::OtherVersion),
            _ => return Err(Unreadable::Damaged),
        }
        let body = body.strip_suffix('\n').ok_or(Unreadable::Damaged)?;
        if words.next() != Some(digest(body.as_bytes()).as_str()) {
            return Err(Unreadable::Damaged);
        }
        serde_json::from_str(body).map_err(|_| Unreadable::Damaged)
    }
}

impl Key {
    fn new() -> Self {
        // Each of them has 122 random bits.
        let random = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
        let mut digest = Sha256::new();
        random.iter().for_each(|it| digest.update(it.as_bytes()));
        Self(digest.finalize().into())
    }

    pub(super) const fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The digest of a text, in hexadecimal digits.
pub(super) fn digest(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let mut state = State::new(Duration::from_secs(60));
        state.ceiling = 1 << 52;
        let token = FencingToken::new(7).unwrap();
        let name = "a\nb".to_owned();
        state.forced.push(ForcedLock { name, token });
        state
    }

    #[test]
    fn a_state_is_read_from_its_own_text() {
        let state = state();
        let text = state.to_text().unwrap();
        assert_eq!(State::from_text(&text), Ok(state.clone()));
        assert!(!format!("{state:?}").contains("key: ["), "{state:?}");
    }

    #[test]
    fn the_starts_before_are_known_and_those_of_a_lost_state_are_not() {
        let first = state();
        let next = |of: &State| {
            let mut state = of.clone();
            state.number_start();
            state.start
        };
        let mut second = first.clone();
        second.start = next(&first);
        let third = next(&second);
        for known in [first.start, second.start, third] {
            assert!(!is_unknown(known, third), "{known}");
        }
        // By chance, two of them are the same.
        let put_back: Vec<_> = (0..9).map(|_| next(&first)).collect();
        assert!(put_back.iter().any(|it| is_unknown(*it, second.start)));
        assert!(is_unknown(third, put_back[0]));
    }

    #[test]
    fn a_text_that_was_cut_off_or_changed_is_refused() {
        let text = state().to_text().unwrap();
        for end in 0..text.len() {
            assert!(State::from_text(&text[..end]).is_err(), "{end}");
        }
        let risen = text.replace(&(1_u64 << 52).to_string(), &(1_u64 << 51).to_string());
        assert_eq!(State::from_text(&risen), Err(Unreadable::Damaged));
        let newer = text.replacen(" 1 ", " 2 ", 1);
        assert_eq!(State::from_text(&newer), Err(Unreadable::OtherVersion));
        assert_eq!(State::from_text("[backend]\n"), Err(Unreadable::Foreign));
    }
}
