//! The timeline of the demo. Events are printed at once, and kept so that a scene can wait for one.

use std::time::Duration;

use anyhow::{Result, bail};
use distlock::backend::sync::Mutex;
use distlock::{Clock as _, Moment, SystemClock};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::output;

/// Prints and keeps events.
#[derive(Debug)]
pub(super) struct Timeline {
    start: Moment,
    json: bool,
    state: Mutex<Printed>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Printed {
    scene: usize,
    /// Whether this is a crowded scene. Its single events would scroll everything else off the
    /// screen, so only the JSON form shows them.
    crowd: bool,
    events: Vec<Value>,
}

/// The columns of a line of the timeline. A column that does not apply is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entry<'a> {
    pub(super) node: &'a str,
    pub(super) generation: Option<u64>,
    pub(super) token: Option<u64>,
}

impl Timeline {
    /// Starts the time of the timeline.
    pub(super) fn new(json: bool) -> Self {
        Self {
            start: SystemClock.now(),
            json,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Prints the title and the store.
    pub(super) fn print_opening(&self, what: &str, backend: &str) {
        if self.json {
            self.print_json(&json!({"event": "demo", "backend": backend}));
        } else {
            print(&format!("{what}, over {backend}"));
        }
    }

    /// Prints the headings of the columns of events.
    pub(super) fn print_columns(&self) {
        if !self.json {
            print(&format!(
                "\n{:>8}  {:<8} {:>17} {:>17}  what",
                "time", "node", "generation", "token"
            ));
        }
    }

    /// Prints a line that does not come from a node.
    pub(super) fn print_remark(&self, what: &str) {
        if self.json {
            self.print_json(&json!({"event": "note", "what": what}));
        } else {
            let time = SystemClock.now().since(self.start).as_secs_f64();
            print(&format!("{time:>7.3}s  {what}"));
        }
    }

    /// Begins a scene, and prints its title.
    pub(super) fn begin_scene(&self, number: usize, title: &str, crowd: bool) {
        {
            let mut state = self.state.lock();
            state.scene = number;
            state.crowd = crowd;
        }
        if self.json {
            self.print_json(&json!({"event": "scene", "title": title}));
        } else {
            print(&format!("\nscene {number}: {title}"));
        }
    }

    /// Prints an event of a client. In a crowded scene only the JSON form has it.
    pub(super) fn print_client_event(&self, device: &str, at: Entry<'_>, what: &str) {
        let crowd = self.state.lock().crowd;
        if self.json {
            self.print_json(&json!({
                "event": "client",
                "device": device,
                "node": non_empty(at.node),
                "gen": at.generation,
                "token": at.token,
                "what": what,
            }));
        } else if !crowd {
            self.print_line(at, &format!("{device}: {what}"));
        }
    }

    /// Prints a line even in a crowded scene.
    pub(super) fn print_note(&self, at: Entry<'_>, what: &str) {
        if self.json {
            self.print_json(&json!({
                "event": "note",
                "node": non_empty(at.node),
                "gen": at.generation,
                "token": at.token,
                "what": what,
            }));
        } else {
            self.print_line(at, what);
        }
    }

    /// Keeps a transition that a node printed, and prints it.
    pub(super) fn record_node_event(&self, event: Value) {
        let crowd = self.state.lock().crowd;
        if self.json {
            self.print_json(&json!({
                "event": "node",
                "node": event["node"],
                "gen": event["gen"],
                "token": event["token"],
                "transition": event,
            }));
        } else if let (false, Some(what)) = (crowd, describe_transition(&event)) {
            let at = Entry {
                node: event["node"].as_str().unwrap_or_default(),
                generation: event["gen"].as_u64(),
                token: event["token"].as_u64(),
            };
            self.print_line(at, &what);
        }
        self.state.lock().events.push(event);
        self.changed.notify_waiters();
    }

    /// Waits until a node has reported a transition that matches.
    pub(super) async fn wait_for(
        &self,
        what: &str,
        within: Duration,
        matches: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        let until = SystemClock.now() + within;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(event) = self.state.lock().events.iter().find(|event| matches(event)) {
                return Ok(event.clone());
            }
            let left = until.since(SystemClock.now());
            if left.is_zero() {
                bail!("no node reported within {within:?} that {what}");
            }
            tokio::select! {
                () = changed => {}
                () = SystemClock.sleep(left) => {}
            }
        }
    }

    /// Prints the verdict on a scene: passed, or the failure.
    pub(super) fn print_verdict(&self, title: &str, failure: Option<&str>) {
        if self.json {
            self.print_json(&json!({
                "event": "verdict",
                "title": title,
                "passed": failure.is_none(),
                "failure": failure,
            }));
        } else {
            match failure {
                None => print(&format!("{:>8}  PASSED", "")),
                Some(why) => print(&format!("{:>8}  FAILED: {why}", "")),
            }
        }
    }

    /// Prints the result of the whole demo.
    pub(super) fn print_result(&self, passed: usize, of: usize) {
        self.state.lock().scene = 0;
        if self.json {
            self.print_json(&json!({"event": "result", "scenes": of, "passed": passed}));
        } else if passed == of {
            print(&format!("\nall {of} scenes passed"));
        } else {
            print(&format!("\n{passed} of {of} scenes passed"));
        }
    }

    /// Prints a line with its columns.
    fn print_line(&self, at: Entry<'_>, what: &str) {
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        print(&format!(
            "{:>7.3}s  {:<8} {:>17} {:>17}  {what}",
            SystemClock.now().since(self.start).as_secs_f64(),
            at.node,
            number(at.generation),
            number(at.token),
        ));
    }

    /// Prints an event as JSON, with its time and its scene.
    fn print_json(&self, line: &Value) {
        let mut line = line.clone();
        line["at_ms"] = output::whole_millis(SystemClock.now().since(self.start)).into();
        let scene = self.state.lock().scene;
        if scene > 0 {
            line["scene"] = scene.into();
        }
        print(&line.to_string());
    }
}

/// The text, or `None` if it is empty.
fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Prints a line. If the reader has closed the pipe, the demo still goes on, so that its processes
/// and files are removed.
fn print(text: &str) {
    let _ = output::print_line(text);
}

/// Describes a transition in plain words; `None` for one that people need not see.
fn describe_transition(event: &Value) -> Option<String> {
    let text = |field: &str| event[field].as_str().unwrap_or("?").to_owned();
    let device = text("device");
    Some(match event["event"].as_str()? {
        "node_up" => "node: up, holds its lease".into(),
        "node_fenced" => "node: lost its lease".into(),
        "granted" => format!("node: {device} granted under the account's lock"),
        "admitted" => format!("node: {device} confirmed"),
        "kick_sent" => format!("node: kick sent to {}: {}", text("peer"), text("result")),
        "kick_received" => format!("node: kick received: {}", text("result")),
        "superseded" => format!("node: {device} superseded by {}", text("by_device")),
        "closed" if event["result"] == "AlreadyGone" => {
            format!(
                "node: {device} closed: the record is another session's by now and stays as it is"
            )
        }
        "closed" => format!("node: {device} closed"),
        "stale_delete_refused" => format!("node: {device}'s late delete refused, nothing changed"),
        "stale_kick_refused" => "node: stale kick refused, nothing changed".into(),
        "delivered" => format!("node: message delivered to {device}"),
        "undelivered" => "node: message reached nobody".into(),
        _ => return None,
    })
}
