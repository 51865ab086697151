//! The checker is worth what it catches: an honest history passes, and each history with one fault in it is caught by the
//! invariant that the fault breaks.

mod ends;
mod faults;
mod looks;
mod messages;
mod play;
mod takeovers;
