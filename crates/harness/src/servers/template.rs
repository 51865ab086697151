//! Data folders to copy: setting one up takes seconds, copying it does not.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// Where things stay from one run of the tests to the next.
pub(super) fn cache() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
        .unwrap_or_else(env::temp_dir);
    base.join("distlock")
}

/// Copies a folder with its owners and modes: cheaply where the file system can, and holes stay holes.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    finish(
        Command::new("cp")
            .args(["-a", "--reflink=auto", "--sparse=always"])
            .args([from, to]),
    )
}

/// Runs a command to its end.
pub(super) fn finish(command: &mut Command) -> Result<()> {
    let output = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("{command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
