//! The products and versions, and the search for their programs.

use std::{env, path::PathBuf};

use anyhow::{Result, ensure};

use crate::servers::template::cache_folder;

/// A product and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavour {
    /// The `redis-server` on the path, from the distribution.
    Installed,
    /// Redis 8.4 or later: the program `$DISTLOCK_REDIS`, or the program that
    /// `scripts/get-server redis` fetched.
    Redis8,
    /// Valkey 9: the program `$DISTLOCK_VALKEY`, or the program that `scripts/get-server valkey`
    /// fetched.
    Valkey9,
}

impl Flavour {
    /// Returns the path of the server's program. An error names the way to get the program.
    pub(super) fn program(self) -> Result<PathBuf> {
        let (variable, fetched, help) = match self {
            Self::Installed => return Ok("redis-server".into()),
            Self::Redis8 => (
                "DISTLOCK_REDIS",
                "redis-8.4/redis-server",
                "Redis 8.4: run scripts/get-server redis, or set DISTLOCK_REDIS to a redis-server \
                 of version 8.4 or later",
            ),
            Self::Valkey9 => (
                "DISTLOCK_VALKEY",
                "valkey/valkey-server",
                "Valkey 9: run scripts/get-server valkey, or set DISTLOCK_VALKEY to a \
                 valkey-server of version 9 or later",
            ),
        };
        let chosen = env::var_os(variable).map(PathBuf::from);
        let program = chosen.unwrap_or_else(|| cache_folder().join(fetched));
        ensure!(program.exists(), "{help}");
        Ok(program)
    }
}
