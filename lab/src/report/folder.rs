//! The folder of the report: reads and writes its data, and makes its page (`distlock-lab report`).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    data::{ControlReport, FoundBug, GatewayFigures, PlantedBugs, RunSet, SimulationFigures},
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
    let files = page::document(&ReportData::read(folder)?).files();
    files
        .iter()
        .try_for_each(|(name, text)| write(folder, name, text))
}

/// All data of a page.
#[derive(Debug, Default)]
pub(super) struct ReportData {
    pub(super) runs: Vec<RunSet>,
    pub(super) gateways: Vec<GatewayFigures>,
    pub(super) simulated: Option<SimulationFigures>,
    /// Planted bugs by the name of their file: `gateways`, `simulation` or `stores`.
    pub(super) planted: BTreeMap<String, PlantedBugs>,
    pub(super) controls: Option<ControlReport>,
    pub(super) found: Vec<FoundBug>,
}

/// Writes one part of the data.
pub(crate) fn write_part(folder: &Path, name: &str, part: &impl Serialize) -> Result<()> {
    write(folder, name, &(serde_json::to_string_pretty(part)? + "\n"))
}

/// Writes a file, and creates its folder if needed.
fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

impl ReportData {
    /// Reads all data of a page.
    fn read(folder: &Path) -> Result<Self> {
        Ok(Self {
            runs: read_parts(&folder.join("runs"))?.into_values().collect(),
            gateways: read_parts(&folder.join("gateways"))?
                .into_values()
                .collect(),
            simulated: read_part(&folder.join("simulation.json"))?,
            planted: read_parts(&folder.join("planted"))?,
            controls: read_part(&folder.join("controls.json"))?,
            found: read_part(&folder.join("found.json"))?.unwrap_or_default(),
        })
    }
}

/// Reads all parts in a folder, by the name of the file. A missing folder has no parts.
fn read_parts<T: DeserializeOwned>(folder: &Path) -> Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(all);
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if let Some(part) = read_part(&path)? {
            all.insert(name.into_owned(), part);
        }
    }
    Ok(all)
}

/// Reads one part. `None` means that the file does not exist.
fn read_part<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(data) => Ok(Some(
            serde_json::from_slice(&data).with_context(|| path.display().to_string())?,
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
