//! Tokens: login tokens, and tokens of calls between nodes.

mod calls;
mod key_set;
mod key_url;
mod login;
mod login_keys;
mod public_key;
#[cfg(test)]
mod signers;
#[cfg(test)]
mod tests;

pub(crate) use calls::{Call, CheckedCall, PeerKey};
pub use login::{TokenKey, mint, mint_for_class};
pub(crate) use login_keys::{LoginKeys, LoginRefusal};
