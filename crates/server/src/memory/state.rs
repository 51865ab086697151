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

/// What a server knows across its starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// The identity of the server, made at its first start.
    pub(super) server: Uuid,
    /// The number of this start.
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
