//! The installed server: its programs, its user, and the template of its data.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::servers::{
    isolation::{PROGRAM_REMEDY, RunAs},
    template::{cache_folder, copy_folder, run_to_end, templates_folder},
};

/// The database that every server has from the start.
pub(super) const DATABASE: &str = "distlock";

/// Returns the folder with the programs of the newest installed version.
pub(super) fn binaries_folder() -> Result<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = installed
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|folder| folder.join("postgres").exists())
        .max_by_key(|folder| {
            let version = folder.parent().and_then(Path::file_name);
            version.and_then(|it| it.to_string_lossy().parse::<u32>().ok())
        });
    newest
        .or_else(|| env::split_paths(&env::var_os("PATH")?).find(|it| it.join("postgres").exists()))
        .context("a PostgreSQL server (Debian: apt-get install postgresql)")
}

/// Which PostgreSQL a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// The newest one that is installed, from the distribution.
    Installed,
    /// The program `$DISTLOCK_POSTGRES` with `initdb` beside it, or those that
    /// `scripts/get-server postgres` fetched.
    Newer,
}

impl Version {
    fn binaries_folder(self) -> Result<PathBuf> {
        if self == Self::Installed {
            return binaries_folder();
        }
        let chosen = env::var_os("DISTLOCK_POSTGRES").map(PathBuf::from);
        let program = chosen.unwrap_or_else(|| cache_folder().join("postgres-18/bin/postgres"));
        ensure!(
            program.exists(),
            "PostgreSQL 18: run scripts/get-server postgres, or set DISTLOCK_POSTGRES to a \
             postgres of version 18 or later, with initdb beside it"
        );
        Ok(program.parent().context("a folder")?.to_owned())
    }

    /// Returns a command that runs a program of this version as the servers' user, because the
    /// programs refuse to run as root.
    pub(super) fn command(self, name: &str) -> Result<Command> {
        let program = self.binaries_folder()?.join(name);
        server_user()?.check_access(&program, PROGRAM_REMEDY)?;
        Ok(server_user()?.command(program))
    }
}

/// Returns the user of the servers' processes.
pub(in crate::servers) fn server_user() -> Result<RunAs> {
    RunAs::for_package("postgres")
}

/// Returns the path of the data's template. The template is made once for each machine, server
/// version and user, because making a template takes seconds.
pub(super) fn data_template(version: Version) -> Result<PathBuf> {
    let made = fs::metadata(version.binaries_folder()?.join("postgres"))?.modified()?;
    let made = made.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let (templates, user) = (templates_folder()?, server_user()?);
    let finished = templates.join(format!("Postgres-{version:?}-{made}-{}-2", user.uid()));
    let lock = fs::File::create(templates.join("Postgres.lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if finished.exists() {
        return Ok(finished);
    }
    // The server's user can enter this folder.
    let work = user.create_folder(&env::temp_dir())?;
    let data = work.path().join("data");
    run_to_end(version.command("initdb")?.arg("-D").arg(&data).args([
        "--no-sync",
        "--username=postgres",
        "--auth=reject",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
    ]))?;
    user.write_private_file(
        &data.join("pg_hba.conf"),
        // The socket needs no password. The socket is in the server's folder, and a user who can
        // enter that folder could read the data as well.
        "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    )?;
    let statements = work.path().join("setup.sql");
    fs::write(&statements, format!("CREATE DATABASE {DATABASE}\n"))?;
    run_to_end(
        version
            .command("postgres")?
            .args(["--single", "-D"])
            .arg(&data)
            .args(["-c", "fsync=off", "postgres"])
            .stdin(fs::File::open(&statements)?),
    )?;
    let copied = templates.join("Postgres-unfinished");
    let _ = fs::remove_dir_all(&copied);
    copy_folder(&data, &copied)?;
    fs::rename(copied, &finished)?;
    Ok(finished)
}
