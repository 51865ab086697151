//! Counts the unread messages of a chat user, for each conversation and for all together.
//!
//! `cargo run -p distlock --features sqlite --example unread_counters`

use distlock_recipes::unread::{Counter, LockedCounters, OptimisticCounters, UnreadCounters as _};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let store = distlock::open(distlock::Target::sqlite(file)).await?;
    // The two types can be used on the same counters.
    let (messages, reader) = (LockedCounters::new(&store), OptimisticCounters::new(&store));
    let (family, work) = (Counter::new("ann", "family")?, Counter::new("ann", "work")?);
    messages.increment(&work, 2).await?;
    let unread = messages.increment(&family, 1).await?;
    say(format_args!("a message of the family: {unread:?}"));
    let unread = reader.clear(&work).await?;
    say(format_args!("work was read: {unread:?}"));
    let unread = reader.clear(&family).await?;
    say(format_args!("the family, too: {unread:?}"));
    assert_eq!(unread.total, 0);
    store.close().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
