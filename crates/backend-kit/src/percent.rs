//! Percent-encoding of parts of URLs.
//!
//! This module decides which bytes an encoder leaves as they are. Invariant: [`percent_decode`]
//! reads back every text that an encoder has written. No function here may report the text itself,
//! because it may be a part of a password.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str};

/// The bytes that are encoded in a part of a URL: all but the unreserved ones of RFC 3986.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The bytes that are encoded in the path of a file. The other bytes are left for readability.
const RESERVED_IN_PATH: &AsciiSet = &RESERVED
    .remove(b'/')
    .remove(b'+')
    .remove(b',')
    .remove(b':')
    .remove(b'=')
    .remove(b'@');

/// Encodes a text for one part of a URL: a user, a host, a segment of a path, a value in a query.
/// ASCII letters, ASCII digits and `-._~` stay.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, RESERVED).to_string()
}

/// Encodes the path of a file for a URL. ASCII letters, ASCII digits and `/._-~+@,:=` stay.
#[must_use]
pub fn percent_encode_path(path: &[u8]) -> String {
    percent_encoding::percent_encode(path, RESERVED_IN_PATH).to_string()
}

/// Decodes escapes such as `%41`. A `%` without two hexadecimal digits stays. `None` when the
/// result is not UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.ok().map(Cow::into_owned)
}

/// Whether two hexadecimal digits follow each `%`. A backend that refuses broken escapes calls this
/// function before [`percent_decode`], which keeps them as they are.
#[must_use]
pub fn has_whole_escapes(text: &str) -> bool {
    text.split('%').skip(1).all(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_escapes_are_decoded_and_other_percent_signs_stay() {
        for (text, decoded, whole) in [
            ("", Some(""), true),
            ("/tmp/a b", Some("/tmp/a b"), true),
            ("%2Ftmp%3f%25", Some("/tmp?%"), true),
            ("100%", Some("100%"), false),
            ("%zz%4", Some("%zz%4"), false),
            ("%+1", Some("%+1"), false),
            ("%%41", Some("%A"), false),
            ("%4\u{e9}", Some("%4\u{e9}"), false),
            ("%C3%A9", Some("\u{e9}"), true),
            ("%ff", None, true),
            ("%ff%", None, false),
        ] {
            assert_eq!(percent_decode(text).as_deref(), decoded, "{text}");
            assert_eq!(has_whole_escapes(text), whole, "{text}");
        }
    }

    #[test]
    fn every_byte_but_those_that_stay_is_encoded() {
        assert_eq!(percent_encode("anna-._~09"), "anna-._~09");
        assert_eq!(percent_encode("a/b c%ü&="), "a%2Fb%20c%25%C3%BC%26%3D");
        assert_eq!(percent_encode_path(b"/._-~+@,:=aZ09"), "/._-~+@,:=aZ09");
        assert_eq!(percent_encode_path(b"a b?%\xff;\0"), "a%20b%3F%25%FF%3B%00");
        let ascii: String = (0..128).map(char::from).collect();
        for encoded in [
            percent_encode(&ascii),
            percent_encode_path(ascii.as_bytes()),
        ] {
            assert_eq!(percent_decode(&encoded).as_deref(), Some(&*ascii));
        }
    }
}
