//! The resume token: a client shows it after a broken connection to get its session back.
//!
//! The token proves no identity; the login token does. The directory decides whether the session
//! may resume.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::model::{
    ident::{Generation, SessionId, Uid},
    record::{Slot, UserRecord},
};

/// Names the client's last session. The token proves nothing by itself: the directory confirms or
/// refuses its claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResumeToken {
    uid: Uid,
    slot: Slot,
    session: SessionId,
    r#gen: Generation,
}

impl ResumeToken {
    pub(crate) const fn new(uid: Uid, slot: Slot, session: SessionId, r#gen: Generation) -> Self {
        Self {
            uid,
            slot,
            session,
            r#gen,
        }
    }

    /// Reads the text that a client of this account sent.
    pub(crate) fn parse(text: &str, uid: &Uid) -> Result<Self> {
        let refused = || Error::new(ErrorKind::InvalidArgument, "resume token is not valid");
        if text.len() > 1024 {
            return Err(refused());
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| refused())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| refused())?;
        if token.uid != *uid {
            return Err(refused());
        }
        Ok(token)
    }

    /// Whether the session may resume. It may resume if it still has its slot. If it left the slot,
    /// it may resume unless a newer session got the slot or an administrator ended the session.
    pub(crate) fn is_current(&self, record: &UserRecord) -> bool {
        match record.slots.get(&self.slot) {
            Some(entry) => entry.key.session == self.session && entry.r#gen == self.r#gen,
            None => !record.is_over(&self.slot, self.r#gen),
        }
    }

    pub(crate) const fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) const fn generation(&self) -> Generation {
        self.r#gen
    }

    /// The text for the client.
    pub(crate) fn to_text(&self) -> String {
        // A struct of four plain fields always serialises.
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_bound_to_account_slot_session_and_generation() {
        let uid = Uid::new("u").unwrap();
        let token = ResumeToken::new(
            uid.clone(),
            Slot::main(),
            SessionId::random(),
            Generation::new(7),
        );
        assert_eq!(ResumeToken::parse(&token.to_text(), &uid).unwrap(), token);
        assert!(ResumeToken::parse(&token.to_text(), &Uid::new("v").unwrap()).is_err());
        for garbage in ["", "x", "e30", &"A".repeat(2000)] {
            assert!(ResumeToken::parse(garbage, &uid).is_err());
        }
        let mut record = UserRecord {
            r#gen: Generation::new(7),
            ..UserRecord::default()
        };
        assert!(token.is_current(&record));
        // Another device logs in to another slot; then a device logs in to this slot.
        record.r#gen = Generation::new(8);
        assert!(token.is_current(&record));
        let past = record.past.entry(Slot::main()).or_default();
        past.over = Generation::new(7);
        assert!(!token.is_current(&record));
    }
}
