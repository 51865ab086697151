//! The sentences for a lock that was not granted.
//!
//! This module owns the text of a time-out: the holder, the remaining time of its lease, and the
//! advice. The module must escape every text from outside: another process chose the label of the
//! holder.

use std::time::{Duration, SystemTime};

use crate::{
    contract::HolderInfo,
    types::error::{Error, ErrorKind},
};

/// The advice to callers of the library at the end of the time-out error. The advice is the end of
/// the message, so that the command-line tool can replace it by advice with its own options.
#[doc(hidden)]
pub const BUSY_ADVICE: &str =
    "; allow more time with `LockBuilder::wait`, look with `Locker::inspect`";

/// The error for a wait that has ended, with the holder that was seen last.
pub(crate) fn not_free_in_time(
    now: SystemTime,
    wait: Option<Duration>,
    holder: Option<&HolderInfo>,
) -> Error {
    let waited = match wait {
        Some(Duration::ZERO) => "busy".to_owned(),
        Some(wait) => format!("not free within {wait:?}"),
        None => "not free".to_owned(),
    };
    let who = match holder {
        Some(holder) => describe(holder, now),
        None => "the store does not say who holds it".to_owned(),
    };
    Error::new(ErrorKind::Timeout, format!("{waited}: {who}{BUSY_ADVICE}"))
}

/// The error for a wait that ended while the store was unreachable.
pub(crate) fn store_unreachable(wait: Duration, error: Error) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the store was away when the wait of {wait:?} ended"),
    )
    .caused_by(error)
}

/// Describes a holder, for example: `held by ci@host:12 (token 7) for 3.2s, until 6.8s from now
/// unless renewed`.
fn describe(holder: &HolderInfo, now: SystemTime) -> String {
    use std::fmt::Write as _;
    let rounded =
        |time: Duration| Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let mut text = format!("held by {}", holder.holder.escape_debug());
    if let Some(token) = holder.token {
        let _ = write!(text, " (token {token})");
    }
    if let Some(since) = holder
        .acquired_at
        .and_then(|at| now.duration_since(at).ok())
    {
        let _ = write!(text, " for {:?}", rounded(since));
    }
    if let Some(left) = holder.expires_in {
        let _ = write!(text, ", until {:?} from now unless renewed", rounded(left));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_described_with_the_facts_that_are_known() {
        let mut holder = HolderInfo::new("ci@host:12");
        assert_eq!(
            describe(&holder, SystemTime::UNIX_EPOCH),
            "held by ci@host:12"
        );
        holder.token = crate::FencingToken::new(7).ok();
        holder.acquired_at = Some(SystemTime::UNIX_EPOCH);
        holder.expires_in = Some(Duration::from_millis(6800));
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(3_200_400);
        assert_eq!(
            describe(&holder, now),
            "held by ci@host:12 (token 7) for 3.2s, until 6.8s from now unless renewed"
        );
    }
}
