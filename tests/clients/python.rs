//! The Python client, built in a virtual environment of its own.
//!
//! The test fails without python3 or without the package index that pip is configured for.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::client::Program;

/// The checkout.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// What checks the types of the package, beside the package itself.
const TYPES: [&str; 3] = ["mypy", "types-grpcio", "types-protobuf"];

/// A virtual environment with the client.
pub(crate) struct Environment {
    folder: TempDir,
}

impl Environment {
    /// Builds the package and installs it.
    pub(crate) fn make() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let made = Self { folder };
        // The build of a package writes beside its sources, so a copy is built.
        for sources in ["clients/python", "proto"] {
            copy(&Path::new(ROOT).join(sources), &made.path(sources))?;
        }
        let mut venv = Command::new("python3");
        run(venv.args(["-m", "venv"]).arg(made.path("venv")))
            .context("make a virtual environment (Debian: apt-get install python3-venv)")?;
        let mut install = made.python();
        install.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        run(install.arg(made.path("clients/python")).args(TYPES)).context("install the client")?;
        Ok(made)
    }

    /// Checks the types of the package and of its driver.
    pub(crate) fn check_types(&self) -> Result<()> {
        let sources = self.path("clients/python");
        let mut mypy = self.python();
        mypy.current_dir(&sources)
            .args(["-m", "mypy", "--package", "distlock"]);
        run(&mut mypy)?;
        let mut mypy = self.python();
        run(mypy.current_dir(&sources).args(["-m", "mypy", "tests"]))
    }

    /// Checks the test vectors for clients in every language.
    pub(crate) fn check_vectors(&self) -> Result<()> {
        let mut vectors = self.python();
        vectors.arg(self.path("clients/python/tests/vectors.py"));
        run(vectors.arg(Path::new(ROOT).join("clients/vectors.json")))
    }

    /// The client that waits in this form.
    pub(crate) fn program(&self, form: &str) -> Program {
        let driver = self.path("clients/python/tests/driver.py");
        Program {
            name: format!("Python, {form}"),
            program: self.path("venv/bin/python"),
            arguments: vec![driver.into(), form.into()],
            variables: Vec::new(),
            cancels: form == "asyncio",
        }
    }

    fn python(&self) -> Command {
        Command::new(self.path("venv/bin/python"))
    }

    fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }
}

fn run(command: &mut Command) -> Result<()> {
    // A caller's own environment must not replace this one.
    for variable in ["PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"] {
        command.env_remove(variable);
    }
    let done = command.output().with_context(|| format!("{command:?}"))?;
    let said = [&*done.stdout, &*done.stderr]
        .map(String::from_utf8_lossy)
        .concat();
    ensure!(
        done.status.success(),
        "{command:?}: {}\n{said}",
        done.status
    );
    Ok(())
}

/// Copies the files of a folder that git would keep.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if !entry.file_type()?.is_dir() {
            fs::copy(source, target)?;
        } else if !is_built(&entry.file_name()) {
            copy(&source, &target)?;
        }
    }
    Ok(())
}

/// Whether a folder of this name is the work of a build.
fn is_built(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name == "build" || name.starts_with('.') || name.starts_with("__") || name.contains(".egg-info")
}
