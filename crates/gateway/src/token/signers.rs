//! Signers of login tokens for tests: programs outside, which alone have the private keys.

use aws_lc_rs::{
    encoding::AsDer as _,
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_SHA256,
    },
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::{Value, json};

/// A key pair, with the name of its algorithm.
pub(crate) enum Signer {
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
    Rs256(RsaKeyPair),
}

impl Signer {
    pub(crate) fn es256() -> Self {
        Self::Es256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub(crate) fn eddsa() -> Self {
        Self::EdDsa(Ed25519KeyPair::generate().unwrap())
    }

    pub(crate) fn rs256() -> Self {
        Self::Rs256(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    pub(crate) fn alg(&self) -> &'static str {
        match self {
            Self::Es256(_) => "ES256",
            Self::EdDsa(_) => "EdDSA",
            Self::Rs256(_) => "RS256",
        }
    }

    /// The public key in DER form.
    pub(crate) fn der(&self) -> Vec<u8> {
        let der = match self {
            Self::Es256(pair) => pair.public_key().as_der(),
            Self::EdDsa(pair) => pair.public_key().as_der(),
            Self::Rs256(pair) => pair.public_key().as_der(),
        };
        der.unwrap().as_ref().to_vec()
    }

    /// The public key in PEM form.
    pub(crate) fn pem(&self) -> String {
        let base64 = STANDARD.encode(self.der());
        let lines: Vec<_> = base64
            .as_bytes()
            .chunks(64)
            .map(String::from_utf8_lossy)
            .collect();
        let lines = lines.join("\n");
        format!("-----BEGIN PUBLIC KEY-----\n{lines}\n-----END PUBLIC KEY-----\n")
    }

    /// The public key as a JWK of this name.
    pub(crate) fn jwk(&self, kid: &str) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match self {
            Self::Es256(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
                json!({"kty": "EC", "crv": "P-256", "x": x, "y": y})
            }
            Self::EdDsa(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "x": x})
            }
            Self::Rs256(pair) => {
                // A sequence of two integers: 256 bytes after a sign, and 65537.
                let der = pair.public_key().as_ref();
                let (n, e) = (encode(&der[9..265]), encode(&der[267..]));
                json!({"kty": "RSA", "n": n, "e": e})
            }
        };
        jwk["kid"] = json!(kid);
        jwk
    }

    /// A token with these claims, which names its algorithm, and its key if there is a name.
    pub(crate) fn token(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = json!({"alg": self.alg(), "typ": "JWT"});
        if let Some(kid) = kid {
            header["kid"] = json!(kid);
        }
        self.token_with(&header, claims)
    }

    /// A token with any header.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let encode = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = self.sign(signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn sign(&self, bytes: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Es256(pair) => pair.sign(&random, bytes).unwrap().as_ref().to_vec(),
            Self::EdDsa(pair) => pair.sign(bytes).as_ref().to_vec(),
            Self::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let sign = pair.sign(&RSA_PKCS1_SHA256, &random, bytes, &mut signature);
                sign.unwrap();
                signature
            }
        }
    }
}

/// The claims of a good token of this account.
pub(crate) fn claims(uid: &str, now: u64) -> Value {
    json!({
        "sub": uid, "iss": "distlock", "aud": "distlock-gateway", "iat": now, "exp": now + 60,
    })
}
