//! Cases of records.

mod reading;
mod steps;
mod writing;

pub(crate) use reading::CASES as READING;
pub(crate) use writing::CASES as WRITING;
