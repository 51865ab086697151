//! Many callers want a value that takes a second to compute. One of them computes it for all.
//!
//! Run it twice at the same time: `cargo run -p distlock --features sqlite --example cache_guard`

use std::time::Duration;

use distlock_recipes::cache_guard::{CacheGuard, RecordsCache, Settings};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::temp_dir().join("distlock-example.db");
    let store = distlock::open(distlock::Target::sqlite(file)).await?;
    let cache = RecordsCache::new(&store)?;
    let guard = CacheGuard::new(&store, cache, Settings::ttl(Duration::from_secs(10)))?;
    let callers = (0..100).map(|_| guard.get_or_rebuild("report", compute));
    let values = futures_util::future::join_all(callers).await;
    for value in &values {
        let value = value.as_ref().map_err(Clone::clone)?;
        assert!(value.is_some());
    }
    say(format_args!("{} callers have the value", values.len()));
    store.close().await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "pretends to work")]
async fn compute() -> distlock::Result<Option<Vec<u8>>> {
    say(format_args!("computing it"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(Some(b"42".to_vec()))
}

#[expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(line: std::fmt::Arguments<'_>) {
    println!("{line}");
}
