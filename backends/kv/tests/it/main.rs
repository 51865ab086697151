//! Tests of the lock over versioned records. A memory store keeps the records.

mod costs;
mod fixture;
mod inspect_and_wait;
mod lost_answers;
mod ownership;
