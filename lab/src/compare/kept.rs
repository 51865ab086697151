//! Keeps the samples, each in a file, so that an interrupted run can be continued.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    files::{make_folder, write_file},
    plan::Plan,
};
use distlock_cli::program::{Failure, Outcome, code};

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
