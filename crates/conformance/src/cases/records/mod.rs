//! Property: every write of a record is conditional, no version is used twice, and a read returns
//! the latest write.

mod reading;
mod steps;
mod writing;

pub(crate) use reading::CASES as READING;
pub(crate) use writing::CASES as WRITING;
