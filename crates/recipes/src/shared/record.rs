//! The record that lists the holders of a shared lock, and the decision who may enter.
//!
//! Invariant: the entries of a record are pairwise compatible. Each change is computed from a
//! record that was read, and written on condition of its version. The module sends nothing.

use distlock_core::{
    Entry as Stored, Error, ErrorKind, FencingToken, MAX_VALUE_BYTES, RecordKey, Result,
};
use serde::{Deserialize, Serialize, de};

use super::Kind;

/// The format number of the record. A reader refuses a record with another number.
const FORMAT: u8 = 1;

/// The largest number of holders of one name.
pub(super) const MAX_ENTRIES: usize = 4000;

/// The largest number of permits of one semaphore: the numbers of all of them fit a record.
pub(super) const MAX_PERMITS: u32 = 30_000;

/// The longest name of a slot in bytes. Every store takes it as a part of a lock name.
const MAX_SLOT_BYTES: usize = 64;

/// Whoever enters beside more entries than these looks for dead ones first.
pub(super) const MANY_ENTRIES: usize = 64;

/// What a holder may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Read,
    Write,
    /// The permits by number.
    Permits(Vec<u32>),
}

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Read,
    Write,
    Permits(u32),
}

impl Wish {
    /// How many permits it needs.
    pub(super) const fn permits(self) -> Option<u32> {
        match self {
            Self::Permits(number) => Some(number),
            Self::Read | Self::Write => None,
        }
    }

    /// Whether an entry with this mode is what it asks for.
    pub(super) fn is_met_by(self, mode: &Mode) -> bool {
        match (self, mode) {
            (Self::Read, Mode::Read) | (Self::Write, Mode::Write) => true,
            (Self::Permits(wanted), Mode::Permits(indices)) => {
                usize::try_from(wanted).is_ok_and(|wanted| wanted == indices.len())
            }
            _ => false,
        }
    }
}

/// The name of an entry: the slot, and the token with which the holder has it. Whoever gets a slot
/// has a higher token than its holder before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub(super) slot: String,
    pub(super) token: FencingToken,
}

/// A holder in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    pub(super) mode: Mode,
}

/// The holders of one name, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// How many permits there are; `None` for a lock of readers and writers.
    pub(super) capacity: Option<u32>,
    pub(super) entries: Vec<Entry>,
}

/// The text of a record. The entries are lists, because there may be thousands.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    v: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    entries: Vec<(String, FencingToken, ModeText)>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ModeText {
    Letter(Letter),
    Permits(Vec<u32>),
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Letter {
    #[serde(rename = "r")]
    Read,
    #[serde(rename = "w")]
    Write,
}

impl Record {
    /// The record of this kind without holders.
    pub(super) const fn empty(capacity: Option<u32>) -> Self {
        Self {
            capacity,
            entries: Vec::new(),
        }
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`].
    pub(super) fn parse(key: &RecordKey, stored: &Stored, kind: Kind) -> Result<Self> {
        let corrupt = |why: &dyn std::fmt::Display| {
            let problem = format!("the record {key} is not a list of holders: {why}");
            Error::new(ErrorKind::Corrupt, problem)
        };
        let text: Text = serde_json::from_slice(&stored.value).map_err(|error| corrupt(&error))?;
        if text.v != FORMAT {
            let why = format!("format {} is not known here, only {FORMAT}", text.v);
            return Err(corrupt(&why));
        }
        if Kind::of(text.capacity) != kind {
            return Err(corrupt(&"it is of another kind of lock"));
        }
        let entries = text.entries.into_iter().map(|(slot, token, mode)| Entry {
            id: EntryId { slot, token },
            mode: mode.into(),
        });
        let record = Self {
            capacity: text.capacity,
            entries: entries.collect(),
        };
        record
            .check()
            .map_err(|error: de::value::Error| corrupt(&error))?;
        Ok(record)
    }

    /// A record that nobody can have written would give the same permit to two holders.
    fn check<E: de::Error>(&self) -> Result<(), E> {
        if self
            .capacity
            .is_some_and(|it| !(1..=MAX_PERMITS).contains(&it))
        {
            return Err(E::custom("the number of permits is out of range"));
        }
        let mut taken: Vec<u32> = Vec::new();
        for entry in &self.entries {
            if !(1..=MAX_SLOT_BYTES).contains(&entry.id.slot.len()) {
                return Err(E::custom("a slot has an impossible name"));
            }
            match (&entry.mode, self.capacity) {
                (Mode::Permits(permits), Some(_)) if !permits.is_empty() => taken.extend(permits),
                (Mode::Read, None) => {}
                (Mode::Write, None) if self.entries.len() == 1 => {}
                _ => return Err(E::custom("two holders exclude each other")),
            }
        }
        // After a smaller capacity, holders of higher numbers keep them until they leave.
        if taken.iter().any(|index| *index >= MAX_PERMITS) {
            return Err(E::custom("a permit has an impossible number"));
        }
        let all = taken.len();
        taken.sort_unstable();
        taken.dedup();
        if taken.len() < all {
            return Err(E::custom("two holders have the same permit"));
        }
        Ok(())
    }

    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for a record that no store takes.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let entries = self.entries.iter().map(|entry| {
            let mode = ModeText::from(&entry.mode);
            (entry.id.slot.clone(), entry.id.token, mode)
        });
        let text = Text {
            v: FORMAT,
            capacity: self.capacity,
            entries: entries.collect(),
        };
        let value = serde_json::to_vec(&text).map_err(|error| {
            Error::new(ErrorKind::Internal, "a list of holders cannot be written").caused_by(error)
        })?;
        if value.len() > MAX_VALUE_BYTES {
            return Err(full(self.entries.len()));
        }
        Ok(value)
    }

    pub(super) fn find(&self, id: &EntryId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == *id)
    }

    /// The numbers of the permits that nobody has, the lowest first.
    fn free(&self) -> Vec<u32> {
        let capacity = self.capacity.unwrap_or(0);
        let mut is_taken = vec![false; usize::try_from(capacity).unwrap_or(usize::MAX)];
        for index in self.taken() {
            // After a smaller limit, the holders of higher numbers keep them until they leave.
            if let Some(taken) = is_taken.get_mut(usize::try_from(index).unwrap_or(usize::MAX)) {
                *taken = true;
            }
        }
        let free = (0..capacity)
            .zip(is_taken)
            .filter(|(_, is_taken)| !is_taken);
        // And count as taken, so that all holders together have no more than the new limit.
        let left = usize::try_from(capacity).unwrap_or(usize::MAX);
        let left = left.saturating_sub(self.taken().count());
        free.map(|(index, _)| index).take(left).collect()
    }

    fn taken(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().flat_map(|entry| match &entry.mode {
            Mode::Permits(permits) => permits.clone(),
            Mode::Read | Mode::Write => Vec::new(),
        })
    }

    /// The number of permits that nobody has.
    pub(super) fn free_permits(&self) -> u32 {
        u32::try_from(self.free().len()).unwrap_or(u32::MAX)
    }

    /// What a holder with this wish gets beside the present holders; `None` if they exclude it.
    pub(super) fn fit(&self, wish: Wish) -> Option<Mode> {
        match wish {
            Wish::Write => self.entries.is_empty().then_some(Mode::Write),
            Wish::Read => {
                let only_readers = self.entries.iter().all(|entry| entry.mode == Mode::Read);
                only_readers.then_some(Mode::Read)
            }
            Wish::Permits(wanted) => {
                let mut free = self.free();
                let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
                (free.len() >= wanted).then(|| {
                    free.truncate(wanted);
                    Mode::Permits(free)
                })
            }
        }
    }

    /// Adds a holder that fits.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the record is full.
    pub(super) fn add(&mut self, id: EntryId, mode: Mode) -> Result<()> {
        if self.entries.len() >= MAX_ENTRIES {
            return Err(full(self.entries.len()));
        }
        self.entries.push(Entry { id, mode });
        Ok(())
    }

    /// The holders that keep a caller with this wish out, the oldest first.
    pub(super) fn blockers(&self, wish: Wish) -> Vec<EntryId> {
        if self.fit(wish).is_some() {
            return Vec::new();
        }
        let blocks = |entry: &&Entry| wish != Wish::Read || entry.mode == Mode::Write;
        let blockers = self.entries.iter().filter(blocks);
        blockers.map(|entry| entry.id.clone()).collect()
    }
}

/// The error of a record that takes no more holders.
pub(super) fn full(holders: usize) -> Error {
    let problem = format!(
        "{holders} holders are on record: at most {MAX_ENTRIES} of one name in {} KiB are allowed",
        MAX_VALUE_BYTES / 1024
    );
    Error::new(ErrorKind::LimitExceeded, problem)
}

impl From<&Mode> for ModeText {
    fn from(mode: &Mode) -> Self {
        match mode {
            Mode::Read => Self::Letter(Letter::Read),
            Mode::Write => Self::Letter(Letter::Write),
            Mode::Permits(permits) => Self::Permits(permits.clone()),
        }
    }
}

impl From<ModeText> for Mode {
    fn from(mode: ModeText) -> Self {
        match mode {
            ModeText::Letter(Letter::Read) => Self::Read,
            ModeText::Letter(Letter::Write) => Self::Write,
            ModeText::Permits(permits) => Self::Permits(permits),
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::Version;

    use super::*;

    fn id(number: u64) -> EntryId {
        EntryId {
            slot: format!("s{number}"),
            token: FencingToken::new(number).unwrap(),
        }
    }

    fn with(capacity: Option<u32>, modes: &[Mode]) -> Record {
        let mut record = Record::empty(capacity);
        for (number, mode) in (1..).zip(modes) {
            record.add(id(number), mode.clone()).unwrap();
        }
        record
    }

    fn parsed(value: &[u8], kind: Kind) -> Result<Record> {
        let stored = Stored::new(Version::new(1), value.to_vec(), None);
        Record::parse(&RecordKey::new("shared/x").unwrap(), &stored, kind)
    }

    #[test]
    fn readers_exclude_writers_only_and_a_writer_excludes_all() {
        let readers = with(None, &[Mode::Read, Mode::Read]);
        assert_eq!(readers.fit(Wish::Read), Some(Mode::Read));
        assert_eq!(readers.fit(Wish::Write), None);
        assert_eq!(readers.blockers(Wish::Write), [id(1), id(2)]);
        let writer = with(None, &[Mode::Write]);
        assert_eq!(writer.fit(Wish::Read), None);
        assert_eq!(writer.fit(Wish::Write), None);
        assert_eq!(writer.blockers(Wish::Read), [id(1)]);
        assert_eq!(Record::empty(None).fit(Wish::Write), Some(Mode::Write));
    }

    #[test]
    fn permits_are_the_lowest_numbers_that_nobody_has() {
        let held = with(Some(5), &[Mode::Permits(vec![0, 3])]);
        assert_eq!(held.fit(Wish::Permits(2)), Some(Mode::Permits(vec![1, 2])));
        assert_eq!(held.fit(Wish::Permits(4)), None);
        assert_eq!(held.free_permits(), 3);
    }

    #[test]
    fn under_a_smaller_limit_the_holders_of_higher_numbers_count() {
        let held = with(Some(2), &[Mode::Permits(vec![4, 5])]);
        assert_eq!(held.free_permits(), 0);
        let held = with(Some(3), &[Mode::Permits(vec![4, 5])]);
        assert_eq!(held.fit(Wish::Permits(1)), Some(Mode::Permits(vec![0])));
        assert_eq!(held.fit(Wish::Permits(2)), None);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in [
            with(None, &[Mode::Read, Mode::Read]),
            with(None, &[Mode::Write]),
            with(
                Some(9),
                &[Mode::Permits(vec![0, 8]), Mode::Permits(vec![1])],
            ),
        ] {
            let read = parsed(&record.encode().unwrap(), Kind::of(record.capacity));
            assert_eq!(read.unwrap(), record);
        }
    }

    #[test]
    fn a_record_that_nobody_can_have_written_is_corrupt() {
        for text in [
            "",
            "{}",
            r#"{"v":2,"entries":[]}"#,
            r#"{"v":1,"entries":[["a",0,"r"]]}"#,
            r#"{"v":1,"entries":[["a",1,"x"]]}"#,
            r#"{"v":1,"entries":[["a",1,[0]]]}"#,
            r#"{"v":1,"entries":[["a",1,"w"],["b",2,"r"]]}"#,
            r#"{"v":1,"entries":[["",1,"r"]]}"#,
            r#"{"v":1,"capacity":0,"entries":[]}"#,
            r#"{"v":1,"capacity":4000000000,"entries":[]}"#,
            r#"{"v":1,"capacity":2,"entries":[["a",1,[4000000000]]]}"#,
            r#"{"v":1,"capacity":2,"entries":[["a",1,"r"]]}"#,
            r#"{"v":1,"capacity":2,"entries":[["a",1,[]]]}"#,
            r#"{"v":1,"capacity":2,"entries":[["a",1,[0]],["b",2,[0]]]}"#,
        ] {
            for kind in [Kind::ReadWrite, Kind::Semaphore] {
                let error = parsed(text.as_bytes(), kind).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
            }
        }
    }

    #[test]
    fn the_largest_number_of_holders_fits_a_record() {
        let mut record = Record::empty(None);
        let token = FencingToken::new(FencingToken::LIMIT - 1).unwrap();
        for number in 0..MAX_ENTRIES {
            let slot = format!("0123456789abcdef-{number}");
            record.add(EntryId { slot, token }, Mode::Read).unwrap();
        }
        assert!(record.encode().is_ok());
        let error = record.add(id(1), Mode::Read).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}
