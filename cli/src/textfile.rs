//! `--metrics-textfile`: the last run of a job as metrics in a file, for the textfile collector of
//! Prometheus' node exporter.
//!
//! This module owns the file. Invariants: a reader sees a whole file, the old one or the new one.
//! Whatever happens to the file does not stop the job and does not change its exit code: a failure
//! is a warning, and a file system that hangs delays the job by a second.

use std::{
    fmt::Write as _,
    fs::{self, Permissions},
    future::Future,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    pin::Pin,
    time::Duration,
};

use clap::{
    Args,
    builder::{PathBufValueParser, TypedValueParser as _},
};
use distlock::{
    Clock as _, LockName, Moment, SystemClock,
    backend::{at_most, path_excerpt, threads, unix_time},
};

use crate::{
    exit::{Failure, code},
    output,
};

/// The longest time that one write delays the job.
const LIMIT: Duration = Duration::from_secs(1);

/// The option of the commands that run a job.
#[derive(Args, Debug)]
pub(crate) struct TextfileOption {
    /// Write the last start, success, duration, exit code and loss of the job as metrics to FILE,
    /// which ends in .prom, for the textfile collector of Prometheus' node exporter
    #[arg(
        long,
        value_name = "FILE",
        value_parser = PathBufValueParser::new().try_map(check_name),
    )]
    metrics_textfile: Option<PathBuf>,
}

/// Refuses a file that the collector would not read.
fn check_name(path: PathBuf) -> Result<PathBuf, &'static str> {
    if path.extension().is_some_and(|it| it == "prom") {
        Ok(path)
    } else {
        Err("the collector reads only files whose names end in .prom")
    }
}

#[derive(Clone, Copy, Debug)]
enum Metric {
    LastStart,
    LastSuccess,
    LastLoss,
    Duration,
    ExitCode,
    Held,
}

/// Name and help of each metric, in the order of [`Metric`]. The collector reads the files of all
/// jobs of a host, and demands the same help in each of them.
const METRICS: [(&str, &str); 6] = [
    (
        "distlock_job_last_start_timestamp_seconds",
        "When the last run began",
    ),
    (
        "distlock_job_last_success_timestamp_seconds",
        "When the last run that succeeded ended",
    ),
    (
        "distlock_job_last_loss_timestamp_seconds",
        "When a run lost its lock, or was refused because of a later holder",
    ),
    (
        "distlock_job_duration_seconds",
        "How long the command of the last run took",
    ),
    (
        "distlock_job_exit_code",
        "The exit code of the last run, also of one whose command was not started",
    ),
    (
        "distlock_job_held",
        "Whether a run holds the lock now (after a kill of the tool: held it)",
    ),
];

/// The values that are known; a value that is not known stays as it is in the file.
type Values = [Option<f64>; METRICS.len()];

/// A write on its own thread, and the problem that it met.
type PendingWrite = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The metrics of one job. Without the option, nothing is written.
pub(crate) struct Textfile {
    path: Option<PathBuf>,
    labels: String,
    values: Values,
    /// When the command began; `None` before that, and after its end.
    began: Option<Moment>,
    /// Whether the end of the run is known, or there is no run to tell of.
    settled: bool,
    /// A write that did not end within its limit. The next one waits for it, so that the file does
    /// not go back to older values.
    running: Option<PendingWrite>,
}

impl Textfile {
    /// The file of the option, for this command of the tool.
    pub(crate) fn new(option: &TextfileOption, command: &'static str, name: &LockName) -> Self {
        let quoted = name.as_str().replace('\\', "\\\\").replace('"', "\\\"");
        Self {
            path: option.metrics_textfile.clone(),
            labels: format!("{{command=\"{command}\",name=\"{quoted}\"}}"),
            values: [None; METRICS.len()],
            began: None,
            settled: false,
            running: None,
        }
    }

    fn set(&mut self, metric: Metric, value: f64) {
        // To the millisecond.
        self.values[metric as usize] = Some((value * 1000.0).round() / 1000.0);
    }

    fn set_now(&mut self, metric: Metric) {
        self.set(metric, unix_time(&SystemClock).as_secs_f64());
    }

    /// A run begins, and holds the lock.
    pub(crate) async fn started(&mut self) {
        self.set_now(Metric::LastStart);
        self.set(Metric::Held, 1.0);
        self.began = Some(SystemClock.now());
        self.settled = false;
        self.write().await;
    }

    /// A run begins whose end this process does not see.
    pub(crate) async fn passed(&mut self) {
        self.set_now(Metric::LastStart);
        self.set(Metric::ExitCode, code::OK.into());
        self.write().await;
    }

    /// The command has ended. The release of its lock may take longer.
    pub(crate) fn command_ended(&mut self) {
        if let Some(began) = self.began.take() {
            let took = SystemClock.now().since(began);
            self.set(Metric::Duration, took.as_secs_f64());
        }
    }

    /// The run lost its lock.
    pub(crate) fn lost(&mut self) {
        self.set_now(Metric::LastLoss);
    }

    /// The job is not due, so there is nothing to tell.
    pub(crate) const fn not_due(&mut self) {
        self.settled = true;
    }

    /// The run has ended with this exit code or failure, or was not started, and does not hold the
    /// lock.
    pub(crate) async fn ended(&mut self, outcome: Result<u8, &Failure>) {
        if self.settled {
            return;
        }
        self.command_ended();
        let code = outcome.unwrap_or_else(|failure| failure.code);
        self.set(Metric::ExitCode, code.into());
        if outcome.is_ok() && code == code::OK {
            self.set_now(Metric::LastSuccess);
        }
        if outcome.is_err() && code == code::LOST {
            self.lost();
        }
        // A run that was not started says nothing of an earlier one, which may still hold the lock.
        if self.values[Metric::Held as usize].is_some() {
            self.set(Metric::Held, 0.0);
        }
        self.settled = true;
        self.write().await;
    }

    /// Writes the file on a thread of its own, because a file system may hang.
    async fn write(&mut self) {
        let Some(path) = self.path.clone() else {
            return;
        };
        let shown = path_excerpt(&path);
        let (labels, values) = (self.labels.clone(), self.values);
        let running = &mut self.running;
        let write = async {
            if let Some(before) = running {
                let _ = before.await;
            }
            let work = move || replace_file(&path, &labels, &values);
            let write = async {
                match threads::blocking(work).await {
                    Ok(written) => written.map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                }
            };
            let written = running.insert(Box::pin(write)).await;
            *running = None;
            written
        };
        let problem = "the file system has not answered after";
        let slow = || Err(format!("{problem} {LIMIT:?}; the write goes on"));
        let written = at_most(&SystemClock, LIMIT, write).await;
        if let Err(problem) = written.unwrap_or_else(slow) {
            output::print_message(format_args!(
                "warning: the metrics were not written to {shown}: {problem}"
            ));
        }
    }
}

/// Replaces the file in one step. Values that are not known are taken from the file.
fn replace_file(path: &Path, labels: &str, values: &Values) -> io::Result<()> {
    let before = fs::read_to_string(path).unwrap_or_default();
    let mut text = String::new();
    for ((name, help), value) in METRICS.iter().zip(values) {
        let series = format!("{name}{labels} ");
        let in_file = || {
            let value = before.lines().find_map(|it| it.strip_prefix(&series))?;
            value.parse::<f64>().ok()
        };
        if let Some(value) = value.or_else(in_file) {
            let _ = write!(
                text,
                "# HELP {name} {help}\n# TYPE {name} gauge\n{series}{value}\n"
            );
        }
    }
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".distlock-")
        .suffix(".tmp")
        .tempfile_in(folder.unwrap_or_else(|| Path::new(".")))?;
    file.write_all(text.as_bytes())?;
    // The collector is another user. A mode at the creation would be cut by the umask.
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}
