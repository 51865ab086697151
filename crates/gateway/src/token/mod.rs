//! Tokens: login tokens, and tokens of calls between nodes.

mod calls;
mod login;

pub(crate) use calls::{Call, CheckedCall, PeerKey};
pub use login::{TokenKey, mint, mint_for_class};
