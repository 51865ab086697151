//! The two products, and the search for their programs.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::servers::template::cache_folder;

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
