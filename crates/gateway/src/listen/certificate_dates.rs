//! The time during which the certificates of a file are valid.
//!
//! This module warns of certificates that the other side refuses for their dates, and never refuses
//! one itself: the clock of this host may be wrong, and the other certificates of the node may be
//! good.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use x509_cert::{
    Certificate,
    der::{DateTime, Decode as _},
};

/// The metric for the time until a certificate expires.
pub(crate) const EXPIRY: &str = "distlock_tls_expiry_seconds";

/// The time during which every certificate of one file is valid.
#[derive(Clone, Debug)]
pub(super) struct CertificateDates {
    /// The configuration key that names the file.
    key: &'static str,
    file: String,
    not_before: DateTime,
    not_after: DateTime,
}

impl CertificateDates {
    /// Reads the dates of the certificates in a file; `None` if no certificate shows its dates.
    pub(super) fn read(
        key: &'static str,
        file: &str,
        certificates: &[CertificateDer<'_>],
    ) -> Option<Self> {
        let dates = certificates.iter().filter_map(|certificate| {
            let parsed = Certificate::from_der(certificate).ok()?;
            let validity = parsed.tbs_certificate().validity();
            let dates = (validity.not_before, validity.not_after);
            Some((dates.0.to_date_time(), dates.1.to_date_time()))
        });
        let (not_before, not_after) =
            dates.reduce(|all, one| (all.0.max(one.0), all.1.min(one.1)))?;
        Some(Self {
            key,
            file: file.to_owned(),
            not_before,
            not_after,
        })
    }

    /// Warns if a certificate of the file is not valid at this time.
    pub(super) fn warn(&self, now: SystemTime) {
        let (key, file) = (self.key, &self.file);
        if self.not_after.to_system_time() < now {
            tracing::warn!(
                key, ?file, expired = %self.not_after,
                "a certificate has expired, so connections that need it are refused: replace the \
                 file and send HUP to the node"
            );
        }
        if now < self.not_before.to_system_time() {
            tracing::warn!(
                key, ?file, valid_from = %self.not_before,
                "a certificate is not valid yet, so connections that need it are refused: is the \
                 clock of this host right?"
            );
        }
    }

    /// Sets the metric for the time until the first certificate of the file expires.
    pub(super) fn record(&self, now: SystemTime) {
        metrics::gauge!(EXPIRY, "key" => self.key).set(self.seconds_left(now));
    }

    /// The time until the first certificate of the file expires, in seconds, negative afterwards.
    pub(super) fn seconds_left(&self, now: SystemTime) -> f64 {
        match self.not_after.to_system_time().duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(since) => -since.duration().as_secs_f64(),
        }
    }
}
