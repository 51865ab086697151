//! These tests prove that the checker can fail: a correct history passes, and each history with a
//! planted bug breaks the expected invariant.

mod builder;
mod ends;
mod faults;
mod messages;
mod occasions;
mod takeovers;
