//! The code that all backends share.
//!
//! A backend implements a [`Driver`]: the schemes of its URLs, its options, and the code that opens
//! a store. [`Drivers`] is a list of drivers, and opens a [`Target`] with the driver of its scheme.
//! The other modules are parts that several backends use. This crate knows no particular backend,
//! and never decides who holds a lock.
//!
//! # Map
//!
//! | content | module |
//! |---|---|
//! | a kind of store, and the list of all kinds | [`Driver`], [`Drivers`] |
//! | a URL with its options, and errors that name the wrong one | [`Target`], [`Options`], [`blame`] |
//! | operations, their answers, and how they are undone | [`operation`] |
//! | many operations in one request | [`batch`] |
//! | the connections of a pool, and the epochs that they found | [`Lender`], [`EpochHistory`] |
//! | several stores that one backend is made of | [`Members`] |
//! | the pace of attempts to connect to a server that is away | [`ConnectGate`] |
//! | when a waiter renews its entry in the store queue | [`queue_entry`] |
//! | how many requests a store has sent | [`RequestCount`] |
//! | escapes such as `%41` | [`percent_decode`], [`percent_encode`] |
//! | passwords and certificates | [`Secret`], [`PasswordRule`], `TlsFile`, [`mask`](fn@mask) |
//! | credentials and certificates that change | [`CredentialProvider`], [`CredentialSource`], `CertificateFiles` |
//! | files that may block, never end or hang | [`FileReads`], [`read_bounded`] |
//! | file systems on which locks of files cannot be relied on | [`network_file_system`] |
//! | panics of drivers, turned into errors | [`panics`] |

pub mod batch;
pub mod blame;
#[cfg(feature = "tls")]
mod certificate_files;
mod connect_gate;
mod credentials;
mod driver;
mod drivers;
mod epoch_history;
mod file_reads;
mod file_systems;
mod lending;
mod mask;
mod members;
mod open_flag;
pub mod operation;
mod options;
pub mod panics;
mod password;
mod percent;
pub mod queue_entry;
mod request_count;
mod target;
#[cfg(feature = "tls")]
mod tls_files;

#[cfg(feature = "tls")]
pub use {
    certificate_files::{CertificateFiles, NamedFile},
    tls_files::TlsFile,
};
pub use {
    connect_gate::{ConnectGate, LONGEST_PAUSE},
    credentials::{
        Certificates, CredentialProvider, CredentialSource, Credentials, SharedProvider,
    },
    driver::{Driver, DriverOption, DriverUrl, Migrated},
    drivers::{Drivers, Spawner, not_compiled_in},
    epoch_history::EpochHistory,
    file_reads::{FileReads, read_bounded},
    file_systems::network_file_system,
    lending::{Lender, Loan},
    mask::{is_secret, mask},
    members::{Member, MemberCheck, MemberHandle, MemberTarget, Members, Sent, add_health_of},
    open_flag::OpenFlag,
    options::{Given, Options, Origin, hint, nearest, unknown_option},
    password::{PasswordRule, Secret, TLS_DISABLE, is_loopback},
    percent::{has_whole_escapes, percent_decode, percent_encode, percent_encode_path},
    request_count::RequestCount,
    target::{Target, TargetParts, WrittenCredentials},
};
