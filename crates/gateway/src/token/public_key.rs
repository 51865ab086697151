//! Public keys that check login tokens: ES256, EdDSA with Ed25519, and RS256.
//!
//! Invariant of this module: each key has one algorithm, which follows from the key itself. This
//! module must never use a secret, nor a public key as one.

use aws_lc_rs::{
    encoding::AsDer as _,
    rsa::PublicEncryptingKey,
    signature::{
        ECDSA_P256_SHA256_FIXED, ED25519, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256,
        RsaPublicKeyComponents, VerificationAlgorithm,
    },
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use distlock_listen::FileProblem;
use rustls::pki_types::pem::{PemObject as _, SectionKind};
use serde::Deserialize;
use serde_json::Value;

/// Most keys of a file: each one that is tried costs time.
const MOST_IN_FILE: usize = 8;
/// The first byte of a key in DER form. Keys in other forms begin with another byte.
const DER_SEQUENCE: u8 = 0x30;
/// The bytes of an Ed25519 key without DER.
const BARE_ED25519: usize = 32;

/// A public key, with the one algorithm that it is used with.
#[derive(Debug)]
pub(super) struct PublicKey {
    algorithm: Algorithm,
    key: ParsedPublicKey,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Es256,
    EdDsa,
    Rs256,
}

/// A key of a JWK set (RFC 7517), with the members that decide about its use.
#[derive(Deserialize)]
pub(super) struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    r#use: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    /// The private part, which nobody but the signer may have.
    d: Option<Value>,
}

impl Algorithm {
    /// The names of the algorithm in the header of a token, and in a JWK.
    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Es256 => &["ES256"],
            // RFC 9864 has the second name.
            Self::EdDsa => &["EdDSA", "Ed25519"],
            Self::Rs256 => &["RS256"],
        }
    }

    const fn verification(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Self::Es256 => &ECDSA_P256_SHA256_FIXED,
            Self::EdDsa => &ED25519,
            Self::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        }
    }
}

impl PublicKey {
    /// Reads a key in DER form (RFC 5280, `SubjectPublicKeyInfo`) of any length.
    fn parse_der(der: &[u8]) -> Result<Self, &'static str> {
        // The parsers of the library take the bare bytes of a key as well, which may be any bytes.
        if der.len() <= BARE_ED25519 || der.first() != Some(&DER_SEQUENCE) {
            return Err("is not in DER form");
        }
        let algorithms = [Algorithm::Es256, Algorithm::EdDsa, Algorithm::Rs256];
        let mut parsed = algorithms.into_iter().filter_map(|algorithm| {
            let key = ParsedPublicKey::new(algorithm.verification(), der).ok()?;
            Some(Self { algorithm, key })
        });
        parsed
            .next()
            .ok_or("is none of curve P-256, of Ed25519 or of RSA")
    }

    /// Reads a key in DER form that is long enough.
    fn from_der(der: &[u8]) -> Result<Self, &'static str> {
        let key = Self::parse_der(der)?;
        // The length of a key is else checked with each signature, which would refuse every token
        // without a reason.
        if key.algorithm == Algorithm::Rs256 && PublicEncryptingKey::from_der(der).is_err() {
            return Err("is an RSA key of less than 2048 or more than 8192 bits");
        }
        Ok(key)
    }

    /// Whether this key has signed these bytes by the algorithm of this name.
    pub(super) fn has_signed(&self, alg: &str, signed: &[u8], signature: &[u8]) -> bool {
        self.is_for(alg) && self.key.verify_sig(signed, signature).is_ok()
    }

    /// Whether this key is used with the algorithm of this name.
    pub(super) fn is_for(&self, alg: &str) -> bool {
        self.algorithm.names().contains(&alg)
    }
}

impl Jwk {
    /// The name of the key.
    pub(super) fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// The key, if login tokens may be checked with it.
    ///
    /// # Errors
    /// The reason why not, as the rest of a sentence about the key.
    pub(super) fn public_key(&self) -> Result<PublicKey, &'static str> {
        if self.kty == "oct" {
            return Err("is a secret, which no public document may hold");
        }
        if self.d.is_some() {
            return Err("holds its private part, so anybody can sign with it");
        }
        if self.r#use.as_deref().is_some_and(|it| it != "sig") {
            return Err("is for another use");
        }
        let verifies = |operations: &Vec<String>| operations.iter().any(|it| it == "verify");
        if !self.key_ops.as_ref().is_none_or(verifies) {
            return Err("is for other operations");
        }
        let curve = self.crv.as_deref();
        let key = match (self.kty.as_str(), curve) {
            ("EC", Some("P-256")) => {
                let point = [&[4], &*number(&self.x, 32)?, &*number(&self.y, 32)?].concat();
                parse(Algorithm::Es256, &point)
            }
            ("OKP", Some("Ed25519")) => parse(Algorithm::EdDsa, &number(&self.x, 32)?),
            ("RSA", None) => {
                let (n, e) = (member(&self.n)?, member(&self.e)?);
                let key = RsaPublicKeyComponents { n, e };
                let der = key.as_der().map_err(|_| NO_KEY)?;
                PublicKey::from_der(der.as_ref())
            }
            _ => Err("is of a kind that is not supported"),
        }?;
        match &self.alg {
            Some(alg) if !key.is_for(alg) => {
                Err("is for another algorithm than ES256, EdDSA and RS256")
            }
            _ => Ok(key),
        }
    }
}

const NO_KEY: &str = "has members that make no key";

fn parse(algorithm: Algorithm, bytes: &[u8]) -> Result<PublicKey, &'static str> {
    let key = ParsedPublicKey::new(algorithm.verification(), bytes).map_err(|_| NO_KEY)?;
    Ok(PublicKey { algorithm, key })
}

fn member(text: &Option<String>) -> Result<Vec<u8>, &'static str> {
    let text = text.as_ref().ok_or("lacks a member")?;
    URL_SAFE_NO_PAD.decode(text).map_err(|_| NO_KEY)
}

/// A member of this many bytes.
fn number(text: &Option<String>, bytes: usize) -> Result<Vec<u8>, &'static str> {
    let number = member(text)?;
    if number.len() == bytes {
        Ok(number)
    } else {
        Err(NO_KEY)
    }
}

/// The keys of a PEM file.
///
/// # Errors
/// The reason why the file cannot be used.
pub(super) fn parse_pem(content: &[u8]) -> Result<Vec<PublicKey>, FileProblem> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(content) {
        let (kind, der) = section.map_err(|_| "which is not in PEM form")?;
        let key = match kind {
            SectionKind::PublicKey => PublicKey::from_der(&der),
            SectionKind::Certificate => {
                return Err("which holds a certificate: take its key, \
                            by `openssl x509 -noout -pubkey`"
                    .into());
            }
            SectionKind::RsaPrivateKey | SectionKind::PrivateKey | SectionKind::EcPrivateKey => {
                return Err(
                    "which holds a private key: a node must have the public one alone, \
                            by `openssl pkey -pubout`"
                        .into(),
                );
            }
            _ => continue,
        };
        let number = keys.len() + 1;
        keys.push(key.map_err(|why| format!("which cannot be used: key {number} {why}"))?);
    }
    if (1..=MOST_IN_FILE).contains(&keys.len()) {
        return Ok(keys);
    }
    let found = keys.len();
    Err(format!("which holds {found} public keys: 1 to {MOST_IN_FILE} are needed").into())
}

/// Whether a text that is to be a secret is a public key, or holds any key in PEM form. Who knows
/// such a public key could sign with it.
pub(super) fn is_no_secret(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    if text.windows(10).any(|bytes| bytes == b"-----BEGIN") {
        return true;
    }
    if serde_json::from_slice::<Jwk>(text).is_ok() {
        return true;
    }
    let base64: Vec<u8> = text
        .iter()
        .copied()
        .filter(|it| !it.is_ascii_whitespace())
        .collect();
    let der = STANDARD.decode(&base64).unwrap_or_default();
    PublicKey::parse_der(&der).is_ok()
}
