//! A lock over versioned records, on the memory backend's records.

mod lost_answers;
mod ownership;
mod people;
mod scene;
