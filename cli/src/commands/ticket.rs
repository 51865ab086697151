//! Reads a ticket from the environment or standard input.

use std::io::{IsTerminal as _, Read as _};

use distlock::Ticket;

use crate::exit::{Failure, Outcome};

const VARIABLE: &str = "DISTLOCK_TICKET";
/// The most bytes that are read: a ticket is far shorter.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads the ticket from `DISTLOCK_TICKET` or standard input, plain or in the JSON of `acquire`.
pub(super) fn read_ticket() -> Outcome<Ticket> {
    let text = match std::env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => text,
        Err(std::env::VarError::NotUnicode(_)) => {
            return Err(Failure::usage(format!(
                "the ticket in {VARIABLE} is not UTF-8"
            )));
        }
        _ => read_stdin()?,
    };
    parse_ticket(text.trim())
}

/// Reads standard input, unless it is a terminal.
fn read_stdin() -> Outcome<String> {
    let input = std::io::stdin();
    if input.is_terminal() {
        return Err(Failure::usage(format!(
            "no ticket: set {VARIABLE}, or pipe in what `distlock acquire` printed"
        )));
    }
    let mut bytes = Vec::new();
    input.lock().take(MAX_BYTES).read_to_end(&mut bytes)?;
    String::from_utf8(bytes)
        .map_err(|_| Failure::usage("the ticket on standard input is not UTF-8"))
}

/// Parses a ticket, plain or in JSON.
fn parse_ticket(text: &str) -> Outcome<Ticket> {
    if text.is_empty() {
        return Err(Failure::usage(format!(
            "no ticket: {VARIABLE} is not set and standard input is empty"
        )));
    }
    let garbage =
        || Failure::usage("not a ticket: pass on exactly what `distlock acquire` printed");
    if !text.starts_with('{') {
        return text.parse().map_err(|_| garbage());
    }
    let json: serde_json::Value = serde_json::from_str(text).map_err(|_| garbage())?;
    let ticket = json.get("ticket").and_then(serde_json::Value::as_str);
    ticket.ok_or_else(garbage)?.parse().map_err(|_| garbage())
}
