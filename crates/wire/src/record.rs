//! Records.

use std::time::Duration;

use distlock_core::{Deleted, Entry, Expect, RecordKey, Result, Version, Written, micros};

use crate::{v1, value::missing};

impl From<Entry> for v1::Record {
    fn from(entry: Entry) -> Self {
        Self {
            version: entry.version.get(),
            value: entry.value,
            age_us: entry.age.map(micros),
            store_time_us: entry.store_time.map(micros),
        }
    }
}

impl From<v1::Record> for Entry {
    fn from(wire: v1::Record) -> Self {
        let age = wire.age_us.map(Duration::from_micros);
        let mut entry = Self::new(Version::new(wire.version), wire.value, age);
        entry.store_time = wire.store_time_us.map(Duration::from_micros);
        entry
    }
}

impl v1::KeyedRecord {
    /// The record of this message, with its key.
    ///
    /// # Errors
    /// [`InvalidArgument`](distlock_core::ErrorKind::InvalidArgument) and
    /// [`InvalidName`](distlock_core::ErrorKind::InvalidName).
    pub fn read(self) -> Result<(RecordKey, Entry)> {
        let record = self.record.ok_or_else(|| missing("record"))?;
        Ok((RecordKey::new(self.key)?, record.into()))
    }
}

impl v1::WriteRecord {
    /// The message of this write.
    #[must_use]
    pub fn new(key: &RecordKey, value: Vec<u8>, expect: Expect) -> Self {
        Self {
            key: key.as_str().to_owned(),
            value,
            expect_version: match expect {
                Expect::Absent => None,
                Expect::Version(version) => Some(version.get()),
            },
        }
    }

    /// The condition of this write.
    #[must_use]
    pub fn expect(&self) -> Expect {
        self.expect_version
            .map_or(Expect::Absent, |it| Expect::Version(Version::new(it)))
    }
}

impl From<Written> for v1::WriteAnswer {
    fn from(written: Written) -> Self {
        Self {
            version: match written {
                Written::Stored(version) => Some(version.get()),
                Written::Conflict => None,
            },
        }
    }
}

impl From<v1::WriteAnswer> for Written {
    fn from(wire: v1::WriteAnswer) -> Self {
        wire.version
            .map_or(Self::Conflict, |it| Self::Stored(Version::new(it)))
    }
}

impl From<Deleted> for v1::RemoveAnswer {
    fn from(deleted: Deleted) -> Self {
        Self {
            deleted: deleted == Deleted::Done,
        }
    }
}

impl From<v1::RemoveAnswer> for Deleted {
    fn from(wire: v1::RemoveAnswer) -> Self {
        if wire.deleted {
            Self::Done
        } else {
            Self::Conflict
        }
    }
}
