//! Pays an order only once, although its payment is requested several times.
//!
//! Run it twice: `cargo run -p distlock --features sqlite --example idempotent`

use distlock_recipes::idempotent::{Idempotent, Once};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let store = distlock::open(distlock::Target::sqlite(file)).await?;
    let once = Idempotent::new(&store);
    for _request in 0..3 {
        let guard = store.locker().lock("order-7").acquire().await?;
        let paid = once.once(
            "order-7",
            guard.token(),
            async || Ok("a receipt".to_owned()),
        );
        match paid.await? {
            Once::Now(receipt) => say(format_args!("paid now: {receipt}")),
            Once::Before(receipt) => say(format_args!("was paid before: {receipt}")),
        }
        let _ = guard.release().await;
    }
    store.close().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
