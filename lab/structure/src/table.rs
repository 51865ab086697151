//! The table of measurements, with a row for each package.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};

use crate::{circles, package::Package, sources, words};

/// Returns the table for these packages. Folders are shown relative to `top`.
pub(crate) fn table(top: &Path, packages: &[PathBuf]) -> Result<Table> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "package",
        "files",
        "code lines",
        "largest circle",
        "longest function",
        "lines over 100 columns",
    ]);
    for folder in packages {
        let (mut files, mut lines, mut largest, mut longest, mut name) =
            (0, 0, 0, 0, String::new());
        for package in Package::read_all(folder)? {
            files += package.files().len();
            lines += package.code_lines();
            let circles = circles::circles(package.edges());
            largest = circles
                .iter()
                .map(|circle| circle.files.len())
                .fold(largest, usize::max);
            if package.longest().lines > longest {
                longest = package.longest().lines;
                name.clone_from(&package.longest().name);
            }
        }
        let shown = folder.strip_prefix(top).unwrap_or(folder);
        let shown = if shown == Path::new("") {
            Path::new("src")
        } else {
            shown
        };
        table.add_row([
            shown.display().to_string(),
            files.to_string(),
            lines.to_string(),
            largest.to_string(),
            format!("{longest} ({name})"),
            count_wide_lines_of(folder, packages)?.to_string(),
        ]);
    }
    for column in 1..=5 {
        if column != 4
            && let Some(column) = table.column_mut(column)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Ok(table)
}

/// Counts the wide lines of a package, tests included. The lines of a package in a subfolder count
/// for the inner package only.
fn count_wide_lines_of(folder: &Path, packages: &[PathBuf]) -> Result<usize> {
    let inner: Vec<&PathBuf> = packages
        .iter()
        .filter(|other| *other != folder && other.starts_with(folder))
        .collect();
    let mut wide = 0;
    for path in sources::texts(folder)? {
        if !inner.iter().any(|other| path.starts_with(other)) {
            wide += words::count_wide_lines(&fs::read_to_string(path)?);
        }
    }
    Ok(wide)
}
