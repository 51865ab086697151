//! Text from outside, made fit for a message: a name, a path or a server's answer may hold what
//! moves a terminal's cursor, or pages of text.

use std::fmt::Write as _;

/// Most characters of one quotation.
const LONGEST: usize = 200;

/// A message with its control characters made visible, and its words cut after 200 characters:
/// what is quoted in it may be anything. Its own line ends stay.
#[must_use]
pub fn presentable(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut word = 0;
    for c in message.chars() {
        word = if c.is_whitespace() { 0 } else { word + 1 };
        match c {
            _ if word == LONGEST + 1 => text.push('\u{2026}'),
            _ if word > LONGEST => {}
            '\n' => text.push(c),
            c => push_visible(&mut text, c),
        }
    }
    text
}

/// The beginning of a text that somebody else wrote, in one line, for a quotation.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let mut shown = String::new();
    let mut chars = text.trim().chars();
    for c in chars.by_ref().take(LONGEST) {
        push_visible(&mut shown, c);
    }
    if chars.next().is_some() {
        shown.push('\u{2026}');
    }
    shown
}

fn push_visible(text: &mut String, c: char) {
    // The last ones turn the direction of what follows round.
    let is_odd = c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if is_odd {
        let _ = write!(text, "{}", c.escape_default());
    } else {
        text.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_made_visible() {
        let odd = "a\u{1b}[31m\rb\u{9b}\u{202e}\u{7f}c\nd \"\u{e9}\" \\n";
        let shown = "a\\u{1b}[31m\\rb\\u{9b}\\u{202e}\\u{7f}c\nd \"\u{e9}\" \\n";
        assert_eq!(presentable(odd), shown);
        assert_eq!(excerpt(odd), shown.replacen('\n', "\\n", 1));
    }

    #[test]
    fn long_words_and_long_quotations_are_cut() {
        let word = "x".repeat(LONGEST);
        let long = format!("{word}y{word} is too long: {word}");
        let cut = format!("{word}\u{2026} is too long: {word}");
        assert_eq!(presentable(&long), cut);
        let words = "many words ".repeat(100);
        assert_eq!(presentable(&words), words);
        assert_eq!(excerpt(&words).chars().count(), LONGEST + 1);
    }
}
