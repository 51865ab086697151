//! Template folders of server data. Setting up the data takes seconds, and copying a template takes
//! much less time.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::geteuid;

/// Returns the folder for files that are kept between runs of the tests. `scripts/get-server` uses
/// the same folder.
#[must_use]
pub fn cache_folder() -> PathBuf {
    let chosen = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = if geteuid().is_root() {
        // No other user may enter root's home, and the servers of root run as another user.
        chosen.or_else(|| Some("/var/cache".into()))
    } else {
        chosen.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
    };
    base.unwrap_or_else(env::temp_dir).join("distlock")
}

/// Creates the folder of the templates if the folder is absent. Only its owner may enter the
/// folder, because the folder contains data of servers.
pub(super) fn templates_folder() -> Result<PathBuf> {
    let folder = cache_folder().join("templates");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    Ok(folder)
}

/// Copies a folder with its owners and modes. The copies share their blocks if the file system
/// supports that. Holes in a file stay holes in the copy.
pub(super) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    run_to_end(
        Command::new("cp")
            .args(["-a", "--reflink=auto", "--sparse=always"])
            .args([from, to]),
    )
}

/// Runs a command to its end. An error contains the command's output.
pub(super) fn run_to_end(command: &mut Command) -> Result<()> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output();
    // The error names only the program. The text of the whole command would contain the
    // environment, which has passwords.
    let what = command.get_program().to_string_lossy();
    let output = output.with_context(|| what.clone().into_owned())?;
    ensure!(
        output.status.success(),
        "{what}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
