//! Proof that the checker can fail: an honest history passes, and the right invariant catches each
//! history with a planted bug.

mod builder;
mod ends;
mod faults;
mod messages;
mod occasions;
mod takeovers;
