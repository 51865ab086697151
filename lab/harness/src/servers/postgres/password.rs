//! Computes the form in which the server stores a password, so that the password itself is never
//! sent.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::servers::isolation::Password;

/// Returns the form in which the server stores a password, in the notation of RFC 5803. The form
/// has one round of hashing instead of the server's default of 4,096. More rounds make guessing
/// slower, and a random password cannot be guessed anyway. With 4,096 rounds, each connection of an
/// unoptimised client would take a tenth of a second longer.
pub(super) fn scram_verifier(password: &Password) -> String {
    let salt = Uuid::new_v4().into_bytes();
    let salted = hmac(
        password.expose().as_bytes(),
        &[&salt[..], &[0, 0, 0, 1]].concat(),
    );
    let stored = Sha256::digest(hmac(&salted, b"Client Key"));
    let server = hmac(&salted, b"Server Key");
    let [salt, stored, server] =
        [&salt[..], &stored[..], &server[..]].map(|it| STANDARD.encode(it));
    format!("SCRAM-SHA-256$1:{salt}${stored}:{server}")
}

/// HMAC-SHA-256 (RFC 2104), for a key that is no longer than a block.
pub(super) fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let padded = |with: u8| -> Vec<u8> {
        let key = key.iter().copied().chain(std::iter::repeat(0)).take(64);
        key.map(|byte| byte ^ with).collect()
    };
    let inner = Sha256::digest([padded(0x36), text.to_vec()].concat());
    Sha256::digest([padded(0x5c), inner.to_vec()].concat()).into()
}
