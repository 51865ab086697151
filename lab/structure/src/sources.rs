//! Finds the packages and files to check: all files that git does not ignore.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// Parts of the paths of files that a program makes, or that are compared byte for byte with an
/// output. Nobody may wrap the lines of these files.
const GENERATED: [&str; 5] = [
    "/generated/",
    "/snapshots/",
    "docs/comparison/",
    "docs/robustness/",
    "/planted/",
];

const TEXTS: [&str; 12] = [
    "rs", "sql", "lua", "md", "sh", "toml", "proto", "yml", "yaml", "html", "css", "js",
];

/// Returns the folders of all packages below `top`.
pub(crate) fn packages(top: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in unignored_files(top)? {
        if path.ends_with("Cargo.toml") && !is_generated(&path) {
            let folder = path.parent().context("a manifest is in a folder")?;
            if folder.join("src").is_dir() {
                found.push(folder.to_owned());
            }
        }
    }
    Ok(found)
}

/// Returns all texts below `place` that a person writes. `place` is a folder or a file.
pub(crate) fn texts(place: &Path) -> Result<Vec<PathBuf>> {
    Ok(unignored_files(place)?
        .into_iter()
        .filter(|path| is_text(path) && !is_generated(path))
        .collect())
}

fn unignored_files(place: &Path) -> Result<Vec<PathBuf>> {
    let (folder, file) = if place.is_file() {
        (place.parent().unwrap_or(Path::new(".")), place.file_name())
    } else {
        (place, None)
    };
    let mut git = Command::new("git");
    git.arg("-C").arg(if folder == Path::new("") {
        Path::new(".")
    } else {
        folder
    });
    git.args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "-z",
        "--",
    ]);
    if let Some(file) = file {
        git.arg(file);
    }
    let output = git.output().context("git cannot be started")?;
    ensure!(
        output.status.success(),
        "git ls-files failed in {}",
        folder.display()
    );
    let mut files: Vec<PathBuf> = String::from_utf8(output.stdout)?
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(|name| folder.join(name))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn is_generated(path: &Path) -> bool {
    let path = path.to_string_lossy();
    GENERATED.iter().any(|part| path.contains(part))
}

/// Tells whether a file is a text. A file without an extension is a text if its first line names an
/// interpreter.
fn is_text(path: &Path) -> bool {
    match path.extension() {
        Some(extension) => TEXTS.iter().any(|known| extension == *known),
        None => std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"#!")),
    }
}
