//! Guard a critical section with fencing. A holder that was paused until after its lease cannot
//! write any more.
//!
//! `cargo run -p distlock --features sqlite --example fenced_section`

use distlock::{FenceError, FencedFile, Forced};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let target = distlock::Target::sqlite(folder.path().join("locks.db"));
    // Usually these are two processes, each with its own connection.
    let (first, second) = (
        distlock::connect(&target).await?,
        distlock::connect(&target).await?,
    );
    let ledger = FencedFile::open(folder.path().join("ledger"))?;

    let paused = first.lock("ledger").acquire().await?;
    ledger.write(&paused.fence(), b"balance: 100")?;
    say(format_args!("token {} wrote", paused.token()));

    // The lock is freed while its first holder does not notice. Here an operator force-releases it;
    // a pause that is longer than the lease has the same effect.
    let forced = second.force_release("ledger", paused.token()).await?;
    assert_eq!(forced, Forced::Released);
    let latest = second.lock("ledger").acquire().await?;
    ledger.write(&latest.fence(), b"balance: 90")?;
    say(format_args!("token {} wrote", latest.token()));

    // Now the first holder continues. The lock cannot stop its write, but the ledger refuses it.
    match ledger.write(&paused.fence(), b"balance: 50") {
        Err(FenceError::Refused(refusal)) => say(format_args!("refused: {refusal}")),
        other => return Err(format!("a stale write was not refused: {other:?}").into()),
    }
    assert_eq!(ledger.read()?.as_deref(), Some(&b"balance: 90"[..]));

    assert!(latest.release().await.is_clean());
    drop(paused);
    first.close().await;
    second.close().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example talks to its user")]
fn say(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}
