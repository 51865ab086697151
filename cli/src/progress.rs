//! Shows progress: on a terminal as a bar, and elsewhere as a line for each part.

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{output, stderr};

/// Progress on standard error.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    /// Starts the progress display.
    pub fn start() -> Self {
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

    /// Progress that shows nothing. The caller counts this part of the work itself.
    pub fn silent() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            lines: false,
        }
    }

    /// Sets the number of expected steps.
    pub fn set_expected(&self, steps: usize) {
        self.bar
            .set_length(u64::try_from(steps).unwrap_or(u64::MAX));
    }

    /// Shows the name of the part that begins now.
    pub fn begin_part(&self, text: &str) {
        if self.lines {
            output::print_message(text);
        }
        self.bar.set_message(text.to_owned());
    }

    /// Counts one finished step.
    pub fn finish_step(&self) {
        self.finish_steps(1);
    }

    /// Counts finished steps.
    pub fn finish_steps(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// Prints a message above the bar, and waits a moment until it is written.
    pub fn print_note(&self, text: &str) {
        self.bar.suspend(|| {
            output::print_message(text);
            stderr::catch_up();
        });
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
