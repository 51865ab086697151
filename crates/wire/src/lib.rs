//! The protocol of the lock server, which is defined in `proto/distlock/lock/v1/lock.proto`.
//!
//! [`v1`] holds the messages as they were generated. The other modules convert them to the values
//! of the contract and back. A conversion checks everything that it reads, so a value of the
//! contract that came over the wire keeps all rules of the contract.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | the messages, the client and the server, generated | [`v1`] |
//! | requests and answers about locks | `lock` |
//! | the state of locks, and of the store | `state` |
//! | records | `record` |
//! | what the store behind a server can do | `capabilities` |
//! | errors, and the status of a refused call | `error` |
//! | the version, and the limits of frames | `limits` |
//! | the codec of the calls, which refuses messages of too many parts | `codec` |
//!
//! # Promises
//!
//! - The wire carries durations, never wall-clock times. A moment is rebuilt from the receiver's
//!   own clock, for display only.
//! - No text of an error repeats an owner or a nonce.

mod capabilities;
mod codec;
mod error;
mod limits;
mod lock;
mod record;
mod state;
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unnameable_types,
    unreachable_pub,
    unused_qualifications,
    reason = "generated from the protocol definition; a test compares the two"
)]
pub mod v1 {
    //! The messages of version 1, the client and the server, as they were generated.
    include!("generated/distlock.lock.v1.rs");
}
mod value;

/// The descriptors of the protocol in their encoded form, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/distlock.lock.v1.bin");

pub use limits::{
    ANSWER_BYTES, CALL_BYTES, DEFAULT_PORT, FRAME_BYTES, MAX_LISTED, MAX_PARTS, MAX_READ, VERSION,
    VERSIONS, check_versions,
};
