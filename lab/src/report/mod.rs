//! `distlock-lab report`: the published page, made from the data that the other commands wrote.
//!
//! | file in the folder | written by |
//! |---|---|
//! | `runs/*.json` | `chaos --out`, one file a command |
//! | `planted.json` | `chaos --planted --out` |
//! | `found.json` | people: every bug that the lab found in distlock |
//! | `report.md`, `report.html` | this |

mod page;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::chaos::{Planted, Runs};

/// Make report.md and report.html again from the data in a folder.
#[derive(Debug, clap::Args)]
pub(crate) struct Report {
    /// The folder that `chaos --out` wrote into
    #[arg(long, value_name = "DIR", default_value = "docs/robustness")]
    out: PathBuf,
}

/// Everything that a page is made of.
#[derive(Debug, Default)]
struct Data {
    runs: Vec<Runs>,
    planted: Option<Planted>,
    found: Vec<FoundBug>,
}

/// A bug that the lab found in distlock.
#[derive(Debug, Deserialize, Serialize)]
struct FoundBug {
    bug: String,
    /// The command that showed it.
    seen_by: String,
    /// The test that guards the mend.
    test: String,
}

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
        let mut paths = Vec::new();
        if let Ok(entries) = fs::read_dir(folder.join("runs")) {
            for entry in entries {
                paths.push(entry?.path());
            }
        }
        paths.sort();
        let mut runs = Vec::new();
        for path in paths {
            runs.extend(part(&path)?);
        }
        Ok(Self {
            runs,
            planted: part(&folder.join("planted.json"))?,
            found: part(&folder.join("found.json"))?.unwrap_or_default(),
        })
    }
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
