//! The stored values of held locks and of records.
//!
//! A lock: `OWNER TOKEN MICROS TICKET HOLDER[\nMETA]`. The owner has 32 hexadecimal digits. The
//! token and the time of the grant (microseconds since 1970, by the server's clock) have 16 decimal
//! digits each. The ticket is a nonce of 32 hexadecimal digits, or `-`. Scripts compare the start
//! of the value. So one comparison checks the owner, or the owner and the token.
//!
//! A record: the version and the time of the write, 16 decimal digits each, then the bytes of the
//! value.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use distlock_core::{
    AcquireRequest, Entry, Error, ErrorKind, FencingToken, HolderInfo, HolderLabel, Lease,
    LockName, Meta, OwnerId, RecordKey, Result, Version,
};

/// The number of digits of an owner.
pub(crate) const OWNER_DIGITS: usize = 32;
/// The number of digits of a token, a version or a time.
pub(crate) const NUMBER_DIGITS: usize = 16;

/// The length of the longest value of a lock: owner, token, time, ticket, the separators, the
/// holder, and the meta on its own line. Readers request one byte more, so that they recognise a
/// longer value.
pub(crate) const MAX_LOCK_VALUE: usize = OWNER_DIGITS
    + NUMBER_DIGITS
    + NUMBER_DIGITS
    + OWNER_DIGITS
    + 4
    + HolderLabel::MAX_BYTES
    + 1
    + Meta::MAX_BYTES;

/// Returns the digits of an owner in a value.
pub(crate) fn owner(owner: OwnerId, buffer: &mut [u8; OWNER_DIGITS]) -> &str {
    owner.as_uuid().as_simple().encode_lower(buffer)
}

/// Returns the digits of a number in a value.
pub(crate) fn number(number: u64) -> String {
    String::from_utf8_lossy(&digits(number)).into_owned()
}

/// Returns the digits of a number. All numbers here are below 10^16. Every release of a lock runs
/// this function, and the standard formatter is slower.
fn digits(mut number: u64) -> [u8; NUMBER_DIGITS] {
    let mut digits = [b'0'; NUMBER_DIGITS];
    for pair in digits.rchunks_exact_mut(2) {
        // A remainder of division by a hundred has two digits.
        let two = u8::try_from(number % 100).unwrap_or(0);
        number /= 100;
        pair[0] += two / 10;
        pair[1] += two % 10;
    }
    digits
}

/// Reads a number from a script's reply.
pub(crate) fn read_number(text: &[u8]) -> Option<u64> {
    if text.len() != NUMBER_DIGITS {
        return None;
    }
    text.iter().try_fold(0, |number: u64, digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit < 10).then(|| number * 10 + u64::from(digit))
    })
}

/// A lease as the scripts compare it with a value: the owner, the token if it is known, and the
/// nonce of a ticket.
pub(crate) struct LeaseText {
    bytes: [u8; OWNER_DIGITS + 1 + NUMBER_DIGITS + 1 + OWNER_DIGITS],
    len: usize,
}

impl LeaseText {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the text of this lease.
pub(crate) fn lease(lease: &Lease) -> LeaseText {
    let mut text = LeaseText {
        bytes: [b' '; OWNER_DIGITS + 1 + NUMBER_DIGITS + 1 + OWNER_DIGITS],
        len: OWNER_DIGITS,
    };
    let (owner, rest) = text.bytes.split_at_mut(OWNER_DIGITS);
    lease.owner.as_uuid().as_simple().encode_lower(owner);
    let (number, nonce) = rest.split_at_mut(1 + NUMBER_DIGITS);
    if let Some(token) = lease.token {
        number[1..].copy_from_slice(&digits(token.get()));
        text.len += number.len();
    }
    if let Some(id) = lease.nonce {
        id.as_simple().encode_lower(&mut nonce[1..]);
        text.len = text.bytes.len();
    }
    text
}

/// Returns holder and meta in the form of a value.
pub(crate) fn label(request: &AcquireRequest) -> Cow<'_, str> {
    let holder = request.holder.as_str();
    match &request.meta {
        None => Cow::Borrowed(holder),
        Some(meta) => Cow::Owned(format!("{holder}\n{}", meta.as_str())),
    }
}

/// Parses the value of a lock. `left` is the answer to `PTTL`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for a value that this library never writes.
pub(crate) fn holder(name: &LockName, value: &[u8], left: i64) -> Result<HolderInfo> {
    parse_holder(value, left).ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            "the store holds something under the lock's key that this library did not write",
        )
        .about(name)
    })
}

fn parse_holder(value: &[u8], left: i64) -> Option<HolderInfo> {
    if value.len() > MAX_LOCK_VALUE {
        return None;
    }
    let text = str::from_utf8(value).ok()?;
    let mut parts = text.splitn(5, ' ');
    let owner = parts.next()?;
    let mut number = || read_number(parts.next()?.as_bytes());
    let (token, micros) = (number()?, number()?);
    let ticket = parts.next()?;
    let is_hex =
        |text: &str| text.len() == OWNER_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hex(owner) || !(ticket == "-" || is_hex(ticket)) {
        return None;
    }
    let label = parts.next()?;
    let (holder, meta) = match label.split_once('\n') {
        Some((holder, meta)) => (holder, Some(meta.to_owned())),
        None => (label, None),
    };
    let mut info = HolderInfo::new(holder);
    info.meta = meta;
    info.token = Some(FencingToken::new(token).ok()?);
    info.acquired_at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
    // -1 means a key without a TTL. Somebody changed the key by hand, and it never expires.
    info.expires_in = u64::try_from(left).ok().map(Duration::from_millis);
    Some(info)
}

/// Parses the value of a record. `now` is the server's clock, in microseconds since 1970.
///
/// # Errors
/// [`ErrorKind::Corrupt`] for a value that this library never writes.
pub(crate) fn entry(key: &RecordKey, value: &[u8], now: u64) -> Result<Entry> {
    let parsed = value
        .split_at_checked(2 * NUMBER_DIGITS)
        .and_then(|(head, rest)| {
            let (version, written) = head.split_at_checked(NUMBER_DIGITS)?;
            let (version, written) = (read_number(version)?, read_number(written)?);
            let age = Duration::from_micros(now.saturating_sub(written));
            let entry = Entry::new(Version::new(version), rest.to_vec(), Some(age));
            Some(entry.read_at(Duration::from_micros(now)))
        });
    parsed.ok_or_else(|| corrupt_record(key))
}

pub(crate) fn corrupt_record(key: &RecordKey) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "the store holds something under the key of record {key:?} that this library did not \
             write"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripts;

    const OWNER_TEXT: &str = "00112233445566778899aabbccddeeff";

    fn name() -> LockName {
        LockName::new("order:42").unwrap()
    }

    fn read(value: &str) -> Result<HolderInfo> {
        holder(&name(), value.as_bytes(), 1500)
    }

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let head = format!("{OWNER_TEXT} 0000000000000007 1760000000000001");
        let info = read(&format!("{head} - ci@host:1 with spaces")).unwrap();
        assert_eq!(info.holder, "ci@host:1 with spaces");
        assert_eq!(info.meta, None);
        assert_eq!(info.token.map(FencingToken::get), Some(7));
        assert_eq!(info.expires_in, Some(Duration::from_millis(1500)));
        assert_eq!(
            info.acquired_at,
            Some(SystemTime::UNIX_EPOCH + Duration::from_micros(1_760_000_000_000_001))
        );
        let info = read(&format!("{head} {OWNER_TEXT} -\n")).unwrap();
        assert_eq!((&*info.holder, info.meta.as_deref()), ("-", Some("")));
        let info = read(&format!("{head} - a - b\nline\nline")).unwrap();
        assert_eq!(
            (&*info.holder, info.meta.as_deref()),
            ("a - b", Some("line\nline"))
        );
        let info = read(&format!("{head} - a - b")).unwrap();
        assert_eq!(&*info.holder, "a - b");
    }

    #[test]
    fn a_foreign_value_is_corrupt() {
        for value in [
            "",
            "1",
            OWNER_TEXT,
            &format!("{OWNER_TEXT} 7 1760000000000001 - a"),
            &format!("{OWNER_TEXT} 0000000000000000 1760000000000001 - a"),
            &format!("{OWNER_TEXT} 0000000000000007 1760000000000001"),
            &format!("{OWNER_TEXT} 0000000000000007 1760000000000001 x a"),
            &format!("{} 0000000000000007 1760000000000001 - a", "z".repeat(32)),
        ] {
            assert_eq!(
                read(value).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{value}"
            );
        }
        assert!(holder(&name(), &[0xff; 80], 1).is_err());
        let head = format!("{OWNER_TEXT} 0000000000000007 1760000000000001 {OWNER_TEXT} ");
        let (label, meta) = (
            "h".repeat(HolderLabel::MAX_BYTES),
            "m".repeat(Meta::MAX_BYTES),
        );
        let longest = format!("{head}{label}\n{meta}");
        assert_eq!(longest.len(), MAX_LOCK_VALUE);
        let asked = format!(", 0, {MAX_LOCK_VALUE})");
        assert!(scripts::ACQUIRE.source.contains(&asked));
        assert_eq!(read(&longest).unwrap().meta, Some(meta));
        let error = read(&format!("{longest}m")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_record_is_parsed() {
        let key = RecordKey::new("k").unwrap();
        let read = entry(&key, b"00000000000000070000000000001000\0bytes", 1500).unwrap();
        assert_eq!(
            read,
            Entry::new(
                Version::new(7),
                b"\0bytes".to_vec(),
                Some(Duration::from_micros(500))
            )
            .read_at(Duration::from_micros(1500))
        );
        for value in [
            &b""[..],
            b"7",
            b"000000000000000x0000000000001000",
            &[0xff; 40],
        ] {
            assert_eq!(
                entry(&key, value, 0).unwrap_err().kind(),
                ErrorKind::Corrupt
            );
        }
    }
}
