//! Logs on standard error, filtered by `DISTLOCK_LOG`.

use std::env::VarError;

use clap::ValueEnum;
use tracing::{Level, Metadata};
use tracing_subscriber::{
    EnvFilter, filter::filter_fn, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    exit::{Failure, Outcome, code},
    stderr,
};

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// Each line is a JSON object.
    Json,
}

/// Starts logging at this level, or with these directives, unless `DISTLOCK_LOG` sets another one.
pub fn start(format: LogFormat, level: &str) -> Outcome<()> {
    let wrong = |problem: String| Failure::new(code::CONFIG, format!("DISTLOCK_LOG is {problem}"));
    let filter = match std::env::var("DISTLOCK_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text)
            .map_err(|error| wrong(format!("\"{}\": {error}", text.escape_debug())))?,
        Err(VarError::NotUnicode(_)) => return Err(wrong("not UTF-8".into())),
        // Audit events are logged at every level: an operator of a node needs to see the orders of
        // administrators.
        Ok(_) | Err(VarError::NotPresent) => {
            EnvFilter::new(format!("{level},distlock::audit=info"))
        }
    };
    let log = fmt()
        .with_env_filter(filter)
        .with_writer(|| stderr::LogWriter);
    let discreet = filter_fn(may_be_logged);
    match format {
        LogFormat::Text => log.with_ansi(false).finish().with(discreet).init(),
        LogFormat::Json => log.json().finish().with(discreet).init(),
    }
    Ok(())
}

/// Whether an event may be logged. At levels below `info`, the WebSocket libraries log whole
/// messages of clients, login tokens included. These events are left out, whatever the filter says:
/// a reader of the log could otherwise log in with a token.
fn may_be_logged(what: &Metadata<'_>) -> bool {
    let who = what.target().split("::").next().unwrap_or_default();
    !["tungstenite", "tokio_tungstenite"].contains(&who) || *what.level() <= Level::INFO
}
