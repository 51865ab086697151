//! Checks that the folders of each library and program of the tree form no circle.
//!
//! The program reads the sources that git does not ignore, and must never change them.

mod circles;
mod modules;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use self::{circles::circles, modules::imports};

#[derive(Debug, Parser)]
#[command(about = "Checks that the folders of the source tree form no circle")]
enum Arguments {
    /// Fail if folders import each other, and print the imports that close each circle
    Check {
        /// The top of the tree
        #[arg(default_value = ".")]
        top: PathBuf,
    },
}

fn main() -> Result<ExitCode> {
    let Arguments::Check { top } = Arguments::parse();
    let mut output = io::stdout().lock();
    let mut exit = ExitCode::SUCCESS;
    for root in crate_roots(&top)? {
        let source = root.parent().context("a crate root is in a folder")?;
        for circle in circles(&imports(&root)?) {
            writeln!(output, "{}: {circle}", source.display())?;
            exit = ExitCode::FAILURE;
        }
    }
    Ok(exit)
}

/// Returns the `src/lib.rs` and the `src/main.rs` of each package. Programs in other files are not
/// read. The package of this program's own tests has a circle on purpose.
fn crate_roots(top: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(top)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git cannot be started")?;
    ensure!(
        output.status.success(),
        "git ls-files failed in {}",
        top.display()
    );
    Ok(String::from_utf8(output.stdout)?
        .lines()
        .map(Path::new)
        .filter(|path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"))
        .filter(|path| !path.to_string_lossy().contains("/planted/"))
        .map(|path| top.strip_prefix(".").unwrap_or(top).join(path))
        .filter(|path| path.is_file())
        .collect())
}
