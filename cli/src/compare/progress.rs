//! What a person sees while it runs: a bar on a terminal, a line per part elsewhere.

use std::{
    io::{IsTerminal as _, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Progress on standard error.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len} {wide_bar} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self {
            bar,
            lines: !stderr().is_terminal(),
        }
    }

    /// There will be so many steps.
    pub(super) fn expect(&self, steps: usize) {
        self.bar
            .set_length(u64::try_from(steps).unwrap_or(u64::MAX));
    }

    /// Something else begins.
    pub(super) fn part(&self, text: &str) {
        if self.lines {
            output::tell(text);
        }
        self.bar.set_message(text.to_owned());
    }

    /// One step is done.
    pub(super) fn step(&self) {
        self.bar.inc(1);
    }

    /// Something that a reader must know.
    pub(super) fn note(&self, text: &str) {
        self.bar.suspend(|| output::tell(text));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
