//! `distlock-lab report`: the published page, made from the data that the other commands wrote.
//!
//! | file in the folder | written by |
//! |---|---|
//! | `runs/*.json` | `chaos --out`, one file a command |
//! | `gateways/*.json` | `chaos --gateways --out`, one file a store and seed |
//! | `simulation.json` | `simulate --out` |
//! | `planted/*.json` | each of these with `--planted` |
//! | `controls.json` | `chaos --controls --out` |
//! | `found.json` | people: every bug that was found in distlock so |
//! | `report.md`, `report.html` | this |

mod bugs;
mod controls;
mod data;
mod page;
mod runs;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::{Serialize, de::DeserializeOwned};

pub(crate) use data::{
    Broken, Control, ControlFigures, Controls, Excused, Gateways, Planted, PlantedBug, Run, Runs,
    Simulated, Times,
};

/// Make report.md and report.html again from the data in a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// The folder that the other commands wrote into
    #[arg(long, value_name = "DIR", default_value = "docs/robustness")]
    out: PathBuf,
}

/// Everything that a page is made of.
#[derive(Debug, Default)]
struct Data {
    runs: Vec<Runs>,
    gateways: Vec<Gateways>,
    simulated: Option<Simulated>,
    /// By the name of the file: what they were planted in.
    planted: BTreeMap<String, Planted>,
    controls: Option<Controls>,
    found: Vec<data::FoundBug>,
}

/// Makes the page again.
pub(crate) fn run(report: &Report) -> Result<()> {
    render(&report.out)
}

/// Writes the page into a folder that has data.
pub(crate) fn render(folder: &Path) -> Result<()> {
    let document = page::document(&Data::read(folder)?);
    write(folder, "report.md", &document.markdown())?;
    write(folder, "report.html", &document.html())
}

/// Writes one part of the data.
pub(crate) fn keep(folder: &Path, name: &str, part: &impl Serialize) -> Result<()> {
    write(folder, name, &(serde_json::to_string_pretty(part)? + "\n"))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    let parent = path.parent().unwrap_or(folder);
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    fs::write(&path, text).with_context(|| path.display().to_string())
}

impl Data {
    fn read(folder: &Path) -> Result<Self> {
        Ok(Self {
            runs: parts(&folder.join("runs"))?.into_values().collect(),
            gateways: parts(&folder.join("gateways"))?.into_values().collect(),
            simulated: part(&folder.join("simulation.json"))?,
            planted: parts(&folder.join("planted"))?,
            controls: part(&folder.join("controls.json"))?,
            found: part(&folder.join("found.json"))?.unwrap_or_default(),
        })
    }
}

/// Every part in a folder, by the name of its file. Without the folder there is none.
fn parts<T: DeserializeOwned>(folder: &Path) -> Result<BTreeMap<String, T>> {
    let mut all = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(all);
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if let Some(part) = part(&path)? {
            all.insert(name.into_owned(), part);
        }
    }
    Ok(all)
}

/// `None` = there is no such file.
fn part<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Ok(data) => Ok(Some(
            serde_json::from_slice(&data).with_context(|| path.display().to_string())?,
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
