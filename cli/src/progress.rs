//! Progress for people: a bar on a terminal, one line per part elsewhere.

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{output, stderr};

/// Progress on standard error.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self {
            bar,
            lines: !io::stderr().is_terminal(),
        }
    }

    /// A silent one, for a part of work that has its own progress.
    pub(crate) fn silent() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            lines: false,
        }
    }

    /// Adds to the number of expected steps.
    pub(crate) fn add_expected(&self, steps: usize) {
        self.bar
            .set_length(u64::try_from(steps).unwrap_or(u64::MAX));
    }

    /// Names the part that begins now.
    pub(crate) fn begin_part(&self, text: &str) {
        if self.lines {
            output::print_message(text);
        }
        self.bar.set_message(text.to_owned());
    }

    /// One step is done.
    pub(crate) fn finish_step(&self) {
        self.finish_steps(1);
    }

    /// Some steps are done.
    pub(crate) fn finish_steps(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Prints a message that readers need.
    pub(crate) fn print_note(&self, text: &str) {
        self.bar.suspend(|| {
            output::print_message(text);
            stderr::catch_up();
        });
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
