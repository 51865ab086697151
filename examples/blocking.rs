//! Take a lock in a program without async code.
//!
//! Run it in two terminals:
//! `cargo run -p distlock --features blocking,sqlite --example blocking`

use std::{thread::park_timeout, time::Duration};

use distlock::{ErrorKind, blocking};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let locker = blocking::connect(distlock::Target::sqlite(file))?;

    let lock = locker.lock("order:42").wait(Duration::from_secs(3));
    let guard = match lock.acquire() {
        Ok(guard) => guard,
        // The error message names the holder.
        Err(busy) if busy.kind() == ErrorKind::Timeout => {
            say(format_args!("busy: {busy}"));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    say(format_args!("held with token {}", guard.token()));

    // The callback runs on a thread of its own. The work itself looks before each step.
    guard.on_lost(|reason| say(format_args!("lost: {reason}")));
    for page in 1..=4 {
        guard.check()?;
        park_timeout(Duration::from_millis(500)); // pretends to work
        say(format_args!("page {page} is done"));
    }

    say(format_args!("released: {:?}", guard.release()));
    locker.close()?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example talks to its user")]
fn say(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}
