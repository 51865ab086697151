//! Draws charts. Each chart is 360 units wide, so that its text is readable on a telephone, and on
//! a wide screen with two charts in a row.

use std::fmt::{Display, Write as _};

use askama::filters;

use super::{
    scale::{Scale, float},
    style,
    text::number,
};

/// The width of every chart.
const WIDTH: f64 = 360.0;

/// The width to reserve for the longest label, computed from the average width of a letter in the
/// fonts of browsers.
fn label_width<'a>(labels: impl Iterator<Item = &'a String>) -> f64 {
    const LETTER_WIDTH: f64 = 6.8;
    let longest = labels.map(|it| it.chars().count()).max().unwrap_or(0);
    (float(longest) * LETTER_WIDTH + 10.0).clamp(78.0, WIDTH / 2.0)
}

/// Replaces the characters that a page would take as markup.
fn escape(text: &str) -> impl Display {
    let Ok(escaped) = filters::escape(text, filters::Html);
    escaped
}

/// A finished chart.
#[derive(Debug)]
pub(crate) struct Svg {
    pub(crate) title: String,
    /// One line under the title.
    pub(crate) note: String,
    height: f64,
    body: String,
    /// Key and product of the stores in the chart.
    pub(crate) stores: Vec<(String, String)>,
}

/// A value with its range, as a row of a range plot.
pub(crate) struct RangeRow {
    pub(crate) key: String,
    pub(crate) label: String,
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
    /// The text beside the row.
    pub(crate) text: String,
}

/// A line of a line plot: one value per step, or none at a step without a value.
pub(crate) struct LineSeries {
    pub(crate) key: String,
    pub(crate) label: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// A coloured bar in a row of the chart of holders.
pub(crate) struct Bar {
    pub(crate) from: f64,
    pub(crate) until: f64,
    pub(crate) text: String,
}

impl Svg {
    pub(crate) fn new(title: &str, note: &str, stores: Vec<(String, String)>) -> Self {
        Self {
            title: title.into(),
            note: note.into(),
            height: 0.0,
            body: String::new(),
            stores,
        }
    }

    fn draw_text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let _ = write!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>",
            escape(text)
        );
    }

    fn draw_line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" class=\"{class}\"/>"
        );
    }

    /// Draws a dot with its range in each row. A smaller value is further to the left.
    pub(crate) fn draw_ranges(mut self, rows: &[RangeRow], unit: fn(f64) -> String) -> Self {
        let (left, right, step) = (
            label_width(rows.iter().map(|it| &it.label)) + 8.0,
            WIDTH - 78.0,
            22.0,
        );
        let bottom = 8.0 + step * float(rows.len());
        let scale =
            Scale::from_values(rows.iter().flat_map(|row| [row.low, row.high]), left, right);
        for tick in scale.ticks(4) {
            let x = scale.position(tick);
            self.draw_line((x, 4.0), (x, bottom), "grid");
            self.draw_text(x, bottom + 13.0, "quiet", "middle", &unit(tick));
        }
        for (at, row) in rows.iter().enumerate() {
            let y = 8.0 + step * (float(at) + 0.5);
            self.draw_text(left - 8.0, y + 4.0, "", "end", &row.label);
            let _ = write!(
                self.body,
                "<line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" \
                 style=\"stroke:var(--{});stroke-width:4;\
                 stroke-linecap:round;opacity:.35\"/>",
                scale.position(row.low),
                scale.position(row.high),
                row.key
            );
            let _ = write!(
                self.body,
                "<circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4.5\" style=\"fill:var(--{})\"/>",
                scale.position(row.middle),
                row.key
            );
            self.draw_text(WIDTH - 2.0, y + 4.0, "", "end", &row.text);
        }
        self.height = bottom + 20.0;
        self
    }

    /// Draws for each series a line over the steps, with the name of the series at the end of the
    /// line.
    pub(crate) fn draw_lines(
        mut self,
        steps: &[String],
        series: &[LineSeries],
        unit: fn(f64) -> String,
    ) -> Self {
        let labels = label_width(series.iter().map(|it| &it.label));
        let (left, right, top, bottom) = (46.0, WIDTH - labels, 10.0, 210.0);
        let values = series.iter().flat_map(|it| it.values.iter().flatten());
        let scale = Scale::from_values(values.copied(), bottom, top);
        for tick in scale.ticks(6) {
            let y = scale.position(tick);
            self.draw_line((left, y), (right, y), "grid");
            self.draw_text(left - 6.0, y + 3.5, "quiet", "end", &unit(tick));
        }
        let gaps = float(steps.len().max(2) - 1);
        let x = |at: usize| left + 8.0 + (right - left - 16.0) * float(at) / gaps;
        for (at, step) in steps.iter().enumerate() {
            self.draw_text(x(at), bottom + 15.0, "quiet", "middle", step);
        }
        let mut ends = Vec::new();
        for line in series {
            let points: Vec<(f64, f64)> = line
                .values
                .iter()
                .enumerate()
                .filter_map(|(at, value)| Some((x(at), scale.position((*value)?))))
                .collect();
            let path: Vec<String> = points
                .iter()
                .map(|(x, y)| format!("{x:.1},{y:.1}"))
                .collect();
            let _ = write!(
                self.body,
                "<polyline points=\"{}\" \
                 style=\"fill:none;stroke:var(--{});stroke-width:2;stroke-linejoin:round\"/>",
                path.join(" "),
                line.key
            );
            for (x, y) in &points {
                let _ = write!(
                    self.body,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" style=\"fill:var(--{})\"/>",
                    line.key
                );
            }
            if let Some((x, y)) = points.last() {
                ends.push((*x, *y, line));
            }
        }
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (y, (x, at, line)) in move_apart(&ends.iter().map(|end| end.1).collect::<Vec<_>>())
            .into_iter()
            .zip(ends)
        {
            if (y - at).abs() > 4.0 {
                self.draw_line((x + 5.0, at), (right + 6.0, y), "grid");
            }
            let _ = write!(
                self.body,
                "<text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:var(--{})\">{}</text>",
                right + 9.0,
                y + 4.0,
                line.key,
                escape(&line.label)
            );
        }
        self.height = bottom + 22.0;
        self
    }

    /// Draws a row (a lane) for each client over the time in milliseconds. A bar shows each time in
    /// which the client believed to hold the lock. The fault is shaded behind the rows.
    pub(crate) fn draw_lanes(
        mut self,
        key: &str,
        end: f64,
        fault: Option<&Bar>,
        lanes: &[(String, Vec<Bar>)],
    ) -> Self {
        let (left, right, step) = (70.0, WIDTH - 10.0, 26.0);
        let bottom = 18.0 + step * float(lanes.len());
        let end = end.max(1.0);
        let x = |ms: f64| left + (right - left) * (ms / end).clamp(0.0, 1.0);
        if let Some(fault) = fault {
            let (from, until) = (x(fault.from), x(fault.until).max(x(fault.from) + 1.5));
            let _ = write!(
                self.body,
                "<rect x=\"{from:.1}\" y=\"14\" width=\"{:.1}\" height=\"{:.1}\" \
                 style=\"fill:var(--fault)\"/>",
                until - from,
                bottom - 14.0
            );
            let anchor = if from > WIDTH / 2.0 { "end" } else { "start" };
            let at = if from > WIDTH / 2.0 { until } else { from };
            self.draw_text(at, 10.0, "quiet", anchor, &fault.text);
        }
        for (at, (who, bars)) in lanes.iter().enumerate() {
            let top = 18.0 + step * float(at);
            self.draw_text(left - 8.0, top + 15.0, "", "end", who);
            self.draw_line((left, top + step - 2.0), (right, top + step - 2.0), "grid");
            for bar in bars {
                let (from, until) = (x(bar.from), x(bar.until).max(x(bar.from) + 2.0));
                let _ = write!(
                    self.body,
                    "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" rx=\"2\" \
                     style=\"fill:var(--{key})\">\
                     <title>{}</title></rect>",
                    top + 4.0,
                    until - from,
                    escape(&bar.text)
                );
            }
        }
        let whole = [1.0, 2.0, 5.0, 10.0, 20.0, 60.0]
            .into_iter()
            .find(|seconds| end / 1000.0 / seconds <= 6.0)
            // Beyond six minutes the step is a whole number of minutes, so that there are only a
            // few ticks.
            .unwrap_or_else(|| (end / 360_000.0).ceil() * 60.0);
        let mut tick = 0.0;
        while tick * 1000.0 <= end {
            self.draw_text(
                x(tick * 1000.0),
                bottom + 12.0,
                "quiet",
                "middle",
                &format!("{} s", number(tick)),
            );
            tick += whole;
        }
        self.height = bottom + 18.0;
        self
    }

    /// The chart as part of a page. The page defines the colours.
    pub(crate) fn inline(&self) -> String {
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\">{}</svg>",
            self.height,
            escape(&self.title),
            self.body
        )
    }

    /// The chart as a file of its own.
    pub(crate) fn standalone(&self) -> String {
        let light = style::properties(&self.stores, false);
        let dark = style::properties(&self.stores, true);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 -44 {WIDTH} {height:.0}\" \
             width=\"720\" height=\"{double:.0}\" \
             role=\"img\" aria-label=\"{title}\">\n<style>\nsvg{{{light}}}\n\
             @media(prefers-color-scheme:dark){{svg{{{dark}}}}}\n{figure}</style>\n\
             <text x=\"2\" y=\"-28\" style=\"font-size:13px;font-weight:600\">{title}</text>\
             <text x=\"2\" y=\"-12\" class=\"quiet\">{note}</text>\n{body}\n</svg>\n",
            height = self.height + 44.0,
            double = (self.height + 44.0) * 2.0,
            title = escape(&self.title),
            note = escape(&self.note),
            figure = style::CHART,
            body = self.body
        )
    }
}

/// Moves labels apart that would overlap. `wanted` holds the wanted positions in rising order.
fn move_apart(wanted: &[f64]) -> Vec<f64> {
    const GAP: f64 = 13.0;
    let mut positions = wanted.to_vec();
    for _ in 0..40 {
        for at in 1..positions.len() {
            let short = GAP - (positions[at] - positions[at - 1]);
            if short > 0.01 {
                positions[at - 1] -= short / 2.0;
                positions[at] += short / 2.0;
            }
        }
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_of_holders_has_few_ticks() {
        for end in [1.0, 359_000.0, 721_000.0, 1e9, 1e42, f64::MAX] {
            let drawn = Svg::new("", "", Vec::new())
                .draw_lanes("a", end, None, &[])
                .body;
            let ticks = drawn.matches(" s<").count();
            assert!((1..9).contains(&ticks), "{end}: {ticks}");
        }
    }

    #[test]
    fn labels_do_not_overlap() {
        let positions = move_apart(&[50.0, 51.0, 52.0, 120.0]);
        assert!(positions.windows(2).all(|pair| pair[1] - pair[0] > 12.5));
        assert!((positions[3] - 120.0).abs() < 1e-6);
    }
}
