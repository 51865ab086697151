//! Close codes of a WebSocket for errors that concern no session.

use super::frames::ErrorCode;

/// Close codes of RFC 6455.
pub(super) const NORMAL: u16 = 1000;
pub(super) const POLICY_VIOLATION: u16 = 1008;
const TOO_BIG: u16 = 1009;

pub(super) const fn close_code(code: ErrorCode) -> u16 {
    match code {
        ErrorCode::TooLong => TOO_BIG,
        _ => POLICY_VIOLATION,
    }
}
