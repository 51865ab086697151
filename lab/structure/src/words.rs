//! Checks the width of lines and the openings of comments.

use std::{fmt, fs, path::Path, path::PathBuf};

use anyhow::{Context as _, Result};

/// Largest allowed width of a line, in columns.
const WIDTH: usize = 100;

/// Words that begin a clause. A comment that opens with such a word has a clause in place of a
/// subject.
const CLAUSES: [&str; 7] = [
    "What",
    "Who",
    "Whom",
    "Whose",
    "Whoever",
    "Whatever",
    "Whichever",
];

/// One line that breaks a rule.
#[derive(Debug)]
pub(crate) struct Complaint {
    path: PathBuf,
    line: usize,
    rule: Rule,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Width(usize),
    Opening,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            rule,
            text,
        } = self;
        let path = path.strip_prefix(".").unwrap_or(path).display();
        match rule {
            Rule::Width(columns) => write!(f, "{path}:{line}: {columns} columns (at most {WIDTH})"),
            Rule::Opening => {
                write!(
                    f,
                    "{path}:{line}: a comment opens with a clause, not a subject: {text}"
                )
            }
        }
    }
}

/// Returns all lines of a file that break a rule.
pub(crate) fn complaints(path: &Path) -> Result<Vec<Complaint>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("{} is not UTF-8", path.display()))?;
    let marks = marks(path);
    let found = rule_breaks(&text, marks);
    Ok(found
        .into_iter()
        .map(|(line, rule, text)| Complaint {
            path: path.to_owned(),
            line,
            rule,
            text,
        })
        .collect())
}

/// Counts the lines that are too wide.
pub(crate) fn count_wide_lines(text: &str) -> usize {
    rule_breaks(text, &[]).len()
}

/// Returns the marks that start a line comment, the longest mark first.
fn marks(path: &Path) -> &'static [&'static str] {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs" | "proto") => &["///", "//!", "//"],
        Some("sql" | "lua") => &["--"],
        Some("toml" | "yml" | "yaml" | "sh") | None => &["#"],
        Some(_) => &[],
    }
}

/// Returns the number, the rule and the text of each line that breaks a rule. With empty `marks`,
/// only the width is checked.
fn rule_breaks(text: &str, marks: &[&str]) -> Vec<(usize, Rule, String)> {
    let mut found = Vec::new();
    // Whether the next comment line opens a comment or a paragraph.
    let mut opens = true;
    // A block of `text` contains commands or outputs to copy, so its lines must not be wrapped.
    let mut verbatim = false;
    for (index, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        match line.trim_start() {
            "```text" => verbatim = true,
            "```" => verbatim = false,
            _ => {}
        }
        if columns > WIDTH && !verbatim && !may_be_wide(line, marks) {
            found.push((index + 1, Rule::Width(columns), line.to_owned()));
        }
        match comment_text(line, marks) {
            Some("") | None => opens = true,
            Some(words) => {
                if opens && opens_with_clause(words) {
                    found.push((index + 1, Rule::Opening, words.to_owned()));
                }
                opens = false;
            }
        }
    }
    found
}

/// Returns the text of a line that contains only a comment.
fn comment_text<'a>(line: &'a str, marks: &[&str]) -> Option<&'a str> {
    let line = line.trim_start();
    marks
        .iter()
        .find_map(|mark| line.strip_prefix(mark))
        .map(str::trim)
}

/// Tells whether a line cannot be wrapped: a row of a table, or a line with an address.
fn may_be_wide(line: &str, marks: &[&str]) -> bool {
    let words = comment_text(line, marks).unwrap_or_else(|| line.trim_start());
    words.starts_with('|') || line.contains("https://") || line.contains("http://")
}

fn opens_with_clause(words: &str) -> bool {
    let mut words = words
        .trim_start_matches(['-', '*', ' '])
        .split([' ', ',', ':', '.']);
    let first = words.next().unwrap_or_default();
    let long = first == "How"
        && words
            .nth(1)
            .is_some_and(|word| word == "who" || word == "what");
    long || CLAUSES.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_rules(text: &str) -> Vec<(usize, Rule)> {
        rule_breaks(text, &["///", "//!", "//"])
            .into_iter()
            .map(|(line, rule, _)| (line, rule))
            .collect()
    }

    #[test]
    fn a_line_of_one_hundred_columns_passes_and_one_more_does_not() {
        let text = format!("{}\n{}", "x".repeat(100), "x".repeat(101));
        assert_eq!(broken_rules(&text), [(2, Rule::Width(101))]);
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        assert_eq!(broken_rules(&"é".repeat(100)), []);
    }

    #[test]
    fn rows_of_tables_and_addresses_may_be_wide() {
        let text = format!(
            "//! | {} |\n// https://{}\n",
            "x".repeat(100),
            "x".repeat(100)
        );
        assert_eq!(broken_rules(&text), []);
    }

    #[test]
    fn a_block_of_plain_text_keeps_its_lines_and_other_blocks_do_not() {
        let wide = "x".repeat(101);
        let text = format!("```text\n{wide}\n```\n{wide}\n```sh\n{wide}\n```\n");
        assert_eq!(
            broken_rules(&text),
            [(4, Rule::Width(101)), (6, Rule::Width(101))]
        );
    }

    #[test]
    fn a_clause_is_found_where_a_comment_or_a_paragraph_opens() {
        let text = "/// What it is told.\n/// What follows is one paragraph.\n///\n// Whose turn\n";
        assert_eq!(broken_rules(text), [(1, Rule::Opening), (4, Rule::Opening)]);
        assert_eq!(
            broken_rules("    // How long who waits\nlet x = 1; // What\n"),
            [(1, Rule::Opening)]
        );
    }

    #[test]
    fn openings_outside_the_list_pass() {
        assert_eq!(
            broken_rules("// How long a lease lasts\n// Whether it ended\n// When it ends\n"),
            []
        );
    }
}
