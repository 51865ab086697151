//! Three candidates take part in an election, and one leads at a time. Run the example in two
//! terminals, and end one of them with Ctrl-C.
//!
//! `cargo run -p distlock --features sqlite --example elect_a_leader`

use std::time::Duration;

use distlock_recipes::election::{Election, Led};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let store = distlock::open(distlock::Target::sqlite(file)).await?;
    let candidates = ["anna", "bob", "carl"].map(|name| take_part(store.clone(), name));
    futures_util::future::try_join_all(candidates).await?;
    store.close().await;
    Ok(())
}

async fn take_part(store: distlock::Store, name: &'static str) -> distlock::Result<()> {
    let election = Election::new(&store, "example", name)?.ttl(Duration::from_secs(2));
    let led = election.run_while_leader(async |term| {
        say(format_args!("{name} leads, term {}", term.number));
        work().await;
    });
    match led.await? {
        Led::Done(()) => say(format_args!("{name} is done, and resigns")),
        Led::Stopped(reason) => say(format_args!("{name} was stopped: {reason}")),
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "pretends to work")]
async fn work() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
