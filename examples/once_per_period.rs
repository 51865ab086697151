//! Runs a job once a minute, although several processes start it more often.
//!
//! Run it several times: `cargo run -p distlock --features sqlite --example once_per_period`

use std::time::Duration;

use distlock_recipes::{Periodic, Ran};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let store = distlock::open(distlock::Target::sqlite(file)).await?;
    let periodic = Periodic::new(&store)?;
    let minute = Duration::from_secs(60);
    let ran = periodic.at_most_once("tick", minute, async |_lock| {
        say(format_args!("running"));
        work().await;
        Ok(())
    });
    match ran.await? {
        Ran::Here(()) => say(format_args!("done: start it again at once")),
        Ran::Before(ago) => say(format_args!("not run: it was started {ago:?} ago")),
        Ran::Elsewhere(_) => say(format_args!("not run: it is running elsewhere")),
        _ => {}
    }
    store.close().await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "pretends to work")]
async fn work() {
    tokio::time::sleep(Duration::from_secs(2)).await;
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
