//! Lock names and record keys, and their reversible encoding.
//!
//! Invariant: a name is checked once, before any I/O, and compared byte for byte. No code may fold,
//! trim or normalise a name: two names that differ are two locks.

use std::{fmt, sync::Arc};

use crate::types::error::{Error, ErrorKind, Result};

/// The name of a lock: 1 to 255 bytes of UTF-8 without control characters.
///
/// Names are compared byte for byte. Case, trailing space and Unicode form matter; `/`, `.`, `%`,
/// quotes, glob signs and braces are ordinary characters. No backend ever folds or trims a name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest allowed name, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// The beginning of the names of locks that belong to shared locks: the slots of their holders,
    /// and the lines of those who wait. Callers cannot take such locks by name.
    pub const RESERVED: &'static str = "~shared~/";

    /// Checks a name before any I/O.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] with the broken rule and the value.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        check("lock name", name, Self::MAX_BYTES)?;
        Ok(Self(name.into()))
    }

    /// Checks a name of raw bytes. A command line can carry bytes that are not UTF-8.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when the bytes are not UTF-8 or break a rule of
    /// [`LockName::new`].
    pub fn from_bytes(name: &[u8]) -> Result<Self> {
        match std::str::from_utf8(name) {
            Ok(name) => Self::new(name),
            Err(error) => Err(Error::new(
                ErrorKind::InvalidName,
                format!(
                    "lock name is not UTF-8: byte {} of \"{}\"",
                    error.valid_up_to(),
                    name.escape_ascii()
                ),
            )),
        }
    }

    /// Checks a name as [`LockName::new`] does, and that it is not [reserved](Self::RESERVED).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`].
    pub fn of_caller(name: impl AsRef<str>) -> Result<Self> {
        let name = Self::new(name)?;
        if name.is_reserved() {
            let problem = format!(
                "lock name begins with {}, which is for the parts of shared locks: \"{}\"",
                Self::RESERVED,
                shorten(&name.0)
            );
            return Err(Error::new(ErrorKind::InvalidName, problem));
        }
        Ok(name)
    }

    /// Whether the lock belongs to a shared lock.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with(Self::RESERVED)
    }

    /// The name, unchanged.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// The key of a record: 1 to 512 bytes of UTF-8 without control characters, compared byte for byte.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey(Arc<str>);

impl RecordKey {
    /// The longest allowed key, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks a key before any I/O.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] with the broken rule and the value.
    pub fn new(key: impl AsRef<str>) -> Result<Self> {
        let key = key.as_ref();
        check("record key", key, Self::MAX_BYTES)?;
        Ok(Self(key.into()))
    }

    /// The key, unchanged.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for RecordKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

fn check(what: &str, name: &str, max: usize) -> Result<()> {
    // Most names are printable ASCII of an allowed length. Such names skip the slower check of each
    // character.
    let plain = |byte: &u8| (b' '..=b'~').contains(byte);
    if (1..=max).contains(&name.len()) && name.as_bytes().iter().all(plain) {
        return Ok(());
    }
    let problem = if name.is_empty() {
        format!("{what} is empty: 1 to {max} bytes are allowed")
    } else if name.len() > max {
        format!(
            "{what} is {} bytes long: at most {max} are allowed (\"{}...\")",
            name.len(),
            shorten(name)
        )
    } else if let Some(at) = name.find(char::is_control) {
        format!(
            "{what} has a control character at byte {at}: \"{}\"",
            shorten(name)
        )
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::InvalidName, problem))
}

/// Returns the start of a value with its control characters escaped, so that the text cannot move a
/// terminal's cursor.
pub(crate) fn shorten(value: &str) -> String {
    value
        .chars()
        .take(40)
        .flat_map(char::escape_debug)
        .collect()
}

/// Encodes any text into `[A-Za-z0-9_-]` plus `~xx` escapes, so that the result can be one path
/// segment, key part or node name.
///
/// The encoding is injective, and [`decode`] reverses it. Each byte outside the plain set becomes
/// `~` and two lower-case hexadecimal digits. So two texts with the same leading characters encode
/// to two texts with the same beginning.
#[must_use]
pub fn encode(text: &str) -> String {
    use fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "~{byte:02x}");
        }
    }
    out
}

/// Reverses [`encode`]. Returns `None` for a text that [`encode`] never produces.
#[must_use]
pub fn decode(encoded: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'~' => hex(rest.next()?)? << 4 | hex(rest.next()?)?,
            byte if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' => byte,
            _ => return None,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    // `~41` would be another spelling of `A`. Only the spelling that `encode` returns is accepted.
    (encode(&text) == encoded).then_some(text)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_over_255_bytes_or_with_control_characters_are_refused() {
        assert!(LockName::new("a").is_ok());
        assert!(LockName::new("x".repeat(255)).is_ok());
        for bad in [
            String::new(),
            "x".repeat(256),
            "é".repeat(128),
            "a\nb".into(),
            "\u{7f}".into(),
            "\u{85}".into(),
        ] {
            assert_eq!(
                LockName::new(&bad).unwrap_err().kind(),
                ErrorKind::InvalidName,
                "{bad:?}"
            );
        }
        assert_eq!(
            LockName::from_bytes(b"a\xff").unwrap_err().kind(),
            ErrorKind::InvalidName
        );
    }

    #[test]
    fn names_with_special_characters_are_accepted_unchanged() {
        for name in [
            "/", ".", "..", "%", "'\"`", "*?[]", "{x}", "a ", " a", "~", "~41", "é", "e\u{301}",
            "-", "_",
        ] {
            assert_eq!(LockName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_text_that_encode_never_produces_is_not_decoded() {
        assert_eq!(decode("~41"), None);
        assert_eq!(decode("~4"), None);
        assert_eq!(decode("~2F"), None);
        assert_eq!(decode("a/b"), None);
        assert_eq!(decode("~ff"), None);
        assert_eq!(decode("~2f").as_deref(), Some("/"));
    }

    proptest! {
        #[test]
        fn an_encoded_text_is_plain_ascii_and_decodes_to_its_source(text in any::<String>()) {
            let encoded = encode(&text);
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-~".contains(&b)));
            prop_assert_eq!(decode(&encoded), Some(text));
        }

        #[test]
        fn different_texts_encode_differently(a in "[ -~é]{0,6}", b in "[ -~é]{0,6}") {
            prop_assert_eq!(a == b, encode(&a) == encode(&b));
        }

        #[test]
        fn a_decoded_text_encodes_to_the_same_input(text in any::<String>()) {
            if let Some(decoded) = decode(&text) {
                prop_assert_eq!(encode(&decoded), text);
            }
        }
    }
}
