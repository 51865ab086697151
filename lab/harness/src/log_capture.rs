//! The log of a test.

use std::{
    fmt::{Debug, Write as _},
    sync::Arc,
};

use distlock_core::sync::Mutex;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{self, DefaultGuard},
};

/// The log of a thread, as one line for each event: its level, its message, and each field as
/// `name=value`. A space follows each of them. No character is escaped, so a test sees whether the
/// code under test has escaped it.
#[derive(Clone, Debug)]
pub struct LogCapture {
    least: Level,
    lines: Arc<Mutex<Vec<String>>>,
}

impl LogCapture {
    /// Captures the lines at `least` and above.
    #[must_use]
    pub fn new(least: Level) -> Self {
        Self {
            least,
            lines: Arc::default(),
        }
    }

    /// Captures the log of this thread until the guard is dropped.
    pub fn watch(&self) -> DefaultGuard {
        subscriber::set_default(self.clone())
    }

    /// The lines until now.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }

    /// Forgets the lines until now.
    pub fn clear(&self) {
        self.lines.lock().clear();
    }
}

impl Subscriber for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.least
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.lines.lock().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?} "),
            name => write!(self.0, "{name}={value:?} "),
        };
    }
}
