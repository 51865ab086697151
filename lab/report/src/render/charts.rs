//! The two kinds of charts, drawn as SVG: a median with its range for each store, and a line for
//! each store. Both have a logarithmic scale of whole powers of ten.

use std::{error::Error, ops::Range};

use plotters::{coord::ranged1d::SegmentValue, prelude::*};

use crate::text::{number, time};

/// A finished chart.
#[derive(Debug)]
pub struct Chart {
    /// The name of its file, without the extension.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) svg: String,
}

/// A median with a range up to a slower value, in microseconds.
#[derive(Clone, Debug)]
pub struct RangeRow {
    /// The product of the store, which decides the colour.
    pub store: String,
    /// The name of the store.
    pub label: String,
    /// The median.
    pub middle: f64,
    /// The end of the range.
    pub high: f64,
}

/// A line: one value per step, or none at a step without a value.
pub(crate) struct Line {
    pub(crate) store: String,
    pub(crate) label: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// Charts are 480 units wide, so that their text is readable on a telephone, and two of them stand
/// side by side on a screen of 1280 pixels.
const WIDTH: u32 = 480;

/// Colours of the products.
const COLOURS: [(&str, RGBColor); 13] = [
    ("memory", RGBColor(107, 114, 128)),
    ("sqlite", RGBColor(31, 111, 181)),
    ("redis", RGBColor(194, 54, 43)),
    ("redis-sentinel", RGBColor(143, 29, 79)),
    ("redis-cluster", RGBColor(224, 102, 58)),
    ("quorum", RGBColor(13, 116, 144)),
    ("quorum-dead", RGBColor(71, 85, 105)),
    ("quorum-silent", RGBColor(8, 145, 178)),
    ("ring", RGBColor(101, 163, 13)),
    ("mariadb", RGBColor(138, 90, 43)),
    ("mysql", RGBColor(199, 119, 0)),
    ("postgres", RGBColor(91, 70, 184)),
    ("zookeeper", RGBColor(42, 127, 79)),
];

fn colour(product: &str) -> RGBColor {
    let known = COLOURS.iter().find(|(name, _)| *name == product);
    known.map_or(RGBColor(77, 124, 15), |(_, colour)| *colour)
}

impl Chart {
    /// Draws a row for each store: a dot at the median, and a bar to the end of the range. `None`
    /// when there is no row.
    #[must_use]
    pub fn ranges(
        name: &'static str,
        title: &str,
        note: &str,
        rows: impl IntoIterator<Item = RangeRow>,
    ) -> Option<Self> {
        let rows: Vec<_> = rows.into_iter().collect();
        let height = 80 + 22 * rows.len();
        let draw = |area: &Area<'_>| draw_ranges(area, &rows);
        (!rows.is_empty()).then(|| Self::draw(name, title, note, height, draw))
    }

    /// Draws a line for each store over the steps, with the names of the stores beside the lines.
    /// `None` when there are fewer than two steps.
    pub(crate) fn lines(
        name: &'static str,
        title: &str,
        note: &str,
        steps: &[String],
        lines: &[Line],
        unit: fn(f64) -> String,
    ) -> Option<Self> {
        let draw = |area: &Area<'_>| draw_lines(area, steps, lines, unit);
        (steps.len() > 1).then(|| Self::draw(name, title, note, 280, draw))
    }

    fn draw(
        name: &'static str,
        title: &str,
        note: &str,
        height: usize,
        content: impl FnOnce(&Area<'_>) -> Drawn,
    ) -> Self {
        let mut svg = String::new();
        let height = u32::try_from(height).unwrap_or(u32::MAX);
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            let drawn = || -> Drawn {
                area.fill(&WHITE)?;
                area.draw(&Text::new(title, (8, 6), sans(17)))?;
                area.draw(&Text::new(note, (8, 26), sans(15).color(&GREY)))?;
                content(&area.margin(44, 0, 4, 12))?;
                area.present()?;
                Ok(())
            };
            drawn().expect("a chart in memory has no device that could fail");
        }
        Self {
            name,
            title: title.to_owned(),
            svg,
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Drawn = Result<(), Box<dyn Error>>;

const GREY: RGBColor = RGBColor(93, 102, 115);
const GRID: RGBColor = RGBColor(223, 227, 232);

fn sans(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_text_style(&(WIDTH, WIDTH))
}

/// The powers of ten around all values. Values that are no positive numbers do not count.
fn powers_around(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
    for value in values.filter(|value| value.is_normal() && *value > 0.0) {
        // With more powers of ten than this, the axis takes for ever to find its ticks.
        let value = value.clamp(1e-12, 1e12);
        low = low.min(value);
        high = high.max(value);
    }
    if !low.is_finite() {
        return 1.0..10.0;
    }
    let low = 10_f64.powf(low.log10().floor());
    low..10_f64.powf(high.log10().ceil()).max(low * 10.0)
}

fn draw_ranges(area: &Area<'_>, rows: &[RangeRow]) -> Drawn {
    let scale = powers_around(rows.iter().flat_map(|row| [row.middle, row.high]));
    let last = u32::try_from(rows.len().saturating_sub(1))?;
    let mut chart = ChartBuilder::on(area)
        .margin_right(20)
        .x_label_area_size(22)
        .y_label_area_size(200)
        .build_cartesian_2d(scale.clone().log_scale(), (0..last).into_segmented())?;
    // The first row is the highest one.
    let row_at = |at: u32| rows.get(usize::try_from(last - at).ok()?);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(sans(15).color(&GREY))
        .x_labels(5)
        .x_label_formatter(&|us| axis_time(*us))
        .y_label_style(sans(15))
        .y_labels(rows.len() + 1)
        .y_label_formatter(&|at| match at {
            SegmentValue::CenterOf(at) => row_at(*at).map_or_else(String::new, |row| {
                format!("{}  {}", row.label, time(row.middle))
            }),
            _ => String::new(),
        })
        .draw()?;
    for at in 0..=last {
        let Some(row) = row_at(at) else { continue };
        let colour = colour(&row.store);
        let [middle, high] = [row.middle, row.high.max(row.middle)].map(|value| {
            (
                value.clamp(scale.start, scale.end),
                SegmentValue::CenterOf(at),
            )
        });
        let bar = PathElement::new([middle.clone(), high], colour.mix(0.35).stroke_width(4));
        chart.draw_series([bar])?;
        chart.draw_series([Circle::new(middle, 5, colour.filled())])?;
    }
    Ok(())
}

fn draw_lines(area: &Area<'_>, steps: &[String], lines: &[Line], unit: fn(f64) -> String) -> Drawn {
    let values = lines.iter().flat_map(|line| line.values.iter().flatten());
    let scale = powers_around(values.copied());
    let last = u32::try_from(steps.len().saturating_sub(1))?;
    let (left, right) = area.split_horizontally(290);
    let mut chart = ChartBuilder::on(&left)
        .margin_top(8)
        .x_label_area_size(22)
        .y_label_area_size(56)
        .build_cartesian_2d((0..last).into_segmented(), scale.clone().log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(GRID)
        .label_style(sans(15).color(&GREY))
        .x_labels(steps.len() + 1)
        .y_labels(6)
        .y_label_formatter(&|value| unit(*value))
        .x_label_formatter(&|at| match at {
            SegmentValue::CenterOf(at) => usize::try_from(*at)
                .ok()
                .and_then(|at| steps.get(at))
                .map_or_else(String::new, Clone::clone),
            _ => String::new(),
        })
        .draw()?;
    // The names stand in the order of the ends of the lines.
    let end = |line: &Line| line.values.iter().flatten().last().copied().unwrap_or(0.0);
    let mut order: Vec<&Line> = lines.iter().collect();
    order.sort_by(|a, b| end(b).total_cmp(&end(a)));
    for (line, y) in order.into_iter().zip((20..).step_by(22)) {
        let colour = colour(&line.store);
        let points = (0..).zip(&line.values).filter_map(|(at, value)| {
            let value = (*value)?.clamp(scale.start, scale.end);
            Some((SegmentValue::CenterOf(at), value))
        });
        let points: Vec<_> = points.collect();
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?;
        right.draw(&Circle::new((14, y + 6), 5, colour.filled()))?;
        right.draw(&Text::new(line.label.clone(), (26, y), sans(15)))?;
    }
    Ok(())
}

/// A time in microseconds for an axis: `10 µs`, `1 ms`.
pub(crate) fn axis_time(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{} ns", number(us * 1e3)),
        us if us < 1e3 => format!("{} µs", number(us)),
        us if us < 1e6 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

/// A number for an axis: `250`, `10k`, `1M`.
pub(crate) fn axis_number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", number(value / 1e6)),
        value if value >= 1e3 => format!("{}k", number(value / 1e3)),
        value => number(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_has_whole_powers_of_ten_around_its_values() {
        let scale = |values: &[f64]| powers_around(values.iter().copied());
        assert_eq!(scale(&[20.0, 800.0]), 10.0..1_000.0);
        assert_eq!(scale(&[100.0]), 100.0..1_000.0);
        assert_eq!(scale(&[0.0, f64::NAN, f64::INFINITY]), 1.0..10.0);
    }

    #[test]
    fn charts_without_rows_or_with_extreme_values_are_drawn() {
        let row = |middle, high| RangeRow {
            store: "redis".into(),
            label: "Redis <1>".into(),
            middle,
            high,
        };
        for rows in [
            vec![row(0.0, f64::MAX)],
            vec![row(1.0, 2.0), row(f64::NAN, 0.0)],
        ] {
            let svg = Chart::ranges("a", "A & B", "", rows).unwrap().svg;
            assert!(svg.ends_with("</svg>\n"), "{svg}");
            assert!(svg.contains("A &amp; B") && !svg.contains("<1>"), "{svg}");
        }
        assert!(Chart::ranges("a", "", "", []).is_none());
        let steps = ["1", "2"].map(str::to_owned);
        let empty = Chart::lines("a", "", "", &steps, &[], number).unwrap();
        assert!(empty.svg.ends_with("</svg>\n"));
        assert!(Chart::lines("a", "", "", &steps[..1], &[], number).is_none());
    }
}
