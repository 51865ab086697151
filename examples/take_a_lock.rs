//! Take a lock, work while it is held, release it.
//!
//! Run it in two terminals: `cargo run -p distlock --features sqlite --example take_a_lock`

use std::time::Duration;

use distlock::{ErrorKind, Released};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let locker = distlock::connect(distlock::Target::sqlite(file)).await?;

    let taken = locker
        .lock("order:42")
        .ttl(Duration::from_secs(5)) // if this process dies, the lock ends after this time
        .wait(Duration::from_secs(3))
        .acquire()
        .await;
    let guard = match taken {
        Ok(guard) => guard,
        // The error message names the holder.
        Err(busy) if busy.kind() == ErrorKind::Timeout => {
            say(format_args!("busy: {busy}"));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    say(format_args!("held with token {}", guard.token()));

    // Renewal happens in the background. If it fails, `lost` reports that before another caller can
    // get the lock.
    tokio::select! {
        reason = guard.lost() => say(format_args!("lost: {reason}")),
        () = work() => say(format_args!("done, {:?} were left", guard.remaining())),
    }

    match guard.release().await {
        Released::Clean => say(format_args!("released")),
        other => say(format_args!("not released cleanly: {other:?}")),
    }
    locker.close().await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "pretends to work")]
async fn work() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[expect(clippy::print_stdout, reason = "an example talks to its user")]
fn say(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}
