//! Readers, a writer and permits over several processes.
//!
//! Run it several times at once:
//! `cargo run -p distlock --features sqlite --example readers_and_permits`

use std::time::Duration;

use distlock_recipes::shared::{RwLock, Semaphore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let store = distlock::open(distlock::Target::sqlite(file)).await?;

    let catalogue = RwLock::new(&store, "catalogue")?;
    let reader = catalogue.read().acquire().await?;
    say(format_args!(
        "reads beside other readers, token {}",
        reader.token()
    ));
    work().await;
    drop(reader.release().await);

    let writer = catalogue.write().acquire().await?;
    say(format_args!("writes alone, token {}", writer.token()));
    work().await;
    let reader = writer.downgrade().await?;
    say(format_args!(
        "reads what it wrote, token {}",
        reader.token()
    ));
    drop(reader.release().await);

    let renderers = Semaphore::new(&store, "renderers", 2)?;
    let permit = renderers.permits(1).acquire().await?;
    say(format_args!("has permit {:?} of 2", permit.indices()));
    work().await;
    drop(permit.release().await);

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
