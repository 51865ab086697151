//! The version of the protocol, and the limits that both sides keep.

use distlock_core::{Error, ErrorKind, Result};

/// The version of the protocol that this crate speaks.
pub const VERSION: u32 = 1;

/// All versions that this crate speaks.
pub const VERSIONS: [u32; 1] = [VERSION];

/// The port of a URL without a port.
pub const DEFAULT_PORT: u16 = 7420;

/// The longest frame of a client, and the longest unary call. The longest value of a record (256
/// KiB) fits several times.
pub const FRAME_BYTES: usize = 4 * 1024 * 1024;

/// The most parts of one message: of a frame, its operations.
pub const MAX_PARTS: usize = 16_384;

/// The bytes at which a client ends a frame. One operation more still fits into [`FRAME_BYTES`].
pub const CALL_BYTES: usize = 1024 * 1024;

/// The bytes at which a server ends a list of records or locks. One entry more still fits into a
/// frame of [`FRAME_BYTES`]. The client asks for the rest.
pub const ANSWER_BYTES: usize = 1024 * 1024;

/// The most keys of one read.
pub const MAX_READ: usize = 1024;

/// The most locks or records of one answer to a list.
pub const MAX_LISTED: u32 = 4096;

/// Chooses the newest version that both sides speak.
///
/// # Errors
/// [`ErrorKind::Unsupported`] with both lists, if there is none.
pub fn check_versions(theirs: &[u32]) -> Result<u32> {
    let common = theirs.iter().filter(|it| VERSIONS.contains(it)).max();
    common.copied().ok_or_else(|| {
        let problem = format!(
            "this server speaks version {VERSIONS:?} of the protocol, and the client speaks \
             {theirs:?}: install the same version of distlock on both sides"
        );
        Error::new(ErrorKind::Unsupported, problem)
    })
}
