//! Values inside statements, as hexadecimal digits. So no value contains a quote, needs an escape
//! or depends on the connection's character set.

/// Bytes, as `x'61'`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2 + 3);
    push_hex(&mut out, bytes);
    out
}

/// Appends bytes to a statement.
pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    out.reserve(bytes.len() * 2 + 3);
    out.push_str("x'");
    for byte in bytes {
        for half in [byte >> 4, byte & 15] {
            out.push(char::from(b"0123456789abcdef"[usize::from(half)]));
        }
    }
    out.push('\'');
}

/// Appends text to a statement, for a column of text.
pub(crate) fn push_text(out: &mut String, text: &str) {
    out.push_str("_utf8mb4 ");
    push_hex(out, text.as_bytes());
}

/// The elements of a list for `IN (..)`.
pub(crate) fn list<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    let mut out = String::new();
    for value in values {
        if !out.is_empty() {
            out.push(',');
        }
        push_hex(&mut out, value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_holds_hexadecimal_digits_only() {
        assert_eq!(hex(b"a'\\\0"), "x'61275c00'");
        assert_eq!(hex(b""), "x''");
        let mut text = String::new();
        push_text(&mut text, "\u{e9}\"");
        assert_eq!(text, "_utf8mb4 x'c3a922'");
        assert_eq!(list([b"a".as_slice(), b"b"].into_iter()), "x'61',x'62'");
    }
}
