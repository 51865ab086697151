//! Writes a word so that a shell reads the same word.

/// Quotes a word if a shell would read it differently without quotes.
#[must_use]
pub fn quote_for_shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~+@,:=%".contains(&byte);
    if word.bytes().all(plain) {
        word.to_owned()
    } else if word.chars().any(|c| !is_shown(c)) {
        // A character that is invisible, or that reverses the direction of the line, is written as
        // its code.
        let shown = word.chars().map(|c| match c {
            '\'' | '\\' => format!("\\{c}"),
            c if is_shown(c) => c.to_string(),
            c => format!("\\U{:08x}", u32::from(c)),
        });
        format!("$'{}'", shown.collect::<String>())
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Whether a terminal shows this character as itself.
fn is_shown(c: char) -> bool {
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(quote_for_shell("a\u{202e}b'c"), r"$'a\U0000202eb\'c'");
        assert_eq!(quote_for_shell("é"), "'é'");
        assert_eq!(quote_for_shell("order:42"), "order:42");
        assert_eq!(quote_for_shell("it's"), r"'it'\''s'");
    }
}
