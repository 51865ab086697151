use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock::Ticket;

use crate::text::is_bounded;

/// Checks tickets: the input as the text of a ticket, and the input as the content of a ticket.
pub fn tickets(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        read(text);
    }
    read(&format!("dlt1.{}", URL_SAFE_NO_PAD.encode(data)));
}

/// Checks that a ticket that was read is the same after it is written and read again.
fn read(text: &str) {
    match text.parse::<Ticket>() {
        Ok(ticket) => {
            let written = ticket.to_string();
            assert_eq!(written.parse::<Ticket>().as_ref().ok(), Some(&ticket));
            // A ticket is a secret, so its debug form must show only the name of its lock.
            let shown = format!("{ticket:?}");
            assert!(!shown.contains(&written), "{shown}");
            assert!(ticket.token().get() > 0 && !ticket.ttl().duration().is_zero());
        }
        // An error must contain no part of a ticket.
        Err(error) => is_bounded(error, 0),
    }
}
