//! Proof that the checker can fail: an honest history passes, and the right invariant catches each
//! history with a planted bug.

mod ends;
mod faults;
mod looks;
mod messages;
mod play;
mod takeovers;
