//! Writes the files of the report.

use std::{fs, io, path::Path};

use distlock::backend::path_excerpt;
use distlock_report::{Comparison, render};

use distlock_cli::program::{Failure, Outcome};

/// Renders the pages again from the data of a report.
pub(crate) fn render_again(json: &Path, out: &Path) -> Outcome<Comparison> {
    let data = fs::read(json)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path_excerpt(json))))?;
    let comparison: Comparison = serde_json::from_slice(&data).map_err(|error| {
        Failure::usage(format!(
            "{} is not the report.json of a comparison: {error}",
            json.display()
        ))
    })?;
    make_folder(out)?;
    write_report(out, &comparison)?;
    Ok(comparison)
}

/// Creates the folder for the report. This happens before anything is measured.
pub(super) fn make_folder(out: &Path) -> Outcome<()> {
    fs::create_dir_all(out).map_err(|error| {
        Failure::usage(format!(
            "cannot make the folder {}: {error}: choose another --out",
            out.display()
        ))
    })
}

/// Writes a whole file. An error names the file.
pub(super) fn write_file(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(path, content).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    })
}

/// Writes the report as JSON, as a page and as Markdown, and the chart for a README.
pub(super) fn write_report(out: &Path, comparison: &Comparison) -> io::Result<()> {
    let mut json = serde_json::to_vec_pretty(comparison)?;
    json.push(b'\n');
    // The pages are rendered from the data that was written, so that rendering them again from the
    // file gives the same pages.
    let comparison: &Comparison = &serde_json::from_slice(&json)?;
    write_file(&out.join("report.json"), json)?;
    write_file(&out.join("report.html"), render::html(comparison))?;
    write_file(&out.join("report.md"), render::markdown(comparison))?;
    write_file(
        &out.join("throughput.svg"),
        render::throughput_svg(comparison),
    )
}
