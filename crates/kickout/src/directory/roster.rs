//! Reads and writes of the roster.

use distlock_core::{
    Deleted, Entry, Error, ErrorKind, Expect, RecordKey, Result, Version, Written,
};
use uuid::Uuid;

use crate::{
    directory::{
        access::{Directory, MAX_ATTEMPTS, parse, too_many_conflicts},
        accounts::{VersionedRecord, parse_account},
    },
    model::{ident::Uid, roster::Roster},
};

/// Key of the roster.
const ROSTER: &str = "nodes";

/// Reads a roster and its version; an empty roster if the store has none.
fn parse_roster(key: &RecordKey, entry: Option<Entry>) -> Result<(Option<Version>, Roster)> {
    Ok(match entry {
        None => (None, Roster::default()),
        Some(entry) => {
            let roster: Roster = parse(key, &entry)?;
            (Some(entry.version), roster.check_format()?)
        }
    })
}

impl Directory {
    /// Reads the roster; an empty roster if the store has none.
    pub(crate) async fn roster(&self) -> Result<Roster> {
        let key = RecordKey::new(ROSTER)?;
        let (_, roster) = parse_roster(&key, self.records.get(&key).await?)?;
        Ok(roster)
    }

    /// Changes the roster. `change` returns whether it changed the roster; it is called again after
    /// each conflict or lost reply. Returns the roster afterwards. An empty roster is deleted.
    pub(crate) async fn update_roster(
        &self,
        mut change: impl FnMut(&mut Roster) -> bool,
    ) -> Result<Roster> {
        let key = RecordKey::new(ROSTER)?;
        for _ in 0..MAX_ATTEMPTS {
            let (version, mut roster) = parse_roster(&key, self.records.get(&key).await?)?;
            if !change(&mut roster) {
                return Ok(roster);
            }
            roster.id.get_or_insert_with(Uuid::new_v4);
            let expect = version.map_or(Expect::Absent, Expect::Version);
            let written = if let (true, Some(version)) = (roster.is_empty(), version) {
                let deleted = self.records.delete(&key, version).await;
                deleted.map(|deleted| deleted == Deleted::Done)
            } else {
                let value = serde_json::to_vec(&roster).map_err(|error| {
                    Error::new(ErrorKind::Internal, "the roster cannot be written").caused_by(error)
                })?;
                let written = self.records.put(&key, &value, expect).await;
                self.note_change(&written);
                written.map(|written| matches!(written, Written::Stored(_)))
            };
            match written {
                Ok(true) => return Ok(roster),
                Ok(false) => {}
                // The next round reads the roster and so finds the outcome.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {}
                Err(error) => return Err(error),
            }
        }
        Err(too_many_conflicts(&key))
    }

    /// Reads an account's record and the roster in one request. If the store was emptied before
    /// that read, the roster shows it: it is missing, or has another id.
    pub(crate) async fn read_with_roster(&self, uid: &Uid) -> Result<(VersionedRecord, Roster)> {
        let roster = RecordKey::new(ROSTER)?;
        let keys = [uid.record_key()?, roster];
        let [account, listed] = self
            .records
            .get_many(&keys)
            .await?
            .try_into()
            .map_err(|_| Error::new(ErrorKind::Internal, "two records were asked for"))?;
        let (_, roster) = parse_roster(&keys[1], listed)?;
        Ok((parse_account(uid, account)?, roster))
    }
}
