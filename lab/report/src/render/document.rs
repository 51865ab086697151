//! A page of headings, text, tables and charts. It is written as Markdown. A converter makes the
//! HTML form of it, which contains the charts and fetches nothing.

use std::fmt::{Display, Write as _};

use askama::Template;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

use super::charts::Chart;

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    title: &'a str,
    content: &'a str,
}

/// A page of headings, text, tables and charts.
///
/// Texts may hold `code` and **bold** words. All other markup is shown as it is.
#[derive(Debug)]
pub struct Document {
    title: String,
    markdown: String,
    charts: Vec<Chart>,
    is_folded: bool,
}

impl Document {
    /// An empty page.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        let title = title.into();
        Self {
            markdown: format!("# {title}\n"),
            title,
            charts: Vec::new(),
            is_folded: false,
        }
    }

    fn add(&mut self, block: impl Display) {
        let _ = write!(self.markdown, "\n{block}\n");
    }

    /// Begins a chapter.
    pub fn chapter(&mut self, title: &str) {
        self.unfold();
        self.add(format_args!("## {title}"));
    }

    /// Begins a section of a chapter.
    pub fn section(&mut self, title: &str) {
        self.add(format_args!("### {}", escape(title)));
    }

    /// Hides the rest of the chapter until a reader opens it.
    pub fn fold(&mut self, summary: &str) {
        self.unfold();
        self.add(format_args!("<details><summary>{summary}</summary>"));
        self.is_folded = true;
    }

    fn unfold(&mut self) {
        if std::mem::take(&mut self.is_folded) {
            self.add("</details>");
        }
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        self.add(escape(text));
    }

    /// Adds a remark that a reader must not miss.
    pub fn remark(&mut self, text: &str) {
        self.add(format_args!("> {}", escape(text)));
    }

    /// Adds a command, or several commands on a line each.
    pub fn command(&mut self, command: &str) {
        self.add(format_args!("```sh\n{command}\n```"));
    }

    /// Adds a list. Without entries it adds nothing.
    pub fn list(&mut self, entries: impl IntoIterator<Item = String>) {
        let entries = entries
            .into_iter()
            .map(|entry| format!("- {}", escape(&entry)));
        let entries: Vec<String> = entries.collect();
        if !entries.is_empty() {
            self.add(entries.join("\n"));
        }
    }

    /// Adds charts beside each other.
    pub fn charts(&mut self, charts: impl IntoIterator<Item = Chart>) {
        let first = self.charts.len();
        self.charts.extend(charts);
        let images = self.charts[first..].iter();
        let images = images.map(|chart| format!("![{}]({}.svg)", chart.title, chart.name));
        let images: Vec<String> = images.collect();
        if !images.is_empty() {
            self.add(images.join("\n"));
        }
    }

    /// Adds a table. Each row has as many cells as the heading. Columns of numbers are aligned to
    /// the right.
    pub fn table<H: Display, R: IntoIterator<Item = String>>(
        &mut self,
        heading: impl IntoIterator<Item = H>,
        rows: impl IntoIterator<Item = R>,
    ) {
        let heading: Vec<String> = heading.into_iter().map(|cell| cell.to_string()).collect();
        let rows: Vec<Vec<String>> = rows
            .into_iter()
            .map(|row| row.into_iter().collect())
            .collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().map(|cell| escape(cell).replace('|', "\\|"));
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut table = line(&heading) + "|";
        for at in 0..heading.len() {
            let mut cells = rows.iter().filter_map(|row| row.get(at));
            table += if cells.all(|cell| is_number(cell)) {
                "--:|"
            } else {
                "---|"
            };
        }
        table.push('\n');
        rows.iter().for_each(|row| table += &line(row));
        self.add(table.trim_end());
    }

    /// The files of the page, by name: `report.md`, `report.html`, and each chart.
    #[must_use]
    pub fn files(mut self) -> Vec<(String, String)> {
        self.unfold();
        let html = self.html();
        let charts = self.charts.into_iter();
        let mut files = vec![
            ("report.md".into(), self.markdown),
            ("report.html".into(), html),
        ];
        files.extend(charts.map(|chart| (format!("{}.svg", chart.name), chart.svg)));
        files
    }

    fn html(&self) -> String {
        let mut is_in_image = false;
        let events = Parser::new_ext(&self.markdown, Options::ENABLE_TABLES);
        let events = events.filter_map(|event| match event {
            Event::Start(Tag::Image { dest_url, .. }) => {
                is_in_image = true;
                let name = dest_url.strip_suffix(".svg")?;
                let chart = self.charts.iter().find(|chart| chart.name == name)?;
                Some(Event::InlineHtml(inlined(&chart.svg).into()))
            }
            Event::End(TagEnd::Image) => {
                is_in_image = false;
                None
            }
            // Only the folds are elements. Nothing else may be one, whatever a text contains.
            Event::Html(html) | Event::InlineHtml(html)
                if !html.starts_with("<details>") && !html.starts_with("</details>") =>
            {
                Some(Event::Text(html))
            }
            event => (!is_in_image).then_some(event),
        });
        let mut content = String::new();
        html::push_html(&mut content, events);
        let page = Page {
            title: &self.title,
            content: &content,
        };
        page.to_string()
    }
}

/// Joins the lines of a text, and escapes it outside of code.
fn escape(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let parts = text.split('`').enumerate();
    let escaped = parts.map(|(at, part)| match at % 2 {
        0 => part.replace('&', "&amp;").replace('<', "&lt;"),
        _ => part.to_owned(),
    });
    escaped.collect::<Vec<_>>().join("`")
}

fn is_number(cell: &str) -> bool {
    let first = cell.trim_start_matches(['*', '×', ' ']);
    first.starts_with(|c: char| c.is_ascii_digit() || c == '–')
}

/// The chart as an element of a page. Only a file of its own names the namespace, which looks like
/// an address: a page contains no addresses.
fn inlined(svg: &str) -> String {
    svg.replacen(r#" xmlns="http://www.w3.org/2000/svg""#, "", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::charts::RangeRow;

    fn example() -> [String; 3] {
        let mut page = Document::new("A < B");
        page.text("Run `a|b <x>` again\nif 1 < 2.");
        page.charts([Chart::ranges(
            "recovery",
            "Recovery",
            "median to p99",
            &[RangeRow {
                store: "redis".into(),
                label: "redis".into(),
                middle: 12_000.0,
                high: 400_000.0,
            }],
        )]);
        page.chapter("Stores");
        page.fold("All stores");
        page.table(
            ["store", "lost"],
            [["redis".to_owned(), "1 | 2".to_owned()]],
        );
        page.chapter("Commands");
        page.command("distlock-lab chaos");
        page.list(["one".to_owned(), "**two**".to_owned()]);
        let files: [(String, String); 3] = page.files().try_into().expect("three files");
        files.map(|(_, content)| content)
    }

    #[test]
    fn markdown_has_everything_and_names_the_charts() {
        assert_eq!(
            example()[0],
            "# A < B\n\nRun `a|b <x>` again if 1 &lt; 2.\n\n![Recovery](recovery.svg)\n\n\
             ## Stores\n\n<details><summary>All stores</summary>\n\n\
             | store | lost |\n|---|--:|\n| redis | 1 \\| 2 |\n\n</details>\n\n\
             ## Commands\n\n```sh\ndistlock-lab chaos\n```\n\n- one\n- **two**\n"
        );
    }

    #[test]
    fn html_holds_the_charts_and_escapes_texts() {
        let [_, html, svg] = example();
        for part in [
            "<h1>A &lt; B</h1>",
            "Run <code>a|b &lt;x&gt;</code> again if 1 &lt; 2.",
            "<td style=\"text-align: right\">1 | 2</td>",
            "<details><summary>All stores</summary>",
            "<strong>two</strong>",
            &inlined(&svg),
        ] {
            assert!(html.contains(part), "{part} is missing: {html}");
        }
        assert!(!html.contains("<img"), "{html}");
    }
}
