//! A lock over versioned records, on the records of the memory backend.

mod costs;
mod fixture;
mod inspect_and_wait;
mod lost_answers;
mod ownership;
