//! A table of costs as HTML.

use std::fmt::Write as _;

use super::{
    costs::Column,
    text::{coloured_name, escape, missing_mark, on_one_line, range_suffix},
};
use crate::compare::{Comparison, StoreFacts};

/// A table of costs, without the columns that no store has a figure for; `None` when no column is
/// left.
pub(crate) fn cost_table(comparison: &Comparison, columns: &[Column]) -> Option<String> {
    let columns: Vec<&Column> = columns
        .iter()
        .filter(|column| {
            comparison
                .figures
                .iter()
                .any(|it| it.experiment == column.experiment && it.measure == column.measure)
        })
        .collect();
    if columns.is_empty() {
        return None;
    }
    let mut html = String::from("<div class=\"scroll\"><table><thead><tr><th>store</th>");
    for column in &columns {
        let _ = write!(html, "<th>{}</th>", escape(&column.heading));
    }
    html += "</tr></thead><tbody>";
    for store in &comparison.stores {
        let _ = write!(html, "<tr><th>{}</th>", coloured_name(store));
        for column in &columns {
            html += &cell(comparison, store, column);
        }
        html += "</tr>";
    }
    Some(html + "</tbody></table></div>\n")
}

/// One cell of the table. A measured figure shows its median and its range. The median is in bold
/// if the store is the best one in this column. A failed measurement shows `died` or `failed`. A
/// dash means that the store has no such figure.
fn cell(comparison: &Comparison, store: &StoreFacts, column: &Column) -> String {
    let figure = comparison.figure(&store.key, &column.experiment, column.measure);
    if let Some(why) = figure.and_then(|it| it.missing.as_ref()) {
        return format!(
            "<td class=\"bad\" title=\"{}\">{}</td>",
            escape(why),
            missing_mark(store)
        );
    }
    let Some(spread) = figure.and_then(crate::compare::Figure::spread) else {
        return "<td class=\"none\">–</td>".into();
    };
    let best = column.best_store(comparison) == Some(&store.key);
    let middle = on_one_line(&(column.show)(spread.median));
    let middle = if best {
        format!("<b>{middle}</b>")
    } else {
        middle
    };
    format!("<td>{middle}{}</td>", range_suffix(spread, column.show))
}
