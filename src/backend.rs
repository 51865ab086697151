//! For the authors of backends: the requests and answers of the contract, the driver that opens a
//! store, and parts that the built-in backends use. The traits themselves, [`DistLock`] and
//! [`Records`], are in the root of this crate, with the values that callers see too.
//!
//! `examples/custom_backend` is a complete backend with its tests: it stores locks in a folder of
//! the file system.
//!
//! [`DistLock`]: crate::DistLock
//! [`Records`]: crate::Records

#[cfg(feature = "tls")]
pub use distlock_backend_kit::{CertificateFiles, NamedFile, TlsFile};
#[doc(inline)]
pub use distlock_backend_kit::{
    Certificates, ConnectGate, CredentialSource, Driver, DriverOption, DriverUrl, Drivers,
    EpochHistory, FileReads, LONGEST_PAUSE, Lender, Loan, OpenFlag, PasswordRule, RequestCount,
    Secret, SharedProvider, TLS_DISABLE, TargetParts, WrittenCredentials, batch, blame,
    has_whole_escapes, hint, is_loopback, is_secret, not_compiled_in, operation, panics,
    percent_decode, percent_encode, percent_encode_path, queue_entry, read_bounded, unknown_option,
};
#[doc(inline)]
pub use distlock_core::{
    AcquireRequest, Contender, Grant, HandOver, Lease, LossFeed, LossSender, Meta, ReleaseOutcome,
    Renewal, Renewed, TicketStep, at_most, check_value, decode, encode, excerpt, log, margin,
    micros, path_excerpt, presentable, quote_for_shell, sync, threads, unix_time,
};
