//! Checks that the folders of each library and program of the tree form no circle.
//!
//! The program reads the sources that git does not ignore, and must never change them.

mod circles;
mod modules;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};

use self::{circles::circles, modules::imports};

fn main() -> Result<ExitCode> {
    let mut output = io::stdout().lock();
    let mut exit = ExitCode::SUCCESS;
    for root in crate_roots()? {
        let source = root.parent().context("a crate root is in a folder")?;
        for (folders, lines) in circles(&imports(&root)?) {
            let folders: Vec<_> = folders.iter().map(|it| it.to_string_lossy()).collect();
            let folders = folders.join(", ");
            writeln!(output, "{}: a circle of {folders}{lines}", source.display())?;
            exit = ExitCode::FAILURE;
        }
    }
    Ok(exit)
}

/// Returns the `src/lib.rs` and the `src/main.rs` of each package below the present folder.
/// Programs in other files are not read. The package of this program's own tests has circles on
/// purpose.
fn crate_roots() -> Result<Vec<PathBuf>> {
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(listing).output();
    let listed = listed.context("git cannot be started")?;
    ensure!(listed.status.success(), "git ls-files failed");
    let files = String::from_utf8(listed.stdout)?;
    let files = files.lines().map(PathBuf::from);
    let roots = files.filter(|it| it.ends_with("src/lib.rs") || it.ends_with("src/main.rs"));
    let roots = roots.filter(|it| !it.to_string_lossy().contains("/planted/"));
    Ok(roots.filter(|it| it.is_file()).collect())
}
