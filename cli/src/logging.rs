//! Logs on standard error, filtered by `DISTLOCK_LOG`.

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt};

use crate::{
    exit::{Failure, Outcome, code},
    stderr,
};

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging, from this level on unless `DISTLOCK_LOG` says otherwise.
pub(crate) fn start(format: LogFormat, level: &str) -> Outcome<()> {
    let filter = match std::env::var("DISTLOCK_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text).map_err(|error| {
            Failure::new(
                code::CONFIG,
                format!("DISTLOCK_LOG is \"{}\": {error}", text.escape_debug()),
            )
        })?,
        _ => EnvFilter::new(level),
    };
    let log = fmt().with_env_filter(filter).with_writer(|| stderr::Log);
    match format {
        LogFormat::Text => log.with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}
