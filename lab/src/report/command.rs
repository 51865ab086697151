//! Runs `distlock-lab report`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{
    folder::{ReportData, write},
    page,
};

/// Make report.md and report.html again from the data in a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct ReportOptions {
    /// The folder that the other commands wrote into
    #[arg(long, value_name = "DIR", default_value = "docs/robustness")]
    out: PathBuf,
}

/// Makes the page again.
pub(crate) fn run(report: &ReportOptions) -> Result<()> {
    render(&report.out)
}

/// Writes the page into a folder with data.
pub(crate) fn render(folder: &Path) -> Result<()> {
    let document = page::document(&ReportData::read(folder)?);
    write(folder, "report.md", &document.markdown())?;
    write(folder, "report.html", &document.html())
}
