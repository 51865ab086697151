//! A table of figures, for the page and for Markdown.

use super::text::{number, printed_range, time};
use crate::compare::{Comparison, Figure, Measure, StoreFacts};

/// A column of a table of stores: heading, experiment, measure, and the form of a value.
pub(crate) struct Column {
    heading: String,
    experiment: String,
    measure: Measure,
    show: fn(f64) -> String,
}

impl Column {
    pub(crate) fn new(
        heading: impl Into<String>,
        experiment: impl Into<String>,
        measure: Measure,
        show: fn(f64) -> String,
    ) -> Self {
        Self {
            heading: heading.into(),
            experiment: experiment.into(),
            measure,
            show,
        }
    }

    /// A column of cycles a second.
    pub(crate) fn rate(heading: &str, experiment: &str) -> Self {
        Self::new(heading, experiment, Measure::Rate, number)
    }

    /// A column of median times.
    pub(crate) fn p50(heading: &str, experiment: &str) -> Self {
        Self::new(heading, experiment, Measure::P50, time)
    }

    /// A column of times at the 99th percentile.
    pub(crate) fn p99(heading: &str, experiment: &str) -> Self {
        Self::new(heading, experiment, Measure::P99, time)
    }
}

/// A table of figures.
pub(crate) struct FigureTable<'a> {
    pub(crate) heading: Vec<String>,
    pub(crate) rows: Vec<Row<'a>>,
}

/// A row of a table of figures.
pub(crate) struct Row<'a> {
    /// The key of the store in whose colour the page draws a dot.
    pub(crate) colour: Option<&'a str>,
    pub(crate) label: String,
    pub(crate) cells: Vec<Cell<'a>>,
}

/// A cell of a table of figures.
pub(crate) enum Cell<'a> {
    /// There is no such figure.
    Empty,
    /// The measurement failed. The word says whether the store died or only the experiment failed.
    Failed { word: &'static str, why: &'a str },
    /// A figure, in bold if it is marked.
    Figure {
        median: String,
        marked: bool,
        range: Option<(String, String)>,
    },
}

impl<'a> FigureTable<'a> {
    /// A table with a row for each store, without the columns that no store has a figure for;
    /// `None` when no column is left.
    pub(crate) fn of_stores(comparison: &'a Comparison, mut columns: Vec<Column>) -> Option<Self> {
        columns.retain(|column| {
            let mut figures = comparison.figures.iter();
            figures.any(|it| it.experiment == column.experiment && it.measure == column.measure)
        });
        if columns.is_empty() {
            return None;
        }
        let rows = comparison.stores.iter().map(|store| Row {
            colour: Some(&store.key),
            label: store.name.clone(),
            cells: columns
                .iter()
                .map(|column| cell(comparison, store, column))
                .collect(),
        });
        let rows = rows.collect();
        let mut heading = vec!["store".to_owned()];
        heading.extend(columns.into_iter().map(|column| column.heading));
        Some(Self { heading, rows })
    }
}

/// The figure of a store in a column. It is marked if the store is the best one in this column.
fn cell<'a>(comparison: &'a Comparison, store: &StoreFacts, column: &Column) -> Cell<'a> {
    let figure = comparison.figure(&store.key, &column.experiment, column.measure);
    if let Some(why) = figure.and_then(|it| it.missing.as_ref()) {
        let died = store.stopped.is_some();
        let word = if died { "died" } else { "failed" };
        return Cell::Failed { word, why };
    }
    let best = comparison.clear_best(&column.experiment, column.measure, column.show);
    figure
        .and_then(Figure::spread)
        .map_or(Cell::Empty, |spread| Cell::Figure {
            median: (column.show)(spread.median),
            marked: best == Some(&store.key),
            range: printed_range(spread, column.show),
        })
}
