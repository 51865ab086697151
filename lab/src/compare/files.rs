//! The files of a run: the report, and the samples, from which an interrupted run continues.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use distlock::backend::path_excerpt;
use distlock_cli::program::{Failure, Outcome, code};
use distlock_report::{Comparison, render};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::plan::Plan;

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

/// Writes the report as JSON, as a page and as Markdown, and its charts.
pub(super) fn write_report(out: &Path, comparison: &Comparison) -> io::Result<()> {
    let mut json = serde_json::to_vec_pretty(comparison)?;
    json.push(b'\n');
    // The pages are rendered from the data that was written, so that rendering them again from the
    // file gives the same pages.
    let comparison: &Comparison = &serde_json::from_slice(&json)?;
    write_file(&out.join("report.json"), json)?;
    for (name, content) in render::comparison(comparison).files() {
        write_file(&out.join(name), content)?;
    }
    Ok(())
}

/// The folder of raw samples.
#[derive(Debug)]
pub(super) struct SampleFolder {
    folder: PathBuf,
}

/// The run to which a folder of samples belongs.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    plan: Plan,
    /// Keys and servers of the stores.
    stores: Vec<(String, String)>,
    finished: bool,
}

const HEADER: &str = "run.json";

impl SampleFolder {
    /// Opens the samples in `out`: those of an interrupted run with the same plan and stores, or an
    /// empty folder.
    pub(super) fn open(out: &Path, plan: &Plan, stores: Vec<(String, String)>) -> Outcome<Self> {
        let kept = Self {
            folder: out.join("samples"),
        };
        let header = Header {
            plan: plan.clone(),
            stores,
            finished: false,
        };
        match kept.load::<Header>(HEADER) {
            Some(found) if found == header => return Ok(kept),
            Some(found) if found.finished => fs::remove_dir_all(&kept.folder)?,
            Some(_) => {
                return Err(Failure::new(
                    code::USAGE,
                    format!(
                        "{} holds an unfinished run with other stores or another plan: \
                         finish it with the same arguments, \
                         remove it, or choose another --out",
                        kept.folder.display()
                    ),
                ));
            }
            None => {}
        }
        make_folder(&kept.folder)?;
        kept.save(HEADER, &header)?;
        Ok(kept)
    }

    /// Marks the run as finished. The next run then measures everything again.
    pub(super) fn finish(&self) -> io::Result<()> {
        let Some(mut header) = self.load::<Header>(HEADER) else {
            return Ok(());
        };
        header.finished = true;
        self.save(HEADER, &header)
    }

    /// The content of a file, if an earlier run wrote it.
    pub(super) fn load<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read(self.folder.join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes a file and renames it into its place, so that no file is ever half written.
    pub(super) fn save<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        let unfinished = self.folder.join(format!("{name}.unfinished"));
        write_file(&unfinished, serde_json::to_vec(value)?)?;
        fs::rename(unfinished, self.folder.join(name))
    }
}
