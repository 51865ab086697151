//! Checks how the source tree is built, and measures it.
//!
//! This program answers three questions: whether imports between files form circles, whether a line
//! is too wide, and whether a comment opens with a clause instead of a subject. The program reads
//! sources only, and must never change them.

mod circles;
mod package;
mod paths;
mod sources;
mod table;
mod words;

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Parser, Subcommand};

use self::package::Package;

/// The number of files in the largest circle that `check` accepts.
const LARGEST_CIRCLE: usize = 2;

#[derive(Debug, Parser)]
#[command(about = "Checks how the source tree is built, and measures it")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Fail on circles of more than two files, wide lines and bad openings
    Check {
        /// The top of the tree
        #[arg(default_value = ".")]
        top: PathBuf,
    },
    /// Print each circle of two or more files with the imports that close it
    Circles {
        /// Folders of packages; all packages by default
        packages: Vec<PathBuf>,
    },
    /// Print wide lines and comments with a bad opening
    Words {
        /// Folders or files
        #[arg(default_value = ".")]
        below: Vec<PathBuf>,
    },
    /// Print files, lines of code, largest circle, longest function and wide lines per package
    Table {
        /// The top of the tree
        #[arg(default_value = ".")]
        top: PathBuf,
    },
}

fn main() -> Result<ExitCode> {
    let (lines, may_pass) = match Arguments::parse().command {
        Command::Check { top } => {
            let mut found = describe_circles(&sources::packages(&top)?, LARGEST_CIRCLE)?;
            found.extend(describe_complaints(&[top])?);
            let may_pass = found.is_empty();
            (found, may_pass)
        }
        Command::Circles { packages } if packages.is_empty() => (
            describe_circles(&sources::packages(Path::new("."))?, 1)?,
            true,
        ),
        Command::Circles { packages } => (describe_circles(&packages, 1)?, true),
        Command::Words { below } => (describe_complaints(&below)?, true),
        Command::Table { top } => (
            vec![table::table(&top, &sources::packages(&top)?)?.to_string()],
            true,
        ),
    };
    let mut output = io::stdout().lock();
    for line in lines {
        writeln!(output, "{line}")?;
    }
    Ok(if may_pass {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Describes each circle of more than `allowed` files.
fn describe_circles(packages: &[PathBuf], allowed: usize) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in packages {
        for package in Package::read_all(folder)? {
            for circle in circles::circles(package.edges()) {
                if circle.files.len() > allowed {
                    let folder = folder.strip_prefix(".").unwrap_or(folder).display();
                    found.push(format!("{folder}: {}", package.describe(&circle)));
                }
            }
        }
    }
    Ok(found)
}

/// Describes each line that breaks the rule of width or the rule of openings.
fn describe_complaints(places: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for place in places {
        for path in sources::texts(place)? {
            found.extend(words::complaints(&path)?.iter().map(ToString::to_string));
        }
    }
    Ok(found)
}
