use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use distlock::Ticket;

use crate::text::is_bounded;

/// Tickets: the text unchanged, and as the content of a ticket.
pub fn tickets(data: &[u8]) {
    if let Ok(text) = str::from_utf8(data) {
        read(text);
    }
    read(&format!("dlt1.{}", URL_SAFE_NO_PAD.encode(data)));
}

/// A ticket that was read is written and read back the same.
fn read(text: &str) {
    match text.parse::<Ticket>() {
        Ok(ticket) => {
            let written = ticket.to_string();
            assert_eq!(written.parse::<Ticket>().as_ref().ok(), Some(&ticket));
            // A ticket is a secret, so its debug form shows only its lock.
            let shown = format!("{ticket:?}");
            assert!(!shown.contains(&written), "{shown}");
            assert!(ticket.token().get() > 0 && !ticket.ttl().duration().is_zero());
        }
        // No part of a ticket goes into an error.
        Err(error) => is_bounded(error, 0),
    }
}
