//! A report of headings, text, tables and charts, as a page and as Markdown.

use std::fmt::Write as _;

use super::{
    frame::{chart_html, wrap_in_page},
    markdown,
    svg::{RangeRow, Svg},
    text::{escape, millis},
};

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
    Times {
        title: String,
        note: String,
        rows: Vec<Times>,
    },
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
        self.blocks.push(Block::Times {
            title: title.into(),
            note: note.into(),
            rows,
        });
    }

    /// The report as one self-contained page: it has no script, fetches nothing, and has colours
    /// for a light and for a dark screen.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = format!("<h1>{}</h1>\n", escape(&self.title));
        for block in &self.blocks {
            match block {
                Block::Heading(level, title) => {
                    let _ = writeln!(body, "<h{level}>{}</h{level}>", escape(title));
                }
                Block::Text(text) => {
                    let _ = writeln!(body, "<p>{}</p>", markup_with_code(text));
                }
                Block::Command(command) => {
                    let lines: Vec<_> = command.lines().map(escape).collect();
                    let _ = writeln!(body, "<p><code>{}</code></p>", lines.join("<br>"));
                }
                Block::List(entries) => {
                    body += "<ul>\n";
                    for entry in entries {
                        let _ = writeln!(body, "<li>{}</li>", markup_with_code(entry));
                    }
                    body += "</ul>\n";
                }
                Block::Table(heading, rows) => body += &html_table(heading, rows),
                Block::Times { title, note, rows } => {
                    let rows: Vec<_> = rows.iter().map(RangeRow::from).collect();
                    body +=
                        &chart_html(&Svg::new(title, note, Vec::new()).draw_ranges(&rows, millis));
                    body.push('\n');
                }
            }
        }
        wrap_in_page(&self.title, &self.stores_in_charts(), &body)
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
                Block::Times { .. } => {
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
            if let Block::Times { rows, .. } = block {
                let stores = rows
                    .iter()
                    .map(|row| (row.store.clone(), row.store.clone()));
                all.extend(stores);
            }
        }
        all.sort();
        all.dedup();
        all
    }
}

impl From<&Times> for RangeRow {
    fn from(times: &Times) -> Self {
        Self {
            key: times.store.clone(),
            label: times.label.clone(),
            low: times.median_ms,
            middle: times.median_ms,
            high: times.p99_ms.max(times.median_ms),
            text: millis(times.median_ms),
        }
    }
}

/// A table as HTML.
fn html_table(heading: &[String], rows: &[Vec<String>]) -> String {
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr>");
    for cell in heading {
        let _ = write!(html, "<th>{}</th>", escape(cell));
    }
    html += "</tr></thead><tbody>\n";
    for row in rows {
        html += "<tr>";
        for cell in row {
            // A cell with words is aligned to the left, and a number to the right.
            let class = if cell.contains(' ') && !cell.starts_with(|c: char| c.is_ascii_digit()) {
                " class=\"text\""
            } else {
                ""
            };
            let _ = write!(html, "<td{class}>{}</td>", markup_with_code(cell));
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div>\n"
}

/// Turns a text into HTML. The parts between backticks become code.
fn markup_with_code(text: &str) -> String {
    let mut html = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            let _ = write!(html, "<code>{}</code>", escape(part));
        } else {
            html += &escape(part);
        }
    }
    html
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
            "<h1>A &lt; B</h1>",
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
