//! The flags that every command has.

use std::path::PathBuf;

use crate::logging::LogFormat;

/// Flags of every command.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Global {
    /// Store that arbitrates, as in sqlite:/var/lib/distlock/distlock.db
    #[arg(
        long,
        global = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub backend: Vec<String>,
    /// Store that keeps the records, if another one than the locks are in
    #[arg(
        long,
        global = true,
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub records: Option<String>,
    /// The store that the users of this host share, /var/lib/distlock
    #[arg(
        long,
        global = true,
        conflicts_with = "backend",
        help_heading = "Global options"
    )]
    pub system: bool,
    /// Your own store on this host, in your home: the default, named on purpose
    #[arg(
        long = "user",
        global = true,
        conflicts_with_all = ["backend", "system"],
        help_heading = "Global options"
    )]
    pub own: bool,
    /// Configuration file, as in /etc/distlock.toml; no other file is read
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub config: Option<PathBuf>,
    /// Print results as JSON
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
    /// Form of the log lines on standard error: text or json
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true,
        help_heading = "Global options"
    )]
    pub log_format: LogFormat,
}
