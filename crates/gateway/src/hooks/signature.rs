//! The signatures of events, in the form of Standard Webhooks 1.0.
//!
//! This module must never show a secret.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use distlock_core::Result;
use distlock_listen::FileProblem;
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;

const PREFIX: &str = "whsec_";
/// Most secrets of a receiver: two while one replaces the other, and two more by mistake.
const MOST_SECRETS: usize = 4;
/// Shortest and longest secret, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secrets of a receiver. Each event is signed with each of them, so that a receiver can
/// exchange its secret at any moment.
#[derive(Debug)]
pub(super) struct Secrets(Vec<SecretSlice<u8>>);

impl Secrets {
    /// Reads the content of a file: a secret on each line, and lines that begin with `#`.
    pub(super) fn parse(content: &[u8]) -> Result<Self, FileProblem> {
        let content = str::from_utf8(content).map_err(|_| "is not UTF-8")?;
        let mut secrets = Vec::new();
        for (at, line) in content.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let secret = line.strip_prefix(PREFIX);
            let secret = secret.and_then(|it| BASE64_STANDARD.decode(it).ok());
            let (least, most) = (BYTES.start(), BYTES.end());
            let secret = secret.filter(|it| BYTES.contains(&it.len())).ok_or_else(|| {
                let line = at + 1;
                format!(
                    "has no secret in line {line}: {PREFIX} and the base64 of {least} to {most} \
                     bytes are needed"
                )
            })?;
            secrets.push(secret.into());
        }
        match secrets.len() {
            0 => Err(format!("has no secret: a line with {PREFIX} is needed").into()),
            1..=MOST_SECRETS => Ok(Self(secrets)),
            many => Err(format!("has {many} secrets: at most {MOST_SECRETS} are allowed").into()),
        }
    }

    /// The value of `Webhook-Signature`: a signature of each secret.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let signatures = self.0.iter().filter_map(|secret| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose_secret()).ok()?;
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
            Some(format!("v1,{signature}"))
        });
        signatures.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_signed_with_each_secret() {
        // The example in the README of the specification's own libraries.
        let file = b"# old\nwhsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n\n";
        let body = br#"{"test": 2432232314}"#;
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let secrets = Secrets::parse(file).unwrap();
        let old = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(secrets.sign(id, 1_614_265_330, body), old);
        let two = [&file[..], b"whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n"].concat();
        let both = Secrets::parse(&two).unwrap();
        let signed = both.sign(id, 1_614_265_330, body);
        assert!(signed.starts_with(&format!("{old} v1,")), "{signed}");
        let shown = format!("{both:?}");
        assert_eq!(shown.matches("REDACTED").count(), 2, "{shown}");
    }

    #[test]
    fn a_file_without_good_secrets_is_refused_and_not_shown() {
        let short = "whsec_c2hvcnQ=";
        let good = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";
        for (content, says) in [
            ("", "has no secret"),
            ("# whsec_\n", "has no secret"),
            (short, "in line 1"),
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "in line 1"),
            (&format!("{good}whsec_$$$"), "in line 2"),
            (&good.repeat(5), "has 5 secrets: at most 4"),
        ] {
            let problem = Secrets::parse(content.as_bytes()).unwrap_err();
            assert!(problem.contains(says), "{problem}");
            assert!(
                !problem.contains("MfKQ") && !problem.contains("c2hv") && !problem.contains("$$"),
                "{problem}"
            );
        }
        assert!(Secrets::parse(&[0xff]).is_err());
    }
}
