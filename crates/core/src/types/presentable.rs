//! Makes text from outside this library safe to show in a message.
//!
//! A name, a path or a server's answer may hold control characters that move a terminal's cursor,
//! or pages of text. This module owns the rules that escape and shorten such text. Invariant: a
//! second call with the result of a first call changes nothing, because several layers show one
//! message. The module must never cut a sentence that this library wrote.

use std::{fmt::Write as _, ops::Range, path::Path};

/// The most characters that are shown of one word or one quotation.
const LONGEST: usize = 200;
/// The longest line, in characters. The middle of a longer line is cut out. No message of this
/// library has so long a line, so the line contains a text from outside whose quotation marks were
/// not recognised.
const LONGEST_LINE: usize = 2000;
/// The number of characters that a longer line keeps at its beginning, where a message names its
/// subject, and at its end, where a message names the remedy.
const KEPT: (usize, usize) = (1000, 400);

/// Escapes the control characters of a message, and cuts each word and each quotation after 200
/// characters, because a quotation may hold text from outside. The line ends of the message stay.
#[must_use]
pub fn presentable(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    let mut ranges_to_cut = ranges_to_cut(message).into_iter().peekable();
    let mut word = 0;
    for (at, c) in message.char_indices() {
        while ranges_to_cut.next_if(|range| range.end <= at).is_some() {}
        if let Some(range) = ranges_to_cut.peek()
            && range.contains(&at)
        {
            if range.start == at {
                text.push('\u{2026}');
            }
            word = 0;
            continue;
        }
        word = if c.is_whitespace() { 0 } else { word + 1 };
        match c {
            _ if word == LONGEST + 1 => text.push('\u{2026}'),
            _ if word > LONGEST => {}
            '\n' => text.push(c),
            c => push_visible(&mut text, c),
        }
    }
    if text.len() <= LONGEST_LINE {
        return text;
    }
    text.split_inclusive('\n').map(without_middle).collect()
}

/// Returns the byte ranges to cut out: for each quotation, the range after its first 200
/// characters.
fn ranges_to_cut(message: &str) -> Vec<Range<usize>> {
    let mut ranges_to_cut = Vec::new();
    let (mut at, mut before) = (0, ' ');
    // A quotation mark without a closing mark opens no quotation. The closing mark is searched for
    // only once for each kind of mark. Otherwise a long message of apostrophes would take quadratic
    // time.
    let mut unclosed = String::new();
    while let Some(c) = message[at..].chars().next() {
        let opens = matches!(c, '"' | '\'') && !before.is_alphanumeric() && !unclosed.contains(c);
        at += c.len_utf8();
        before = c;
        if !opens {
            continue;
        }
        let Some(length) = closing(&message[at..], c) else {
            unclosed.push(c);
            continue;
        };
        let end = at + length;
        if let Some((kept, _)) = message[at..end].char_indices().nth(LONGEST) {
            ranges_to_cut.push(at + kept..end);
        }
        at = end + 1;
    }
    ranges_to_cut
}

/// Returns the position of the closing mark: the first `quote` that is not escaped and that no
/// letter or digit follows. A mark before a letter is an apostrophe.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    let mut is_escaped = false;
    while let Some((at, c)) = chars.next() {
        let word_follows = chars.peek().is_some_and(|(_, next)| next.is_alphanumeric());
        if c == quote && !is_escaped && !word_follows {
            return Some(at);
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    None
}

fn without_middle(line: &str) -> String {
    let length = line.chars().count();
    if length <= LONGEST_LINE {
        return line.to_owned();
    }
    let head = line.chars().take(KEPT.0);
    let tail = line.chars().skip(length - KEPT.1);
    head.chain(['\u{2026}']).chain(tail).collect()
}

/// The first 200 characters of a text from outside, with its control characters escaped, in one
/// line.
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

/// A path for a message, escaped and cut like [`excerpt`].
#[must_use]
pub fn path_excerpt(path: &Path) -> String {
    excerpt(&path.to_string_lossy())
}

fn push_visible(text: &mut String, c: char) {
    // These two ranges change the direction of the following text.
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || turns {
        let _ = write!(text, "{}", c.escape_default());
    } else {
        text.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
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
        assert_eq!(
            presentable(&cut),
            cut,
            "a message is shown by several layers"
        );
        let words = "many words ".repeat(100);
        assert_eq!(presentable(&words), words, "they may be our own");
        assert_eq!(excerpt(&words).chars().count(), LONGEST + 1);
    }

    #[test]
    fn a_quotation_of_many_short_words_is_cut_as_a_whole() {
        let words = "many words ".repeat(1000);
        let start: String = words.chars().take(LONGEST).collect();
        for (quoted, cut) in [
            (format!("{words:?}"), format!("\"{start}\u{2026}\"")),
            (format!("'{words}'"), format!("'{start}\u{2026}'")),
            (format!("(\"{words}\")"), format!("(\"{start}\u{2026}\")")),
            // The quotation contains quotation marks and apostrophes.
            (
                format!("{:?}", format!("{words}\" \\\" it's")),
                format!("\"{start}\u{2026}\""),
            ),
            (format!("'{words} it's'"), format!("'{start}\u{2026}'")),
            (
                format!("\"{words}\" and '{words}'"),
                format!("\"{start}\u{2026}\" and '{start}\u{2026}'"),
            ),
        ] {
            let shown = presentable(&format!("the user's {quoted} is wrong: 'a' or \"b\""));
            let expected = format!("the user's {cut} is wrong: 'a' or \"b\"");
            assert_eq!(shown, expected);
            assert_eq!(presentable(&shown), expected);
        }
        let open = format!("it's \"{}", "a b ".repeat(100));
        assert_eq!(presentable(&open), open, "nothing closes it");
    }

    #[test]
    fn a_line_over_2000_characters_loses_its_middle() {
        let words = "' \" a\u{e9} ".repeat(1000);
        let message = format!("first\n{words} is wrong\nlast {words}!\n");
        let shown = presentable(&message);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= LONGEST_LINE),
            "{shown}"
        );
        assert!(
            lines[1].ends_with("is wrong") && lines[2].starts_with("last"),
            "{shown}"
        );
        assert!(shown.ends_with("!\n"), "{shown}");
        assert_eq!(presentable(&shown), shown);
    }
}
