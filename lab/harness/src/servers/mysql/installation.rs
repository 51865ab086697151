//! The installed server: its command line, its user, and the template of its data.
//!
//! The two products, and the search for their programs.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FlockOperation, flock};

use crate::servers::{
    isolation::{self, Password, RunAs},
    template::{cache_folder, copy_folder, run_to_end, templates_folder},
};

/// The database that every server has from the start.
pub(super) const DATABASE: &str = "distlock";

/// Returns the user of the servers' processes.
pub(super) fn server_user() -> Result<RunAs> {
    RunAs::for_package("mysql")
}

/// Returns the command that starts the server's program, with the options that the setup of the
/// data and the running server share.
pub(super) fn server_command(
    product: Product,
    program: &Path,
    user: RunAs,
    data: &Path,
) -> Result<Command> {
    user.check_access(program, isolation::PROGRAM_REMEDY)?;
    let mut command = user.command(program);
    command
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()))
        .args([
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=1",
            "--performance-schema=OFF",
            "--skip-log-bin",
        ]);
    match product {
        Product::MariaDb => command.arg("--innodb-log-file-size=16M"),
        Product::MySql => command.args(["--mysqlx=OFF", "--innodb-redo-log-capacity=32M"]),
    };
    Ok(command)
}

/// Returns the setting under which no statement can read or write files. In MariaDB the value NULL
/// would allow all folders, so the setting names an empty folder in which nobody can write.
pub(super) fn secure_file_setting(product: Product, folder: &Path) -> Result<String> {
    if product == Product::MySql {
        return Ok("--secure-file-priv=NULL".into());
    }
    let empty = folder.join("nowhere");
    if !empty.exists() {
        fs::create_dir(&empty)?;
        fs::set_permissions(&empty, fs::Permissions::from_mode(0o555))?;
    }
    Ok(format!("--secure-file-priv={}", empty.display()))
}

/// Returns the path of the data's template. The template is made once for each machine, server
/// version and user, because making a template takes seconds. Except for root of this host, nobody
/// can log in to a server with this data until its first statements set a password.
pub(super) fn data_template(product: Product) -> Result<PathBuf> {
    let (program, user) = (product.program()?, server_user()?);
    let made = fs::metadata(&program)?.modified()?;
    let made = made.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let folder = templates_folder()?;
    let finished = folder.join(format!("{product:?}-{made}-{}-3", user.uid()));
    let lock = fs::File::create(folder.join(format!("{product:?}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if finished.exists() {
        return Ok(finished);
    }
    // The server's user can enter this folder.
    let work = user.create_folder(&env::temp_dir())?;
    let data = work.path().join("data");
    let statements = work.path().join("setup.sql");
    let create = format!("CREATE DATABASE {DATABASE};\n");
    if product == Product::MariaDb {
        user.write_private_file(&statements, create)?;
        run_to_end(
            user.command("mariadb-install-db")
                .args(["--no-defaults", "--skip-test-db"])
                // Only root of this host can use this account, through the socket.
                .args([
                    "--auth-root-authentication-method=socket",
                    "--auth-root-socket-user=root",
                ])
                .arg(format!("--datadir={}", data.display())),
        )?;
        run_to_end(
            server_command(product, &program, user, &data)?
                .arg("--bootstrap")
                .stdin(fs::File::open(&statements)?),
        )?;
    } else {
        // `--initialize` gives `root` a random password and prints the password. `root` must change
        // that password before any other statement. Nobody uses the password that is set here.
        let unknown = Password::random();
        let locked = format!(
            "ALTER USER 'root'@'localhost' IDENTIFIED BY '{}';\n",
            unknown.expose()
        );
        user.write_private_file(&statements, locked + &create)?;
        run_to_end(
            server_command(product, &program, user, &data)?
                .arg("--initialize")
                .arg(secure_file_setting(product, work.path())?)
                .arg(format!("--init-file={}", statements.display())),
        )?;
        // This file contains the server's id. Each server that starts with a copy makes its own id.
        fs::remove_file(data.join("auto.cnf"))?;
    }
    let copied = folder.join(format!("{product:?}-unfinished"));
    let _ = fs::remove_dir_all(&copied);
    copy_folder(&data, &copied)?;
    fs::rename(copied, &finished)?;
    Ok(finished)
}

/// A product with the protocol of MySQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// `mariadbd` of the Debian package.
    MariaDb,
    /// The program `mysqld`: `$DISTLOCK_MYSQLD`, or the program that `scripts/get-server mysql`
    /// fetched, or the program on the path unless MariaDB provides that program.
    MySql,
}

impl Product {
    /// Both products.
    pub const ALL: [Self; 2] = [Self::MariaDb, Self::MySql];

    pub(super) fn program(self) -> Result<PathBuf> {
        match self {
            Self::MariaDb => [
                "/usr/sbin/mariadbd",
                "/usr/bin/mariadbd",
                "/usr/libexec/mariadbd",
            ]
            .into_iter()
            .map(PathBuf::from)
            .find(|path| path.exists())
            .context("mariadbd (Debian: apt-get install mariadb-server)"),
            Self::MySql => mysqld().context(
                "a MySQL server: run scripts/get-server mysql, or set DISTLOCK_MYSQLD to a mysqld \
                 of version 8 or later",
            ),
        }
    }
}

/// Returns the program of MariaDB 11.8 or later: `$DISTLOCK_MARIADB`, or the program that
/// `scripts/get-server mariadb` fetched.
pub(super) fn newer_mariadb() -> Result<PathBuf> {
    let chosen = env::var_os("DISTLOCK_MARIADB").map(PathBuf::from);
    let program = chosen.unwrap_or_else(|| cache_folder().join("mariadb-11.8/mariadbd"));
    ensure!(
        program.exists(),
        "MariaDB 11.8: run scripts/get-server mariadb, or set DISTLOCK_MARIADB to a mariadbd of \
         version 11.8 or later"
    );
    Ok(program)
}

fn mysqld() -> Option<PathBuf> {
    if let Some(path) = env::var_os("DISTLOCK_MYSQLD") {
        return Some(path.into());
    }
    let fetched = cache_folder().join("mysql/mysqld");
    if fetched.exists() {
        return Some(fetched);
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join("mysqld"))
        .filter(|path| path.exists())
        .find(|path| {
            let version = Command::new(path).arg("--version").output();
            version.is_ok_and(|it| !String::from_utf8_lossy(&it.stdout).contains("MariaDB"))
        })
}
