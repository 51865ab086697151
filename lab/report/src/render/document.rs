//! A report of headings, text, tables and charts, as a page and as Markdown.

use std::fmt::Write as _;

use askama::Template;

use super::{
    markdown, style,
    svg::{RangeRow, Svg},
    text::millis,
};

#[derive(Template)]
#[template(path = "document.html")]
struct DocumentPage<'a> {
    title: &'a str,
    /// Key and product of each store; each store gets a colour.
    stores: &'a [(String, String)],
    blocks: &'a [Block],
}

/// A report of headings, text, tables and charts.
#[derive(Debug)]
pub struct Document {
    title: String,
    blocks: Vec<Block>,
}

#[derive(Debug)]
enum Block {
    /// A heading of the second or third level.
    Heading(u8, String),
    Text(String),
    Command(String),
    List(Vec<String>),
    Table(Vec<String>, Vec<Vec<String>>),
    Chart(Svg),
}

/// A row of a chart of times.
#[derive(Clone, Debug)]
pub struct Times {
    /// The key of the store, which decides the colour.
    pub store: String,
    /// The name beside the row.
    pub label: String,
    /// The median, in milliseconds.
    pub median_ms: f64,
    /// The 99th percentile, in milliseconds.
    pub p99_ms: f64,
}

impl Document {
    /// An empty document.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            blocks: Vec::new(),
        }
    }

    /// Begins a chapter.
    pub fn chapter(&mut self, title: impl Into<String>) {
        self.blocks.push(Block::Heading(2, title.into()));
    }

    /// Begins a section of a chapter.
    pub fn section(&mut self, title: impl Into<String>) {
        self.blocks.push(Block::Heading(3, title.into()));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Text(text.into()));
    }

    /// Adds a command, or several commands on a line each.
    pub fn command(&mut self, command: impl Into<String>) {
        self.blocks.push(Block::Command(command.into()));
    }

    /// Adds a list.
    pub fn list(&mut self, entries: Vec<String>) {
        self.blocks.push(Block::List(entries));
    }

    /// Adds a table. Each row has as many cells as the heading. All cells but the first are
    /// numbers.
    pub fn table<const COLUMNS: usize>(
        &mut self,
        heading: [&str; COLUMNS],
        rows: Vec<[String; COLUMNS]>,
    ) {
        let rows = rows.into_iter().map(Vec::from).collect();
        let heading = heading.map(str::to_owned).into();
        self.blocks.push(Block::Table(heading, rows));
    }

    /// Adds a chart of times, from the median to the 99th percentile. Markdown leaves the chart
    /// out.
    pub fn times(&mut self, title: &str, note: &str, rows: Vec<Times>) {
        let stores = rows
            .iter()
            .map(|row| (row.store.clone(), row.store.clone()));
        let svg = Svg::new(title, note, stores.collect());
        let rows: Vec<_> = rows.into_iter().map(RangeRow::from).collect();
        self.blocks
            .push(Block::Chart(svg.draw_ranges(&rows, millis)));
    }

    /// The report as one self-contained page: it has no script, fetches nothing, and has colours
    /// for a light and for a dark screen.
    #[must_use]
    pub fn html(&self) -> String {
        let page = DocumentPage {
            title: &self.title,
            stores: &self.stores_in_charts(),
            blocks: &self.blocks,
        };
        page.to_string()
    }

    /// The same content as Markdown, for terminals and code hosts.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", self.title);
        for block in &self.blocks {
            text.push('\n');
            match block {
                Block::Heading(level, title) => {
                    let _ = writeln!(text, "{} {title}", "#".repeat(usize::from(*level)));
                }
                Block::Text(it) => {
                    let _ = writeln!(text, "{it}");
                }
                Block::Command(command) => {
                    let _ = writeln!(text, "```sh\n{command}\n```");
                }
                Block::List(entries) => {
                    for entry in entries {
                        let _ = writeln!(text, "- {entry}");
                    }
                }
                Block::Table(heading, rows) => markdown::write_table(&mut text, heading, rows),
                // The blank line is removed again, because Markdown leaves the chart out.
                Block::Chart(_) => {
                    text.pop();
                }
            }
        }
        text
    }

    /// Key and product of each store in a chart. Here the key is also the product.
    fn stores_in_charts(&self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for block in &self.blocks {
            if let Block::Chart(chart) = block {
                all.extend_from_slice(&chart.stores);
            }
        }
        all.sort();
        all.dedup();
        all
    }
}

impl From<Times> for RangeRow {
    fn from(times: Times) -> Self {
        Self {
            key: times.store,
            label: times.label,
            low: times.median_ms,
            middle: times.median_ms,
            high: times.p99_ms.max(times.median_ms),
            text: millis(times.median_ms),
        }
    }
}

/// Whether a cell of a table has words, which are aligned to the left, or a number, which is
/// aligned to the right.
fn has_words(cell: &str) -> bool {
    cell.contains(' ') && !cell.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Document {
        let mut document = Document::new("A < B");
        document.text("Run `a|b` again.");
        document.chapter("Stores");
        document.table(["store", "lost"], vec![["redis".into(), "1 | 2".into()]]);
        document.times(
            "Recovery",
            "median to p99",
            vec![Times {
                store: "redis".into(),
                label: "redis".into(),
                median_ms: 12.0,
                p99_ms: 400.0,
            }],
        );
        document.command("distlock-lab chaos");
        document.list(vec!["one".into(), "two".into()]);
        document
    }

    #[test]
    fn markdown_has_everything_but_charts() {
        assert_eq!(
            example().markdown(),
            "# A < B\n\nRun `a|b` again.\n\n## Stores\n\n| store | lost |\n|---|--:|\n\
             | redis | 1 \\| 2 |\n\n```sh\ndistlock-lab chaos\n```\n\n- one\n- two\n"
        );
    }

    #[test]
    fn the_page_has_charts_and_escapes_texts() {
        let page = example().html();
        for part in [
            "<h1>A &#60; B</h1>",
            "Run <code>a|b</code> again.",
            "<td>1 | 2</td>",
            "--redis:",
            "aria-label=\"Recovery\"",
            "<li>two</li>",
        ] {
            assert!(page.contains(part), "{part} is missing: {page}");
        }
    }
}
