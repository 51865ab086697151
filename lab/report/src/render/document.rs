//! A page: Markdown with the names of charts, and the same as one HTML file, which contains the
//! charts and fetches nothing.
//!
//! Texts may hold `code` and **bold** words. All other markup in a value is shown as it is, so a
//! template passes each value from outside through [`escape`](super::escape) or
//! [`cell`](super::cell).

use askama::Template;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

use super::charts::Chart;

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    title: &'a str,
    content: &'a str,
}

/// A page and its charts.
#[derive(Debug)]
pub struct Document {
    markdown: String,
    charts: Vec<Chart>,
}

impl Document {
    /// The page that a template gave. Of several empty lines, which parts without content leave,
    /// one is kept.
    #[must_use]
    pub fn new(rendered: &str, charts: Vec<Chart>) -> Self {
        let mut markdown = String::new();
        for line in rendered.lines().map(str::trim_end) {
            if !(line.is_empty() && markdown.ends_with("\n\n")) {
                markdown += line;
                markdown.push('\n');
            }
        }
        Self { markdown, charts }
    }

    /// The files of the page, by name: `report.md`, `report.html`, and each chart.
    #[must_use]
    pub fn files(self) -> Vec<(String, String)> {
        let html = self.html();
        let charts = self.charts.into_iter();
        let charts = charts.map(|chart| (format!("{}.svg", chart.name), chart.svg));
        [
            ("report.md".into(), self.markdown),
            ("report.html".into(), html),
        ]
        .into_iter()
        .chain(charts)
        .collect()
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
        let title = self.markdown.lines().next().unwrap_or_default();
        let page = Page {
            title: title.trim_start_matches("# "),
            content: &content,
        };
        page.to_string()
    }
}

/// Charts beside each other.
#[must_use]
pub fn images(charts: &[Chart]) -> String {
    let images = charts.iter();
    let images = images.map(|chart| format!("![{}]({}.svg)", chart.title, chart.name));
    images.collect::<Vec<_>>().join("\n")
}

/// The chart as an element of a page. Only a file of its own names the namespace, which looks like
/// an address: a page contains no addresses.
fn inlined(svg: &str) -> String {
    svg.replacen(r#" xmlns="http://www.w3.org/2000/svg""#, "", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        render::charts::RangeRow,
        text::{cell, escape},
    };

    #[test]
    fn html_holds_the_charts_and_escapes_texts() {
        let row = RangeRow {
            store: "redis".into(),
            label: "redis".into(),
            middle: 12_000.0,
            high: 400_000.0,
        };
        let chart = Chart::ranges("recovery", "Recovery", "median to p99", vec![row]).unwrap();
        let svg = inlined(&chart.svg);
        let markdown = format!(
            "# A < B\n\n{}\n\n\n\n{}\n\n<details><summary>All stores</summary>\n\n\
             | store | lost |\n|---|--:|\n| redis | {} |\n\n</details>\n\n**two** <script>\n",
            escape("Run `a|b <x>` again\nif 1 < 2."),
            images(std::slice::from_ref(&chart)),
            cell("1 | 2"),
        );
        let files: [(String, String); 3] = Document::new(&markdown, vec![chart])
            .files()
            .try_into()
            .expect("three files");
        let [markdown, html, _] = files.map(|(_, content)| content);
        assert!(
            markdown.contains("if 1 &lt; 2.\n\n![Recovery](recovery.svg)\n"),
            "{markdown}"
        );
        for part in [
            "<h1>A &lt; B</h1>",
            "Run <code>a|b &lt;x&gt;</code> again if 1 &lt; 2.",
            "<td style=\"text-align: right\">1 | 2</td>",
            "<details><summary>All stores</summary>",
            "<strong>two</strong>",
            "&lt;script&gt;",
            &svg,
        ] {
            assert!(html.contains(part), "{part} is missing: {html}");
        }
        assert!(!html.contains("<img"), "{html}");
    }
}
